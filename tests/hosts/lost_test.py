"""Runs over two simulated hosts that lose a host or its network: every rank that is left ends within a bound, the lost host is
named, and the same command goes on.

TESSERA_SOAK_LOSSES=N: so many hosts lost at any moment, by default 1, and both ways of writing in each case.
"""
import contextlib
import os
import random
import re
import shutil
import signal
import time

import pytest

import on_hosts
import runs
from hosts import is_hydra, processes, until
from on_hosts import PATIENCE, PLACES, words

TIMEOUT = 5  # comm.timeout_s
BOUND = TIMEOUT + 15  # seconds within which every survivor must have ended
SILENCE = 30  # seconds after which a run that cannot be seen has lost its directory
SILENT = r"h2: all its ranks \(2, 3\) are silent"
NO_ROOT = r"rank 0 \(h1\) does not answer"
GROUPS = {"all": (), "host": words("sharding=full", "parallel.sharding_group=host")}
IO = {"all": ("mpio", "direct") if "TESSERA_SOAK_LOSSES" in os.environ else ("mpio",), "host": ("direct",)}
in_groups_too = pytest.mark.parametrize("group", GROUPS)


class Lost(on_hosts.OnHosts):
    count = 2

    @staticmethod
    def long(group="all"):
        return (*words("run.steps=100000", f"comm.timeout_s={TIMEOUT}"), *GROUPS[group])

    def lose(self, name, how):
        if how != "loud":
            self.hosts.link(name, "down")
        if how != "cut":
            self.hosts.kill(name)

    def check_ended(self, process, name, how):
        """The host is lost. Every rank ends by itself with 7, or is ended by the launcher, which may itself wait for a host that is gone."""
        spaces = [self.hosts.space(one) for one in self.hosts.names]
        self.lose(name, how)
        begun = time.monotonic()
        until(lambda: not any(self.hosts.members(space, self.tessera) for space in spaces), "the end of all ranks", BOUND + 10)
        assert time.monotonic() - begun <= BOUND, self.said()
        allowed = {7} if is_hydra(self.launcher) else {7, 128 + signal.SIGTERM}  # by Open MPI's daemon, as it loses the job
        assert set(self.hosts.codes("run").values()) <= allowed, self.said()
        if how == "loud":
            assert process.wait(30) != 0
        process.kill()

    def check_goes_on(self, deck, group="all", when="later"):
        """On the host that is left, or has come back, with the bits of a run that lost nothing. Half a minute after the lost run's last sign
        of life: "later" moves that back in time, "now" waits."""
        if when == "later":
            with contextlib.suppress(FileNotFoundError):  # it was lost before it had one
                os.utime(self.path("run", "LOCK"), (time.time() - SILENCE,) * 2)
        last = max((int(name[5:]) for name in os.listdir(self.path("run")) if name[5:].isdigit()), default=0)
        for name, of in (("run", deck), ("whole", self.deck("whole"))):
            self.run_to_its_end(75, PLACES["one"], of, *self.long(group), "--stop-at", str(last + 2), out=name + ".again")
        assert self.final("run") == self.final("whole")

    def stands_still(self, name):
        """Whether a rank on the host was stopped by a fault."""
        return any(processes.state_of(pid) == "T" for pid in self.hosts.members(self.hosts.space(name), self.tessera))

    def check(self, name, how, group="all", fault="", named="", goes_on="", delay=0.0, io="mpio"):
        deck = self.deck("run", io=io)
        process = self.start(PLACES["two"], deck, *self.long(group), TESSERA_FAULT=fault)
        if fault:
            until(lambda: self.stands_still(name), fault, PATIENCE)
        else:
            until(lambda: self.steps_done("run") >= 4, "steps", PATIENCE)
        time.sleep(delay)
        self.check_ended(process, name, how)
        assert re.search(named, self.said()[1]), self.said()[1]
        if goes_on:
            if name == "h1":
                self.hosts.boot("h1")
            self.check_goes_on(deck, group, goes_on)

    @in_groups_too
    def test_a_host_falls_silent(self, group):
        self.check("h2", "silent", group, named=SILENT + ": host or network lost", goes_on="later")

    def test_the_first_host_falls_silent(self):
        self.check("h1", "silent", named=NO_ROOT, goes_on="now")

    def test_a_host_is_cut_off(self):
        self.check("h2", "cut", named=SILENT)

    @in_groups_too
    def test_the_first_host_is_cut_off(self, group):
        self.check("h1", "cut", group, named=NO_ROOT)

    def test_a_host_is_killed(self):
        # The launcher sees its proxy's end (control_cb) or a rank's, and may end the job before rank 0 has printed.
        self.check("h2", "loud", named="on h2 has ended without a word|BAD TERMINATION|EXIT|control_cb|lost communication")

    def again(self):
        """Hosts as they were, and no run directory, where there was a run."""
        if not os.path.exists(self.path("run")):
            return
        for name in self.hosts.names:
            with contextlib.suppress(ProcessLookupError):
                self.hosts.kill(name)
            self.hosts.boot(name)
        for directory in ("run", "whole"):
            shutil.rmtree(self.path(directory), ignore_errors=True)
        for out in ("run.codes", "run.jsonl", "whole.jsonl"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.path(out))

    @in_groups_too
    def test_a_host_is_lost_in_a_save(self, group):
        for io in IO[group]:
            phase = random.choice(("structure", "payload", "sync", "vote"))
            print(f"in {phase}, {io}", flush=True)
            self.again()
            self.check("h2", "silent", group, fault=f"{phase}:2:stop:2", goes_on="later", io=io)

    def test_any_host_at_any_moment(self):
        for _ in range(int(os.environ.get("TESSERA_SOAK_LOSSES", 1))):
            name, how, delay = random.choice(self.hosts.names), random.choice(("silent", "cut", "loud")), random.uniform(0, 1)
            print(f"{name}, {how}, after {delay:.3f} s", flush=True)
            self.again()
            self.check(name, how, delay=delay)

    @in_groups_too
    def test_a_host_is_lost_in_an_evaluation(self, group):
        """That of step 2, of minutes: the row of step 1 is written as step 2 is made."""
        self.write("long.text", runs.CORPUS * 500)
        process = self.start(PLACES["two"], self.deck("run"), *self.long(group), *words("eval.batches=100000", "data.eval_files=[long.text]"))
        until(lambda: self.steps_done("run") >= 1, "steps", PATIENCE)
        time.sleep(2)
        self.check_ended(process, "h2", "silent")
        assert len(self.json_lines("run", "metrics.jsonl")) <= 2
        assert "eval_loss" not in self.read("run", "metrics.jsonl")

    def starting(self, deck, *arguments):
        """A run whose ranks have begun on h2, and what bounds their meeting."""
        process = self.start(PLACES["two"], deck, *arguments, TESSERA_TIMEOUT=str(TIMEOUT))
        until(lambda: self.hosts.members(self.hosts.space("h2"), self.tessera), "a start")
        return process

    def test_a_host_is_lost_while_ranks_start(self):
        """TESSERA_TIMEOUT bounds the meeting of the ranks, comm.timeout_s what a rank does that has met the others before one of these has."""
        self.check_ended(self.starting(self.deck("run"), *self.long()), "h2", "silent")

    def test_a_host_is_lost_while_a_run_is_resumed(self):
        """In MPI_Init, in a look at the checkpoint, in its load, in the first steps: wherever the drawn delay ends."""
        deck = self.deck("run")
        self.run_to_its_end(75, PLACES["two"], deck, *self.long(), "--stop-at", "2", out="first")
        process = self.starting(deck, *self.long())
        delay = random.uniform(0, 1)
        print(f"after {delay:.3f} s", flush=True)
        time.sleep(delay)
        self.check_ended(process, "h2", "silent")
        self.check_goes_on(deck)

    @in_groups_too
    def test_a_short_cut_is_survived(self, group):
        long = (*self.long(group), "--set", "comm.timeout_s=60", "--stop-at", "16")
        process = self.start(PLACES["two"], self.deck("run"), *long)
        until(lambda: self.steps_done("run") >= 4, "steps", PATIENCE)
        self.hosts.link("h2", "down")
        time.sleep(2)
        assert process.poll() is None, "it ended before the cut"
        self.hosts.link("h2", "up")
        assert process.wait(PATIENCE) == 75, self.said()
        self.run_to_its_end(75, PLACES["one"], self.deck("whole"), *long, out="whole")
        assert self.final("run") == self.final("whole")
