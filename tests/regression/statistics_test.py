"""precision.statistics_every: the lines of quantization.jsonl are the same on any number of ranks, with every way to hold
weights, sharding and recomputation; they change no bit of a run; and those of weights equal a numpy reading of the masters.
"""
import json
import math
import os
import statistics
import subprocess

import numpy as np
import pytest

import held_runs
import number_formats as nf
import runs
import tessera_io

DECK = """schema_version: 1
run: {name: measured, seed: 5, steps: 4, threads: 1}
model: {layers: 2, MODEL, heads: 2, seq_len: 32, norm: rms, position: rotary}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 6, micro: 1}
eval: {every_steps: 2, batches: 1}
precision: {recipe: RECIPE, statistics_every: 2}
reduce: {bucket_mib: 0.02, order: batch}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, every_steps: 1, keep_last: 10, io: direct}
"""
MODELS = {"dense": "hidden: 64, ffn: 160, activation: gelu, bias: true, tied_head: false",
          "gated": "hidden: 64, ffn: 128, activation: swiglu, tied_head: false",
          "experts": "hidden: 64, ffn: 96, activation: swiglu, tied_head: false, moe: {experts: 4, top_k: 2}",
          "discrete": "hidden: 64, ffn: 96, activation: swiglu, tied_head: false, moe: {experts: 4, top_k: 2, weights: discrete}"}
RECIPES = ("fp8_block", "fp8_tensor", "mxfp8", "mxfp8_2d", "nvfp4", "nvfp4_46", "rows")
BLOCKS = {"fp8_block": (128, 128), "mxfp8_2d": (32, 32), "nvfp4": (16, 16), "nvfp4_46": (16, 16)}


def encoded(x, form, block):
    """(codes, v, decoded values): what a weight's quantizer makes of the bf16 matrix x."""
    if form == "fp8_tensor":
        scale = nf.fp8_block_scale(nf.F32(nf.largest(x)))[0]
        v, element, step = x * scale, nf.E4M3, nf.F32(1) / scale
    elif form == "fp8_block":
        scale, inverse = nf.fp8_block_scale(nf.block_amax(x, block))
        v, element, step = x * nf.spread(scale, block, x.shape), nf.E4M3, nf.spread(inverse, block, x.shape)
    elif form.startswith("mxfp8"):
        scales = nf.e8m0_up(nf.block_amax(x, block) * nf.INVERSE_448)
        v, element = x * nf.spread(nf.e8m0_multiplier(scales), block, x.shape), nf.E4M3
        step = nf.spread(nf.e8m0_decode(scales), block, x.shape)
    elif form == "nvfp4_46":
        amax = nf.F32(nf.largest(x))
        (six, by_six, _), (four, by_four, _), takes_four = nf.four_over_six(x, block, amax)
        scales, multiplier = np.where(takes_four, four, six), np.where(takes_four, by_four, by_six)
        v, element = x * nf.spread(multiplier, block, x.shape), nf.E2M1
        step = nf.spread(nf.E4M3.decode(scales) * amax * nf.INVERSE_1536, block, x.shape)
    else:
        amax = nf.F32(nf.largest(x))
        scales, multiplier = nf.nvfp4_scale(nf.block_amax(x, block), amax)
        v, element = x * nf.spread(multiplier, block, x.shape), nf.E2M1
        step = nf.spread(nf.E4M3.decode(scales) * amax * nf.INVERSE_2688, block, x.shape)
    codes = element.encode(v)
    size = element.table()
    top = np.searchsorted(size, element.largest)
    return codes & ((1 << (element.width - 1)) - 1), v, element.decode(codes) * nf.F32(1) * step, element.largest + (size[top] - size[top - 1]) / 2


def line_of(matrices, form, block):
    """All fields of a weight's line, from its members as stored."""
    parts = [encoded(x, form, block) for x in matrices]
    x, codes, v, q = (np.concatenate([np.ravel(one) for one in all]) for all in
                      (matrices, [p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts]))
    finite = np.isfinite(x)
    there = finite & (x != 0)
    error = (x - q).astype(np.float32)[there].astype(np.float64)
    values = x[there].astype(np.float64)
    exponents = np.maximum(np.frexp(values)[1] - 1, -127)
    top = int(exponents.max())
    counts = np.bincount(np.minimum(top - exponents, 31), minlength=32)
    return {"elements": x.size, "zeros": int((x == 0).sum()), "nan": int(np.isnan(x).sum()), "inf": int(np.isinf(x).sum()),
            "amax": float(np.abs(values).max()), "relative_error": math.sqrt(math.fsum(error**2) / math.fsum(values**2)),
            "saturated": float((np.abs(v[finite]) >= parts[0][3]).sum() / finite.sum()),
            "underflow": float((codes[there] == 0).sum() / there.sum()),
            "log2": {"top": top, "counts": [int(count) for count in counts]}}


