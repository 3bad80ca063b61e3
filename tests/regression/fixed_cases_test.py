"""Two small decks to the bit: a dense one whose weights are held in bf16 and quantized, under AdamW and Muon, and one of
experts that lie in one tensor or in one each, with an evaluation and a save between two steps.
"""
import itertools
import json
import os
import struct

import held_runs
from held_runs import QUANTIZED, RECIPES

WHOLE = os.environ.get("TESSERA_MATRIX") == "whole"
DENSE = """schema_version: 1
run: {name: fixed, steps: 5, threads: 1}
model: {layers: 2, hidden: 128, heads: 4, ffn: 256, vocab: 128, seq_len: 128, norm: rms, position: rotary, activation: swiglu, bias: false}
data: {kind: tokens, files: [tokens.bin], eval_fraction: 0.1}
batch: {global: 6, micro: 1}
precision: {primary_weights: bf16}
reduce: {bucket_mib: 0.00390625}
optimizer: {lr: 3.0e-5, warmup_steps: 0, clip: 0, muon: {momentum: 0.9, scale: spectral, coefficients: quintic}}
"""
EXPERTS = """schema_version: 1
run: {name: fixed, steps: 4, threads: 1}
model: {layers: 1, hidden: 256, heads: 8, ffn: 256, vocab: 1024, seq_len: 128, norm: rms, position: rotary, activation: swiglu,
        moe: {experts: 2, top_k: 1, balance_coef: 0}}
data: {kind: tokens, files: [tokens.bin], eval_fraction: 0.1}
batch: {global: 4, micro: 2}
eval: {batches: 1}
precision: {primary_weights: bf16}
reduce: {bucket_mib: 0.15625}
optimizer: {lr: 0.001, warmup_steps: 0}
"""
HELD = [("bf16", ()), *((recipe, held) for recipe in ("mxfp8", "nvfp4") for held in ((), (QUANTIZED,)))]


class FixedCases(held_runs.HeldRuns):
    def tokens(self, vocabulary, windows):
        """Writes a token file of llm.c's format (header of 256 words: magic, version, count) with 0 to vocabulary - 1, repeated."""
        count = 128 * windows + 1
        with open(self.path("tokens.bin"), "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
            file.write(struct.pack(f"<{count}H", *(i % vocabulary for i in range(count))))

    def fixed_run(self, name, text, ranks, *sets, code=0, arguments=()):
        trace = self.path(name + ".jsonl")
        settings = [word for setting in (*sets, f"checkpoint.dir={self.path(name)}", "debug.trace=" + trace)
                    for word in ("--set", setting)]
        self.train(code, ranks, self.write("fixed.yaml", text), *settings, *arguments)
        with open(trace) as file:
            return [json.loads(line) for line in file], self.final(name)

    def test_a_dense_deck(self):
        self.tokens(128, 40)
        ranks = itertools.cycle((2, 3, 1))
        for rule, recipes in (("adamw", RECIPES), ("muon", ("mxfp8", "fp8_block", "fp8_tensor", "nvfp4"))):
            for recipe in recipes:
                for count in (1, 2, 3) if WHOLE else (next(ranks),):
                    name, sets = f"{rule}.{recipe}.{count}", ("precision.recipe=" + recipe, "optimizer.matrices=" + rule)
                    off = self.fixed_run(name + ".off", DENSE, count, *sets)
                    self.expect_same(off, self.fixed_run(name + ".on", DENSE, count, *sets, QUANTIZED), name)

    def test_experts_in_one_tensor_or_in_one_each(self):
        self.tokens(1024, 80)
        for number, ((recipe, held), fused) in enumerate(itertools.product(HELD, ("true", "false"))):
            if not WHOLE and number % 4 in (1, 2):
                continue
            sets = ("precision.recipe=" + recipe, *held, "precision.fuse_wgrad=" + fused)
            run = lambda name, layout, *more, **how: self.fixed_run(f"{number}.{name}", EXPERTS, 2, *sets, *more,
                                                                    "model.moe.weights=" + layout, **how)
            single = run("single", "single")
            self.expect_same(single, run("discrete", "discrete"), sets)
            if not WHOLE and number not in (3, 8):
                continue
            self.expect_same(single, run("evaluated", "single", "eval.every_steps=1"), sets)
            for first, then in (("single", "discrete"), ("discrete", "single")):
                name = f"{first}.{then}"
                run(name, first, code=75, arguments=("--stop-at", "1"))
                self.expect_same((single[0][1:], single[1]), run(name, then), (sets, name))
