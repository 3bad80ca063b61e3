"""Sharding groups over several hosts, which namespaces of one machine simulate: the bits of flat sharding on one host, what crosses
the network, ends, lost hosts and networks.

TESSERA_SOAK_CASES=1: every case, not the drawn ones.
"""
import itertools
import json
import os
import random
import shutil
import subprocess

import hosts_test
import runs
from hosts_test import PLACES

SIX = {"h1": 3, "h2": 3}
FOUR = {f"h{i + 1}": 1 for i in range(4)}
CORE = ("step", "loss", "norm", "logits", "gradients", "masters")  # what a trace says of a step, but for its collectives
IN_HOSTS = ("--set", "sharding=full", "--set", "parallel.sharding_group=host")


class Grouped(hosts_test.OnHosts):
    """Traces, digests and checkpoints are those of flat sharding on one host."""

    def train(self, name, places, case, group, *settings, code=0, stop=()):
        """Rows of the trace, and the digest."""
        words = [word for setting in (f"parallel.sharding_group={group}", "reduce.order=batch", *settings) for word in ("--set", setting)]
        self.run_to_its_end(code, places, self.deck(name, *case), *words, *stop, out=name)
        return self.json_lines(name + ".jsonl"), self.digest(name)

    def check(self, case, *settings):
        """Groups of two neighbours on one, two and three hosts, of which the last are uneven, and three ranks of a host."""
        flat, digest = self.train("flat", PLACES["one"], case, "all", *settings)
        core = [{key: row[key] for key in CORE} for row in flat]
        self.assertNotEqual(core[0]["masters"], core[-1]["masters"], "a run that learns nothing shows nothing")
        traces = {}
        for name, places, group in (("one", PLACES["one"], 2), ("two", PLACES["two"], "host"), ("three", PLACES["three"], 2),
                                    ("six", SIX, "host" if case[2] < 2 else 2)):
            traces[name], found = self.train(name, places, case, group, *settings)
            self.assertEqual([{key: row[key] for key in CORE} for row in traces[name]], core, (case, name))
            self.assertEqual(found, digest, (case, name))
        self.assertNotEqual(traces["one"], flat, "groups make other collectives")
        self.assertEqual(traces["one"], traces["two"], case)
        self.assertEqual(traces["one"], traces["three"], case)
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

    def test_checkpoints_go_from_any_grouping_to_any_other(self):
        case = ("nvfp4", "full", 1, "mpio")
        rows, digest = self.train("whole", PLACES["one"], case, "all", "run.steps=6")
        found = []
        for places, group, stop in ((PLACES["two"], "host", 2), (PLACES["one"], "all", 3), (PLACES["three"], 2, 4), (SIX, 3, 5),
                                    (PLACES["one"], 1, None)):
            part, last = self.train("parts", places, case, group, "run.steps=6", code=75 if stop else 0,
                                    stop=("--stop-at", str(stop)) if stop else ())
            found += [row for row in part if row["step"] > len(found)]
        self.assertEqual(last, digest)
        self.assertEqual([[row[key] for key in CORE] for row in found], [[row[key] for key in CORE] for row in rows])

    def test_uneven_hosts_are_refused(self):
        """That is, for `host`: numbers of ranks know no hosts."""
        deck = self.deck("run")
        for places in (PLACES["three"], {"h1": 1, "h2": 3}):
            out, err = self.run_to_its_end(3, places, deck, "--set", "parallel.sharding_group=host")
            self.assertRegex(err, r"parallel.sharding_group.*: host needs as many ranks on each host, numbered host by host, and there are .*h2.*"
                                  r"or use all, or a number that divides 4 ranks")
        self.assertFalse(os.path.exists(self.path("run")))


class Crossing(hosts_test.OnHosts):
    """What crosses from host to host is what the plan says of groups, and gathers of weights do not cross."""
    count = 4
    numbers = itertools.count()
    LESS = ("--set", "eval.every_steps=0", "--set", "debug.trace=", "--set", "checkpoint.every_steps=0", "--set", "model.hidden=256",
            "--set", "batch.global=4", "--set", "reduce.order=batch")

    def planned(self, hosts, deck, *settings):
        """Bytes a step that the rank that receives most has from its host, and from others."""
        done = subprocess.run([self.tessera, "plan", deck, *settings, "--ranks", "4", "--hosts", str(hosts), "--json"], capture_output=True,
                              text=True, check=True, cwd=self.folder, timeout=60)
        told = json.loads(done.stdout)["hosts"]
        return told["bytes_inside"], told["bytes_across"]

    def received(self, places, deck, *settings):
        """Bytes that each host receives in a step."""
        counted = []
        for stop in (4, 24):
            before = {name: self.hosts.bytes_of(name, "rx") for name in places}
            self.run_to_its_end(75, places, deck, *settings, "--set", "run.steps=100", "--set", f"checkpoint.dir={next(self.numbers)}",
                                "--stop-at", str(stop))
            counted.append({name: self.hosts.bytes_of(name, "rx") - before[name] for name in places})
        return {name: (counted[1][name] - counted[0][name]) / 20 for name in places}

    def check_counters(self, sharding):
        """Hosts of two ranks see what crosses, hosts of one rank all that a rank receives."""
        deck = self.deck("run", sharding=sharding)
        grouped = (*self.LESS, "--set", "parallel.sharding_group=2")
        inside, across = self.planned(2, deck, *grouped)
        for places, planned in ((PLACES["two"], 2 * across), (FOUR, inside + across)):
            received = self.received(places, deck, *grouped)
            print(f"{sharding}, {places}: {received} bytes a step, planned at most {planned:.0f}", flush=True)
            # The last group, whose sum is whole, receives most. Above: headers.
            share = max(received["h2"], received.get("h4", 0)) / planned
            self.assertTrue(0.9 < share < 1.05, share)

    def test_counters_with_the_optimizer_sharded(self):
        self.check_counters("optimizer")

    def test_counters_with_all_sharded(self):
        self.check_counters("full")

    def test_gathers_of_weights_stay_inside(self):
        """Eight more batches of evaluation a step gather all weights eight times more: over the network, unless groups hold them."""
        deck = self.deck("run", sharding="full")
        more = {}
        for group in ("all", "host"):
            settings = (*self.LESS, "--set", f"parallel.sharding_group={group}", "--set", "eval.every_steps=1")
            few, many = (self.received(PLACES["two"], deck, *settings, "--set", f"eval.batches={n}") for n in (1, 9))
            more[group] = (many["h2"] - few["h2"]) / 8
        print(f"bytes to a host for each batch of evaluation: {more}", flush=True)
        self.assertLess(more["host"], 0.01 * more["all"])


class LostInGroups(hosts_test.Lost):
    """As without groups, but for what ends before groups matter."""
    LONG = (*hosts_test.Lost.LONG, *IN_HOSTS)
    IO = ("direct",)
    test_the_first_host_falls_silent = test_a_host_is_cut_off = test_a_host_is_killed = test_any_host_at_any_moment = None
    test_a_host_is_lost_while_ranks_start = test_a_host_is_lost_while_a_run_is_resumed = test_a_slow_late_or_lossy_link_changes_no_bit = None
