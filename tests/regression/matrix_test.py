"""Holding weights quantized changes no bit of a run: the whole `debug.trace` and the last checkpoint equal those of the run
that holds weights in bf16, for every recipe, model, number of ranks, rule, overlap, wire, cuts and staging, with faults,
resumes and other events during the run.


Tries cases in which any two settings of any two kinds meet. With TESSERA_MATRIX=whole it tries products of kinds
instead, thousands of cases of 20 steps, TESSERA_MATRIX_JOBS of them side by side: minutes on 32 cores.
TESSERA_MATRIX_PART=i/n: every n-th of a recipe's cases, from the i-th on.
"""
import concurrent.futures
import itertools
import os
import random
import threading
import typing

import pytest

import held_runs
from held_runs import MODELS, QUANTIZED, RECIPES, ways
import runs

WHOLE = os.environ.get("TESSERA_MATRIX") == "whole"
JOBS = int(os.environ.get("TESSERA_MATRIX_JOBS", "1"))
STEPS, STOP = (20, 7) if WHOLE else (5, 2)
BOTH = ("true", "false")
AUTO = ()
RESUMES = {"on, then on": (QUANTIZED, QUANTIZED), "on, then off": (QUANTIZED, "precision.primary_weights=bf16"),
           "off, then on": ("precision.primary_weights=bf16", QUANTIZED)}


class Case(typing.NamedTuple):
    recipe: str
    model: str
    ranks: int
    fused: str
    gather: str
    reduce: str
    rule: str
    way: tuple   # settings; AUTO: none
    event: str   # fault, resume or other event during the run

    def legal(self):
        return self.way == AUTO or self.way in ways(self.recipe)


FEWEST = 11    # cases of each recipe
KINDS = Case(recipe=RECIPES, model=tuple(MODELS), ranks=(1, 2, 3, 4), fused=BOTH, gather=BOTH, reduce=BOTH,
             rule=("adamw", "muon"), way=(AUTO, *ways("nvfp4")),
             event=("nothing", "often", "nan", "redo", *RESUMES, "other wire", "other ranks"))


