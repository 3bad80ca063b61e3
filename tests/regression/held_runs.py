"""Small runs in every recipe whose weights are held in bf16 or quantized, which must not differ by a bit."""
import itertools

import runs

RECIPES = ("fp8_block", "fp8_tensor", "mxfp8", "mxfp8_2d", "mxfp6_e3m2_2d", "mxfp4", "mxfp4_2d", "nvfp4", "nvfp4_46")
WHOLE_BLOCKS = ("mxfp8", "mxfp4", "nvfp4_46")  # travel: of two copies neither gives the other, or the errors of blocks choose scales
ROWS = "{base: nvfp4, activation: nvfp4_row, gradient: nvfp4_row}"
DECK = """schema_version: 1
run: {name: held, steps: STEPS, threads: 1}
model: {layers: 2, MODEL, heads: 2, seq_len: 32, norm: rms, activation: swiglu, position: rotary}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 12, micro: 1}
eval: {batches: 1}
precision: {recipe: RECIPE, primary_weights: bf16}
reduce: {bucket_mib: 0.02}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, io: direct}
"""
EXPERTS = "hidden: 64, ffn: 96, tied_head: false, moe: {experts: 4, top_k: 2, weights: %s}"
DEEP = ("hidden: 64, ffn: 96, tied_head: false, moe: {experts: 4, top_k: 2, weights: %s, ffn: 64, first_dense: 1, shared_ffn: 96, shared_gate: true, "
        "scores: sigmoid, groups: 2, top_groups: 1, bias: true, balance_over: batch}")
MODELS = {
    "dense": "hidden: 64, ffn: 128, tied_head: false",
    "odd": "hidden: 96, ffn: 160, tied_head: true",
    "single": EXPERTS % "single",
    "discrete": DEEP % "discrete",
}
CORE = ("step", "loss", "norm", "logits", "gradients", "masters")
QUANTIZED = "precision.primary_weights=quantized"


def ways(recipe):
    """Every legal way to hold weights quantized, as settings; `auto` equals one of them."""
    for wire, cuts, staging in itertools.product(("bf16", "quantized"), ("flat", "tile"), ("alias_grads", "ring")):
        if wire == "quantized" and (staging == "ring" or (recipe in WHOLE_BLOCKS and cuts == "flat")):
            continue
        staged = (f"proof.staging={staging}",) if wire == "bf16" else ()
        yield (f"proof.wire={wire}", f"proof.cuts={cuts}", *staged)


class HeldRuns(runs.Runs):
    def run_of(self, name, recipe, model, ranks, *sets, steps=5, code=0, fault="", arguments=()):
        """The trace of a run, or of the rest of a stopped one, and the digest of its last checkpoint."""
        deck = self.write(name + ".yaml", DECK.replace("STEPS", str(steps)).replace("MODEL", MODELS[model])
                          .replace("RECIPE", recipe).replace("DIR", self.path(name)))
        trace = self.path(name + ".jsonl")
        settings = [word for setting in (*sets, "debug.trace=" + trace) for word in ("--set", setting)]
        self.train(code, ranks, deck, *settings, *arguments, fault=fault)
        return self.traced(trace, fault), self.final(name)

    def expect_same(self, off, on, what):
        assert [row["step"] for row in on[0]] == [row["step"] for row in off[0]], what
        for before, after in zip(off[0], on[0]):
            for key in CORE:
                assert before[key] == after[key], (what, "step", before["step"], key)
            plain = {name: arrays for name, arrays in after["weights"].items() if list(arrays) == ["rowwise"]}
            assert len(plain) > 3
            assert {name: before["weights"][name] for name in plain} == plain, (what, "step", before["step"])
        assert off[1] == on[1], what
        assert off[0][0]["masters"] != off[0][-1]["masters"], "a run that learns nothing shows nothing"
