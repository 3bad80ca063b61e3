"""Recipes by slots and by layers, from outside: each slot alone changes a run; how weights are held, sharded, gathered and
computed again changes no bit; rules, refusals and changes at a restart.
"""
import itertools
import subprocess

import held_runs
from held_runs import QUANTIZED
import runs

WEIGHTS = ("fp8_block", "fp8_tensor", "mxfp8", "mxfp8_2d", "mxfp6_e3m2", "mxfp6_e3m2_2d", "mxfp6_e2m3", "mxfp6_e2m3_2d", "mxfp4", "mxfp4_2d", "nvfp4", "nvfp4_46")
ROWS = ("fp8_block", "fp8_tensor", "fp8_tensor_e5m2", "mxfp8", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "nvfp4", "nvfp4_46", "nvfp4_row")
SLOTS = {"weight": (("forward", "dgrad"), WEIGHTS), "activation": (("forward", "wgrad"), ROWS),
         "gradient": (("dgrad", "wgrad"), ROWS)}
MIXED = ("{base: nvfp4, weight: mxfp8_2d, activation: {forward: fp8_block}, gradient: {dgrad: mxfp8}, "
         "rounding: {gradient: stochastic}, hadamard: {wgrad: true}}")
RECIPES = {
    "weights": "{weight: nvfp4}",
    "activations": "{activation: mxfp8}",
    "gradients": "{gradient: nvfp4}",
    "two formats": "{base: mxfp8, weight: {forward: nvfp4}}",
    "mixed": MIXED,
    "rows": held_runs.ROWS,
}
LAYERED = {
    "by block": "[{blocks: [first 1], recipe: bf16}, {modules: [attention.out, mlp.down, experts.down], "
                "recipe: {base: fp8_block, activation: mxfp8}}]",
    "by module": "[{blocks: ['0-1'], modules: [mlp.up, experts], recipe: {weight: mxfp8_2d}}, "
                 "{blocks: ['1'], recipe: {base: fp8_tensor, gradient: {wgrad: bf16}}}, {modules: [head], recipe: mxfp8}]",
}
OVERLAPS = ("proof.gather_overlap=false", "proof.reduce_overlap=false")
MODULES = ("recompute.mode=selective", "recompute.modules=[attention, mlp, norm, moe]")
CODES = ("proof.wire=quantized", "proof.cuts=tile")


