"""Tests of the low-precision oracle: number formats and random numbers against published values (formats.json,
Random123, PyTorch), the stored goldens against the oracle, and whether the goldens catch a recipe with an error.
"""
import json
import pathlib

import numpy as np

import draws
import four_over_six_cases
import low_precision
import mx_cases
import number_formats as formats
import quantized_goldens as goldens
import quantized_model
import row_scale_cases
import small_models

HERE = pathlib.Path(__file__).parent
CASES = json.loads((HERE / "formats.json").read_text())
F32 = np.float32


def floats(words):
    return formats.from_bits([int(word, 16) for word in words])


def number(word):
    return floats([word])


def same(found, wanted):
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def packed(codes):
    """4-bit codes [..., K] -> bytes [..., K / 2]; the element with the even index is in the low half."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def as_bytes(words):
    return [int(word, 16) for word in words]


class Formats:
    def test_elements(self):
        for case in CASES["scalar_fp8"]:
            same(formats.E4M3.encode(number(case["x"])), [int(case["e4m3"], 16)])
        for case in CASES["scalar_e2m1"]:
            same(formats.E2M1.encode(number(case["x"])), [int(case["e2m1"], 16)])
        for kind, codes in ((formats.E4M3, 256), (formats.E2M1, 16)):
            every = np.arange(codes, dtype=np.uint8)
            known = ~np.isnan(kind.decode(every))
            same(kind.encode(kind.decode(every))[known], every[known])

    def test_powers_of_two(self):
        for case in CASES["e8m0"]:
            p = number(case["amax"]) * formats.INVERSE_448
            byte = formats.e8m0_up(p)
            same(formats.bits(p), [int(case["product"], 16)])
            same(byte, [case["e8m0"]])
            same(formats.bits(formats.e8m0_multiplier(byte)), [int(case["enc_scale"], 16)])

    def test_mxfp8(self):
        for case in CASES["mxfp8"]:
            for x, block in ((floats(case["x"])[None], (1, 32)), (floats(case["x"])[:, None], (32, 1))):
                copy = formats.mxfp8(x, block)
                same(copy.scales, [[case["scale"]]])
                same(copy.codes.reshape(-1), as_bytes(case["data"]))

    def test_mx_cases_are_those_on_file(self):
        assert mx_cases.cases() == json.loads(mx_cases.FILE.read_text())

    def test_fp8_block(self):
        for case in CASES["fp8_blockwise_scale"]:
            eps = number(case["eps"])[0] if "eps" in case else 0.0
            scale, inverse = formats.fp8_block_scale(number(case["amax"]), eps)
            wanted = case["e4m3_pow2"]
            same(formats.bits(scale), [int(wanted["scale"], 16)])
            if "scale_inv" in wanted:
                same(formats.bits(inverse), [int(wanted["scale_inv"], 16)])
        x = np.random.default_rng(0).standard_normal((130, 200)).astype(F32)
        copy = formats.fp8_block(x, (128, 128))
        assert copy.scales.shape == (2, 2)
        scale = formats.fp8_block_scale(np.abs(x[128:, 128:]).max())[0]
        same(copy.codes[128:, 128:], formats.E4M3.encode(x[128:, 128:] * scale))

    def test_fp8_tensor(self):
        for element, key in ((formats.E4M3, "e4m3_pow2"), (formats.E5M2, "e5m2_pow2")):
            for case in CASES["fp8_blockwise_scale"]:
                if "eps" not in case and key in case:
                    scale = formats.fp8_block_scale(number(case["amax"]), largest=element.largest)[0]
                    same(formats.bits(scale), [int(case[key]["scale"], 16)])
            x = np.random.default_rng(0).standard_normal((130, 200)).astype(F32)
            copy = formats.fp8_tensor(x, element)
            scale = formats.fp8_block_scale(np.abs(x).max(), largest=element.largest)[0]
            same(copy.codes, element.encode(x * scale))
            same(copy.values, element.decode(copy.codes).astype(np.float64) / scale)
            assert np.abs(copy.values - x).max() <= np.abs(x).max() / (16 if element is formats.E4M3 else 8)

    def test_nvfp4(self):
        for case in CASES["nvfp4"]:
            amax = number(case["global_amax"])[0]
            x = floats(case["x"] if isinstance(case.get("x"), list) else [case["x"]] if "x" in case else [])
            peak = number(case["block_amax"])[0] if "block_amax" in case else formats.largest(x)
            byte, multiplier = formats.nvfp4_scale(np.array([peak], F32), amax)
            same(byte, [int(case["scale_e4m3"], 16)])
            for key in ("enc", "enc_scale"):
                if key in case:
                    same(formats.bits(multiplier), [int(case[key], 16)])
            if "packed" in case:
                same(packed(formats.nvfp4(x[None], (1, 16), amax=amax).codes)[0], as_bytes(case["packed"]))
            if "code" in case:
                same(formats.E2M1.encode(x * multiplier), [int(case["code"], 16)])

    def test_four_over_six_cases_are_those_on_file(self):
        cases = four_over_six_cases.cases()
        assert cases == json.loads(four_over_six_cases.FILE.read_text())
        scale = formats.E4M3.decode(np.array([[case["six"], case["four"]] for case in cases], np.uint8)).astype(np.float64)
        lost = scale * [case["errors"] for case in cases]
        ties = (lost[:, 0] == lost[:, 1]) & (lost[:, 0] > 0) & (scale[:, 0] != scale[:, 1])
        assert ties.sum() > 2
        assert not any(case["takes_four"] for case, tie in zip(cases, ties) if tie)

    def test_four_over_six_loses_no_more_than_either(self):
        x, block = formats.bf16(np.random.default_rng(3).standard_normal((64, 64))), (1, 16)
        six, four, takes_four = formats.four_over_six(x, block)
        step = formats.largest(x) * formats.INVERSE_1536
        lost = []
        for byte, multiplier, _ in (six, four):
            q = formats.E2M1.decode(formats.E2M1.encode(x * formats.spread(multiplier, block, x.shape)))
            error = np.abs(x - q * formats.spread(formats.E4M3.decode(byte), block, x.shape) * step)
            lost.append(error.reshape(64, 4, 16).sum(axis=2))
        decided = np.abs(lost[0] - lost[1]) > 1e-4 * lost[0]  # by more than the units of errors
        same((lost[1] < lost[0])[decided], takes_four[decided])
        assert 0.2 < takes_four.mean() < 0.8
        same(formats.nvfp4_46(x, block).scales, np.where(takes_four, four[0], six[0]))

    def test_row_scale_cases_are_those_on_file(self):
        assert row_scale_cases.cases() == json.loads(row_scale_cases.FILE.read_text())

    def test_a_row_of_nvfp4_row_is_a_tensor_of_nvfp4_with_a_power_of_two(self):
        x = formats.bf16(np.random.default_rng(5).standard_normal((8, 64)) * np.exp2(np.arange(-80, 80, 20))[:, None])
        rows, columns = formats.nvfp4_row(x, (1, 16)), formats.nvfp4_row(np.ascontiguousarray(x.T), (16, 1))
        same(rows.codes, columns.codes.T)
        same(rows.scales, columns.scales.T)
        for row, line in enumerate(x):
            power = 2.0 ** np.floor(np.log2(2688 / np.abs(line).max()))
            one = formats.nvfp4(line[None], (1, 16), amax=F32(2688 / power))  # whose S is that power
            same(rows.codes[row], one.codes[0])
            same(rows.scales[row], one.scales[0])
            same(rows.values[row], one.values[0] / power)
            assert np.abs(rows.values[row] - line).max() <= np.abs(line).max() / 5  # half of the step from 4 to 6, and a scale's
        same(formats.bf16(rows.values.astype(F32)), rows.values)

    def test_nvfp4_tile(self):
        case = CASES["nvfp4_2d_tile"]
        x = np.stack([floats(row) for row in case["x"]])
        copy = formats.nvfp4(x, (16, 16), amax=number(case["global_amax"])[0])
        same(copy.scales, [[int(case["scale_e4m3"], 16)]])
        same(packed(copy.codes), [as_bytes(row) for row in case["rowwise"]])
        same(packed(copy.codes.T), [as_bytes(row) for row in case["columnwise"]])

    def test_rounding_at_random(self):
        for case in CASES["stochastic_e2m1_software"]:
            for draw, code in case["codes"].items():
                same(formats.e2m1_at_random(number(case["x"]), np.array([int(draw)])), [int(code, 16)])
        x = np.linspace(-6, 6, 97, dtype=F32)
        mean = np.mean([formats.E2M1.decode(formats.e2m1_at_random(x, np.full(97, d))) for d in range(256)], axis=0)
        np.testing.assert_allclose(mean, x, atol=2 / 256)

    def test_rotation(self):
        x = np.random.default_rng(0).standard_normal((48, 3)).astype(F32)
        matrix = np.array([[(-1) ** bin(r & c).count("1") for c in range(16)] for r in range(16)]) / 4
        signs = np.array([-1 if 0xD7E8 & 1 << i else 1 for i in range(16)])
        wanted = np.concatenate([matrix @ (signs[:, None] * x[i: i + 16]) for i in (0, 16, 32)])
        np.testing.assert_allclose(formats.hadamard(x), wanted, atol=1e-6)
        np.testing.assert_allclose(formats.hadamard(x).T @ formats.hadamard(x), x.T @ x, atol=1e-4)


class Draws:
    def test_philox(self):
        """The known answers of Random123."""
        for counter, key, wanted in (
                ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
                ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
                ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1")):
            low, high = (int(word, 16) for word in key.split())
            words = np.array([[int(word, 16) for word in counter.split()]], np.uint32)
            same(draws.philox(words, high << 32 | low)[0], [int(word, 16) for word in wanted.split()])

    def test_hashes(self):
        assert draws.fnv1a64("") == 0xCBF29CE484222325
        assert draws.fnv1a64("foobar") == 0x85944171F73967E8
        assert int(draws.mix64(np.uint64(draws.PHI))) == 0xE220A8397B1DCDAF  # splitmix64's first of seed 0

    def test_bytes_belong_to_elements(self):
        index = np.array([[5, 1 << 40], [21, 5]])
        found = draws.rounding_bytes(7, "layers.0.mlp.up.weight", "row", 3, index)
        assert found[0, 0] == found[1, 1]
        stream = int(draws.mix64(np.uint64(draws.fnv1a64("sr:layers.0.mlp.up.weight:row") + 3)))
        for where, place in np.ndenumerate(index):
            block = int(place) // 16
            counter = [block & 0xFFFFFFFF, block >> 32, stream & 0xFFFFFFFF, stream >> 32]
            random = draws.philox(np.array([counter], np.uint32), 7).astype("<u4").tobytes()
            assert found[where] == random[place % 16]


class Model:
    def test_without_rounding_it_is_the_published_models(self):
        """Compares with PyTorch's loss and gradients, stored by model_goldens.py."""
        for name in ("gpt2", "llama", "mixtral", "switch"):
            golden = json.loads((HERE / "goldens" / f"{name}.json").read_text())
            numbers = np.fromfile(HERE / "goldens" / f"{name}.bin", "<f4").astype(np.float64)
            m, seed, sequences = golden["model"], golden["seed"], golden["training"]["sequences"]
            model = quantized_model.Model(m, small_models.weights_of(m, seed), "exact")
            ids, targets = small_models.batch_of(m, seed, 0, sequences)
            for first in range(sequences):
                part = slice(first, first + 1)
                model.add(ids[part], targets[part], first, sequences)
            assert round(abs(model.loss - golden["loss"]), 12) == 0
            assert sorted(model.gradients) == sorted(t["name"] for t in golden["tensors"])
            for t in golden["tensors"]:
                wanted = numbers[t["offset"]: t["offset"] + int(np.prod(t["shape"]))]
                off = np.linalg.norm(model.gradients[t["name"]].reshape(-1) - wanted)
                size = max(np.linalg.norm(wanted), 1e-3 * golden["grad_norm"])
                assert off <= 1e-7 * size, (name, t["name"])


