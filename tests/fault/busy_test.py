"""Errors that pass (a lock, too many open files, a network file system that is away) while a checkpoint is read: drawn over
errno, file, call and verb. Every verb ends with exit 4 and the file's name, nothing is passed over, replaced or removed, and
an error that soon passes is waited for. All ranks end alike.
"""
import errno
import fcntl
import json
import os
import random
import shutil
import subprocess

import pytest

import trial
from trial import BEFORE, DURING, EVERY, IO, Faults

SEED = int(os.environ.get("TESSERA_SOAK_SEED", "1"))
LASTING = [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.ETIMEDOUT, errno.EACCES]
PASSING = [errno.EAGAIN, errno.EINTR, errno.ESTALE]
NEWEST = f"step_{DURING:08}"
PLACES = [(call, f"{NEWEST}/{name}") for name in ("manifest.json", "model.h5", "optimizer.h5") for call in ("open", "read")]
PLACES += [("open", f"{NEWEST}/deck.yaml"), ("read", f"{NEWEST}/deck.yaml"), ("lock", f"{NEWEST}/model.h5"), ("lock", f"{NEWEST}/optimizer.h5"),
           ("see", f"{NEWEST}/manifest.json"), ("see", NEWEST), ("list", NEWEST), ("list", "run")]
VERBS = {"train": ["train", "../deck.yaml", "--stop-at", "9"], "eval": ["eval", "../deck.yaml", "--checkpoint", "run", "--set", "data.eval_fraction=0.2"],
         "generate": ["generate", "run", "--prompt", "the", "--tokens", "2"], "convert": ["checkpoint", "convert", "run", "converted"],
         "quantize": ["quantize", f"run/{NEWEST}/model.h5", "--format", "mxfp8", "--out", "quantized.h5"],
         "ls": ["checkpoint", "ls", "run"], "verify": ["checkpoint", "verify", "run"], "inspect": ["checkpoint", "inspect", "run"],
         "diff": ["checkpoint", "diff", "run", f"run/step_{BEFORE:08}"]}

pytestmark = pytest.mark.skipif(IO != "mpio", reason="reads are the same whatever wrote the files")


