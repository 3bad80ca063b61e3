"""Expert parallelism from outside: checkpoints between any ranks, groups and layouts, refusals, what a run reports of its
rows, ranks that stop for a while or for ever.


With TESSERA_MATRIX=whole every mesh loads what every mesh saved in every layout, under both rules, and evaluations run
on up to 8 ranks; TESSERA_MATRIX_JOBS of these runs side by side: a minute on 32 cores.
"""
import concurrent.futures
import itertools
import json
import os
import re
import signal
import subprocess
import time

import runs

WHOLE = os.environ.get("TESSERA_MATRIX") == "whole"
JOBS = int(os.environ.get("TESSERA_MATRIX_JOBS", "1"))
MESHES = ((1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (4, 4))  # number of ranks, size of expert groups
LAYOUTS = ("single", "discrete")


def all_of(calls):
    """Results of the calls in order; JOBS of them run at a time."""
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        return [future.result() for future in [pool.submit(*call) for call in calls]]


class Experts(runs.Runs):
    def spread(self, expert, *more, experts=12):
        settings = (f"parallel.expert={expert}", f"model.moe.experts={experts}", *more)
        return [word for setting in settings for word in ("--set", setting)]

    def again(self, source, target, mesh, layout, weights, rule="adamw"):
        """A mesh loads `source` and saves it, at the same step, as `target`; returns the digest."""
        self.train(75, mesh[0], self.deck(target, weights), "--resume", source, "--stop-at", "1",
                   *self.spread(mesh[1], f"checkpoint.expert_layout={layout}", f"optimizer.matrices={rule}"))
        return self.final(target)

    def test_any_group_loads_what_any_group_saved(self):
        """Masters and the rules' state, loaded and saved again, keep the digest of the first save. Each mesh saves what
        the next one loads; with TESSERA_MATRIX=whole every mesh loads what every mesh has saved."""
        for rule in ("adamw", "muon") if WHOLE else ("adamw",):
            base = f"base.{rule}"
            self.train(75, 2, self.deck(base), "--stop-at", "1", *self.spread(1, f"optimizer.matrices={rule}"))
            want = self.final(base)
            sources = {(mesh, layout): f"{rule}.{number}.{layout}" for number, mesh in enumerate(MESHES)
                       for layout in (LAYOUTS if WHOLE else LAYOUTS[number % 2:][:1])}
            saves = [(self.again, base, name, mesh, layout, LAYOUTS[i // 2 % 2], rule)
                     for i, ((mesh, layout), name) in enumerate(sources.items())]
            loads = [(self.again, name, f"{name}.{number}", other, LAYOUTS[(i + number) % 2], LAYOUTS[(i // 2 + number) % 2], rule)
                     for i, ((mesh, layout), name) in enumerate(sources.items()) for number, other in enumerate(MESHES)
                     if WHOLE or other == MESHES[(MESHES.index(mesh) + 1) % len(MESHES)]]
            assert len(loads) == (72 if WHOLE else 6)
            for calls in (saves, loads):
                for call, found in zip(calls, all_of(calls)):
                    assert found == want, call[1:]

    def test_a_run_in_two_parts_is_the_whole(self):
        settings = self.spread(2, "checkpoint.expert_layout=discrete")
        self.train(0, 4, self.deck("a"), *settings)
        self.train(75, 4, self.deck("b"), *settings, "--stop-at", "5")
        self.train(0, 4, self.deck("b"), *settings)
        assert self.rows("b") == self.rows("a")
        assert self.final("b") == self.final("a")
        assert all(1 <= row["expert_rows"] <= 2 for row in self.json_lines("a", "metrics.jsonl"))

    def loss_of(self, ranks, expert):
        out, _ = self.run_to_its_end(0, ranks, "eval", self.deck(f"e{ranks}.{expert}"), "--checkpoint", "a", "--json",
                                     *self.spread(expert, "run.steps=2", "batch.global=24"))
        return json.loads(out)["eval_loss"]

    def test_evaluation_knows_no_rank_count(self):
        """The size of expert groups changes no bit of an evaluation: a row of a product does not depend on other rows."""
        self.train(0, 2, self.deck("a"), *self.spread(2, "run.steps=2"))
        meshes = ((1, 1), (2, 2), (4, 2), (4, 4))
        if WHOLE:
            meshes += ((2, 1), (3, 3), (6, 2), (6, 3), (6, 6), (8, 4))
        losses = dict(zip(meshes, all_of([(self.loss_of, *mesh) for mesh in meshes])))
        assert len(set(losses.values())) == 1, losses

    def test_a_sample_knows_no_rank_count(self):
        """Digest of the initial state, which is the same for every size of groups."""
        samples = set()
        for ranks, expert in ((1, 1), (4, 4), (4, 2), (3, 3)) if WHOLE else ((1, 1), (4, 4)):
            out, _ = self.train(0, ranks, self.deck(f"a{ranks}.{expert}"), *self.spread(expert, "run.steps=0", "sample.tokens=30"))
            samples.add(re.search(r"^sample: .*", out, re.M | re.S)[0])
        assert len(samples) == 1, samples

    def rank(self, directory, number):
        """The pid of a rank, from the run's LOCK."""
        with open(self.path(directory, "LOCK"), encoding="utf-8") as file:
            return json.load(file)["ranks"][number]["pid"]

    def test_rows_in_peers_memory_change_no_bit(self):
        """By an exchange and in peers' memory, and from one to the other at a restart."""
        peers = self.spread(2, "proof.expert_rows=peers", f"debug.trace={self.path('t.jsonl')}")
        self.train(0, 4, self.deck("a"), *self.spread(2))
        self.train(0, 4, self.deck("b"), *peers)
        self.train(75, 4, self.deck("c"), *self.spread(2), "--stop-at", "5")
        self.train(0, 4, self.deck("c"), *peers)
        for run in "bc":
            assert self.rows(run) == self.rows("a")
            assert self.final(run) == self.final("a")
        for row in self.json_lines("t.jsonl"):
            assert {c["label"] for c in row["collectives"] if c["op"] == "exchange_rows"} == {
                "expert rows", "expert answers", "answer gradients", "row gradients"}

    def test_a_rank_that_pauses_changes_nothing(self):
        settings = self.spread(2)
        self.train(0, 4, self.deck("a"), *settings)
        trace = runs.Paced(self.path("trace"))
        process = self.start(4, self.deck("b"), *settings, "--set", f"debug.trace={self.path('trace')}")
        trace.until(2)
        pid = self.rank("b", 1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(pid, signal.SIGCONT)
        trace.let_go()
        out, err = process.communicate(timeout=runs.PATIENCE)
        assert (process.returncode, err) == (0, ""), out[-1000:]
        trace.all()
        assert self.rows("b") == self.rows("a")

    def test_a_rank_that_stands_still_is_named(self):
        """Other ranks wait for the stopped one in its expert group, its expert-data group and the world; none of them is blamed."""
        meshes = ((2, 2, 1), (4, 2, 3), (4, 4, 0)) if WHOLE else ((4, 2, 3),)
        for (ranks, expert, number), way in itertools.product(meshes, ("exchange", "peers")):
            name = f"a{ranks}.{expert}.{way}"
            process = self.start(ranks, self.deck(name), *self.spread(expert, "run.steps=1000000", "comm.timeout_s=4", f"proof.expert_rows={way}"))
            rows = self.path(name, "metrics.jsonl")
            deadline = time.monotonic() + runs.PATIENCE
            while not (os.path.exists(rows) and os.path.getsize(rows)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            pid = self.rank(name, number)
            os.kill(pid, signal.SIGSTOP)
            try:
                _, err = process.communicate(timeout=runs.PATIENCE)
            finally:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            assert process.returncode == 7, err
            assert set(re.findall(r"rank (\d+) does not answer", err)) == {str(number)}, err

    def test_a_trace_lists_exchanges(self):
        self.train(75, 2, self.deck("a"), "--stop-at", "2", *self.spread(2, f"debug.trace={self.path('t.jsonl')}", "eval.every_steps=1"))
        for row in self.json_lines("t.jsonl"):
            rows = [c for c in row["collectives"] if c["op"] == "exchange_rows"]
            # Two layers, six micro-batches, four exchanges: out and back in forward and backward. Evaluations do not
            # count.
            assert len(rows) == 4 * 2 * 6
            assert {c["label"] for c in rows} == {"expert rows", "expert answers", "answer gradients", "row gradients"}
            assert sum(c["bytes"] for c in rows) > 0

    def test_a_plan_says_who_holds_what(self):
        def plan(*more):
            done = subprocess.run([self.tessera, "plan", self.deck("a"), "--ranks", "4", *more], capture_output=True, text=True,
                                  cwd=self.folder, check=True)
            return done.stdout
        one, two = json.loads(plan("--json", *self.spread(1))), json.loads(plan("--json", *self.spread(2)))
        assert two["parameters"] == one["parameters"]
        assert two["flops_per_step"] == one["flops_per_step"]
        assert two["expert"] == {"ranks": 2, "held": 6, "rows_planned": 2 * 32 * 2, "rows_even": 32 * 2}
        assert "expert" not in one
        assert "host reads" in two["graph"]
        assert {len(b["slices"]) for g in two["groups"] if g["processes"] == "expert" for b in g["buckets"]} == {2}
        assert two["memory"]["weights"] < one["memory"]["weights"]
        text = plan("--verbose", *self.spread(2))
        assert "4 ranks in 2 expert groups of 2; each rank holds 6 of 12 experts" in text
        assert "no graph: parallel.expert" in text
        peers = json.loads(plan("--json", *self.spread(2, "proof.expert_rows=peers")))
        assert peers["graph"] is True
        assert {key: peers[key] for key in ("parameters", "flops_per_step", "expert")} == {key: two[key] for key in ("parameters", "flops_per_step", "expert")}
        assert "no graph" not in plan("--verbose", *self.spread(2, "proof.expert_rows=peers"))

    def test_without_room_a_run_ends_on_all_ranks(self):
        """With room for 1.0 times the even share some layer of some step has too little room: that step changes nothing."""
        for way in ("exchange", "peers"):
            _, err = self.train(6, 2, self.deck(way), *self.spread(2, "parallel.expert_room=1.0", f"proof.expert_rows={way}"))
            assert re.search(r"parallel.expert_room: 1 is too small: rank [01] would have received 1\.\d+ times .* set 1\.\d+ or more", err)
            assert self.tool(0, "ls", way) == []
            assert self.json_lines(way, "metrics.jsonl") == []

    def test_what_cannot_be_is_refused_by_name(self):
        for ranks, weights, settings, said in (
                (2, "single", self.spread(3), "parallel.expert: 3 does not divide 2 ranks"),
                (2, "single", self.spread(2, experts=3), "parallel.expert: 2 does not divide 3 experts"),
                (2, "", ["--set", "parallel.expert=2"], "parallel.expert: 2 ranks would hold the experts"),
                (2, "single", self.spread(2, "parallel.expert_room=0.5"), "parallel.expert_room")):
            with self.subtests.test(said=said):
                _, err = self.run_to_its_end(3, ranks, "train", self.deck("a", weights), *settings)
                assert said in err
