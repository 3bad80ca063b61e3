"""The first loss and every gradient of a dense and an MoE model under a recipe, against what the oracle computed for
the same weights and text (tests/oracle/quantized_goldens.py).

Weights come in as a Hugging Face folder, text as llm.c's tokens. Gradients come out of AdamW's first moment after one
step, which with beta1 = 0 and without clipping is the gradient.
"""
import json
import os
import struct

import h5py
import numpy as np
import pytest

import low_precision
import quantized_goldens as goldens
import runs
import small_models

DECK = """schema_version: 1
run: {name: oracle, seed: SEED, steps: 1, threads: 1}
model: MODEL
data: {kind: tokens, files: [text.bin], shuffle: false}
batch: {global: GLOBAL, micro: MICRO}
precision: PRECISION
reduce: {bucket_mib: 0.05}
optimizer: {lr: 0.001, beta1: 0, weight_decay: 0, clip: 0, warmup_steps: 0, schedule: constant}
checkpoint: {dir: DIR, init_from: weights, io: direct}
"""


def gpt2_folder(m, weights):
    """config.json, and tensors by Hugging Face's names (matrices transposed)."""
    config = dict(model_type="gpt2", n_layer=m["layers"], n_embd=m["hidden"], n_head=m["heads"], n_inner=m["ffn"],
                  n_positions=m["seq_len"], vocab_size=m["vocabulary"], tie_word_embeddings=m["tied_head"])
    names = {"norm1": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "norm2": "ln_2",
             "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    tensors = {"transformer.wte.weight": weights["embed.tokens"], "transformer.wpe.weight": weights["embed.positions"]}
    for part in ("weight", "bias"):
        tensors[f"transformer.ln_f.{part}"] = weights[f"final_norm.{part}"]
        for i in range(m["layers"]):
            for ours, theirs in names.items():
                w = weights[f"layers.{i}.{ours}.{part}"]
                tensors[f"transformer.h.{i}.{theirs}.{part}"] = w.T if w.ndim == 2 else w
    return config, tensors


def mixtral_folder(m, weights):
    config = dict(model_type="mixtral", num_hidden_layers=m["layers"], hidden_size=m["hidden"],
                  num_attention_heads=m["heads"], num_key_value_heads=m["kv_heads"], head_dim=m["head_dim"],
                  intermediate_size=m["ffn"], max_position_embeddings=m["seq_len"], vocab_size=m["vocabulary"],
                  rope_theta=m["rope_base"], tie_word_embeddings=m["tied_head"],
                  num_local_experts=m["moe"]["experts"], num_experts_per_tok=m["moe"]["top_k"])
    tensors = {"model.embed_tokens.weight": weights["embed.tokens"], "model.norm.weight": weights["final_norm.weight"],
               "lm_head.weight": weights["head.weight"]}
    kv = m["kv_heads"] * m["head_dim"]
    for i in range(m["layers"]):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        q, k, v = np.split(weights[ours + "attention.qkv.weight"], [-2 * kv, -kv])
        parts = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v,
                 "self_attn.o_proj": weights[ours + "attention.out.weight"],
                 "input_layernorm": weights[ours + "norm1.weight"],
                 "post_attention_layernorm": weights[ours + "norm2.weight"],
                 "block_sparse_moe.gate": weights[ours + "moe.router.weight"]}
        for e in range(m["moe"]["experts"]):
            gate, up = np.split(weights[ours + "moe.experts.gate_up.weight"][e], 2)
            down = weights[ours + "moe.experts.down.weight"][e]
            expert = f"block_sparse_moe.experts.{e}."
            parts |= {expert + "w1": gate, expert + "w2": down, expert + "w3": up}
        tensors |= {f"{theirs}{name}.weight": w for name, w in parts.items()}
    return config, tensors


