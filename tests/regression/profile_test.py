"""`debug.profile` from outside: what it shows, and that it does not change a bit of the run.
"""
import copy
import json

import profiles
import runs


def of(events, name):
    return next(e for e in events if e["ph"] == "X" and e["name"] == name)


BROKEN = {
    "no events": lambda events: events.clear(),
    "a step is missing": lambda events: events.remove(of(events, "step 6")),
    "a region ends before it begins": lambda events: of(events, "norms").update(dur=-1),
    "a time is no number": lambda events: of(events, "norms").update(ts=float("nan")),
    "a region has no name": lambda events: of(events, "norms").update(name=""),
    "a region ends behind the one about it": lambda events: of(events, "products").update(dur=1e7),
    "a region is of another step": lambda events: of(events, "norms")["args"].update(step=8),
    "a row has no name": lambda events: events.remove(next(e for e in events if e["name"] == "thread_name")),
    "a collective carries nothing": lambda events: [e["args"].update(bytes=0) for e in events if e["name"] == "all_gather weights"],
    "a rank is missing": lambda events: [events.remove(e) for e in list(events) if e["pid"] == 1],
}


class Profiles(runs.Runs):
    def profiled(self, ranks, name, *more, code=0, weights="single"):
        self.train(code, ranks, self.deck(name, weights), "--set", f"debug.profile={name}.json", *more)
        return json.loads(self.read(name + ".json"))

    def sound(self, trace, ranks, *steps):
        assert profiles.problems(trace, ranks, steps) == []

    def test_two_ranks_and_the_bits_of_a_run_without(self):
        """An evaluation and a save lie among the steps."""
        trace = self.profiled(2, "with")
        self.sound(trace, 2, 5, 8)
        names = {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"}
        assert {"attention", "experts", "reduce", "publish", "waiting", "evaluate", "report"} <= names
        self.train(0, 2, self.deck("without"))
        assert self.rows("with") == self.rows("without")
        assert self.final("with") == self.final("without")
        for what, harm in BROKEN.items():
            with self.subtests.test(what):
                broken = copy.deepcopy(trace)
                harm(broken["traceEvents"])
                assert profiles.problems(broken, 2, (5, 8)) != []

    def test_one_rank_and_runs_of_few_steps(self):
        """Profiled steps: of fewer than eight the last four, or all; those before an early end; those of a resumed run."""
        for steps, window in ((6, (3, 6)), (2, (1, 2))):
            trace = self.profiled(1, f"of{steps}", "--set", f"run.steps={steps}", weights="")
            self.sound(trace, 1, *window)
            assert "collective" not in {e.get("cat") for e in trace["traceEvents"]}
        self.sound(self.profiled(1, "stopped", "--stop-at", "6", code=75, weights=""), 1, 5, 6)
        self.sound(self.profiled(1, "stopped", weights=""), 1, 7, 8)
