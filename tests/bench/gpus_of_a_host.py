#!/usr/bin/env python3
"""All GPUs of one host: the same bits on any number of them, and the speed of 1, 2, 4 ... of them.

    gpus_of_a_host.py TESSERA MPIEXEC bits OUT [--gpus N] [--seconds 580] [--only NAME ...]
    gpus_of_a_host.py TESSERA MPIEXEC speed OUT [--gpus N] [--seconds 580] [--only NAME ...] [--beside NAME=COMMAND ...]

`bits` trains small models with `reduce.order: batch` on 1, 2, 4 ... GPUs: dense, a tied head under Muon, mixtures with 1, 2, 4 ... ranks a set of
experts, whose rows move in peers' memory and by exchanges; bf16, nvfp4, fp8_block; both shardings; captured and launched, by copy engines and by NCCL; and through restarts
on half the GPUs and back. Logged sums and digests must equal those of the fewest GPUs.
`speed` trains the decks of inputs/bench on n GPUs, as many groups of n at once as the host has, so that n GPUs are compared
with simultaneous single runs; then Llama-3 8B on all of them; then each command of --beside, which its output tells about.
Both start no run for which the seconds do not suffice, and name what was left out. They write OUT/bits.jsonl or
OUT/speed.jsonl, a line a run, and print a table. Without a GPU, N ranks take the place of the GPUs.
"""
import argparse
import concurrent.futures
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
SMALL = """schema_version: 1
run: {name: small, seed: 5, steps: 8}
model: {layers: 2, hidden: 256, heads: 2, seq_len: 64, norm: rms, activation: swiglu, position: rotary, MODEL}
data: {files: [corpus.txt], eval_fraction: 0.1}
batch: {global: 16, micro: 1}
eval: {every_steps: 4, batches: 2}
precision: {recipe: RECIPE}
reduce: {order: batch, bucket_mib: 0.2}
optimizer: {matrices: RULE, lr: 0.01, warmup_steps: 2}
checkpoint: {every_steps: 4}
"""
MODELS = {"dense": ("ffn: 512, tied_head: false", "adamw"), "tied": ("ffn: 512, tied_head: true", "muon"),
          "mixture": ("ffn: 256, tied_head: false, moe: {experts: 8, top_k: 2}", "adamw")}
RECIPES = ("bf16", "nvfp4", "fp8_block")
LOGGED = ("step", "loss", "eval_loss", "balance_loss", "z_loss", "expert_load", "grad_norm")
SCALED = {"gpt2_d12": (), "gpt2_d48": (), "moe": (), "gpt2_d12 fp8_block": ("precision.recipe=fp8_block",),
          "moe P": ("parallel.expert=RANKS", "proof.expert_rows=exchange"), "moe P peers": ("parallel.expert=RANKS", "proof.expert_rows=peers")}
TOKENS = {"random.bin": 50257, "llama3.bin": 128256}
STEPS, WARM = 16, 6


