"""Writes goldens/quantized/<model>_<recipe>.json and .bin: the first loss and every gradient of a dense and an MoE
model under each recipe, by quantized_model.py, with the seed of weights and text.

    python3 tests/oracle/quantized_goldens.py [MODEL_RECIPE...]        # numpy alone; minutes

The seed is chosen so that goldens do not depend on rounding. A number close to the middle between two codes takes the
other code when a sum before it is rounded otherwise, and all that follows then differs by a quantization error. So the
seed is the first whose gradients change by less than STEADY, relative to their norms, when every sum is added in
another order and every result moves by half a unit in fp32's last place, or by more where a recipe's SHAKE says so.

The .bin holds little-endian fp16: gradients, each divided by its largest magnitude, in the order of `tensors`.
"""
import json
import pathlib
import sys

import numpy as np

import low_precision
import quantized_model
import small_models

HERE = pathlib.Path(__file__).parent / "goldens" / "quantized"
BASE = dict(layers=2, hidden=64, heads=4, head_dim=16, seq_len=32, vocabulary=61, rope_base=10000.0)
MODELS = {
    "dense": dict(BASE, kv_heads=4, ffn=160, norm="layer", position="learned", activation="gelu", bias=True,
                  tied_head=True, moe=None),
    "moe": dict(BASE, kv_heads=2, ffn=32, norm="rms", position="rotary", activation="swiglu", bias=False,
                tied_head=False, moe=dict(experts=4, top_k=2, renormalize=True, balance_coef=0.02, z_coef=0.01)),
}
STRETCH = {recipe: dict(channels=7, inner=5, residual=0.5) for recipe in low_precision.RECIPES}
for with_few_bits in ("nvfp4", "nvfp4_46", "rows", "mxfp4_2d", "six_bits", "weights", "gradients", "mixed"):
    STRETCH[with_few_bits] = dict(channels=2, inner=1, residual=0.5)  # less: few magnitudes a scale
BATCH = dict(sequences=4, micro=2)
RUN_SEED = 1234  # run.seed of the program: the seed of stochastic rounding
STEADY, SHAKES = 5e-3, 24
SHAKE = {recipe: 2.0**-24 for recipe in low_precision.RECIPES}  # largest relative error of a shaken result
SHAKE["fp8_tensor"] = 2.0**-21  # one amax decides all codes of a tensor; at 2^-24 a seed passed that AMX gives other codes
LOSS_LIMIT, GRADIENT_LIMIT = 1e-4, 1e-2  # largest errors of a run: relative to the loss, and to a gradient's norm
GAP = 3e-3  # least difference between the logits of the last expert chosen and the next one


class ShakenProducts(low_precision.Products):
    def __init__(self, products, random):
        super().__init__(products.q, products.sums)
        self.random = random

    def sum(self, a, b):
        order = self.random.permutation(a.shape[1])
        a, b = (np.ascontiguousarray(x[:, order]).astype(np.float32) for x in (a, b))
        return (a @ b.T).astype(np.float64)


class Shaken(quantized_model.Model):
    """The same model with sums in fp32, in a random order, and with relative errors in every number that fp32 cannot
    represent."""

    def __init__(self, shake, m, weights, recipe, run_seed):
        super().__init__(m, weights, recipe, run_seed)
        random = np.random.default_rng(shake)
        rounded = self.round

        def shaken(x):
            error = 1 + random.uniform(-1, 1, x.shape) * SHAKE[recipe]
            return rounded(np.where(x == x.astype(np.float32), x, x * error))

        self.round = shaken
        self.quantized, self.plain = (ShakenProducts(p, random) for p in (self.quantized, self.plain))


def weights_of(name, recipe, seed):
    m = MODELS[name]
    return small_models.stretched(m, small_models.weights_of(m, seed), **STRETCH[recipe])


def step(model, seed):
    """Runs all micro-batches of a model's first step."""
    ids, targets = small_models.batch_of(model.m, seed, 0, BATCH["sequences"])
    for first in range(0, BATCH["sequences"], BATCH["micro"]):
        part = slice(first, first + BATCH["micro"])
        model.add(ids[part], targets[part], first, BATCH["sequences"])
    return model


def compute(name, recipe, seed):
    return step(quantized_model.Model(MODELS[name], weights_of(name, recipe, seed), recipe, RUN_SEED), seed)


def errors(found, wanted):
    """The error of each gradient, relative to its norm."""
    return {name: np.linalg.norm(found[name] - w) / np.linalg.norm(w) for name, w in wanted.items()}


def unsteadiness(model, name, recipe, seed):
    """The largest error of a gradient over SHAKES shaken models; stops at the first above STEADY."""
    worst = 0.0
    for shake in range(SHAKES):
        arguments = MODELS[name], weights_of(name, recipe, seed), recipe, RUN_SEED
        shaken = step(Shaken(shake, *arguments), seed)
        worst = np.max([worst, *errors(shaken.gradients, model.gradients).values()])
        if not worst <= STEADY:
            break
    return worst


def first_steady(name, recipe):
    for seed in range(1000):
        model = compute(name, recipe, seed)
        if model.gap < GAP:
            continue
        worst = unsteadiness(model, name, recipe, seed)
        if worst <= STEADY:
            return seed, model, worst
    raise SystemExit(f"{name}_{recipe}: no seed is steady")


def write(name, recipe):
    seed, model, worst = first_steady(name, recipe)
    index = dict(made_by="tests/oracle/quantized_goldens.py", model=MODELS[name], recipe=recipe, seed=seed,
                 run_seed=RUN_SEED, batch=BATCH, stretch=STRETCH[recipe], loss=model.loss, unsteadiness=worst,
                 tensors=[])
    flat, offset = [], 0
    for tensor, gradient in model.gradients.items():
        largest = float(np.abs(gradient).max())
        index["tensors"].append(dict(name=tensor, shape=list(gradient.shape), offset=offset, largest=largest,
                                     norm=float(np.linalg.norm(gradient))))
        flat.append((gradient / largest).reshape(-1).astype("<f2"))
        offset += gradient.size
    np.concatenate(flat).tofile(HERE / f"{name}_{recipe}.bin")
    (HERE / f"{name}_{recipe}.json").write_text(json.dumps(index, indent=1) + "\n")
    print(f"{name}_{recipe}: seed {seed}, loss {model.loss:.6f}, gap {model.gap:.2e}, shaken {worst:.1e}")


def read(name, recipe):
    """(index, {name: gradient})"""
    index = json.loads((HERE / f"{name}_{recipe}.json").read_text())
    flat = np.fromfile(HERE / f"{name}_{recipe}.bin", "<f2").astype(np.float64)
    gradients = {}
    for tensor in index["tensors"]:
        size = int(np.prod(tensor["shape"]))
        part = flat[tensor["offset"]: tensor["offset"] + size]
        assert part.size == size, (name, recipe, tensor["name"])
        gradients[tensor["name"]] = part.reshape(tensor["shape"]) * tensor["largest"]
    return index, gradients


ALL = [(name, recipe) for name in MODELS for recipe in low_precision.RECIPES]

if __name__ == "__main__":
    HERE.mkdir(parents=True, exist_ok=True)
    for name, recipe in ALL:
        if not sys.argv[1:] or f"{name}_{recipe}" in sys.argv[1:]:
            write(name, recipe)
