#!/usr/bin/env python3
"""What `reduce.order: batch` costs beside `rank`.

    order_of_sums.py TESSERA MPIEXEC DECK MICRO_BATCHES [--gpus N] [--set KEY=VALUE ...] [--pairs 3]

Runs the deck with so many micro-batches a GPU in both orders by turns, and prints the medians of their steps and the ratio
of each pair. Without a GPU it measures ranks of one thread. That `batch` gives the same bits: gpus_of_a_host.py.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def run(options, folder, deck, gpus, name, *settings):
    """Trains; returns the rows of the log."""
    words = [word for setting in (*settings, f"checkpoint.dir={folder}/{name}") for word in ("--set", setting)]
    done = subprocess.run([options.mpiexec, "-n", str(gpus), options.tessera, "train", deck, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{deck} on {gpus}, {settings}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    with open(f"{folder}/{name}/metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def cost(options, folder):
    gpus, ratios = options.gpus, []
    with open(options.deck) as file:
        micro = int(file.read().split("micro: ")[1].split("}")[0])
    micro = next((int(one.split("=")[1]) for one in options.set if one.startswith("batch.micro=")), micro)
    medians = {"rank": [], "batch": []}
    for pair in range(options.pairs):
        for order in ("rank", "batch"):
            rows = run(options, folder, options.deck, gpus, f"{order}{pair}", f"reduce.order={order}",
                       f"batch.global={micro * gpus * options.micro_batches}", "eval.every_steps=0", "checkpoint.every_steps=0", *options.set)
            medians[order].append(statistics.median(row["step_ms"] for row in rows[5:]))
        ratios.append(medians["batch"][-1] / medians["rank"][-1])
    print(f"{os.path.basename(options.deck)} {' '.join(options.set)}, {gpus} GPUs, {options.micro_batches} micro-batches a GPU: "
          f"rank {statistics.median(medians['rank']):.2f} ms, batch {statistics.median(medians['batch']):.2f} ms, "
          f"ratios {' '.join(f'{ratio:.4f}' for ratio in ratios)}", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("mpiexec")
    parser.add_argument("deck")
    parser.add_argument("micro_batches", type=int)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-order-") as folder:
        return cost(options, folder)


if __name__ == "__main__":
    sys.exit(main())
