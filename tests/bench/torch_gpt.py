"""The deck's model in PyTorch, as a user would write it for speed: scaled_dot_product_attention, fused AdamW, MoE without dropped tokens."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.qkv = nn.Linear(s.hidden, s.qkv, bias=not s.rms)
        self.out = nn.Linear(s.heads * s.head_dim, s.hidden, bias=not s.rms)

    def forward(self, x, table):
        s, (b, t, _) = self.s, x.shape
        q, k, v = self.qkv(x).view(b, t, -1, s.head_dim).transpose(1, 2).split([s.heads, s.kv_heads, s.kv_heads], 1)
        if table is not None:
            q, k = rotate(q, *table), rotate(k, *table)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.kv_heads != s.heads)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, s, bias):
        super().__init__()
        self.swiglu = s.swiglu
        self.up, self.down = nn.Linear(s.hidden, s.up, bias=bias), nn.Linear(s.ffn, s.hidden, bias=bias)

    def forward(self, x):
        x = self.up(x)
        if not self.swiglu:
            return self.down(F.gelu(x, approximate="tanh"))
        gate, up = x.chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """MoE layer; forward() returns the output and the weighted auxiliary losses."""
    def __init__(self, s):
        super().__init__()
        self.s, self.router = s, nn.Linear(s.hidden, s.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(s, False) for _ in range(s.experts))

    def forward(self, x):
        s, (b, t, c) = self.s, x.shape
        rows = x.reshape(-1, c)
        logits = F.linear(rows.float(), self.router.weight.float())
        probability = logits.softmax(-1)
        weight, expert = probability.topk(s.top_k, -1)
        if s.top_k > 1:
            weight = weight / weight.sum(-1, keepdim=True)
        order = expert.flatten().argsort(stable=True)
        token = order // s.top_k
        counts = torch.bincount(expert.flatten(), minlength=s.experts).tolist()
        done = torch.cat([e(part) for e, part in zip(self.experts, rows[token].split(counts))])
        y = torch.zeros(rows.shape, dtype=torch.float32).index_add(0, token, done * weight.flatten()[order, None])
        share = F.one_hot(expert.view(b, -1), s.experts).float().mean(1)
        balance = s.experts * (share * probability.view(b, t, -1).mean(1)).sum(-1).mean()
        z = logits.logsumexp(-1).square().mean()
        return y.to(x.dtype).view(b, t, c), s.balance_coef * balance + s.z_coef * z


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        norm = RmsNorm if s.rms else nn.LayerNorm
        self.norm1, self.norm2, self.attention = norm(s.hidden), norm(s.hidden), Attention(s)
        self.ffn = Experts(s) if s.experts else FeedForward(s, not s.rms)
        self.moe = bool(s.experts)

    def forward(self, x, table):
        x = x + self.attention(self.norm1(x), table)
        y = self.ffn(self.norm2(x))
        y, extra = y if self.moe else (y, 0.0)
        return x + y, extra


class Gpt(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.tokens = nn.Embedding(s.vocab, s.hidden)
        self.positions = None if s.rotary else nn.Embedding(s.seq_len, s.hidden)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = (RmsNorm if s.rms else nn.LayerNorm)(s.hidden)
        self.head = nn.Linear(s.hidden, s.vocab, bias=False)
        if s.tied:
            self.head.weight = self.tokens.weight
        self.table = None
        if s.rotary:
            angle = torch.outer(torch.arange(s.seq_len), 10000.0 ** (-torch.arange(0, s.head_dim, 2) / s.head_dim))
            self.table = angle.cos(), angle.sin()
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        """(training objective, cross-entropy)"""
        x, extra = self.tokens(ids), 0.0
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x, more = block(x, self.table)
            extra = extra + more
        loss = F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())
        return loss + extra, loss


def build(shape, dtype, mode, threads):
    """(step, version): step(tokens [B, T+1]) trains one step and returns the loss; version names the framework."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Gpt(shape)
    masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()] if dtype == "bf16" else list(model.parameters())
    if dtype == "bf16":
        model.to(torch.bfloat16)
    weights = list(model.parameters())
    matrices, others = [p for p in masters if p.dim() > 1], [p for p in masters if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}], lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if mode == "compile" else model

    def step(tokens):
        tokens = torch.from_numpy(tokens)
        objective, loss = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        objective.backward()
        if dtype == "bf16":
            for master, weight in zip(masters, weights):
                master.grad = None if weight.grad is None else weight.grad.float()
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if dtype == "bf16":
            torch._foreach_copy_([w.detach() for w in weights], [m.detach() for m in masters])
        for p in (*masters, *weights):
            p.grad = None
        return loss.item()

    return step, f"torch {torch.__version__}"
