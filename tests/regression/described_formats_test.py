"""Formats that a deck describes, from outside: described as built-in formats are, they give the built-in formats' runs; how
weights are held, sharded, gathered and computed again changes no bit; codes, scales and values equal a numpy reading of the
rules; what cannot be is refused with its line.
"""
import itertools
import json
import os
import subprocess

import h5py
import numpy as np

import held_runs
import runs
import slots_test
import tessera_io

E4M3, E5M2 = "element: e4m3, special: nan", "element: e5m2, special: ieee"
FORMATS = {
    "block": f"{{{E4M3}, block: [128, 128], scale: power}}", "block_rows": f"{{{E4M3}, block: [1, 128], scale: power}}",
    "rows8": f"{{{E4M3}, block: [1, 32], scale: e8m0}}", "tiles8": f"{{{E4M3}, block: [32, 32], scale: e8m0, columns: shared}}",
    "wide8": f"{{{E5M2}, block: [1, 32], scale: e8m0}}", "rows6": "{element: e3m2, block: [1, 32], scale: e8m0, columns: requantized}",
    "tiles6": "{element: e2m3, block: [32, 32], scale: e8m0}", "rows4": "{element: e2m1, block: [1, 32], scale: e8m0}",
    "tiles4": "{element: e2m1, special: none, block: [32, 32], scale: e8m0}", "nv": "{element: e2m1, block: [16, 16], scale: e4m3}",
    "nv_rows": "{element: e2m1, block: [1, 16], scale: e4m3}", "tensor8": f"{{{E4M3}, block: tensor, scale: power}}",
    "wide_tensor": f"{{{E5M2}, block: tensor, scale: power}}",
    "int4_tiles": "{element: int4, block: [16, 16], scale: e4m3}", "int4_rows": "{element: int4, block: [1, 64], scale: e8m0}",
    "e3m3": "{element: e3m3, block: [1, 16], scale: e4m3}", "ternary": "{element: int2, block: [8, 8], scale: power}",
    "floored": "{element: e2m3, block: [1, 128], scale: e8m0_floor}",
}
ALL = "precision.formats={" + ", ".join(f"{name}: {text}" for name, text in FORMATS.items()) + "}"
# A recipe of built-in formats, and the same of described ones.
ALIKE = {
    "fp8_block": "{weight: block, activation: block_rows, gradient: block_rows}",
    "fp8_tensor": "{weight: tensor8, activation: tensor8, gradient: wide_tensor}",
    "mxfp8": "{weight: rows8, activation: rows8, gradient: rows8}",
    "{base: mxfp8_2d, gradient: mxfp8_e5m2}": "{weight: tiles8, activation: rows8, gradient: wide8}",
    "{base: mxfp6_e3m2, weight: mxfp6_e2m3_2d}": "{weight: tiles6, activation: rows6, gradient: rows6}",
    "mxfp4": "{weight: rows4, activation: rows4, gradient: rows4}",
    "{base: mxfp4_2d, gradient: bf16}": "{weight: tiles4, activation: rows4}",
    "{base: nvfp4, rounding: {gradient: nearest}, hadamard: {wgrad: false}}": "{weight: nv, activation: nv_rows, gradient: nv_rows}",
}
OWN = "{weight: int4_tiles, activation: int4_rows, gradient: {dgrad: e3m3, wgrad: floored}}"
SQUARE = "{weight: ternary, activation: int4_tiles, gradient: tensor8}"
MIXED = "{base: nvfp4, weight: int4_rows, activation: {forward: ternary}, gradient: {dgrad: int4_tiles}}"
LAYERS = "[{blocks: [first 1], recipe: {base: mxfp8, weight: int4_tiles}}, {modules: [mlp.down], recipe: {weight: ternary}}]"


class Formats(slots_test.Slots):
    def trace(self, name, recipe, model, ranks, *sets, **more):
        return super().trace(name, recipe, model, ranks, ALL, *sets, **more)


