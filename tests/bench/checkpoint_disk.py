#!/usr/bin/env python3
"""Checkpoints beside the file system with the same bytes: a table of GB/s and of the share of the raw speed, for 1 to 4
ranks and several numbers of tensors; loads by as many ranks as saved and by others.

    checkpoint_disk.py [--program build/host/tests/bench/checkpoint_disk] [--mpiexec mpiexec] [--folder FOLDER]
                       [--mb 1024] [--tensors 100,10000] [--repeats 3] [--out FILE]

The state is what AdamW keeps, each rank its slices by the layout of a run; so many tensors at least. FOLDER (default:
the temporary one) is on the file system that is measured. A JSON line a measurement is appended to
FILE. "structure" is the time of a state of 64 elements a tensor: what metadata and commit take; "payload" is the share of
the raw speed without it; "times same" a load's time over that of as many ranks as saved.
"""
import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from host_training import cpu


def run(args, what: str, ranks: int, folder: str, tensors: int, mb: int) -> dict:
    command = [args.mpiexec, "-n", str(ranks), args.program, what, folder, str(tensors), str(mb << 20), str(args.repeats)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def measure(args, saved: int, tensors: int):
    """A checkpoint saved, loaded by as many ranks and by another number of them; a row each."""
    kinds = [("save", saved), ("load", saved), ("load", saved % 4 + 1)]
    structure, same = [], 0
    for mb in (0, args.mb):
        with tempfile.TemporaryDirectory(prefix="tessera-disk-", dir=args.folder) as folder:
            for number, (what, ranks) in enumerate(kinds):
                row = run(args, what, ranks, folder, tensors, mb)
                if mb == 0:
                    structure.append(row["s"])
                    continue
                payload = row["s"] - structure[number]
                row |= {"saved_by": saved, "structure_s": structure[number],
                        "payload_of_raw": round(row["raw_s"] / payload, 3) if payload > 0 else None}
                if what == "load":
                    same = same or row["s"]
                    row["of_same_ranks"] = round(row["s"] / same, 3)
                yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/host/tests/bench/checkpoint_disk")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--folder")
    parser.add_argument("--mb", type=int, default=1024, help="of state; at least 1")
    parser.add_argument("--tensors", default="100,10000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    facts = {"date": datetime.date.today().isoformat(), "cpu": cpu(), "cores": len(os.sched_getaffinity(0)),
             "command": " ".join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])}
    print("what  tensors  saved by  loaded by     GB/s      raw   of raw  structure  payload  times same")
    for tensors in map(int, args.tensors.split(",")):
        for saved in (1, 2, 3, 4):
            for row in measure(args, saved, tensors):
                loaded, times = (row["ranks"], f"{row['of_same_ranks']:.2f}") if row["what"] == "load" else ("", "")
                payload = f"{row['payload_of_raw']:.2f}" if row["payload_of_raw"] else "noise"
                print(f"{row['what']:<6}{tensors:>7}{saved:>10}{loaded:>11}{row['gb_per_s']:>9.3f}{row['bytes'] / row['raw_s'] / 1e9:>9.3f}"
                      f"{row['of_raw']:>9.2f}{row['structure_s']:>11.3f}{payload:>9}{times:>12}", flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps(facts | row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