def write_safetensors(path, tensors):
    header, place = {}, 0
    for name, w in tensors.items():
        header[name] = dict(dtype="F32", shape=list(w.shape), data_offsets=[place, place + 4 * w.size])
        place += 4 * w.size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for w in tensors.values():
            file.write(np.ascontiguousarray(w, "<f4").tobytes())


def write_tokens(path, tokens):
    """Writes a token file of llm.c's format: a header of 256 words with magic, version, count."""
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    with open(path, "wb") as file:
        file.write(header.tobytes() + tokens.astype("<u2").tobytes())


@pytest.mark.parametrize("recipe", low_precision.RECIPES)
class Oracle(runs.Runs):
    def prepare(self, name, recipe):
        """Weights and text in the test's folder; the golden's index and gradients."""
        index, gradients = goldens.read(name, recipe)
        m, seed = index["model"], index["seed"]
        folder = {"dense": gpt2_folder, "moe": mixtral_folder}[name]
        config, tensors = folder(m, goldens.weights_of(name, recipe, seed))
        os.mkdir(self.path("hf"))
        self.write(os.path.join("hf", "config.json"), json.dumps(config))
        write_safetensors(self.path("hf", "model.safetensors"), tensors)
        self.tool(0, "convert", "hf", "weights")
        tokens = index["batch"]["sequences"] * m["seq_len"] + 1
        write_tokens(self.path("text.bin"), small_models.text_of(m, seed, tokens))
        self.index, self.wanted, self.recipe = index, gradients, recipe

    def deck_of(self, directory, experts):
        index = self.index
        m = dict(index["model"], vocab=index["model"]["vocabulary"])
        del m["vocabulary"]
        if m["moe"]:
            m["moe"] = dict(m["moe"], weights=experts)
        else:
            del m["moe"]
        precision = dict(compute="bf16")
        if self.recipe != "bf16":
            precision |= dict(recipe=low_precision.IN_DECKS.get(self.recipe, self.recipe), primary_weights="bf16")
        values = dict(SEED=index["run_seed"], MODEL=json.dumps(m), GLOBAL=index["batch"]["sequences"],
                      MICRO=index["batch"]["micro"], PRECISION=json.dumps(precision), DIR=directory)
        deck = DECK
        for key, value in values.items():
            deck = deck.replace(key, str(value))
        return self.write(directory + ".yaml", deck)

    def gradients_of(self, directory):
        """{canonical name: array}, experts stacked"""
        found = {}
        with h5py.File(self.path(directory, "step_00000001", "optimizer.h5")) as file:
            for name, data in file["adamw/m"].items():
                canonical = data.attrs.get("canonical", name)
                canonical = canonical.decode() if isinstance(canonical, bytes) else canonical
                found.setdefault(canonical, {})[int(data.attrs.get("expert", -1))] = data[...]
        return {name: parts[-1] if -1 in parts else np.stack([parts[e] for e in sorted(parts)])
                for name, parts in found.items()}

    def compare(self, name, ranks, experts="single"):
        index, wanted = self.index, self.wanted
        directory = f"{name}-{ranks}-{experts}"
        self.train(0, ranks, self.deck_of(directory, experts))
        loss = self.json_lines(directory, "metrics.jsonl")[0]["loss"]
        found = self.gradients_of(directory)
        assert sorted(found) == sorted(wanted)
        off = abs(loss / index["loss"] - 1)
        errors = goldens.errors(found, wanted)
        worst = max(errors, key=errors.get)
        print(f"\n{self.recipe} {directory}: loss off by {off:.1e}, gradients by up to {errors[worst]:.1e} ({worst})",
              flush=True)
        assert off <= goldens.LOSS_LIMIT, (loss, index["loss"])
        assert {} == {name: error for name, error in errors.items() if not error <= goldens.GRADIENT_LIMIT}

    def test_dense(self, recipe):
        self.prepare("dense", recipe)
        self.compare("dense", 1)
        self.compare("dense", 2)

    def test_moe(self, recipe):
        self.prepare("moe", recipe)
        self.compare("moe", 1)
        self.compare("moe", 2, "discrete")
