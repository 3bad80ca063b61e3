"""Trains GPT-2 or a mixture of experts with PyTorch's FSDP2 on random tokens, for comparison with `sharding: full`.
Prints step time, tokens/s and peak memory of a rank.

    torchrun --nproc_per_node 2 tests/bench/torch_fsdp2.py gpt2 LAYERS HEADS HIDDEN MICRO [eager]
    torchrun --nproc_per_node 2 tests/bench/torch_fsdp2.py moe MICRO [eager]

Follows PyTorch's guides: fully_shard() on each block, then on the whole model; bf16 parameters and fp32 reduction of
gradients (MixedPrecisionPolicy), fused AdamW on fp32 shards; blocks and the loss are compiled. Each rank has one
micro-batch a step, of MICRO sequences of 1024 tokens; gradients are clipped to norm 1. No checkpoint is saved.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from torch_models import LENGTH, VOCABULARY, drawn, gpt2, loss_of, mixture

STEPS = 14


def sharded(make, compiled):
    with torch.device("cuda"):
        model = drawn(make())
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
