"""Compares two builds of the program: the same bits, and the same collectives at the same places.

usage: same_bits.py BASE NEW [--launcher mpiexec] [--cases N] [--jobs N]

Both train the decks of inputs/{quickstart,recipes,muon,experts}, made small, with either sharding, overlaps on and off, on 1
to 4 ranks, undisturbed, with evaluations, with saves, with a gradient that is not finite and with a step made again. Equal
must be: debug.trace byte for byte (digests, launches of quantizers, collectives in order, how many overlapped), the order in
which every rank begins regions and collectives in steps 5 to 8, metrics, the digest of the last checkpoint, and `plan --json`
but for keys that only NEW has.

--cases N: so many of all cases, drawn evenly over all choices (default 24; 0: every case, hours). Ends with 1 after a difference.
"""
import argparse
import concurrent.futures
import difflib
import glob
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import typing

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../harness"))
import runs  # noqa: E402

INPUTS = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../inputs"))
DECKS = sorted(os.path.relpath(path, INPUTS) for folder in ("quickstart", "recipes", "muon", "experts")
               for path in glob.glob(os.path.join(INPUTS, folder, "*.yaml")))
SMALL = ("run.steps=8", "run.threads=1", "model.layers=3", "model.hidden=64", "model.heads=2", "model.ffn=128",
         "model.seq_len=32", "batch.global=12", "eval.every_steps=0", "eval.batches=1", "data.eval_fraction=0.1",
         "sample.tokens=0", "optimizer.warmup_steps=2", "checkpoint.every_steps=0", "checkpoint.async=false", "data.files=[corpus.txt]")
OVERLAPS = {"both": (), "none": ("proof.gather_overlap=false", "proof.reduce_overlap=false"), "gathers": ("proof.reduce_overlap=false",),
            "reductions": ("proof.gather_overlap=false",)}
EVENTS = ("nothing", "evaluations", "saves", "nan", "redo")
WAYS = {
    "as it is": (),
    "large": ("reduce.bucket_mib=25",),
    "again": ("recompute.mode=full",),
    "ring": ("proof.wire=bf16", "proof.staging=ring"),
    "values": ("precision.primary_weights=bf16",),
    "tied": ("model.tied_head=true",),
    "modules": ("gather.granularity=module", "recompute.mode=selective", "recompute.modules=[attention]"),
    "codes": ("proof.wire=quantized", "proof.cuts=tile"),
    "head": ("model.tied_head=false",),
}


class Case(typing.NamedTuple):
    deck: str
    sharding: str
    overlap: str
    ranks: int
    event: str
    way: str
    micros: int  # micro-batches of a rank; 0: as many as it has sequences

    def settings(self, folder):
        """The case as values of --set; what a deck's recipe or sharding refuses is left out."""
        coded = "recipes/" in self.deck
        way = [one for one in WAYS[self.way] if not (one.startswith("precision.primary") and not coded)]
        if self.sharding == "full" or not coded:
            way = [one for one in way if not one.startswith(("proof.wire", "proof.staging", "proof.cuts"))]
        if self.sharding != "full":
            way = [one for one in way if not one.startswith("gather.granularity")]
        if self.sharding == "full" or (coded and "mxfp8" in self.deck and "mxfp8_2d" not in self.deck):
            way.append("proof.cuts=tile" if coded else "proof.cuts=flat")
        if self.sharding == "full":
            way += ["proof.wire=auto", "proof.staging=auto", "checkpoint.quantized=false"]
        event = {"evaluations": ("eval.every_steps=1",), "saves": ("checkpoint.every_steps=1",)}.get(self.event, ())
        bucket = () if "reduce.bucket_mib=25" in way else ("reduce.bucket_mib=0.03",)
        return [*SMALL, f"data.root={folder}", f"batch.micro={12 // self.ranks if self.micros else 1}", f"sharding={self.sharding}", *bucket,
                *OVERLAPS[self.overlap], *dict.fromkeys(way), *event]

    def fault(self):
        return {"nan": f"step3:{self.ranks - 1}:nan", "redo": "step3:all:redo"}.get(self.event, "")


def every():
    ways, micros = itertools.cycle(WAYS), itertools.cycle((0, 1, 0, 0))
    for deck, sharding, overlap, ranks, event in itertools.product(DECKS, ("optimizer", "full"), OVERLAPS, (1, 2, 3, 4), EVENTS):
        case = Case(deck, sharding, overlap, ranks, event, next(ways), next(micros))
        if "experts/" not in deck or ranks % 2 == 0:
            yield case


