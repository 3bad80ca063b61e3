"""Training in low precision, from outside: which settings change no bit, restarts and evaluations, and that values that are
not finite are always detected.


With TESSERA_MATRIX=whole every change is made in every recipe, model and number of ranks: a quarter of an hour on 2 cores;
what is not finite, and steps made again, TESSERA_MATRIX_JOBS of them side by side.
"""
import concurrent.futures
import itertools
import json
import math
import os

import runs

WHOLE = os.environ.get("TESSERA_MATRIX") == "whole"
JOBS = int(os.environ.get("TESSERA_MATRIX_JOBS", "1"))
RECIPES = ("fp8_block", "fp8_tensor", "mxfp8", "mxfp8_2d", "mxfp6_e2m3", "mxfp4_2d", "nvfp4", "nvfp4_46")
SPREAD = ((4, 1), (2, 2), (3, 3), (4, 2), (4, 4))  # number of ranks, size of expert groups
MODELS = {
    # Both kinds of block; sizes that are no multiple of 128, the first with biases and gelu.
    "dense": "hidden: 64, heads: 4, ffn: 160, norm: layer, position: learned, activation: gelu",
    "odd": "hidden: 96, heads: 3, kv_heads: 1, ffn: 224, norm: rms, position: rotary, activation: swiglu",
    "moe": "hidden: 32, heads: 4, ffn: 64, norm: rms, position: rotary, activation: swiglu, "
           "moe: {experts: 5, top_k: 2, weights: WEIGHTS}",
}
MODELS["spread"] = MODELS["moe"].replace("experts: 5", "experts: 12")  # which 2, 3 and 4 ranks may hold between them
DECK = """schema_version: 1
run: {name: recipes, seed: 11, steps: 6, threads: 1}
model: {layers: 2, seq_len: 32, MODEL}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 12, micro: 1}
eval: {every_steps: 0, batches: 1}
reduce: {bucket_mib: 0.05}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, io: direct}
precision: {recipe: RECIPE, primary_weights: bf16}
"""


def core(row):
    """The part of a trace's row that must not change: without places and times of collectives."""
    return {key: row[key] for key in ("step", "loss", "norm", "logits", "gradients", "masters")}


class Bench(runs.Runs):
    def run_of(self, name, recipe, model, ranks, *settings, weights="single", code=0, verb="train", extra=(), fault=""):
        """The trace of one run in a folder of that name, as core() sees it."""
        deck = self.path(name + ".yaml")
        with open(deck, "w") as file:
            file.write(DECK.replace("MODEL", MODELS[model]).replace("WEIGHTS", weights).replace("RECIPE", recipe)
                       .replace("DIR", self.path(name)))
        trace = self.path(name + ".trace")
        arguments = [deck, *extra, "--set", f"debug.trace={trace}"]
        for setting in settings:
            arguments += ["--set", setting]
        self.run_to_its_end(code, ranks, verb, *arguments, fault=fault)
        rows = self.traced(trace, fault)
        assert len(rows) > 0
        assert all(len(row["gradients"]) > 10 for row in rows)
        return [core(row) for row in rows]

    def metrics(self, name):
        return self.json_lines(name, "metrics.jsonl")


