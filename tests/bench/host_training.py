#!/usr/bin/env python3
"""Compares training speed on the CPU with PyTorch and JAX: one after the other, same cores, batch, sequence length and dtype.

    host_training.py [--build build/host] [--python PYTHON] [--threads N] [--steps 20] [--warmup 5]
                     [--models dense,moe] [--programs tessera,eager,compile,jax] [--out FILE]

PYTHON (default: $TESSERA_PEERS_PYTHON, else the Python that runs this) has PyYAML, numpy, torch and jax. Tessera runs as
one rank of N threads; all programs take the deck's global batch as one micro-batch. Times are medians of the steps after
the warm-up. Appends one JSON line a run to FILE; prints a table of tokens/s and of the ratio to the fastest peer.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DECKS = {"dense": ROOT / "inputs/bench/dense.yaml", "moe": ROOT / "inputs/quickstart/moe_text.yaml"}


def cpu() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def cores_for(threads: int):
    return lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def tessera(args, deck: pathlib.Path, dtype: str) -> dict:
    program = pathlib.Path(args.build) / "tessera"
    batch = next(line for line in deck.read_text().splitlines() if line.startswith("batch:"))
    sequences = batch.split("global:")[1].split(",")[0].strip()
    with tempfile.TemporaryDirectory() as run:
        settings = {"precision.compute": dtype, "run.steps": args.warmup + args.steps, "optimizer.warmup_steps": 0, "batch.micro": sequences,
                    "eval.every_steps": 0, "sample.tokens": 0, "checkpoint.dir": run}
        command = [str(program), "train", str(deck)] + [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=cores_for(args.threads),
                              env=os.environ | {"OMP_NUM_THREADS": str(args.threads)})
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        rows = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    timed = rows[args.warmup:]
    tokens = rows[1]["tokens"] - rows[0]["tokens"]
    median = statistics.median(row["step_ms"] for row in timed)
    return {"program": "tessera", "deck": deck.name, "dtype": dtype, "threads": args.threads, "steps": len(timed),
            "step_ms": round(median, 2), "tokens_per_s": round(tokens / median * 1e3), "loss": rows[-1]["loss"]}


def peer(args, framework: str, deck: pathlib.Path, dtype: str) -> dict:
    command = [args.python, str(HERE / "peers.py"), str(deck), "--framework", framework, "--dtype", dtype,
               "--threads", str(args.threads), "--steps", str(args.steps), "--warmup", str(args.warmup)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def table(results: list[dict], programs: list[str]) -> str:
    lines = ["tokens/s    " + "".join(f"{p:>12}" for p in programs) + "   tessera / fastest peer"]
    for model, deck in DECKS.items():
        for dtype in ("fp32", "bf16"):
            speed = {r["program"]: r["tokens_per_s"] for r in results if (r["deck"], r["dtype"]) == (deck.name, dtype)}
            if not speed:
                continue
            peers = [v for p, v in speed.items() if p != "tessera"]
            ratio = f"{speed['tessera'] / max(peers):.2f}x" if peers and "tessera" in speed else "-"
            lines.append(f"{model + ' ' + dtype:<12}" + "".join(f"{speed.get(p, '-'):>12}" for p in programs) + f"   {ratio}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/host"))
    parser.add_argument("--python", default=os.environ.get("TESSERA_PEERS_PYTHON", sys.executable))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--programs", default="tessera,eager,compile,jax")
    parser.add_argument("--models", default=",".join(DECKS))
    parser.add_argument("--out")
    args = parser.parse_args()
    programs = args.programs.split(",")
    about = {"date": datetime.date.today().isoformat(), "cpu": cpu(), "cores": args.threads}
    results = []
    for deck in (DECKS[model] for model in args.models.split(",")):
        for dtype in ("fp32", "bf16"):
            for program in programs:
                run = tessera(args, deck, dtype) if program == "tessera" else peer(args, program, deck, dtype)
                results.append(about | run)
                print(f"{deck.name} {dtype} {program}: {run['tokens_per_s']} tokens/s", file=sys.stderr, flush=True)
                if args.out:
                    with open(args.out, "a", encoding="utf-8") as file:
                        file.write(json.dumps(results[-1]) + "\n")
    print(f"{about['cpu']}, {args.threads} threads, medians of {args.steps} steps after {args.warmup}")
    print(table(results, programs))


if __name__ == "__main__":
    main()