def product(**chosen):
    """All combinations of the chosen kinds' settings; other kinds take their settings in turn."""
    turns = itertools.count()
    for settings in itertools.product(*chosen.values()):
        turn = next(turns)
        some = dict(zip(chosen, settings))
        case = Case(*(some.get(kind, options[turn // (i + 1) % len(options)])
                      for i, (kind, options) in enumerate(KINDS._asdict().items())))
        if case.legal():
            yield case


def whole():
    """The promised combinations: every overlap with the wire of `auto`, every way, every event."""
    every = dict(recipe=KINDS.recipe, model=KINDS.model, rule=KINDS.rule)
    yield from product(**every, ranks=KINDS.ranks, fused=BOTH, gather=BOTH, reduce=BOTH, way=(AUTO,), event=("nothing",))
    yield from product(**every, ranks=(2, 3), way=KINDS.way[1:], event=("nothing",))
    yield from product(**every, ranks=KINDS.ranks, way=(AUTO,), event=KINDS.event[1:])


def pairs_of(case):
    return {((i, case[i]), (j, case[j])) for i, j in itertools.combinations(range(len(case)), 2)}


def every_pair():
    """Pairwise testing: few cases that contain every pair of settings that can be combined; greedy, from random draws.
    A recipe of fewer than FEWEST pairs gets further draws."""
    draw, cases = random.Random(1), []

    def drawn(pair):
        while True:
            settings = [draw.choice(options) for options in KINDS]
            for i, setting in pair:
                settings[i] = setting
            if Case(*settings).legal():
                return Case(*settings)

    def possible(pair):
        settings = dict(pair)
        return settings.get(7, AUTO) in (AUTO, *ways(settings.get(0, "nvfp4")))

    wanted = [((i, a), (j, b)) for (i, kind), (j, other) in itertools.combinations(enumerate(KINDS), 2)
              for a, b in itertools.product(kind, other) if possible(((i, a), (j, b)))]
    left = set(wanted)
    for pair in wanted:
        if pair in left:
            best = max((drawn(pair) for _ in range(50)), key=lambda case: len(pairs_of(case) & left))
            left -= pairs_of(best)
            cases.append(best)
    for recipe in RECIPES:
        cases += [drawn(((0, recipe),)) for _ in range(FEWEST - sum(case.recipe == recipe for case in cases))]
    return cases


CASES = list(whole()) if WHOLE else every_pair()


class Matrix(held_runs.HeldRuns):
    def setup_method(self):
        super().setup_method()
        self.made, self.lock, self.numbers = {}, threading.Lock(), itertools.count()

    def run_with(self, case, *sets, ranks=None, name=None, **more):
        settings = (f"precision.fuse_wgrad={case.fused}", f"optimizer.matrices={case.rule}", *sets)
        name = name or f"run{next(self.numbers)}"
        return self.run_of(name, case.recipe, case.model, ranks or case.ranks, *settings, steps=STEPS, **more)

    def off(self, case, *sets, fault=""):
        """The run with weights held in bf16, made once for all cases that share it."""
        key = (case.recipe, case.model, case.ranks, case.fused, case.rule, sets, fault)
        with self.lock:
            future, first = self.made.get(key), key not in self.made
            if first:
                future = self.made[key] = concurrent.futures.Future()
        if first:
            name = f"run{next(self.numbers)}"
            try:
                future.set_result((self.run_with(case, *sets, name=name, fault=fault), self.losses(name)))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def losses(self, name):
        return [row.get("eval_loss") for row in self.json_lines(name, "metrics.jsonl")]

    def check(self, case):
        sets = (f"proof.gather_overlap={case.gather}", f"proof.reduce_overlap={case.reduce}", "debug.replica_hash_every=2")
        off, _ = self.off(case)
        if case.event in (*RESUMES, "other wire"):
            return self.check_resumed(case, off, sets)
        if case.event == "other ranks":
            return self.check_other_ranks(case, sets)
        fault = {"nan": f"step{STOP + 1}:{case.ranks - 1}:nan", "redo": f"step{STOP + 1}:all:redo"}.get(case.event, "")
        often = ("eval.every_steps=1", "checkpoint.every_steps=1") if case.event == "often" else ()
        name = f"run{next(self.numbers)}"
        on = self.run_with(case, QUANTIZED, *case.way, *sets, *often, name=name, fault=fault)
        if case.event == "nan":
            off, _ = self.off(case, fault=fault)
            assert [row["masters"] for row in on[0][STOP - 1:STOP]] == [row["masters"] for row in on[0][STOP:STOP + 1]]
        self.expect_same(off, on, case)
        if often:
            found = self.losses(name)
            assert found == self.off(case, *often)[1], case
            assert None not in found

    def check_resumed(self, case, off, sets):
        first, then = RESUMES.get(case.event, (QUANTIZED, QUANTIZED))
        others = [AUTO, *ways(case.recipe)]
        other = others[(others.index(case.way) + 1) % len(others)] if case.event == "other wire" else case.way
        way_of = lambda held, way: way if held == QUANTIZED else ()
        name = f"run{next(self.numbers)}"
        self.run_with(case, first, *way_of(first, case.way), *sets, name=name, code=75, arguments=("--stop-at", str(STOP)))
        rest = self.run_with(case, then, *way_of(then, other), *sets, name=name)
        self.expect_same((off[0][STOP:], off[1]), rest, case)

    def check_other_ranks(self, case, sets):
        """Compares only the state: sums differ with the number of ranks."""
        stop = dict(code=75, arguments=("--stop-at", str(STOP)))
        name = f"run{next(self.numbers)}"
        saved = self.run_with(case, QUANTIZED, *case.way, *sets, name=name, **stop)
        assert [row["step"] for row in saved[0]] == list(range(1, STOP + 1))
        again = dict(stop, arguments=("--resume", name, *stop["arguments"]))
        for ranks in {case.ranks % 4 + 1, (case.ranks + 1) % 4 + 1}:
            other = f"run{next(self.numbers)}"
            deck_sets = (QUANTIZED, *case.way, *sets)
            self.run_elsewhere(case, ranks, other, deck_sets, again)
            assert self.final(other) == saved[1], (case, ranks)

    def run_elsewhere(self, case, ranks, name, sets, again):
        """A run that takes no step leaves no row."""
        with pytest.raises(FileNotFoundError):
            self.run_with(case, *sets, ranks=ranks, name=name, **again)

    @pytest.mark.parametrize("recipe", RECIPES)
    def test_bits(self, recipe):
        cases = runs.part_of(case for case in CASES if case.recipe == recipe)
        assert self.check_each(self.check, cases, JOBS, WHOLE) >= FEWEST
