"""With `reduce.order: batch` the number of ranks changes no bit: traces, evaluations and the digests of all checkpoints are
equal on 1 to 6 ranks, for every recipe, way to hold weights, sharding, sharding group, model, rule, overlap, recomputation and
wire of gradients, with faults, and through restarts on other numbers of ranks.


Tries cases in which any two settings of any two kinds meet. With TESSERA_MATRIX=whole every setting of ranks, recipe,
model and sharding meets every other, and the other kinds take turns; TESSERA_MATRIX_JOBS of them side by side.
TESSERA_MATRIX_PART=i/n: every n-th of them, from the i-th on.
"""
import concurrent.futures
import itertools
import json
import os
import random
import threading
import typing

import h5py
import numpy
import pytest

import held_runs
import runs

WHOLE = os.environ.get("TESSERA_MATRIX") == "whole"
JOBS = int(os.environ.get("TESSERA_MATRIX_JOBS", "1"))
STEPS, FAULTY = 5, 3
DECK = """schema_version: 1
run: {name: any, seed: 5, steps: STEPS, threads: 1}
model: {layers: 2, MODEL, heads: 2, seq_len: 32, norm: rms, activation: swiglu, position: rotary}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 6, micro: 1}
eval: {every_steps: 2, batches: 2}
precision: {recipe: RECIPE}
reduce: {bucket_mib: 0.02, order: batch}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, every_steps: 2, keep_last: 10, io: direct}
"""
EXPERTS = "hidden: 64, ffn: 96, tied_head: false, moe: {experts: 4, top_k: 2, weights: %s}"
DEEP = ("hidden: 64, ffn: 96, tied_head: false, moe: {experts: 8, top_k: 2, weights: %s, ffn: 64, first_dense: 1, shared_ffn: 96, shared_gate: true, "
        "scores: sigmoid, scale: 1.5, groups: 4, top_groups: 2, bias: true, bias_rate: 0.01, "
        "balance_over: batch}")
MODELS = {
    "dense": "hidden: 64, ffn: 128, tied_head: false, bias: true",
    "odd": "hidden: 96, ffn: 160, tied_head: true",
    "single": EXPERTS % "single",
    "discrete": EXPERTS % "discrete",
    "deep": DEEP % "single",
    "spread": DEEP % "discrete",
}
SETTINGS_OF = {"spread": ("parallel.expert=2",)}
CORE = ("step", "loss", "norm", "logits", "gradients", "masters")
LOGGED = ("step", "loss", "eval_loss", "balance_loss", "z_loss", "expert_load", "grad_norm", "clip_coef", "skipped")


class Case(typing.NamedTuple):
    ranks: int
    recipe: str
    model: str
    sharding: str
    held: str
    rule: str
    event: str
    gather: str
    reduce: str
    recompute: str
    group: str = "all"
    wire: str = "fp32"

    def legal(self):
        if self.recipe in ("bf16", "fp32") and self.held == "quantized":
            return False
        if self.group != "all" and (self.ranks % int(self.group) or self.model == "spread" and int(self.group) % 2):
            return False
        if self.model == "spread":
            return self.ranks in (4, 6)
        return self.sharding == "optimizer" or self.ranks > 1

    def shared(self):
        """What a run of the least ranks has in common with this case."""
        return (self.recipe, self.model, self.rule, self.event, self.wire)


KINDS = Case(ranks=(2, 3, 4, 5, 6, 1), recipe=("bf16", "fp32", "fp8_block", "fp8_tensor", "mxfp8", "mxfp8_2d", "mxfp6_e2m3", "mxfp4", "nvfp4", "nvfp4_46"), model=tuple(MODELS),
             sharding=("optimizer", "full"), held=("bf16", "quantized"), rule=("adamw", "muon"),
             event=("nothing", "nan", "redo"), gather=("true", "false"), reduce=("true", "false"),
             recompute=("none", "selective", "full"), group=("all", "2", "3", "1"), wire=("fp32",))