class Recipes(Bench):
    def unchanged(self, recipe, model, ranks, every=2, first_change=0):
        """Compares one run with others whose settings must not change a bit; tries each `every`-th of the changes."""
        case = f"{recipe}.{model}.{ranks}"
        first = self.run_of(case, recipe, model, ranks)
        assert [row["step"] for row in first] == list(range(1, 7))
        assert all(math.isfinite(row["loss"]) for row in first)
        changes = {
            "no overlap": ("proof.gather_overlap=false", "proof.reduce_overlap=false"),
            "one overlap": ("proof.gather_overlap=false", "recompute.mode=full"),
            "the other": ("proof.reduce_overlap=false", "recompute.mode=selective"),
            "modules": ("recompute.mode=selective", "recompute.modules=[attention, mlp, norm, moe]"),
            "codes": ("recompute.mode=selective", "recompute.modules=[codes]"),
            "activations": ("recompute.mode=selective", "recompute.modules=[norm, activation]"),
            "evaluated": ("eval.every_steps=1",),
            "saved": ("checkpoint.every_steps=1", "reduce.bucket_mib=25"),
        }
        for i, (what, settings) in list(enumerate(changes.items()))[first_change::every]:
            with self.subtests.test(recipe=recipe, model=model, ranks=ranks, what=what):
                assert self.run_of(f"{case}.{i}", recipe, model, ranks, *settings) == first
        if model == "moe":
            assert self.run_of(case + ".discrete", recipe, model, ranks, weights="discrete") == first
        return first

    def under_every_recipe(self, model):
        """For each recipe and model half of the changes at one number of ranks, so that almost all pairs of changes, recipes,
        models and numbers of ranks occur; with TESSERA_MATRIX=whole all combinations."""
        for number, recipe in enumerate(RECIPES):
            if WHOLE:
                for ranks in (1, 2, 3, 4):
                    self.unchanged(recipe, model, ranks, every=1)
            else:
                turn = ("dense", "odd", "moe").index(model)
                self.unchanged(recipe, model, 1 + (number + turn) % 4, first_change=(number // 2 + turn) % 2)

    def test_dense(self):
        self.under_every_recipe("dense")

    def test_odd(self):
        self.under_every_recipe("odd")

    def test_moe(self):
        self.under_every_recipe("moe")

    def test_unfused_gradients_are_another_definition_that_repeats(self):
        for recipe in RECIPES:
            for model in ("dense", "moe") if WHOLE or recipe == "nvfp4" else ("moe",):
                with self.subtests.test(recipe=recipe, model=model):
                    case = f"{recipe}.{model}"
                    fused = self.run_of(case, recipe, model, 2)
                    unfused = [self.run_of(f"{case}.{weights}", recipe, model, 2, "precision.fuse_wgrad=false",
                                           weights=weights) for weights in ("single", "discrete")]
                    assert unfused[0] == unfused[1]
                    assert unfused[0] != fused

    def test_recipes_differ(self):
        """The formats of FP8 differ only if a block's values lie many binades apart."""
        first = {recipe: self.run_of(recipe, recipe, "moe", 2)[0]["gradients"] for recipe in ("bf16", *RECIPES)}
        for recipe in RECIPES:
            assert first[recipe] != first["bf16"], recipe
        assert first["nvfp4"] != first["mxfp8"]

    def test_a_run_in_two_parts_equals_the_whole(self):
        """A resumed run continues stochastic rounding where it was."""
        for recipe in RECIPES:
            with self.subtests.test(recipe=recipe):
                whole = self.run_of(recipe, recipe, "moe", 2, "run.steps=20")
                parts = recipe + ".parts"
                head = self.run_of(parts, recipe, "moe", 2, "run.steps=20", code=75, extra=("--stop-at", "7"))
                tail = self.run_of(parts, recipe, "moe", 2, "run.steps=20")
                assert head + tail == whole
                assert self.final(parts) == self.final(recipe)

    def test_an_evaluation_knows_no_rank_count(self):
        for recipe in RECIPES:
            for model in ("odd", "moe") if WHOLE else ("odd",) if "mxfp" in recipe else ("moe",):
                with self.subtests.test(recipe=recipe, model=model):
                    saved = f"{recipe}.{model}"
                    self.run_of(saved, recipe, model, 2)
                    losses = set()
                    for ranks in (1, 2, 3, 4):
                        out, _ = self.run_to_its_end(0, ranks, "eval", self.path(saved + ".yaml"), "--checkpoint",
                                                     self.path(saved), "--json")
                        losses.add(json.loads(out)["eval_loss"])
                    assert len(losses) == 1, losses
                    assert math.isfinite(losses.pop())

    def test_some_blocks_and_the_head(self):
        first = self.run_of("all", "mxfp8", "dense", 2)
        last = self.run_of("last", "mxfp8", "dense", 2, "precision.bf16_last=1")
        both = self.run_of("none", "mxfp8", "dense", 2, "precision.bf16_first=1", "precision.bf16_last=1")
        head = self.run_of("head", "mxfp8", "dense", 2, "precision.quantize_head=true")
        plain = self.run_of("plain", "bf16", "dense", 2)
        assert both == plain
        losses = [run[0]["loss"] for run in (first, last, head, plain)]
        assert len(set(losses)) == 4, losses


class NotFinite(Bench):
    """A value that is not finite skips the step on all ranks, though formats saturate."""

    def each(self, check, cases):
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            for case, future in [(case, pool.submit(check, *case)) for case in cases]:
                with self.subtests.test(case=case):
                    future.result()

    def check(self, recipe, model, ranks, value, expert=1):
        case = f"{recipe}.{ranks}.{expert}.{value}"
        spread = f"parallel.expert={expert}"
        poisoned = self.run_of(case, recipe, model, ranks, spread, fault=f"step3:1:{value}")
        sound = self.run_of(case + ".sound", recipe, model, ranks, spread)
        rows = self.metrics(case)
        assert [row["skipped"] for row in rows] == [False, False, True, False, False, False]
        assert rows[2]["grad_norm"] is None
        assert poisoned[:2] == sound[:2]
        assert poisoned[2]["masters"] == poisoned[1]["masters"]
        assert poisoned[3]["masters"] != poisoned[2]["masters"]
        for row in rows[:2] + rows[3:]:
            assert math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"])

    def test_a_gradient(self):
        """Without biases, whose gradients no format hides."""
        for recipe in ("bf16", *RECIPES):
            for value in ("nan", "inf"):
                with self.subtests.test(recipe=recipe, value=value):
                    self.check(recipe, "odd", 2, value)

    def test_a_gradient_among_experts(self):
        """Experts on every rank, or spread over expert groups, in which the value travels to other ranks' experts."""
        cases = itertools.product(("bf16", *RECIPES), SPREAD, ("nan", "inf")) if WHOLE else (
            ("fp8_block", (4, 1), "inf"), ("fp8_tensor", (2, 2), "nan"), ("mxfp8", (4, 2), "nan"), ("mxfp8_2d", (3, 3), "inf"), ("nvfp4", (4, 4), "inf"))
        self.each(lambda recipe, mesh, value: self.check(recipe, "spread", mesh[0], value, mesh[1]), cases)

    def check_again(self, recipe, mesh):
        ranks, expert = mesh
        settings = ("eval.every_steps=2", f"parallel.expert={expert}")
        name = f"{recipe}.{ranks}.{expert}"
        once = self.run_of(name, recipe, "spread", ranks, *settings)
        again = self.run_of(name + ".again", recipe, "spread", ranks, *settings, fault="step4:all:redo")
        assert again == once

    def test_a_step_made_again(self):
        self.each(self.check_again,
                  itertools.product(("bf16", *RECIPES), SPREAD) if WHOLE else (("bf16", (3, 1)), ("nvfp4", (3, 3))))


class Refused(Bench):
    def refusal(self, recipe, model, *settings):
        deck = self.path("refused.yaml")
        with open(deck, "w") as file:
            file.write(DECK.replace("MODEL", MODELS[model]).replace("WEIGHTS", "single").replace("RECIPE", recipe)
                       .replace("DIR", self.path("refused")))
        arguments = [deck]
        for setting in settings:
            arguments += ["--set", setting]
        _, err = self.run_to_its_end(3, 1, "validate", *arguments)
        return err

    def test_what_cannot_be(self):
        cases = [
            ("mxfp8", "dense", ("precision.compute=fp32",), ("mxfp8 quantizes bf16 values", "compute bf16")),
            ("mxfp8", "dense", ("model.hidden=40",),
             ("layers.0.attention.qkv.weight is [120, 40]", "multiples of 32")),
            ("nvfp4", "moe", ("model.ffn=40",), ("layers.0.moe.experts.down.weight is [32, 40]", "multiples of 16")),
            ("mxfp8", "dense", ("batch.micro=2", "model.seq_len=24"),
             ("is 48", "batch.micro 4", "model.seq_len 16 or 32")),
            ("fp8_tensor", "moe", ("model.ffn=40",), ("layers.0.moe.experts.down.weight is [32, 40]", "multiples of 16")),
            ("fp8_tensor", "dense", ("batch.micro=1", "model.seq_len=24"), ("is 24", "multiple of 16 tokens")),
            ("mxfp8", "dense", ("precision.quantize_head=true", "model.tied_head=true"), ("tied head",)),
            ("nvfp4", "dense", ("precision.bf16_first=2", "precision.bf16_last=1"),
             ("2 first and 1 last", "2 there are")),
            ("bf16", "dense", ("precision.primary_weights=quantized",), ("recipe bf16 quantizes no weight",)),
        ]
        for recipe, model, settings, texts in cases:
            with self.subtests.test(settings=settings):
                said = self.refusal(recipe, model, *settings)
                for text in texts:
                    assert text in said

    def test_everything_at_once(self):
        said = self.refusal("mxfp8", "dense", "model.hidden=40", "model.seq_len=24")
        for text in ("[120, 40]", "is 24"):
            assert text in said

    def test_a_plan_says_what_is_quantized(self):
        deck = self.path("planned.yaml")
        with open(deck, "w") as file:
            file.write(DECK.replace("MODEL", MODELS["odd"]).replace("RECIPE", "nvfp4")
                       .replace("DIR", self.path("planned")))
        out, _ = self.run_to_its_end(0, 1, "plan", deck, "--ranks", "2", "--json", "--set", "precision.bf16_last=1")
        plan = json.loads(out)
        products = plan["products"]
        assert ([product["parameter"] for product in products]
                == [f"layers.0.{name}.weight" for name in ("attention.qkv", "attention.out", "mlp.gate_up", "mlp.down")])
        assert {(p["weight"], p["activation"], p["gradient"]) for p in products} == {("nvfp4", "nvfp4_1d", "nvfp4_1d")}
        assert {r["form"] for r in plan["routes"]} == {"forward", "input_gradient", "weight_gradient"}
        assert {r["route"] for r in plan["routes"]} == {"decoded"}  # no unit multiplies nibbles before Blackwell
