"""Tests of the job scripts under a Slurm of one machine, which each class of them starts."""
import os
import subprocess
import tempfile

import pytest

from runs import JOBSCRIPTS, Jobs, processes
import slurm

SCRIPTS = os.path.join(JOBSCRIPTS, "slurm")


class OnSlurm(Jobs):
    nodes = {"cpus": 2}  # of the Slurm: slurm.Slurm()

    @classmethod
    def setup_class(cls):
        if reason := slurm.missing():
            pytest.skip(reason)
        home = cls.at_class_end.enter_context(tempfile.TemporaryDirectory(prefix="tessera-slurm-"))
        cls.slurm = cls.at_class_end.enter_context(slurm.Slurm(home, **cls.nodes))

    def submit(self, script, *arguments, options=(), **environment):
        return self.slurm.submit(*options, os.path.join(SCRIPTS, script), *arguments, folder=self.folder,
                                 environment={"TESSERA": self.tessera, **environment})

    def train(self, *arguments, options=(), **environment):
        return self.submit("train.sbatch", "deck.yaml", *arguments, options=("--ntasks=2", "--time=60", *options), **environment)

    def started(self, *arguments, **environment):
        """Submits a job and waits for its first step."""
        job, metrics = self.train(*arguments, **environment), self.path("run", "metrics.jsonl")
        slurm.until(600, "the first step", lambda: os.path.exists(metrics) and os.path.getsize(metrics))
        return job

    def log(self, job):
        """Text of the job's log, whose path Slurm knows; empty before it begins."""
        name = os.path.basename(self.slurm.about(job)["StdOut"])
        return self.read(name) if os.path.exists(self.path(name)) else ""

    def ended(self, job, state, code):
        """Waits for the job's end, which must have this state; returns its log."""
        about = self.slurm.ended(job)
        log = self.log(job)
        assert (about["JobState"], about["ExitCode"]) == (state, f"{code}:0"), log[-3000:]
        return log

    def ranks(self, job, **variables):
        return processes.find(self.tessera, SLURM_JOB_ID=job, **variables)

    def ended_in_two_starts(self, job):
        """Waits for the job's end, after one start that was stopped and one that went on from it; returns its log."""
        log = self.ended(job, "COMPLETED", 0)
        assert self.slurm.about(job)["Restarts"] == "1"
        assert (log.count("stopped early: queued again"), log.count("resumed from")) == (1, 1), log
        first = [row["step"] for row in self.rows("run") if row["restart"] == 0]
        assert 0 < len(first) < 400
        assert [row["step"] for row in self.rows("run")] == list(range(1, 401))
        return log

    def train_at_once(self, program, *arguments):
        """Digest of the run that a program makes of the deck under the launcher, on as many ranks."""
        done = subprocess.run([self.launcher, "-n", "2", program, "train", "deck.yaml", *arguments, "--set", "checkpoint.dir=whole"], cwd=self.folder,
                              capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return self.final("whole")
