"""Runs over several hosts, which namespaces of one machine simulate: the bits of one host, ends, lost hosts and networks, and
hosts that differ.
"""
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

import runs
from hosts import Hosts, impossible, is_hydra, processes, until

PATIENCE = 300
TIMEOUT = 5  # comm.timeout_s of runs that lose a host
BOUND = TIMEOUT + 15  # seconds within which every survivor must have ended
PLACES = {"one": {"h1": 4}, "two": {"h1": 2, "h2": 2}, "three": {"h1": 2, "h2": 1, "h3": 1}}
DECK = """schema_version: 1
run: {name: small, steps: 4, threads: 1}
model: {layers: 2, hidden: 64, heads: 4, seq_len: 32, norm: rms, activation: swiglu, position: rotary, ffn: 64MOE}
data: {files: ["*.txt"]}
batch: {global: 8, micro: 1}
eval: {every_steps: 2, batches: 1}
reduce: {bucket_mib: 0.01}
optimizer: {lr: 0.01, warmup_steps: 2}
parallel: {expert: EXPERT}
precision: {recipe: RECIPE, primary_weights: WEIGHTS}
sharding: SHARDING
checkpoint: {dir: DIR, every_steps: 2, io: IO}
debug: {trace: DIR.jsonl}
"""
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


