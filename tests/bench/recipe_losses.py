#!/usr/bin/env python3
"""Compares the loss that runs end with in a precision recipe with that of bf16, seed by seed.

    recipe_losses.py DECK ... [--build build/host] [--seeds 1234,2,3,4,5,6,7,8]
                     [--recipes fp8_block,fp8_tensor,mxfp8,mxfp8_2d,mxfp6_e3m2,mxfp6_e2m3,mxfp4,mxfp4_2d,nvfp4]
                     [--ranks 1] [--jobs 1] [--set KEY=VALUE ...]

Trains each deck once for each recipe and seed, JOBS runs at once of one thread a rank, and prints a table: the mean of
eval_loss, and of its differences to bf16 with the same seed in percent: mean, standard error, least and greatest. A run
that fails, or ends without a finite eval_loss, ends the program. How little a single run says is in results/recipes_loss.md.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile


def final_loss(args, deck: str, recipe: str, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"precision.recipe={recipe}", f"run.seed={seed}", f"checkpoint.dir={folder}/run", *args.set]
        command = [args.mpiexec, "-n", str(args.ranks)] if args.ranks > 1 else []
        command += [f"{args.build}/tessera", "train", deck] + [part for setting in settings for part in ("--set", setting)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        last = json.loads(pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()[-1])
    loss = last.get("eval_loss")
    if loss is None or not math.isfinite(loss):
        raise SystemExit(f"{deck}, {recipe}, seed {seed}: step {last['step']} has no finite eval_loss")
    return loss


def print_table(deck: str, losses: dict[str, list[float]]) -> None:
    print(f"{deck}\n{'recipe':10} {'eval_loss':>9} {'above bf16, %':>14} {'error':>6} {'least':>6} {'greatest':>8}")
    for recipe, mine in losses.items():
        above = [100 * (loss / base - 1) for loss, base in zip(mine, losses["bf16"], strict=True)]
        error = statistics.stdev(above) / math.sqrt(len(above))
        print(f"{recipe:10} {statistics.mean(mine):9.4f} {statistics.mean(above):14.2f} {error:6.2f} {min(above):6.2f} {max(above):8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decks", nargs="+", metavar="DECK")
    parser.add_argument("--build", default="build/host")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--recipes", default="fp8_block,fp8_tensor,mxfp8,mxfp8_2d,mxfp6_e3m2,mxfp6_e2m3,mxfp4,mxfp4_2d,nvfp4")
    parser.add_argument("--seeds", default="1234,2,3,4,5,6,7,8")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    recipes, seeds = ["bf16", *args.recipes.split(",")], [int(seed) for seed in args.seeds.split(",")]
    if len(seeds) < 2:
        parser.error("--seeds: at least two, since one run says little")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = {deck: {recipe: [pool.submit(final_loss, args, deck, recipe, seed) for seed in seeds] for recipe in recipes} for deck in args.decks}
        try:
            for deck, of_deck in runs.items():
                print_table(deck, {recipe: [run.result() for run in of_recipe] for recipe, of_recipe in of_deck.items()})
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
