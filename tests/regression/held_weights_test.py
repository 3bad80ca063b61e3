"""Weights held quantized change no bit of a run: everything that `debug.trace` shows of it, and its last checkpoint, is
that of the run which holds them in bf16, for every recipe, wire, cut and place of staging; and what is stored of them is
what `tessera quantize` makes of the masters.

usage: held_weights_test.py TESSERA MPIEXEC [TEST...]
"""
import filecmp
import itertools
import json
import os
import subprocess

import h5py

import runs

RECIPES = ("fp8_block", "mxfp8", "mxfp8_2d", "nvfp4")
STEPS = 5
DECK = """schema_version: 1
run: {name: held, steps: STEPS, threads: 1}
model: {layers: 2, hidden: H, heads: 2, seq_len: 32, ffn: F, norm: rms, activation: swiglu, position: rotary, tied_head: TIEDMOE}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 12, micro: 1}
precision: {recipe: RECIPE, primary_weights: bf16}
reduce: {bucket_mib: 0.02}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR}
"""
EXPERTS = ", moe: {experts: 4, top_k: 2, weights: %s}"
MODELS = {
    "dense": ("64", "128", "false", ""),
    "odd": ("96", "160", "true", ""),
    "single": ("64", "96", "false", EXPERTS % "single"),
    "discrete": ("64", "96", "false", EXPERTS % "discrete"),
}
CORE = ("step", "loss", "norm", "logits", "gradients", "masters")


def ways(recipe):
    """Every legal way to hold weights quantized."""
    for wire, cuts, staging in itertools.product(("bf16", "quantized"), ("flat", "tile"), ("alias_grads", "ring")):
        if wire == "quantized" and (staging == "ring" or (recipe == "mxfp8" and cuts == "flat")):
            continue
        yield {"gather.wire": wire, "gather.cuts": cuts} | ({"gather.staging": staging} if wire == "bf16" else {})


