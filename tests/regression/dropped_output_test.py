"""A run goes on, and saves, when its output cannot be written: `train DECK | head`, Ctrl-C at `train DECK | tee log`, a full disk.
"""
import os
import random
import signal
import subprocess
import sys
import time

import runs

# Copies lines until it has enough of them or is interrupted, as head and tee do.
READER = "import sys\nfor i, line in zip(range(int(sys.argv[1])), sys.stdin): print(line, end='', flush=True)"


class DroppedOutput(runs.Runs):
    def setup_method(self):
        super().setup_method()
        self.draws = random.Random(self.name)

    def piped(self, lines, *arguments, both=False):
        """A run and the reader of its output, in a process group of their own."""
        run = subprocess.Popen([self.tessera, "train", *arguments], cwd=self.folder, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
                               stderr=subprocess.STDOUT if both else subprocess.PIPE, text=True, process_group=0)
        reader = subprocess.Popen([sys.executable, "-c", READER, str(lines)], stdin=run.stdout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True, process_group=run.pid)
        run.stdout.close()  # the reader has it
        run.stdout = None
        return run, reader

    def ended(self, code, run, directory):
        err = run.communicate(timeout=runs.PATIENCE)[1]
        assert run.returncode == code, err
        assert "LOCK" not in os.listdir(self.path(directory))
        return err

    def test_a_reader_that_has_enough(self):
        wanted = None
        for i, lines in enumerate((10_000, 0, 1, self.draws.randint(2, 12))):
            run, reader = self.piped(lines, self.deck(f"run{i}", None), both=i % 2 == 1)
            reader.communicate()
            self.ended(0, run, f"run{i}")
            wanted = wanted or self.final(f"run{i}")
            assert (len(self.rows(f"run{i}")), self.final(f"run{i}")) == (8, wanted)

    def test_an_interrupt_that_ends_the_reader_too(self):
        for both in (False, True):
            directory = f"run-{both}"
            run, reader = self.piped(10_000, self.deck(directory, None), "--set", "run.steps=100000", "--set", "checkpoint.every_steps=0", both=both)
            deadline = time.monotonic() + runs.PATIENCE
            while not os.path.exists(self.path(directory, "metrics.jsonl")) or not self.json_lines(directory, "metrics.jsonl"):
                assert run.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.killpg(run.pid, signal.SIGINT)
            reader.communicate()
            self.ended(75, run, directory)
            last = self.json_lines(directory, "metrics.jsonl")[-1]["step"]
            assert f"step_{last:08}" in os.listdir(self.path(directory))

    def test_a_full_disk_under_the_log(self):
        for i, both in enumerate((False, True)):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([self.tessera, "train", self.deck(f"full{i}", None)], cwd=self.folder, stdout=full, text=True, timeout=runs.PATIENCE,
                                      stderr=subprocess.STDOUT if both else subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
            assert done.returncode == 0, done.stderr
            if not both:
                assert done.stderr.count("standard output: No space left on device") == 1, done.stderr
            assert len(self.rows(f"full{i}")) == 8