# Sharding groups: every recipe's kind of cuts, both shardings, whole matrices, experts on several ranks of a group, copies that
# travel apart, without overlap and with all of it computed again; two and three groups, of one to three ranks.
GROUPED = [Case(4, "bf16", "dense", "optimizer", "bf16", "adamw", "nothing", "true", "true", "none", "2"),
           Case(4, "nvfp4", "spread", "full", "quantized", "adamw", "nothing", "true", "true", "full", "2"),
           Case(6, "fp8_block", "odd", "full", "bf16", "adamw", "redo", "true", "true", "selective", "3"),
           Case(6, "fp8_block", "dense", "optimizer", "quantized", "muon", "nothing", "true", "true", "none", "2"),
           Case(4, "mxfp8", "dense", "full", "quantized", "muon", "nan", "false", "false", "full", "1"),
           Case(6, "nvfp4", "single", "full", "bf16", "muon", "nothing", "true", "true", "none", "2"),
           Case(4, "nvfp4", "discrete", "optimizer", "bf16", "adamw", "nothing", "false", "true", "none", "1"),
           Case(4, "bf16", "spread", "full", "bf16", "muon", "nothing", "true", "false", "none", "2")]

WIRES = {
    "fp32": (),
    "bf16": ("reduce.wire=bf16",),
    "drawn": ("reduce.wire=bf16", "reduce.rounding=stochastic"),
    "mxfp8": ("reduce.wire=mxfp8",),
    "fp8_block": ("reduce.wire=fp8_block",),
    "kept": ("reduce.wire=mxfp8", "reduce.keep=[norms, biases, router, embedding]"),
}
# Wires: both shardings, both rules, models whose matrices end inside a block, experts on one rank and on several, faults, and
# sharding groups. 4 and 5 ranks have idle ones in the last round; 6 have a round alone.
WIRED = [Case(2, "bf16", "dense", "optimizer", "bf16", "adamw", "nothing", "true", "true", "none", "all", "bf16"),
         Case(4, "bf16", "dense", "full", "bf16", "adamw", "nothing", "true", "true", "full", "all", "bf16"),
         Case(3, "bf16", "odd", "full", "bf16", "adamw", "nan", "true", "true", "none", "all", "mxfp8"),
         Case(4, "bf16", "odd", "optimizer", "bf16", "adamw", "nan", "true", "false", "none", "all", "mxfp8"),
         Case(6, "mxfp8", "dense", "optimizer", "quantized", "muon", "nothing", "true", "true", "none", "all", "mxfp8"),
         Case(4, "mxfp8", "dense", "full", "quantized", "muon", "nothing", "false", "false", "none", "2", "mxfp8"),
         Case(3, "fp8_block", "odd", "optimizer", "quantized", "adamw", "redo", "true", "true", "selective", "all", "fp8_block"),
         Case(5, "fp8_block", "odd", "full", "bf16", "adamw", "redo", "true", "true", "none", "all", "fp8_block"),
         Case(2, "bf16", "deep", "full", "bf16", "muon", "nothing", "true", "true", "none", "all", "fp8_block"),
         Case(3, "bf16", "deep", "optimizer", "bf16", "muon", "nothing", "true", "true", "none", "all", "fp8_block"),
         Case(4, "bf16", "spread", "full", "bf16", "adamw", "nothing", "true", "true", "none", "all", "drawn"),
         Case(6, "bf16", "spread", "optimizer", "bf16", "adamw", "nothing", "true", "true", "none", "2", "drawn"),
         Case(3, "nvfp4", "single", "optimizer", "quantized", "adamw", "redo", "true", "true", "none", "all", "drawn"),
         Case(4, "nvfp4", "discrete", "full", "bf16", "adamw", "nothing", "true", "true", "none", "all", "kept"),
         Case(2, "nvfp4", "discrete", "optimizer", "bf16", "adamw", "nothing", "true", "true", "none", "all", "kept")]
# Activations and gradients with scales of rows: both shardings and rules, weights held both ways, faults, experts on several ranks.
ROWED = [Case(2, held_runs.ROWS, "dense", "optimizer", "quantized", "adamw", "nothing", "true", "true", "none"),
         Case(3, held_runs.ROWS, "dense", "full", "bf16", "adamw", "nothing", "true", "false", "selective"),
         Case(4, held_runs.ROWS, "odd", "full", "quantized", "muon", "nan", "false", "true", "full"),
         Case(5, held_runs.ROWS, "single", "optimizer", "bf16", "adamw", "redo", "true", "true", "full"),
         Case(3, held_runs.ROWS, "single", "full", "quantized", "adamw", "redo", "true", "true", "none"),
         Case(6, held_runs.ROWS, "spread", "full", "quantized", "adamw", "nothing", "true", "true", "none", "2")]


