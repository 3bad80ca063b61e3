"""`tessera audit` of runs that changed on their way: each stretch is made again with the deck that made it."""
import json
import os
import shutil

import runs


class Audit(runs.Runs):
    EVERY = ("--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_last=9")

    def go(self, code, ranks, *settings, more=(), moe=False):
        words = [word for setting in settings for word in ("--set", setting)]
        return self.train(code, ranks, self.deck("run", "single" if moe else None), *self.EVERY, *words, *more)

    def audit(self, code, *arguments, ranks=1, run="run"):
        return self.run_to_its_end(code, ranks, "audit", *([run] if run else []), *arguments)

    def test_each_stretch_has_the_deck_that_made_it(self):
        """From step 5 on at another rate, from step 7 on in other batches and another order of sums, with more steps to come."""
        self.go(75, 2, more=("--stop-at", "4"))
        self.go(75, 2, "optimizer.lr=0.005", more=("--stop-at", "6"))
        self.go(0, 2, "optimizer.lr=0.005", "batch.global=6", "batch.micro=3", "reduce.order=batch", "run.steps=10", "precision.recipe=nvfp4",
                more=("--allow-change", "batch.global,run.steps"))
        found = json.loads(self.audit(0, "--from", "0", "--json", ranks=2)[0])
        assert [(row["step"], row["equal"]) for row in found["steps"]] == [(2, True), (4, True), (6, True), (8, True), (10, True)]
        # A fault is still one, and what follows it is not looked at.
        found = json.loads(self.audit(1, "--set", "optimizer.clip=0.01", "--json", ranks=2)[0])
        assert [(row["step"], row["equal"]) for row in found["steps"]] == [(4, False)]

    def test_a_change_without_its_checkpoint_is_refused_before_a_step(self):
        self.go(75, 1, more=("--stop-at", "4"))
        self.go(0, 1, "optimizer.lr=0.005")
        out, _ = self.audit(0)
        assert out.splitlines()[0].startswith("step 4: equal | ")
        assert out.splitlines()[1] == "changed after step 4: optimizer.lr 0.01 -> 0.005"
        assert out.splitlines()[-1] == "equal: steps 3 to 8 computed again on 1 rank"
        shutil.rmtree(self.path("run", "step_00000004"))
        out, err = self.audit(2)
        assert out == ""
        assert ("optimizer.lr changed after step 4 (0.01 -> 0.005), of which no checkpoint is left, so that the steps 3 to 6 cannot be made "
                "again: audit what follows with --from 6\n") in err
        assert "audit up to step 2 with --to 2, and what follows with --from 6" in self.audit(2, "--from", "0")[1]
        self.audit(0, "--from", "6")
        self.audit(0, "--from", "0", "--to", "2")

    def test_ranks_that_sums_depend_on_are_told_of_every_stretch(self):
        self.go(75, 2, more=("--stop-at", "4"))
        self.go(75, 1, more=("--stop-at", "6"))
        self.go(0, 2, "reduce.order=batch")
        hint = "reduce.order is rank: bits depend on the number of ranks, which was {} and is {}"
        out, err = self.audit(1, ranks=1)
        assert "step 4: differs in" in out
        assert err.count(hint.format(2, 1)) == 1
        out, err = self.audit(1, ranks=2)
        assert "step 6: differs in" in out
        assert hint.format(1, 2) in err
        assert "reduce.order" not in self.audit(0, "--from", "4", "--to", "6", ranks=1)[1]
        assert "reduce.order" not in self.audit(0, "--from", "6", ranks=3)[1]

    def test_what_is_not_there_is_named(self):
        self.go(75, 1, more=("--stop-at", "4"))
        assert self.audit(5, "--from", "3")[1] == "run: holds no valid step 3, which --from names: it holds 2, 4\n"
        assert self.audit(5, "--to", "13")[1] == "run: holds no valid step 13, which --to names: it holds 2, 4\n"
        assert "--from 4 --to 2: an audit needs a later step to compare with\n" in self.audit(2, "--from", "4", "--to", "2")[1]
        for step in ("run/step_00000004", "run/step_00000004/"):
            assert (f"is a checkpoint, and an audit needs the run directory around it: name {self.path('run')}, with --to 4 to end with this one\n"
                    in self.audit(5, run=step)[1])
        os.mkdir(self.path("hf"))
        self.write("hf/config.json", "{}")
        assert self.audit(5, run="hf")[1] == "hf: is a Hugging Face folder, which has no steps: an audit needs a run directory\n"
        assert self.audit(5, run="nothing")[1] == "nothing: is no run directory\n"

    def test_a_replay_follows_its_record(self):
        self.train(0, 2, self.deck("first"), "--set", "routing.record=a.bin")
        self.go(0, 2, "routing.replay=a.bin", "routing.record=b.bin", "optimizer.lr=0.02", moe=True)
        before = os.stat(self.path("b.bin"))
        out, _ = self.audit(0, "--from", "0", ranks=2)
        assert out.splitlines()[-1] == "equal: steps 1 to 8 computed again on 2 ranks"
        after = os.stat(self.path("b.bin"))
        assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
        os.rename(self.path("a.bin"), self.path("away.bin"))
        assert "routing.replay: a.bin: cannot be opened" in self.audit(5, ranks=2)[1]
        os.truncate(self.path("away.bin"), os.path.getsize(self.path("away.bin")) // 2)
        assert "routing.replay: away.bin: holds steps 1 to " in self.audit(5, "--set", "routing.replay=away.bin", ranks=2)[1]
