"""Jobs of train.sbatch under a Slurm whose nodes are simulated hosts: the bits of one host, and hosts that are lost.

TESSERA_SOAK_LOSSES=N: so many lost hosts, by default 1.
"""
import json
import os
import random
import subprocess

import pytest

import open_mpi
import runs
import slurm
from hosts import Hosts, impossible

STEPS, EVERY = 160, 20
SETTINGS = ("--set", "reduce.order=batch", "--set", f"run.steps={STEPS}", "--set", f"checkpoint.every_steps={EVERY}", "--set", "batch.micro=1",
            "--set", "comm.timeout_s=5")
SCRIPT = os.path.join(runs.JOBSCRIPTS, "slurm", "train.sbatch")


class Nodes:
    """Simulated hosts as nodes of a Slurm, whose controller runs on the host of launchers."""
    host = "login"

    def __init__(self, hosts):
        self.hosts, self.nodes, self.address = hosts, hosts.names, hosts.address("login")

    def places(self, ports):
        return [(name, self.hosts.address(name), port) for name, port in zip(self.nodes, ports)]

    def words(self, node=""):
        return self.hosts.words(node or "login")


class OnSlurm(runs.Jobs):
    def setup_method(self):
        super().setup_method()
        if why := impossible(self.launcher) or slurm.missing():
            pytest.skip(why)
        self.hosts = self.at_end.enter_context(Hosts(self.folder, 2))
        os.mkdir(self.path("slurm"))
        self.slurm = self.at_end.enter_context(slurm.Slurm(self.path("slurm"), cpus=2, where=Nodes(self.hosts)))

    def submit(self, name, *options, **environment):
        return self.slurm.submit(*options, "--time=60", SCRIPT, "deck.yaml", *SETTINGS, "--set", f"checkpoint.dir={name}", folder=self.folder,
                                 environment={"TESSERA": self.tessera, **environment})

    def ended(self, job):
        """Waits for the job's end, which must be a sound one; returns Slurm's fields and the job's log."""
        about = self.slurm.ended(job)
        log = self.read(os.path.basename(about["StdOut"]))
        assert (about["JobState"], about["ExitCode"]) == ("COMPLETED", "0:0"), log[-3000:]
        return about, log

    def whole(self):
        """Digest of the run that one rank makes by itself."""
        done = subprocess.run([self.launcher, "-n", "1", self.tessera, "train", "deck.yaml", *SETTINGS, "--set", "checkpoint.dir=whole"],
                              cwd=self.folder, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return self.final("whole")

    def test_jobs_over_two_hosts(self):
        digest = self.whole()
        self.ended(self.submit("two", "--nodes=2", "--ntasks=4"))
        assert self.rows("two")[-1]["ranks"] == 4
        assert len(json.loads(self.read("two", "run.json"))["hosts"]) == 2
        assert self.final("two") == digest
        for number in range(int(os.environ.get("TESSERA_SOAK_LOSSES", 1))):
            self.check_loss(f"run{number}", random.choice(self.hosts.names), random.choice(("silent", "loud")), random.randrange(2 * EVERY + 5, STEPS // 2))  # of 4 ranks, and saved
            assert self.final(f"run{number}") == digest

    def test_jobs_of_open_mpi(self):
        """By srun --mpi=pmix, whose servers on each host find each other over the network."""
        if why := open_mpi.missing() or self.slurm.lacks_pmix():
            pytest.skip(why)
        variables = {"TESSERA": open_mpi.PROGRAM, "SLURM_MPI_TYPE": "pmix", **open_mpi.environment()}
        digest = self.whole()
        self.ended(self.submit("two", "--nodes=2", "--ntasks=4", **variables))
        assert self.rows("two")[-1]["ranks"] == 4
        assert len(json.loads(self.read("two", "run.json"))["hosts"]) == 2
        assert self.final("two") == digest
        for how in ("silent", "loud"):
            self.check_loss(how, random.choice(self.hosts.names), how, random.randrange(2 * EVERY + 5, STEPS // 2), **variables)
            assert self.final(how) == digest

    def check_loss(self, run, name, how, moment, **variables):
        """A job that may have one node or two, of which one is lost at a step, ends on the other."""
        what = f"{name}, {how}, at step {moment}"
        print(what, flush=True)
        job = self.submit(run, "--nodes=1-2", "--exclusive", TESSERA_RANKS_PER_NODE="2", **variables)
        slurm.until(300, what, lambda: self.steps_done(run) >= moment)
        if how == "silent":
            self.hosts.link(name, "down")
        self.hosts.kill(name)
        about, log = self.ended(job)
        assert int(about["Restarts"]) >= 1, (what, log[-3000:])
        assert [row["ranks"] for row in self.rows(run)][::STEPS - 1] == [4, 2], what
        self.hosts.boot(name)
        self.slurm.brought_back(name)
