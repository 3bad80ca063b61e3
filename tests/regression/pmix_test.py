"""Open MPI's build under Slurm, by SLURM_MPI_TYPE=pmix: train.sbatch starts its ranks as one run, which stops, goes on and fails as
other builds' runs do."""
import os
import signal

import pytest

from on_slurm import OnSlurm
from runs import Paced, processes
import open_mpi
import slurm


class Pmix(OnSlurm):
    @classmethod
    def setup_class(cls):
        if why := open_mpi.missing():
            pytest.skip(why)
        super().setup_class()
        if why := cls.slurm.lacks_pmix():
            pytest.skip(why)

    def setup_method(self):
        super().setup_method()
        self.other, self.tessera = self.tessera, open_mpi.PROGRAM

    def train(self, *arguments, kind="pmix", **environment):
        return super().train(*arguments, SLURM_MPI_TYPE=kind, **open_mpi.environment(), **environment)

    def paced(self, *arguments, **environment):
        """Submits a job that the test holds back; returns it with its trace and ranks, which are those of one run."""
        trace = Paced(self.path("trace"))
        job = self.train("--set", "debug.trace=trace", *arguments, **environment)
        begun = "\nstep 1/"
        slurm.until(600, "the first step", lambda: begun in self.log(job) or self.slurm.about(job)["JobState"] == "FAILED")
        assert begun in self.log(job), self.log(job)
        trace.until(6)
        ranks = self.ranks(job)
        variables = [processes.environment(rank) for rank in ranks]
        assert sorted(one["PMIX_RANK"] for one in variables) == ["0", "1"]
        assert len({one["PMIX_NAMESPACE"] for one in variables}) == 1
        return job, trace, ranks

    def test_a_run_that_is_stopped_queues_again_and_ends_as_mpichs(self):
        digest = self.train_at_once(self.other)
        job, trace, ranks = self.paced()
        self.slurm.ask("scancel", "--signal=USR1", job)  # of the ranks, as Slurm does before a time limit
        trace.slowly_while(lambda: any(map(processes.state_of, ranks)))
        trace.let_go()
        self.ended_in_two_starts(job)
        assert len(trace.all()) == 400
        assert {row["ranks"] for row in self.rows("run")} == {2}
        assert self.final("run") == digest

    def test_a_killed_rank_ends_the_job_and_the_next_goes_on(self):
        settings = ("--set", "run.steps=40", "--set", "checkpoint.every_steps=2")
        digest = self.train_at_once(self.other, *settings)
        job, trace, ranks = self.paced(*settings, TESSERA_FAILURES="1")
        os.kill(ranks[0], signal.SIGKILL)
        trace.let_go()
        log = self.ended(job, "FAILED", 128 + signal.SIGKILL)
        assert f"failed with {128 + signal.SIGKILL}, 1 times without a new checkpoint (TESSERA_FAILURES)" in log
        assert not any(map(processes.state_of, ranks))
        log = self.ended(self.train("--set", "debug.trace=trace", *settings), "COMPLETED", 0)
        assert log.count("resumed from") == 1, log
        trace.all()
        assert self.final("run") == digest

    @pytest.mark.parametrize("kind", ("pmi2", "none"))
    def test_the_wrong_kind_is_refused_with_the_right_one(self, kind):
        log = self.ended(self.train(kind=kind), "FAILED", 4)
        assert (log.count("started by srun without PMIx"), log.count("export SLURM_MPI_TYPE=pmix")) == (1, 1), log
        assert not os.path.exists(self.path("run"))
