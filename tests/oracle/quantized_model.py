"""Loss and gradients of a small GPT, dense or MoE, in numpy: forward and backward by hand, layer by layer.

All numbers are float64. Those that bf16 training stores in bf16 (weights, activations, the residual stream and their
gradients) are rounded to bf16, once each. The matrices of blocks and experts are multiplied by low_precision.py's
rules. Of the rest (sums, statistics, softmax, router) only the sums of matrix products are rounded, to fp32. The recipe
`exact` rounds nothing.
"""
import math

import numpy as np

import low_precision
import number_formats as formats
from low_precision import Rows

NO_TOKEN = 0  # the number of a row that belongs to no token


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def logsumexp(z):
    top = z.max(-1)
    return top + np.log(np.exp(z - top[..., None]).sum(-1))


def gelu(x):
    s = sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x * s, s + x * s * (1 - s) * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


def to_bf16(x):
    return formats.bf16(x).astype(np.float64)


def to_fp32(x):
    return x.astype(np.float32).astype(np.float64)


def unrounded(x):
    return x


class Model:
    """A model and the gradients of one step. `m` as in small_models.py; `weights` {canonical name: array}. Call add()
    for each micro-batch, then read `loss` (a mean), `gradients` and `gap`, the least difference between the logits of
    the last expert chosen and the next one."""

    def __init__(self, m, weights, recipe, seed=0, step=1):
        exact = recipe == "exact"
        self.m = m
        self.round, self.sums = (unrounded, unrounded) if exact else (to_bf16, to_fp32)
        quantizer = low_precision.RECIPES["bf16" if exact else recipe](seed, step)
        self.begin_at = quantizer.rows_begin_at
        self.quantized = low_precision.Products(quantizer, self.sums)
        self.plain = low_precision.Products(low_precision.Exact(), self.sums)
        self.w = {name: self.round(np.asarray(w, np.float64)) for name, w in weights.items()}
        self.gradients = {name: np.zeros(w.shape) for name, w in weights.items()}
        self.loss, self.gap = 0.0, math.inf

    def add(self, ids, targets, first_sequence, sequences_of_batch):
        """Adds a micro-batch: ids, targets [B, T] are the sequences from first_sequence of the global batch."""
        length = ids.shape[1]
        self.batch, self.share = len(ids), 1 / (sequences_of_batch * length)
        self.rows = Rows.dense(first_sequence * length, ids.size)
        x, embedding = self.embed(ids.reshape(-1))
        blocks = []
        for i in range(self.m["layers"]):
            for branch in (self.attention_branch, self.feed_forward_branch):
                y, backward = branch(f"layers.{i}.", x)
                x = self.round(x + y)
                blocks.append(backward)
        dx = self.head(x, targets.reshape(-1))
        for backward in reversed(blocks):
            dx = self.round(dx + backward(dx))
        embedding(dx)

    # Each layer returns its result and its backward pass, a function from the result's gradient to the input's.

    def embed(self, ids):
        x = self.w["embed.tokens"][ids]
        learned = self.m["position"] == "learned"
        if learned:
            x = self.round(x + np.tile(self.w["embed.positions"], (self.batch, 1)))

        def backward(dx):
            np.add.at(self.gradients["embed.tokens"], ids, dx)
            if learned:
                self.gradients["embed.positions"] += dx.reshape(self.batch, -1, dx.shape[1]).sum(0)
        return x, backward

    def norm(self, name, x):
        weight, bias = self.w[name + ".weight"], self.w.get(name + ".bias")
        layer = self.m["norm"] == "layer"
        centered = x - x.mean(-1, keepdims=True) if layer else x
        scale = 1 / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        normal = centered * scale
        y = self.round(normal * weight + (0 if bias is None else bias))

        def backward(dy):
            self.gradients[name + ".weight"] += (dy * normal).sum(0)
            if bias is not None:
                self.gradients[name + ".bias"] += dy.sum(0)
            d = dy * weight
            along = (d * normal).mean(-1, keepdims=True)
            return scale * (d - normal * along - (d.mean(-1, keepdims=True) if layer else 0))
        return y, backward

    def linear(self, name, x, products=None):
        products = products or self.quantized
        weight, bias = name + ".weight", name + ".bias"
        w = self.w[weight][None]
        y = products.forward(x, w, self.rows)[:, :]
        y = self.round(y + self.w[bias] if bias in self.w else y)

        def backward(dy):
            dx, dw = products.backward(weight, dy, x, w, self.rows)
            self.gradients[weight] += dw[0]
            if bias in self.w:
                self.gradients[bias] += dy.sum(0)
            return self.round(dx)
        return y, backward

    def activation(self, pre):
        if self.m["activation"] == "gelu":
            y, slope = gelu(pre)
            return self.round(y), lambda dy: self.round(dy * slope)
        gate, up = np.split(pre, 2, axis=-1)
        s = sigmoid(gate)
        return self.round(gate * s * up), lambda dy: self.round(
            np.concatenate([dy * up * s * (1 + gate * (1 - s)), dy * gate * s], axis=-1))

    def attention_branch(self, layer, x):
        normed, norm = self.norm(layer + "norm1", x)
        qkv, project = self.linear(layer + "attention.qkv", normed)
        mixed, attention = self.attention(qkv)
        y, out = self.linear(layer + "attention.out", mixed)
        return y, lambda dy: norm(project(attention(out(dy))))

    def feed_forward_branch(self, layer, x):
        normed, norm = self.norm(layer + "norm2", x)
        y, inner = self.moe(layer + "moe", normed) if self.m["moe"] else self.mlp(layer + "mlp", normed)
        return y, lambda dy: norm(inner(dy))

    def inner_name(self):
        return "gate_up" if self.m["activation"] == "swiglu" else "up"

    def mlp(self, name, x):
        pre, up = self.linear(f"{name}.{self.inner_name()}", x)
        inner, activation = self.activation(pre)
        y, down = self.linear(name + ".down", inner)
        return y, lambda dy: up(activation(down(dy)))

    def rotate(self, x, direction):
        """x [B, heads, T, D]; pairs (j, j + D/2)."""
        length, d = x.shape[-2:]
        angle = np.arange(length)[:, None] * self.m["rope_base"] ** (-2.0 * np.arange(d // 2) / d) * direction
        cos, sin = self.sums(np.cos(angle)), self.sums(np.sin(angle))
        a, b = np.split(x, 2, axis=-1)
        return self.round(np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1))

    def heads_of(self, x, heads):
        return x.reshape(self.batch, -1, heads, self.m["head_dim"]).transpose(0, 2, 1, 3)

    def attention(self, qkv):
        """qkv [M, (H + 2G) D] -> [M, H D]. Exponentials are rounded before they multiply, and not their sum."""
        h, g, d = self.m["heads"], self.m["kv_heads"], self.m["head_dim"]
        rotary, scale = self.m["position"] == "rotary", 1 / math.sqrt(d)
        q, k, v = (self.heads_of(part, n) for part, n in
                   zip(np.split(qkv, [h * d, (h + g) * d], axis=1), (h, g, g)))
        if rotary:
            q, k = self.rotate(q, 1), self.rotate(k, 1)
        keys, values = np.repeat(k, h // g, axis=1), np.repeat(v, h // g, axis=1)
        length = q.shape[2]
        seen = np.tril(np.ones((length, length), bool))
        scores = np.where(seen, self.sums(q @ keys.swapaxes(-1, -2)) * scale, -np.inf)
        lse = logsumexp(scores)[..., None]
        top = scores.max(-1, keepdims=True)
        out = self.round(self.round(np.exp(scores - top)) @ values / np.exp(lse - top))

        def of_groups(x):
            return x.reshape(self.batch, g, h // g, length, d).sum(2)

        def backward(dy):
            dy = self.heads_of(dy, h)
            p = np.exp(scores - lse)
            dp = dy @ values.swapaxes(-1, -2)
            ds = self.round(p * (dp - (dy * out).sum(-1, keepdims=True)))
            dq = self.round(scale * (ds @ keys))
            dk = self.round(scale * of_groups(ds.swapaxes(-1, -2) @ q))
            dv = self.round(of_groups(self.round(p).swapaxes(-1, -2) @ dy))
            if rotary:
                dq, dk = self.rotate(dq, -1), self.rotate(dk, -1)
            return np.concatenate([self.tokens_of(part) for part in (dq, dk, dv)], axis=1)
        return self.tokens_of(out), backward

    def tokens_of(self, x):
        return x.transpose(0, 2, 1, 3).reshape(self.batch * x.shape[2], -1)

    def route(self, logits):
        """(probabilities [M, E], chosen experts [M, k], their weights [M, k])"""
        moe = self.m["moe"]
        p = softmax(logits)
        order = np.argsort(-p, axis=1, kind="stable")
        chosen = order[:, : moe["top_k"]]
        if moe["top_k"] < moe["experts"]:
            ranked = np.take_along_axis(logits, order, 1)
            self.gap = min(self.gap, (ranked[:, moe["top_k"] - 1] - ranked[:, moe["top_k"]]).min())
        weight = np.take_along_axis(p, chosen, 1)
        return p, chosen, weight / weight.sum(1, keepdims=True) if moe["renormalize"] else weight

    def rows_of_experts(self, chosen):
        """Rows of the permuted order, and the row of each slot [M, k]: sorted by expert, then token."""
        tokens, k = chosen.shape
        order = np.argsort(chosen.reshape(-1), kind="stable")
        row_of_slot = np.empty(tokens * k, np.int64)
        parts, number, first, done = [], [], 0, 0
        for count in np.bincount(chosen.reshape(-1), minlength=self.m["moe"]["experts"]):
            padded = -(-count // self.begin_at) * self.begin_at
            slots = order[done: done + count]
            row_of_slot[slots] = first + np.arange(count)
            number += [self.rows.number[0] * k + slots, np.full(padded - count, NO_TOKEN)]
            parts.append((first, first + count))
            first, done = first + padded, done + count
        return Rows(first, tuple(parts), np.concatenate(number)), row_of_slot.reshape(tokens, k)

    def expert_projection(self, name, x, rows):
        w = self.w[name]

        def backward(dy):
            dx, dw = self.quantized.backward(name, dy, x, w, rows)
            self.gradients[name] += dw
            return self.round(dx)
        return self.round(self.quantized.forward(x, w, rows)), backward

    def moe(self, name, x):
        router = self.w[name + ".router.weight"]
        logits = self.sums(x @ router.T)
        p, chosen, weight = self.route(logits)
        rows, row_of_slot = self.rows_of_experts(chosen)
        asked = np.zeros((rows.count, x.shape[1]))
        asked[row_of_slot] = x[:, None]
        pre, up = self.expert_projection(f"{name}.experts.{self.inner_name()}.weight", asked, rows)
        inner, activation = self.activation(pre)
        answers, down = self.expert_projection(name + ".experts.down.weight", inner, rows)
        y = self.round((weight[..., None] * answers[row_of_slot]).sum(1))

        def backward(dy):
            danswers = np.zeros_like(answers)
            danswers[row_of_slot] = self.round(weight[..., None] * dy[:, None])
            dweight = (dy[:, None] * answers[row_of_slot]).sum(-1)
            dx = self.round(up(activation(down(danswers)))[row_of_slot].sum(1))
            dlogits = self.route_backward(logits, p, chosen, weight, dweight)
            self.gradients[name + ".router.weight"] += dlogits.T @ x
            return self.round(dx + dlogits @ router)
        return y, backward

    def route_backward(self, logits, p, chosen, weight, dweight):
        """Of the weights, and of both auxiliary losses, in which the shares of slots are constants."""
        moe = self.m["moe"]
        experts, k, length = moe["experts"], moe["top_k"], self.m["seq_len"]
        dp = np.zeros_like(p)
        if moe["renormalize"]:
            total = np.take_along_axis(p, chosen, 1).sum(1, keepdims=True)
            dweight = (dweight - (dweight * weight).sum(1, keepdims=True)) / total
        np.put_along_axis(dp, chosen, dweight, 1)
        slots = np.eye(experts)[chosen.reshape(self.batch, -1)].sum(1) / (length * k)
        balance = moe["balance_coef"] * self.share * experts * slots
        dp += np.repeat(balance, length, axis=0)
        z = 2 * moe["z_coef"] * self.share * logsumexp(logits)[:, None]
        return p * (dp - (dp * p).sum(1, keepdims=True) + z)

    def head(self, x, targets):
        """Adds to the loss; returns the gradient of the stream."""
        normed, norm = self.norm("final_norm", x)
        name = "embed.tokens" if self.m["tied_head"] else "head.weight"
        w = self.w[name][None]
        logits = self.round(self.plain.forward(normed, w, self.rows))
        of_targets = np.arange(len(targets)), targets
        self.loss += (logsumexp(logits) - logits[of_targets]).sum() * self.share
        d = softmax(logits)
        d[of_targets] -= 1
        dx, dw = self.plain.backward(name, self.round(d * self.share), normed, w, self.rows)
        self.gradients[name] += dw[0]
        return self.round(norm(self.round(dx)))
