"""Faults of a run between its saves: signals, a second run in the directory, ranks that stop. The run's messages, that
nothing hangs, and that the same command line then resumes as if nothing had happened.
"""
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

import trial
from trial import BEFORE, DURING, IO, LAST, PHASES, RANKS, SAVED, Faults, bits, processes

# More steps than a test can wait for: the run ends only by a signal, a fault, --stop-at or --time-limit.
LONG = ("--set", "run.steps=1000000000", "--set", "checkpoint.every_steps=1000000000")


def make_corpus(folder):
    """A corpus that takes minutes to be evaluated on; returns its folder."""
    big = os.path.join(folder, "big")
    os.makedirs(big, exist_ok=True)
    with open(os.path.join(big, "corpus.txt"), "w") as file:
        file.write("".join(f"the {i * 7919 % 113} tiles of the {i % 17} mosaics\n" for i in range(600_000)))
    return big


class Runs(Faults):
    def begin(self, name, *arguments, **variables):
        """Starts a run and waits until some steps are done."""
        run = self.trial(name, begun=False)
        process = run.start(*arguments, **variables)
        metrics = run.path("metrics.jsonl")
        run.until(process, lambda: os.path.exists(metrics) and os.path.getsize(metrics) > 1000)
        return run, process

    def check_stopped(self, run, done, cause="SIGTERM"):
        """Checks that the run saved once, at the step that it reached, and resumes from there; returns its rows."""
        assert (done.code, done.err) == (75, ""), done
        assert len(re.findall(SAVED, done.out)) == 1, done
        said = re.search(r"stopped after step (\d+) of 1000000000 \(([\w-]+)\); the same command goes on\n", done.out)
        assert (int(said[1]), said[2]) == (run.steps()[-1], cause), done
        assert self.names(run).count("LOCK") == 0
        (step,) = run.steps()
        assert bits(run.path("metrics.jsonl"))[-1][0] == step
        again = run.run(*LONG, "--stop-at", str(step + 10))
        assert again.code == 75, again
        rows = bits(run.path("metrics.jsonl"))
        assert [row[0] for row in rows] == list(range(1, step + 11))
        return rows

    def check_never_stopped(self, run, rows):
        """The rows and the state of a run without interruption."""
        whole = self.trial(os.path.basename(run.folder) + "-whole", begun=False)
        done = whole.run(*LONG, "--stop-at", str(len(rows)))
        assert done.code == 75, done
        assert rows == bits(whole.path("metrics.jsonl"))
        assert run.tool("inspect", "run")[1]["content_digest"] == whole.tool("inspect", "run")[1]["content_digest"]


