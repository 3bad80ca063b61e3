"""Commands on saves and at the end of a run (run.on_save, run.on_end): what they are told, that they are bounded, and that a failure
changes nothing.
"""
import json
import os
import shutil
import signal
import time

import runs

NAMES = ("RUN", "STEP", "STEPS", "CHECKPOINT", "DIGEST", "END", "CODE")
TOLD = "for one in " + " ".join(NAMES) + "; do eval echo \\\"$one=\\$TESSERA_$one\\\"; done | paste -sd '\\t' >> "


class Hooks(runs.Runs):
    def hook(self, key, script):
        """A command of the deck: a file of shell, since --set takes YAML."""
        name = self.write(f"{key}.sh", script)
        return "--set", f"run.{key}=sh {name}"

    def told(self, name):
        return [dict(word.split("=", 1) for word in line.split("\t")) for line in self.read(name).splitlines()]

    def train_with(self, code, ranks, *arguments, directory="run"):
        return self.train(code, ranks, self.deck(directory, None), "--set", "eval.every_steps=0", *arguments)


class Told(Hooks):
    def test_each_save_and_the_end(self):
        for asynchronous in ("false", "true"):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            for name in ("saves", "ends"):
                self.write(name, "")
            hooks = (*self.hook("on_save", f"test -d $TESSERA_CHECKPOINT && {TOLD}{self.path('saves')}"), *self.hook("on_end", TOLD + self.path("ends")),
                     "--set", f"checkpoint.async={asynchronous}")
            # Each save comes when the command of the one before has long ended, or waits for it in the queue of one.
            out, err = self.train_with(75, 2, *hooks, "--stop-at", "5")
            self.train_with(0, 3, *hooks)
            assert "run.on_" not in err
            saves, ends = self.told("saves"), self.told("ends")
            steps = [int(one["STEP"]) for one in saves]
            assert sorted(set(steps)) == steps
            assert set(steps) <= {3, 5, 6, 8}
            assert 8 in steps  # the newest is never passed over
            for one in saves:
                assert one["CHECKPOINT"] == self.path("run", f"step_{int(one['STEP']):08}")
                assert (one["RUN"], one["STEPS"], one["END"], one["CODE"]) == (self.path("run"), "8", "", "")
            assert saves[-1]["DIGEST"] == self.final("run")
            assert [(one["STEP"], one["CODE"]) for one in ends] == [("5", "75"), ("8", "0")]
            assert [one["END"] for one in ends] == ["stopped after step 5 of 8 (--stop-at)", "all steps done"]
            assert ends[-1]["CHECKPOINT"] == self.path("run", "step_00000008")
            assert ends[-1]["DIGEST"] == self.final("run")

    def test_a_run_that_fails_and_one_that_is_signalled(self):
        self.write("ends", "")
        end = self.hook("on_end", TOLD + self.path("ends"))
        self.train_with(6, 2, *end, "--set", "optimizer.lr=1000", "--set", "optimizer.clip=0", "--set", "optimizer.max_skips=1",
                        "--set", "run.steps=400", "--set", "optimizer.warmup_steps=0", "--set", "model.norm=layer")
        assert [one["CODE"] for one in self.told("ends")] == ["6"]
        assert "not finite" in self.told("ends")[0]["END"]
        process = self.start(2, self.deck("signalled", None), *end, "--set", "run.steps=100000", "--set", "checkpoint.every_steps=0")
        while not os.path.exists(self.path("signalled", "metrics.jsonl")):
            time.sleep(0.05)
        os.kill(self.rank_of(), signal.SIGTERM)
        process.communicate(timeout=runs.PATIENCE)
        assert self.told("ends")[-1]["CODE"] == "75"
        assert "SIGTERM" in self.told("ends")[-1]["END"]

    def test_programs_of_a_command_are_no_ranks(self):
        """They see none of the launcher's variables, no file of the program, and signals as usual."""
        script = f"""env | cut -d= -f1 > {self.path('variables')}
ls /proc/self/fd | wc -l > {self.path('files')}
grep SigBlk /proc/self/status > {self.path('blocked')}
{self.tessera} checkpoint ls $TESSERA_RUN --json > {self.path('listed')}
{self.tessera} eval {self.path('run.yaml')} --checkpoint $TESSERA_CHECKPOINT --json > {self.path('evaluated')}
"""
        _, err = self.train_with(0, 2, *self.hook("on_end", script))
        assert "run.on_end" not in err
        assert not [name for name in self.read("variables").split() if name.startswith(("PMI", "OMPI_COMM", "HYD"))]
        assert int(self.read("files")) <= 4  # three, and the folder that ls reads
        assert int(self.read("blocked").split()[1], 16) == 0
        assert json.loads(self.read("listed"))[-1]["step"] == 8
        assert json.loads(self.read("evaluated"))["eval_loss"] > 0


class Bounded(Hooks):
    def test_failures_change_nothing(self):
        self.train_with(0, 2, directory="without")
        for script, said in (("exit 3", "the command ended with 3"), ("kill -9 $$", "the command ended with 137"),
                             ("nonsense-of-no-program", "the command ended with 127")):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            _, err = self.train_with(0, 2, *self.hook("on_save", script), *self.hook("on_end", script))
            for key in ("run.on_save", "run.on_end"):
                assert f"{key}: {said} (nothing else is affected)" in err
            assert self.rows("run") == self.rows("without")
            assert self.final("run") == self.final("without")

    def test_what_takes_too_long_is_ended_with_all_that_it_started(self):
        begin = time.monotonic()
        script = f"sleep 3000 & echo $! > {self.path('child')}; wait"
        _, err = self.train_with(0, 2, *self.hook("on_save", script), *self.hook("on_end", script), "--set", "run.hook_timeout_s=1")
        assert time.monotonic() - begin < 300
        for key in ("run.on_save", "run.on_end"):
            assert f"{key}: the command was ended after 1 s (run.hook_timeout_s)" in err
        child, deadline = int(self.read("child")), time.monotonic() + 60
        while runs.processes.state_of(child) not in ("", "Z"):
            assert time.monotonic() < deadline, "a child of the command still runs"
            time.sleep(0.1)
