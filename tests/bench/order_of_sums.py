#!/usr/bin/env python3
"""What `reduce.order: batch` costs beside `rank`, and that it gives the same bits on any number of GPUs.

    order_of_sums.py TESSERA MPIEXEC equal [--gpus 1 2 4]
    order_of_sums.py TESSERA MPIEXEC cost DECK MICRO_BATCHES [--gpus N] [--set KEY=VALUE ...] [--pairs 3]

`equal` trains small decks on each number of GPUs, captured and launched, by copy engines and by NCCL, and compares logged
sums and digests. `cost` runs the deck with so many micro-batches a GPU in both orders by turns, and prints the medians of
their steps and the ratio of each pair. Without a GPU it measures ranks of one thread.
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

SMALL = """schema_version: 1
run: {name: small, seed: 5, steps: 12}
model: {layers: 2, MODEL, heads: 2, seq_len: 64, norm: rms, activation: swiglu, position: rotary}
data: {files: ["corpus.txt"], eval_fraction: 0.1}
batch: {global: 12, micro: 2}
eval: {every_steps: 4, batches: 2}
precision: {recipe: RECIPE}
reduce: {order: batch, bucket_mib: 0.2}
optimizer: {lr: 0.01, warmup_steps: 2}
"""
MODELS = {"dense": "hidden: 256, ffn: 512, tied_head: false", "tied": "hidden: 256, ffn: 512, tied_head: true",
          "moe": "hidden: 256, ffn: 256, tied_head: false, moe: {experts: 4, top_k: 2}"}
LOGGED = ("step", "loss", "eval_loss", "balance_loss", "z_loss", "expert_load", "grad_norm")


def run(options, folder, deck, gpus, name, *settings):
    """Trains; returns the rows of the log."""
    words = [word for setting in (*settings, f"checkpoint.dir={folder}/{name}") for word in ("--set", setting)]
    done = subprocess.run([options.mpiexec, "-n", str(gpus), options.tessera, "train", deck, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{deck} on {gpus}, {settings}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    with open(f"{folder}/{name}/metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def digest(options, path):
    told = subprocess.run([options.tessera, "checkpoint", "inspect", path, "--json"], capture_output=True, text=True, check=True).stdout
    return json.loads(told)["content_digest"]


def equal(options, folder):
    with open(f"{folder}/corpus.txt", "w") as file:
        file.write("".join(f"the {i * 7919 % 113} tiles of the {i % 17} mosaics\n" for i in range(4000)))
    different = runs = 0
    for (model, recipe, sharding, rule) in (("dense", "bf16", "optimizer", "adamw"), ("dense", "bf16", "full", "muon"), ("tied", "nvfp4", "optimizer", "muon"),
                                            ("tied", "mxfp8", "full", "adamw"), ("dense", "fp8_block", "optimizer", "adamw"),
                                            ("moe", "bf16", "optimizer", "adamw"), ("moe", "nvfp4", "full", "adamw"), ("moe", "fp8_block", "optimizer", "muon")):
        deck = f"{folder}/{model}-{recipe}.yaml"
        with open(deck, "w") as file:
            file.write(SMALL.replace("MODEL", MODELS[model]).replace("RECIPE", recipe))
        first = None
        for gpus, graph, copies in itertools.product(options.gpus, ("true", "false"), ("true", "false")):
            if (gpus == 1 and (copies == "false" or sharding == "full" and graph == "false")) or (gpus > 2 and graph != copies):
                continue
            name, runs = f"run{runs}", runs + 1
            rows = run(options, folder, deck, gpus, name, f"sharding={'optimizer' if gpus == 1 else sharding}", f"optimizer.matrices={rule}",
                       f"proof.graph={graph}", f"proof.copy_engines={copies}")
            found = ([{key: row.get(key) for key in LOGGED} for row in rows], digest(options, f"{folder}/{name}"))
            first = first or found
            different += found != first
            print(f"{model:6} {recipe:10} {sharding:10} {rule:6} {gpus} GPUs, graph {graph}, copy engines {copies}: {found[1]}"
                  f"{'' if found == first else ' DIFFERENT'}", flush=True)
    print(f"{runs} runs, {different} different", flush=True)
    return 1 if different or not runs else 0


def cost(options, folder):
    gpus, ratios = options.gpus[0], []
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
    parser.add_argument("what", choices=("equal", "cost"))
    parser.add_argument("deck", nargs="?")
    parser.add_argument("micro_batches", nargs="?", type=int, default=1)
    parser.add_argument("--gpus", nargs="+", type=int, default=[1])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-order-") as folder:
        return equal(options, folder) if options.what == "equal" else cost(options, folder)


if __name__ == "__main__":
    sys.exit(main())
