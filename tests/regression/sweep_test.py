"""jobscripts/local/sweep.sh: the array of jobscripts/slurm/train.sbatch on a machine without Slurm; and the step from which
that script's job resumes.

usage: sweep_test.py TESSERA MPIEXEC
"""
import os
import signal
import subprocess
import sys
import time
import unittest

from runs import JOBSCRIPTS, PATIENCE, Jobs

TESSERA = MPIEXEC = ""


class Sweep(Jobs):
    def start(self, script, *arguments, **environment):
        """Runs in a new process group, like a terminal's foreground."""
        return subprocess.Popen(["bash", os.path.join(JOBSCRIPTS, script), *arguments], cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                env={**os.environ, "TESSERA": TESSERA, "MPIEXEC": MPIEXEC, "OMP_NUM_THREADS": "1", **environment})

    def end(self, process, code):
        out, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, code, (out, err))
        return out, err

    def sweep(self, code, *arguments, **environment):
        return self.end(self.start("local/sweep.sh", *arguments, **environment), code)

    def test_each_line_of_values_is_a_run(self):
        self.write("rates.csv", "optimizer.lr,checkpoint.dir\n0.01,one\n0.02,two\n")
        out, err = self.sweep(0, "--ntasks=2", "deck.yaml", "--sweep", "rates.csv", "--set", "run.steps=3")
        self.assertEqual(err, "")
        for task, (name, rate) in enumerate((("one", "0.01"), ("two", "0.02")), start=1):
            self.assertEqual(len(self.rows(name)), 3)
            self.assertIn(f"  lr: {rate}  # override", self.read(name, "deck.resolved.yaml"))
            log = self.read(f"rates-{task}.log")
            self.assertIn(f"[train] task {task}: optimizer.lr={rate} checkpoint.dir={name}\n", log)
            self.assertIn("2 ranks", log)
            self.assertIn(f"rates-{task}.log", out)

    def test_chosen_tasks_and_those_after_one_that_fails(self):
        self.write("rates.csv", "optimizer.lr,checkpoint.dir\n0.01,one\nfast,two\n0.02,three\n0.03\n0.04,five")
        _, err = self.sweep(3, "--array=2-3,4,5", "deck.yaml", "--sweep", "rates.csv", "--set", "run.steps=2")
        self.assertIn("task 2: ended with 3; --set optimizer.lr=fast", err)
        self.assertIn("task 4: ended with 2; train.sbatch: rates.csv: task 4 has 1 values for 2 keys", err)
        self.assertEqual([os.path.isdir(self.path(name)) for name in ("one", "two", "three", "five")], [False, False, True, True])

    def test_usage(self):
        self.write("rates.csv", "checkpoint.dir\none\n")
        self.write("keys.csv", "checkpoint.dir\n")
        for arguments, said in ((("deck.yaml",), "usage: sweep.sh"), (("deck.yaml", "--sweep", "gone.csv"), "gone.csv cannot be read"),
                                (("--array=a", "deck.yaml", "--sweep", "rates.csv"), "--array=a: numbers"),
                                (("--ntasks=0", "deck.yaml", "--sweep", "rates.csv"), "--ntasks=0 is no"),
                                (("deck.yaml", "--sweep", "keys.csv"), "no line of values")):
            self.assertIn(said, self.sweep(2, *arguments)[1])

    def test_a_run_that_stops_early_is_started_again(self):
        self.write("runs.csv", "checkpoint.dir\none\n")
        out, _ = self.sweep(75, "deck.yaml", "--sweep", "runs.csv", "--set", "run.steps=1000000", "--time-limit", "00:00:05", TESSERA_RESTARTS="1")
        self.assertEqual(out.count("started again"), 1)
        log = self.read("runs-1.log")
        self.assertEqual((log.count(", start 1,"), log.count(", start 2,"), log.count("resumed from")), (1, 1, 1), log)

    def test_a_run_that_stops_as_asked_is_not(self):
        self.write("runs.csv", "checkpoint.dir\none\n")
        out, _ = self.sweep(75, "deck.yaml", "--sweep", "runs.csv", "--stop-at", "3")
        self.assertNotIn("started again", out)
        self.assertIn("[train] stopped where --stop-at says: not queued again", self.read("runs-1.log"))

    def test_tasks_share_no_directory(self):
        self.write("runs.csv", "checkpoint.dir,optimizer.lr\none,0.1\none,0.2\n")
        self.assertIn("several tasks have checkpoint.dir one", self.sweep(2, "deck.yaml", "--sweep", "runs.csv")[1])
        self.write("runs.csv", "optimizer.lr,checkpoint.dir\n0.1,one\n0.2,two\n")
        self.assertIn("is given for all tasks", self.sweep(2, "deck.yaml", "--sweep", "runs.csv", "--set", "checkpoint.dir=x")[1])
        self.assertFalse(os.path.exists(self.path("one")))

    def check_interrupted(self, name, interrupt):
        self.write(name + ".csv", f"checkpoint.dir\n{name}\n{name}-2\n")
        command = ("local/sweep.sh", "--ntasks=2", "deck.yaml", "--sweep", name + ".csv")
        process = self.start(*command, "--set", "run.steps=1000000")
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(self.path(name, "metrics.jsonl")) or not self.rows(name):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        interrupt(process)
        _, err = self.end(process, 75)
        self.assertIn("interrupted in task 1", err)
        self.assertFalse(os.path.exists(self.path(name + "-2")))
        done = len(self.rows(name))
        self.assertIn("saved ", self.read(name + "-1.log"))
        self.end(self.start(*command, "--set", "run.steps=1000000", "--stop-at", str(done + 2), TESSERA_RESTARTS="0"), 75)
        self.assertEqual([row["step"] for row in self.rows(name)], list(range(1, done + 3)))
        self.assertIn("resumed from", self.read(name + "-1.log"))

    def test_what_is_interrupted_saves_and_the_same_command_goes_on(self):
        def twice(process):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            process.send_signal(signal.SIGTERM)

        for name, interrupt in (("once", lambda process: process.send_signal(signal.SIGTERM)), ("twice", twice),
                                ("group", lambda process: os.killpg(process.pid, signal.SIGTERM))):
            with self.subTest(name):
                self.check_interrupted(name, interrupt)


