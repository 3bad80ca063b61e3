#!/usr/bin/env python3
"""Checkpoints beside the file system with the same bytes: a table of GB/s and of the share of the raw speed, for 1 to 4
ranks and several numbers of tensors; loads by as many ranks as saved and by others.

    checkpoint_disk.py [--program build/host/tests/bench/checkpoint_disk] [--mpiexec mpiexec] [--folder FOLDER]
                       [--mb 1024] [--tensors 100,10000] [--io mpio,direct] [--ranks 1,2,3,4] [--rounds 4] [--pairs 4] [--out FILE]

The state is that of AdamW: at least --tensors tensors, of which each rank has its slices by the layout of a run. FOLDER
(default: the folder for temporary files) is on the file system that is measured. Loads by as many ranks as saved and by
another number take turns, ROUNDS times, each with PAIRS pairs of a measurement of the program and one of the raw speed.
Speeds are computed from median times; shares are medians over the pairs, with their quartiles. One JSON line a
measurement is appended to FILE.

Columns: "structure" is the time of a state of 64 elements a tensor, that is of metadata and commit. "payload" is the
share of the raw speed without that time. "times same" is a load's median time divided by that of a load by as many ranks
as saved. With `direct` there is also "begin", the part of an asynchronous save that blocks training, beside a plain copy
of the state to host memory as raw.
"""
import argparse
import datetime
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from host_training import cpu


def run(args, what: str, ranks: int, folder: str, tensors: int, mb: int, pairs: int) -> dict:
    command = [args.mpiexec, "-n", str(ranks), args.program, what, args.io, folder, str(tensors), str(mb << 20), str(pairs)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def by_turns(args, kinds, folder: str, tensors: int, mb: int, rounds: int) -> list[dict]:
    """Runs the kinds (what, ranks) by turns; one result of the program a kind, with the seconds of all rounds."""
    rows = [run(args, what, ranks, folder, tensors, mb, args.pairs) for what, ranks in kinds]
    for _ in range(1, rounds):
        for row, (what, ranks) in zip(rows, kinds):
            more = run(args, what, ranks, folder, tensors, mb, args.pairs)
            row["s"] += more["s"]
            row["raw_s"] += more["raw_s"]
    return rows


def summary(row: dict, saved: int, structure: float) -> dict:
    """The row with medians in place of lists of seconds, and with speeds and shares computed from its pairs."""
    pairs = list(zip(row["s"], row["raw_s"], strict=True))
    shares = statistics.quantiles((raw / ours for ours, raw in pairs), n=4, method="inclusive")
    payload = statistics.median(raw / (ours - structure) if ours > structure else float("inf") for ours, raw in pairs)
    seconds = statistics.median(row["s"])
    return row | {"saved_by": saved, "pairs": len(pairs), "s": round(seconds, 3), "raw_s": round(statistics.median(row["raw_s"]), 6),
                  "gb_per_s": round(row["bytes"] / seconds / 1e9, 3), "of_raw": round(shares[1], 3),
                  "of_raw_quartiles": [round(shares[0], 3), round(shares[2], 3)], "structure_s": round(structure, 3),
                  "payload_of_raw": round(payload, 3)}


def measure(args, saved: int, tensors: int):
    """Rows of a save by `saved` ranks, of loads by as many and by another number of ranks, and (direct) of begin."""
    loads = [("load", saved), ("load", saved % 4 + 1)]
    begins = [("begin", saved)] if args.io == "direct" else []
    with tempfile.TemporaryDirectory(prefix="tessera-disk-", dir=args.folder) as folder:
        small = by_turns(args, [("save", saved), *loads, *begins], folder, tensors, 0, 1)
    structure = [statistics.median(row["s"]) for row in small]
    with tempfile.TemporaryDirectory(prefix="tessera-disk-", dir=args.folder) as folder:
        rows = [row for kinds in ([("save", saved)], loads, begins) for row in by_turns(args, kinds, folder, tensors, args.mb, args.rounds)]
    rows = [summary(row, saved, seconds) for row, seconds in zip(rows, structure)]
    for row in rows[1:3]:
        row["of_same_ranks"] = round(row["s"] / rows[1]["s"], 3)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/host/tests/bench/checkpoint_disk")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--folder")
    parser.add_argument("--mb", type=int, default=1024, help="MiB of state; at least 1")
    parser.add_argument("--tensors", default="100,10000")
    parser.add_argument("--io", default="mpio,direct", help="checkpoint.io")
    parser.add_argument("--ranks", default="1,2,3,4", help="numbers of ranks that save")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=4, help="pairs a round; at least 1")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    if args.rounds * args.pairs < 2:
        parser.error("quartiles need two pairs: --rounds times --pairs")
    facts = {"date": datetime.date.today().isoformat(), "cpu": cpu(), "cores": len(os.sched_getaffinity(0)),
             "command": " ".join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])}
    print("io     what  tensors  saved by  loaded by     GB/s      raw   of raw  quartiles     structure  payload  times same")
    kinds = itertools.product(args.io.split(","), map(int, args.tensors.split(",")))
    for args.io, tensors in kinds:
        for saved in map(int, args.ranks.split(",")):
            for row in measure(args, saved, tensors):
                loaded, times = (row["ranks"], f"{row['of_same_ranks']:.2f}") if row["what"] == "load" else ("", "")
                low, high = row["of_raw_quartiles"]
                print(f"{row['io']:<7}{row['what']:<6}{tensors:>7}{saved:>10}{loaded:>11}{row['gb_per_s']:>9.3f}{row['bytes'] / max(row['raw_s'], 1e-6) / 1e9:>9.3f}"
                      f"{row['of_raw']:>9.2f}   {low:.2f} to {high:.2f}{row['structure_s']:>11.3f}{row['payload_of_raw']:>9.2f}{times:>12}", flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps(facts | row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