class Host:
    """The GPUs of this host, each in use by one run at most."""

    def __init__(self, options):
        self.options, self.free, self.changed = options, list(range(options.gpus)), threading.Condition()
        self.end = time.monotonic() + options.seconds

    def left(self):
        return self.end - time.monotonic()

    def take(self, gpus):
        with self.changed:
            self.changed.wait_for(lambda: len(self.free) >= gpus)
            mine, self.free = self.free[:gpus], self.free[gpus:]
            return mine

    def give(self, gpus):
        with self.changed:
            self.free = sorted(self.free + gpus)
            self.changed.notify_all()

    def train(self, ranks, deck, *settings, stop_at=None):
        """Trains on `ranks` GPUs, as soon as so many are free, to the end or a step; None if the seconds do not suffice."""
        mine = self.take(ranks)
        try:
            if self.left() < 30:
                return None
            words = [word for setting in settings for word in ("--set", setting)] + (["--stop-at", str(stop_at)] if stop_at else [])
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            if not self.options.host:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, mine))
            done = subprocess.run([self.options.mpiexec, "-n", str(ranks), self.options.tessera, "train", deck, *words], env=environment,
                                  capture_output=True, text=True, check=False, timeout=max(1, self.left()))
            if done.returncode != (75 if stop_at else 0):
                raise RuntimeError(f"{deck} on {ranks}, {settings}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
            return True
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.give(mine)


def rows_of(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def digest_of(options, folder):
    told = subprocess.run([options.tessera, "checkpoint", "inspect", folder, "--json"], capture_output=True, text=True, check=True).stdout
    return json.loads(told)["content_digest"]


def sizes(most):
    return [n for n in (1, 2, 4, 8, 16) if n <= most]


def ways(model, ranks):
    """Settings of the runs of a model on so many GPUs."""
    for experts in sizes(ranks) if model == "mixture" else (1,):
        for sharding in ("optimizer", "full") if ranks > 1 else ("optimizer",):
            for graph, copies in (("true", "true"), ("false", "false")) if ranks > 1 else (("true", "true"), ("false", "true")):
                reached = experts > 1 and copies == "true"
                yield (f"parallel.expert={experts}", f"sharding={sharding}", f"proof.graph={graph}", f"proof.copy_engines={copies}",
                       f"proof.expert_rows={'peers' if reached else 'exchange'}")


def bits(host, folder):
    """Returns the rows of a table: what ran, and whether it differs from one GPU."""
    with open(f"{folder}/corpus.txt", "w") as file:
        file.write("".join(f"the {i * 7919 % 113} tiles of the {i % 17} mosaics\n" for i in range(4000)))

    def one(number, model, recipe, plan):
        """Trains in one folder, a part for each entry of `plan`: ranks, settings, step to stop at."""
        name = f"{folder}/run{number}"
        for ranks, settings, stop_at in plan:
            if not host.train(ranks, f"{folder}/{model}-{recipe}.yaml", *settings, f"checkpoint.dir={name}", stop_at=stop_at):
                return None
        return [{key: row.get(key) for key in LOGGED} for row in rows_of(name)], digest_of(host.options, name)

    cases = []
    for model, (shape, rule) in MODELS.items():
        if not host.options.wanted(model):
            continue
        for recipe in RECIPES:
            with open(f"{folder}/{model}-{recipe}.yaml", "w") as file:
                file.write(SMALL.replace("MODEL", shape).replace("RECIPE", recipe).replace("RULE", rule))
            cases += [(model, recipe, [(ranks, way, None)]) for ranks in sizes(host.options.gpus) for way in ways(model, ranks)]
            most = sizes(host.options.gpus)[-1]
            if most > 1:
                full, half = (("parallel.expert=1", f"sharding={'full' if n > 1 else 'optimizer'}") for n in (most, most // 2))
                cases += [(model, recipe, [(most, full, 4), (most // 2, half, None)]),
                          (model, recipe, [(most // 2, half, 4), (most, full, None)])]
    return compared(host, cases, one)


def compared(host, cases, one):
    with concurrent.futures.ThreadPoolExecutor(host.options.gpus) as pool:
        found = list(pool.map(lambda case: one(case[0], *case[1]), enumerate(cases)))
    table, first = [], {}
    for (model, recipe, plan), result in zip(cases, found):
        # Ranks of one set of experts multiply their rows together, so each number of them is a definition of its own.
        kind = (model, recipe, plan[0][1][0])
        base = first.setdefault(kind, result)
        state = "left out" if result is None or base is None else "equal" if result == base else "DIFFERENT"
        table.append({"model": model, "recipe": recipe, "runs": [{"gpus": ranks, "settings": way} for ranks, way, _ in plan],
                      "digest": result and result[1], "state": state})
    return table


class Used(threading.Thread):
    """The most memory in use on any GPU, MiB, polled."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.ended = 0, threading.Event()

    def run(self):
        while not self.ended.wait(0.5):
            told = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False)
            self.most = max([self.most, *map(int, told.stdout.split())])


def timed(host, folder, name, ranks, groups, settings):
    """A deck on `groups` groups of `ranks` GPUs at once: a row of the table; None if the seconds do not suffice."""
    deck = f"{ROOT}/inputs/bench/{name.split()[0]}.yaml"
    places = [f"{folder}/{name.replace(' ', '_')}-{ranks}-{group}" for group in range(groups)]
    used = Used()
    if not host.options.host:
        used.start()
    with concurrent.futures.ThreadPoolExecutor(groups) as pool:
        done = list(pool.map(lambda place: host.train(ranks, deck, f"run.steps={STEPS}", "checkpoint.every_steps=0", "eval.every_steps=0",
                                                      f"data.root={host.options.data}", f"checkpoint.dir={place}",
                                                      *(setting.replace("RANKS", str(ranks)) for setting in settings)), places))
    used.ended.set()
    if not all(done):
        return None
    rows = [rows_of(place) for place in places]
    rates = [statistics.median(row["tokens_per_s"] for row in of[WARM:]) for of in rows]
    return {"deck": name, "gpus": ranks, "groups": groups, "tokens_per_s": sum(rates), "step_ms": statistics.median(row["step_ms"] for of in rows for row in of[WARM:]),
            "planned_mib": rows[0][-1]["memory_bytes"] / 2**20, "used_mib": used.most, "loss": rows[0][-1]["loss"]}


def speed(host, folder):
    options = host.options
    for file, vocabulary in TOKENS.items():
        if not os.path.exists(f"{options.data}/{file}"):
            subprocess.run([sys.executable, f"{ROOT}/tests/bench/random_tokens.py", f"{options.data}/{file}", "4200000", str(vocabulary)], check=True)
    plan = []
    for name, settings in SCALED.items():
        micro = deck_number(name.split()[0], "global")
        plan += [(name, n, options.gpus // n, (f"batch.global={micro * n}", *settings)) for n in sizes(options.gpus)]
    if options.gpus >= 4:
        plan = [(f"llama3_8b {recipe}", options.gpus, 1, (f"batch.global={8 * options.gpus}", f"precision.recipe={recipe}"))
                for recipe in ("bf16", "fp8_tensor")] + plan
    table = []
    for name, n, groups, settings in plan:
        if not options.wanted(name):
            continue
        row = timed(host, folder, name, n, groups, settings) or {"deck": name, "gpus": n, "state": "left out"}
        single = next((one for one in table if one["deck"] == name and one["gpus"] == 1 and "tokens_per_s" in one), None)
        if "tokens_per_s" in row and single:
            row["of_single"] = row["tokens_per_s"] / single["tokens_per_s"]
        table.append(row)
        print(json.dumps(row), flush=True)
    for beside in options.beside:
        name, command = beside.split("=", 1)
        try:
            done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False, timeout=max(1, host.left()))
            row = {"beside": name, "code": done.returncode, "output": done.stdout[-4000:]}
        except subprocess.TimeoutExpired:
            row = {"beside": name, "state": "left out"}
        table.append(row)
        print(json.dumps(row), flush=True)
    return table


def deck_number(deck, key):
    with open(f"{ROOT}/inputs/bench/{deck}.yaml") as file:
        return int(file.read().split(f"{key}:")[1].split(",")[0].split("}")[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("mpiexec")
    parser.add_argument("what", choices=("bits", "speed"))
    parser.add_argument("out")
    parser.add_argument("--gpus", type=int, default=0, help="how many; 0: all")
    parser.add_argument("--seconds", type=float, default=580)
    parser.add_argument("--data", default=f"{ROOT}/runs", help="folder of the random tokens, which are made if they are not there")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="decks or models whose names begin so")
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    options.wanted = lambda name: not options.only or name.startswith(tuple(options.only))
    options.host = not os.path.exists("/dev/nvidiactl")
    if options.gpus == 0:
        listed = "" if options.host else subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
        options.gpus = len(listed.splitlines()) or 2
    options.tessera = os.path.realpath(options.tessera)
    os.makedirs(options.out, exist_ok=True)
    host = Host(options)
    with tempfile.TemporaryDirectory(prefix="tessera-gpus-") as folder:
        table = bits(host, folder) if options.what == "bits" else speed(host, folder)
    with open(f"{options.out}/{options.what}.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in table)
    states = [row.get("state", "measured") for row in table]
    print(", ".join(f"{states.count(state)} {state}" for state in sorted(set(states))))
    for row in table:
        if row.get("state") == "DIFFERENT":
            print(json.dumps(row))
    return 1 if "DIFFERENT" in states or not {"equal", "measured"} & set(states) else 0


if __name__ == "__main__":
    sys.exit(main())