class WhereAJobGoesOn(Jobs):
    """train.sbatch alone, with an srun that prints its arguments."""

    def resumed(self, before, *arguments, restarts="1"):
        """The --resume of a start, if the job's log holds `before`."""
        self.write("log", before)
        os.makedirs(self.path("bin"), exist_ok=True)
        os.chmod(self.write("bin/srun", "#!/bin/sh\necho ran: $*\n"), 0o755)
        with open(self.path("log"), "a") as log:
            subprocess.run(["bash", os.path.join(JOBSCRIPTS, "slurm/train.sbatch"), "deck.yaml", *arguments], cwd=self.folder,
                           stdout=log, check=True, timeout=PATIENCE,
                           env={**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"], "TESSERA": TESSERA,
                                "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts})
        ran = self.read("log").rsplit("ran: ", 1)[1].split()
        self.assertEqual(ran.count("--resume"), 1, ran)
        return ran[ran.index("--resume") + 1]

    def test_a_path_counts_until_the_job_has_saved(self):
        first, saved = "[train] job 7, start 1, 2026\n", "saved run/step_00000030 | 0 | 0.10 s\n"
        self.assertEqual(self.resumed("", restarts="0"), "auto")
        self.assertEqual(self.resumed("", "--resume", "a/step", restarts="0"), "a/step")
        self.assertEqual(self.resumed("", "--set", "run.steps=3", "--resume=a/step", restarts="0"), "a/step")
        self.assertEqual(self.resumed(first, "--resume", "a/step"), "a/step")
        self.assertEqual(self.resumed(first + saved, "--resume", "a/step"), "auto")
        self.assertEqual(self.resumed(first + "step 1\n" + saved + "[train] job 7, start 2, 2026\n", "--resume", "none"), "auto")
        # Earlier output of another job in the same file does not count.
        self.assertEqual(self.resumed("[train] job 6, start 1, 2026\n" + saved + first, "--resume", "a/step"), "a/step")


if __name__ == "__main__":
    TESSERA, MPIEXEC = os.path.realpath(sys.argv.pop(1)), sys.argv.pop(1)
    unittest.main(verbosity=2)
