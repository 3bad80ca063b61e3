#!/usr/bin/env python3
"""Training steps of two hosts joined by a slow link: sharding over all ranks beside sharding inside hosts, and wires of gradients.

    slow_links.py TESSERA MPIEXEC [--rates 50mbit ...] [--ranks 2] [--rounds 3] [--steps 12] [--warm 2] [--only NAME ...] [--out FILE]
                  [--deck FILE [--set KEY=VALUE ...]] [--gpus N] [--paced LIBRARY]

The hosts are namespaces of this machine (tests/hosts), of two ranks each, or of `--ranks`; needs root. Without a deck they
train a small model on CPUs. With `--gpus` a host sees N GPUs, which no other one sees. With `--paced`, for kernels that can
limit no link, hosts share the machine's loopback, and LIBRARY (build/*/tests/bench/libpaced_sockets.so) paces what ranks
send by TCP; the bytes are then those of the sends, without headers. Before anything runs it prints what each way should
take: the bytes that the plan says a host receives in a step, over the rate.
Then the ways run by turns, a round after another; a round has each way once over each slow link. The last round has a
perfect link, which shows what all but the link takes. Prints medians; FILE gets a JSON line a run. 77: no hosts can be
simulated here.
"""
import argparse
import datetime
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [os.path.join(HERE, "../hosts"), os.path.join(HERE, "../harness")]
from hosts import Hosts, bits_a_second, impossible  # noqa: E402

NAMES = ("h1", "h2")
PERFECT = "perfect"
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


class PacedHosts(Hosts):
    """Hosts without networks of their own, the first two of which are the sides of a link of paced_sockets.cpp."""
    namespaces = ("-m", "-u", "-i", "-p")
    needs = ""
    link = struct.Struct("=dqqqq")  # rate; of each side: when free, bytes sent

    def __init__(self, folder, count, library):
        super().__init__(folder, count)
        with open(self.path("link"), "wb") as file:
            file.write(bytes(self.link.size))
        for side, name in enumerate(self.names):
            self.environment[name] = {"LD_PRELOAD": library, "PACED_LINK": self.path("link"), "PACED_SIDE": side}

    def address(self, name):
        return "127.0.0.1"

    def begin_network(self):
        """All have that of the machine."""

    def join_network(self, name, perfect):
        """All have that of the machine."""

    def slow(self, name, rate):
        self.limit(bits_a_second(rate))

    def perfect(self, name):
        self.limit(0)

    def limit(self, rate):
        with open(self.path("link"), "r+b") as file:
            file.write(struct.pack("=d", rate))

    def bytes_of(self, name, direction):
        with open(self.path("link"), "rb") as file:
            _, _, first, _, second = self.link.unpack(file.read())
        return first if (name == self.names[0]) == (direction == "tx") else second


def words_of(settings):
    return [word for setting in settings for word in ("--set", setting)]


def settings_of(options, name):
    return words_of((*options.set, *WAYS[name]))


def planned(options, deck, name):
    """Bytes that a host has from the other one in a step, of the rank that receives most for each of its ranks."""
    done = subprocess.run([options.tessera, "plan", deck, *settings_of(options, name), "--ranks", str(2 * options.ranks), "--hosts", "2", "--json"],
                          capture_output=True, text=True, check=True, timeout=60)
    return options.ranks * json.loads(done.stdout)["hosts"]["bytes_across"]


def measured(options, hosts, deck, number, name):
    """One run: its median step, and the bytes that each host received in a step."""
    directory = hosts.path(f"run{number}")
    before = {host: hosts.bytes_of(host, "rx") for host in NAMES}
    out = f"out{number}"
    process = hosts.start(options.mpiexec, dict.fromkeys(NAMES, options.ranks), options.tessera, "train", deck, *settings_of(options, name),
                          "--set", f"run.steps={options.steps}", "--set", f"checkpoint.dir={directory}", out=out)
    if process.wait(3600) != 0:
        with open(hosts.path(out + ".err"), encoding="utf-8") as file:
            raise RuntimeError(f"{name}: {process.returncode}: {file.read()}")
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    shutil.rmtree(directory)
    of_step = {host: (hosts.bytes_of(host, "rx") - before[host]) / options.steps for host in NAMES}
    if min(of_step.values()) <= 0:
        raise RuntimeError(f"{name}: nothing crossed the link, whose rate had no effect then")
    return {"way": name, "step_s": statistics.median(row["step_ms"] for row in rows[options.warm:]) / 1000, "loss": rows[-1]["loss"],
            "bytes": max(of_step.values())}


