"""The models of inputs/bench on GPUs in PyTorch, as a user would write them for speed: scaled_dot_product_attention, and
torch._grouped_mm for experts, which have no balance loss. Sizes are those of gpt2_d*.yaml, moe.yaml and llama.yaml.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTH, VOCABULARY, PADDED_VOCABULARY = 1024, 50257, 50304


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        sequences, length, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(sequences, length, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(sequences, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def rotated(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Experts(nn.Module):
    """MoE layer that sorts rows by expert and drops no token."""
    def __init__(self, hidden, ffn, experts, chosen):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * ffn, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, hidden, ffn) * 0.02)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = F.softmax(self.router(rows).float(), -1).topk(self.chosen, -1)
        weights, chosen = (weights / weights.sum(-1, keepdim=True)).flatten(), chosen.flatten()
        order = chosen.argsort(stable=True)
        ends = F.one_hot(chosen, self.experts).sum(0).cumsum(0).to(torch.int32)
        token = order // self.chosen
        gate, up = torch._grouped_mm(rows[token].bfloat16(), self.up.bfloat16().transpose(-2, -1), offs=ends).chunk(2, -1)
        out = torch._grouped_mm(F.silu(gate) * up, self.down.bfloat16().transpose(-2, -1), offs=ends)
        y = torch.zeros_like(rows).index_add(0, token, out * weights[order, None].to(out.dtype))
        return y.view_as(x)


class Swiglu(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.up, self.down = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions, RMS norms, no biases."""
    def __init__(self, hidden, heads, kv_heads, mlp):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.head, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.mlp = mlp
        angles = torch.outer(torch.arange(LENGTH), 10000.0 ** -(torch.arange(0, self.head, 2) / self.head))
        self.register_buffer("cos", angles.cos(), False)
        self.register_buffer("sin", angles.sin(), False)

    def forward(self, x):
        sequences, length, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(sequences, length, -1, self.head).transpose(1, 2)
        query, key, value = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
        query, key = rotated(query, self.cos, self.sin), rotated(key, self.cos, self.sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(sequences, length, hidden))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, hidden, blocks, norm, positions):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(LENGTH, hidden) if positions else None
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = norm(hidden), nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(LENGTH, device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, -2), targets.view(-1))


def gpt2(layers, heads, hidden, vocabulary=VOCABULARY):
    return Gpt(vocabulary, hidden, (Block(hidden, heads) for _ in range(layers)), nn.LayerNorm, True)


def mixture(vocabulary=VOCABULARY):
    return Gpt(vocabulary, 1024, (LlamaBlock(1024, 16, 8, Experts(1024, 2048, 16, 2)) for _ in range(12)), nn.RMSNorm, False)


def llama(vocabulary=VOCABULARY):
    return Gpt(vocabulary, 2048, (LlamaBlock(2048, 16, 4, Swiglu(2048, 5632)) for _ in range(16)), nn.RMSNorm, False)


def drawn(model):
    """The model with its matrices drawn anew, as in Tessera's decks."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    return model
