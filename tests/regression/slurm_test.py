"""The job scripts of jobscripts/slurm under a real Slurm on one machine: a run that is signalled, stopped, requeued and
resumed; sweeps; the wrong --mpi; conversion.
"""
import json
import os
import re
import signal
import subprocess

from on_slurm import SCRIPTS, OnSlurm
from runs import PATIENCE, Paced, processes
import slurm


class SlurmJobs(OnSlurm):
    def test_a_run_that_is_stopped_queues_again_and_ends_as_if_it_had_not(self):
        digest = self.train_at_once(self.tessera)
        trace = Paced(self.path("trace"))
        job = self.train("--set", "debug.trace=trace")
        trace.until(3)
        rank = self.ranks(job)[0]
        os.kill(rank, signal.SIGSTOP)  # Slurm checks time limits twice a minute, and continues the processes that it signals
        slurm.until(PATIENCE, "the rank to stand still", lambda: processes.state_of(rank) == "T")
        self.slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=5")
        slurm.until(600, "the warning", lambda: processes.state_of(rank) != "T")
        self.slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=60")
        trace.slowly_while(lambda: processes.state_of(rank))  # Slurm signals some time after it has continued the processes
        trace.let_go()

        self.ended_in_two_starts(job)
        assert len(trace.all()) == 400
        assert self.final("run") == digest

    def test_a_job_queues_again_so_often_and_no_more(self):
        job = self.train("--set", "run.steps=1000000", "--time-limit", "00:00:05", TESSERA_RESTARTS="1")
        log = self.ended(job, "FAILED", 75)
        assert log.count("stopped early: queued again") == 1, log
        assert "queued again 1 times already" in log
        assert self.slurm.about(job)["Restarts"] == "1"

    def test_a_job_that_begins_at_a_checkpoint_goes_on_from_its_newest_step(self):
        """A job that resumes elsewhere leaves the former run directory unchanged and has its own."""
        self.ended(self.train("--stop-at", "4"), "COMPLETED", 0)
        job = self.train("--resume", "run/step_00000004", "--set", "checkpoint.dir=branch", "--set", "run.steps=1000000",
                         "--time-limit", "00:00:05", "--allow-change", "run.steps", TESSERA_RESTARTS="1")
        log = self.ended(job, "FAILED", 75)
        assert log.count(f"resumed from {self.path('run', 'step_00000004')} ") == 1, log
        assert log.count(f"resumed from {self.path('branch', 'step_')}") == 1, log
        assert log.index("step_00000004") < log.index("goes on from the newest step")
        steps = [row["step"] for row in self.rows("branch")]
        assert steps == list(range(5, 5 + len(steps)))

    def test_a_job_that_stops_as_asked_is_not_queued_again(self):
        job = self.train("--stop-at", "3")
        behind = self.train("--stop-at", "6", options=(f"--dependency=afterok:{job}",))
        log = self.ended(job, "COMPLETED", 0)
        assert "stopped as asked (--stop-at): not queued again" in log
        assert "stopped early" not in log
        self.ended(behind, "COMPLETED", 0)
        assert [row["step"] for row in self.rows("run")] == list(range(1, 7))

    def test_a_person_stops_a_job_for_good(self):
        job = self.started("--set", "run.steps=1000000")
        self.slurm.ask("scancel", "--signal=INT", job)
        assert "stopped as asked (SIGINT): not queued again" in self.ended(job, "COMPLETED", 0)
        assert self.final("run")

    def test_a_job_whose_rank_is_killed_queues_again_and_goes_on_from_its_last_step(self):
        trace = Paced(self.path("trace"))
        job = self.train("--set", "debug.trace=trace", "--set", "checkpoint.every_steps=2", "--set", "run.steps=40")
        trace.until(6)
        os.kill(self.ranks(job)[0], signal.SIGKILL)
        trace.let_go()
        log = self.ended(job, "COMPLETED", 0)
        assert self.slurm.about(job)["Restarts"] == "1"
        assert re.search(r"\[train\] failed with (7|1[0-9][0-9]), 1 of 3 times without a new checkpoint: queued again", log)
        assert log.count("resumed from") == 1, log
        assert [row["step"] for row in self.rows("run")] == list(range(1, 41))
        trace.all()

    def test_a_job_that_fails_again_and_again_ends(self):
        job = self.train("--set", "run.steps=1000000", TESSERA_FAILURES="2")
        for start in range(2):
            def training():  # a rank that is killed before MPI has begun would leave the other waiting
                return self.log(job).count("\nstep 1/") == start + 1 and self.ranks(job)
            os.kill(slurm.until(600, f"start {start + 1}", training)[0], signal.SIGKILL)
        about = self.slurm.ended(job)
        log = self.log(job)
        assert (about["JobState"], about["Restarts"]) == ("FAILED", "1"), log
        assert re.search(r"failed with \d+, 2 times without a new checkpoint \(TESSERA_FAILURES\)", log)

    def test_variables_that_sbatch_drops_come_from_the_set_up_file(self):
        self.write("setup.sh", f"export TESSERA={self.tessera} OMP_NUM_THREADS=1 TESSERA_MARK=there\n")
        job = self.slurm.submit("--ntasks=2", "--time=60", f"--export=TESSERA_SETUP={self.path('setup.sh')}",
                                os.path.join(SCRIPTS, "train.sbatch"), "deck.yaml", "--set", "run.steps=2", folder=self.folder)
        self.ended(job, "COMPLETED", 0)
        assert '"TESSERA_MARK": "there"' in self.read("run", "run.json")

    def test_a_signal_to_the_script_reaches_the_run(self):
        job = self.started("--set", "run.steps=1000000", TESSERA_RESTARTS="0")
        self.slurm.ask("scancel", "--batch", "--signal=USR1", job)
        self.ended(job, "FAILED", 75)
        assert self.final("run")

    def test_what_is_cancelled_saves_and_stays_cancelled(self):
        job = self.started("--set", "run.steps=1000000")
        self.slurm.ask("scancel", job)
        about = self.slurm.ended(job)
        assert (about["JobState"], about["Restarts"]) == ("CANCELLED", "0"), self.log(job)[-3000:]
        slurm.until(600, "the end of the script", lambda: not self.ranks(job))
        assert "queued again" not in self.log(job)
        assert self.final("run")

    def test_ranks_that_start_as_jobs_of_one(self):
        """Of every kind of launch that this Slurm has (--mpi), that which suits the MPI library starts one run. With another only one
        rank says so, with the remedy of whoever uses the script."""
        def launches(kind):  # a plugin may be listed without its library
            return subprocess.run(["srun", f"--mpi={kind}", "--ntasks=1", "true"], env=self.slurm.environment, capture_output=True, timeout=120).returncode == 0

        listed = subprocess.run(["srun", "--mpi=list"], env=self.slurm.environment, capture_output=True, text=True, check=True, timeout=60)
        kinds = {kind for kind in ("none", "pmi2", "pmix") if kind in (listed.stdout + listed.stderr).split() and launches(kind)}
        assert "none" in kinds
        library = json.loads(subprocess.run([self.tessera, "info", "--json"], capture_output=True, text=True, check=True).stdout)["mpi"]
        suits, says = ("pmix", "started by srun without PMIx") if library.startswith("Open MPI") else ("pmi2", "separate runs of one rank each")
        for kind in kinds - {suits}:
            log = self.ended(self.train(SLURM_MPI_TYPE=kind), "FAILED", 4)
            assert (log.count(says), log.count(f"export SLURM_MPI_TYPE={suits}")) == (1, 1), log
            assert not os.path.exists(self.path("run"))
        if suits in kinds:
            self.ended(self.train("--stop-at", "3", SLURM_MPI_TYPE=suits), "COMPLETED", 0)
            assert {row["ranks"] for row in self.rows("run")} == {2}

    def test_a_sweep(self):
        self.write("sweep.csv", "optimizer.lr,checkpoint.dir\n0.01,one\n0.02,two\n")
        job = self.train("--sweep", "sweep.csv", "--set", "run.steps=3", options=("--array=1-2",))
        for task, (name, rate) in enumerate((("one", "0.01"), ("two", "0.02")), start=1):
            number = self.slurm.ask("squeue", "--noheader", "--states=all", "--format=%A", f"--job={job}_{task}")
            self.ended(number, "COMPLETED", 0)
            assert f"[train] task {task}: optimizer.lr={rate} checkpoint.dir={name}\n" in self.read(f"slurm-{job}_{task}.out")
            assert len(self.rows(name)) == 3
            assert f"  lr: {rate}  # override" in self.read(name, "deck.resolved.yaml")
        for text, task, said in (("optimizer.lr\n0.1\n", 1, "no key checkpoint.dir"), ("checkpoint.dir\na\n", 2, "0 values for 1 keys")):
            self.write("sweep.csv", text)
            number = self.train("--sweep", "sweep.csv", options=(f"--array={task}",))
            assert said in self.ended(number, "FAILED", 2)

    def test_a_task_of_a_sweep_queues_again_while_the_other_runs(self):
        """Slurm gives one task of an array the array's own number as its job's, which stands for all tasks."""
        self.write("sweep.csv", "checkpoint.dir\none\ntwo\n")
        job = self.train("--sweep", "sweep.csv", "--set", "run.steps=1000000", options=("--array=1-2", "--ntasks=1"))
        tasks = {f"{job}_{task}": self.path(name, "metrics.jsonl") for task, name in ((1, "one"), (2, "two"))}
        for metrics in tasks.values():
            slurm.until(600, "the first step", lambda: os.path.exists(metrics) and os.path.getsize(metrics))
        own = next(task for task in tasks if self.slurm.about(task)["JobId"] == job)
        other = next(task for task in tasks if task != own)
        self.slurm.ask("scancel", "--batch", "--signal=USR1", own)
        slurm.until(600, "a second start", lambda: "resumed from" in self.log(own) or self.slurm.about(own)["JobState"] == "FAILED")
        assert self.log(own).count("stopped early: queued again") == 1, self.log(own)
        assert [self.slurm.about(task)["Restarts"] for task in (own, other)] == ["1", "0"]
        assert self.slurm.about(other)["JobState"] == "RUNNING"
        self.slurm.ask("scancel", job)
        for task in tasks:
            self.slurm.ended(task)

    def test_conversion(self):
        self.ended(self.train("--set", "run.steps=2", "--set", "model.tied_head=true"), "COMPLETED", 0)
        self.ended(self.submit("convert.sbatch", "run", "gpt2", "--to", "safetensors"), "COMPLETED", 0)
        assert {"config.json", "model.safetensors"} <= set(os.listdir(self.path("gpt2")))
        again = self.submit("convert.sbatch", "run", "gpt2", "--to", "safetensors")
        assert "gpt2" in self.ended(again, "FAILED", 5)

    def test_tests_and_benchmarks_of_a_build(self):
        job = self.submit("ctest.sbatch", "-R", "^lint.rules$", TESSERA_BUILD=self.build)
        assert "100% tests passed" in self.ended(job, "COMPLETED", 0)
        job = self.submit("ctest.sbatch", "-R", "^mpi.control_test.2$", TESSERA_BUILD=self.build)  # a launcher within a task of Slurm
        assert "100% tests passed" in self.ended(job, "COMPLETED", 0)
        job = self.submit("bench.sbatch", "--benchmark_list_tests", TESSERA_BUILD=self.build)
        assert "weight_gradient" in self.ended(job, "COMPLETED", 0)
