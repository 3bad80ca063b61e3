"""What a run records of its routing, from outside: the same rows on any ranks, no changed bit, rows cut at a restart and set aside
with a branch.
"""
import json
import math
import os
import subprocess

import runs

MIXTURE = "{experts: 6, top_k: 2, ffn: 24, first_dense: 1, shared_ffn: 16, scores: sigmoid, groups: 3, top_groups: 2, bias: true}"
LAYERS, SLOTS = (1, 2), 12 * 32 * 2


class Routing(runs.Runs):
    def deck_of(self, name, every=2, moe=MIXTURE):
        text = runs.DECK.replace("MOE", f", moe: {moe}").replace("DIR", self.path(name)).replace("layers: 2", "layers: 3")
        # Sums over ranks in the order of the batch: without it gradients, and so later choices, may differ with the ranks.
        return self.write(f"{name}.yaml", text.replace("bucket_mib: 0.01", "bucket_mib: 0.01, order: batch")
                          + (f"routing: {{every_steps: {every}}}\n" if every else ""))

    def recorded(self, *names):
        """The rows of steps, without those of evaluations."""
        return [row for row in map(json.loads, self.read(*names).splitlines()) if "load" in row]

    def test_rows_say_where_tokens_went(self):
        self.train(0, 2, self.deck_of("a"))
        rows = self.recorded("a", "routing.jsonl")
        assert [(row["step"], row["layer"]) for row in rows] == [(step, layer) for step in (2, 4, 6, 8) for layer in LAYERS]
        last = {}
        for row in rows:
            load = row["load"]
            shares = [n / SLOTS for n in load]
            assert (len(load), sum(load), row["skipped"]) == (6, SLOTS, False)
            assert round(abs(row["max_vio"] - (6 * max(shares) - 1)), 7) == 0
            assert round(abs(row["least"] - (6 * min(shares))), 7) == 0
            assert round(abs(row["entropy"] - (-sum(f * math.log(f) for f in shares if f > 0) / math.log(6))), 7) == 0
            assert row["unused"] == load.count(0)
            assert 0 < row["scores_entropy"] <= 1.000001, row
            assert len(row["bias"]) == 6
            # A bias has moved in every step before by its rate, up or down.
            assert all(abs(b) <= 0.001 * (row["step"] - 1) * 1.0001 for b in row["bias"]), row
            before = last.get(row["layer"])
            assert ("moved" in row) == (before is not None)
            if before:
                assert round(abs(row["moved"] - (sum(abs(n - m) for n, m in zip(load, before)) / 2 / SLOTS)), 7) == 0
            last[row["layer"]] = load
        assert any(any(row["bias"]) for row in rows)
        assert len({row["choices"] for row in rows}) == len(rows)
        metrics = self.json_lines("a", "metrics.jsonl")
        for row in metrics[1::2]:
            layers = [each["max_vio"] for each in rows if each["step"] == row["step"]]
            assert round(abs(row["max_vio"] - (sum(layers) / len(layers))), 7) == 0
            assert round(abs(row["max_vio_most"] - max(layers)), 7) == 0
        page = self.read("a", "report.html")
        for word in ("Load by expert", "Busiest expert by layer", "Unevenness", "Selection bias"):
            assert word in page
        assert "<script" not in page

    def test_no_rank_count_shows_and_no_bit_changes(self):
        self.train(0, 1, self.deck_of("a"))
        want, digest = self.read("a", "routing.jsonl"), self.final("a")
        self.train(0, 2, self.deck_of("off", every=0))
        assert self.final("off") == digest
        assert not os.path.exists(self.path("off", "routing.jsonl"))
        assert "max_vio" not in self.json_lines("off", "metrics.jsonl")[0]
        # Of 5 and 7 ranks some have nothing to do in the last round.
        ways = ((2, "recompute.mode=full"), (3, "model.moe.weights=discrete"), (5, "sharding=full"), (7, "recompute.mode=full"))
        for ranks, setting in ways:
            name = f"of{ranks}"
            self.train(0, ranks, self.deck_of(name), "--set", setting)
            assert (self.final(name), self.read(name, "routing.jsonl")) == (digest, want), setting
        # Experts over two ranks are another sum of their own.
        for ranks in (2, 4):
            self.train(0, ranks, self.deck_of(f"p{ranks}"), "--set", "parallel.expert=2")
        one, other = ((self.final(name), self.read(name, "routing.jsonl")) for name in ("p2", "p4"))
        assert one == other

    def test_the_first_step_is_the_same_on_any_ranks(self):
        """Choices of equal weights: whatever the ranks, micro-batches, sharding, experts' ranks and layout."""
        ways = {"1": (1, []), "2": (2, ["batch.micro=3"]), "3": (3, ["sharding=full"]), "4": (4, ["parallel.expert=2", "batch.micro=3"]),
                "2e": (2, ["parallel.expert=2", "model.moe.weights=discrete", "recompute.mode=full"])}
        rows = {}
        for name, (ranks, settings) in ways.items():
            self.train(75, ranks, self.deck_of(name, every=1), "--stop-at", "1", *[word for setting in settings for word in ("--set", setting)])
            rows[name] = self.read(name, "routing.jsonl")
        for name, text in rows.items():
            assert text == rows["1"], name

    def kept(self, name):
        rows = map(json.loads, self.read(name, "routing.jsonl").splitlines())
        return [(row["step"], row["layer"], row["kept"]) for row in rows if "kept" in row]

    def test_evaluations_say_which_choices_are_kept(self):
        self.train(0, 1, self.deck_of("a"))
        want = self.kept("a")
        assert [(step, layer) for step, layer, _ in want] == [(step, layer) for step in (6, 8) for layer in LAYERS]
        assert all(0 < kept <= 1 for _, _, kept in want) and any(kept < 1 for _, _, kept in want), want
        assert "Choices kept" in self.read("a", "report.html")
        # Whatever the ranks, and wherever the run is restored: from before an evaluation that it had made, too.
        for ranks in (2, 5):
            self.train(0, ranks, self.deck_of(f"of{ranks}"))
            assert self.kept(f"of{ranks}") == want
        keep = ("--set", "checkpoint.keep_last=9")
        self.train(0, 2, self.deck_of("b"), *keep)
        for step in (6, 3):
            self.train(0, 3, self.deck_of("b"), *keep, "--resume", self.path("b", f"step_0000000{step}"))
            assert self.kept("b") == want
        # A model that learns nothing keeps all.
        self.train(0, 2, self.deck_of("still"), "--set", "optimizer.lr=0", "--set", "model.moe.bias_rate=0")
        assert {kept for _, _, kept in self.kept("still")} == {1}

    def test_a_trace_names_the_layer_whose_choices_differ(self):
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            self.train(75, 2, self.deck_of(name, every=1), "--stop-at", "2", "--set", f"run.seed={seed}", "--set", f"debug.trace={name}.jsonl")
        rows = {(row["step"], f"layers.{row['layer']}.moe"): row["choices"] for row in self.recorded("a", "routing.jsonl")}
        assert {(row["step"], layer): digest for row in self.json_lines("a.jsonl") for layer, digest in row["choices"].items()} == rows
        for other, code, text in (("b", 0, "equal in steps 1 to 2"), ("c", 1, "differ first in step 1: choices of layers.1.moe")):
            done = subprocess.run([self.tessera, "compare", "--trace", "a.jsonl", f"{other}.jsonl"], capture_output=True, text=True, cwd=self.folder)
            assert (done.returncode, text in done.stdout) == (code, True), done.stdout + done.stderr

    def test_a_restart_cuts_and_a_branch_sets_aside(self):
        self.train(0, 2, self.deck_of("a", every=1))
        want = self.read("a", "routing.jsonl")
        keep = ("--set", "checkpoint.keep_last=9")
        self.train(75, 2, self.deck_of("b", every=1), "--stop-at", "5", *keep)
        # A machine that dies leaves rows behind the checkpoint, and half a line.
        with open(self.path("b", "routing.jsonl"), "a", encoding="utf-8") as file:
            file.write(want.splitlines()[-1] + '\n{"step": 7, "la')
        self.train(0, 2, self.deck_of("b", every=1), *keep)
        assert self.read("b", "routing.jsonl") == want
        self.train(0, 2, self.deck_of("b", every=1), *keep, "--resume", self.path("b", "step_00000003"))
        assert self.read("b", "routing.jsonl") == want
        assert self.read("b", "abandoned-1_routing.jsonl") == want
