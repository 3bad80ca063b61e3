"""Small runs in a temporary folder, under the launcher or by job scripts."""
import concurrent.futures
import contextlib
import fcntl
import json
import os
import re
import select
import subprocess
import threading
import time

import processes

PATIENCE = 600  # seconds after which a program counts as hanging
DECK = """schema_version: 1
run: {name: small, steps: 8, threads: 1}
model: {layers: 2, hidden: 32, heads: 4, seq_len: 32, norm: rms, activation: swiglu, position: rotary, ffn: 48MOE}
data: {files: ["*.txt"]}
batch: {global: 12, micro: 1}
eval: {every_steps: 3, batches: 1}
reduce: {bucket_mib: 0.01}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, every_steps: 3, io: direct}
"""
CORPUS = "".join(f"the {i * 7919 % 113} tiles of the {i % 17} mosaics\n" for i in range(400))
JOBSCRIPTS = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../jobscripts"))
JOB_DECK = """schema_version: 1
run: {name: job, steps: 400, threads: 1}
model: {layers: 1, hidden: 32, heads: 2, ffn: 64, seq_len: 32}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 4, micro: 2}
sample: {tokens: 0}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: run, every_steps: 0}
"""


def part_of(cases):
    """The cases of a matrix that TESSERA_MATRIX_PART=i/n selects: every n-th, from the i-th on."""
    part, parts = map(int, os.environ.get("TESSERA_MATRIX_PART", "0/1").split("/"))
    return list(cases)[part::parts]


class Paced:
    """A run's trace through a small pipe, so that the run is at most a step or two ahead of the test, which reads it; until
    let_go()."""

    def __init__(self, path):
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDWR)  # read and write, so that reading never meets the end of file
        fcntl.fcntl(self.pipe, 1031, 4096)  # F_SETPIPE_SZ, which Python's fcntl names from 3.10 on
        self.rows, self.rest, self.ended, self.reader = [], b"", False, None

    def read(self, seconds):
        if select.select([self.pipe], [], [], seconds)[0]:
            *lines, self.rest = (self.rest + os.read(self.pipe, 1 << 16)).split(b"\n")
            self.rows += map(json.loads, lines)
            return True
        return False

    def until(self, rows):
        deadline = time.monotonic() + PATIENCE
        while len(self.rows) < rows:
            if not self.read(1) and time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.rows)} rows of {rows}")

    def slowly_while(self, condition):
        """Lets the run make a step or two every fifth of a second."""
        while condition():
            self.read(0)
            time.sleep(0.2)

    def let_go(self):
        """Lets the run go on at its own speed."""
        def drain():
            while not self.ended:
                self.read(0.1)

        self.reader = threading.Thread(target=drain, daemon=True)
        self.reader.start()

    def all(self):
        """All rows; call it when no run writes any more."""
        self.ended = True
        self.reader.join()
        while self.read(0):
            pass
        os.close(self.pipe)
        return self.rows


class InFolder:
    """A test with a temporary folder that holds a corpus."""

    def setup_method(self):
        self.write("corpus.txt", CORPUS)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return self.path(name)

    def read(self, *names):
        with open(self.path(*names), encoding="utf-8", errors="replace") as file:
            return file.read()

    def json_lines(self, *names):
        """Objects of the complete lines; the last row may be incomplete."""
        return [json.loads(line) for line in self.read(*names).splitlines(keepends=True) if line.endswith("\n")]

    def steps_done(self, directory):
        """So far, as metrics.jsonl says; 0 before it exists."""
        with contextlib.suppress(OSError):
            return len(self.json_lines(directory, "metrics.jsonl"))
        return 0

    def tool(self, code, verb, *arguments, **options):
        done = subprocess.run([self.tessera, "checkpoint", verb, *arguments, "--json"], capture_output=True, text=True, timeout=PATIENCE,
                              cwd=self.folder, **options)
        assert done.returncode == code, (verb, arguments, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout else done.stderr

    def final(self, directory):
        return self.tool(0, "inspect", directory)["content_digest"]


class Jobs(InFolder):
    """Runs of deck.yaml by the job scripts."""

    def setup_method(self):
        super().setup_method()
        self.write("deck.yaml", JOB_DECK)

    def rows(self, directory):
        return self.json_lines(directory, "metrics.jsonl")


def reads_tokenizers(tessera):
    """Whether the program was built with ICU."""
    done = subprocess.run([tessera, "info", "--json"], capture_output=True, text=True, check=True)
    return "ICU" in done.stdout


class Runs(InFolder):
    wrapper = ()  # what the launcher starts, with the program and its arguments behind it

    def deck(self, directory, weights="single"):
        """weights: layout of the experts; None: a dense model."""
        moe = f", moe: {{experts: 4, top_k: 2, weights: {weights}}}" if weights else ""
        return self.write(directory + ".yaml", DECK.replace("DIR", self.path(directory)).replace("MOE", moe))

    def start(self, ranks, *arguments, verb="train", fault=""):
        return subprocess.Popen([self.launcher, "-n", str(ranks), *self.wrapper, self.tessera, verb, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="surrogateescape", cwd=self.folder,
                                env={**os.environ, "OMP_NUM_THREADS": "1", "TESSERA_TEST_FOLDER": self.folder, "TESSERA_FAULT": fault})

    def rank_of(self):
        """Pid of a rank that runs in the folder, if there is one."""
        return next(iter(processes.find(self.tessera, TESSERA_TEST_FOLDER=self.folder)), None)

    def run_to_its_end(self, code, ranks, verb, *arguments, fault="", input=None):
        process = self.start(ranks, *arguments, verb=verb, fault=fault)
        out, err = process.communicate(input, timeout=PATIENCE)
        assert process.returncode == code, (arguments, out[-2000:], err)
        if fault.startswith("step"):
            assert "strikes" in err, f"{fault} has not struck"
        return out, err

    def train(self, code, ranks, *arguments, fault=""):
        return self.run_to_its_end(code, ranks, "train", *arguments, fault=fault)

    def traced(self, path, fault=""):
        """Rows of a run's debug.trace. A step that `fault` makes again must have reduced its gradients twice."""
        with open(path) as file:
            rows = [json.loads(line) for line in file]
        if again := re.fullmatch(r"step(\d+):all:redo", fault):
            reductions = {row["step"]: sum(one["label"] == "gradients" for one in row["collectives"]) for row in rows}
            step = int(again[1])
            assert reductions[step] == 2 * reductions[step - 1], path
        return rows

    def check_each(self, check, cases, jobs=1, tell=False):
        """check(case) for each case, `jobs` side by side; fails with all that failed."""
        failures, done = [], 0
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = {pool.submit(check, case): case for case in cases}
            for future in concurrent.futures.as_completed(futures):
                done += 1
                if future.exception():
                    failures.append(f"{futures[future]}: {future.exception()}")
                    print(failures[-1], flush=True)
                elif tell and done % 20 == 0:
                    print(f"{done} of {len(cases)} cases, {len(failures)} failures", flush=True)
        assert failures == []
        return done

    def rows(self, directory, steps=8):
        """Results of a run, step by step."""
        rows = self.json_lines(directory, "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        return [(row["loss"], row.get("eval_loss"), row["grad_norm"], row["lr"]) for row in rows]
