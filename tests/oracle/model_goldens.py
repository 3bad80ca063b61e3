"""Writes goldens/<model>.json and .bin: loss, auxiliary losses, logits, every gradient and ten training losses of small
models, from PyTorch in float64, by the models' published formulas. Before anything is written, all models but `switch`
and `capacity` are also compared with the implementations in transformers.

    python tests/oracle/model_goldens.py [MODEL...]

Weights and texts are not stored: small_models.py computes them from formulas. The .bin holds little-endian fp32:
gradients in the order of `tensors`, then `logits`.
"""
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

import small_models

GAP = 1e-4  # no routing decision may be closer: another rounding would flip it
HERE = pathlib.Path(__file__).parent / "goldens"

SMALL = dict(layers=2, hidden=32, heads=4, kv_heads=4, head_dim=8, seq_len=16, vocabulary=61, rope_base=10000.0)
MODELS = {
    "gpt2": dict(SMALL, ffn=64, norm="layer", position="learned", activation="gelu", bias=True, tied_head=True,
                 moe=None),
    "llama": dict(SMALL, kv_heads=2, ffn=48, norm="rms", position="rotary", activation="swiglu", bias=False,
                  tied_head=False, moe=None),
    "mixtral": dict(SMALL, kv_heads=2, ffn=16, norm="rms", position="rotary", activation="swiglu", bias=False,
                    tied_head=False, rope_base=1000.0,
                    moe=dict(experts=8, top_k=2, renormalize=True, balance_coef=0.02, z_coef=0.01)),
    "switch": dict(SMALL, ffn=32, norm="layer", position="learned", activation="gelu", bias=True, tied_head=False,
                   moe=dict(experts=4, top_k=1, renormalize=False, balance_coef=0.05, z_coef=0.002)),
    "glm4_moe": dict(SMALL, layers=3, kv_heads=2, ffn=24, norm="rms", position="rotary", activation="swiglu", bias=False,
                     tied_head=False,
                     moe=dict(experts=8, top_k=2, renormalize=True, balance_coef=0.02, z_coef=0.01, ffn=16, first_dense=1,
                              shared_ffn=32, scores="sigmoid", scale=0.4, groups=4, top_groups=2, bias_rate=0.01)),
    "qwen2_moe": dict(SMALL, kv_heads=2, ffn=24, norm="rms", position="rotary", activation="swiglu", bias=False,
                      tied_head=False,
                      moe=dict(experts=6, top_k=2, renormalize=False, balance_coef=0.02, z_coef=0.01, ffn=16, every=2,
                               shared_ffn=20, shared_gate=True, balance_over="batch")),
    "capacity": dict(SMALL, kv_heads=2, ffn=16, norm="rms", position="rotary", activation="swiglu", bias=False,
                     tied_head=False,
                     moe=dict(experts=4, top_k=2, renormalize=True, balance_coef=0.02, z_coef=0.01, shared_ffn=12,
                              capacity=0.75)),
}
TRAINING = dict(sequences=4, steps=10, lr=4e-3, min_lr=4e-4, warmup_steps=3, beta1=0.9, beta2=0.95, eps=1e-8,
                weight_decay=0.1, clip=2.1)


def initial(m, seed, dtype):
    return {name: torch.tensor(values).to(dtype).requires_grad_()
            for name, values in small_models.weights_of(m, seed).items()}


def batch(m, seed, step, sequences):
    return tuple(torch.tensor(part) for part in small_models.batch_of(m, seed, step, sequences))


