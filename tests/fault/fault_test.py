"""Every fault that a save or a checkpoint must survive: the run's messages, that nothing hangs, and that the same command
line then resumes as if nothing had happened. Faults of a run between its saves: run_test.py.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import h5py
import numpy
import pytest

import trial
from trial import BEFORE, DURING, EVERY, IO, LAST, PHASES, RANKS, SAVED, STEPS, Faults, bits


class Kills(Faults):
    """SIGKILL of a rank during a save."""

    def check_kill(self, phase, rank):
        run = self.trial(f"kill-{phase}-{rank}")
        done = run.run(TESSERA_FAULT=f"{phase}:{rank}:kill")
        assert done.code not in (0, 75), done  # the launcher need not forward the last output of a killed rank
        # From the rename on the new checkpoint may exist; after the rename it must.
        steps = {"rename": (BEFORE, DURING), "latest": (DURING,), "aside": (DURING,)}.get(phase, (BEFORE,))
        if phase not in ("rename", "latest", "aside"):
            assert run.steps() == [BEFORE]  # an unfinished folder does not have its name yet
        again = self.check_recovers(run, steps)
        if phase != "lock":  # that phase comes before anything is written
            assert "taken over" in again.err

    def test_first_rank(self):
        self.each([(phase, 0) for phase in PHASES], self.check_kill)

    def test_last_rank(self):
        self.each([(phase, LAST) for phase in PHASES], self.check_kill)

    def test_all_ranks(self):
        self.each([(phase, "all") for phase in PHASES], self.check_kill)


class Branches(Faults):
    """A run that resumes from step 4 of a directory with steps 4, 8 and 12 (a branch), and is broken on the way."""

    KEEP = ("--set", "checkpoint.keep_last=9")
    OLD = (EVERY, 2 * EVERY, 3 * EVERY)

    @classmethod
    def setup_class(cls):
        super().setup_class()
        cls.old = cls.named("old")
        done = cls.old.run(*cls.KEEP, "--stop-at", str(cls.OLD[-1]))
        assert done.code == 75 and cls.old.steps() == list(cls.OLD), done

    def rewound(self, name):
        run = self.named(name)
        shutil.copytree(self.old.run_directory, run.run_directory)
        return run

    def check_line(self, run, steps, digests):
        """Checks that the run's checkpoints, and those set aside, exist, are whole and unchanged."""
        rows = run.tool("ls", "run")[1]
        assert all(row["valid"] for row in rows), rows
        assert {row["step"]: row["content_digest"] for row in rows if not row["abandoned"]} == {step: digests[step] for step in steps}
        assert run.tool("verify", "run") == (0, {"ok": True, "failures": []})
        return {os.path.basename(row["path"]): row["content_digest"] for row in rows if row["abandoned"]}

    def check_old_line_aside(self, run, aside):
        assert aside == {f"abandoned-1_step_{step:08}": self.digests[step] for step in self.OLD[1:]}
        assert bits(run.path("abandoned-1_metrics.jsonl")) == self.golden_rows[:self.OLD[-1]]

    def check_kill(self, fault, came):
        """came: whether the branch's first checkpoint was committed; None: it may have been. Its step is 6, which the old line lacks."""
        run = self.rewound(f"kill-{fault}")
        done = run.run(*self.KEEP, "--resume", f"run/step_{EVERY:08}", "--stop-at", str(EVERY + 2), TESSERA_FAULT=fault)
        assert done.code not in (0, 75), done
        there = EVERY + 2 in run.steps()
        assert there == (there if came is None else came), done
        again = run.run(*self.KEEP)
        assert again.code == 0, again
        begins = EVERY + 2 if there else self.OLD[-1]
        assert re.search(rf"resumed from \S*/run/step_{begins:08} \| {self.digest_at(begins)}", again.out)
        self.check_whole_line(run, [EVERY, EVERY + 2] if there else list(self.OLD))
        shutil.rmtree(run.folder)

    def digest_at(self, step):
        return self.digests.get(step, r"\w{16}")

    def check_whole_line(self, run, begun):
        """Checks a run that has these first steps and went on to the end: rows, digests, names; nothing is lost or half renamed."""
        assert bits(run.path("metrics.jsonl")) == self.golden_rows
        branched = EVERY + 2 in begun
        steps = begun + [step for step in range(begun[-1] // EVERY * EVERY + EVERY, STEPS + 1, EVERY)]
        digests = {**self.digests, EVERY + 2: run.tool("inspect", run.path(f"step_{EVERY + 2:08}"))[1]["content_digest"]} if branched else self.digests
        aside = self.check_line(run, steps, digests)
        if branched:
            self.check_old_line_aside(run, aside)
        others = [name for name in self.golden_names if not name.startswith("step_")] + (["abandoned-1_metrics.jsonl", *aside] if branched else [])
        assert self.names(run) == sorted([*others, *(f"step_{step:08}" for step in steps)])

    def test_a_branch_that_nothing_befalls(self):
        run = self.rewound("whole")
        done = run.run(*self.KEEP, "--resume", f"run/step_{EVERY:08}", "--stop-at", str(EVERY + 2))
        assert (done.code, done.err) == (75, ""), done
        assert "a branch begins after step 4: its first checkpoint sets step_00000008, step_00000012 aside\n" in done.out
        assert "set aside in run: abandoned-1_step_00000008, abandoned-1_step_00000012; the run goes on from step_00000006\n" in done.out
        assert re.search(r"stopped after step 6 of 20 \(--stop-at\); the same command goes on without --resume run/step_00000004 and --stop-at\n$", done.out)
        assert bits(run.path("metrics.jsonl")) == self.golden_rows[:EVERY + 2]
        again = run.run(*self.KEEP)
        assert (again.code, again.err) == (0, ""), again
        self.check_whole_line(run, [EVERY, EVERY + 2])

    def test_a_branch_that_takes_no_step(self):
        run = self.rewound("no-step")
        done = run.run(*self.KEEP, "--resume", f"run/step_{EVERY:08}", "--stop-at", "1")
        assert done.code == 75, done
        assert re.search(r"stopped after step 4 of 20 \(--stop-at\); the same command goes on without --stop-at\n$", done.out)
        again = run.run(*self.KEEP)
        assert again.code == 0, again
        assert re.search(r"run: a branch from \S*/run/step_00000004 ended before its first checkpoint; the run goes on as if it had not begun\n", again.err)
        self.check_whole_line(run, list(self.OLD))

    def test_kills_before_the_commit(self):
        faults = [f"branch:0:kill:{n}" for n in (1, 2, 3)] + [f"{phase}:0:kill" for phase in PHASES[:PHASES.index("rename")]]
        self.each([(fault, False) for fault in faults] + [("payload:1:kill", False), ("guard:all:kill", False)], self.check_kill)

    def test_kills_after_the_commit(self):
        # Rank 0 enters the phase before it renames; other ranks may enter it before or after that.
        faults = [("rename:0:kill", False), ("rename:1:kill", None), ("latest:0:kill", True), ("latest:all:kill", True)]
        faults += [(f"aside:0:kill:{n}", True) for n in (1, 2, 3)] + [("aside:1:kill", True)]
        self.each(faults, self.check_kill)

    def test_a_kill_while_a_killed_branch_is_set_aside(self):
        run = self.rewound("twice")
        run.run(*self.KEEP, "--resume", f"run/step_{EVERY:08}", "--stop-at", str(EVERY + 2), TESSERA_FAULT="latest:0:kill")
        done = run.run(*self.KEEP, TESSERA_FAULT="aside:0:kill")  # after the first rename
        assert done.code not in (0, 75), done
        assert sorted(run.steps()) == [EVERY, EVERY + 2, 3 * EVERY]
        assert run.run(*self.KEEP).code == 0
        self.check_whole_line(run, [EVERY, EVERY + 2])

    def check_same_step(self, fault, came):
        """The branch's first checkpoint has the step of an old one. The branch runs on one rank, whose sums have another order, so that bits differ."""
        run = self.rewound(f"same-{fault}")
        done = run.finish(run.start(*self.KEEP, "--resume", f"run/step_{EVERY:08}", "--stop-at", str(2 * EVERY), ranks=1, TESSERA_FAULT=fault))
        assert done.code not in (0, 75), done
        again = run.run(*self.KEEP)
        assert again.code == 0, again
        resumed = re.search(r"resumed from \S*/run/step_(\d+) \| (\w{16})", again.out)
        if came:
            assert int(resumed[1]) == 2 * EVERY
            assert resumed[2] != self.digests[2 * EVERY]
            self.check_old_line_aside(run, {os.path.basename(row["path"]): row["content_digest"] for row in run.tool("ls", "run")[1] if row["abandoned"]})
            assert [row[0] for row in bits(run.path("metrics.jsonl"))] == list(range(1, STEPS + 1))
        else:
            assert (int(resumed[1]), resumed[2]) == (3 * EVERY, self.digests[3 * EVERY])
            self.check_whole_line(run, list(self.OLD))
        assert run.tool("verify", "run") == (0, {"ok": True, "failures": []})
        shutil.rmtree(run.folder)

    def test_kills_of_a_branch_that_takes_an_old_ones_name(self):
        self.each([("manifest:0:kill", False), ("rename:0:kill", False), ("latest:0:kill", True), ("aside:0:kill:1", True), ("aside:0:kill:2", True)],
                  self.check_same_step)

    def test_a_branch_that_cannot_begin(self):
        run = self.rewound("begin")
        done = run.run(*self.KEEP, "--resume", f"run/step_{EVERY:08}", TESSERA_FAULT="branch:0:eio")
        assert done.code == 4, done
        assert "run/branch.json: cannot be written: Input/output error" in done.err
        assert run.run(*self.KEEP).code == 0
        self.check_whole_line(run, list(self.OLD))

    def test_steps_that_cannot_be_set_aside(self):
        """If setting aside fails in the last save, all ranks report it and the next start sets aside; after an earlier save training goes on to the next one."""
        run = self.rewound("stuck")
        done = run.run(*self.KEEP, "--resume", f"run/step_{EVERY:08}", "--stop-at", str(EVERY + 2), TESSERA_FAULT="aside:0:eio")
        assert done.code == 4, done
        assert "abandoned-1_step_00000008: cannot be written: Input/output error" in done.err
        assert run.steps() == [EVERY, EVERY + 2, *self.OLD[1:]]
        again = run.run(*self.KEEP)
        assert again.code == 0, again
        self.check_whole_line(run, [EVERY, EVERY + 2])
        run = self.rewound("stuck-once")
        done = run.run(*self.KEEP, "--resume", f"run/step_{EVERY:08}", "--set", "checkpoint.every_steps=2", TESSERA_FAULT="aside:0:eio")
        assert done.code == 0, done
        assert re.search("step 6 is saved, training goes on: .*abandoned-1_step_00000008", done.err)
        assert bits(run.path("metrics.jsonl")) == self.golden_rows
        self.check_old_line_aside(run, self.check_line(run, [EVERY, *range(EVERY + 2, STEPS + 1, 2)], {row["step"]: row["content_digest"] for row in run.tool("ls", "run")[1]}))


class Disks(Faults):
    """Failing and partial system calls, and really full disks."""

    def check_dropped(self, phase, rank, kind):
        """The save is dropped on all ranks, training goes on, and the next saves are made."""
        run = self.trial(f"{kind}-{phase}-{rank}")
        done = run.run(TESSERA_FAULT=f"{phase}:{rank}:{kind}")
        assert done.code == 0, done
        assert f"TESSERA_FAULT: {kind} strikes" in done.err
        assert re.search(f"step {DURING} was not saved, training goes on: .*run/step_", done.err)
        assert {"enospc": "No space left on device", "eio": "Input/output error"}[kind] in done.err
        assert re.findall(r"saved \S*step_(\d+)", done.out) == [f"{step:08}" for step in range(3 * EVERY, STEPS + 1, EVERY)]
        self.check_whole(run)
        shutil.rmtree(run.folder)

    def check_retried(self, phase, rank, kind):
        """Faults that the program must hide: only the injected fault is reported."""
        run = self.trial(f"{kind}-{phase}-{rank}")
        done = run.run(TESSERA_FAULT=f"{phase}:{rank}:{kind}")
        assert (done.code, done.err) == (0, f"TESSERA_FAULT: {kind} strikes\n"), done
        assert f"saved run/step_{DURING:08}" in done.out
        self.check_whole(run)
        shutil.rmtree(run.folder)

    def test_a_save_that_fails_on_the_first_rank_is_dropped(self):
        phases = [phase for phase in PHASES if phase not in ("lock", "vote", "latest", "aside")]
        self.each([(phase, 0, kind) for phase in phases for kind in ("enospc", "eio")], self.check_dropped)

    def test_a_save_that_fails_on_the_last_rank_is_dropped(self):
        self.each([(phase, LAST, kind) for phase in ("payload", "sync") for kind in ("enospc", "eio")], self.check_dropped)

    def test_interrupted_and_short_calls_are_taken_up_again(self):
        cases = [(phase, 0, kind) for kind, phases in (("eintr", ("lock", "guard", "payload", "sync", "manifest", "latest")),
                                                       ("short", ("lock", "payload", "manifest", "latest"))) for phase in phases]
        cases += [("payload", LAST, "short"), ("payload", LAST, "eintr"), ("sync", LAST, "eintr")]
        # Writes by HDF5 cannot be cut short.
        cases = [case for case in cases if IO != "mpio" or (case[0], case[2]) != ("payload", "short")]
        self.each([case for case in cases if case[0] in PHASES], self.check_retried)

    def test_latest_is_no_part_of_a_checkpoint(self):
        run = self.trial("latest")
        done = run.run(TESSERA_FAULT="latest:0:eio")
        assert done.code == 0, done
        assert "the newest valid step is found without it" in done.err
        assert f"saved run/step_{DURING:08}" in done.out
        self.check_whole(run)

    def test_a_lock_that_cannot_be_written(self):
        for kind in ("enospc", "eio"):
            run = self.trial(f"lock-{kind}")
            done = run.run(TESSERA_FAULT=f"lock:0:{kind}")
            assert done.code == 4, done
            assert "run/LOCK" in done.err
            assert "LOCK" not in os.listdir(run.run_directory)
            self.check_recovers(run, (BEFORE,))

    def test_a_folder_where_the_lock_should_be(self):
        run = self.trial("lock-folder")
        lock = os.path.join(run.run_directory, "LOCK")
        os.mkdir(lock)
        done = run.run()
        assert done.code == 4, done
        assert "run/LOCK: is a folder" in done.err
        os.rmdir(lock)
        self.check_recovers(run, (BEFORE,))

    def test_a_limit_of_file_sizes_drops_saves_and_kills_nothing(self):
        run = self.trial("small-files")
        shell = ["bash", "-c", 'ulimit -f 16; exec "$@"', "bash"]
        process = subprocess.Popen([*shell, *run.command("--stop-at", str(DURING + 2))], cwd=run.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", "UCX_TLS": "self,tcp"})  # its shared memory is a file, too
        out, err = process.communicate(timeout=trial.PATIENCE)
        assert process.returncode == 4, (out, err)
        assert re.search(f"step {DURING} was not saved, training goes on: .*File too large", err), err
        assert bits(run.path("metrics.jsonl"))[-1][0] == DURING + 2
        assert run.steps() == [BEFORE]
        self.check_recovers(run, (BEFORE,))

    def test_the_last_save_that_fails_ends_the_run_with_its_cause(self):
        run = self.trial("last")
        done = run.run("--stop-at", str(BEFORE + 1), TESSERA_FAULT="payload:1:enospc")
        assert done.code == 4, done
        assert "No space left on device" in done.err
        assert run.steps() == [BEFORE]
        self.check_recovers(run, (BEFORE,))


class FullDisks(Faults):
    """A file system of a few hundred KiB."""

    def small_disk(self, name, kib):
        run = self.trial(name, begun=False)
        os.mkdir(run.run_directory)
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", run.run_directory],
                                               capture_output=True).returncode != 0:
            pytest.skip("this user or machine mounts no tmpfs")
        self.at_end.callback(subprocess.run, ["umount", "-l", run.run_directory], check=True)
        shutil.copytree(self.begun.run_directory, run.run_directory, dirs_exist_ok=True)
        return run

    @staticmethod
    def fill(run):
        """Fills the file system; returns a function that frees it again."""
        path = run.path("filler")
        with open(path, "wb", buffering=0) as filler:
            try:
                while filler.write(bytes(4096)) == 4096:
                    pass
            except OSError:
                pass
        return lambda: os.remove(path)

    def test_a_disk_too_small_is_told_of_before_anything_is_written(self):
        run = self.small_disk("small", 1200)
        done = run.run("--stop-at", str(DURING))
        assert done.code == 4, done
        told = re.search(r"the checkpoint of step 8 needs (\d+) ([MK]B), and (\d+) \2 are free in run; make room", done.err)
        assert int(told[1]) > int(told[3]), "numbers that look equal"
        disk = os.statvfs(run.run_directory)
        with open(run.path("filler"), "wb") as filler:
            filler.write(bytes(max(0, disk.f_bavail * disk.f_frsize - 200_000)))
        assert re.search(r"needs \d+ KB, and [12]\d\d KB are free in run", run.run("--stop-at", str(DURING)).err), "some room is not 0 MB"
        os.remove(run.path("filler"))
        assert run.steps() == [BEFORE]
        assert bits(run.path("metrics.jsonl"))[-1][0] == BEFORE, "steps were made that cannot be saved"
        done = subprocess.run([self.tessera, "validate", "../deck.yaml"], cwd=run.folder, capture_output=True, text=True, timeout=trial.PATIENCE)
        assert done.returncode == 4, done
        assert f"the checkpoint of step {DURING} needs" in done.stderr

    def test_a_run_that_begins_has_room_to_its_end(self):
        """Drawn sizes of the disk and numbers of checkpoints: what is not refused before the first step saves all."""
        draw = random.Random(int(os.environ.get("TESSERA_SOAK_SEED", "1")))
        outcomes = set()
        for number, kib in enumerate([1100, 1500, 2048, 8192] + [draw.randrange(1100, 2600) for _ in range(2)]):
            keep, every = draw.choice([2, 3, 50]), draw.choice([1, 2, EVERY])
            with self.subtests.test(kib=kib, keep=keep, every=every):
                run = self.small_disk(f"room-{number}", kib)
                done = run.run("--set", f"checkpoint.keep_last={keep}", "--set", f"checkpoint.every_steps={every}")
                outcomes.add(done.code)
                if done.code == 0:
                    assert "was not saved" not in done.err
                    assert run.steps()[-1] == STEPS
                else:
                    assert (done.code, run.steps()) == (4, [BEFORE]), done
                    assert re.search(r"needs (\d+) ([MK]B|bytes), and (\d+) \2 are free in run; make room", done.err)
                    assert bits(run.path("metrics.jsonl"))[-1][0] == BEFORE
        assert outcomes == {0, 4}

    def check_fills_up(self, phase):
        """Fills the disk while all ranks are stopped at the phase; later frees it."""
        run = self.small_disk(f"full-at-{phase}", 4096)
        process = run.start(TESSERA_FAULT=f"{phase}:all:stop")
        run.until(process, lambda: run.standing() == set(range(RANKS)))
        make_room = self.fill(run)
        for pid in run.ranks().values():
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + trial.PATIENCE
        while run.ranks() and "was not saved" not in run.said() and time.monotonic() < deadline:
            time.sleep(0.01)
        make_room()
        done = run.finish(process)
        # The rows of metrics.jsonl need room as well: training may end for them, with its cause.
        assert done.code in (0, 4), done
        reserved = phase == "structure"  # this save has reserved its space, so the next save meets the full disk
        assert re.search("No space left on device" + ("| are free in run" if reserved else ""), done.err)
        assert done.code == 4 or reserved or f"step {DURING} was not saved" in done.err, done
        saved = done.out
        if done.code == 4:
            done = run.run()
            assert done.code == 0, done
            saved += done.out
        # A fast run may meet the full disk at later saves too.
        steps = [BEFORE, *map(int, re.findall(SAVED, saved))]
        assert steps[-1] == STEPS
        self.check_whole(run, kept=steps[-2:])

    def test_a_disk_that_fills_up_during_a_save(self):
        for phase in ("create", "guard", "structure", "manifest"):
            with self.subtests.test(phase=phase):
                self.check_fills_up(phase)


class Places(Faults):
    """Paths that cannot be run directories."""

    def test_a_file_in_the_directorys_place(self):
        run = self.trial("file", begun=False)
        with open(run.run_directory, "w"):
            pass
        done = run.run()
        assert done.code == 4, done
        assert "is a file" in done.err

    def test_a_directory_that_is_read_only(self):
        run = self.trial("readonly")
        before = sorted(os.listdir(run.run_directory))
        if os.geteuid() == 0:
            mounted = subprocess.run(["mount", "--bind", "-o", "ro", run.run_directory, run.run_directory], capture_output=True)
            if mounted.returncode != 0:
                pytest.skip("this machine mounts nothing read-only")
            self.at_end.callback(subprocess.run, ["umount", "-l", run.run_directory], check=True)
        else:
            os.chmod(run.run_directory, 0o555)
        done = run.run()
        assert done.code == 4, done
        assert re.search("checkpoint.dir: nothing can be written in run: (Read-only file system|Permission denied)", done.err)
        assert "step 5/" not in done.out
        assert sorted(os.listdir(run.run_directory)) == before

    def test_a_file_system_without_locks(self):
        """A file system without byte-range locks: MPI-IO would end the run during a save; system calls do not need them."""
        run = self.trial("no-locks", begun=False)
        done = run.run("--stop-at", str(EVERY), LD_PRELOAD=os.path.join(self.build, "tests/fault/libno_locks.so"))
        if IO == "mpio":
            assert done.code == 4, done
            assert re.search("checkpoint.io: mpio needs locks of files, and the file system of run keeps none: No locks available; .*checkpoint.io: direct", done.err)
            assert os.listdir(run.run_directory) == []
        else:
            assert (done.code, done.err, run.steps()) == (75, "", [EVERY]), done

    def test_hints_that_nobody_knows(self):
        run = self.trial("hints", begun=False)
        done = run.run("--stop-at", str(2 * EVERY), "--set", "checkpoint.mpio_hints={no_such_hint: 1, cb_buffer_size: 65536}")
        assert (done.code, run.steps()) == (75, [EVERY, 2 * EVERY]), done
        told = {"mpio": "checkpoint.mpio_hints: the MPI-IO of this machine does not know no_such_hint and goes on without\n",
                "direct": "--set checkpoint.mpio_hints={no_such_hint: 1, cb_buffer_size: 65536}: checkpoint.mpio_hints: has an effect only with io mpio (allowed)\n"}
        assert done.err == told["mpio" if IO == "mpio" else "direct"]

    def test_latest_is_a_hint(self):
        def check(name, content):
            run = self.trial("latest-" + name)
            with open(run.path("latest"), "wb") as file:
                file.write(content)
            again = self.check_recovers(run, (BEFORE,))
            assert "run/latest: does not name the newest valid checkpoint" in again.err

        self.each([("stale", b"step_00000003\n"), ("empty", b""), ("garbage", bytes(range(256)))], check)

    def test_a_future_format_is_refused_by_name(self):
        run = self.trial("future")
        path = run.path(f"step_{BEFORE:08}", "manifest.json")
        with open(path) as file:
            manifest = json.load(file)
        manifest["format_version"] = [2, 0]
        with open(path, "w") as file:
            json.dump(manifest, file)
        done = run.run()
        assert done.code == 5, done
        assert "format 2.0, this build reads 1.0" in done.err


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


class Damage(Faults):
    """Files that are truncated, extended, or replaced by ones of other structure. Single bits: damage_test.cpp."""

    NEWEST = f"step_{STEPS:08}"
    EMBEDDING = "model/embed.tokens"

    def damaged(self, name):
        run = self.named(name)
        shutil.copytree(os.path.join(self.folder, "golden", "run"), run.run_directory)
        return run

    def check_length(self, name, change):
        run = self.damaged(f"{change}-{name}")
        path = run.path(self.NEWEST, name)
        size = os.path.getsize(path)
        if change == "longer":
            with open(path, "ab") as file:
                file.write(b"x")
        else:
            os.truncate(path, {"empty": 0, "100": 100, "half": size // 2, "shorter": size - 2}[change])
        code, report = run.tool("verify", run.path(self.NEWEST))
        assert (code, report["ok"]) == (5, False)
        assert f"{self.NEWEST}/{name}" in report["failures"][0]
        done = self.check_recovers(run, (STEPS - EVERY,))
        assert f"{self.NEWEST}/{name}" in done.err

    def test_files_of_another_length(self):
        self.each([(name, change) for name in ("model.h5", "optimizer.h5", "manifest.json", "deck.yaml")
                   for change in ("empty", "100", "half", "shorter", "longer")], self.check_length)

    @staticmethod
    def seal(step):
        """Rewrites the manifest's file sizes, and its digest, to match changed files."""
        path = os.path.join(step, "manifest.json")
        with open(path) as file:
            manifest = json.load(file)
        for name in manifest["files"]:
            manifest["files"][name] = os.path.getsize(os.path.join(step, name))
        del manifest["manifest_digest"]
        manifest["manifest_digest"] = f"{fnv1a64(json.dumps(manifest, separators=(',', ':'))):016x}"
        with open(path, "w") as file:
            json.dump(manifest, file, indent=2)

    def check_structure(self, name, change, said):
        run = self.damaged(name)
        step = run.path(self.NEWEST)
        self.seal(step)
        assert run.tool("verify", step) == (0, {"ok": True, "failures": []})
        with h5py.File(os.path.join(step, "model.h5"), "r+") as file:
            change(file)
        self.seal(step)
        done = self.check_recovers(run, (STEPS - EVERY,))
        assert re.search(said, done.err)

    def replace(self, file, **changes):
        data = file[self.EMBEDDING]
        values, attributes = data[...], dict(data.attrs)
        del file[self.EMBEDDING]
        file.create_dataset(self.EMBEDDING, **{"data": values, **changes}).attrs.update(attributes)

    def test_another_structure(self):
        def delete(file):
            del file[self.EMBEDDING]

        def transpose(file):
            self.replace(file, data=file[self.EMBEDDING][...].T)

        def digest(file):
            rows = file["integrity/table"][...]
            rows["digest"][0] += numpy.uint64(1)
            file["integrity/table"][...] = rows

        table = [
            ("missing", delete, "missing: /" + self.EMBEDDING),
            ("extra", lambda file: file.create_dataset("model/extra", data=numpy.zeros(4, "f4")), r"/model holds \d+ datasets, and its table accounts for \d+"),
            ("renamed", lambda file: file.move(self.EMBEDDING, "model/token_embeddings.weight"), "missing: /" + self.EMBEDDING),
            ("longer", lambda file: self.replace(file, data=numpy.zeros((3, 7), "f4")), f"/{self.EMBEDDING} has another size than its table says"),
            ("transposed", transpose, f"shape: /{self.EMBEDDING} is .*, the model has"),
            ("doubles", lambda file: self.replace(file, dtype="f8"), f"/{self.EMBEDDING} has a type that no checkpoint has"),
            ("bytes", lambda file: self.replace(file, dtype="u1"), f"type: /{self.EMBEDDING} is u8, the model has f32"),
            ("chunked", lambda file: self.replace(file, chunks=True), f"/{self.EMBEDDING} is no contiguous tensor"),
            ("values", lambda file: file[self.EMBEDDING].write_direct(numpy.ones(file[self.EMBEDDING].shape, "f4")),
             f"/{self.EMBEDDING} holds other bytes than were saved"),
            ("axes", lambda file: file[self.EMBEDDING].attrs.modify("axes", numpy.bytes_("hidden,vocabulary")),
             f"axes: /{self.EMBEDDING} has hidden,vocabulary, the model vocabulary,hidden"),
            ("step", lambda file: file["counters"].attrs.modify("step", numpy.int64(STEPS - 1)), "/counters/step differs from the manifest"),
            ("updates", lambda file: file["counters"].attrs.modify("t", numpy.int64(STEPS + 1)), "/counters/t differs from the manifest"),
            ("no-counter", lambda file: file["counters"].attrs.__delitem__("beta1_power"), "/counters@beta1_power"),
            ("digest", digest, "the digests of its tensors do not give its content_digest"),
            ("other-save", lambda file: file.attrs.modify("content_digest", numpy.bytes_("0" * 16)),
             "belongs to another checkpoint: its content_digest differs"),
            ("incomplete", lambda file: file.attrs.modify("complete", numpy.int64(0)), "is not complete"),
            ("features", lambda file: file.attrs.create("required_features", numpy.bytes_("sparse")), "needs features that this build does not have: sparse"),
        ]
        self.each(table, self.check_structure)


class Soak(Faults):
    """Random faults at random phases, start after start."""

    def start(self, run, fault, *arguments):
        """One start with a fault; returns whether the fault occurred."""
        done = run.run(*arguments, TESSERA_FAULT=fault)
        killed = fault.endswith("kill") and done.code not in (0, 75)
        struck = killed or "strikes" in done.err
        if not killed:  # 4: the save that ends a run failed, or the lock
            assert done.code in ((0, 4, 75) if struck else (0, 75)), done
        return struck

    def check_kept(self, run, digests):
        for step in run.steps():
            folder = run.path(f"step_{step:08}")
            assert run.tool("verify", folder) == (0, {"ok": True, "failures": []})
            assert run.tool("inspect", folder)[1]["content_digest"] == digests[step]

    def test_restarts(self):
        restarts, seed = int(os.environ.get("TESSERA_SOAK_RESTARTS", "10")), int(os.environ.get("TESSERA_SOAK_SEED", "1"))
        choose, began = random.Random(seed), time.monotonic()
        length = ("--set", f"run.steps={2 * restarts}", "--set", "checkpoint.every_steps=2")
        limit = trial.PATIENCE + 10 * restarts  # of a run that makes all steps and saves
        whole = self.trial("whole", begun=False)
        done = whole.run(*length, limit=limit)
        assert done.code == 0, done
        digests = {int(step): digest for step, digest in re.findall(r"saved run/step_(\d+) \| (\w{16})", done.out)}
        run, struck = self.trial("soak", begun=False), 0
        for start in range(restarts):
            fault = ":".join((choose.choice(PHASES), choose.choice(("0", "1", "all")), choose.choice(("kill", "kill", "kill", "enospc", "eio", "short", "eintr"))))
            try:
                struck += self.start(run, fault, *length, "--stop-at", str(2 * start + 2))
                self.check_kept(run, digests)
            except AssertionError as failure:
                raise AssertionError(f"start {start} of seed {seed}, {fault}: {failure}") from failure
            if (start + 1) % 10 == 0:
                print(f"{start + 1} of {restarts} starts, {struck} struck, at step {max(run.steps(), default=0)}, "
                      f"{time.monotonic() - began:.0f} s", flush=True)
        assert struck > restarts // 3
        done = run.run(*length, limit=limit)
        assert done.code == 0, done
        assert bits(run.path("metrics.jsonl")) == bits(whole.path("metrics.jsonl"))
        assert self.names(run) == self.names(whole)
        assert run.tool("diff", "run", "../whole/run")[1]["equal"] == True