class Busy(Faults):
    def begun_twice(self, name):
        """A run with two checkpoints."""
        run = self.trial(name)
        done = run.run("--stop-at", str(DURING))
        assert (done.code, run.steps()) == (75, [BEFORE, DURING]), done
        return run

    def call(self, run, verb, ranks=1, **variables):
        launched = [self.launcher, "-n", str(ranks)] if ranks > 1 else []
        return subprocess.run([*launched, self.tessera, *VERBS[verb]], cwd=run.folder, capture_output=True, text=True, timeout=trial.PATIENCE,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **variables})

    def failing(self, call, path, cause, times):
        return {"LD_PRELOAD": os.path.join(self.build, "tests/fault/libfailing_calls.so"), "TESSERA_TEST_FAILS": f"{call}:{path}:{cause}:{times}",
                "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}

    def check_refused(self, run, verb, done, path, before):
        told = done.stdout + done.stderr
        assert done.returncode == 4, told
        assert path in told
        assert "passed over" not in told
        assert "invalid" not in told
        if verb == "ls" and f"{NEWEST}/" in path:  # else the list itself cannot be made
            assert "busy: " in done.stdout
        assert self.seen(run) == before

    @staticmethod
    def seen(run):
        """Every file of the run's checkpoints, with its content."""
        found = {}
        for folder, _, names in os.walk(run.run_directory):
            for name in names:
                if "step_" in folder:
                    with open(os.path.join(folder, name), "rb") as file:
                        found[os.path.join(folder, name)] = file.read()
        return found

    def drawn(self, causes, count):
        draw = random.Random(SEED)
        cases = [(cause, *place, verb) for cause in causes for place in PLACES for verb in VERBS
                 if verb != "quantize" or "model.h5" in place[1]]  # it opens that file alone
        return draw.sample(cases, count)

    def test_errors_that_last(self):
        run = self.begun_twice("lasting")
        before = self.seen(run)
        for number, (cause, call, path, verb) in enumerate(self.drawn(LASTING, 18)):
            ranks = 2 if verb in ("train", "eval", "generate") and number % 2 else 1
            with self.subtests.test(cause=errno.errorcode[cause], call=call, path=path, verb=verb, ranks=ranks):
                done = self.call(run, verb, ranks, **self.failing(call, path, cause, -1))
                self.check_refused(run, verb, done, path, before)

    def test_errors_that_soon_pass(self):
        run = self.begun_twice("passing")
        for cause, call, path, verb in self.drawn(PASSING, 8):
            if verb == "train":
                verb = "inspect"  # so that the step stays the newest
            for name in ("converted", "quantized.h5"):
                subprocess.run(["rm", "-rf", name], cwd=run.folder, check=True)
            with self.subtests.test(cause=errno.errorcode[cause], call=call, path=path, verb=verb):
                done = self.call(run, verb, **self.failing(call, path, cause, 2))
                assert done.returncode == (1 if verb == "diff" else 0), done
                assert "passed over" not in done.stderr

    def test_a_step_that_another_program_holds(self):
        run = self.begun_twice("held")
        before = self.seen(run)
        for name in ("model.h5", "optimizer.h5"):
            with open(run.path(NEWEST, name), "r+b") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                for verb in ("train", "ls", "generate"):
                    self.check_refused(run, verb, self.call(run, verb, 2 if verb == "train" else 1), f"{NEWEST}/{name}", before)
        done = run.run()
        assert done.code == 0, done
        self.check_whole(run)

    def test_all_steps_are_busy(self):
        run = self.begun_twice("all")
        done = self.call(run, "train", **self.failing("open", "/manifest.json", errno.EMFILE, -1))
        assert done.returncode == 4, done
        assert "move them away to start anew" not in done.stderr
        assert run.steps() == [BEFORE, DURING]

    def test_retention_neither_counts_nor_removes_a_busy_step(self):
        run = self.begun_twice("retained")
        busy = f"step_{DURING + EVERY:08}"
        done = run.run("--stop-at", str(DURING + 2 * EVERY), **self.failing("open", f"run/{busy}/model.h5", errno.EMFILE, -1))
        assert (done.code, run.steps()) == (75, [DURING, DURING + EVERY, DURING + 2 * EVERY]), done
        done = run.run()
        assert done.code == 0, done
        self.check_whole(run)

    def test_a_newer_step_that_is_not_known_to_be_damaged_is_set_aside(self):
        """One of a later program, and weights alone: no run goes on from them, and none takes their place."""
        for name in ("later", "weights"):
            with self.subtests.test(name):
                run = self.begun_twice("aside-" + name)
                if name == "later":
                    with open(run.path(NEWEST, "manifest.json")) as file:
                        manifest = json.load(file)
                    manifest["format_version"] = [1, 99]
                    with open(run.path(NEWEST, "manifest.json"), "w") as file:
                        json.dump(manifest, file)
                else:
                    subprocess.run([self.tessera, "checkpoint", "convert", f"run/{NEWEST}", "weights", "--weights-only"], cwd=run.folder, check=True,
                                   capture_output=True)
                    shutil.rmtree(run.path(NEWEST))
                    shutil.move(os.path.join(run.folder, "weights"), run.path(NEWEST))
                before = {os.path.basename(path): content for path, content in self.seen(run).items() if NEWEST in path}
                done = run.run("--stop-at", str(DURING))
                assert (done.code, run.steps()) == (75, [BEFORE, DURING]), done
                assert f"set aside as abandoned-1_{NEWEST}" in done.err
                aside = {os.path.basename(path): content for path, content in self.seen(run).items() if f"abandoned-1_{NEWEST}" in path}
                assert aside == before

    def test_a_damaged_step_is_still_passed_over(self):
        run = self.begun_twice("damaged")
        with open(run.path(NEWEST, "model.h5"), "r+b") as file:
            file.truncate(1000)
        done = run.run()
        assert done.code == 0, done
        assert "passed over" in done.err
        self.check_whole(run)
