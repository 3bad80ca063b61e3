"""Decks drawn at random from what a model, a recipe and an optimizer may be. `validate` and `train` agree on whether a deck
is refused. Where it is not, keys that promise the same bits change none, a resumed run is the one that never stopped, and
what was saved is read by `verify` and `generate`.


Sixteen decks; with TESSERA_MATRIX=whole 400, of which TESSERA_MATRIX_PART=i/n selects every n-th. Failures name the deck's
number, from which all else is drawn.
"""
import os
import random
import subprocess

import runs

COUNT = 400 if os.environ.get("TESSERA_MATRIX") == "whole" else 16
STEPS, SAVED = 6, 3
DECK = """schema_version: 1
run: {name: drawn, steps: %d, threads: 1}
data: {files: ["*.txt"], eval_fraction: 0.1}
eval: {every_steps: 3, batches: 1}
checkpoint: {every_steps: %d}
comm: {timeout_s: 60}
""" % (STEPS, SAVED)
BOTH = ("true", "false")

# Of each: one of the options. Of the second tables: with the chance, one of them.
MODEL = {"layers": (1, 2, 3), "heads": (1, 2, 3, 4), "head_dim": (4, 8, 16, 20, 32), "hidden": (32, 64, 96, 128), "seq_len": (16, 32, 33, 64, 128),
         "norm": ("layer", "rms"), "position": ("learned", "rotary"), "activation": ("gelu", "swiglu"), "tied_head": BOTH}
MORE_OF_MODEL = {"kv_heads": (0.4, (1, 2)), "ffn": (0.3, (32, 100, 128, 256)), "bias": (0.3, BOTH), "qkv_bias": (0.2, BOTH), "qk_norm": (0.3, BOTH)}
ROPE_SCALING = {"rope_scaling.factor": 4, "rope_scaling.original_seq_len": 16}
EXPERTS = {"experts": (1, 2, 3, 4, 8), "top_k": (1, 2, 3), "weights": ("single", "discrete")}
# What recipes can quantize; others are refused.
QUANTIZABLE = {"hidden": (128,), "heads": (2, 4), "head_dim": (32,), "seq_len": (32, 64, 128), "ffn": (128, 256, 384)}
PRECISION = {"recipe": ("bf16", "bf16", "fp8_block", "fp8_tensor", "mxfp8", "mxfp8_2d", "mxfp6_e3m2", "mxfp6_e3m2_2d", "mxfp6_e2m3", "mxfp6_e2m3_2d", "mxfp4", "mxfp4_2d", "nvfp4", "nvfp4_46"), "fuse_wgrad": BOTH}
MORE_OF_BF16 = {"compute": (0.2, ("fp32",))}
MORE_OF_RECIPES = {"quantize_head": (0.5, BOTH), "bf16_first": (0.2, (1,)), "bf16_last": (0.2, (1,)), "primary_weights": (0.3, ("bf16", "quantized"))}
OPTIMIZER = {"matrices": ("adamw", "muon"), "moments": ("fp32", "bf16"), "lr": (1e-3, 3e-4), "schedule": ("cosine", "linear", "constant"),
             "clip": (0, 1, 0.1), "warmup_steps": (0, 2)}
MUON = {"scale": ("spectral", "shape", "rms"), "coefficients": ("quintic", "simple", "polar_express"), "nesterov": BOTH}
SAME_BITS = {"recompute.mode": (0.6, ("none", "selective", "full")), "proof.gather_overlap": (0.5, BOTH), "proof.reduce_overlap": (0.5, BOTH),
             "reduce.bucket_mib": (0.7, (0.01, 0.05, 1)), "proof.wire": (0.2, ("auto", "bf16", "quantized")), "proof.cuts": (0.1, ("flat", "tile")),
             "proof.staging": (0.1, ("auto", "alias_grads", "ring")), "checkpoint.io": (0.5, ("mpio", "direct")), "checkpoint.async": (0.2, BOTH)}


