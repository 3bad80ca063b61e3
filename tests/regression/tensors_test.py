"""debug.tensors: the files of chosen steps are the same on any number of ranks, with every way to hold weights, sharding and
recomputation; they change no bit of a run; products of what they hold are what the run computed, and codes are numpy's.
"""
import os

import h5py
import numpy as np

import number_formats as nf
import runs
import tessera_io

DECK = """schema_version: 1
run: {name: dumped, seed: 5, steps: 3, threads: 1}
model: {layers: 2, MODEL, heads: 2, seq_len: 32, norm: rms, position: rotary}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 6, micro: 1}
eval: {every_steps: 2, batches: 1}
precision: {recipe: RECIPE}
reduce: {bucket_mib: 0.02, order: batch}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, every_steps: 1, keep_last: 10, io: direct}
debug: {tensors: {step: [2], names: ["*"]}}
"""
MODELS = {"dense": "hidden: 64, ffn: 128, activation: gelu, bias: true, tied_head: true",
          "gated": "hidden: 64, ffn: 128, activation: swiglu, tied_head: false",
          "experts": "hidden: 64, ffn: 128, activation: swiglu, tied_head: false, moe: {experts: 4, top_k: 2}",
          "discrete": "hidden: 64, ffn: 128, activation: swiglu, tied_head: false, moe: {experts: 4, top_k: 2, weights: discrete}"}
SLOTS = "{weight: {forward: mxfp8}, activation: {forward: fp8_block, wgrad: nvfp4}, gradient: {wgrad: fp8_tensor_e5m2}}"


