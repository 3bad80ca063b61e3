"""Muon from outside: one step compared with numpy's, owners that change no bit, the state of each rule, refusals.
"""
import json
import os

import h5py
import numpy

import runs

MU = 0.95
COEFFICIENTS = {
    "quintic": [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
                (2.8366, -3.0525, 1.2012)],
    "simple": [(3.4445, -4.7750, 2.0315)] * 5,
    "polar_express": [(8.2051, -22.9019, 16.4607), (4.0664, -2.8612, 0.5184), (3.9096, -2.8234, 0.5250), (3.2856, -2.4153, 0.4853),
                      (2.2779, -1.6198, 0.3985), (1.8726, -1.2307, 0.3585), (1.8564, -1.2132, 0.3568), (1.8750, -1.2500, 0.3750)]}
SCALES = {"spectral": lambda out, inner: max(out, inner) ** 0.5, "shape": lambda out, inner: max(1, out / inner) ** 0.5,
          "rms": lambda out, inner: 0.2 * max(out, inner) ** 0.5}
LEAST_GAIN, MOST_GAIN = {"quintic": 0.6, "simple": 0.3, "polar_express": 0.6}, {"quintic": 1.3, "simple": 1.5, "polar_express": 1.3}
LR = 0.02
PLAIN = {"optimizer.weight_decay": 0, "optimizer.warmup_steps": 0, "optimizer.clip": 0, "optimizer.schedule": "constant",
         "optimizer.lr": LR, "eval.every_steps": 0, "data.eval_windows": "tail"}