def whole():
    turns = itertools.count()
    for ranks, recipe, model, sharding, held, event in itertools.product(*KINDS[:5], KINDS.event):
        turn = next(turns)
        rest = [options[turn // (i + 1) % len(options)] for i, options in enumerate((KINDS.rule, *KINDS[7:]))]
        case = Case(ranks, recipe, model, sharding, held, rest[0], event, *rest[1:])
        case = case if case.legal() else case._replace(group="all")
        if case.legal():
            yield case


def pairs_of(case):
    return {((i, case[i]), (j, case[j])) for i, j in itertools.combinations(range(len(case)), 2)}


def every_pair():
    """Pairwise testing: few cases that contain every pair of settings that can be combined; greedy, from random draws."""
    draw = random.Random(2)
    drawn = [case for case in (Case(*map(draw.choice, KINDS)) for _ in range(8000)) if case.legal()]
    left = set().union(*map(pairs_of, drawn))
    while left:
        best = max(draw.sample(drawn, 400), key=lambda case: len(pairs_of(case) & left))
        if pairs_of(best) & left:
            left -= pairs_of(best)
            yield best


CASES = list(whole() if WHOLE else every_pair())


class AnyRanks(runs.Runs):
    def setup_method(self):
        super().setup_method()
        self.made, self.lock, self.numbers = {}, threading.Lock(), itertools.count()

    def run_of(self, name, recipe, model, ranks, *settings, code=0, fault="", arguments=()):
        """The rows of a run, or of the rest of a stopped one: trace, evaluations."""
        deck = self.write(name + ".yaml", DECK.replace("STEPS", str(STEPS)).replace("MODEL", MODELS[model])
                          .replace("RECIPE", "bf16" if recipe == "fp32" else recipe).replace("DIR", self.path(name)))
        trace = self.path(f"{name}.{next(self.numbers)}.jsonl")
        settings = (*settings, *SETTINGS_OF.get(model, ()), *(("precision.compute=fp32",) if recipe == "fp32" else ()))
        words = [word for setting in (*settings, "debug.trace=" + trace) for word in ("--set", setting)]
        self.train(code, ranks, deck, *words, *arguments, fault=fault)
        return [{key: row[key] for key in CORE} for row in self.traced(trace, fault)]

    def out_of(self, code, verb, *arguments, ranks=1):
        return self.run_to_its_end(code, ranks, verb, *arguments)[0]

    def outcome(self, name):
        """Logged sums and evaluations, and the digests of all checkpoints."""
        losses = [{key: row.get(key) for key in LOGGED} for row in self.json_lines(name, "metrics.jsonl")]
        steps = sorted(entry for entry in os.listdir(self.path(name)) if entry.startswith("step_"))
        return losses, {step: self.final(self.path(name, step)) for step in steps}

    def alone(self, case):
        """The run on the least ranks that the model takes, made once for all cases that share it."""
        with self.lock:
            future, mine = self.made.get(case.shared()), case.shared() not in self.made
            if mine:
                future = self.made[case.shared()] = concurrent.futures.Future()
        if mine:
            try:
                name = f"alone{next(self.numbers)}"
                rows = self.run_of(name, case.recipe, case.model, 2 if case.model == "spread" else 1,
                                   f"optimizer.matrices={case.rule}", *WIRES[case.wire], fault=self.fault(case))
                future.set_result((rows, self.outcome(name)))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    @staticmethod
    def fault(case):
        return {"nan": f"step{FAULTY}:0:nan", "redo": f"step{FAULTY}:all:redo"}.get(case.event, "")

    def check(self, case):
        rows, outcome = self.alone(case)
        name = f"run{next(self.numbers)}"
        settings = [f"sharding={case.sharding}", f"optimizer.matrices={case.rule}", f"proof.gather_overlap={case.gather}",
                    f"proof.reduce_overlap={case.reduce}", f"recompute.mode={case.recompute}", "debug.replica_hash_every=2",
                    f"parallel.sharding_group={case.group}", *WIRES[case.wire]]
        if case.recipe not in ("bf16", "fp32"):
            settings.append(f"precision.primary_weights={case.held}")
        found = self.run_of(name, case.recipe, case.model, case.ranks, *settings, fault=self.fault(case))
        assert len(found) == STEPS
        for expected, row in zip(rows, found):
            for key in CORE:
                assert expected[key] == row[key], (case, "step", row["step"], key)
        losses, digests = self.outcome(name)
        assert losses == outcome[0], case
        assert digests == outcome[1], case
        assert len(losses) == STEPS and len(digests) > 1, "what is not compared shows nothing"
        assert rows[0]["masters"] != rows[-1]["masters"], "a run that learns nothing shows nothing"

    def check_all(self, cases):
        assert self.check_each(self.check, cases, JOBS, WHOLE) > 4

    @pytest.mark.parametrize("recipe", KINDS.recipe)
    def test_bits(self, recipe):
        self.check_all(runs.part_of(case for case in CASES if case.recipe == recipe))

    def test_sharding_groups(self):
        self.check_all(GROUPED)

    def test_groups_of_one_rank(self):
        """They shard nothing, so that full sharding has the bits of the optimizer's; larger groups have those of all ranks."""
        def masters(sharding, group):
            rows = self.run_of(f"order_{sharding}_{group}", "fp32", "dense", 4, "reduce.order=rank", "batch.global=16", f"sharding={sharding}",
                               f"parallel.sharding_group={group}")
            return [row["masters"] for row in rows]
        optimizer, full = masters("optimizer", "all"), masters("full", "all")
        assert len(optimizer) == STEPS and optimizer[0] != optimizer[-1] != full[-1], "runs whose orders differ, and that learn"
        assert masters("full", "1") == optimizer
        assert masters("full", "2") == full
        assert masters("optimizer", "2") == masters("optimizer", "1") == optimizer

    def test_rows(self):
        self.check_all(ROWED)
        assert self.alone(ROWED[0])[0][0]["gradients"] != self.alone(ROWED[0]._replace(recipe="nvfp4"))[0][0]["gradients"]

    def test_wires(self):
        self.check_all(WIRED)
        outcomes = {case.shared(): self.alone(case)[0][0]["gradients"] for case in WIRED}
        for (recipe, model, rule, event, wire), gradients in outcomes.items():
            case = Case(1, recipe, model, "optimizer", "bf16", rule, event, "true", "true", "none")
            assert gradients != self.alone(case)[0][0]["gradients"], f"wire {wire} changes nothing of {model}"

    def test_biases_follow_the_load(self):
        """Each expert's slots of a step are counted alike for any ranks, micro-batches, shardings, expert groups and layouts: from
        equal weights, the biases of all layers are equal, and move by their rate. A skipped step moves none."""
        def biases(number, ranks, *settings, steps=1, fault=""):
            name = f"load{number}"
            self.run_of(name, "fp32", "deep", ranks, "reduce.order=rank", "batch.global=12", f"run.steps={steps}", *settings, fault=fault)
            with h5py.File(self.path(name, f"step_{steps:08}", "model.h5")) as file:
                bias = file["model/layers.1.moe.router.bias"]
                assert (bias.attrs["role"], bias.attrs["axes"], bias.dtype) == (b"router_bias", b"expert", "float32")
                return bias[:].tolist()
        alone = biases(0, 1)
        assert {abs(b) for b in alone} - {0} == {float(numpy.float32(0.01))}
        assert len(set(alone)) > 1
        ways = [(1, "batch.micro=4"), (2, "batch.micro=2"), (2, "batch.micro=2", "sharding=full"), (2, "parallel.expert=2"), (3, "batch.micro=4"),
                (4, "batch.micro=1", "model.moe.weights=discrete"), (4, "parallel.expert=4", "recompute.mode=full")]
        for number, (ranks, *settings) in enumerate(ways, 1):
            assert biases(number, ranks, *settings) == alone, (ranks, settings)
        assert biases(90, 2, fault="step1:0:nan") == [0] * len(alone)
        assert biases(91, 2, steps=2, fault="step2:all:redo") == biases(92, 2, steps=2)

    def test_a_trace_tells_the_first_difference(self):
        """Traces of other ranks are equal; of other weights, from the first step; of a fault, from its step. The chain of a
        checkpoint is that of the trace's next row."""
        traces = {}
        for name, ranks, settings, fault in (("a", 1, (), ""), ("b", 4, ("checkpoint.every_steps=4",), ""), ("c", 3, ("run.seed=6",), ""),
                                             ("d", 2, (), f"step{FAULTY}:1:nan")):
            self.run_of(name, "fp8_block", "single", ranks, *settings, fault=fault)
            traces[name], = (self.path(entry) for entry in os.listdir(self.folder) if entry.startswith(name + ".") and entry.endswith(".jsonl"))
        compare = lambda a, b, code: json.loads(self.out_of(code, "compare", "--trace", traces[a], traces[b], "--json"))
        assert compare("a", "b", 0) == {"equal": True, "first": 1, "last": STEPS}
        assert compare("a", "c", 1)["difference"]["step"] == 1
        found = compare("a", "d", 1)["difference"]
        assert (found["step"], found["stage"]) == (FAULTY, "gradient")
        with open(traces["a"]) as file:
            chains = {row["step"]: row["chain"] for row in map(json.loads, file)}
        assert self.tool(0, "inspect", self.path("b", "step_00000004"))["chain"] == chains[5]
        assert len(set(chains.values())) == STEPS

    def test_an_audit_finds_what_differs(self):
        """Steps made again on other ranks equal those of the run, also behind a restart; a log or a checkpoint of which
        something was changed is named."""
        self.run_of("run", "nvfp4", "single", 2, code=75, arguments=("--stop-at", "3"))
        self.run_of("run", "nvfp4", "single", 3)
        audit = lambda code, ranks, *more: json.loads(self.out_of(code, "audit", self.path("run"), *more, "--json", ranks=ranks))
        found = audit(0, 4)
        assert [(row["step"], row["equal"]) for row in found["steps"]] == [(3, True), (4, True), (5, True)]
        assert [row["step"] for row in audit(0, 1, "--from", "0", "--to", "3")["steps"]] == [2, 3]
        self.out_of(5, "audit", self.path("run"), "--from", "1")
        other = self.path("run", "metrics.jsonl")
        rows = self.read("run", "metrics.jsonl").splitlines()
        row = json.loads(rows[3])
        row["loss"] += 0.0001
        self.write(other, "\n".join([*rows[:3], json.dumps(row), rows[4]]) + "\n")
        found = audit(0, 2, "--from", "3")
        assert "the loss of step 4" in found["steps"][-1]["log"]
        # Other bits from the start on: an audit with another rate is that of another run.
        found = audit(1, 2, "--set", "optimizer.lr=0.011")
        assert (found["equal"], found["steps"][0]["step"]) == (False, 3)

    def test_restarts_on_other_ranks(self):
        """Plans of stops, each start on another number of ranks in other sharding groups, single and discrete layouts in turn."""
        draw = random.Random(int(os.environ.get("TESSERA_SEED", "3")))
        for plan in range(10 if WHOLE else 3):
            recipe = draw.choice(KINDS.recipe)
            rows = self.run_of(f"whole{plan}", recipe, "single", 1)
            name, found = f"plan{plan}", []
            stops = sorted(draw.sample(range(1, STEPS), min(5, STEPS - 1)))
            for start, stop in enumerate([*stops, None]):
                weights = ("single", "discrete")[start % 2]
                sharding = draw.choice(KINDS.sharding)
                ranks = draw.choice([count for count in range(1, 7) if sharding == "optimizer" or count > 1])
                group = draw.choice(["all", *(n for n in (1, 2, 3) if ranks % n == 0)])
                found += self.run_of(name, recipe, weights, ranks, f"sharding={sharding}", f"parallel.sharding_group={group}",
                                     code=75 if stop else 0, arguments=("--stop-at", str(stop)) if stop else ())
            assert found == rows, (recipe, stops)
            losses, digests = self.outcome(name)
            last = max(digests)
            assert digests[last] == self.outcome(f"whole{plan}")[1][last], (recipe, stops)