class Bits(Formats):
    def test_of_built_ins(self):
        """Held as codes on two ranks, and in bf16 on one."""
        for i, (built, described) in enumerate(ALIKE.items()):
            for model, ranks, sets in (("dense", 2, (held_runs.QUANTIZED,)), ("single", 1, ("batch.global=2",))):
                with self.subtests.test(built, model=model):
                    pair = [self.bits(self.trace(f"{kind}{i}{model}", recipe, model, ranks, *sets))
                            for kind, recipe in (("built", built), ("described", described))]
                    assert pair[0] == pair[1]

    def test_own(self):
        self.variants(OWN, "dense")

    def test_square(self):
        self.variants(SQUARE, "odd")

    def test_experts(self):
        self.variants(MIXED, "discrete")

    def test_layers(self):
        self.variants(OWN, "dense", LAYERS)

    def test_muon(self):
        self.muon(OWN)

    def test_any_ranks(self):
        """One order of sums; statistics too are the same on any number of ranks."""
        seen = set()
        for ranks, sets in itertools.product((1, 2, 3), ((), (held_runs.QUANTIZED,))):
            name = f"r{ranks}{len(sets)}"
            trace = self.bits(self.trace(name, OWN, "dense", ranks, "reduce.order=batch", "precision.statistics_every=2", *sets))
            with open(self.path(name, "quantization.jsonl"), encoding="utf-8") as file:
                seen.add((json.dumps(trace), file.read()))
        assert len(seen) == 1
        lines = [json.loads(line) for line in next(iter(seen))[1].splitlines()]
        assert {line["format"] for line in lines} == {"int4_16x16_e4m3", "int4_1x64_e8m0", "e3m3_1x16_e4m3", "e2m3_1x128_e8m0_floor"}
        assert all(0 < line["relative_error"] < 0.5 for line in lines)

    def test_a_run_in_two_parts(self):
        sets = (held_runs.QUANTIZED, "reduce.order=batch")
        whole = self.trace("whole", OWN, "dense", 2, *sets, steps=6)
        self.trace("parts", OWN, "dense", 2, *sets, steps=6, code=75, arguments=("--stop-at", "3"))
        rest = self.trace("parts", OWN, "dense", 1, *sets, steps=6)
        assert self.bits((whole[0][3:], whole[1])) == self.bits(rest)


