#!/usr/bin/env python3
"""Training steps of two hosts joined by a slow link: sharding over all ranks beside sharding inside hosts, and wires of gradients.

    slow_links.py TESSERA MPIEXEC [--rate 50mbit] [--rounds 3] [--steps 12] [--only NAME ...] [--out FILE]

The hosts are namespaces of this machine (tests/hosts), of two ranks each; needs root. Before anything runs it prints what
each way should take: the bytes that the plan says a host receives in a step, over the rate. Then the ways run by turns, a
round after another; a round has each way once over the slow link. The last round has a perfect link, which shows what all but
the link takes. Prints medians; FILE gets a JSON line a run. 77: no hosts can be simulated here.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [os.path.join(HERE, "../hosts"), os.path.join(HERE, "../harness")]
from hosts import Hosts, impossible  # noqa: E402

PLACES = {"h1": 2, "h2": 2}
WARM = 2  # steps before those that count
DECK = """schema_version: 1
run: {name: slow, steps: 12, threads: 1}
model: {layers: 2, hidden: 256, heads: 4, seq_len: 32, norm: rms, activation: swiglu, position: rotary, ffn: 512}
data: {files: ["corpus.txt"]}
batch: {global: 4, micro: 1}
eval: {every_steps: 0}
sample: {tokens: 0}
reduce: {bucket_mib: 1, order: batch}
optimizer: {warmup_steps: 2}
checkpoint: {every_steps: 0}
"""
WAYS = {f"{sharding} {group} {wire}": (f"sharding={sharding}", f"parallel.sharding_group={group}", f"reduce.wire={wire}")
        for sharding, group, wire in (("optimizer", "all", "fp32"), ("optimizer", "host", "fp32"), ("full", "all", "fp32"), ("full", "host", "fp32"),
                                      ("optimizer", "all", "bf16"), ("optimizer", "all", "mxfp8"), ("full", "all", "mxfp8"),
                                      ("full", "host", "mxfp8"))}
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def words_of(settings):
    return [word for setting in settings for word in ("--set", setting)]


def bits_a_second(rate):
    """Of a rate as tc writes it, "50mbit"."""
    return next(float(rate.removesuffix(unit)) * factor for unit, factor in UNITS.items() if rate.endswith(unit))


def planned(options, deck, way):
    """Bytes that the host that receives most has from the other one in a step."""
    done = subprocess.run([options.tessera, "plan", deck, *words_of(way), "--ranks", "4", "--hosts", "2", "--json"], capture_output=True, text=True,
                          check=True, timeout=60)
    return 2 * json.loads(done.stdout)["hosts"]["bytes_across"]


def measured(options, hosts, number, name):
    """One run: its median step, and the bytes that each host received in a step."""
    directory = hosts.path(f"run{number}")
    before = {host: hosts.bytes_of(host, "rx") for host in PLACES}
    out = f"out{number}"
    process = hosts.start(options.mpiexec, PLACES, options.tessera, "train", hosts.path("deck.yaml"), "--set", f"run.steps={options.steps}",
                          "--set", f"checkpoint.dir={directory}", *words_of(WAYS[name]), out=out)
    if process.wait(3600) != 0:
        with open(hosts.path(out + ".err"), encoding="utf-8") as file:
            raise RuntimeError(f"{name}: {process.returncode}: {file.read()}")
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    of_step = {host: (hosts.bytes_of(host, "rx") - before[host]) / options.steps for host in PLACES}
    return {"way": name, "step_s": statistics.median(row["step_ms"] for row in rows[WARM:]) / 1000, "loss": rows[-1]["loss"],
            "bytes": max(of_step.values())}


def rounds(options, hosts, names):
    """Rows of all runs: those over the slow link, then those over a perfect one."""
    number = 0
    for i in range(options.rounds + 1):
        if i < options.rounds:
            hosts.slow("h2", options.rate)
        else:
            hosts.kill("h2")
            hosts.boot("h2")
        for name in names:
            row = {"round": i, "rate": options.rate if i < options.rounds else "perfect", **measured(options, hosts, number, name)}
            number += 1
            print(json.dumps(row), flush=True)
            yield row


def table(options, rows, names, bytes_of):
    text = f"{'way':<22}{'MB':>7}{'predicted s':>13}{'measured s':>12}{'from':>8}{'to':>8}{'perfect s':>11}{'steps/s':>9}\n"
    for name in names:
        slow = sorted(row["step_s"] for row in rows if row["way"] == name and row["rate"] != "perfect")
        perfect = next(row["step_s"] for row in rows if row["way"] == name and row["rate"] == "perfect")
        middle = statistics.median(slow)
        text += (f"{name:<22}{bytes_of[name] / 1e6:>7.2f}{8 * bytes_of[name] / bits_a_second(options.rate):>13.3f}{middle:>12.3f}{slow[0]:>8.3f}"
                 f"{slow[-1]:>8.3f}{perfect:>11.3f}{1 / middle:>9.2f}\n")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera", type=os.path.realpath)
    parser.add_argument("mpiexec")
    parser.add_argument("--rate", default="50mbit", help="of the link, both ways, as tc writes it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="ways whose names begin so")
    parser.add_argument("--out", help="file to which a line a run is appended")
    options = parser.parse_args()
    if why := impossible(options.mpiexec):
        print(f"skipped: {why}")
        return 77
    names = [name for name in WAYS if not options.only or name.startswith(tuple(options.only))]
    with tempfile.TemporaryDirectory(prefix="tessera-links-") as folder, Hosts(os.path.realpath(folder), 2) as hosts:
        hosts.write("corpus.txt", "".join(f"the {i * 7919 % 113} tiles of the {i % 17} mosaics\n" for i in range(400)))
        hosts.write("deck.yaml", DECK)
        bytes_of = {name: planned(options, hosts.path("deck.yaml"), WAYS[name]) for name in names}
        for name in names:
            print(f"{name}: {bytes_of[name] / 1e6:.2f} MB to a host, {8 * bytes_of[name] / bits_a_second(options.rate):.3f} s of the link", flush=True)
        rows = list(rounds(options, hosts, names))
    if options.out:
        with open(options.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps({"date": datetime.date.today().isoformat(), **row}) + "\n" for row in rows)
    print(table(options, rows, names, bytes_of), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
