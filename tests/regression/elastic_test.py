"""Jobs of `--nodes=1-2` under a real Slurm with two nodes, which are this machine under two names: ranks, slurmds and whole
nodes are killed at drawn moments, saves included. Each job ends by itself, on the nodes that are left, with the digest of a
run that lost nothing.

TESSERA_ELASTIC=N: so many moments, by default 3, one of each kind; TESSERA_SEED: others.
"""
import os
import random
import signal
import subprocess

from on_slurm import OnSlurm
import slurm

STEPS = 3000
SETTINGS = ("--set", "reduce.order=batch", "--set", f"run.steps={STEPS}", "--set", "checkpoint.every_steps=60", "--set", "batch.micro=1",
            "--set", "comm.timeout_s=20")


class Elastic(OnSlurm):
    nodes = {"cpus": 1, "nodes": 2}

    def strike(self, kind, node, job):
        """Kills a rank, the slurmd of a node, or both, which is what other nodes see of a node that is gone."""
        ranks = self.ranks(job, SLURMD_NODENAME=node)
        assert ranks, f"no rank of job {job} on {node}"
        if kind != "slurmd":
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
        if kind != "rank":
            self.slurm.slurmd[node].kill()

    def test_jobs_that_lose_ranks_and_nodes(self):
        whole = subprocess.run([self.launcher, "-n", "1", self.tessera, "train", "deck.yaml", *SETTINGS, "--set", "checkpoint.dir=whole"], cwd=self.folder,
                               capture_output=True, text=True, timeout=600)
        assert whole.returncode == 0, whole.stderr
        draw = random.Random(int(os.environ.get("TESSERA_SEED", "7")))
        for number in range(int(os.environ.get("TESSERA_ELASTIC", "3"))):
            kind, moment, node = ("rank", "slurmd", "host")[number % 3], draw.randrange(1, STEPS // 2), draw.choice(self.slurm.nodes)
            name = f"run{number}"
            job = self.submit("train.sbatch", "deck.yaml", *SETTINGS, "--set", f"checkpoint.dir={name}", options=("--nodes=1-2", "--time=60"))
            what = f"{kind} of {node} at step {moment}"
            slurm.until(300, what, lambda: self.steps_done(name) >= moment)
            self.strike(kind, node, job)
            about = self.slurm.ended(job)
            log = self.read(os.path.basename(about["StdOut"]))
            assert (about["JobState"], about["ExitCode"]) == ("COMPLETED", "0:0"), (what, log[-3000:])
            assert int(about["Restarts"]) >= 1, (what, log[-3000:])
            assert self.final(name) == self.final("whole"), what
            ranks = [row["ranks"] for row in self.rows(name)]
            assert ranks[0] == 2, what
            print(f"{what}: {about['Restarts']} restarts, ended on {ranks[-1]} ranks", flush=True)
            if kind != "rank":
                self.slurm.brought_back(node)