class OnHosts(runs.InFolder, unittest.TestCase):
    count = 3

    def setUp(self):
        if why := impossible(self.launcher):
            self.skipTest(why)
        self.hosts = Hosts(self.folder, self.count)
        self.hosts.__enter__()
        self.addCleanup(self.hosts.close)

    def deck(self, name, recipe="bf16", sharding="optimizer", experts=0, io="mpio", directory=None):
        """experts: ranks that hold the experts between them; 0: a dense model."""
        values = {"MOE": ", moe: {experts: 4, top_k: 2}" if experts else "", "EXPERT": str(max(1, experts)), "RECIPE": recipe,
                  "WEIGHTS": "bf16" if recipe == "bf16" else "quantized", "SHARDING": sharding, "DIR": directory or name, "IO": io}
        text = DECK
        for key, value in values.items():
            text = text.replace(key, value)
        return self.write(name + ".yaml", text)

    def start(self, places, *arguments, verb="train", out="run", **environment):
        return self.hosts.start(self.launcher, places, self.tessera, verb, *arguments, out=out, environment=environment)

    def said(self, out="run"):
        return self.read(out + ".out"), self.read(out + ".err")

    def run_to_its_end(self, code, places, *arguments, out="run", seconds=PATIENCE, **options):
        process = self.start(places, *arguments, out=out, **options)
        ended = process.wait(seconds)
        self.assertEqual(ended, code, self.said(out))
        return self.said(out)

    def digest(self, directory):
        done = subprocess.run([self.tessera, "checkpoint", "inspect", self.path(directory), "--json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["content_digest"]

    def step_reached(self, directory, steps):
        with contextlib.suppress(FileNotFoundError):
            return len(self.json_lines(directory, "metrics.jsonl")) >= steps
        return False


class Equality(OnHosts):
    """Traces and digests do not tell over how many hosts the ranks were spread."""

    def check(self, *case):
        results = {}
        for name, places in PLACES.items():
            directory = "-".join(map(str, case)) + "-" + name
            self.run_to_its_end(0, places, self.deck(directory, *case), out=directory)
            results[name] = (self.read(directory + ".jsonl"), self.digest(directory))
        self.assertTrue(results["one"][0].strip())
        self.assertEqual(results["one"], results["two"], case)
        self.assertEqual(results["one"], results["three"], case)

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
        self.assertEqual(self.digest("parts"), self.digest("whole"))


class Bytes(OnHosts):
    """What goes over the network is at most what the plan says, but for headers."""
    count = 2

    def test_counters_of_the_interface(self):
        for sharding in ("optimizer", "full"):
            deck = self.deck(f"run-{sharding}", sharding=sharding)
            less = ("--set", "eval.every_steps=0", "--set", "debug.trace=", "--set", "checkpoint.every_steps=0", "--set", "model.hidden=256",
                    "--set", "batch.global=4")
            planned = subprocess.run([self.tessera, "plan", deck, *less, "--ranks", "4", "--hosts", "2", "--json"], capture_output=True, text=True,
                                     check=True, cwd=self.folder, timeout=60)
            sent = []
            for stop in (4, 24):
                before = self.hosts.bytes_of("h1", "tx")
                self.run_to_its_end(75, PLACES["two"], deck, *less, "--set", "run.steps=100", "--set", f"checkpoint.dir={sharding}{stop}",
                                    "--stop-at", str(stop))
                sent.append(self.hosts.bytes_of("h1", "tx") - before)
            of_step = 2 * json.loads(planned.stdout)["hosts"]["bytes_across"]  # two ranks of h2 receive it
            print(f"{sharding}: {(sent[1] - sent[0]) / 20:.0f} bytes a step, planned {of_step:.0f}", flush=True)
            # Above: headers. Below: an algorithm of MPI's may pass on inside a host what came from another once.
            share = (sent[1] - sent[0]) / 20 / of_step
            self.assertTrue(0.75 < share < 1.05, share)


class Ends(OnHosts):
    """Every run ends by itself, with the documented code."""

    def test_every_code(self):
        runs_of = int(os.environ.get("TESSERA_SOAK_ENDS", 3))
        sound, torn = self.deck("sound"), self.write("torn.yaml", "schema_version: 1\nrun: {steps: many}\n")
        for i in range(runs_of):
            places, group = (("two", "host"), ("three", 2), ("two", "all"), ("three", "all"))[i % 4]
            for code, arguments in ((0, (self.deck(f"sound{i}"),)), (3, (torn,)), (75, (self.deck(f"stopped{i}"), "--stop-at", "1")),
                                    (2, (sound, "--time-limit", "soon")), (5, (sound, "--set", "data.files=[nowhere.txt]"))):
                with self.subTest(i=i, code=code):
                    begun = time.monotonic()
                    out, err = self.run_to_its_end(code, PLACES[places], *arguments, "--set", f"parallel.sharding_group={group}", seconds=120)
                    self.assertNotIn("communication failed", err)
                    self.assertLess(time.monotonic() - begun, 110)

    def test_a_signal(self):
        for signal_of in ("SIGTERM", "SIGUSR1"):
            deck = self.deck(signal_of)
            process = self.start(PLACES["three"], deck, "--set", "run.steps=100000", out=signal_of)
            until(lambda name=signal_of: self.step_reached(name, 2), "steps", PATIENCE)
            (pid,) = self.hosts.members(self.hosts.space("h3"), self.tessera)
            os.kill(pid, getattr(signal, signal_of))
            self.assertEqual(process.wait(PATIENCE), 75, self.said(signal_of))
            self.assertRegex(self.said(signal_of)[0], signal_of)

    def test_other_verbs(self):
        self.run_to_its_end(0, PLACES["two"], self.deck("trained"))
        out, err = self.run_to_its_end(0, PLACES["two"], self.path("trained.yaml"), "--checkpoint", self.path("trained"), verb="eval")
        self.assertRegex(out, "loss")


class Lost(OnHosts):
    """A host or its network is lost: every rank that is left ends within a bound, the lost host is named, and the same command goes on."""
    count = 2
    LONG = ("--set", "run.steps=100000", "--set", f"comm.timeout_s={TIMEOUT}")
    IO = ("mpio", "direct") if "TESSERA_SOAK_LOSSES" in os.environ else ("mpio",)  # groups_test.py has the other

    def lose(self, name, how):
        if how != "loud":
            self.hosts.link(name, "down")
        if how != "cut":
            self.hosts.kill(name)

    def check_ended(self, spaces, process, how):
        """Every rank ends by itself with 7, or is ended by the launcher, which may itself wait for a host that is gone."""
        begun = time.monotonic()
        until(lambda: not any(self.hosts.members(space, self.tessera) for space in spaces), "the end of all ranks", BOUND + 10)
        took = time.monotonic() - begun
        self.assertLessEqual(took, BOUND, self.said())
        allowed = {7} if is_hydra(self.launcher) else {7, 128 + signal.SIGTERM}  # by Open MPI's daemon, as it loses the job
        self.assertLessEqual(set(self.hosts.codes("run").values()), allowed, self.said())
        if how == "loud":
            self.assertNotEqual(process.wait(30), 0)
        process.kill()

    def check_goes_on(self, deck):
        """On the host that is left, or has come back, with the bits of a run that lost nothing."""
        last = max((int(name[5:]) for name in os.listdir(self.path("run")) if name[5:].isdigit()), default=0)
        until_step = ("--stop-at", str(last + 2))
        self.run_to_its_end(75, PLACES["one"], deck, *self.LONG, *until_step, out="again")
        self.run_to_its_end(75, PLACES["one"], self.deck("whole"), *self.LONG, *until_step, out="whole")
        self.assertEqual(self.digest("run"), self.digest("whole"))

    def stands_still(self, name):
        """Whether a rank on the host was stopped by a fault."""
        return any(processes.state_of(pid) == "T" for pid in self.hosts.members(self.hosts.space(name), self.tessera))

    def check(self, name, how, fault="", named=None, goes_on=False, delay=0.0, io="mpio"):
        deck = self.deck("run", io=io)
        process = self.start(PLACES["two"], deck, *self.LONG, TESSERA_FAULT=fault)
        if fault:
            until(lambda: self.stands_still(name), fault, PATIENCE)
        else:
            until(lambda: self.step_reached("run", 4), "steps", PATIENCE)
        time.sleep(delay)
        spaces = [self.hosts.space(one) for one in self.hosts.names]
        self.lose(name, how)
        self.check_ended(spaces, process, how)
        if named:
            self.assertRegex(self.said()[1], named)
        if goes_on:
            if name == "h1":
                self.hosts.boot("h1")
            self.check_goes_on(deck)

    def test_a_host_falls_silent(self):
        self.check("h2", "silent", named=r"h2: all its ranks \(2, 3\) are silent: host or network lost", goes_on=True)

    def test_the_first_host_falls_silent(self):
        self.check("h1", "silent", named=r"rank 0 \(h1\) does not answer", goes_on=True)

    def test_a_host_is_cut_off(self):
        self.check("h2", "cut", named=r"h2: all its ranks \(2, 3\) are silent")

    def test_the_first_host_is_cut_off(self):
        self.check("h1", "cut", named=r"rank 0 \(h1\) does not answer")

    def test_a_host_is_killed(self):
        # The launcher sees its proxy's end (control_cb) or a rank's, and may end the job before rank 0 has printed.
        self.check("h2", "loud", named="on h2 has ended without a word|BAD TERMINATION|EXIT|control_cb|lost communication")

    def again(self):
        """Hosts as they were, and no run directory."""
        for name in self.hosts.names:
            with contextlib.suppress(ProcessLookupError):
                self.hosts.kill(name)
            self.hosts.boot(name)
        for directory in ("run", "whole"):
            shutil.rmtree(self.path(directory), ignore_errors=True)
        for out in ("run.codes", "run.jsonl", "whole.jsonl"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.path(out))

    def test_a_host_is_lost_in_a_save(self):
        for io in self.IO:
            phase = random.choice(("structure", "payload", "sync", "vote"))
            print(f"in {phase}, {io}", flush=True)
            self.check("h2", "silent", fault=f"{phase}:2:stop:2", goes_on=True, io=io)
            self.again()

    def test_any_host_at_any_moment(self):
        for _ in range(int(os.environ.get("TESSERA_SOAK_LOSSES", 1))):
            name, how, delay = random.choice(self.hosts.names), random.choice(("silent", "cut", "loud")), random.uniform(0, 1)
            print(f"{name}, {how}, after {delay:.3f} s", flush=True)
            self.check(name, how, delay=delay)
            self.again()

    def test_a_slow_late_or_lossy_link_changes_no_bit(self):
        deck, digests = self.deck("run"), {}
        def slow():
            self.hosts.slow("h2", "50mbit")
        def late():
            self.hosts.bad("h2", delay=0.02)
            self.assertGreater(self.hosts.answers_after("h1", "h2"), 0.04)
        def lossy():
            self.hosts.bad("h2", loss=0.02)
        for made_so in (slow, late, lossy):
            self.again()
            if made_so is not slow:
                self.hosts.kill("h2")
                self.hosts.boot("h2", perfect=False)
            made_so()
            self.run_to_its_end(0, PLACES["two"], deck, "--set", "comm.timeout_s=60")
            digests[made_so.__name__] = self.digest("run")
        self.again()
        self.run_to_its_end(0, PLACES["one"], deck)
        self.assertEqual(digests, dict.fromkeys(digests, self.digest("run")))

    def test_a_host_is_lost_in_an_evaluation(self):
        """That of step 2, of minutes: the row of step 1 is written as step 2 is made."""
        self.write("long.text", runs.CORPUS * 500)
        deck = self.deck("run")
        process = self.start(PLACES["two"], deck, *self.LONG, "--set", "eval.batches=100000", "--set", "data.eval_files=[long.text]")
        until(lambda: self.step_reached("run", 1), "steps", PATIENCE)
        time.sleep(2)
        spaces = [self.hosts.space(one) for one in self.hosts.names]
        self.lose("h2", "silent")
        self.check_ended(spaces, process, "silent")
        self.assertLessEqual(len(self.json_lines("run", "metrics.jsonl")), 2)
        self.assertNotIn("eval_loss", self.read("run", "metrics.jsonl"))

    def test_a_host_is_lost_while_ranks_start(self):
        begun = time.monotonic()
        process = self.start(PLACES["two"], self.deck("run"), TESSERA_TIMEOUT=str(TIMEOUT))
        until(lambda: self.hosts.members(self.hosts.space("h2"), self.tessera), "a start")
        spaces = [self.hosts.space("h1")]
        self.lose("h2", "silent")
        self.check_ended(spaces, process, "silent")
        self.assertLess(time.monotonic() - begun, PATIENCE)

    def test_a_host_is_lost_while_a_run_is_resumed(self):
        """In MPI_Init, in a look at the checkpoint, in its load, in the first steps: wherever the drawn delay ends."""
        deck = self.deck("run")
        self.run_to_its_end(75, PLACES["two"], deck, *self.LONG, "--stop-at", "2", out="first")
        process = self.start(PLACES["two"], deck, *self.LONG, TESSERA_TIMEOUT=str(TIMEOUT))
        until(lambda: self.hosts.members(self.hosts.space("h2"), self.tessera), "a start")
        delay = random.uniform(0, 1)
        print(f"after {delay:.3f} s", flush=True)
        time.sleep(delay)
        spaces = [self.hosts.space("h1")]
        self.lose("h2", "silent")
        self.check_ended(spaces, process, "silent")
        self.check_goes_on(deck)

    def test_a_short_cut_is_survived(self):
        deck = self.deck("run")
        process = self.start(PLACES["two"], deck, *self.LONG, "--set", "comm.timeout_s=60", "--stop-at", "60")
        until(lambda: self.step_reached("run", 4), "steps", PATIENCE)
        self.hosts.link("h2", "down")
        time.sleep(2)
        self.hosts.link("h2", "up")
        self.assertEqual(process.wait(PATIENCE), 75, self.said())
        self.run_to_its_end(75, PLACES["one"], self.deck("whole"), *self.LONG, "--stop-at", "60", out="whole")
        self.assertEqual(self.digest("run"), self.digest("whole"))


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
        self.assertRegex(begun, r"hosts differ: h2 \(ranks 2-3\): oneDNN's instructions sse41, others \w+\n")
        self.assertIn("proof.mixed_hosts: true", begun)
        self.assertFalse(os.path.exists(self.path("run")))
        out, err = self.run_to_its_end(0, PLACES["two"], deck, "--set", "proof.mixed_hosts=true")
        self.assertEqual(out.count("hosts differ: h2 (ranks 2-3)"), 2, out)  # at the start and in the closing tables
        (line,) = json.loads(self.read("run", "run.json"))["mixed_hosts"]
        self.assertRegex(line, "hosts differ: h2 .* sse41")

    def preload(self, name, source):
        """Has h2's ranks call the functions of this source in place of the system's."""
        library = self.path(name + ".so")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, self.write(name + ".c", source)], check=True, timeout=60)
        self.on_second(LD_PRELOAD=library)

    @unittest.skipUnless(shutil.which("cc"), "the other version is compiled")
    def test_another_library(self):
        self.preload("version", 'const char *gnu_get_libc_version(void) { return "1.0"; }\n')
        told = self.said_by(4, self.deck("run"))
        self.assertRegex(told, r"hosts differ: h2 \(ranks 2-3\): C library 1\.0, others 2\.\d+\n")
        self.assertFalse(os.path.exists(self.path("run")))

    @unittest.skipUnless(shutil.which("cc"), "the other clock is compiled")
    def test_a_clock_two_days_ahead(self):
        """It is told, and changes nothing."""
        self.run_to_its_end(0, PLACES["two"], self.deck("whole"), out="whole")
        self.preload("clock", CLOCK)
        out, err = self.run_to_its_end(0, PLACES["two"], self.deck("run"))
        self.assertRegex(out, r"clocks: +that of h2 is 17[23]\d{3} s ahead of that of h1; only times in logs depend on them\n")
        self.assertEqual(self.digest("run"), self.digest("whole"))

    def said_by(self, code, *arguments):
        return self.run_to_its_end(code, PLACES["two"], *arguments)[1]

    def test_fewer_threads(self):
        deck = self.deck("run")
        self.on_second(OMP_NUM_THREADS="2")
        text = self.read("run.yaml").replace(", threads: 1", "")
        self.write("run.yaml", text)
        out, _ = self.run_to_its_end(0, PLACES["two"], deck)
        self.assertRegex(out, "4 ranks of 1 thread\n")

    def test_a_folder_that_one_host_does_not_see(self):
        deck = self.deck("run", directory="own/run")
        said = self.said_by(4, deck, "--set", f"checkpoint.io={random.choice(('mpio', 'direct'))}", "--set", "debug.trace=")
        self.assertRegex(said, r"checkpoint.dir: h2 \(ranks 2-3\) does not see own/run of h1; name a directory of a file system that all")
        self.assertEqual(os.listdir(self.path("h1.own")), [])

    def test_data_that_one_host_does_not_see(self):
        deck = self.deck("run")
        self.write("h1.own/some.txt", runs.CORPUS)
        said = self.said_by(5, deck, "--set", "data.files=[own/some.txt]")
        self.assertRegex(said, r"^rank 2 \(h2\): .*own/some.txt")

    def test_another_deck(self):
        self.deck("run")
        for name, steps in (("h1", 4), ("h2", 5)):
            self.write(f"{name}.own/deck.yaml", self.read("run.yaml").replace("steps: 4", f"steps: {steps}"))
        self.assertIn("h2 (ranks 2-3) read another deck than rank 0 on h1", self.said_by(3, self.path("own", "deck.yaml")))


class Checked(OnHosts):
    """The check that a user runs on an allocation."""
    count = 2
    SCRIPT = os.path.join(runs.JOBSCRIPTS, "cluster", "check_hosts.sh")

    def check(self, code, folder, **environment):
        launch = self.hosts.launch(self.launcher, PLACES["two"])
        ranks = () if not environment else ("env", *(f"{key}={value}" for key, value in environment.items()))
        process = self.hosts.on_login(self.SCRIPT, self.path(folder), *launch, *ranks, out="check", environment={"TESSERA": self.tessera})
        self.assertEqual(process.wait(PATIENCE), code, self.said("check"))
        return self.said("check")

    def test_hosts_that_are_sound(self):
        out, err = self.check(0, "sound")
        self.assertEqual(err, "")
        self.assertRegex(out, r"(?s)2 h1\n +2 h2\n.*renames.*communication was.*GB/s.*nothing is wrong\n$")

    def test_a_folder_that_is_not_shared(self):
        os.makedirs(self.path("own"), exist_ok=True)
        out, err = self.check(1, os.path.join("own", "check"))
        self.assertIn("WRONG", err)
        self.assertNotIn("nothing is wrong", out)