class Slots(held_runs.HeldRuns):
    def trace(self, name, recipe, model, ranks, *sets, steps=3, **more):
        return self.run_of(name, recipe, model, ranks, *sets, steps=steps, **more)

    def bits(self, rows):
        return [{key: row[key] for key in held_runs.CORE} for row in rows[0]], rows[1]

    def variants(self, recipe, model, layers="", held=True):
        """Runs that must not differ by a bit; full sharding equals the other where a rank has one micro-batch a step."""
        base = (f"precision.layers={layers}",) if layers else ()
        ways = [OVERLAPS, ("recompute.mode=full",), MODULES, ("sharding=full",)]
        if held:
            ways += [(QUANTIZED,), (QUANTIZED, "proof.wire=bf16", "proof.staging=ring", *OVERLAPS), (QUANTIZED, *CODES),
                     (QUANTIZED, "sharding=full", *MODULES)]
        made = {}
        for i, (sets, ranks) in enumerate(zip(ways, itertools.cycle((3, 1, 2)))):
            batch = f"batch.global={ranks if 'sharding=full' in sets else 12}"
            if (ranks, batch) not in made:
                made[ranks, batch] = self.bits(self.trace(f"first{i}", recipe, model, ranks, *base, batch))
            with self.subtests.test(recipe=recipe, model=model, ranks=ranks, sets=sets):
                assert self.bits(self.trace(f"other{i}", recipe, model, ranks, *base, batch, *sets)) == made[ranks, batch]

    def said(self, verb, *arguments):
        done = subprocess.run([self.tessera, verb, *arguments], capture_output=True, text=True, timeout=runs.PATIENCE, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def muon(self, recipe, layers=()):
        base = [f"precision.layers={layers}"] if layers else []
        sets = (*base, "optimizer.matrices=muon")
        first = self.bits(self.trace("off", recipe, "single", 2, *sets))
        for i, more in enumerate((OVERLAPS, ("model.moe.weights=discrete",))):
            assert self.bits(self.trace(f"on{i}", recipe, "single", 2, *sets, *more)) == first


class Bits(Slots):
    def test_weights(self):
        self.variants(RECIPES["weights"], "dense")

    def test_activations(self):
        self.variants(RECIPES["activations"], "single", held=False)

    def test_gradients(self):
        self.variants(RECIPES["gradients"], "odd", held=False)

    def test_two_formats(self):
        self.variants(RECIPES["two formats"], "dense", held=False)

    def test_mixed(self):
        self.variants(RECIPES["mixed"], "discrete")

    def test_rows(self):
        self.variants(RECIPES["rows"], "dense")

    def test_rows_of_experts(self):
        self.variants(RECIPES["rows"], "single")

    def test_layers_by_block(self):
        self.variants("nvfp4", "dense", LAYERED["by block"])

    def test_layers_by_module(self):
        self.variants("bf16", "single", LAYERED["by module"])

    def test_muon(self):
        self.muon(RECIPES["mixed"])
        self.muon("nvfp4", LAYERED["by block"].replace(", experts.down", ""))


class Meaning(Slots):
    def first(self, name, recipe, *sets):
        row = self.trace(name, recipe, "dense", 1, *sets, "batch.global=2", steps=1)[0][0]
        return row["loss"], row["gradients"]

    def test_single(self):
        """A recipe that quantizes one factor of one product differs from bf16 in its first loss or gradient."""
        plain = self.first("plain", "bf16")
        seen = {}
        for role, (sides, formats) in SLOTS.items():
            for side, form in itertools.product(sides, formats):
                found = self.first(f"{role}.{side}.{form}", f"{{{role}: {{{side}: {form}}}}}")
                assert found != plain, (role, side, form)
                if side != "forward":  # the loss is that of the forward pass
                    assert found[0] == plain[0], (role, side, form)
                seen[role, side, form] = found
        assert len({str(found) for found in seen.values()}) > len(seen) // 2

    def test_names_are_short_for_slots(self):
        for recipe, slots in {
            "nvfp4": "{weight: nvfp4, activation: nvfp4, gradient: nvfp4}",
            "fp8_tensor": "{weight: fp8_tensor, activation: fp8_tensor, gradient: fp8_tensor_e5m2}",
            "mxfp8_2d": "{base: mxfp8, weight: mxfp8_2d}",
            "mxfp6_e3m2_2d": "{base: mxfp6_e3m2, weight: mxfp6_e3m2_2d}",
            "mxfp6_e2m3": "{weight: mxfp6_e2m3, activation: mxfp6_e2m3_2d, gradient: mxfp6_e2m3}",
            "mxfp4_2d": "{base: mxfp4, weight: mxfp4_2d}",
        }.items():
            assert self.first(recipe, recipe) == self.first(recipe + ".slots", slots), recipe

    def test_settings_reach_into_a_named_recipe(self):
        wanted = self.first("whole", "{base: nvfp4, weight: bf16}")
        assert self.first("set", "nvfp4", "precision.recipe.weight=bf16") == wanted
        assert wanted != self.first("named", "nvfp4")

    def test_layers(self):
        """The last rule that matches decides; a list that names every matrix is a recipe."""
        whole = self.first("whole", "mxfp8")
        every = "precision.layers=[{recipe: nvfp4}, {recipe: mxfp8}]"
        turned = "precision.layers=[{recipe: mxfp8}, {recipe: nvfp4}]"
        assert self.first("every", "bf16", every) == whole
        assert self.first("turned", "bf16", turned) == self.first("fp4", "nvfp4")
        blocks = "precision.layers=[{blocks: [last 1], recipe: bf16}]"
        assert self.first("last", "mxfp8", blocks) == self.first("bf16_last", "mxfp8", "precision.bf16_last=1")
        head = "precision.layers=[{modules: [head], recipe: mxfp8}]"
        assert self.first("head", "mxfp8", head) == self.first("quantize_head", "mxfp8", "precision.quantize_head=true")

    def test_is_told(self):
        deck = self.write("told.yaml", held_runs.DECK.replace("STEPS", "2").replace("MODEL", held_runs.MODELS["dense"])
                          .replace("RECIPE", "nvfp4").replace("DIR", self.path("told")))
        sets = ("--set", "precision.layers=[{blocks: [first 1], recipe: {weight: mxfp8}}]")
        lines = ("attention.qkv, attention.out, mlp.up, mlp.down of block 0: weight mxfp8, x bf16, dy bf16",
                 "of block 1: weight nvfp4, x nvfp4_1d, dy nvfp4_1d, dy rounded at random, x and dy of the weight gradient rotated")
        for out in (self.said("explain", "precision", "--deck", deck, *sets), self.said("plan", deck, "--ranks", "2", *sets),
                    self.said("train", deck, *sets)):
            for line in lines:
                assert line in out

    def test_a_restart_may_change_it_and_says_so(self):
        self.trace("run", "nvfp4", "dense", 2, code=75, steps=6, arguments=("--stop-at", "3"))
        deck = self.write("again.yaml", held_runs.DECK.replace("STEPS", "6").replace("MODEL", held_runs.MODELS["dense"])
                          .replace("RECIPE", "nvfp4").replace("DIR", self.path("run")))
        out = self.train(0, 2, deck, "--set", "precision.recipe={base: nvfp4, activation: bf16}", "--set",
                         "precision.layers=[{blocks: [first 1], recipe: bf16}]")
        said = str(out)
        assert "precision.recipe" in said
        assert "{base: nvfp4, activation: bf16}" in said
        assert "precision.layers" in said


class Refusals(Slots):
    def refused(self, precision, *texts, model="hidden: 64, ffn: 128, tied_head: false"):
        deck = self.write("bad.yaml", held_runs.DECK.replace("STEPS", "2").replace("MODEL", model)
                          .replace("precision: {recipe: RECIPE, primary_weights: bf16}", precision)
                          .replace("DIR", self.path("none")))
        said = str(self.train(3, 1, deck))
        for text in texts:
            assert text in said

    def test_all_at_once_with_their_lines(self):
        self.refused("""precision:
  recipe:
    base: mxfp8
    weight: {forward: fp8_tensor_e5m2, dgrad: nvfp4_1d}
    rounding: {weight: stochastic, activation: stochastic, gradient: stochastic}
    hadamard: {forward: true, dgrad: true, wgrad: true}
  layers:
    - {blocks: [first 3, '7'], recipe: bf16}
    - {modules: [experts], recipe: mxfp8}
    - {modules: [head], blocks: [first 1], recipe: mxfp8}""",
                     "bad.yaml:10:23: precision.recipe.weight.forward: fp8_tensor_e5m2 is E5M2",
                     "bad.yaml:10:47: precision.recipe.weight.dgrad: nvfp4_1d has blocks of rows",
                     "bad.yaml:11:", "precision.recipe.rounding.weight: is stochastic", "precision.recipe.rounding.activation: is stochastic",
                     "precision.recipe.rounding.gradient: is stochastic, and gradients are in mxfp8",
                     "bad.yaml:12:", "precision.recipe.hadamard.forward: is true", "precision.recipe.hadamard.dgrad: is true",
                     "precision.recipe.hadamard.wgrad: is true, and its product multiplies x in mxfp8",
                     'bad.yaml:14:', 'precision.layers[0].blocks: "first 3" names no blocks', '"7" names no blocks',
                     "precision.layers[1]: matches no matrix", "precision.layers[2]: matches no matrix")

    def test_what_is_written_wrong(self):
        self.refused("""precision:
  recipe: {weight: mxfp8, activatoin: mxfp8}
  layers: [{modules: [mlp.left], recipe: bf16}, {blocks: [first 1]}, bf16]""",
                     "precision.recipe.activatoin: unknown key",
                     "mlp.left", "precision.layers[1].recipe: missing: a recipe is needed", "precision.layers[2]: ")
        self.refused("precision: {recipe: {weight: mxfp9}, layers: [{recipe: {activation: mxfp9}}, {modules: [mlp.left], recipe: bf16}]}",
                     "precision.recipe.weight: mxfp9 is none of the choices", "mlp.left")

    def test_a_tied_head(self):
        self.refused("precision: {recipe: {base: mxfp8, weight: mxfp8_e5m2}}", "precision.recipe.weight",
                     "mxfp8_e5m2 is E5M2, whose range is for gradients: use mxfp8 or mxfp8_2d")
        self.refused("precision: {recipe: mxfp4, primary_weights: quantized}\nproof: {cuts: flat}",
                     "codes of mxfp4 travel by whole rows of blocks")
        self.refused("precision: {recipe: nvfp4_46, primary_weights: quantized}\nproof: {cuts: flat}",
                     "codes of nvfp4_46 travel by whole rows of blocks: use cuts tile, or wire bf16")
        self.refused("precision: {recipe: {base: nvfp4_46, weight: nvfp4_46_1d, rounding: {gradient: stochastic}}}",
                     "nvfp4_46_1d has blocks of rows, which are for activations and gradients: use nvfp4_46",
                     "precision.recipe.rounding.gradient: is stochastic, and gradients are in nvfp4_46_1d")
        self.refused("precision: {recipe: {base: nvfp4, weight: nvfp4_row, gradient: nvfp4_row}, layers: [{recipe: {weight: {dgrad: nvfp4_row}}}]}",
                     "precision.recipe.weight.forward: nvfp4_row has scales of rows, which are for activations and gradients: use nvfp4",
                     "precision.layers[0].recipe.weight.dgrad: nvfp4_row has scales of rows")
        self.refused("precision: {recipe: nvfp4_row}", "precision.recipe", "nvfp4_row", "nvfp4 | nvfp4_46")
        self.refused("precision: {layers: [{modules: [head], recipe: mxfp8}]}", "a tied head is the token embedding",
                     model="hidden: 64, ffn: 128, tied_head: true")

    def test_sizes_by_matrix(self):
        self.refused("precision: {layers: [{modules: [mlp.down], recipe: {activation: mxfp8}}]}", "mlp.down",
                     model="hidden: 64, ffn: 144, tied_head: false")

    def test_what_needs_codes(self):
        self.refused("precision: {recipe: {activation: mxfp8}, primary_weights: quantized}", "no weight is held as codes")
        self.refused("precision: {recipe: {weight: {forward: mxfp8}}}\nproof: {wire: quantized}", "proof.wire")
        self.refused("precision: {compute: fp32, layers: [{recipe: {gradient: mxfp8}}]}", "quantizes bf16 values")