def mix64(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & (1 << 64) - 1
    return z ^ (z >> 31)


def digest(array):
    """Of bits, zero-extended, in row-major order."""
    array = array[()].reshape(-1)
    bits = array.view("u4" if array.dtype.itemsize == 4 else "u1").tolist()
    phi, most = 0x9E3779B97F4A7C15, (1 << 64) - 1
    return "%016x" % (sum(mix64(x ^ (i + 1) * phi & most) for i, x in enumerate(bits)) & most)


class HeldWeights(runs.Runs):
    def run_of(self, name, recipe, model, ranks, *sets, code=0, resume=False, **changed):
        """The trace of a run and the digest of its last checkpoint."""
        text = DECK.replace("STEPS", str(STEPS)).replace("RECIPE", recipe).replace("DIR", self.path(name))
        for key, value in zip(("H,", "F,", "TIED", "MOE"), MODELS[model]):
            text = text.replace(key, value + key[1:] if key in ("H,", "F,") else value)
        with open(self.path(name + ".yaml"), "w") as file:
            file.write(text)
        trace = self.path(name + (".again" if resume else "") + ".jsonl")
        arguments = [f"{key}={value}" for key, value in changed.items()] + ["debug.trace=" + trace, *sets]
        self.train(code, ranks, self.path(name + ".yaml"),
                   *itertools.chain.from_iterable(("--set", argument) for argument in arguments if "=" in argument),
                   *(argument for argument in arguments if "=" not in argument))
        with open(trace) as file:
            rows = [json.loads(line) for line in file]
        return rows, self.final(name)

    def held(self, name, recipe, model, ranks, way=None, *sets, **more):
        sets = [f"{key}={value}" for key, value in (way or {}).items()] + list(sets)
        return self.run_of(name, recipe, model, ranks, "precision.primary_weights=quantized", *sets, **more)

    def expect_same(self, off, on, what):
        self.assertEqual([row["step"] for row in on[0]], [row["step"] for row in off[0]], what)
        for before, after in zip(off[0], on[0]):
            for key in CORE:
                self.assertEqual(before[key], after[key], (what, "step", before["step"], key))
        self.assertEqual(off[1], on[1], what)
        self.assertNotEqual(off[0][0]["masters"], off[0][-1]["masters"], "a run that learns nothing shows nothing")

    def every_model(self, recipe):
        """With each wire that `auto` takes, fused or not, under changing overlaps, at every number of ranks."""
        switches = itertools.cycle(itertools.product(("true", "false"), repeat=2))
        for (number, model), fused in itertools.product(enumerate(MODELS), ("true", "false")):
            for ranks in (1, 2, 3, 4):
                if ranks > 2 and (fused == "false") != (number % 2 == 0):
                    continue
                gather, reduce = next(switches)
                sets = (f"precision.fuse_wgrad={fused}", f"gather.overlap={gather}", f"reduce.overlap={reduce}")
                name = f"{model}.{ranks}.{fused}"
                off = self.run_of(name + ".off", recipe, model, ranks, *sets)
                on = self.held(name + ".on", recipe, model, ranks, None, *sets)
                self.expect_same(off, on, (recipe, name, sets))

    def every_way(self, recipe):
        for model, ranks, rule in (("odd", 2, "adamw"), ("single", 3, "adamw"), ("single", 3, "muon")):
            rules = "optimizer.matrices=" + rule
            off = self.run_of(f"{model}.{rule}", recipe, model, ranks, rules)
            for number, way in enumerate(ways(recipe)):
                on = self.held(f"{model}.{rule}.{number}", recipe, model, ranks, way, rules, "debug.replica_hash_every=2")
                self.expect_same(off, on, (recipe, model, ranks, rule, way))

    def evaluations_saves_and_resumes(self, recipe):
        """None of them changes a bit, nor does a resume that holds weights otherwise."""
        off = self.run_of("off", recipe, "single", 3)
        losses = None
        for number, way in enumerate([None, *ways(recipe)]):
            often = ("eval.every_steps=1", "eval.batches=1", "checkpoint.every_steps=1")
            on = self.held(f"on{number}", recipe, "single", 3, way, *often)
            self.expect_same(off, on, (recipe, way, "evaluated and saved after every step"))
            found = [row.get("eval_loss") for row in self.json_lines(f"on{number}", "metrics.jsonl")]
            losses = losses or found
            self.assertEqual(found, losses, (recipe, way))
            self.assertNotIn(None, found)
        for first, then in (("quantized", "quantized"), ("quantized", "bf16"), ("bf16", "quantized")):
            name = f"{first}.{then}"
            self.run_of(name, recipe, "single", 3, f"precision.primary_weights={first}", "--stop-at", "2", code=75)
            rest = self.run_of(name, recipe, "single", 3, f"precision.primary_weights={then}", resume=True)
            self.expect_same((off[0][2:], off[1]), rest, (recipe, first, then))

    def stored_bytes(self, recipe):
        """After every step and on every rank what `tessera quantize` makes of the masters."""
        for number, (way, ranks) in enumerate(itertools.product(ways(recipe), (1, 3))):
            name = f"bytes{number}"
            rows, _ = self.held(name, recipe, "single", ranks, way, "checkpoint.every_steps=1",
                                "checkpoint.keep_every=1", "checkpoint.quantized=true", "debug.replica_hash_every=1")
            for row in rows:
                step = next(entry for entry in os.listdir(self.path(name))
                            if entry.startswith("step_") and int(entry.split("_")[1]) == row["step"])
                out = self.path(name, f"q{row['step']}.h5")
                self.run_tool("quantize", self.path(name, step, "model.h5"), "--format", recipe, "--out", out)
                self.assertTrue(filecmp.cmp(out, self.path(name, step, "quantized.h5"), shallow=False), (recipe, ranks, step))
                with h5py.File(out) as file:
                    self.expect_stored(row["weights"], file, (recipe, way, ranks, row["step"]))
                if row["step"] == 2 and number > 0:
                    break

    def launches(self, recipe):
        """Of quantizers of weights: by format and group, however many weights, experts and micro-batches there are."""
        quantize = lambda held: held[0][2]["quantize"]
        sizes = ((), ("batch.micro=2",), ("model.moe.experts=8",))
        for number, way in enumerate(ways(recipe)):
            found = [quantize(self.held(f"l{number}.{i}", recipe, "single", 1, way, "reduce.bucket_mib=25", *sets))
                     for i, sets in enumerate(sizes)]
            self.assertEqual(len({one["weights"] for one in found}), 1, (recipe, way, found))
            self.assertGreater(found[0]["weights"], 0)
            self.assertEqual(found[0]["activations"], 2 * found[1]["activations"])  # half as many micro-batches
        off = [quantize(self.run_of(f"l{i}", recipe, "single", 1, *sets)) for i, sets in enumerate(sizes[:2])]
        self.assertEqual(off[0]["weights"], 2 * off[1]["weights"])

    def expect_stored(self, weights, file, what):
        seen = 0
        for name, arrays in weights.items():
            if "rowwise_scales" not in arrays:
                self.assertEqual(list(arrays), ["rowwise"], (what, name))
                continue
            group = file["model/" + name]
            for kind, found in arrays.items():
                dataset = {"rowwise": "rowwise_data", "columnwise": "columnwise_data"}.get(kind, kind)
                self.assertEqual(found, digest(group[dataset]), (what, name, kind))
                seen += 1
        self.assertGreater(seen, 20)

    def run_tool(self, *arguments):
        done = subprocess.run([runs.TESSERA, *arguments], capture_output=True, text=True, timeout=runs.PATIENCE)
        self.assertEqual(done.returncode, 0, (arguments, done.stdout, done.stderr))


for one in RECIPES:
    for case in ("every_model", "every_way", "evaluations_saves_and_resumes", "stored_bytes", "launches"):
        setattr(HeldWeights, f"test_{case}_{one}", lambda self, one=one, case=case: getattr(self, case)(one))

if __name__ == "__main__":
    runs.main()