class Model:
    """The forward pass; autograd does everything else."""

    def __init__(self, m, weights):
        self.m, self.w = m, weights
        self.gap, self.balance, self.z, self.dropped = math.inf, 0, 0, 0
        self.counts = {}  # slots of each expert, by the name of its bias or load

    def norm(self, name, x):
        w = self.w[name + ".weight"]
        if self.m["norm"] == "rms":
            return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w
        return F.layer_norm(x, w.shape, w, self.w.get(name + ".bias"), 1e-5)

    def linear(self, name, x):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def rotate(self, x):
        """x [B, heads, T, D]; pairs (j, j + D/2). Angles in float64, rounded once."""
        T, D = x.shape[-2:]
        frequency = self.m["rope_base"] ** (-2.0 * torch.arange(D // 2, dtype=torch.float64) / D)
        angle = torch.arange(T, dtype=torch.float64)[:, None] * frequency
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., : D // 2], x[..., D // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, name, x):
        B, T, _ = x.shape
        H, G, D = self.m["heads"], self.m["kv_heads"], self.m["head_dim"]
        q, k, v = self.linear(name + ".qkv", x).split([H * D, G * D, G * D], -1)
        q, k, v = (t.reshape(B, T, -1, D).transpose(1, 2) for t in (q, k, v))
        if self.m["position"] == "rotary":
            q, k = self.rotate(q), self.rotate(k)
        k, v = (t.repeat_interleave(H // G, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(D)
        scores = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -math.inf)
        return self.linear(name + ".out", (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, H * D))

    def activation(self, x):
        if self.m["activation"] == "gelu":
            return F.gelu(x, approximate="tanh")
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def chosen(self, choice):
        """0 or 1 for each expert, from scores plus bias [B, T, E]: the top_k of the top_groups groups whose two best sum
        highest. Keeps the smallest distance of a decision."""
        moe = self.m["moe"]
        E, k, G = moe["experts"], moe["top_k"], moe.get("groups", 1)
        if G > 1:
            best = choice.unflatten(-1, (G, E // G)).topk(2, -1).values.sum(-1)
            stays = self.highest(best, moe["top_groups"]).repeat_interleave(E // G, -1)
            choice = choice.masked_fill(stays == 0, -math.inf)
        return self.highest(choice, k)

    def taken(self, chosen):
        """0 or 1 for each slot [B, T, E]: of a sequence an expert takes its first ceil(capacity T k / E)."""
        moe = self.m["moe"]
        if not moe.get("capacity"):
            return 1
        most = math.ceil(moe["capacity"] * chosen.shape[1] * moe["top_k"] / moe["experts"])
        taken = (chosen.cumsum(1) <= most).to(chosen.dtype)
        self.dropped += (chosen * (1 - taken)).sum().item()
        return taken

    def highest(self, values, k):
        top = values.topk(min(k + 1, values.shape[-1]), -1)
        if k < values.shape[-1]:
            self.gap = min(self.gap, (top.values[..., k - 1] - top.values[..., k]).min().item())
        return F.one_hot(top.indices[..., :k], values.shape[-1]).sum(-2).to(values.dtype)

    def feed_forward(self, x, inner, down):
        return F.linear(self.activation(F.linear(x, self.w[inner])), self.w[down])

    def moe(self, name, x):
        moe, up = self.m["moe"], "gate_up" if self.m["activation"] == "swiglu" else "up"
        E, k = moe["experts"], moe["top_k"]
        logits = F.linear(x, self.w[name + ".router.weight"])
        sigmoid = moe.get("scores") == "sigmoid"
        score = logits.sigmoid() if sigmoid else logits.softmax(-1)
        bias = self.w.get(name + ".router.bias")
        chosen = self.chosen((score if bias is None else score + bias).detach())  # [B,T,E]
        weight = score * chosen
        if moe["renormalize"]:
            weight = weight / weight.sum(-1, keepdim=True)
        weight = weight * moe.get("scale", 1) * self.taken(chosen)
        inner = self.activation(torch.einsum("btc,efc->btef", x, self.w[f"{name}.experts.{up}.weight"]))
        out = torch.einsum("btef,ecf->btec", inner, self.w[f"{name}.experts.down.weight"])
        load = self.w.get(name + ".router.load")  # of the step before
        f = chosen.mean(1) / k if load is None else (load / load.sum()).detach()  # share of the slots
        q = score / score.sum(-1, keepdim=True) if sigmoid else score
        self.balance = self.balance + E * (f * q.mean(1)).sum()
        self.z = self.z + (logits.logsumexp(-1) ** 2).sum()
        for counted in (".router.bias", ".router.load"):
            if name + counted in self.w:
                self.counts[name + counted] = chosen.sum((0, 1))
        y = (weight[..., None] * out).sum(-2)
        if not moe.get("shared_ffn"):
            return y
        shared = self.feed_forward(x, f"{name}.shared.{up}.weight", f"{name}.shared.down.weight")
        if moe.get("shared_gate"):
            shared = shared * F.linear(x, self.w[name + ".shared.gate.weight"]).sigmoid()
        return y + shared

    def logits(self, ids):
        x = self.w["embed.tokens"][ids]
        if self.m["position"] == "learned":
            x = x + self.w["embed.positions"]
        for i in range(self.m["layers"]):
            layer = f"layers.{i}."
            x = x + self.attention(layer + "attention", self.norm(layer + "norm1", x))
            h = self.norm(layer + "norm2", x)
            if small_models.has_experts(self.m, i):
                x = x + self.moe(layer + "moe", h)
            else:
                x = x + self.linear(layer + "mlp.down", self.activation(self.linear(
                    layer + ("mlp.gate_up" if self.m["activation"] == "swiglu" else "mlp.up"), h)))
        head = self.w["embed.tokens"] if self.m["tied_head"] else self.w["head.weight"]
        return F.linear(self.norm("final_norm", x), head)


def scalar(x):
    return x.item() if isinstance(x, torch.Tensor) else float(x)


def gradients(m, weights, ids, targets):
    """One backward pass; returns what a step knows of it."""
    for w in weights.values():
        w.grad = None
    model = Model(m, weights)
    logits = model.logits(ids)
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    total = loss
    if m["moe"]:
        total = loss + m["moe"]["balance_coef"] * model.balance / ids.shape[0]
        total = total + m["moe"]["z_coef"] * model.z / ids.numel()
    total.backward()
    for name, counts in model.counts.items():  # in the place of a gradient, and in no norm
        weights[name].grad = counts
    norm = math.sqrt(sum((w.grad.double() ** 2).sum().item() for name, w in weights.items() if name not in model.counts))
    return dict(logits=logits.detach(), loss=loss.item(), balance=scalar(model.balance),
                z=scalar(model.z), norm=norm,
                gap=model.gap, dropped=model.dropped)


def decays(name):
    return "norm" not in name and not name.endswith((".bias", ".shared.gate.weight")) and "router" not in name


def rate(t, s):
    if s <= t["warmup_steps"]:
        return t["lr"] * s / t["warmup_steps"]
    q = (s - t["warmup_steps"]) / (t["steps"] - t["warmup_steps"])
    return t["min_lr"] + (t["lr"] - t["min_lr"]) * (1 + math.cos(math.pi * q)) / 2


def train(m, seed, dtype):
    t, weights = TRAINING, initial(m, seed, dtype)
    m1 = {n: torch.zeros_like(w) for n, w in weights.items()}
    m2 = {n: torch.zeros_like(w) for n, w in weights.items()}
    losses, norms, gap = [], [], math.inf
    for s in range(1, t["steps"] + 1):
        step = gradients(m, weights, *batch(m, seed, s - 1, t["sequences"]))
        losses.append(step["loss"])
        norms.append(step["norm"])
        gap = min(gap, step["gap"])
        clip = min(1.0, t["clip"] / (step["norm"] + 1e-6))
        lr = rate(t, s)
        with torch.no_grad():
            for name, w in weights.items():
                if name.endswith("router.load"):
                    w.copy_(w.grad)
                    continue
                if name.endswith("router.bias"):
                    w += m["moe"]["bias_rate"] * torch.sign(w.grad.mean() - w.grad)
                    continue
                g = w.grad * clip
                m1[name].mul_(t["beta1"]).add_(g, alpha=1 - t["beta1"])
                m2[name].mul_(t["beta2"]).add_(g * g, alpha=1 - t["beta2"])
                update = m1[name] / (1 - t["beta1"] ** s) / ((m2[name] / (1 - t["beta2"] ** s)).sqrt() + t["eps"])
                w -= lr * (update + (t["weight_decay"] if decays(name) else 0) * w)
    return losses, norms, gap


def gpt2_elsewhere(tf, m, weights):
    net = tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=m["vocabulary"], n_positions=m["seq_len"], n_embd=m["hidden"],
                                           n_layer=m["layers"], n_head=m["heads"], n_inner=m["ffn"]))
    names = {"norm1": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "norm2": "ln_2",
             "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    state = {"transformer.wte.weight": weights["embed.tokens"], "transformer.wpe.weight": weights["embed.positions"],
             "transformer.ln_f.weight": weights["final_norm.weight"],
             "transformer.ln_f.bias": weights["final_norm.bias"],
             "lm_head.weight": weights["embed.tokens"]}
    for i in range(m["layers"]):
        for ours, theirs in names.items():
            for part in ("weight", "bias"):
                w = weights[f"layers.{i}.{ours}.{part}"]
                state[f"transformer.h.{i}.{theirs}.{part}"] = w.T if w.dim() == 2 else w
    return net, state


def llama_elsewhere(tf, m, weights):
    """Llama, and mixtures, which differ in their feed-forward layers."""
    sizes = dict(vocab_size=m["vocabulary"], hidden_size=m["hidden"], intermediate_size=m["ffn"], rms_norm_eps=1e-5,
                 num_hidden_layers=m["layers"], num_attention_heads=m["heads"], num_key_value_heads=m["kv_heads"],
                 max_position_embeddings=m["seq_len"], tie_word_embeddings=False,
                 experts_implementation="eager", rope_parameters=dict(rope_type="default", rope_theta=m["rope_base"]))
    moe = m["moe"]
    if moe and "shared_ffn" in moe:
        sizes |= dict(head_dim=m["head_dim"], num_experts_per_tok=moe["top_k"], moe_intermediate_size=moe["ffn"],
                      norm_topk_prob=moe["renormalize"])
    if moe and moe.get("scores") == "sigmoid":
        sizes["rope_parameters"]["partial_rotary_factor"] = 1.0
        net = tf.Glm4MoeForCausalLM(tf.Glm4MoeConfig(
            **sizes, n_routed_experts=moe["experts"], n_shared_experts=moe["shared_ffn"] // moe["ffn"], n_group=moe["groups"],
            topk_group=moe["top_groups"], first_k_dense_replace=moe["first_dense"], routed_scaling_factor=moe["scale"],
            use_qk_norm=False, attention_bias=False))
    elif moe and moe.get("shared_gate"):
        net = tf.Qwen2MoeForCausalLM(tf.Qwen2MoeConfig(
            **sizes, num_experts=moe["experts"], shared_expert_intermediate_size=moe["shared_ffn"],
            decoder_sparse_step=moe["every"], qkv_bias=False))
    elif moe:
        net = tf.MixtralForCausalLM(tf.MixtralConfig(**sizes, num_local_experts=m["moe"]["experts"],
                                                     num_experts_per_tok=m["moe"]["top_k"]))
    else:
        net = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes))
    q, kv = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
    state = {"model.embed_tokens.weight": weights["embed.tokens"], "model.norm.weight": weights["final_norm.weight"],
             "lm_head.weight": weights["head.weight"]}
    for i in range(m["layers"]):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        qkv = weights[ours + "attention.qkv.weight"].split([q, kv, kv])
        state |= {theirs + f"self_attn.{n}_proj.weight": w for n, w in zip("qkv", qkv)}
        state |= {theirs + "self_attn.o_proj.weight": weights[ours + "attention.out.weight"],
                  theirs + "input_layernorm.weight": weights[ours + "norm1.weight"],
                  theirs + "post_attention_layernorm.weight": weights[ours + "norm2.weight"]}
        if small_models.has_experts(m, i):
            state |= {theirs + "mlp.gate.weight": weights[ours + "moe.router.weight"],
                      theirs + "mlp.experts.gate_up_proj": weights[ours + "moe.experts.gate_up.weight"],
                      theirs + "mlp.experts.down_proj": weights[ours + "moe.experts.down.weight"]}
            shared = "mlp.shared_expert." if moe.get("shared_gate") else "mlp.shared_experts."
            if moe.get("shared_ffn"):
                gate, up = weights[ours + "moe.shared.gate_up.weight"].chunk(2)
                state |= {theirs + shared + "gate_proj.weight": gate, theirs + shared + "up_proj.weight": up,
                          theirs + shared + "down_proj.weight": weights[ours + "moe.shared.down.weight"]}
            for name, other in (("router.bias", "mlp.gate.e_score_correction_bias"),
                                ("shared.gate.weight", "mlp.shared_expert_gate.weight")):
                if ours + "moe." + name in weights:
                    state[theirs + other] = weights[ours + "moe." + name]
        else:
            gate, up = weights[ours + "mlp.gate_up.weight"].chunk(2)
            state |= {theirs + "mlp.gate_proj.weight": gate, theirs + "mlp.up_proj.weight": up,
                      theirs + "mlp.down_proj.weight": weights[ours + "mlp.down.weight"]}
    return net, state


ELSEWHERE = {"gpt2": gpt2_elsewhere, "llama": llama_elsewhere, "mixtral": llama_elsewhere, "glm4_moe": llama_elsewhere,
             "qwen2_moe": llama_elsewhere}


def check_elsewhere(name, m, weights, ids, logits):
    """Compares the logits with transformers' model of the same kind: its Switch is an encoder-decoder, and none of its
    mixtures has a capacity by sequence."""
    if name not in ELSEWHERE:
        return
    import transformers
    net, state = ELSEWHERE[name](transformers, m, weights)
    net = net.double().eval()
    net.load_state_dict({k: v.detach() for k, v in state.items()})
    with torch.no_grad():
        difference = relative(net(ids).logits, logits)
    print(f"{name}: transformers {transformers.__version__} differs by {difference:.1e}")
    assert difference < 1e-6  # its rotary angles are in float32


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def write(name):
    m = MODELS[name]
    seed = next(s for s in range(1000) if train(m, s, torch.float64)[2] > GAP)
    weights = initial(m, seed, torch.float64)
    ids, targets = batch(m, seed, 0, TRAINING["sequences"])
    step = gradients(m, weights, ids, targets)
    losses, norms, gap = train(m, seed, torch.float64)
    assert gap > GAP and step["gap"] > GAP
    assert (step["dropped"] > 0) == bool(m["moe"] and m["moe"].get("capacity"))
    check_elsewhere(name, m, weights, ids, step["logits"])

    single = initial(m, seed, torch.float32)
    noise = gradients(m, single, ids, targets)
    worst = max((single[n].grad.double() - w.grad).norm().item() / max(w.grad.norm().item(), 1e-3 * step["norm"])
                for n, w in weights.items() if not n.endswith(("router.bias", "router.load")))
    single_losses = train(m, seed, torch.float32)[0]
    drift = max(abs(a - b) / b for a, b in zip(single_losses, losses))
    print(f"{name}: seed {seed}, loss {step['loss']:.6f}, norm {step['norm']:.4f}, gap {gap:.2e}; "
          f"float32 against this: loss {abs(noise['loss'] - step['loss']) / step['loss']:.1e}, gradients {worst:.1e}, "
          f"ten losses {drift:.1e}")
    print("  losses", [round(x, 4) for x in losses], "norms", [round(x, 3) for x in norms])

    index = dict(made_by="tests/oracle/model_goldens.py", torch=torch.__version__, model=m, seed=seed,
                 training=TRAINING, loss=step["loss"], balance_sum=step["balance"], z_sum=step["z"],
                 grad_norm=step["norm"], losses=losses, norms=norms, tensors=[])
    flat, offset = [], 0
    for tensor, w in weights.items():
        start, scale = small_models.parameters(m)[tensor][1:]
        index["tensors"].append(dict(name=tensor, shape=list(w.shape), offset=offset, start=start, scale=scale))
        flat.append(w.grad.reshape(-1))
        offset += w.numel()
    index["logits"] = dict(shape=list(step["logits"][0].shape), offset=offset)  # of the first sequence
    flat.append(step["logits"][0].reshape(-1))
    torch.cat(flat).float().numpy().astype("<f4").tofile(HERE / f"{name}.bin")
    (HERE / f"{name}.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    HERE.mkdir(exist_ok=True)
    for chosen in sys.argv[1:] or MODELS:
        write(chosen)
