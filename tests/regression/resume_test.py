"""A run that stops and goes on is the run that never stopped: every schedule, order of data and model; and what one
number of ranks saved, every other one loads.

usage: resume_test.py TESSERA MPIEXEC
"""
import json
import random

import runs

CASES = [("cosine", True, "single"), ("cosine", False, ""), ("linear", False, "discrete"), ("linear", True, ""),
         ("constant", True, "discrete"), ("constant", False, ""), ("wsd", False, "single"), ("wsd", True, "")]


class Resume(runs.Runs):
    def case(self, schedule, shuffle, weights):
        """The same deck for every run of a case."""
        decay = ["--set", "optimizer.decay_steps=3"] if schedule == "wsd" else []
        return weights, ["--set", f"optimizer.schedule={schedule}", "--set", f"data.shuffle={str(shuffle).lower()}", "--set",
                         "optimizer.min_lr=0.001", *decay]

    def go(self, code, run, weights, settings, *arguments):
        """On two ranks; returns the trace of the steps that were done, but for what ran under what: a run's last step hides
        nothing under a next one."""
        trace = self.path("trace.jsonl")
        self.train(code, 2, self.deck(run, weights), *settings, "--set", f"debug.trace={trace}", *arguments)
        return [{key: value for key, value in row.items() if key != "overlapped"} for row in self.json_lines("trace.jsonl")]

    def restarts(self, run):
        """How often a run had been resumed when it began, as run.json says."""
        with open(self.path(run, "run.json")) as file:
            return json.load(file)["restart"]

    def test_in_two_parts(self):
        for number, case in enumerate(CASES):
            with self.subTest(case=case):
                weights, settings = self.case(*case)
                whole = self.go(0, f"a{number}", weights, settings)
                run = f"b{number}"
                parts = self.go(75, run, weights, settings, "--stop-at", "4") + self.go(0, run, weights, settings)
                self.assertEqual([row["step"] for row in parts], list(range(1, 9)))
                self.assertEqual(parts, whole)
                self.assertEqual(self.rows(run), self.rows(f"a{number}"))
                self.assertEqual(self.final(run), self.final(f"a{number}"))

    def test_a_signal_at_any_step(self):
        for number, case in enumerate(random.sample(CASES, 2)):
            weights, settings = self.case(*case)
            settings += ["--set", "run.steps=200"]
            self.train(0, 2, self.deck(f"a{number}", weights), *settings)
            run, at = f"c{number}", random.randrange(1, 100)
            with self.subTest(case=case, at=at):
                self.assertLess(self.signalled(run, at, *settings, weights=weights), 200)
                self.assertEqual(self.restarts(run), 0)
                self.train(0, 2, self.deck(run, weights), *settings)
                self.assertEqual(self.restarts(run), 1)
                self.assertEqual(self.rows(run, 200), self.rows(f"a{number}", 200))
                self.assertEqual(self.final(run), self.final(f"a{number}"))

    def test_any_ranks_load_what_any_ranks_saved(self):
        for saved in (1, 2, 3, 4):
            source, layout = f"from{saved}", ("single", "discrete")[saved % 2]
            self.train(75, saved, self.deck(source), "--stop-at", "1", "--set", f"checkpoint.expert_layout={layout}")
            found = self.tool(0, "inspect", source)
            self.assertEqual(found["expert_layout"], layout)
            want = found["content_digest"]
            for loaded in (1, 2, 3, 4):
                for weights in ("single", "discrete"):
                    with self.subTest(saved=saved, layout=layout, loaded=loaded, weights=weights):
                        target = f"{source}to{loaded}{weights}"
                        self.train(75, loaded, self.deck(target, weights), "--resume", source, "--stop-at", "1")
                        found = self.tool(0, "inspect", target)
                        self.assertEqual((found["content_digest"], found["expert_layout"]), (want, weights))


if __name__ == "__main__":
    runs.main()
