"""Sharding groups over several simulated hosts: the bits of flat sharding on one host.

TESSERA_SOAK_CASES=1: every case, not the drawn ones.
"""
import itertools
import json
import os
import random
import re
import shutil

import pytest

import open_mpi
from on_hosts import CORE, PLACES, OnHosts, words

SIX = {"h1": 3, "h2": 3}


class Grouped(OnHosts):
    """Traces, digests and checkpoints are those of flat sharding on one host."""

    def train(self, name, places, case, group, *settings, code=0, stop=()):
        """Rows of the trace, and the digest."""
        chosen = words(f"parallel.sharding_group={group}", "reduce.order=batch", *settings)
        self.run_to_its_end(code, places, self.deck(name, *case), *chosen, *stop, out=name)
        return self.json_lines(name + ".jsonl"), self.final(name)

    def check(self, case, *settings):
        """Groups of two neighbours on one, two and three hosts, of which the last are uneven, and three ranks of a host."""
        flat, digest = self.train("flat", PLACES["one"], case, "all", *settings)
        core = [{key: row[key] for key in CORE} for row in flat]
        assert core[0]["masters"] != core[-1]["masters"], "a run that learns nothing shows nothing"
        traces = {}
        for name, places, group in (("one", PLACES["one"], 2), ("two", PLACES["two"], "host"), ("three", PLACES["three"], 2),
                                    ("six", SIX, "host" if case[2] < 2 else 2)):
            traces[name], found = self.train(name, places, case, group, *settings)
            assert [{key: row[key] for key in CORE} for row in traces[name]] == core, (case, name)
            assert found == digest, (case, name)
        assert traces["one"] != flat, "groups make other collectives"
        assert traces["one"] == traces["two"], case
        assert traces["one"] == traces["three"], case
        for name in ("flat", *traces):
            shutil.rmtree(self.path(name))
            os.remove(self.path(name + ".jsonl"))

    def test_any_case(self):
        cases = list(itertools.product(("bf16", "nvfp4", "fp8_block"), ("optimizer", "full"), (0, 1, 2), ("mpio", "direct")))
        for case in cases if "TESSERA_SOAK_CASES" in os.environ else [random.choice(cases)]:
            print(case, flush=True)
            self.check(case)

    def test_muon(self):
        self.check(("fp8_block", "full", 0, "mpio"), "optimizer.matrices=muon")

    def test_under_open_mpi(self, monkeypatch):
        """By another MPI library than that of flat sharding, where this build is not its."""
        if why := open_mpi.missing():
            pytest.skip(why)
        case = ("nvfp4", "full", 1, "mpio")
        flat, digest = self.train("flat", PLACES["one"], case, "all")
        self.tessera, self.launcher = open_mpi.PROGRAM, open_mpi.LAUNCHER
        for key, value in open_mpi.environment().items():
            monkeypatch.setenv(key, value)
        for name, places, group in (("two", PLACES["two"], "host"), ("six", SIX, "host"), ("three", PLACES["three"], 2)):
            rows, found = self.train(name, places, case, group)
            assert [{key: row[key] for key in CORE} for row in rows] == [{key: row[key] for key in CORE} for row in flat], name
            assert found == digest, name
            assert len(json.loads(self.read(name, "run.json"))["hosts"]) == len(places), name

    def test_checkpoints_go_from_any_grouping_to_any_other(self):
        case = ("nvfp4", "full", 1, "mpio")
        rows, digest = self.train("whole", PLACES["one"], case, "all", "run.steps=6")
        found = []
        for places, group, stop in ((PLACES["two"], "host", 2), (PLACES["one"], "all", 3), (PLACES["three"], 2, 4), (SIX, 3, 5),
                                    (PLACES["one"], 1, None)):
            part, last = self.train("parts", places, case, group, "run.steps=6", code=75 if stop else 0,
                                    stop=("--stop-at", str(stop)) if stop else ())
            found += [row for row in part if row["step"] > len(found)]
        assert last == digest
        assert [[row[key] for key in CORE] for row in found] == [[row[key] for key in CORE] for row in rows]

    def test_uneven_hosts_are_refused(self):
        """That is, for `host`: numbers of ranks know no hosts."""
        deck = self.deck("run")
        for places in (PLACES["three"], {"h1": 1, "h2": 3}):
            out, err = self.run_to_its_end(3, places, deck, "--set", "parallel.sharding_group=host")
            assert re.search(r"parallel.sharding_group.*: host needs as many ranks on each host, numbered host by host, and there are .*h2.*" r"or use all, or a number that divides 4 ranks", err), err
        assert not os.path.exists(self.path("run"))
