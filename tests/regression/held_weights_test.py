"""Weights held quantized: the stored bytes equal what `tessera quantize` makes of the masters, the number of launches does
not depend on the number of weights, and a quantized output layer goes with Muon's matrices.

usage: held_weights_test.py TESSERA MPIEXEC [TEST...]
"""
import filecmp
import itertools
import os
import subprocess
import sys

import h5py

import held_runs
import runs
from held_runs import QUANTIZED, RECIPES, ways

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../python"))
import tessera_io  # noqa: E402


class HeldWeights(held_runs.HeldRuns):
    def stored_bytes(self, recipe):
        """After every step, on every rank, stored bytes equal what `tessera quantize` makes of the masters."""
        ranks = itertools.cycle((3, 1, 2, 4))
        for number, way in enumerate(ways(recipe)):
            name, count = f"bytes{number}", next(ranks)
            rows, _ = self.run_of(name, recipe, "single", count, QUANTIZED, *way, "checkpoint.every_steps=1",
                                  "checkpoint.keep_every=1", "checkpoint.quantized=true", "debug.replica_hash_every=1",
                                  "optimizer.matrices=" + ("muon" if number % 2 else "adamw"))
            for row in rows:
                step = next(entry for entry in os.listdir(self.path(name))
                            if entry.startswith("step_") and int(entry.split("_")[1]) == row["step"])
                out = self.path(name, f"q{row['step']}.h5")
                self.run_tool("quantize", self.path(name, step, "model.h5"), "--format", recipe, "--out", out)
                self.assertTrue(filecmp.cmp(out, self.path(name, step, "quantized.h5"), shallow=False), (recipe, count, step))
                with h5py.File(out) as file:
                    self.expect_stored(row["weights"], file, (recipe, way, count, row["step"]))
                if row["step"] == 2 and number > 0:
                    break

    def launches(self, recipe):
        """Launches of quantizers depend on formats and groups, not on the number of experts or micro-batches."""
        quantize = lambda held: held[0][2]["quantize"]
        sizes = ((), ("batch.micro=2",), ("model.moe.experts=8",))
        found = [quantize(self.run_of(f"on{i}", recipe, "single", 1, QUANTIZED, "reduce.bucket_mib=25", *sets, steps=3))
                 for i, sets in enumerate(sizes)]
        self.assertEqual(len({one["weights"] for one in found}), 1, (recipe, found))
        self.assertGreater(found[0]["weights"], 0)
        self.assertGreater(found[0]["activations"], 0)
        self.assertEqual(found[0]["activations"], 2 * found[1]["activations"])  # half as many micro-batches
        off = [quantize(self.run_of(f"off{i}", recipe, "single", 1, *sets, steps=3)) for i, sets in enumerate(sizes[:2])]
        self.assertGreater(off[0]["weights"], 0)
        self.assertEqual(off[0]["weights"], 2 * off[1]["weights"])

    def head(self, recipe):
        """A quantized output layer is cut anywhere, beside Muon's matrices, which travel whole and with their scales."""
        for ranks in (3, 4):
            sets = ("optimizer.matrices=muon", "precision.quantize_head=true")
            off = self.run_of(f"off{ranks}", recipe, "dense", ranks, *sets)
            on = self.run_of(f"on{ranks}", recipe, "dense", ranks, *sets, QUANTIZED)
            self.expect_same(off, on, (recipe, ranks))

    def expect_stored(self, weights, file, what):
        seen = 0
        for name, arrays in weights.items():
            if list(arrays) == ["rowwise"]:  # plain values
                continue
            group = file["model/" + name]
            for kind, found in arrays.items():
                dataset = {"rowwise": "rowwise_data", "columnwise": "columnwise_data"}.get(kind, kind)
                self.assertEqual(found, f"{tessera_io.digest(group[dataset][()]):016x}", (what, name, kind))
                seen += 1
        self.assertGreater(seen, 20)

    def run_tool(self, *arguments):
        done = subprocess.run([runs.TESSERA, *arguments], capture_output=True, text=True, timeout=runs.PATIENCE)
        self.assertEqual(done.returncode, 0, (arguments, done.stdout, done.stderr))


for one in RECIPES:
    for case in ("stored_bytes", "launches", "head"):
        setattr(HeldWeights, f"test_{case}_{one}", lambda self, one=one, case=case: getattr(self, case)(one))

if __name__ == "__main__":
    runs.main()
