"""Small runs under the launcher in a folder of their own: what the tests of checkpoints share."""
import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TESSERA = MPIEXEC = ""
PATIENCE = 600  # seconds after which a program hangs; a slow machine only needs longer
DECK = """schema_version: 1
run: {name: small, steps: 8, threads: 1}
model: {layers: 2, hidden: 32, heads: 4, seq_len: 32, norm: rms, activation: swiglu, position: rotary, ffn: 48MOE}
data: {files: ["*.txt"]}
batch: {global: 12, micro: 1}
eval: {every_steps: 3, batches: 1}
reduce: {bucket_mib: 0.01}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, every_steps: 3}
"""


class Paced:
    """A run's trace, written no faster than the test reads it: a step or two ahead the run waits for the test, whatever
    the machine. Until let_go()."""

    def __init__(self, path):
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDWR)  # so that it never ends
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

    def let_go(self):
        """The run goes on alone."""
        def drain():
            while not self.ended:
                self.read(0.1)

        self.reader = threading.Thread(target=drain, daemon=True)
        self.reader.start()

    def all(self):
        """Every row, once no run writes any more."""
        self.ended = True
        self.reader.join()
        while self.read(0):
            pass
        os.close(self.pipe)
        return self.rows


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tessera-runs-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("corpus.txt"), "w") as file:
            file.write("".join(f"the {i * 7919 % 113} tiles of the {i % 17} mosaics\n" for i in range(400)))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def deck(self, directory, weights="single"):
        """weights: of the experts; none: a dense model."""
        moe = f", moe: {{experts: 4, top_k: 2, weights: {weights}}}" if weights else ""
        with open(self.path(directory + ".yaml"), "w") as file:
            file.write(DECK.replace("DIR", self.path(directory)).replace("MOE", moe))
        return self.path(directory + ".yaml")

    def start(self, ranks, *arguments, verb="train"):
        return subprocess.Popen([MPIEXEC, "-n", str(ranks), TESSERA, verb, *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                env={**os.environ, "OMP_NUM_THREADS": "1", "TESSERA_TEST_FOLDER": self.folder})

    def rank_of(self):
        """A rank that runs in the folder, if any does."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    ours = f"TESSERA_TEST_FOLDER={self.folder}".encode() in file.read()
                if ours and os.readlink(f"/proc/{pid}/exe") == os.path.realpath(TESSERA):
                    return int(pid)
            except OSError:
                continue
        return None

    def run_to_its_end(self, code, ranks, verb, *arguments):
        process = self.start(ranks, *arguments, verb=verb)
        out, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, code, (arguments, out[-2000:], err))
        return out, err

    def train(self, code, ranks, *arguments):
        return self.run_to_its_end(code, ranks, "train", *arguments)

    def tool(self, code, verb, *arguments):
        done = subprocess.run([TESSERA, "checkpoint", verb, *arguments, "--json"], capture_output=True, text=True, timeout=PATIENCE,
                              cwd=self.folder)
        self.assertEqual(done.returncode, code, (verb, arguments, done.stdout, done.stderr))
        return json.loads(done.stdout) if done.stdout else done.stderr

    def json_lines(self, *names):
        """Of the whole lines: a row may just be on its way."""
        with open(self.path(*names)) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def rows(self, directory, steps=8):
        """What a run computed, step by step."""
        rows = self.json_lines(directory, "metrics.jsonl")
        self.assertEqual([row["step"] for row in rows], list(range(1, steps + 1)))
        return [(row["loss"], row.get("eval_loss"), row["grad_norm"], row["lr"]) for row in rows]

    def final(self, directory):
        return self.tool(0, "inspect", directory)["content_digest"]


def main():
    """usage: <test>.py TESSERA MPIEXEC [TEST...]"""
    global TESSERA, MPIEXEC
    MPIEXEC = sys.argv.pop(2)
    TESSERA = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
