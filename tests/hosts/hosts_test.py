"""Runs over several hosts, which namespaces of one machine simulate: the bits of one host, ends, and hosts that differ.

TESSERA_SOAK_CASES=1: every case, not a drawn one; TESSERA_SOAK_ENDS=N: so many rounds of ends, by default 3.
"""
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

import runs
from hosts import until
from on_hosts import PATIENCE, PLACES, OnHosts

CLOCK = """#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  const int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && clock == CLOCK_REALTIME) now->tv_sec += 2 * 24 * 3600;
  return failed;
}
"""
needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="another version or clock is compiled")


class Equality(OnHosts):
    """Traces and digests do not tell over how many hosts the ranks were spread."""

    def check(self, *case):
        results = {}
        for name, places in PLACES.items():
            directory = "-".join(map(str, case)) + "-" + name
            self.run_to_its_end(0, places, self.deck(directory, *case), out=directory)
            results[name] = (self.read(directory + ".jsonl"), self.final(directory))
        assert results["one"][0].strip()
        assert results["one"] == results["two"], case
        assert results["one"] == results["three"], case

    def test_dense(self):
        self.check("bf16", "full", 0, "mpio")
        self.check("nvfp4", "optimizer", 0, "direct")

    def test_experts(self):
        self.check("nvfp4", "full", 1, "direct")
        self.check("bf16", "optimizer", 2, "mpio")

    def test_any_case(self):
        cases = list(itertools.product(("bf16", "nvfp4"), ("optimizer", "full"), (0, 1, 2), ("mpio", "direct")))
        for case in cases if "TESSERA_SOAK_CASES" in os.environ else [random.choice(cases)]:
            print(case, flush=True)
            self.check(*case)

    def test_a_checkpoint_goes_on_over_other_hosts(self):
        self.run_to_its_end(0, PLACES["one"], self.deck("whole"))
        deck = self.deck("parts")
        self.run_to_its_end(75, PLACES["two"], deck, "--stop-at", "2")
        self.run_to_its_end(0, PLACES["three"], deck)
        assert self.final("parts") == self.final("whole")

    def test_a_slow_late_or_lossy_link_changes_no_bit(self):
        def slow():
            self.hosts.slow("h2", "50mbit")
        def late():
            self.hosts.kill("h2")
            self.hosts.boot("h2", perfect=False)
            self.hosts.bad("h2", delay=0.02)
            assert self.hosts.answers_after("h1", "h2") > 0.04
        def lossy():
            self.hosts.bad("h2", loss=0.02)
        self.run_to_its_end(0, PLACES["one"], self.deck("perfect"))
        for made_so in (slow, late, lossy):
            made_so()
            name = made_so.__name__
            self.run_to_its_end(0, PLACES["two"], self.deck(name), "--set", "comm.timeout_s=60")
            assert self.final(name) == self.final("perfect"), name


class Ends(OnHosts):
    """Every run ends by itself, with the documented code."""

    def test_every_code(self):
        runs_of = int(os.environ.get("TESSERA_SOAK_ENDS", 3))
        sound, torn = self.deck("sound"), self.write("torn.yaml", "schema_version: 1\nrun: {steps: many}\n")
        for i in range(runs_of):
            places, group = (("two", "host"), ("three", 2), ("two", "all"), ("three", "all"))[i % 4]
            for code, arguments in ((0, (self.deck(f"sound{i}"),)), (3, (torn,)), (75, (self.deck(f"stopped{i}"), "--stop-at", "1")),
                                    (2, (sound, "--time-limit", "soon")), (5, (sound, "--set", "data.files=[nowhere.txt]"))):
                with self.subtests.test(i=i, code=code):
                    begun = time.monotonic()
                    out, err = self.run_to_its_end(code, PLACES[places], *arguments, "--set", f"parallel.sharding_group={group}", seconds=120)
                    assert "communication failed" not in err
                    assert time.monotonic() - begun < 110

    def test_a_signal(self):
        for signal_of in ("SIGTERM", "SIGUSR1"):
            process = self.start(PLACES["three"], self.deck(signal_of), "--set", "run.steps=100000", out=signal_of)
            until(lambda name=signal_of: self.steps_done(name) >= 2, "steps", PATIENCE)
            (pid,) = self.hosts.members(self.hosts.space("h3"), self.tessera)
            os.kill(pid, getattr(signal, signal_of))
            assert process.wait(PATIENCE) == 75, self.said(signal_of)
            assert signal_of in self.said(signal_of)[0]

    def test_other_verbs(self):
        self.run_to_its_end(0, PLACES["two"], self.deck("trained"))
        out, _ = self.run_to_its_end(0, PLACES["two"], self.path("trained.yaml"), "--checkpoint", self.path("trained"), verb="eval")
        assert "loss" in out