class Tensors(runs.Runs):
    def case(self, name, model, recipe, ranks, *settings, code=0, ends=()):
        deck = self.write(name + ".yaml", DECK.replace("DIR", self.path(name)).replace("MODEL", MODELS[model]).replace("RECIPE", recipe))
        return self.train(code, ranks, deck, *(word for setting in settings for word in ("--set", setting)), *ends)

    def bytes_of(self, name, step=2):
        """{name: (type, shape, format, bytes)} of a file."""
        found = {}

        def add(path, item):
            if isinstance(item, h5py.Dataset):
                held = tessera_io._values(item)  # bf16 as bits
                found[path] = (str(held.dtype), item.shape, item.attrs.get("format"), held.tobytes())

        with h5py.File(self.path(name, f"tensors_{step:08}.h5")) as file:
            assert file.attrs["step"] == step
            file.visititems(add)
        return found

    def check_ranks(self, model, recipe):
        self.case("base", model, recipe, 1)
        base = self.bytes_of("base")
        assert base
        for ranks, settings in ((2, ("recompute.mode=full",)), (3, ("sharding=full", "recompute.mode=selective")), (4, ("sharding=full", "proof.gather_overlap=false"))):
            self.case(f"on{ranks}", model, recipe, ranks, *settings)
            other = self.bytes_of(f"on{ranks}")
            assert set(other) == set(base)
            for name, held in base.items():
                assert other[name] == held, (name, ranks)

    def test_ranks_dense(self):
        self.check_ranks("dense", "fp8_block")

    def test_ranks_experts(self):
        self.check_ranks("experts", "nvfp4")

    def test_ranks_slots(self):
        self.check_ranks("discrete", SLOTS)

    def test_they_change_no_bit(self):
        for model, recipe in (("gated", "fp8_block"), ("experts", "nvfp4")):
            self.case("with", model, recipe, 2, f"debug.trace={self.path('with')}.trace", "precision.statistics_every=2")
            self.case("without", model, recipe, 2, f"debug.trace={self.path('without')}.trace", "debug.tensors.step=[]", "precision.statistics_every=2")
            assert not [file for file in os.listdir(self.path("without")) if file.startswith("tensors")]
            assert self.read("with.trace") == self.read("without.trace")
            assert self.read("with", "quantization.jsonl") == self.read("without", "quantization.jsonl")
            for folder in ("with", "without"):
                os.rename(self.path(folder), self.path(folder + model))

    def test_products(self):
        """dW = dy^T x, from masters that the checkpoint before holds."""
        for model in MODELS:
            self.case(model, model, "bf16", 2)
            run = tessera_io.Run(self.path(model))
            tensors, before = run.tensors(2), {step.step: step for step in run.checkpoints()}[1]
            matrices = [name.rsplit("/", 1)[0] for name in tensors if name.endswith("/gradient")]
            assert len(matrices) == 9
            for matrix in matrices:
                assert np.array_equal(tensors[matrix + "/weight"], before[matrix]), matrix
                x, dy, dw = (tensors[matrix + "/" + what].astype(np.float64) for what in ("activation", "gradient", "weight_gradient"))
                if "tied" in MODELS[model].replace("tied_head: false", "") and matrix.startswith("embed"):
                    continue  # the embedding adds to it
                product = np.einsum("bro,bri->oi", dy, x)
                dw = dw.reshape(-1, *dw.shape[-2:]).sum(axis=0)[:product.shape[0]]
                error = np.abs(product[:dw.shape[0]] - dw).max() / np.abs(dw).max()
                assert error < 1e-5, (model, matrix)

    def test_codes(self):
        """Of mxfp8, rowwise, of weights, activations and gradients."""
        self.case("codes", "gated", "mxfp8", 2)
        tensors = tessera_io.Run(self.path("codes")).tensors(2)
        seen = 0
        for name in [name for name in tensors if name.endswith("_rowwise/codes")]:
            matrix, copy, _ = name.rsplit("/", 2)
            role = copy.split("_")[0]
            values = tensors[f"{matrix}/{role}"]
            rows = nf.bf16(np.asarray(values)).reshape(-1, values.shape[-1])
            scales = nf.e8m0_up(nf.block_amax(rows, (1, 32)) * nf.INVERSE_448)
            wanted = nf.E4M3.encode(rows * nf.spread(nf.e8m0_multiplier(scales), (1, 32), rows.shape))
            codes = tensors[name].reshape(-1, tensors[name].shape[-1])
            assert np.array_equal(codes[:rows.shape[0], :rows.shape[1]], wanted), name
            seen += 1
        assert seen == 3 * 8

    def test_codes_of_rows(self):
        """Of nvfp4_row, of activations and gradients: codes, scales and amaxes of both copies, the columnwise one rotated."""
        self.case("rows", "gated", "{base: nvfp4, activation: nvfp4_row, gradient: nvfp4_row, rounding: {gradient: nearest}}", 2)
        tensors = tessera_io.Run(self.path("rows")).tensors(2)
        seen = 0
        for name in [name for name in tensors if name.endswith("/codes") and "/weight" not in name]:
            matrix, copy, _ = name.rsplit("/", 2)
            role, side = copy.split("_")
            for i, x in enumerate(tensors[f"{matrix}/{role}"]):
                values, block = (x, (1, 16)) if side == "rowwise" else (nf.hadamard(x), (16, 1))
                wanted = nf.nvfp4_row(values, block)
                codes, scales = (wanted.codes, wanted.scales) if side == "rowwise" else (wanted.codes.T, wanted.scales.T)
                assert np.array_equal(tensors[name][i], codes[:, 0::2] | codes[:, 1::2] << 4), (name, i)
                stored = tensors[f"{matrix}/{copy}/scales"][i]
                assert np.array_equal(stored[:scales.shape[0], :scales.shape[1]], scales), (name, i)
                assert np.array_equal(tensors[f"{matrix}/{copy}/amax"][i], np.abs(values).max(axis=int(side == "rowwise"))), (name, i)
                seen += 1
        assert seen == 6 * 4 * 8

    def test_a_run_in_two_parts(self):
        steps = "debug.tensors.step=[1,3]"
        self.case("whole", "gated", "mxfp8", 1, steps)
        self.case("parts", "gated", "mxfp8", 2, steps, code=75, ends=("--stop-at", "2"))
        self.case("parts", "gated", "mxfp8", 1, steps)
        for step in (1, 3):
            assert self.bytes_of("parts", step) == self.bytes_of("whole", step)

    def test_chosen_names(self):
        matrix = "layers.1.mlp.down.weight"
        self.case("chosen", "gated", "nvfp4", 2, f'debug.tensors.names=["{matrix}/gradient*", "embed*/weight", "layers.0.attention.out.weight/*amax"]')
        names = set(self.bytes_of("chosen"))
        assert ({name for name in names if name.startswith("layers.1")}
                == {f"{matrix}/gradient"} | {f"{matrix}/gradient_{side}/{part}" for side in ("rowwise", "columnwise") for part in ("codes", "scales", "amax")})
        assert "layers.0.attention.out.weight/activation_columnwise/amax" in names
        assert not [name for name in names if name.endswith("/weight_gradient")]

    def test_a_schedule_names_tensors_of_any_recipe(self):
        self.case("changes", "gated", "bf16", 2, "debug.tensors.step=[2,3]", "precision.schedule=[{from_step: 3, recipe: mxfp8}]",
                  'debug.tensors.names=["*/activation_rowwise/codes"]')
        assert not self.bytes_of("changes", 2)
        assert len(self.bytes_of("changes", 3)) == 8

    def test_refusals(self):
        for settings, said in ((('debug.tensors.names=["*/gradients"]',), '"*/gradients" is the name of no tensor'),
                               (("debug.tensors.names=[]",), "needs debug.tensors.names"),
                               (("debug.tensors.step=[0]",), "debug.tensors.step"),
                               (("parallel.expert=2",), "use parallel.expert 1")):
            _, told = self.case("refused", "experts", "mxfp8", 2, *settings, code=3)
            assert said in told
