"""Small runs under the launcher in a folder of their own: what the tests of checkpoints share."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TESSERA = MPIEXEC = ""
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

    def signalled(self, run, at, *arguments, weights="single"):
        """Ends a run on two ranks by a signal to one of them once `at` steps are done; the step that it saved. A run that
        was over before this process had looked is done anew."""
        metrics = self.path(run, "metrics.jsonl")
        for _ in range(10):
            shutil.rmtree(self.path(run), ignore_errors=True)
            process = self.start(2, self.deck(run, weights), *arguments)
            while process.poll() is None and not (os.path.exists(metrics) and len(self.json_lines(run, "metrics.jsonl")) >= at):
                time.sleep(0.005)
            with contextlib.suppress(TypeError, ProcessLookupError):
                os.kill(self.rank_of(), signal.SIGTERM)  # mpiexec's own code after a signal to it is not reliable
            out, err = process.communicate(timeout=300)
            if process.returncode == 0:
                continue
            self.assertEqual(process.returncode, 75, (out[-1000:], err))
            step = self.tool(0, "inspect", run)["step"]
            self.assertGreaterEqual(step, at)
            return step
        self.fail("the run was over each time")

    def run_to_its_end(self, code, ranks, verb, *arguments):
        process = self.start(ranks, *arguments, verb=verb)
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, code, (arguments, out[-2000:], err))
        return out, err

    def train(self, code, ranks, *arguments):
        return self.run_to_its_end(code, ranks, "train", *arguments)

    def tool(self, code, verb, *arguments):
        done = subprocess.run([TESSERA, "checkpoint", verb, *arguments, "--json"], capture_output=True, text=True, timeout=300,
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