def rounds(options, hosts, deck, names):
    """Rows of all runs: those over slow links, then those over a perfect one."""
    number = 0
    for i, rate in [*((i, rate) for i in range(options.rounds) for rate in options.rates), (options.rounds, PERFECT)]:
        if rate != PERFECT:
            hosts.slow("h2", rate)
        else:
            hosts.perfect("h2")
        for name in names:
            row = {"round": i, "rate": rate, **measured(options, hosts, deck, number, name)}
            number += 1
            print(json.dumps(row), flush=True)
            yield row


def seconds(rows, name, rate):
    return sorted(row["step_s"] for row in rows if row["way"] == name and row["rate"] == rate)


def table(rate, rows, names, bytes_of):
    text = (f"{rate}\n{'way':<22}{'MB':>9}{'of interface':>14}{'predicted s':>13}{'measured s':>12}{'from':>8}{'to':>8}{'perfect s':>11}"
            f"{'steps/s':>9}\n")
    for name in names:
        slow, perfect = seconds(rows, name, rate), seconds(rows, name, PERFECT)[0]
        middle = statistics.median(slow)
        received = statistics.median(row["bytes"] for row in rows if row["way"] == name and row["rate"] == rate)
        text += (f"{name:<22}{bytes_of[name] / 1e6:>9.2f}{received / 1e6:>14.2f}{8 * bytes_of[name] / bits_a_second(rate):>13.3f}{middle:>12.3f}"
                 f"{slow[0]:>8.3f}{slow[-1]:>8.3f}{perfect:>11.3f}{1 / middle:>9.2f}\n")
    return text


def gpus_of_host(number, gpus):
    """As many for each, in the order of hosts."""
    return ",".join(str(number * gpus + i) for i in range(gpus))


def hosts_in(folder, options):
    hosts = PacedHosts(folder, len(NAMES), options.paced) if options.paced else Hosts(folder, len(NAMES))
    for number, name in enumerate(NAMES if options.gpus else ()):
        hosts.environment.setdefault(name, {})["CUDA_VISIBLE_DEVICES"] = gpus_of_host(number, options.gpus)
    return hosts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera", type=os.path.realpath)
    parser.add_argument("mpiexec")
    parser.add_argument("--rates", nargs="+", default=["50mbit"], help="of the link, both ways, as tc writes them")
    parser.add_argument("--ranks", type=int, default=2, help="of a host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm", type=int, default=2, help="steps before those that count")
    parser.add_argument("--deck", type=os.path.realpath)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="of each host; fewer than its ranks: with --set proof.share_gpu=true")
    parser.add_argument("--paced", type=os.path.realpath, metavar="LIBRARY")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="ways whose names begin so")
    parser.add_argument("--out", help="file to which a line a run is appended")
    options = parser.parse_args()
    if why := impossible(options.mpiexec, PacedHosts if options.paced else Hosts):
        print(f"skipped: {why}")
        return 77
    names = [name for name in WAYS if not options.only or name.startswith(tuple(options.only))]
    with tempfile.TemporaryDirectory(prefix="tessera-links-") as folder, hosts_in(os.path.realpath(folder), options) as hosts:
        hosts.write("corpus.txt", "".join(f"the {i * 7919 % 113} tiles of the {i % 17} mosaics\n" for i in range(400)))
        hosts.write("deck.yaml", DECK)
        deck = options.deck or hosts.path("deck.yaml")
        bytes_of = {name: planned(options, deck, name) for name in names}
        for name in names:
            times = ", ".join(f"{8 * bytes_of[name] / bits_a_second(rate):.3f} s at {rate}" for rate in options.rates)
            print(f"{name}: {bytes_of[name] / 1e6:.2f} MB to a host, {times}", flush=True)
        rows = list(rounds(options, hosts, deck, names))
    if options.out:
        with open(options.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps({"date": datetime.date.today().isoformat(), **row}) + "\n" for row in rows)
    for rate in options.rates:
        print(table(rate, rows, names, bytes_of), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