class Goldens:
    def test_they_are_what_the_oracle_computes(self):
        for name, recipe in goldens.ALL:
            index, wanted = goldens.read(name, recipe)
            assert index["model"] == goldens.MODELS[name]
            assert (index["batch"], index["run_seed"], index["stretch"]) == (goldens.BATCH, goldens.RUN_SEED, goldens.STRETCH[recipe])
            assert index["unsteadiness"] <= goldens.STEADY
            model = goldens.compute(name, recipe, index["seed"])
            assert round(abs(model.loss - index["loss"]), 9) == 0
            assert sorted(model.gradients) == sorted(wanted)
            worst = np.max(list(goldens.errors(model.gradients, wanted).values()))
            assert worst <= 1e-3, (name, recipe)  # they are stored in fp16
            for tensor in index["tensors"]:
                norm = np.linalg.norm(wanted[tensor["name"]])
                assert round(abs(norm / tensor["norm"] - 1), 3) == 0

    def worst(self, name, recipe, spoil):
        index, wanted = goldens.read(name, recipe)
        weights = goldens.weights_of(name, recipe, index["seed"])
        model = quantized_model.Model(goldens.MODELS[name], weights, recipe, goldens.RUN_SEED)
        spoil(model.quantized.q)
        return np.max(list(goldens.errors(goldens.step(model, index["seed"]).gradients, wanted).values()))

    def told_apart(self, name, recipe, what, spoil):
        assert self.worst(name, recipe, spoil) > goldens.GRADIENT_LIMIT, (name, recipe, what)

    def test_a_factor_that_is_not_quantized_shows(self):
        kinds = [f"{factor}_{side}" for factor in ("weight", "activation", "gradient")
                 for side in ("rowwise", "columnwise")]
        for name, recipe in goldens.ALL:
            assert self.worst(name, recipe, lambda q: None) <= 1e-3
            own = low_precision.RECIPES[recipe](0, 0)
            for kind in kinds:
                if isinstance(getattr(own, kind).__self__, low_precision.Exact):
                    continue  # not quantized by this recipe
                self.told_apart(name, recipe, kind, lambda q: setattr(q, kind, as_it_is(q, kind)))

    def test_blocks_of_another_shape_show(self):
        for name, recipe in goldens.ALL:
            own = low_precision.RECIPES[recipe](0, 0)
            if recipe in ("bf16", "fp8_tensor") or isinstance(own, low_precision.Slots):
                continue  # without blocks, or with those of other recipes
            for block in {(1, 32), (32, 32), (128, 128), (16, 16)} - {own.weight}:
                if {block, own.weight} != {(16, 16), (32, 32)} or recipe in ("nvfp4", "nvfp4_46"):  # too alike for a power of two
                    self.told_apart(name, recipe, block, lambda q: setattr(q, "weight", block))
            for block in {(1, 16), (1, 32), (1, 128)} - {own.activation}:
                self.told_apart(name, recipe, block, lambda q: setattr(q, "activation", block))
        for name in goldens.MODELS:
            self.told_apart(name, "mxfp8", "columns of W",
                            lambda q: setattr(q, "weight_columnwise", q.weight_rowwise))

    def test_other_elements_and_scales_of_blocks_show(self):
        for name in goldens.MODELS:
            for role, element in (("weight", formats.E5M2), ("activation", formats.E5M2), ("gradient", formats.E4M3)):
                self.told_apart(name, "fp8_tensor", role, lambda q: setattr(q, role, element))
            self.told_apart(name, "fp8_tensor", "scales", lambda q: setattr(
                q, "activation_rowwise", lambda x: formats.fp8_block(x.astype(F32), (1, 16))))

    def test_a_choice_not_made_shows(self):
        for name in goldens.MODELS:
            self.told_apart(name, "nvfp4_46", "weights", lambda q: setattr(
                q, "weight_rowwise", lambda w: formats.nvfp4(formats.bf16(w), q.weight)))
            self.told_apart(name, "nvfp4_46", "activations", lambda q: setattr(
                q, "activation_rowwise", lambda x: formats.nvfp4(x.astype(F32), q.activation)))

    def test_scales_of_the_tensor_in_place_of_rows_show(self):
        for name in goldens.MODELS:
            for kind in ("activation_rowwise", "activation_columnwise", "gradient_rowwise", "gradient_columnwise"):
                self.told_apart(name, "rows", kind, lambda q: setattr(
                    q, kind, getattr(super(low_precision.Nvfp4Rows, q), kind)))

    def test_other_draws_show(self):
        def drawn(change):
            return lambda q: setattr(q, "drawn", lambda *a: low_precision.Nvfp4.drawn(q, *change(*a)))

        def renumbered(rows, number):
            return low_precision.Rows(rows.count, rows.parts, number)

        spoils = {
            "none": lambda q: setattr(q, "drawn", lambda *a: None),
            "step": lambda q: setattr(q, "step", 0),
            "seed": lambda q: setattr(q, "seed", 1),
            "side": drawn(lambda name, side, dy, rows: (name, {"row": "col", "col": "row"}[side], dy, rows)),
            "weight": drawn(lambda name, side, dy, rows: (name.replace(".weight", ""), side, dy, rows)),
            "rows": drawn(lambda name, side, dy, rows: (name, side, dy, renumbered(rows, np.arange(rows.count)))),
            "micro-batch": drawn(lambda name, side, dy, rows: (
                name, side, dy, renumbered(rows, rows.number - rows.number.min()))),
        }
        for name in goldens.MODELS:
            for what, spoil in spoils.items():
                self.told_apart(name, "nvfp4", what, spoil)


def as_it_is(q, kind):
    """A quantizer's function that skips quantization: its copy has the factor's own values, rotated and scaled alike."""
    quantized = getattr(q, kind)

    def factor(*arguments):
        copy, x = quantized(*arguments), arguments[0 if len(arguments) == 1 else 1]
        rotated = kind in ("activation_columnwise", "gradient_columnwise") and getattr(quantized.__self__, "rotates", False)
        x = formats.hadamard(x.astype(F32)).astype(np.float64) if rotated else x
        if copy.amax is None:
            return formats.Copy(None, None, x)
        return formats.Copy(None, None, x / float(copy.amax * copy.tensor_step), copy.amax, copy.tensor_step)
    return factor