class Different(OnHosts):
    """Hosts that compute or see otherwise than the others are named and refused."""
    count = 2

    def on_second(self, **variables):
        """Variables of the environment that only h2 has."""
        self.hosts.environment["h2"] = variables

    def test_another_level_of_instructions(self):
        deck = self.deck("run")
        self.on_second(ONEDNN_MAX_CPU_ISA="SSE41")
        begun = self.said_by(4, deck)
        assert re.search(r"hosts differ: h2 \(ranks 2-3\): oneDNN's instructions sse41, others \w+\n", begun), begun
        assert "proof.mixed_hosts: true" in begun
        assert not os.path.exists(self.path("run"))
        out, err = self.run_to_its_end(0, PLACES["two"], deck, "--set", "proof.mixed_hosts=true")
        assert out.count("hosts differ: h2 (ranks 2-3)") == 2, out  # at the start and in the closing tables
        (line,) = json.loads(self.read("run", "run.json"))["mixed_hosts"]
        assert re.search("hosts differ: h2 .* sse41", line), line

    def preload(self, name, source):
        """Has h2's ranks call the functions of this source in place of the system's."""
        library = self.path(name + ".so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, self.write(name + ".c", source)], check=True, timeout=60)
        self.on_second(LD_PRELOAD=library)

    @needs_cc
    def test_another_library(self):
        self.preload("version", 'const char *gnu_get_libc_version(void) { return "1.0"; }\n')
        told = self.said_by(4, self.deck("run"))
        assert re.search(r"hosts differ: h2 \(ranks 2-3\): C library 1\.0, others 2\.\d+\n", told), told
        assert not os.path.exists(self.path("run"))

    @needs_cc
    def test_a_clock_two_days_ahead(self):
        """It is told, and changes nothing."""
        self.run_to_its_end(0, PLACES["two"], self.deck("whole"), out="whole")
        self.preload("clock", CLOCK)
        out, err = self.run_to_its_end(0, PLACES["two"], self.deck("run"))
        assert re.search(r"clocks: +that of h2 is 17[23]\d{3} s ahead of that of h1; only times in logs depend on them\n", out), out
        assert self.final("run") == self.final("whole")

    def said_by(self, code, *arguments):
        return self.run_to_its_end(code, PLACES["two"], *arguments)[1]

    def test_fewer_threads(self):
        deck = self.deck("run")
        self.on_second(OMP_NUM_THREADS="2")
        text = self.read("run.yaml").replace(", threads: 1", "")
        self.write("run.yaml", text)
        out, _ = self.run_to_its_end(0, PLACES["two"], deck)
        assert "4 ranks of 1 thread\n" in out

    def test_a_folder_that_one_host_does_not_see(self):
        deck = self.deck("run", directory="own/run")
        said = self.said_by(4, deck, "--set", f"checkpoint.io={random.choice(('mpio', 'direct'))}", "--set", "debug.trace=")
        assert re.search(r"checkpoint.dir: h2 \(ranks 2-3\) does not see own/run of h1; name a directory of a file system that all", said), said
        assert os.listdir(self.path("h1.own")) == []

    def test_data_that_one_host_does_not_see(self):
        deck = self.deck("run")
        self.write("h1.own/some.txt", runs.CORPUS)
        said = self.said_by(5, deck, "--set", "data.files=[own/some.txt]")
        assert re.search(r"^rank 2 \(h2\): .*own/some.txt", said), said

    def test_another_deck(self):
        self.deck("run")
        for name, steps in (("h1", 4), ("h2", 5)):
            self.write(f"{name}.own/deck.yaml", self.read("run.yaml").replace("steps: 4", f"steps: {steps}"))
        assert "h2 (ranks 2-3) read another deck than rank 0 on h1" in self.said_by(3, self.path("own", "deck.yaml"))


class Checked(OnHosts):
    """The check that a user runs on an allocation."""
    count = 2
    SCRIPT = os.path.join(runs.JOBSCRIPTS, "cluster", "check_hosts.sh")

    def check(self, code, folder, **environment):
        launch = self.hosts.launch(self.launcher, PLACES["two"])
        ranks = () if not environment else ("env", *(f"{key}={value}" for key, value in environment.items()))
        process = self.hosts.on_login(self.SCRIPT, self.path(folder), *launch, *ranks, out="check", environment={"TESSERA": self.tessera})
        assert process.wait(PATIENCE) == code, self.said("check")
        return self.said("check")

    def test_hosts_that_are_sound(self):
        out, err = self.check(0, "sound")
        assert err == ""
        assert re.search(r"(?s)2 h1\n +2 h2\n.*renames.*communication was.*GB/s.*nothing is wrong\n$", out), out

    def test_a_folder_that_is_not_shared(self):
        os.makedirs(self.path("own"), exist_ok=True)
        out, err = self.check(1, os.path.join("own", "check"))
        assert "WRONG" in err
        assert "nothing is wrong" not in out
