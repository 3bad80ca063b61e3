"""Runs of the program that are broken on purpose, and checks of what must hold afterwards."""
import concurrent.futures
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

import processes

RANKS = 2
LAST = RANKS - 1
STEPS, EVERY = 20, 4
IO = os.environ.get("TESSERA_TEST_IO", "mpio")  # mpio, direct, or async (direct, while training goes on)
BEFORE, DURING = EVERY, 2 * EVERY  # steps of the checkpoint before the fault, and of the one during which it occurs
DECK = f"""schema_version: 1
run: {{name: small, steps: {STEPS}, threads: 1}}
model: {{layers: 1, hidden: 16, heads: 2, seq_len: 16, norm: rms, activation: swiglu, position: rotary, ffn: 24, moe: {{experts: 2, top_k: 1}}}}
data: {{files: ["*.txt"]}}
batch: {{global: 12, micro: 2}}
eval: {{every_steps: 0}}
reduce: {{bucket_mib: 0.004}}
optimizer: {{lr: 0.01, warmup_steps: 2}}
checkpoint: {{dir: run, every_steps: {EVERY}, {"async: true" if IO == "async" else f"io: {IO}"}}}
"""
PHASES = ["lock", "mkdir", "create", "guard", "structure", "payload", "sync", "vote", "digest", "close", "manifest", "rename", "latest", "aside"]
if IO == "async":  # boundaries vote
    PHASES.remove("vote")
if os.environ.get("TESSERA_TEST_FAULTS") == "of_payload":  # only those faults in which the ways of writing differ
    PHASES = ["structure", "payload", "sync", "manifest"]
PATIENCE = 240  # seconds after which a run counts as hanging; long, since passing tests never wait for it
SAVED = r"saved run/step_(\d+)"


def bits(path):
    """The rows of metrics.jsonl without times and the number of restarts."""
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    return [(row["step"], row["loss"], row["grad_norm"], row["clip_coef"], row["lr"], row["tokens"]) for row in rows]


class Done:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def __str__(self):
        return f"exit {self.code} after {self.seconds:.1f} s\n{self.out[-1500:]}\n{self.err[-3000:]}"


