#!/usr/bin/env python3
"""Times another framework on the model of a Tessera deck: forward, backward, clip, AdamW, on the CPU. Prints one JSON line.

    peers.py DECK --framework eager|compile|jax --dtype fp32|bf16 [--threads N] [--steps 20] [--warmup 5]

The global batch is one micro-batch. bf16: weights and activations in bf16; master weights, moments and update in fp32.
Needs Python with PyYAML, numpy, and torch or jax.
"""
import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The model and global batch of a deck; keys that the deck leaves out have Tessera's defaults."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    seq_len: int
    rms: bool
    rotary: bool
    swiglu: bool
    tied: bool
    experts: int
    top_k: int
    balance_coef: float
    z_coef: float
    batch: int
    vocab: int = 256

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def up(self) -> int:
        return self.ffn * (2 if self.swiglu else 1)


def read_shape(deck: str) -> Shape:
    import yaml
    with open(deck, encoding="utf-8") as file:
        parsed = yaml.safe_load(file)
    model, moe = parsed["model"], parsed["model"].get("moe", {})
    activation = model.get("activation", "gelu")
    if activation not in ("gelu", "swiglu"):
        raise SystemExit(f"{deck}: model.activation: {activation} is not taught to the peers; gelu and swiglu are")
    swiglu = activation == "swiglu"
    ffn = model.get("ffn", -(-8 * model["hidden"] // 3 // 128) * 128 if swiglu else 4 * model["hidden"])
    return Shape(model["layers"], model["hidden"], model["heads"], model.get("kv_heads", model["heads"]), ffn, model["seq_len"],
                 model.get("norm") == "rms", model.get("position") == "rotary", swiglu, model.get("tied_head", False),
                 moe.get("experts", 0), moe.get("top_k", 0), moe.get("balance_coef", 0.01), moe.get("z_coef", 0.001), parsed["batch"]["global"])


def use_cores(threads: int) -> None:
    """Restricts the process to `threads` cores. Call before a framework starts its thread pool."""
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        raise SystemExit(f"peers.py: {threads} threads asked for, {len(cores)} cores here")
    os.sched_setaffinity(0, cores[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck")
    parser.add_argument("--framework", choices=["eager", "compile", "jax"], required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    args = parser.parse_args()
    shape = read_shape(args.deck)
    use_cores(args.threads)

    import numpy as np
    if args.framework == "jax":
        import jax_gpt as peer
    else:
        import torch_gpt as peer
    step, version = peer.build(shape, args.dtype, args.framework, args.threads)
    random = np.random.default_rng(0)
    milliseconds = []
    for _ in range(args.warmup + args.steps):
        tokens = random.integers(0, shape.vocab, (shape.batch, shape.seq_len + 1), dtype=np.int64)
        start = time.perf_counter()
        loss = step(tokens)
        milliseconds.append((time.perf_counter() - start) * 1e3)
    median = statistics.median(milliseconds[args.warmup:])
    tokens_per_step = shape.batch * shape.seq_len
    print(json.dumps({"program": args.framework, "version": version, "deck": os.path.basename(args.deck), "dtype": args.dtype,
                      "threads": args.threads, "steps": args.steps, "step_ms": round(median, 2),
                      "tokens_per_s": round(tokens_per_step / median * 1e3), "loss": round(loss, 4)}))


if __name__ == "__main__":
    main()
