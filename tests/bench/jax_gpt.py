"""The deck's model in JAX: one jitted step with donated buffers; experts by ragged_dot, which drops no token."""
import jax
import jax.numpy as jnp


def start(s, key):
    """Initial fp32 master weights, a tree by name."""
    def matrix(*shape):
        nonlocal key
        key, used = jax.random.split(key)
        return 0.02 * jax.random.normal(used, shape, jnp.float32)

    def norm():
        return {"weight": jnp.ones(s.hidden)} if s.rms else {"weight": jnp.ones(s.hidden), "bias": jnp.zeros(s.hidden)}

    def linear(out, inside):
        return {"weight": matrix(inside, out)} if s.rms else {"weight": matrix(inside, out), "bias": jnp.zeros(out)}

    def block():
        p = {"norm1": norm(), "norm2": norm(), "qkv": linear(s.qkv, s.hidden), "out": linear(s.hidden, s.heads * s.head_dim)}
        if s.experts:
            return p | {"router": matrix(s.hidden, s.experts), "up": matrix(s.experts, s.hidden, s.up), "down": matrix(s.experts, s.ffn, s.hidden)}
        return p | {"up": linear(s.up, s.hidden), "down": linear(s.hidden, s.ffn)}

    p = {"tokens": matrix(s.vocab, s.hidden), "norm": norm(), "blocks": [block() for _ in range(s.layers)]}
    if not s.rotary:
        p["positions"] = matrix(s.seq_len, s.hidden)
    if not s.tied:
        p["head"] = matrix(s.hidden, s.vocab)
    return p


def normalize(p, x):
    y = x.astype(jnp.float32)
    if "bias" in p:
        y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)
    return y.astype(x.dtype) * p["weight"] + (p["bias"] if "bias" in p else 0)


def linear(p, x):
    return x @ p["weight"] + (p["bias"] if "bias" in p else 0)


def attention(s, p, x):
    b, t, _ = x.shape
    qkv = linear(p["qkv"], x).reshape(b, t, -1, s.head_dim)
    q, k, v = jnp.split(qkv, [s.heads, s.heads + s.kv_heads], 2)
    if s.rotary:
        angle = jnp.outer(jnp.arange(t), 10000.0 ** (-jnp.arange(0, s.head_dim, 2) / s.head_dim))[:, None, :]
        cos, sin = jnp.cos(angle), jnp.sin(angle)

        def rotate(h):
            a, c = jnp.split(h.astype(jnp.float32), 2, -1)
            return jnp.concatenate([a * cos - c * sin, c * cos + a * sin], -1).astype(h.dtype)
        q, k = rotate(q), rotate(k)
    return linear(p["out"], jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, -1))


def activate(s, x):
    if not s.swiglu:
        return jax.nn.gelu(x, approximate=True)
    gate, up = jnp.split(x, 2, -1)
    return jax.nn.silu(gate) * up


def experts(s, p, x):
    b, t, c = x.shape
    rows = x.reshape(-1, c)
    logits = rows.astype(jnp.float32) @ p["router"].astype(jnp.float32)
    probability = jax.nn.softmax(logits)
    weight, expert = jax.lax.top_k(probability, s.top_k)
    if s.top_k > 1:
        weight = weight / weight.sum(-1, keepdims=True)
    order = jnp.argsort(expert.ravel(), stable=True)
    token = order // s.top_k
    counts = jnp.bincount(expert.ravel(), length=s.experts).astype(jnp.int32)
    done = jax.lax.ragged_dot(activate(s, jax.lax.ragged_dot(rows[token], p["up"], counts)), p["down"], counts)
    y = jnp.zeros(rows.shape, jnp.float32).at[token].add(done * weight.ravel()[order, None])
    share = jax.nn.one_hot(expert.reshape(b, -1), s.experts).mean(1)
    balance = s.experts * (share * probability.reshape(b, t, -1).mean(1)).sum(-1).mean()
    z = (jax.nn.logsumexp(logits, -1) ** 2).mean()
    return y.astype(x.dtype).reshape(b, t, c), s.balance_coef * balance + s.z_coef * z


def objective(s, p, tokens):
    x, extra = p["tokens"][tokens[:, :-1]], 0.0
    if not s.rotary:
        x = x + p["positions"]
    for block in p["blocks"]:
        x = x + attention(s, block, normalize(block["norm1"], x))
        y = normalize(block["norm2"], x)
        if s.experts:
            y, more = experts(s, block, y)
            extra = extra + more
        else:
            y = linear(block["down"], activate(s, linear(block["up"], y)))
        x = x + y
    logits = normalize(p["norm"], x) @ (p["tokens"].T if s.tied else p["head"])
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    loss = (jax.nn.logsumexp(logits, -1) - picked).mean()
    return loss + extra, loss


def build(shape, dtype, mode, threads):
    """(step, version): step(tokens [B, T+1]) trains one step and returns the loss; version names the framework."""
    kind = jnp.bfloat16 if dtype == "bf16" else jnp.float32
    masters = start(shape, jax.random.key(0))
    state = (masters, jax.tree.map(jnp.zeros_like, masters), jax.tree.map(jnp.zeros_like, masters), jnp.zeros((), jnp.int32))

    def update(state, tokens):
        p, m, v, t = state
        weights = jax.tree.map(lambda a: a.astype(kind), p)
        (_, loss), g = jax.value_and_grad(lambda w: objective(shape, w, tokens), has_aux=True)(weights)
        g = jax.tree.map(lambda a: a.astype(jnp.float32), g)
        norm = jnp.sqrt(sum((a * a).sum() for a in jax.tree.leaves(g)))
        scale, t = jnp.minimum(1.0, 1.0 / (norm + 1e-6)), t + 1
        g = jax.tree.map(lambda a: a * scale, g)
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.95 * a + 0.05 * b * b, v, g)
        c1, c2 = 1 - 0.9 ** t, 1 - 0.95 ** t
        p = jax.tree.map(lambda a, b, c: a - 3e-4 * (b / c1 / (jnp.sqrt(c / c2) + 1e-8) + (0.1 if a.ndim > 1 else 0.0) * a), p, m, v)
        return (p, m, v, t), loss

    run = jax.jit(update, donate_argnums=0)

    def step(tokens):
        nonlocal state
        state, loss = run(state, jnp.asarray(tokens, jnp.int32))
        jax.block_until_ready(state)
        return float(loss)

    return step, f"jax {jax.__version__}"