class Trial:
    """A folder with a run directory `run`, and the runs in it. All use one corpus and one deck, one folder above."""

    def __init__(self, folder, tessera, launcher):
        self.folder, self.tessera, self.launcher = folder, tessera, launcher
        os.makedirs(folder, exist_ok=True)
        self.run_directory = os.path.join(folder, "run")

    def path(self, *names):
        return os.path.join(self.run_directory, *names)

    def command(self, *arguments, ranks=RANKS):
        return [self.launcher, "-n", str(ranks), self.tessera, "train", "../deck.yaml", *arguments]

    def start(self, *arguments, ranks=RANKS, **variables):
        out, err = (open(os.path.join(self.folder, name), "w+b") for name in ("stdout", "stderr"))
        process = subprocess.Popen(self.command(*arguments, ranks=ranks), cwd=self.folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                   start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", **variables})
        process.began, process.out, process.err = time.monotonic(), out, err
        return process

    def finish(self, process, limit=PATIENCE):
        """Waits for the end of launcher and ranks; fails if they run longer than `limit`."""
        hangs = None
        try:
            process.wait(limit)
            deadline = time.monotonic() + PATIENCE
            while processes.find(self.tessera, self.folder):
                if time.monotonic() > deadline:
                    hangs = "ranks outlive the launcher"
                    break
                time.sleep(0.01)
        except subprocess.TimeoutExpired:
            hangs = "the launcher does not end"
        if hangs:
            for pid in [*processes.find(self.tessera, self.folder), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.wait()
        texts = []
        for file in (process.out, process.err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        done = Done(process.returncode, *texts, time.monotonic() - process.began)
        if hangs:
            raise AssertionError(f"{hangs}\n{done}")
        return done

    def run(self, *arguments, limit=PATIENCE, **variables):
        return self.finish(self.start(*arguments, **variables), limit)

    def until(self, process, condition):
        """Waits for the condition; fails if the run ends before."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline or process.poll() is not None and not condition():
                raise AssertionError(f"it did not come to what was waited for\n{self.finish(process, 0.1)}")
            time.sleep(0.01)

    def ranks(self):
        """Pids of the ranks that run, by rank."""
        return processes.ranks(self.tessera, self.folder)

    def standing(self):
        """The ranks that are stopped (SIGSTOP)."""
        return {rank for rank, pid in self.ranks().items() if processes.state_of(pid) == "T"}

    def steps(self):
        return sorted(int(os.path.basename(path)[5:]) for path in glob.glob(self.path("step_????????")))

    def said(self):
        """The run's output to stderr so far."""
        with open(os.path.join(self.folder, "stderr")) as file:
            return file.read()

    def lock(self):
        with open(self.path("LOCK")) as file:
            return json.load(file)

    def tool(self, verb, *arguments):
        done = subprocess.run([self.tessera, "checkpoint", verb, *arguments, "--json"], capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


class Faults:
    """Tests that compare with an undisturbed run."""

    @classmethod
    def setup_class(cls):
        # In memory if possible, since saves of these sizes mostly wait for the disk.
        memory = "/dev/shm" if "TMPDIR" not in os.environ and os.access("/dev/shm", os.W_OK) else None
        folder = tempfile.TemporaryDirectory(prefix="tessera-fault-", dir=memory)
        cls.folder = os.path.realpath(cls.at_class_end.enter_context(folder))
        with open(os.path.join(cls.folder, "deck.yaml"), "w") as file:
            file.write(DECK)
        with open(os.path.join(cls.folder, "corpus.txt"), "w") as file:
            file.write("".join(f"the {i * 7919 % 113} tiles of the {i % 17} mosaics\n" for i in range(200)))
        golden = cls.named("golden")
        done = golden.run()
        assert done.code == 0 and not done.err, done
        cls.digests = {int(step): digest for step, digest in re.findall(r"saved run/step_(\d+) \| (\w{16})", done.out)}
        assert sorted(cls.digests) == list(range(EVERY, STEPS + 1, EVERY)), done
        cls.golden_rows = bits(golden.path("metrics.jsonl"))
        assert [row[0] for row in cls.golden_rows] == list(range(1, STEPS + 1))
        cls.golden_names = cls.names(golden)
        # Beginning of most trials: a run stopped after its first save.
        cls.begun = cls.named("begun")
        done = cls.begun.run("--stop-at", str(EVERY))
        assert done.code == 75, done

    @classmethod
    def named(cls, name):
        return Trial(os.path.join(cls.folder, re.sub(r"\W", "-", name)), cls.tessera, cls.launcher)

    @staticmethod
    def names(trial):
        """Names in a run directory, without event files, of which each start makes one."""
        return sorted(name for name in os.listdir(trial.run_directory) if not name.startswith("events."))

    def trial(self, name, begun=True):
        trial = self.named(name)
        if begun:
            shutil.copytree(self.begun.run_directory, trial.run_directory)
        return trial

    def each(self, cases, check, at_once=2):
        """Runs `check(*case)` for every case, several at a time; reports all that fail."""
        failures = []
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            for case, outcome in [(case, pool.submit(check, *case)) for case in cases]:
                try:
                    outcome.result()
                except Exception as failure:  # noqa: BLE001: told below with its case
                    failures.append(f"{case}: {type(failure).__name__}: {failure}")
        assert cases
        assert not failures, "\n\n".join(failures)

    def check_whole(self, trial, kept=(STEPS - EVERY, STEPS)):
        """Checks that the run directory equals that of the undisturbed run (rows, digests, names), and that kept checkpoints verify."""
        assert bits(trial.path("metrics.jsonl")) == self.golden_rows
        others = [name for name in self.golden_names if not name.startswith("step_")]
        assert self.names(trial) == others + [f"step_{step:08d}" for step in kept]
        code, rows = trial.tool("ls", "run")
        assert code == 0, rows
        assert [(row["step"], row["content_digest"], row["valid"]) for row in rows] == [(step, self.digests[step], True) for step in kept]
        for step in trial.steps():
            code, report = trial.tool("verify", trial.path(f"step_{step:08}"))
            assert (code, report) == (0, {"ok": True, "failures": []})

    def check_recovers(self, trial, steps, ranks=RANKS):
        """Checks that the same command line resumes from one of `steps` and ends like the undisturbed run; returns its output."""
        done = trial.run(ranks=ranks)
        assert done.code == 0, done
        resumed = re.search(r"resumed from \S*/step_(\d+) \| (\w{16})", done.out)
        assert resumed, done
        assert int(resumed[1]) in steps, done
        assert resumed[2] == self.digests[int(resumed[1])]
        self.check_whole(trial)
        shutil.rmtree(trial.folder)
        return done
