"""Weights held quantized: the stored bytes equal what `tessera quantize` makes of the step, the number of launches does
not depend on the number of weights, and a quantized output layer goes with Muon's matrices.
"""
import filecmp
import itertools
import os
import re
import subprocess

import h5py
import numpy as np
import pytest

import held_runs
from held_runs import QUANTIZED, RECIPES, ways
import runs
import tessera_io

of_recipes = pytest.mark.parametrize("recipe", RECIPES)


class HeldWeights(held_runs.HeldRuns):
    @of_recipes
    def test_stored_bytes(self, recipe):
        """After every step, on every rank, stored bytes equal what `tessera quantize` makes of the step, and no other
        weight is in its file."""
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
                self.run_tool("quantize", self.path(name, step), "--out", out)
                assert filecmp.cmp(out, self.path(name, step, "quantized.h5"), shallow=False), (recipe, count, step)
                with h5py.File(out) as file:
                    self.expect_stored(row["weights"], file, (recipe, way, count, row["step"]))
                    assert (file.attrs["as_trained"], file.attrs["step"]) == (1, row["step"])
                if row["step"] == 2 and number > 0:
                    break

    def test_several_formats(self):
        """Each weight is in the file in its own format; a head has the rows of the padded vocabulary, and full sharding
        the same file."""
        sets = ("precision.quantize_head=true", "model.vocab=300", "checkpoint.every_steps=1", "precision.layers="
                "[{blocks: [first 1], recipe: nvfp4}, {modules: [attention.out], recipe: fp8_block}]")
        for model in ("single", "discrete"):
            held, full = model + "_held", model + "_full"
            rows, _ = self.run_of(held, "mxfp8_2d", model, 2, QUANTIZED, *sets, "checkpoint.quantized=true", steps=2)
            self.run_of(full, "mxfp8_2d", model, 3, *sets, "sharding=full", steps=2)
            made, of_full = self.path(held, "step_00000002", "quantized.h5"), self.path(model + ".h5")
            self.run_tool("quantize", self.path(full, "step_00000002"), "--out", of_full)
            assert filecmp.cmp(made, of_full, shallow=False), model
            with h5py.File(made) as file:
                self.expect_stored(rows[-1]["weights"], file, model)
                assert file["model/head.weight"].attrs["role"] == b"head"
                assert file["model/head.weight/rowwise_data"].shape[0] == 384
                assert tessera_io.dequantized(made, "model/head.weight").shape == (300, 64)
                found = {str(group.attrs["format"]) for group, *_ in self.groups(file).values()}
                assert len(found) == 3, found

    @staticmethod
    def groups(file):
        """The groups of each weight by its name, one of each expert where these lie in datasets of their own."""
        found = {}
        def add(path, item):
            if "format" in item.attrs:
                found.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", path.removeprefix("model/")), []).append(item)
        file.visititems(add)
        return found

    @of_recipes
    def test_launches(self, recipe):
        """Launches of quantizers depend on formats and groups, not on the number of experts or micro-batches."""
        quantize = lambda held: held[0][2]["quantize"]
        sizes = ((), ("batch.micro=2",), ("model.moe.experts=8",))
        found = [quantize(self.run_of(f"on{i}", recipe, "single", 1, QUANTIZED, "reduce.bucket_mib=25", *sets, steps=3))
                 for i, sets in enumerate(sizes)]
        assert len({one["weights"] for one in found}) == 1, (recipe, found)
        assert found[0]["weights"] > 0
        assert found[0]["activations"] > 0
        assert found[0]["activations"] == 2 * found[1]["activations"]  # half as many micro-batches
        off = [quantize(self.run_of(f"off{i}", recipe, "single", 1, *sets, steps=3)) for i, sets in enumerate(sizes[:2])]
        assert off[0]["weights"] > 0
        assert off[0]["weights"] == 2 * off[1]["weights"]

    @of_recipes
    def test_head(self, recipe):
        """A quantized output layer is cut anywhere, beside Muon's matrices, which travel whole and with their scales."""
        for ranks in (3, 4):
            sets = ("optimizer.matrices=muon", "precision.quantize_head=true")
            off = self.run_of(f"off{ranks}", recipe, "dense", ranks, *sets)
            on = self.run_of(f"on{ranks}", recipe, "dense", ranks, *sets, QUANTIZED)
            self.expect_same(off, on, (recipe, ranks))

    def expect_stored(self, weights, file, what):
        seen, groups = 0, self.groups(file)
        coded = {name: arrays for name, arrays in weights.items() if list(arrays) != ["rowwise"]}  # others: plain values
        assert set(groups) == set(coded), what
        for name, arrays in coded.items():
            for kind, found in arrays.items():
                dataset = {"rowwise": "rowwise_data", "columnwise": "columnwise_data"}.get(kind, kind)
                stored = np.stack([group[dataset][()] for group in groups[name]])
                if kind == "rowwise":  # the trace leaves out the rows that pad a vocabulary
                    stored = stored[..., :groups[name][0].attrs["shape"][-2], :]
                assert found == f"{tessera_io.digest(stored):016x}", (what, name, kind)
                seen += 1
        assert seen > 20

    def run_tool(self, *arguments):
        done = subprocess.run([self.tessera, *arguments], capture_output=True, text=True, timeout=runs.PATIENCE)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