class Statistics(runs.Runs):
    def case(self, name, model, recipe, ranks, *settings, steps=0):
        deck = self.write(name + ".yaml", DECK.replace("DIR", self.path(name)).replace("MODEL", MODELS[model])
                          .replace("RECIPE", held_runs.ROWS if recipe == "rows" else recipe))
        words = [word for setting in (f"debug.trace={self.path(name)}.trace", *settings) for word in ("--set", setting)]
        self.train(75 if steps else 0, ranks, deck, *words, *(("--stop-at", str(steps)) if steps else ()))
        return self.read(name, "quantization.jsonl") if os.path.exists(self.path(name, "quantization.jsonl")) else ""

    @pytest.mark.parametrize("recipe", RECIPES)
    def test_ranks(self, recipe):
        for model in MODELS if recipe == "nvfp4" else ("gated", "experts"):
            base = self.case(f"{model}-1", model, recipe, 1)
            lines = [json.loads(line) for line in base.splitlines()]
            assert {line["step"] for line in lines} == {2, 4}
            assert {line["role"] for line in lines} == {"weight", "activation", "gradient"}
            for other, (ranks, settings) in enumerate((
                    (2, ("precision.primary_weights=bf16", "recompute.mode=full")),
                    (3, ("sharding=full", "recompute.mode=selective")),
                    (4, ("sharding=full", "precision.primary_weights=bf16", "proof.gather_overlap=false")))):
                assert self.case(f"{model}-{other}-other", model, recipe, ranks, *settings) == base, (model, ranks, settings)

    def test_they_change_no_bit(self):
        for model, recipe in (("gated", "fp8_block"), ("experts", "nvfp4")):
            self.case("with", model, recipe, 2)
            assert self.case("without", model, recipe, 2, "precision.statistics_every=0") == ""
            assert self.read("with.trace") == self.read("without.trace")
            for folder in ("with", "without"):
                subprocess.run(["rm", "-r", self.path(folder)], check=True)

    def check_weights(self, name):
        run = tessera_io.Run(self.path(name))
        weights = [line for line in run.quantization() if line["role"] == "weight"]
        assert weights
        before = {checkpoint.step: checkpoint for checkpoint in run.checkpoints()}
        for line in weights:
            masters = nf.bf16(np.asarray(before[line["step"] - 1][line["matrix"]]))
            block = BLOCKS.get(line["format"], (1, 32) if line["side"] == "rowwise" else (32, 1))
            wanted = line_of(masters.reshape(-1, *masters.shape[-2:]), line["format"], block)
            for field, value in wanted.items():
                if isinstance(value, float):
                    assert math.isclose(line[field], value, rel_tol=1e-12, abs_tol=0), (line, field, value)
                else:
                    assert line[field] == value, (line, field)

    def test_weights_are_as_numpy_reads_the_masters(self):
        for model, recipe in (("gated", "fp8_block"), ("gated", "fp8_tensor"), ("experts", "mxfp8"), ("gated", "mxfp8_2d"), ("discrete", "nvfp4")):
            name = f"{model}-{recipe}"
            self.case(name, model, recipe, 2)
            self.check_weights(name)

    def test_slots(self):
        """Each copy that is made has a line with its own format, and a slot in bf16 has none."""
        recipe = "{weight: {forward: fp8_block, dgrad: mxfp8}, activation: {forward: mxfp8, wgrad: bf16}, gradient: {dgrad: fp8_tensor_e5m2, wgrad: nvfp4}}"
        layers = "precision.layers=[{modules: [mlp.down], recipe: {weight: {dgrad: mxfp8_2d}}}, {blocks: [\"1\"], modules: [mlp.up], recipe: bf16}]"
        base = self.case("one", "gated", recipe, 1, layers)
        made = {}
        for line in map(json.loads, base.splitlines()):
            made.setdefault(line["matrix"], set()).add((line["role"], line["side"], line["format"]))
        all_slots = {("weight", "rowwise", "fp8_block"), ("weight", "columnwise", "mxfp8"), ("activation", "rowwise", "mxfp8"),
                     ("gradient", "rowwise", "fp8_tensor_e5m2"), ("gradient", "columnwise", "nvfp4_1d")}
        wanted = {f"layers.{i}.{part}.weight": all_slots for i in (0, 1) for part in ("attention.qkv", "attention.out", "mlp.gate_up")}
        wanted |= {f"layers.{i}.mlp.down.weight": {("weight", "columnwise", "mxfp8_2d")} for i in (0, 1)}
        del wanted["layers.1.mlp.gate_up.weight"]
        assert made == wanted
        self.check_weights("one")
        assert self.case("three", "gated", recipe, 3, layers, "sharding=full", "recompute.mode=full") == base

    def test_elements_are_those_of_all_micro_batches(self):
        """6 micro-batches of 32 tokens on 4 ranks, two of which are idle in the second round; experts' gaps do not count."""
        self.case("idle", "experts", "nvfp4", 4, "recompute.mode=full")
        tokens = 6 * 32
        for line in tessera_io.Run(self.path("idle")).quantization():
            if line["role"] == "weight" or line["side"] == "columnwise":
                continue
            width = {"attention.qkv.weight": {"activation": 64, "gradient": 192}, "attention.out.weight": {"activation": 64, "gradient": 64},
                     "experts.gate_up.weight": {"activation": 64, "gradient": 192}, "experts.down.weight": {"activation": 96, "gradient": 64}}
            (of,) = (width[end][line["role"]] for end in width if line["matrix"].endswith(end))
            assert line["elements"] == tokens * (2 if "experts" in line["matrix"] else 1) * of, line

    def test_a_run_in_two_parts(self):
        whole = self.case("whole", "gated", "mxfp8", 1)
        self.case("parts", "gated", "mxfp8", 2, steps=3)
        assert self.case("parts", "gated", "mxfp8", 1) == whole
        self.train(0, 1, self.path("parts.yaml"), "--resume", self.path("parts", "step_00000001"), "--set", "precision.recipe=nvfp4")
        again = [json.loads(line) for line in self.read("parts", "quantization.jsonl").splitlines()]
        assert {(line["step"], line["format"].split("_")[0]) for line in again} == {(2, "nvfp4"), (4, "nvfp4")}
        assert self.read("parts", "abandoned-1_quantization.jsonl") == whole

    def test_readers(self):
        names = []
        for recipe in ("bf16", "nvfp4"):
            for seed in (1, 2):
                names.append(f"{recipe}-{seed}")
                quiet = ("debug.trace=", *(("precision.statistics_every=0",) if recipe == "bf16" else ()))
                self.case(names[-1], "gated", recipe, 1, f"run.seed={seed}", *quiet)
        page = self.read("nvfp4-1", "report.html")
        for part in ("Quantizers in step 4", "gradient: relative error", "layers.0.", "values by magnitude"):
            assert part in page

        def compare(*arguments):
            return subprocess.run([self.tessera, "compare", *arguments], cwd=self.folder, check=True, capture_output=True, text=True).stdout

        both = json.loads(compare("nvfp4-1", "nvfp4-2", "--json"))
        assert both["quantization_step"] == 4
        lines = [line for line in tessera_io.Run(self.path("nvfp4-1")).quantization() if line["step"] == 4 and line["role"] == "gradient"]
        worst = max(lines, key=lambda line: line["relative_error"])
        found = both["runs"][0]["quantization"]["gradient"]["relative_error"]
        assert (found["worst"], found["matrix"]) == (worst["relative_error"], worst["matrix"])
        assert round(abs(found["median"] - statistics.median(line["relative_error"] for line in lines)), 7) == 0
        assert "quantizers in step 4" in compare("nvfp4-1", "nvfp4-2")

        groups = json.loads(compare(*names, "--by", "run.seed", "--json"))
        assert groups["differing"] == ["precision.primary_weights", "precision.recipe", "precision.statistics_every"]
        loss = {name: [row["eval_loss"] for row in tessera_io.Run(self.path(name)).rows() if row.get("eval_loss") is not None][-1] for name in names}
        base, other = groups["groups"]
        assert other["runs"] == names[2:]
        pair = [loss[names[i + 2]] - loss[names[i]] for i in range(2)]
        for estimate, values in ((base["eval_loss"], [loss[name] for name in names[:2]]), (other["eval_loss_less_base"], pair)):
            assert round(abs(estimate["mean"] - statistics.mean(values)), 6) == 0  # metrics are fp32
            assert round(abs(estimate["standard_error"] - (statistics.stdev(values) / math.sqrt(2))), 6) == 0
        assert base["eval_loss_less_base"] is None
        text = compare(*names, "--by", "run.seed", "--out", "seeds.html")
        assert text.splitlines()[0].startswith("precision.primary_weights"), text
        assert 'class="band b1"' in self.read("seeds.html")
        twice = subprocess.run([self.tessera, "compare", names[0], names[0], "--by", "run.seed"], cwd=self.folder, capture_output=True, text=True)
        assert twice.returncode == 2, twice.stderr
        assert "the same run.seed" in twice.stderr

    def test_seeds_apart(self):
        def losses(name, *settings):
            self.case(name, "gated", "nvfp4", 1, "precision.statistics_every=0", *settings)
            return [row["loss"] for row in self.json_lines(name, "metrics.jsonl")]

        plain = losses("plain")
        assert losses("given", "data.seed=5", "precision.seed=5") == plain
        other_data, other_draws, other_weights = losses("data", "data.seed=6"), losses("draws", "precision.seed=6"), losses("weights", "run.seed=6", "data.seed=5", "precision.seed=5")
        assert other_data[0] != plain[0]
        assert other_draws[0] == plain[0]  # the first forward draws nothing
        assert other_draws[1:] != plain[1:]
        assert other_weights[0] != plain[0]
