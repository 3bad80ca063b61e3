"""One step of every `reduce.wire` equals its definition, made by numpy from the gradients of single micro-batches: each is
rounded to the wire, in blocks counted from the beginning of its matrix, and they are added in fp32 in their order.


A micro-batch's gradient is AdamW's first moment where beta1 is 0. A run of a sequence a step, whose rate is 0, so that its
weights stay, has in its steps the micro-batches of a step of the other runs; its gradients are larger by a power of two.
"""
import h5py
import numpy
import pytest

import draws
import number_formats as formats
import runs

MICRO_BATCHES, SEED = 8, 11
# Sides are no multiples of blocks, so that blocks end with matrices, and gaps follow them.
MODELS = {
    "dense": "hidden: 40, ffn: 72, bias: true, tied_head: true",
    "experts": "hidden: 40, ffn: 72, tied_head: false, moe: {experts: 4, top_k: 2, weights: single}",
}
DECK = """schema_version: 1
run: {name: wire, seed: 5, steps: STEPS, threads: 1}
model: {layers: 2, MODEL, heads: 2, seq_len: 32, norm: rms, activation: swiglu, position: rotary}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: GLOBAL, micro: 1}
precision: {seed: 11}
reduce: {bucket_mib: 0.02, order: batch}
optimizer: {lr: 0, warmup_steps: 0, beta1: 0, clip: 0, weight_decay: 0}
sample: {tokens: 0}
checkpoint: {dir: DIR, every_steps: 1, keep_last: 20, io: direct}
"""


def kind(name):
    """The word of `reduce.keep` that names a parameter; None: none does."""
    words = {"embed": "embedding", "bias": "biases", "norm": "norms", "router": "router"}
    return next((kept for word, kept in words.items() if word in name), None)


def in_blocks(rounded, block):
    """The rounding of each matrix of a stack by itself, in blocks of consecutive elements."""
    def of(stack, name):
        matrices = stack.reshape(len(stack) if stack.ndim == 3 else 1, -1)
        padded = numpy.zeros((len(matrices), -(-matrices.shape[1] // block) * block), numpy.float32)
        padded[:, :matrices.shape[1]] = matrices
        values = rounded(padded.reshape(-1, block), (1, block)).values.astype(numpy.float32)
        return values.reshape(padded.shape)[:, :matrices.shape[1]].reshape(stack.shape)
    return of


def at_random(gradient, name, micro_batch):
    bits = formats.bits(gradient).reshape(-1)
    index = numpy.arange(bits.size, dtype=numpy.uint64)
    with numpy.errstate(over="ignore"):
        stream = draws.mix64(draws.mix64(numpy.uint64(draws.fnv1a64("wire:" + name)) + numpy.uint64(1)) + numpy.uint64(micro_batch))
    blocks = index // numpy.uint64(8)
    counter = numpy.empty((bits.size, 4), numpy.uint32)
    counter[:, 0], counter[:, 1] = blocks & numpy.uint64(0xFFFFFFFF), blocks >> numpy.uint64(32)
    counter[:, 2], counter[:, 3] = int(stream) & 0xFFFFFFFF, int(stream) >> 32
    random = draws.philox(counter, SEED).astype("<u4").view("<u2").reshape(bits.size, 8)
    draw = random[numpy.arange(bits.size), (index % numpy.uint64(8)).astype(int)].astype(numpy.uint32)
    return formats.from_bits((bits + draw) & numpy.uint32(0xFFFF0000)).reshape(gradient.shape)


MXFP8 = in_blocks(formats.mxfp8, 32)
WIRES = {
    "fp32": (("reduce.wire=fp32",), lambda g, name, v: g),
    "bf16": (("reduce.wire=bf16",), lambda g, name, v: formats.bf16(g)),
    "drawn": (("reduce.wire=bf16", "reduce.rounding=stochastic"), at_random),
    "mxfp8": (("reduce.wire=mxfp8",), lambda g, name, v: MXFP8(g, name)),
    "fp8_block": (("reduce.wire=fp8_block",), lambda g, name, v: in_blocks(formats.fp8_block, 128)(g, name)),
    "kept": (("reduce.wire=mxfp8", "reduce.keep=[norms, biases, router, embedding]"), lambda g, name, v: g if kind(name) else MXFP8(g, name)),
}


class WireOracle(runs.Runs):
    def moments(self, name, step):
        found = {}
        with h5py.File(self.path(name, f"step_{step:08}", "optimizer.h5")) as file:
            file["adamw/m"].visititems(lambda path, item: found.update({path: item[:]}) if isinstance(item, h5py.Dataset) else None)
        assert len(found) > 10
        return found

    def run_of(self, name, model, batch, steps, ranks, *settings):
        deck = self.write(name + ".yaml", DECK.replace("STEPS", str(steps)).replace("MODEL", MODELS[model]).replace("GLOBAL", str(batch))
                          .replace("DIR", self.path(name)))
        self.train(0, ranks, deck, *(word for setting in settings for word in ("--set", setting)))

    @pytest.mark.parametrize("wire", WIRES)
    def test_step(self, wire):
        settings, rounded = WIRES[wire]
        for model in MODELS:
            self.run_of("single_" + model, model, 1, MICRO_BATCHES, 1)
            alone = [self.moments("single_" + model, step) for step in range(1, MICRO_BATCHES + 1)]
            # One rank with one micro-batch has nothing to send and nothing to add.
            for ranks, batch, sharding in ((1, 1, "optimizer"), (1, MICRO_BATCHES, "optimizer"), (3, MICRO_BATCHES, "full")):
                gradients = [{name: m / numpy.float32(batch) for name, m in one.items()} for one in alone[:batch]]
                run = f"{model}{ranks}_{batch}"
                self.run_of(run, model, batch, 1, ranks, f"sharding={sharding}", *settings)
                changed = 0
                for name, found in self.moments(run, 1).items():
                    with numpy.errstate(over="ignore", under="ignore"):
                        parts = [rounded(g[name], name, v) for v, g in enumerate(gradients)]
                    total = parts[0]
                    for part in parts[1:]:
                        total = total + part
                    changed += any((p != g[name]).any() for p, g in zip(parts, gradients))
                    assert found.dtype == numpy.float32
                    differ = formats.bits(found) != formats.bits(total)
                    # Zeros of both signs are one number in an Adam moment.
                    differ &= ~((found == 0) & (total == 0)).reshape(differ.shape)
                    assert not differ.any(), (wire, model, ranks, batch, name, int(differ.sum()), found.size)
                assert (changed > 0) == (wire != "fp32")