class Signals(Runs):
    """TERM, USR1, USR2 and INT: once, repeatedly, during a save."""

    def check_signal(self, name, to):
        run, process = self.begin(f"{name}-{to}", *LONG)
        lock = run.lock()
        pids = [rank["pid"] for rank in lock["ranks"]]
        assert dict(enumerate(pids)) == run.ranks()
        for pid in {"launcher": [process.pid], "first": pids[:1], "last": pids[-1:], "all": pids}[to]:
            os.kill(pid, getattr(signal, name))
        self.check_stopped(run, run.finish(process), name)
        shutil.rmtree(run.folder)

    def test_once_to_a_rank(self):
        self.each([(name, to) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT") for to in ("first", "last", "all")], self.check_signal)

    def test_once_to_the_launcher(self):
        self.each([(name, "launcher") for name in ("SIGTERM", "SIGUSR1", "SIGINT")], self.check_signal)

    def test_resumed_is_as_if_never_stopped(self):
        run, process = self.begin("bits", *LONG)
        os.kill(process.pid, signal.SIGTERM)
        self.check_never_stopped(run, self.check_stopped(run, run.finish(process)))

    def check_repeated(self, name):
        run, process = self.begin(f"repeated-{name}", *LONG)
        pid = run.ranks()[LAST]
        began = time.monotonic()
        try:
            for _ in range(50):
                os.kill(pid, getattr(signal, name))
                time.sleep(0.002)
        except ProcessLookupError:
            pass
        done = run.finish(process)
        if name == "SIGINT" and done.code == 1 and time.monotonic() - began > 1:
            return False  # a slow machine: a later signal came more than a second after the first, and counted
        self.check_stopped(run, done, name)
        return True

    def test_again_and_again(self):
        self.each([(name,) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2")], self.check_repeated)
        if not any(self.check_repeated("SIGINT") for _ in range(5)):
            pytest.skip("this machine is too slow to interrupt a run twice within a second")

    def check_during_a_save(self, name):
        """Stops all ranks during the save of step 8, sends the signal, and continues them."""
        run = self.trial(f"during-{name}")
        process = run.start(TESSERA_FAULT="payload:all:stop")
        run.until(process, lambda: run.standing() == set(range(RANKS)))
        for pid in run.ranks().values():
            os.kill(pid, getattr(signal, name))
            os.kill(pid, signal.SIGCONT)
        done = run.finish(process)
        assert done.code == 75, done
        saved = [int(step) for step in re.findall(SAVED, done.out)]
        assert saved[0] == DURING
        assert saved[1:] in ([], [DURING + 1])  # the next boundary
        steps = run.steps()
        assert steps[-1] == saved[-1]
        code, report = run.tool("verify", "run")
        assert (code, report["ok"]) == (0, True)
        done = run.run()
        assert done.code == 0, done
        self.check_whole(run)

    def test_during_a_save(self):
        self.each([(name,) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")], self.check_during_a_save)

    @staticmethod
    def interrupt(pid):
        """Returns when the process has received the signal, or has ended."""
        os.kill(pid, signal.SIGINT)
        while processes.signalled(pid, signal.SIGINT):
            time.sleep(0.001)

    def test_a_second_interrupt_leaves_at_once(self):
        run = self.trial("twice")
        process = run.start(TESSERA_FAULT="payload:0:stop")
        run.until(process, lambda: 0 in run.standing())  # so that nothing but the interrupt can end the other rank
        pid, began = run.ranks()[LAST], time.monotonic()
        self.interrupt(pid)
        time.sleep(0.3)
        self.interrupt(pid)
        if time.monotonic() - began < 1:  # heard too soon after the first: ignored
            time.sleep(0.3)
            assert processes.state_of(pid) not in ("", "Z")
            time.sleep(0.7)
            os.kill(pid, signal.SIGINT)
        run.until(process, lambda: processes.state_of(pid) in ("", "Z"))
        done = run.finish(process)
        assert done.code in (1, 9), done  # 9: the launcher tells of the rank that stood, which it killed
        assert run.steps() == [BEFORE]
        self.check_recovers(run, (BEFORE,))

    def test_a_second_interrupt_from_the_terminal(self):
        run, process = self.begin("terminal", *LONG, ranks=1, TESSERA_FAULT="payload:0:stop")
        os.kill(process.pid, signal.SIGINT)
        run.until(process, lambda: 0 in run.standing())
        time.sleep(1.1)
        os.kill(process.pid, signal.SIGINT)  # Hydra itself leaves at the second one
        done = run.finish(process)
        if "demux engine error" not in str(done):  # Hydra's proxy may fail as it leaves, and mpiexec then says 0
            assert done.code not in (0, 75), done

    def test_time_runs_out(self):
        for limit in (3, 12, 48):  # a busy machine may need so long to come to a step
            run = self.trial(f"time-{limit}", begun=False)
            done = run.run(*LONG, "--time-limit", f"00:00:{limit:02}")
            with open(run.path("metrics.jsonl")) as file:
                steps = [json.loads(line)["step_ms"] / 1e3 for line in file]
            if steps:
                break
        assert sum(steps[:-1]) < limit  # it stops where another step might be too many
        assert done.seconds + max(steps) > limit - 0.5
        self.check_stopped(run, done, "--time-limit")


class Evaluations(Runs):
    """Signals and time limits while a run evaluates or samples: the step that is done is saved at once, and the next start makes up for it."""

    @classmethod
    def setup_class(cls):
        super().setup_class()
        cls.evaluated = ("--set", "run.steps=12", "--set", f"data.root={make_corpus(cls.folder)}", "--set", "data.eval_fraction=0.9",
                         "--set", "eval.every_steps=6")

    @staticmethod
    def printed(run):
        with open(os.path.join(run.folder, "stdout")) as file:
            return file.read()

    @staticmethod
    def rows(run):
        """Step, loss and eval_loss of the rows so far."""
        if not os.path.exists(run.path("metrics.jsonl")):
            return []
        with open(run.path("metrics.jsonl")) as file:
            rows = [json.loads(line) for line in file if line.endswith("\n")]
        return [(row["step"], row["loss"], row.get("eval_loss")) for row in rows]

    def test_a_resumed_run_evaluates_as_one_that_was_not_stopped(self):
        limited = (*self.evaluated, "--set", "eval.batches=400")
        whole = self.trial("evaluated", begun=False)
        assert whole.run(*limited).code == 0
        expected = self.rows(whole)
        assert [row[0] for row in expected if row[2] is not None] == [6, 12]
        run, abandoned = self.trial("evaluated-stopped", begun=False), 0
        evaluates = [lambda: len(self.rows(run)) == 5, lambda: "resumed from" in self.printed(run), lambda: len(self.rows(run)) == 11,
                     lambda: "resumed from" in self.printed(run)]  # the start that makes up for an evaluation is stopped too
        for ready in evaluates:
            process = run.start(*limited)
            run.until(process, ready)
            os.kill(run.ranks()[LAST], signal.SIGTERM)
            done = run.finish(process)
            assert done.code == 75, done
            step, _, loss = self.rows(run)[-1]
            abandoned += loss is None and step in (6, 12)
            assert run.steps()[-1] == step
        assert abandoned > 0
        done = run.run(*limited)
        assert done.code == 0, done
        assert self.rows(run) == expected

    def test_a_time_limit_does_not_wait_for_an_evaluation(self):
        run = self.trial("limited", begun=False)
        endless = ("--set", "eval.batches=16000000")
        done = run.run(*self.evaluated, *endless, "--time-limit", "00:00:04", limit=100)
        assert done.code == 75, done
        assert (run.steps()[-1], self.rows(run)[-1][0], self.rows(run)[-1][2]) == (6, 6, None), done

    def test_a_sample_is_abandoned_and_printed_by_the_next_start(self):
        run = self.trial("sampled", begun=False)
        sampled = ("--set", "run.steps=9", "--set", "sample.every_steps=4", "--set", "sample.prompt=the")
        process = run.start(*sampled, "--set", "sample.tokens=1000000")
        run.until(process, lambda: "sample: the" in self.printed(run))
        os.kill(run.ranks()[LAST], signal.SIGTERM)
        done = run.finish(process, limit=100)
        assert (done.code, run.steps()) == (75, [4]), done
        done = run.run(*sampled, "--set", "sample.tokens=5")
        assert (done.code, done.out.count("sample: the")) == (0, 3), done


class Deaths(Runs):
    """A rank that is killed while the launcher lets the others live, as srun --kill-on-bad-exit=0 does: they end within seconds, each with code 7."""

    RANKS = 3

    def setup_method(self):
        if "-disable-auto-cleanup" not in subprocess.run([self.launcher, "-help"], capture_output=True, text=True).stdout:
            pytest.skip("this launcher always ends all ranks")

    def start(self, run, *command, **variables):
        """Starts a verb on three ranks, each of which leaves its exit code in code.RANK."""
        for rank in range(self.RANKS):
            if os.path.exists(os.path.join(run.folder, f"code.{rank}")):
                os.remove(os.path.join(run.folder, f"code.{rank}"))
        body = 'trap "" USR1; "$@"; echo $? > code.${PMI_RANK:-0}'  # Hydra tells the others by that signal
        out, err = (open(os.path.join(run.folder, name), "w+b") for name in ("stdout", "stderr"))
        process = subprocess.Popen([self.launcher, "-disable-auto-cleanup", "-n", str(self.RANKS), "sh", "-c", body, "sh", self.tessera, *command],
                                   cwd=run.folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", **variables})
        process.began, process.out, process.err = time.monotonic(), out, err
        return process

    def check_ended(self, run, process, rank):
        done = run.finish(process, limit=60)  # comm.timeout_s is 300
        codes = {}
        for one in range(self.RANKS):
            with open(os.path.join(run.folder, f"code.{one}")) as file:
                codes[one] = int(file.read())
        assert codes == {one: 137 if one == rank else 7 for one in range(self.RANKS)}, done
        assert f"rank {rank} on " in done.err
        assert "has ended without a word" in done.err

    def kill(self, run, process, rank, ready):
        run.until(process, lambda: len(run.ranks()) == self.RANKS and ready())
        os.kill(run.ranks()[rank], signal.SIGKILL)
        self.check_ended(run, process, rank)

    def test_at_any_time_of_training(self):
        """Also while it loads, evaluates and saves."""
        draw = random.Random(int(os.environ.get("TESSERA_SOAK_SEED", "1")))
        run = self.trial("death", begun=False)
        for rank in (0, 1, 2):
            with self.subtests.test(rank=rank):
                process = self.start(run, "train", "../deck.yaml", *LONG[:2], "--set", "checkpoint.every_steps=3", "--set", "eval.every_steps=2")
                taken_over = os.path.exists(run.path("LOCK"))  # of the rank that was killed before
                run.until(process, lambda: "taken over" in run.said() if taken_over else os.path.exists(run.path("LOCK")))
                time.sleep(draw.uniform(0, 1.5))
                self.kill(run, process, rank, lambda: True)
                assert (run.tool("verify", "run")[0] if run.steps() else 0) == 0

    def test_in_the_phases_of_a_save(self):
        draw = random.Random(int(os.environ.get("TESSERA_SOAK_SEED", "1")))
        phases = [phase for phase in ("structure", "payload", "vote") if phase in PHASES]
        for phase, rank in [(draw.choice(phases), 2), ("manifest", 0)]:
            with self.subtests.test(phase=phase, rank=rank):
                run = self.trial(f"death-{phase}")
                self.check_ended(run, self.start(run, "train", "../deck.yaml", TESSERA_FAULT=f"{phase}:{rank}:kill"), rank)

    def test_of_another_verb(self):
        run = self.trial("death-eval")
        big = make_corpus(self.folder)
        process = self.start(run, "eval", "../deck.yaml", "--checkpoint", "run", "--set", f"data.root={big}", "--set", "data.eval_fraction=0.9",
                             "--set", "eval.batches=16000000")
        self.kill(run, process, 1, lambda: min(map(processes.computed, run.ranks().values())) > 3)  # beyond the start of MPI, whose end is the launcher's matter


class Locks(Faults):
    """Two runs in one directory, and locks of ended owners."""

    @staticmethod
    def age(run, seconds):
        then = time.time() - seconds
        os.utime(run.path("LOCK"), (then, then))

    def write(self, run, content):
        with open(run.path("LOCK"), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())

    def crashed(self, name):
        """A run that was killed between two saves and left its LOCK; returns the trial and the LOCK's content."""
        run = self.trial(name)
        done = run.run(TESSERA_FAULT="guard:all:kill")
        assert done.code not in (0, 75), done
        with open(run.path("LOCK"), "rb") as file:
            return run, file.read()

    def test_a_second_run_is_refused(self):
        run = self.trial("second")
        process = run.start(TESSERA_FAULT="payload:0:stop")
        run.until(process, lambda: 0 in run.standing())
        first = run.ranks()
        left = sorted(os.listdir(run.run_directory))
        elsewhere = self.named("elsewhere")
        done = elsewhere.run("--set", "checkpoint.dir=../second/run")
        assert done.code == 4, done
        assert re.search(r"second/run: another run trains there: .* pid %d, .* pid %d; wait for it, end it with kill -TERM" % (first[0], first[1]), done.err)
        assert sorted(os.listdir(run.run_directory)) == left
        os.kill(first[0], signal.SIGCONT)
        done = run.finish(process)
        assert (done.code, done.err) == (0, "TESSERA_FAULT: stop strikes\n"), done
        self.check_whole(run)

    def test_a_crashed_owner_is_taken_over_at_once(self):
        run, _ = self.crashed("crashed")
        again = self.check_recovers(run, (BEFORE,))
        assert "run/LOCK: taken over from a run that has ended without removing it" in again.err
        assert "waiting" not in again.err

    def test_what_is_no_lock_is_taken_over_once_it_is_old(self):
        def check(name, damage):
            run, lock = self.crashed(name)
            self.write(run, damage(lock))
            self.age(run, 60)
            again = self.check_recovers(run, (BEFORE,))
            assert "taken over" in again.err

        self.each([("empty", lambda lock: b""), ("half", lambda lock: lock[:len(lock) // 2]), ("garbage", lambda lock: bytes(range(256))),
                   ("flipped", lambda lock: lock.replace(b'"pid": 1', b'"pid": 2', 1).replace(b'"pid": 3', b'"pid": 4', 1) + b" "),
                   ("other-boot", lambda lock: re.sub(rb'"boot": "[^"]*"', b'"boot": "00000000-0000-0000-0000-000000000000"', lock)),
                   ("other-host", lambda lock: re.sub(rb'"host": "[^"]*"', b'"host": "elsewhere"', lock))], check)

    def test_a_lock_that_is_touched_is_held(self):
        run, _ = self.crashed("touched")
        self.write(run, "what no run wrote")
        process = run.start()
        deadline = time.monotonic() + trial.PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            self.age(run, 0)
            time.sleep(0.5)
        done = run.finish(process)
        assert done.code == 4, done
        assert "another run trains there" in done.err
        self.age(run, 60)
        self.check_recovers(run, (BEFORE,))

    def test_a_silent_lock_from_elsewhere_is_waited_for(self):
        run, _ = self.crashed("silent")
        self.write(run, "what no run wrote")
        self.age(run, 27)
        done = self.check_recovers(run, (BEFORE,))
        assert "waiting up to 30 s for a sign of life" in done.err
        assert "taken over" in done.err

    def test_a_job_started_again_knows_that_it_ended_before(self):
        run = self.trial("job")
        job = {"SLURM_JOB_ID": "4711"}
        process = run.start(TESSERA_FAULT="payload:0:stop", **job)
        run.until(process, lambda: 0 in run.standing())
        lock = run.lock()
        assert lock["job"] == "4711.0"
        for pid in run.ranks().values():
            with contextlib.suppress(ProcessLookupError):  # the launcher ends the others once it has seen the first die
                os.kill(pid, signal.SIGKILL)
        run.finish(process)
        done = run.run(SLURM_RESTART_COUNT="1", **job)
        assert done.code == 0, done
        assert "batch job 4711.0" in done.err
        self.check_whole(run)

    def test_a_run_that_lost_its_lock_saves_no_more(self):
        run = self.trial("lost", begun=False)
        process = run.start(*LONG, "--set", "checkpoint.every_steps=400")
        run.until(process, lambda: os.path.exists(run.path("metrics.jsonl")))
        self.write(run, "another one's")
        saved = run.steps()
        done = run.finish(process)
        assert done.code == 4, done
        assert "holds the directory no more" in done.err
        assert len(run.steps()) <= len(saved) + 1  # one may have been under way
        with open(run.path("LOCK")) as file:
            assert file.read() == "another one's"

    def test_a_directory_that_disappears(self):
        """Between two saves, or while one is under way."""
        run = self.trial("gone", begun=False)
        process = run.start(*LONG, "--set", "checkpoint.every_steps=50", TESSERA_FAULT="payload:all:slow:2")
        run.until(process, lambda: run.steps())
        os.rename(run.run_directory, run.run_directory + "-elsewhere")
        done = run.finish(process)
        assert done.code == 4, done
        assert "holds the directory no more" in done.err
        assert not os.path.exists(run.run_directory)


class Stopped(Runs):
    """A rank that stops, for ever or for a while."""

    SECONDS = 12

    def check_told(self, phase, rank):
        run = self.trial(f"stop-{phase}-{rank}")
        done = run.run("--set", "comm.timeout_s=10", TESSERA_FAULT=f"{phase}:{rank}:stop")
        assert done.code == 7, done
        assert f"rank {rank} does not answer" in done.err
        waits = "vote" if phase == "sync" or (phase, IO) == ("payload", "direct") else phase
        if IO != "async" or phase not in ("payload", "sync", "manifest"):  # a thread enters these phases while the ranks train
            assert f"a checkpoint's {waits}" in done.err
        self.check_recovers(run, {"rename": (BEFORE, DURING), "latest": (DURING,)}.get(phase, (BEFORE,)))

    def test_the_watchdog_names_rank_and_phase(self):
        cases = [(phase, LAST) for phase in ("create", "structure", "payload", "sync", "vote", "digest", "close", "rename")]
        cases += [(phase, 0) for phase in ("guard", "manifest", "latest")]
        self.each([case for case in cases if case[0] in PHASES], self.check_told, at_once=5)

    def test_calls_of_hdf5_have_the_same_time_out(self):
        if IO != "mpio":
            pytest.skip("only mpio calls HDF5 together")
        run = self.trial("slow-payload", begun=False)
        done = run.run("--set", "comm.timeout_s=3", "--set", "model.layers=16", TESSERA_FAULT=f"payload:{LAST}:slow")
        assert done.code == 7, done  # the others are closing the file
        assert "H5Fclose" in done.err
        assert "a checkpoint's payload" in done.err
        assert run.steps() == []

    def check_pause(self, phase, rank):
        """A stop shorter than comm.timeout_s (default 300): nothing is lost or reported."""
        run = self.trial(f"pause-{phase}-{rank}")
        process = run.start(TESSERA_FAULT=f"{phase}:{rank}:stop")
        run.until(process, lambda: rank in run.standing())
        time.sleep(self.SECONDS)
        os.kill(run.ranks()[rank], signal.SIGCONT)
        done = run.finish(process)
        assert (done.code, done.err) == (0, "TESSERA_FAULT: stop strikes\n"), done
        self.check_whole(run)

    def check_pause_between_saves(self, rank):
        run, process = self.begin(f"pause-between-{rank}", *LONG)
        pid = run.ranks()[rank]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.SECONDS)
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
        self.check_never_stopped(run, self.check_stopped(run, run.finish(process)))

    def test_a_stop_within_the_time_is_no_fault(self):
        cases = [(self.check_pause, "payload", LAST), (self.check_pause, "vote" if "vote" in PHASES else "sync", 0), (self.check_pause_between_saves, LAST),
                 (self.check_pause_between_saves, 0)]
        self.each(cases, lambda check, *case: check(*case), at_once=len(cases))
