"""Evaluations that choose among steps: the best one that was saved is kept (checkpoint.keep_best), and each counts once for
run.stop_after.
"""
import os
import signal
import time

import runs


class BestSteps(runs.Runs):
    OFTEN = ("--set", "eval.every_steps=1", "--set", "checkpoint.every_steps=1", "--set", "run.steps=40", "--set", "optimizer.lr=0.1",
             "--set", "batch.global=1")

    def steps(self, run):
        return sorted(int(name[5:]) for name in os.listdir(self.path(run)) if name.startswith("step_"))

    def up_and_down(self):
        """A seed, the evaluation losses of its run's steps 1, 2, ..., and a step that is the best so far: the steps beside
        it are worse than an earlier one."""
        for seed in range(1, 100):
            name = f"probe{seed}"
            self.train(0, 1, self.deck(name, None), *self.OFTEN, "--set", f"run.seed={seed}", "--set", "checkpoint.every_steps=0")
            losses = [None, *(row["eval_loss"] for row in self.json_lines(name, "metrics.jsonl"))]
            for step in range(4, len(losses) - 2):
                if losses[step] < min(losses[1:step - 1]) < min(losses[step - 1], losses[step + 1]):
                    return seed, losses, step
        raise AssertionError("no run has such a step")

    def check_lost_best(self, run, losses, lost, *settings):
        """The save of step `lost`, the best so far, fails: the best one before it stays, here and behind a resume."""
        best = lambda steps: min(steps, key=lambda step: losses[step])
        deck = self.deck(run, None)
        keep = (*self.OFTEN, "--set", "checkpoint.keep_best=true", *settings)
        _, err = self.train(75, 1, deck, *keep, "--stop-at", str(lost + 1), fault=f"create:0:enospc:{lost}")
        assert f"step {lost} was not saved, training goes on" in err
        kept = {best(range(1, lost)), lost - 1, lost + 1}
        assert set(self.steps(run)) == kept
        self.train(75, 1, deck, *keep, "--stop-at", str(lost + 2))
        assert set(self.steps(run)) == {best(kept | {lost + 2}), lost + 1, lost + 2}

    def test_the_best_step_that_was_saved_is_kept(self):
        seed, losses, lost = self.up_and_down()
        self.check_lost_best("waiting", losses, lost, "--set", f"run.seed={seed}")
        self.check_lost_best("beside", losses, lost, "--set", f"run.seed={seed}", "--set", "checkpoint.async=true")

    def test_a_stop_in_a_sample_counts_no_evaluation_twice(self):
        """Every evaluation behind the first is no gain, at a rate of 0."""
        deck = self.deck("run", None)
        even = ("--set", "optimizer.lr=0", "--set", "eval.every_steps=1", "--set", "run.stop_after=2", "--set", "sample.tokens=1000000",
                "--set", "sample.every_steps=2")
        process = self.start(1, deck, *even)
        said = ""
        while "sample: " not in said:
            assert (character := process.stdout.read(1)), process.communicate()[1]
            said += character
        time.sleep(0.2)
        os.kill(self.rank_of(), signal.SIGTERM)
        out, err = process.communicate(timeout=runs.PATIENCE)
        assert process.returncode == 75, err
        assert "stopped after step 2 of 8 (SIGTERM); the same command goes on" in out
        out, _ = self.train(0, 1, deck, *even[:-4], "--set", "sample.tokens=0")
        assert "done after step 3 of 8: 2 evaluations in a row without a lower loss than after step 1" in out
