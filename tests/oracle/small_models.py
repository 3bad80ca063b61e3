"""The weights and texts of small models, computed from formulas, so that nothing random is stored.

Element i of parameter `name` (canonical, row-major) is fp32(offset + scale u), and token i of the text is
floor(V (u + 1) / 2), with u = (bits >> 40) / 2^23 - 1, bits = mix64(fnv1a64(key) + (i + 1) phi) and key "name:seed" or
"tokens:seed".
"""
import math

import numpy as np

from draws import uniform


def has_experts(m, layer):
    """Whether a layer, counted from 0, is a mixture."""
    moe = m["moe"]
    return bool(moe) and layer >= moe.get("first_dense", 0) and (layer + 1) % moe.get("every", 1) == 0


def parameters(m):
    """{canonical name: (shape, offset, scale)} in the order of a forward pass."""
    C, V, T, ffn = m["hidden"], m["vocabulary"], m["seq_len"], m["ffn"]
    q, kv = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
    up, times = ("gate_up", 2) if m["activation"] == "swiglu" else ("up", 1)
    out = {"embed.tokens": ((V, C), 0, 0.5)}
    if m["position"] == "learned":
        out["embed.positions"] = ((T, C), 0, 0.5)

    def norm(name):
        out[name + ".weight"] = ((C,), 1, 0.25)
        if m["bias"] and m["norm"] == "layer":
            out[name + ".bias"] = ((C,), 0, 0.25)

    def linear(name, rows, columns):
        out[name + ".weight"] = ((rows, columns), 0, 0.25)
        if m["bias"]:
            out[name + ".bias"] = ((rows,), 0, 0.25)

    for i in range(m["layers"]):
        layer = f"layers.{i}."
        norm(layer + "norm1")
        linear(layer + "attention.qkv", q + 2 * kv, C)
        linear(layer + "attention.out", C, q)
        norm(layer + "norm2")
        if has_experts(m, i):
            moe = m["moe"]
            E, inner, shared = moe["experts"], moe.get("ffn", ffn), moe.get("shared_ffn", 0)
            out[layer + "moe.router.weight"] = ((E, C), 0, 0.25)
            if moe.get("bias_rate"):
                out[layer + "moe.router.bias"] = ((E,), 0, 0.25)
            if moe.get("balance_over") == "batch":
                out[layer + "moe.router.load"] = ((E,), 1, 0.5)
            out[layer + f"moe.experts.{up}.weight"] = ((E, times * inner, C), 0, 0.25)
            out[layer + "moe.experts.down.weight"] = ((E, C, inner), 0, 0.25)
            if shared:
                out[layer + f"moe.shared.{up}.weight"] = ((times * shared, C), 0, 0.25)
                out[layer + "moe.shared.down.weight"] = ((C, shared), 0, 0.25)
            if moe.get("shared_gate"):
                out[layer + "moe.shared.gate.weight"] = ((1, C), 0, 0.25)
        else:
            linear(layer + f"mlp.{up}", times * ffn, C)
            linear(layer + "mlp.down", C, ffn)
    norm("final_norm")
    if not m["tied_head"]:
        out["head.weight"] = ((V, C), 0, 0.25)
    return out


def weights_of(m, seed):
    """{canonical name: float32 array}"""
    return {name: (offset + scale * uniform(f"{name}:{seed}", math.prod(shape))).astype(np.float32).reshape(shape)
            for name, (shape, offset, scale) in parameters(m).items()}


def stretched(m, weights, channels, inner, residual):
    """Weights with neighbouring numbers of very different magnitudes, so that a wrong block shape shows in the results;
    the model computes nearly the same function. Groups of 32 channels behind a block's norms are multiplied by
    2^channels and 2^-channels in turn, groups of 8 values of attention and of the linear half of swiglu by 2^inner and
    2^-inner; the weights that read them are divided by the same powers. What a branch adds to the residual stream is
    `residual` times as large, which keeps differences from growing."""
    def powers(count, by, exponent):
        return np.exp2(np.where(np.arange(count) // by % 2, -exponent, exponent)).astype(np.float32)

    H, G, D, ffn = m["heads"], m["kv_heads"], m["head_dim"], m["ffn"]
    width, value, half = powers(m["hidden"], 32, channels), powers(D, 8, inner), powers(ffn, 8, inner)
    swiglu = m["activation"] == "swiglu"
    out = {}
    for name, w in weights.items():
        w = w.copy()
        if ".norm" in name:
            w *= width
        if name.endswith(("qkv.weight", "up.weight", "router.weight")):
            w /= width
        if ".attention.qkv." in name:
            w[(H + G) * D:] *= np.tile(value, G).reshape(-1, *[1] * (w.ndim - 1))
        if name.endswith("gate_up.weight"):
            w[..., ffn:, :] *= half[:, None]
        if name.endswith("attention.out.weight"):
            w /= np.tile(value, H)
        if name.endswith("down.weight") and swiglu:
            w /= half
        if ".out." in name or ".down." in name:
            w *= np.float32(residual)
        out[name] = w
    return out


def text_of(m, seed, count, first=0):
    """The tokens [first, first + count) of a seed's text."""
    return np.floor(m["vocabulary"] * (uniform(f"tokens:{seed}", count, first) + 1) / 2).astype(np.int64)


def batch_of(m, seed, step, sequences):
    """(ids, targets), each [sequences, T], of a step (counted from 0); steps read the text in order."""
    T = m["seq_len"]
    text = text_of(m, seed, sequences * T + 1, step * sequences * T)
    return text[:-1].reshape(sequences, T), text[1:].reshape(sequences, T)
