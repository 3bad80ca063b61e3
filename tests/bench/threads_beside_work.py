#!/usr/bin/env python3
"""Times training steps of one rank with two threads, alone on the machine and beside one busy process, for several ways
of waiting at a barrier. Ways are timed by turns, so that other load of the machine affects all alike.

    threads_beside_work.py [--build build/host] [--deck inputs/quickstart/moe_text.yaml] [--ways shipped,1000,passive,300000]
                           [--alone 300000] [--rounds 5] [--steps 8] [--out FILE]

A way is `shipped` (no variable of OpenMP's waiting is set), a number (GOMP_SPINCOUNT; libgomp's own default is 300000), or
`passive` or `active` (OMP_WAIT_POLICY). Ways of --alone are timed without the busy process, beside which a step of theirs
may take a minute. A run's first two steps do not count. Prints for each way the median over rounds of the runs' medians,
in ms, the median of beside / alone, and the largest share of the cores' time that other processes took. Appends one JSON
line a run to FILE.
"""
import argparse
import datetime
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
UNCOUNTED = 2


def cpu() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def cpu_seconds() -> tuple[float, float]:
    """CPU seconds (of the whole machine, including steal time; of this process's ended children)."""
    user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def environment(way: str) -> dict:
    said = {} if way == "shipped" else {"GOMP_SPINCOUNT": way} if way.isdigit() else {"OMP_WAIT_POLICY": way}
    return {name: value for name, value in os.environ.items() if name not in SAID} | {"OMP_NUM_THREADS": "2"} | said


def timed(args, way: str, beside: bool) -> tuple[list[float], float]:
    """(milliseconds of each step, share of the cores' time that other processes took during the run)"""
    begin, (all_before, own_before) = time.monotonic(), cpu_seconds()
    steps = step_ms(args, way, beside)
    seconds, (all_after, own_after) = time.monotonic() - begin, cpu_seconds()
    others = (all_after - all_before) - (own_after - own_before)
    return steps, max(0.0, others / (seconds * os.cpu_count()))


def step_ms(args, way: str, beside: bool) -> list[float]:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if beside else None
    try:
        with tempfile.TemporaryDirectory() as run:
            settings = {"run.steps": UNCOUNTED + args.steps, "optimizer.warmup_steps": 0, "eval.every_steps": 0, "sample.tokens": 0,
                        "checkpoint.dir": run}
            command = [str(pathlib.Path(args.build) / "tessera"), "train", args.deck]
            command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
            done = subprocess.run(command, capture_output=True, text=True, env=environment(way))
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
            rows = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    finally:
        if other:
            other.kill()
            other.wait()
    return [row["step_ms"] for row in rows[UNCOUNTED:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build/host"))
    parser.add_argument("--deck", default=str(ROOT / "inputs/quickstart/moe_text.yaml"))
    parser.add_argument("--ways", default="shipped,1000,passive,300000")
    parser.add_argument("--alone", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out")
    args = parser.parse_args()
    only_alone, medians = args.alone.split(",") if args.alone else [], {}
    ways, most_others = args.ways.split(",") + only_alone, 0.0
    for round_ in range(args.rounds):
        for way in ways:
            for beside in (False,) if way in only_alone else (False, True):
                steps, others = timed(args, way, beside)
                most_others = max(most_others, others)
                medians.setdefault((way, beside), []).append(statistics.median(steps))
                record = {"date": datetime.date.today().isoformat(), "cpu": cpu(), "cores": len(os.sched_getaffinity(0)),
                          "deck": os.path.basename(args.deck), "way": way, "beside": beside, "round": round_, "others": round(others, 3),
                          "step_ms": [round(ms, 1) for ms in steps]}
                print(f"{way} {'beside' if beside else 'alone'}: {medians[way, beside][-1]:.1f} ms, at most {max(steps):.1f}; "
                      f"others {others:.1%}", file=sys.stderr, flush=True)
                if args.out:
                    with open(args.out, "a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
    print(f"{cpu()}, {len(os.sched_getaffinity(0))} cores, one rank of 2 threads, {args.rounds} rounds of {args.steps} steps; "
          f"others took at most {most_others:.1%} of the cores' time")
    print(f"{'way':<12}{'alone':>10}{'beside':>10}{'beside / alone':>16}")
    for way in ways:
        if way in only_alone:
            print(f"{way:<12}{statistics.median(medians[way, False]):>10.1f}{'-':>10}{'-':>16}")
            continue
        ratios = [b / a for a, b in zip(medians[way, False], medians[way, True], strict=True)]
        print(f"{way:<12}{statistics.median(medians[way, False]):>10.1f}{statistics.median(medians[way, True]):>10.1f}"
              f"{statistics.median(ratios):>16.2f}")


if __name__ == "__main__":
    main()
