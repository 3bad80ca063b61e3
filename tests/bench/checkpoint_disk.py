#!/usr/bin/env python3
"""Checkpoints beside the file system with the same bytes: a table of GB/s and of the share of the raw speed, for 1 to 4
ranks and several numbers of tensors; loads by as many ranks as saved and by others.

    checkpoint_disk.py [--program build/host/tests/bench/checkpoint_disk] [--mpiexec mpiexec] [--folder FOLDER]
                       [--mb 1024] [--tensors 100,10000] [--repeats 3] [--out FILE]

FOLDER (default: the temporary one) is on the file system that is measured. A JSON line a measurement is appended to
FILE. With --mb 0 the state is 64 elements a tensor: what is left is the time of structure and commit.
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


def measure(args, what: str, ranks: int, folder: str, tensors: int) -> dict:
    command = [args.mpiexec, "-n", str(ranks), args.program, what, folder, str(tensors), str(args.mb << 20), str(args.repeats)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/host/tests/bench/checkpoint_disk")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--folder")
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--tensors", default="100,10000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    facts = {"date": datetime.date.today().isoformat(), "cpu": cpu(), "cores": len(os.sched_getaffinity(0)),
             "command": " ".join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])}
    print("what  tensors  saved by  loaded by     GB/s      raw   of raw")
    for tensors in map(int, args.tensors.split(",")):
        for saved in (1, 2, 3, 4):
            with tempfile.TemporaryDirectory(prefix="tessera-disk-", dir=args.folder) as folder:
                for what, ranks in [("save", saved), ("load", saved), ("load", saved % 4 + 1)]:
                    row = measure(args, what, ranks, folder, tensors)
                    raw = row["bytes"] / row["raw_s"] / 1e9
                    loaded = ranks if what == "load" else ""
                    print(f"{what:<6}{tensors:>7}{saved:>10}{loaded:>11}{row['gb_per_s']:>9.3f}{raw:>9.3f}{row['of_raw']:>9.2f}", flush=True)
                    if args.out:
                        with args.out.open("a") as file:
                            file.write(json.dumps(facts | row | {"saved_by": saved}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