def bf16(values):
    """fp32 rounded to the nearest bf16, ties to even; finite."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(numpy.float32)


def orthogonal(matrix, coefficients):
    tall = matrix.shape[0] > matrix.shape[1]
    x = bf16((matrix.T if tall else matrix) / numpy.float32(max(numpy.sqrt((matrix.astype(numpy.float64) ** 2).sum()), 1e-15)))
    for a, b, c in numpy.float32(COEFFICIENTS[coefficients]):
        square = bf16(x @ x.T)
        x = bf16(a * x + bf16(b * square + c * (square @ square)) @ x)
    return x.T if tall else x


def parts_of(name, values, heads, kv_heads, head_dim):
    """The matrices that are orthogonalised by themselves, with their names."""
    rows = values.shape[-2]
    cuts = [rows]
    if "qkv" in name:
        cuts = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    elif "gate_up" in name:
        cuts = [rows // 2, rows // 2]
    assert sum(cuts) == rows, name
    for index, member in enumerate(values.reshape(-1, *values.shape[-2:])):
        begin = 0
        for part, count in enumerate(cuts):
            yield f"{name}[{index}].{part}", member[begin:begin + count]
            begin += count


class Muon(runs.Runs):
    def settings(self, **more):
        keys = {"optimizer.matrices": "muon", **PLAIN, **{key.replace("__", "."): value for key, value in more.items()}}
        return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]

    def folder_of(self, run):
        return self.path(run, max(name for name in os.listdir(self.path(run)) if name.startswith("step_")))

    def weights(self, run):
        """Tensors of the newest step: name -> (role, values)."""
        with h5py.File(os.path.join(self.folder_of(run), "model.h5")) as file:
            return {name: (data.attrs["role"].decode(), data[...]) for name, data in file["model"].items()}

    def slot(self, run, path):
        with h5py.File(os.path.join(self.folder_of(run), "optimizer.h5")) as file:
            return {name: data[...] for name, data in file[path].items()}

    def one_step(self, weights, coefficients="quintic", scale="spectral", nesterov="true", ranks=2, **more):
        """Weights before and after the first step, and its momentum."""
        keys = dict(optimizer__muon__coefficients=coefficients, optimizer__muon__scale=scale, optimizer__muon__nesterov=nesterov, **more)
        name = f"{weights or 'dense'}-{coefficients}-{scale}-{nesterov}-{ranks}"
        for run, steps in ((name + "-0", 0), (name + "-1", 1)):
            self.train(0, ranks, self.deck(run, weights), *self.settings(run__steps=steps, **keys))
        return name, self.weights(name + "-0"), self.weights(name + "-1"), self.slot(name + "-1", "muon/momentum")

    def check_step(self, before, after, momentum, coefficients, scale, shape):
        distances = []
        assert set(momentum) == {name for name, (role, _) in before.items() if role in ("matrix", "expert")}
        for name, m in momentum.items():
            moved = parts_of(name, before[name][1].astype(numpy.float64) - after[name][1], *shape)
            for (part, step), (_, mean) in zip(moved, parts_of(name, m, *shape)):
                gradient = (mean / numpy.float32(1 - MU)).astype(numpy.float32)
                got = step / (LR * SCALES[scale](*step.shape))
                left, sizes, right = numpy.linalg.svd(gradient.astype(numpy.float64), full_matrices=False)
                assert numpy.linalg.svd(got, compute_uv=False)[0] <= MOST_GAIN[coefficients], part
                gains = numpy.einsum("ik,ij,kj->k", left, got, right)
                held = sizes > 0.01 * numpy.linalg.norm(gradient)
                assert held.any()
                assert gains[held].min() >= LEAST_GAIN[coefficients], part
                expected = orthogonal(gradient, coefficients)
                distances.append(numpy.linalg.norm(got - expected) / numpy.linalg.norm(expected))
        assert numpy.median(distances) <= 2e-2
        assert max(distances) <= 3e-2
        return len(distances)

    def test_one_step_is_numpys(self):
        dense, mixture = (4, 4, 8), (4, 2, 8)  # heads, kv_heads, head_dim
        count = self.check_step(*self.one_step("")[1:], "quintic", "spectral", dense)
        assert count == 2 * (3 + 1 + 2 + 1)
        for coefficients, scale, nesterov in (("quintic", "rms", "false"), ("simple", "shape", "true"), ("polar_express", "spectral", "true")):
            with self.subtests.test(coefficients=coefficients, scale=scale):
                _, before, after, momentum = self.one_step("single", coefficients, scale, nesterov, model__kv_heads=2)
                count = self.check_step(before, after, momentum, coefficients, scale, mixture)
                assert count == 2 * (3 + 1 + 4 * 2 + 4)

    def test_odd_shapes_and_fewer_matrices_than_ranks(self):
        odd = dict(model__layers=1, model__hidden=38, model__heads=1, model__head_dim=22, model__ffn=27)
        for weights, count in (("", 3 + 1 + 2 + 1), ("single", 3 + 1 + 4 * 2 + 4)):
            _, before, after, momentum = self.one_step(weights, ranks=6, **odd)
            assert self.check_step(before, after, momentum, "quintic", "spectral", (1, 1, 22)) == count

    def test_all_else_is_adamws(self):
        name, _, after, momentum = self.one_step("single")
        self.train(0, 2, self.deck("adamw"), *self.settings(run__steps=1, optimizer__matrices="adamw"))
        others = {key for key, (role, _) in after.items() if role not in ("matrix", "expert")}
        plain = self.weights("adamw")
        for key in others:
            numpy.testing.assert_array_equal(after[key][1].view(numpy.uint32), plain[key][1].view(numpy.uint32), key)
        for slot in ("adamw/m", "adamw/v"):
            mine, theirs = self.slot(name + "-1", slot), self.slot("adamw", slot)
            assert set(mine) == others
            assert set(theirs) == others | set(momentum)
            for key in mine:
                numpy.testing.assert_array_equal(mine[key].view(numpy.uint32), theirs[key].view(numpy.uint32), key)

    def test_owners_change_no_bit(self):
        """Resumes from one checkpoint at one number of ranks, with other buckets, other owners, single and discrete experts."""
        self.train(75, 2, self.deck("base"), *self.settings(), "--stop-at", "2")
        for ranks in (1, 3, 4):
            digests = {}
            for mib in (0.05, 25):
                for weights in ("single", "discrete"):
                    run = f"{ranks}-{mib}-{weights}"
                    self.train(75, ranks, self.deck(run, weights), *self.settings(reduce__bucket_mib=mib), "--resume", "base", "--stop-at", "3")
                    digests[run] = self.final(run)
            assert len(set(digests.values())) == 1, digests

    def test_any_ranks_load_what_any_ranks_saved(self):
        self.train(75, 3, self.deck("base"), *self.settings(optimizer__moments="bf16"), "--stop-at", "1")
        for ranks, weights in ((1, "discrete"), (2, "single"), (4, "discrete")):
            run = f"{ranks}{weights}"
            self.train(75, ranks, self.deck(run, weights), *self.settings(optimizer__moments="bf16"), "--resume", "base", "--stop-at", "1")
            assert self.final(run) == self.final("base")

    def test_a_resumed_run_is_the_one_that_never_stopped(self):
        for moments in ("fp32", "bf16"):
            settings = self.settings(optimizer__moments=moments, optimizer__clip=1, optimizer__weight_decay=0.1)
            self.train(0, 2, self.deck("whole" + moments), *settings)
            self.train(75, 2, self.deck("parts" + moments), *settings, "--stop-at", "4")
            self.train(0, 2, self.deck("parts" + moments), *settings)
            assert self.final("parts" + moments) == self.final("whole" + moments)
            assert self.rows("parts" + moments) == self.rows("whole" + moments)
        assert self.final("wholefp32") != self.final("wholebf16")

    def test_what_a_resumed_run_must_keep(self):
        deck = self.deck("run")
        self.train(75, 2, deck, *self.settings(), "--stop-at", "1")
        for key, value in (("optimizer.matrices", "adamw"), ("optimizer.moments", "bf16"), ("optimizer.muon.momentum", 0.5),
                           ("optimizer.muon.scale", "rms")):
            out, err = self.train(3, 2, deck, *self.settings(), "--set", f"{key}={value}")
            assert f"{key}: is {value}" in err
            assert "a resumed run must keep it" in err

    def test_names_that_are_not_known(self):
        for key, value, nearest in (("coefficients", "quintc", "quintic"), ("scale", "spectrum", "spectral")):
            out, err = self.train(3, 1, self.deck("run"), *self.settings(), "--set", f"optimizer.muon.{key}={value}")
            assert f"optimizer.muon.{key}: {value}" in err
            assert f"did you mean {nearest}?" in err

    def plan(self, ranks, weights, *settings):
        out, _ = self.run_to_its_end(0, 1, "plan", self.deck("planned", weights), "--ranks", str(ranks), "--json", *settings)
        return json.loads(out)

    def test_a_plan_names_the_owners(self):
        kinds = set()
        for weights, mib in (("", 0.0001), ("", 25), ("single", 0.01)):
            plan = self.plan(4, weights, *self.settings(reduce__bucket_mib=mib))
            for group in plan["groups"]:
                kinds.add(tuple(dict.fromkeys(bucket["owner"] for bucket in group["buckets"])))
                for bucket in group["buckets"]:
                    assert sum(bucket["slices"]) == bucket["elements"]
                    assert len(bucket["slices"]) == 4
            assert [owners["processes"] for owners in plan["owners"]] == (["dense", "expert"] if weights else ["dense"])
            for owners in plan["owners"]:
                assert (len(owners["cost"]), len(owners["elements"]), len(owners["momentum_bytes"])) == (4, 4, 4)
                for key in ("cost", "elements"):
                    assert round(abs(owners[key + "_over_mean"] - (max(owners[key]) * 4 / sum(owners[key]))), 7) == 0
        whole, sharded = "whole-matrix", "element-sharded"
        assert kinds == {(whole,), (sharded,), (whole, sharded), (sharded, whole)}
        assert self.plan(4, "single")["owners"] == []
        text, _ = self.run_to_its_end(0, 1, "plan", self.deck("planned", "single"), "--ranks", "4", "--verbose", *self.settings())
        for processes in ("dense", "expert"):
            assert [f"{processes} rank {rank} " in text for rank in range(5)] == [True] * 4 + [False]
            assert f"{processes} most over mean" in text
        bytes_of = lambda plan: sum(sum(owners["momentum_bytes"]) for owners in plan["owners"])
        assert 2 * bytes_of(self.plan(4, "single", *self.settings(optimizer__moments="bf16"))) == bytes_of(self.plan(4, "single", *self.settings()))
