"""Trains a model of inputs/bench with PyTorch on one GPU, for comparison with the deck. Prints step time, tokens/s and peak
memory.

    tests/bench/torch_one_gpu.py gpt2 LAYERS HEADS HIDDEN MICRO | moe MICRO | llama MICRO

As a user would: the model compiled whole, bf16 by autocast, fp32 parameters, fused AdamW. A step has one micro-batch, of
MICRO sequences of 1024 random tokens; gradients are clipped to norm 1. The vocabulary is padded to whole tiles, as
Tessera's is. Times are medians of the last 16 of 24 steps.
"""
import statistics
import sys
import time

import torch
import torch.nn as nn

from torch_models import LENGTH, PADDED_VOCABULARY, VOCABULARY, drawn, gpt2, llama, loss_of, mixture

STEPS, WARM = 24, 8


def main():
    *sizes, micro = map(int, sys.argv[2:])
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    model = drawn({"gpt2": gpt2, "moe": mixture, "llama": llama}[sys.argv[1]](*sizes, vocabulary=PADDED_VOCABULARY))
    objective = torch.compile(lambda ids: loss_of(model(ids), ids.roll(-1, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, VOCABULARY, (micro, LENGTH))
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = objective(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    step = statistics.median(times[WARM:])
    parameters = sum(p.numel() for p in model.parameters())
    print(f"torch {torch.__version__} compiled: {' '.join(sys.argv[1:])}, {parameters / 1e6:.1f}M parameters: {step * 1e3:.1f} ms a step, "
          f"{micro * LENGTH / step:.0f} tokens/s, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
