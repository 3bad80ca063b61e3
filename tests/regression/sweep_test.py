"""jobscripts/local/sweep.sh: the array of jobscripts/slurm/train.sbatch on a machine without Slurm; and the step from which
that script's job resumes.
"""
import csv
import io
import os
import random
import re
import signal
import subprocess
import time

from runs import JOB_DECK, JOBSCRIPTS, PATIENCE, Jobs, Paced



class Sweep(Jobs):
    def start(self, script, *arguments, **environment):
        """Runs in a new process group, like a terminal's foreground."""
        return subprocess.Popen(["bash", os.path.join(JOBSCRIPTS, script), *arguments], cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                env={**os.environ, "TESSERA": self.tessera, "MPIEXEC": self.launcher, "OMP_NUM_THREADS": "1", **environment})

    def end(self, process, code):
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, (out, err)
        return out, err

    def sweep(self, code, *arguments, **environment):
        return self.end(self.start("local/sweep.sh", *arguments, **environment), code)

    def test_each_line_of_values_is_a_run(self):
        self.write("rates.csv", "optimizer.lr,checkpoint.dir\n0.01,one\n0.02,two\n")
        out, err = self.sweep(0, "--ntasks=2", "deck.yaml", "--sweep", "rates.csv", "--set", "run.steps=3")
        assert err == ""
        for task, (name, rate) in enumerate((("one", "0.01"), ("two", "0.02")), start=1):
            assert len(self.rows(name)) == 3
            assert f"  lr: {rate}  # override" in self.read(name, "deck.resolved.yaml")
            log = self.read(f"rates-{task}.log")
            assert f"[train] task {task}: optimizer.lr={rate} checkpoint.dir={name}\n" in log
            assert "2 ranks" in log
            assert f"rates-{task}.log" in out

    def test_chosen_tasks_and_those_after_one_that_fails(self):
        self.write("rates.csv", "optimizer.lr,checkpoint.dir\n0.01,one\nfast,two\n0.02,three\n0.03\n0.04,five")
        _, err = self.sweep(3, "--array=2-3,4,5", "deck.yaml", "--sweep", "rates.csv", "--set", "run.steps=2")
        assert "task 2: ended with 3; --set optimizer.lr=fast" in err
        assert "task 4: ended with 2; train.sbatch: rates.csv: task 4 has 1 values for 2 keys" in err
        assert [os.path.isdir(self.path(name)) for name in ("one", "two", "three", "five")] == [False, False, True, True]

    def test_usage(self):
        self.write("rates.csv", "checkpoint.dir\none\n")
        self.write("keys.csv", "checkpoint.dir\n")
        for arguments, said in ((("deck.yaml",), "usage: sweep.sh"), (("deck.yaml", "--sweep", "gone.csv"), "gone.csv cannot be read"),
                                (("--array=a", "deck.yaml", "--sweep", "rates.csv"), "--array=a: numbers"),
                                (("--ntasks=0", "deck.yaml", "--sweep", "rates.csv"), "--ntasks=0 is no"),
                                (("deck.yaml", "--sweep", "rates.csv", "--jobs", "2"), "--jobs: stands before DECK"),
                                (("deck.yaml", "--sweep", "rates.csv", "--stepz", "2"), "task 1: ended with 2; --stepz: unknown option"),
                                (("deck.yaml", "--sweep", "keys.csv"), "no line of values")):
            assert said in self.sweep(2, *arguments)[1]

    def test_a_run_that_stops_early_is_started_again(self):
        self.write("runs.csv", "checkpoint.dir\none\n")
        out, _ = self.sweep(75, "deck.yaml", "--sweep", "runs.csv", "--set", "run.steps=1000000", "--time-limit", "00:00:05", TESSERA_RESTARTS="1")
        assert out.count("started again") == 1
        log = self.read("runs-1.log")
        assert (log.count(", start 1,"), log.count(", start 2,"), log.count("resumed from")) == (1, 1, 1), log

    def test_a_run_that_stops_as_asked_is_not(self):
        self.write("runs.csv", "checkpoint.dir\none\n")
        out, _ = self.sweep(0, "deck.yaml", "--sweep", "runs.csv", "--stop-at", "3")
        assert "started again" not in out
        assert "[train] stopped as asked (--stop-at): not queued again" in self.read("runs-1.log")

    def test_several_runs_at_a_time_and_what_each_came_to(self):
        """Runs that write their traces into pipes go on together only if they were started together."""
        self.write("runs.csv", "run.name,debug.trace\none,one.pipe\ntwo,two.pipe\nthree,three.pipe\n")
        self.write("deck.yaml", JOB_DECK.replace("dir: run, ", ""))
        traces = [Paced(self.path(name + ".pipe")) for name in ("one", "two", "three")]
        process = self.start("local/sweep.sh", "--jobs", "2", "deck.yaml", "--sweep", "runs.csv", "--set", "run.steps=20")
        for trace in traces[:2]:  # the second within the first
            trace.until(2)
        assert not (traces[2].read(0.5) or os.path.exists(self.path("runs", "three"))), "a third run beside two"
        for trace in traces:
            trace.let_go()
        out, err = self.end(process, 0)
        assert err == ""
        for task, name in enumerate(("one", "two", "three"), start=1):
            last = self.rows(os.path.join("runs", name))[-1]
            assert (last["step"], len(traces[task - 1].all())) == (20, 20)
            assert re.search(rf"\[sweep\] task {task}: step 20/20 \| loss {last['loss']:.4f} .* \| done in \d+ s\n", out)

    def test_what_a_csv_file_may_hold(self):
        """Files as people and spreadsheets write them, drawn: each value arrives as it was meant."""
        draw = random.Random(17)
        pieces = ["a", "7", ".", "-", " ", ",", '"', "'", "[", "]", "#", "$HOME", "*", "\\", "=", "ä"]
        for _ in range(12):
            keys = [f"key_{i}" for i in range(draw.randint(2, 5))]
            rows = [[("x" + "".join(draw.choices(pieces, k=draw.randint(0, 6))) + "y") for _ in keys] for _ in range(draw.randint(1, 4))]
            padding = [""] * draw.randint(0, 2)  # columns and lines of nothing, as spreadsheets leave them
            text = io.StringIO()
            csv.writer(text, quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), lineterminator=draw.choice(["\n", "\r\n"])).writerows(
                [keys + padding, *(row + padding for row in rows), *draw.choice([[], [["", *padding]]])])
            with open(self.path("drawn.csv"), "w", encoding="utf-8", newline="") as file:
                file.write(draw.choice(["", "\ufeff"]) + draw.choice([text.getvalue(), text.getvalue().rstrip()]))
            done = subprocess.run(["bash", os.path.join(JOBSCRIPTS, "slurm/train.sbatch"), "--tasks", "drawn.csv"], cwd=self.folder,
                                  capture_output=True, text=True, timeout=PATIENCE)
            wanted = [f"task {task}: " + " ".join(f"{key}={value}" for key, value in zip(keys, row)) for task, row in enumerate(rows, start=1)]
            assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, wanted, ""), self.read("drawn.csv")

    def test_values_with_commas_reach_the_run(self):
        self.write("other.txt", "the tiles of another mosaic\n" * 200)
        self.write("runs.csv", 'run.name,data.files\nboth,"[corpus.txt, other.txt]"\n')
        self.write("deck.yaml", JOB_DECK.replace("dir: run, ", ""))
        self.sweep(0, "deck.yaml", "--sweep", "runs.csv", "--set", "run.steps=2")
        assert '  files: ["corpus.txt", "other.txt"]  # override' in self.read("runs", "both", "deck.resolved.yaml")

    def test_files_that_are_no_table(self):
        for text, said in (('checkpoint.dir,run.seed\none,"1\n', "line 2: a quote is not closed"),
                           ('checkpoint.dir,run.seed\none,"1"2\n', "line 2: a quote is not closed, or text follows it"),
                           ("checkpoint.dir;run.seed\none;1\n", "commas are needed between the keys, not semicolons"),
                           ("checkpoint.dir\trun.seed\none\t1\n", "commas are needed between the keys"),
                           ("checkpoint.dir,run.seed,run.seed\none,1,2\n", "line 1: run.seed stands there twice"),
                           ("checkpoint.dir,,\none,1,\n", "line 1: no key stands over 1"),
                           ("run.seed,optimizer.lr\n1,0.1\n", "no key checkpoint.dir or run.name"),
                           ("run.name,run.seed\none,1\n", "deck.yaml sets checkpoint.dir, which all tasks would share")):
            self.write("runs.csv", text)
            assert said in self.sweep(2, "deck.yaml", "--sweep", "runs.csv")[1], text

    def test_tasks_share_no_directory(self):
        for second in ("one", "./one", "one/", "sub/../one", '"one"'):
            self.write("runs.csv", f"checkpoint.dir,optimizer.lr\none,0.1\n{second},0.2\n")
            assert "several tasks have checkpoint.dir one" in self.sweep(2, "deck.yaml", "--sweep", "runs.csv")[1]
        self.write("runs.csv", "optimizer.lr,checkpoint.dir\n0.1,one\n0.2,two\n")
        assert "is given for all tasks" in self.sweep(2, "deck.yaml", "--sweep", "runs.csv", "--set", "checkpoint.dir=x")[1]
        assert not os.path.exists(self.path("one"))

    def check_interrupted(self, name, interrupt):
        self.write(name + ".csv", f"checkpoint.dir\n{name}\n{name}-2\n")
        command = ("local/sweep.sh", "--ntasks=2", "deck.yaml", "--sweep", name + ".csv")
        process = self.start(*command, "--set", "run.steps=1000000")
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(self.path(name, "metrics.jsonl")) or not self.rows(name):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        interrupt(process)
        _, err = self.end(process, 75)
        assert "interrupted in task 1" in err
        assert not os.path.exists(self.path(name + "-2"))
        done = len(self.rows(name))
        assert "saved " in self.read(name + "-1.log")
        self.end(self.start(*command, "--set", "run.steps=1000000", "--stop-at", str(done + 2)), 0)
        assert [row["step"] for row in self.rows(name)] == list(range(1, done + 3))
        assert "resumed from" in self.read(name + "-1.log")

    def test_what_is_interrupted_saves_and_the_same_command_goes_on(self):
        def twice(process):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            process.send_signal(signal.SIGTERM)

        for name, interrupt in (("once", lambda process: process.send_signal(signal.SIGTERM)), ("twice", twice),
                                ("group", lambda process: os.killpg(process.pid, signal.SIGTERM))):
            with self.subtests.test(name):
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
                           env={**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"], "TESSERA": self.tessera,
                                "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts})
        ran = self.read("log").rsplit("ran: ", 1)[1].split()
        assert ran.count("--resume") == 1, ran
        return ran[ran.index("--resume") + 1]

    def test_a_path_counts_until_the_job_has_saved(self):
        first, saved = "[train] job 7, start 1, 2026\n", "saved run/step_00000030 | 0 | 0.10 s\n"
        assert self.resumed("", restarts="0") == "auto"
        assert self.resumed("", "--resume", "a/step", restarts="0") == "a/step"
        assert self.resumed("", "--set", "run.steps=3", "--resume=a/step", restarts="0") == "a/step"
        assert self.resumed(first, "--resume", "a/step") == "a/step"
        assert self.resumed(first + saved, "--resume", "a/step") == "auto"
        assert self.resumed(first + "step 1\n" + saved + "[train] job 7, start 2, 2026\n", "--resume", "none") == "auto"
        # Earlier output of another job in the same file does not count.
        assert self.resumed("[train] job 6, start 1, 2026\n" + saved + first, "--resume", "a/step") == "a/step"


class WhatFollowsAnEnd(Jobs):
    """train.sbatch alone, with an srun that says and returns what it is told, and a Slurm whose job is in a given state."""

    def setup_method(self):
        super().setup_method()
        os.mkdir(self.path("bin"))
        for name, text in (("srun", 'printf "%s" "$SAYS"; [ "$CODE" != vanish ] || { kill -9 $PPID; exit; }; exit $CODE'),
                           ("squeue", 'case "$*" in *%T*) echo "$STATE" ;; *) echo "$SUBMITTED" ;; esac'), ("scontrol", "echo requeued: $2")):
            os.chmod(self.write(f"bin/{name}", f"#!/bin/bash\n{text}\n"), 0o755)

    def run_start(self, restarts, code, says="", state="RUNNING", **environment):
        """Exit code of the script, and whether it has queued itself again."""
        before = len(self.read("log")) if os.path.exists(self.path("log")) else 0
        with open(self.path("log"), "a") as log:
            done = subprocess.run(["bash", os.path.join(JOBSCRIPTS, "slurm/train.sbatch"), "deck.yaml"], cwd=self.folder, stdout=log,
                                  stderr=log, timeout=PATIENCE,
                                  env={**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"], "TESSERA": self.tessera, "SAYS": says,
                                       "CODE": str(code), "STATE": state, "SUBMITTED": "2100-01-01T00:00:00", "SLURM_JOB_ID": "7",
                                       "SLURM_RESTART_COUNT": str(restarts), **environment})
        self.said = self.read("log")[before:]
        return done.returncode, "requeued: 7" in self.said

    def test_failures_are_bounded_between_two_checkpoints(self):
        """Drawn lives of a job, each start with the end of a rank or node, or a stop, with or without a new checkpoint."""
        draw = random.Random(3)
        for _ in range(8):
            if os.path.exists(self.path("log")):
                os.remove(self.path("log"))
            allowed, failures = draw.choice([1, 2, 3]), 0
            for start in range(10):
                code = draw.choice([7, 137, 143, 139, 75, "vanish"])
                saves = code == 75 or draw.random() < 0.3
                if start > 0 and failures >= allowed:  # starts that vanished are counted by the next one
                    assert self.run_start(start, 0, TESSERA_FAILURES=str(allowed)) == (7, False), self.read("log")
                    assert f"failed {failures} times without a new checkpoint" in self.said
                    break
                got = self.run_start(start, code, "step 1\n" + "saved run/step_00000030 | 0 | 0.1 s\n" * saves, TESSERA_FAILURES=str(allowed))
                failures = 0 if code == 75 else (0 if saves else failures) + 1
                if code == "vanish":
                    assert not got[1]
                elif failures >= allowed and code != 75:
                    assert got == (code, False), self.read("log")
                    break
                else:
                    assert got == (0, True), self.read("log")

    def test_what_is_no_failure_of_the_machine_ends_the_job(self):
        for code in (1, 2, 3, 4, 5, 6):
            assert self.run_start(0, code) == (code, False)

    def test_a_job_that_slurm_ends_or_queues_by_itself_does_not(self):
        for state in ("CANCELLED", "COMPLETING", "NODE_FAIL", "PREEMPTED", ""):
            for code in (7, 75, 137):
                assert self.run_start(0, code, state=state) == (code, False), state

    def test_who_asked_for_a_stop_decides_what_follows(self):
        for cause, asked in (("--stop-at", True), ("SIGINT", True), ("SIGUSR1", False), ("SIGUSR2", False), ("SIGTERM", False), ("--time-limit", False)):
            said = f"stopped after step 3 of 8 ({cause}); the same command goes on\n"
            assert self.run_start(0, 75, said) == (0, not asked), cause
            assert (f"stopped as asked ({cause}): not queued again" in self.said) == asked

    def test_a_deck_that_changes_while_the_job_waits_is_told(self):
        self.run_start(0, 0)
        assert "has changed" not in self.said
        self.run_start(0, 0, SUBMITTED="2001-01-01T00:00:00")
        assert "deck.yaml has changed since the job was submitted (2001-01-01T00:00:00)" in self.said
        self.run_start(1, 0)
        assert "has changed" not in self.said
        self.write("deck.yaml", self.read("deck.yaml") + "\n")
        self.run_start(2, 0)
        assert "deck.yaml has changed since the start before, which read " in self.said

    def test_set_up_and_what_is_no_job_of_this_script(self):
        self.write("setup.sh", 'false; echo "unset: $NOT_SET"; module() { echo "loaded $1"; }; module mpich; export TESSERA=/bin/true\n')
        assert self.run_start(0, 0, TESSERA="gone", TESSERA_SETUP="setup.sh") == (0, False), self.read("log")
        assert "unset: \nloaded mpich\n" in self.said
        # The site's `module`, where the job's shell does not have it.
        os.makedirs(self.path("site/init"))
        self.write("site/init/bash", 'module() { echo "the site loads $2"; }\n')
        self.write("setup.sh", "module load mpich\nexport TESSERA=/bin/true\n")
        assert self.run_start(0, 0, TESSERA_SETUP="setup.sh", MODULESHOME=self.path("site")) == (0, False), self.read("log")
        assert "the site loads mpich\n" in self.said
        assert self.run_start(0, 0, TESSERA_SETUP="gone.sh") == (4, False)
        assert "TESSERA_SETUP: gone.sh cannot be read" in self.said
        assert self.run_start(0, 0, SLURM_HET_SIZE="2") == (4, False)
        assert "a heterogeneous job of 2 parts" in self.said
