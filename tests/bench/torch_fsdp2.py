"""Trains GPT-2 or a mixture of experts with PyTorch's FSDP2 on random tokens, for comparison with `sharding: full`.
Prints step time, tokens/s and peak memory of a rank.

    torchrun --nproc_per_node 2 tests/bench/torch_fsdp2.py gpt2 LAYERS HEADS HIDDEN MICRO [eager]
    torchrun --nproc_per_node 2 tests/bench/torch_fsdp2.py moe MICRO [eager]

Follows PyTorch's guides: fully_shard() on each block, then on the whole model; bf16 parameters and fp32 reduction of
gradients (MixedPrecisionPolicy), fused AdamW on fp32 shards; blocks and the loss are compiled. Each rank has one
micro-batch a step, of MICRO sequences of 1024 tokens; gradients are clipped to norm 1. Sizes are those of
inputs/bench/gpt2_d*.yaml or inputs/bench/moe.yaml. Experts are multiplied by torch._grouped_mm and have no balance loss.
No checkpoint is saved.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

LENGTH, VOCABULARY, STEPS = 1024, 50257, 14


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
        gate, up = torch._grouped_mm(rows[token], self.up.transpose(-2, -1), offs=ends).chunk(2, -1)
        out = torch._grouped_mm(F.silu(gate) * up, self.down.transpose(-2, -1), offs=ends)
        y = torch.zeros_like(rows).index_add(0, token, out * weights[order, None].to(out.dtype))
        return y.view_as(x)


class MoeBlock(nn.Module):
    def __init__(self, hidden, heads, kv_heads, ffn, experts, chosen):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.head, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.mlp = Experts(hidden, ffn, experts, chosen)
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
    def __init__(self, hidden, blocks, norm, positions):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, hidden), nn.Embedding(LENGTH, hidden) if positions else None
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = norm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(LENGTH, device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))


def gpt2(layers, heads, hidden):
    return Gpt(hidden, (Block(hidden, heads) for _ in range(layers)), nn.LayerNorm, True)


def mixture():
    return Gpt(1024, (MoeBlock(1024, 16, 8, 2048, 16, 2) for _ in range(12)), nn.RMSNorm, False)


def sharded(make, compiled):
    with torch.device("cuda"):
        model = make()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if compiled:
            block.compile()
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def main():
    compiled = "eager" not in sys.argv
    *sizes, micro = map(int, filter(str.isdigit, sys.argv[2:]))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = sharded(lambda: gpt2(*sizes) if sys.argv[1] == "gpt2" else mixture(), compiled)
    loss_function = torch.compile(loss_of) if compiled else loss_of
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, VOCABULARY, (micro, LENGTH), device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = loss_function(model(ids), ids.roll(-1, 1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    step = sorted(times[STEPS // 2:])[STEPS // 4]
    if dist.get_rank() == 0:
        peak, reserved = torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30
        print(f"FSDP2 {'compiled' if compiled else 'eager'}, torch {torch.__version__}: {' '.join(sys.argv[1:])} on "
              f"{dist.get_world_size()} GPUs: {step * 1e3:.1f} ms a step, "
              f"{dist.get_world_size() * micro * LENGTH / step:.0f} tokens/s, peak {peak:.1f} GiB allocated, "
              f"{reserved:.1f} reserved, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