def drawn(number):
    """`number` of all cases (0: all), at a stride that shares no factor with any choice's length."""
    cases = list(every())
    if number == 0 or number >= len(cases):
        return cases
    stride = next(step for step in range(len(cases) // number, len(cases)) if math.gcd(step, len(cases)) == 1)
    return [cases[i * stride % len(cases)] for i in range(number)]


class Program:
    """One build; `run` returns all that must be equal, by name."""

    def __init__(self, path, launcher):
        self.path, self.launcher = os.path.abspath(path), launcher
        self.draws = self.call(".", self.path, "explain", "data.eval_windows")[0] == 0

    def deck(self, name, folder):
        """The deck as both programs read it: evaluated are the last windows, which a program without the key takes always."""
        for path in glob.glob(os.path.join(INPUTS, os.path.dirname(name), "*.yaml")):
            with open(path, encoding="utf-8") as file, open(os.path.join(folder, os.path.basename(path)), "w", encoding="utf-8") as copy:
                copy.write(re.sub(r", eval_(windows|seed): \w+", "", file.read()))
        return os.path.join(folder, os.path.basename(name)), ["data.eval_windows=tail"] if self.draws else []

    def call(self, folder, *command, fault=""):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=runs.PATIENCE, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "TESSERA_FAULT": fault})
        return done.returncode, done.stdout, done.stderr

    def run(self, case, folder):
        os.makedirs(folder)
        with open(os.path.join(folder, "corpus.txt"), "w", encoding="utf-8") as file:
            file.write(runs.CORPUS)
        deck, cut = self.deck(case.deck, folder)
        out = {name: os.path.join(folder, name) for name in ("trace", "profile", "run")}
        settings = [*case.settings(folder), *cut, f"checkpoint.dir={out['run']}", f"debug.trace={out['trace']}",
                    f"debug.profile={out['profile']}"]
        words = [word for setting in settings for word in ("--set", setting)]
        code, _, errors = self.call(folder, self.launcher, "-n", str(case.ranks), self.path, "train", deck, *words, fault=case.fault())
        found = {"exit code": code, "errors": errors.replace(folder, "") if code else ""}
        if code == 0:
            found["trace"] = self.text(out["trace"])
            found["order"] = order(self.text(out["profile"]))
            found["metrics"] = [[row.get(key) for key in ("step", "loss", "eval_loss", "grad_norm", "lr")]
                                for row in map(json.loads, self.text(out["run"], "metrics.jsonl").splitlines())]
            found["digest"] = json.loads(self.call(folder, self.path, "checkpoint", "inspect", out["run"], "--json")[1])["content_digest"]
        found["plan"] = self.call(folder, self.path, "plan", deck, "--ranks", str(case.ranks), "--json", *words)[1].replace(folder, "")
        return found

    @staticmethod
    def text(*path):
        with open(os.path.join(*path), encoding="utf-8") as file:
            return file.read()


def order(profile):
    """What each rank began, regions and collectives, in the order of their beginnings."""
    ranks = {}
    for event in sorted((e for e in json.loads(profile)["traceEvents"] if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        ranks.setdefault(event["pid"], []).append(f"{event['name']} {event['args'].get('bytes', '')}".strip())
    return [f"rank {rank}: {what}" for rank, began in sorted(ranks.items()) for what in began]


def differences(base, new):
    """Sentences on what differs between two results of Program.run()."""
    for name in ("exit code", "errors", "metrics", "digest"):
        if base.get(name) != new.get(name):
            yield f"{name}: {base.get(name)} -> {new.get(name)}"[:400]
    for number, (before, after) in enumerate(itertools.zip_longest(base.get("trace", "").splitlines(), new.get("trace", "").splitlines())):
        if before != after:
            one, other = json.loads(before or "{}"), json.loads(after or "{}")
            yield f"trace: row {number}: " + ", ".join(key for key in {**one, **other} if one.get(key) != other.get(key))
    if base.get("order") != new.get("order"):
        lines = difflib.unified_diff(base.get("order", []), new.get("order", []), n=2, lineterm="")
        yield "order:\n  " + "\n  ".join(itertools.islice(lines, 30))
    plans = [json.loads(one["plan"] or "{}") for one in (base, new)]
    if odd := [key for key in plans[0] if plans[0][key] != plans[1].get(key)]:
        yield f"plan: {', '.join(odd)}"


def compare(base, new, case):
    """Differences between the two programs in one case, and whether it is a run at all: not refused."""
    with tempfile.TemporaryDirectory(prefix="tessera-same-") as folder:
        one, other = (program.run(case, os.path.join(folder, name)) for program, name in ((base, "base"), (new, "new")))
        return list(differences(one, other)), one["exit code"] == 0, one["errors"]


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("base")
    words.add_argument("new")
    words.add_argument("--launcher", default="mpiexec")
    words.add_argument("--cases", type=int, default=24)
    words.add_argument("--jobs", type=int, default=1)
    asked = words.parse_args()
    base, new = (Program(path, asked.launcher) for path in (asked.base, asked.new))
    different = refused = 0
    cases = drawn(asked.cases)
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        for case, (found, ran, errors) in zip(cases, pool.map(lambda one: compare(base, new, one), cases)):
            different += bool(found)
            refused += not ran
            if found or not ran:
                print(case, *found, *([] if ran else ["refused by BASE: " + errors[-300:]]), sep="\n  ", flush=True)
    print(f"{len(cases)} cases, {refused} of them refused; {different} differ")
    return 1 if different or refused == len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
