"""A resumed run equals the run that never stopped, for every schedule, order of data and model; and any number of ranks
loads what any other number has saved.
"""
import itertools
import json
import os
import random
import shutil
import signal

import runs

SCHEDULES = ("cosine", "linear", "constant", "wsd")
EVERY_CASE = list(itertools.product(SCHEDULES, (True, False), ("", "single", "discrete")))
CASES = [("cosine", True, "single"), ("cosine", False, ""), ("linear", False, "discrete"), ("linear", True, ""),
         ("constant", True, "discrete"), ("constant", False, ""), ("wsd", False, "single"), ("wsd", True, "")]


class Resume(runs.Runs):
    def case(self, schedule, shuffle, weights):
        """The same deck for every run of a case."""
        decay = ["--set", "optimizer.decay_steps=3"] if schedule == "wsd" else []
        return weights, ["--set", f"optimizer.schedule={schedule}", "--set", f"data.shuffle={str(shuffle).lower()}", "--set",
                         "optimizer.min_lr=0.001", *decay]

    def go(self, code, run, weights, settings, *arguments):
        """Runs on two ranks; returns the trace of the steps done."""
        trace = self.path("trace.jsonl")
        self.train(code, 2, self.deck(run, weights), *settings, "--set", f"debug.trace={trace}", *arguments)
        return self.comparable(self.json_lines("trace.jsonl"))

    @staticmethod
    def comparable(trace):
        """A trace without counts of overlap, since a run's last step does not overlap with a next one."""
        return [{key: value for key, value in row.items() if key != "overlapped"} for row in trace]

    def restarts(self, run):
        """Number of times that a run has been resumed, from run.json."""
        with open(self.path(run, "run.json")) as file:
            return json.load(file)["restart"]

    def test_in_two_parts(self):
        for number, case in enumerate(EVERY_CASE):
            with self.subtests.test(case=case):
                weights, settings = self.case(*case)
                whole = self.go(0, f"a{number}", weights, settings)
                run = f"b{number}"
                parts = self.go(75, run, weights, settings, "--stop-at", "4") + self.go(0, run, weights, settings)
                assert [row["step"] for row in parts] == list(range(1, 9))
                assert parts == whole
                assert self.rows(run) == self.rows(f"a{number}")
                assert self.final(run) == self.final(f"a{number}")

    def test_a_signal_at_any_step(self):
        for number, case in enumerate(CASES):
            weights, settings = self.case(*case)
            settings += ["--set", "run.steps=40"]
            whole = self.go(0, f"a{number}", weights, settings)
            run, at = f"c{number}", random.randrange(1, 30)
            with self.subtests.test(case=case, at=at):
                trace = runs.Paced(self.path(f"trace{number}"))
                process = self.start(2, self.deck(run, weights), *settings, "--set", f"debug.trace={self.path(f'trace{number}')}")
                trace.until(at)
                os.kill(self.rank_of(), signal.SIGTERM)
                trace.let_go()
                out, err = process.communicate(timeout=runs.PATIENCE)
                assert process.returncode == 75, (out[-1000:], err)
                step = self.tool(0, "inspect", run)["step"]
                assert at <= step < 40, (at, step)
                assert self.restarts(run) == 0
                parts = self.comparable(trace.all()) + self.go(0, run, weights, settings)
                assert self.restarts(run) == 1
                assert parts == whole
                assert self.rows(run, 40) == self.rows(f"a{number}", 40)
                assert self.final(run) == self.final(f"a{number}")

    def saved_again(self, source, target, ranks, layout, weights):
        """Loads a run on some ranks and saves it in a layout; returns the digest."""
        self.train(75, ranks, self.deck(target, weights), "--resume", source, "--stop-at", "1", "--set",
                   f"checkpoint.expert_layout={layout}", "--set", "batch.global=120")
        found = self.tool(0, "inspect", target)
        assert (found["expert_layout"], found["world_size"], found["step"]) == (layout, ranks, 1)
        return found["content_digest"]

    def test_any_ranks_load_what_any_ranks_saved(self):
        """Up to 4 ranks with both layouts of files and of memory, in two pairs of the four in turn; more ranks with one pair."""
        layouts, counts = ("single", "discrete"), (1, 2, 3, 4, 5, 8)
        self.train(75, 3, self.deck("base"), "--stop-at", "1", "--set", "batch.global=120")
        want = self.final("base")
        for saved in counts:
            for layout in layouts:
                assert self.saved_again("base", f"{saved}{layout}", saved, layout, "single") == want
            for loaded in counts:
                turn = (saved + loaded) % 2
                for file in (0, 1) if max(saved, loaded) <= 4 else (turn,):
                    layout, weights = layouts[file], layouts[(file + (saved + loaded) // 2) % 2]
                    with self.subtests.test(saved=saved, layout=layout, loaded=loaded, weights=weights):
                        target = f"{saved}{layout}-{loaded}{weights}"
                        assert self.saved_again(f"{saved}{layout}", target, loaded, weights, weights) == want
                        shutil.rmtree(self.path(target))