def nearest(values, codes):
    """The code of the nearest number, ties to the even code; the largest for what is above; NaN: all ones."""
    half = codes[:len(codes) // 2].astype(np.float64)
    numbers = half[np.isfinite(half)]
    magnitude = np.minimum(np.abs(values.astype(np.float64)), numbers[-1])
    above = np.clip(np.searchsorted(numbers, magnitude), 1, len(numbers) - 1)
    below = above - 1
    low, high = magnitude - numbers[below], numbers[above] - magnitude
    code = np.where((low < high) | ((low == high) & (below % 2 == 0)), below, above)
    return np.where(np.isnan(values), len(half) - 1, code + np.signbit(values) * len(half)).astype(np.uint8)


def power_below(x):
    return np.ldexp(np.float32(1), np.frexp(x)[1] - 1)


def encodings(amax, scale, largest, tensor):
    """Stored scales and multipliers of blocks, from their amaxes; without zeros and infinities."""
    one = np.float32(1)
    if scale == "power":
        quotient = power_below((np.float32(largest) / amax).astype(np.float32))
        return (one / quotient).astype(np.float32), quotient
    if scale == "e4m3":
        encode = np.float32(largest * 448) / tensor
        wanted = (amax * (encode * (one / largest))).astype(np.float32)
        code = nearest(wanted, tessera_io.E4M3)
        with np.errstate(divide="ignore"):
            return code, np.minimum(one / (tessera_io.E4M3[code] * (one / encode)), np.finfo(np.float32).max).astype(np.float32)
    if scale == "e8m0_floor":
        exponent = np.log2(power_below(amax) / power_below(largest)).astype(np.int64)
    else:
        wanted = (amax * (one / largest)).astype(np.float32)
        exponent = np.ceil(np.log2(wanted.astype(np.float64))).astype(np.int64)
    return (exponent + 127).astype(np.uint8), np.ldexp(one, -exponent).astype(np.float32)


def quantized(values, form):
    """Codes and scales of the rowwise copy; of the columnwise one by the transposed matrix."""
    codes, block, scale = tessera_io._described(form)
    largest = np.float32(np.nanmax(codes))
    if block is None:
        _, multiplier = encodings(np.abs(values).max(), scale, largest, None)
        return nearest(values * multiplier, codes), None
    rows, columns = (-(-n // edge) for n, edge in zip(values.shape, block))
    padded = np.zeros((rows * block[0], columns * block[1]), np.float32)
    padded[:values.shape[0], :values.shape[1]] = np.abs(values)
    amax = padded.reshape(rows, block[0], columns, block[1]).max(axis=(1, 3))
    scales, multipliers = encodings(amax, scale, largest, np.abs(values).max())
    spread = np.repeat(np.repeat(multipliers, block[0], axis=0), block[1], axis=1)[:values.shape[0], :values.shape[1]]
    return nearest((values * spread).astype(np.float32), codes), scales


class Oracle(runs.InFolder):
    def drawn(self, random):
        while True:
            element = random.choice([f"int{n}" for n in range(2, 9)] + [f"e{x}m{y}" for x in range(2, 6) for y in range(6) if x + y < 8])
            special = "" if element.startswith("int") else random.choice(["", "nan", "ieee"])
            edge = int(random.choice([16, 32, 64, 128]))
            block = random.choice([f"1x{edge}", f"{edge}x{edge}", "4x4", "8x8", "tensor"])
            scale = "power" if block == "tensor" else random.choice(["e8m0", "e8m0_floor", "power", "e4m3"])
            digits = int(element[3]) - 1 if element.startswith("int") else int(element[3]) + 1
            if not (special == "ieee" and element.endswith("m0")) and not (scale == "e4m3" and digits > 4):
                return f"{element}{special}_{block}_{scale}"

    def test_numpy(self):
        random = np.random.default_rng(5)
        values = (random.standard_normal((160, 200)) * 2.0 ** random.integers(-9, 3, (160, 1))).astype(np.float32)
        bits = values.view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
        with h5py.File(self.path("in.h5"), "w") as file:
            file["w"] = values
        forms = {self.drawn(random) for _ in range(60)}
        for form in sorted(forms):
            with self.subtests.test(form):
                out = self.path(form + ".h5")
                done = subprocess.run([self.tessera, "quantize", self.path("in.h5"), "--format", form, "--out", out], capture_output=True, text=True, timeout=runs.PATIENCE)
                assert (done.returncode, done.stderr) == (0, "")
                codes, scales = quantized(rounded, form)
                with h5py.File(out) as file:
                    assert file["w"].attrs["format"].decode() == form
                    np.testing.assert_array_equal(file["w/rowwise_data"][...], codes)
                    if scales is not None:
                        np.testing.assert_array_equal(file["w/rowwise_scales"][...], scales)
                    turned, turned_scales = quantized(rounded.T.copy(), form)
                    np.testing.assert_array_equal(file["w/columnwise_data"][...], turned.T)
                    if scales is not None:
                        np.testing.assert_array_equal(file["w/columnwise_scales"][...], turned_scales.T)
                error = tessera_io.dequantized(out, "w") - rounded
                assert np.linalg.norm(error) / np.linalg.norm(rounded) < 1
                if form.startswith("int8_1x"):
                    assert np.linalg.norm(error) / np.linalg.norm(rounded) < 0.02


class Refusals(Formats):
    def refused(self, precision, *texts):
        deck = self.write("bad.yaml", held_runs.DECK.replace("STEPS", "2").replace("MODEL", held_runs.MODELS["dense"])
                          .replace("precision: {recipe: RECIPE, primary_weights: bf16}", precision).replace("DIR", self.path("none")))
        said = str(self.train(3, 1, deck))
        for text in texts:
            assert text in said
        assert not os.path.exists(self.path("none"))

    def test_all_at_once_with_their_lines(self):
        self.refused("""precision:
  formats:
    wide: {element: e4m4, block: [1, 32], scale: e8m0}
    whole: {element: int4, special: nan, block: [1, 32], scale: e8m0}
    infinite: {element: e5m0, special: ieee, block: [1, 32], scale: e8m0}
    oblong: {element: e2m1, block: [2, 32], scale: e8m0}
    small: {element: e2m1, block: [1, 8], scale: e8m0}
    odd: {element: e2m1, block: [24, 24], scale: e8m0}
    all: {element: e2m1, block: tensor, scale: e8m0}
    inexact: {element: int6, block: [1, 32], scale: e4m3}
    turned: {element: int4, block: [1, 32], scale: e8m0, columns: shared}
    tiles: {element: int4, block: [16, 16], scale: e8m0, columns: requantized}
    mxfp8: {element: int4, block: [1, 32], scale: e8m0}
    fine: {element: int4, block: [1, 16], scale: e4m3}
  recipe: {weight: fine, activation: fin}""",
                     "bad.yaml:9:", "precision.formats.wide.element: has 2 to 8 bits",
                     "bad.yaml:10:", "precision.formats.whole.special: is for floating elements",
                     "bad.yaml:11:", "precision.formats.infinite.special: is ieee, whose NaN needs a bit of mantissa",
                     "bad.yaml:12:", "precision.formats.oblong.block: is [1, N]", "precision.formats.small.block", "precision.formats.odd.block",
                     "bad.yaml:15:", "precision.formats.all.scale: of a whole matrix is power",
                     "precision.formats.inexact.scale: is e4m3, of 4 significant bits, and the element has 5",
                     "precision.formats.turned.columns: is shared", "precision.formats.tiles.columns: is requantized",
                     "precision.formats.mxfp8: is the name of a format that there is",
                     "precision.recipe.weight: fine has blocks of rows under a scale of the matrix",
                     "bad.yaml:21:", "precision.recipe.activation: fin is none of the choices", "did you mean fine?")

    def test_what_is_written_wrong(self):
        self.refused("precision: {formats: {a: {element: e9, block: [1], scale: e8m1}, b: {element: int4}, c: int4}}",
                     "precision.formats.a.element: e9 is not an element, allowed int2 to int8",
                     "precision.formats.a.block: a list is not a block, allowed [1, N]", "precision.formats.a.scale: e8m1 is none",
                     "precision.formats.b.block: missing", "precision.formats.b.scale: missing",
                     "precision.formats.c: int4 is not a format, allowed {element")
        self.refused("precision: {formats: {b-c: {element: int4, block: [1, 16], scale: e8m0}}}", "is no name")
        self.refused("precision: {formats: [int4]}", "precision.formats: a list is not a map")

    def test_a_schedule_names_them_too(self):
        self.refused("precision: {formats: {a: {element: int4, block: [1, 16], scale: e8m0}}, schedule: [{from_step: 2, recipe: {weight: b}}]}",
                     "precision.schedule[0].recipe.weight: b is none of the choices")