class Draw(random.Random):
    def each(self, table):
        return {key: self.choice(options) for key, options in table.items()}

    def some(self, table):
        return {key: self.choice(options) for key, (chance, options) in table.items() if self.random() < chance}

    def deck(self):
        """Number of ranks, and settings."""
        ranks = self.choice((1, 2, 2, 3, 4))
        precision = self.each(PRECISION)
        quantizes = precision["recipe"] != "bf16"
        precision |= self.some(MORE_OF_RECIPES if quantizes else MORE_OF_BF16)
        model = self.each(MODEL) | self.some(MORE_OF_MODEL)
        if model["position"] == "rotary" and self.random() < 0.2:
            model |= ROPE_SCALING
        micro = self.choice((1, 1, 2, 4))
        if quantizes and self.random() < 0.9:
            model |= self.each(QUANTIZABLE)
            micro *= 128 // model["seq_len"]
        settings = {f"model.{key}": value for key, value in model.items()}
        if self.random() < 0.5:
            experts = self.each(EXPERTS)
            experts["top_k"] = min(experts["top_k"], experts["experts"])
            settings |= {f"model.moe.{key}": value for key, value in experts.items()}
            settings["parallel.expert"] = self.choice([size for size in range(1, ranks + 1) if ranks % size == 0])
        settings |= {f"precision.{key}": value for key, value in precision.items()}
        settings |= {f"optimizer.{key}": value for key, value in self.each(OPTIMIZER).items()}
        if settings["optimizer.matrices"] == "muon":
            settings |= {f"optimizer.muon.{key}": value for key, value in self.each(MUON).items()}
        micro_batches = self.choice((1, 1, 2, 3))
        return ranks, settings | {"batch.micro": micro, "batch.global": micro * ranks * micro_batches,
                                  "sharding": self.choice(("optimizer", "full"))}

    def same_bits(self, ranks, settings):
        """Other settings of keys that promise the same bits."""
        other = self.some(SAME_BITS)
        if "model.moe.experts" in settings:
            other["model.moe.weights"] = self.choice(("single", "discrete"))
        if settings["batch.global"] == settings["batch.micro"] * ranks:
            other["sharding"] = self.choice(("optimizer", "full"))
        return settings | other


class DrawnDecks(runs.Runs):
    def trained(self, name, ranks, settings, *arguments):
        """Whether the deck was trained, in folder `name`; validate and train must agree on that."""
        deck = self.write(name + ".yaml", DECK)
        words = [word for key, value in {**settings, "checkpoint.dir": self.path(name)}.items() for word in ("--set", f"{key}={value}")]
        done = subprocess.run([self.tessera, "validate", deck, "--ranks", str(ranks), *words], capture_output=True, text=True,
                              timeout=runs.PATIENCE, cwd=self.folder)
        assert done.returncode in (0, 3), done.stderr
        self.train(done.returncode, ranks, deck, *words, *arguments)
        return done.returncode == 0

    def expect_same(self, name, as_in):
        assert self.rows(name, STEPS) == self.rows(as_in, STEPS)
        assert self.final(name) == self.final(as_in)

    def try_one(self, number):
        draw = Draw(number)
        ranks, settings = draw.deck()
        whole, other, rest = (f"{number}{part}" for part in ("whole", "other", "rest"))
        if not self.trained(whole, ranks, settings):
            return False
        for loss, *_ in self.rows(whole, STEPS):
            assert loss < 8
        if self.trained(other, ranks, draw.same_bits(ranks, settings)):
            self.expect_same(other, whole)
            self.compared += 1
        assert self.trained(rest, ranks, settings, "--resume", self.path(whole, f"step_{SAVED:08d}"))
        assert self.final(rest) == self.final(whole)
        self.tool(0, "verify", self.path(whole))
        self.run_to_its_end(0, ranks, "generate", self.path(whole), "--prompt", "the ", "--tokens", "8")
        return True

    def test_each(self):
        numbers, ran, self.compared = runs.part_of(range(COUNT)), 0, 0
        for number in numbers:
            with self.subtests.test(number):
                ran += self.try_one(number)
        assert 2 * ran > len(numbers), "most decks were refused"
        assert 2 * self.compared > ran, "most others that must have the same bits were refused"
