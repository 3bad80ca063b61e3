"""Full sharding changes no bit of a run that may not change: against `sharding: optimizer` where a rank has one
micro-batch a step, and among its own ways of gathering; and the trace shows which copies moved.

usage: full_sharding_test.py TESSERA MPIEXEC [CLASS.test...]
TESSERA_MATRIX=all: every recipe, model, recomputation and granularity (many minutes), not a sample of them.
"""
import itertools
import json
import os

import runs
from recipes_test import MODELS, RECIPES

DECK = """schema_version: 1
run: {name: full, seed: 11, steps: 4, threads: 1}
model: {layers: 2, seq_len: 32, MODEL}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 12, micro: MICRO}
eval: {every_steps: 0, batches: 1}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR}
precision: {recipe: RECIPE}
"""
CORE = ("step", "loss", "norm", "logits", "gradients", "masters")
ALL = os.environ.get("TESSERA_MATRIX") == "all"
MODES = {
    "none": (),
    "selective": ("recompute.mode=selective", "recompute.modules=[attention, mlp, moe]"),
    "norms": ("recompute.mode=selective", "recompute.modules=[norm]"),
    "full": ("recompute.mode=full",),
}


def core(rows):
    return [{key: row[key] for key in CORE} for row in rows]


class Bench(runs.Runs):
    def run_of(self, name, recipe, model, ranks, *settings, micro=None, code=0, extra=()):
        """The rows of a run's trace; one micro-batch a rank unless `micro` says how many sequences it has."""
        with open(self.path(name + ".yaml"), "w") as file:
            file.write(DECK.replace("MODEL", MODELS[model]).replace("WEIGHTS", "single").replace("RECIPE", recipe)
                       .replace("MICRO", str(micro or 12 // ranks)).replace("DIR", self.path(name)))
        trace = self.path(name + ".trace")
        arguments = [self.path(name + ".yaml"), *extra, "--set", f"debug.trace={trace}"]
        for setting in settings:
            arguments += ["--set", setting]
        self.run_to_its_end(code, ranks, "train", *arguments)
        with open(trace) as file:
            return [json.loads(line) for line in file]

    def full(self, name, recipe, model, ranks, *settings, **more):
        return self.run_of(name, recipe, model, ranks, "sharding=full", *settings, **more)


class Same(Bench):
    """CORE of runs."""

    def ways(self, recipe):
        """(how weights are held, what is computed again, what is gathered at once)"""
        held = ("bf16",) if recipe == "bf16" else ("bf16", "quantized")
        all_ways = list(itertools.product(held, MODES, ("unit", "module")))
        return all_ways if ALL else all_ways[::3]

    def same_as_optimizer(self, recipe):
        overlaps = itertools.cycle(itertools.product(("true", "false"), repeat=2))
        cases = itertools.product(MODELS, (2, 3, 4)) if ALL else (("odd", 3), ("moe", 2))
        for model, ranks in cases:
            first = core(self.run_of(f"{model}.{ranks}", recipe, model, ranks))
            self.assertEqual(len(first), 4)
            self.assertNotEqual(first[0]["masters"], first[-1]["masters"])
            for number, (held, mode, unit) in enumerate(self.ways(recipe)):
                gather, reduce = next(overlaps)
                with self.subTest(recipe=recipe, model=model, ranks=ranks, held=held, mode=mode, unit=unit):
                    rows = self.full(f"{model}.{ranks}.{number}", recipe, model, ranks, *MODES[mode],
                                     f"precision.primary_weights={held}", f"gather.granularity={unit}",
                                     f"gather.overlap={gather}", f"reduce.overlap={reduce}", "debug.replica_hash_every=3")
                    self.assertEqual(core(rows), first)

    def test_several_micro_batches_are_a_definition_of_their_own(self):
        for recipe, model, ranks in (("bf16", "odd", 2), ("mxfp8", "moe", 4), ("nvfp4", "dense", 2)):
            ways = self.ways(recipe) if ALL else self.ways(recipe)[:3]
            found = []
            for number, (held, mode, unit) in enumerate(ways):
                often = ("eval.every_steps=1", "checkpoint.every_steps=1") if number == 1 else ()
                rows = self.full(f"{model}{number}", recipe, model, ranks, *MODES[mode], *often, micro=12 // ranks // 3,
                                 *(f"precision.primary_weights={held}", f"gather.granularity={unit}",
                                   f"gather.overlap={str(number % 2 == 0).lower()}"))
                found.append(core(rows))
                self.assertEqual(found[-1], found[0], (recipe, model, held, mode, unit))

    def test_muon_tied_head_and_quantized_head(self):
        cases = {
            "muon": ("odd", "mxfp8", ("optimizer.matrices=muon",)),
            "muon4": ("moe", "nvfp4", ("optimizer.matrices=muon",)),
            "tied": ("dense", "bf16", ("model.tied_head=true",)),
            "head": ("dense", "mxfp8", ("precision.quantize_head=true",)),
            "ends": ("dense", "fp8_block", ("precision.bf16_first=1",)),
        }
        for name, (model, recipe, settings) in cases.items():
            with self.subTest(name):
                first = core(self.run_of(name, recipe, model, 3, *settings))
                self.assertEqual(core(self.full(name + ".full", recipe, model, 3, *settings)), first)

    def test_checkpoints_cross_over(self):
        """Of either sharding into the other, and on within one bit by bit."""
        whole = {}
        for sharding in ("optimizer", "full"):
            whole[sharding] = core(self.run_of(sharding, "mxfp8", "moe", 2, "sharding=" + sharding))
        self.assertEqual(whole["optimizer"], whole["full"])
        for first, then, ranks in (("full", "full", 2), ("full", "optimizer", 2), ("optimizer", "full", 2)):
            name = f"{first}.{then}"
            self.run_of(name, "mxfp8", "moe", 2, "sharding=" + first, code=75, extra=("--stop-at", "2"))
            rest = core(self.run_of(name, "mxfp8", "moe", ranks, "sharding=" + then))
            self.assertEqual(rest, whole["full"][2:], name)
            self.assertEqual(self.final(name), self.final("full"))

    def test_evaluation_and_generation_end_with_fewer_windows_than_ranks(self):
        settings = ("eval.every_steps=2", "sample.tokens=3", "data.eval_fraction=0.004")
        losses = {}
        for sharding in ("optimizer", "full"):
            self.run_of(sharding, "bf16", "moe", 3, "sharding=" + sharding, *settings)
            losses[sharding] = [row.get("eval_loss") for row in self.json_lines(sharding, "metrics.jsonl")]
        self.assertEqual(losses["full"], losses["optimizer"])
        self.assertIsNotNone(losses["full"][1])


for one in ("bf16", *RECIPES):
    setattr(Same, "test_same_as_optimizer_" + one, lambda self, one=one: self.same_as_optimizer(one))


class Moved(Bench):
    """What the trace shows of gathers, and the plan."""

    def gathers(self, rows):
        """Bytes by group, in order, of the gathers that carry the weights of the second step."""
        return [(c["group"], c["bytes"]) for c in rows[1]["collectives"] if c["op"] == "all_gather"]

    def planned(self, name, ranks, *settings):
        out, _ = self.run_to_its_end(0, 1, "plan", self.path(name + ".yaml"), "--ranks", str(ranks), "--json",
                                     *itertools.chain.from_iterable(("--set", one) for one in settings))
        return json.loads(out)

    def moves(self, recipe, mode, granularity, micro):
        settings = ("sharding=full", *MODES[mode], f"gather.granularity={granularity}", "reduce.overlap=false")
        name = f"{recipe}.{mode}.{granularity}.{micro}"
        rows = self.run_of(name, recipe, "dense", 2, *settings, micro=micro)
        plan = self.planned(name, 2, *settings)
        found = self.gathers(rows)
        self.assertEqual(len(found), sum(one["count"] for one in plan["gathers"]))
        if recipe == "bf16":  # else slices are uneven, and the plan is that of the rank that needs most
            self.assertEqual(sum(size for _, size in found), sum(one["bytes"] * one["count"] for one in plan["gathers"]))
        return found, plan["gathers"]

    def test_copies(self):
        """mxfp8 moves rowwise forward, columnwise backward; what is computed again rowwise once more."""
        def sides(gathers, half):
            return [one["side"] for one in gathers if one["pass"] == half and one["unit"].startswith("block")]

        for mode, granularity, forward, backward in (
                ("none", "unit", {"rowwise"}, {"columnwise"}),
                ("full", "unit", {"rowwise"}, {"rowwise", "columnwise"}),
                ("selective", "unit", {"rowwise"}, {"rowwise, columnwise"}),
                ("selective", "module", {"rowwise"}, {"rowwise", "columnwise"})):
            found, plan = self.moves("mxfp8", mode, granularity, 6)
            self.assertEqual(set(sides(plan, "forward")), forward, (mode, granularity))
            self.assertEqual(set(sides(plan, "backward")), backward, (mode, granularity))
        for recipe in ("bf16", "fp8_block", "mxfp8_2d", "nvfp4"):
            found, plan = self.moves(recipe, "none", "unit", 6)
            half = len(sides(plan, "forward"))
            self.assertEqual(half, len(sides(plan, "backward")), recipe)

    def test_bytes_times_micro_batches(self):
        once, _ = self.moves("mxfp8", "none", "unit", 6)
        thrice, _ = self.moves("mxfp8", "none", "unit", 2)
        self.assertEqual(thrice, 3 * once)


class Refused(Bench):
    def refused(self, *settings):
        with open(self.path("refused.yaml"), "w") as file:
            file.write(DECK.replace("MODEL", MODELS["dense"]).replace("RECIPE", "mxfp8").replace("MICRO", "1")
                       .replace("DIR", self.path("refused")))
        _, err = self.run_to_its_end(3, 1, "train", self.path("refused.yaml"),
                                     *itertools.chain.from_iterable(("--set", one) for one in settings))
        return err

    def test_what_contradicts_itself(self):
        for settings, text in (
                (("gather.granularity=unit",), "or sharding full"),
                (("sharding=full", "gather.wire=bf16"), "use wire auto, primary_weights bf16, or sharding optimizer"),
                (("sharding=full", "gather.cuts=flat"), "use cuts tile"),
                (("sharding=full", "gather.staging=ring"), "nothing is staged"),
                (("sharding=half",), "optimizer")):
            self.assertIn(text, self.refused(*settings), settings)


if __name__ == "__main__":
    runs.main()
