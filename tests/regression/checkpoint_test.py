"""Checkpoints from outside: resume, stop, tools, and h5py as a second reader.
"""
import json
import os
import re
import shutil
import subprocess

import h5py
import numpy

import documents
import runs

MASK = 2**64 - 1


def mix64(z):
    z = ((z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9))
    z = ((z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB))
    return z ^ (z >> numpy.uint64(31))


def digest(values):
    """The digest of FORMAT.md, implemented independently."""
    bits = values.ravel().view(numpy.uint32).astype(numpy.uint64)
    index = numpy.arange(1, bits.size + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    return int(mix64(bits ^ index).sum(dtype=numpy.uint64))


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


class Checkpoints(runs.Runs):
    def test_a_stopped_run_is_the_run_that_was_not(self):
        self.train(0, 2, self.deck("a"))
        assert [row["step"] for row in self.tool(0, "ls", "a")] == [6, 8]
        self.train(75, 2, self.deck("b"), "--stop-at", "5")
        assert [row["step"] for row in self.tool(0, "ls", "b")] == [3, 5]
        out, _ = self.train(0, 2, self.deck("b"))
        assert "resumed from" in out
        assert self.rows("b") == self.rows("a")
        assert self.final("b") == self.final("a")
        assert self.tool(0, "diff", "a", "b")["equal"] == True
        apart = self.tool(1, "diff", "a/step_00000006", "b")
        assert (apart["equal"], apart["counters"]["/counters/step"]) == (False, [6, 8])

    def contents(self, *names):
        """Every file below with its bytes and the time of its last change."""
        found = {}
        for folder, _, files in os.walk(self.path(*names)):
            for path in (os.path.join(folder, name) for name in files):
                with open(path, "rb") as file:
                    found[path] = (file.read(), os.stat(path).st_mtime_ns)
        return found

    def test_a_finished_run_has_nothing_to_do(self):
        trace = ["--set", f"debug.trace={self.path('trace.jsonl')}"]
        self.train(0, 2, self.deck("a"), *trace)
        before = self.contents()
        assert {"run.json", "report.html", "deck.resolved.yaml", "trace.jsonl"} <= {os.path.basename(path) for path in before}
        for arguments in ([], ["--set", "optimizer.lr=0.5"], ["--stop-at", "3"], ["--resume", "a/step_00000008"]):
            out, err = self.train(0, 2, self.path("a.yaml"), *trace, *arguments)
            assert out.endswith("\n8 of 8 steps done, nothing to do\n"), out[-300:]
            assert err == ""
            assert self.contents() == before
        self.train(0, 2, self.deck("zero"), "--set", "run.steps=0")
        out, _ = self.train(0, 2, self.deck("zero"), "--set", "run.steps=0")
        assert "0 of 0 steps done, nothing to do" in out

    def starts(self, run):
        with open(self.path(run, "run.json"), encoding="utf-8") as file:
            record = json.load(file)
        for key, value in record["starts"][-1].items():
            if key not in ("last_step", "saves", "end", "ended"):  # of the start's course, which the list alone tells
                assert value == record[key]
        return [(start["step"], os.path.basename(start["resumed_from"] or ""), start["ranks"], start["command_line"][3:]) for start in record["starts"]]

    def test_the_record_lists_every_start(self):
        self.train(75, 2, self.deck("a"), "--stop-at", "3")
        self.train(75, 1, self.deck("a"), "--stop-at", "5")
        self.train(75, 2, self.deck("a"), "--resume", "a/step_00000003", "--stop-at", "4")
        self.train(0, 2, self.deck("a"))
        expected = [(0, "", 2, ["--stop-at", "3"]), (3, "step_00000003", 1, ["--stop-at", "5"]),
                    (3, "step_00000003", 2, ["--resume", "a/step_00000003", "--stop-at", "4"]), (4, "step_00000004", 2, [])]
        assert self.starts("a") == expected
        self.train(0, 2, self.deck("a"))  # which does nothing, and so is none
        assert self.starts("a") == expected

    def test_a_record_that_is_none_is_told_of(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "2")
        with open(self.path("a", "run.json"), "w") as file:
            file.write("{")
        _, err = self.train(75, 1, self.deck("a"), "--stop-at", "3")
        assert re.search(r"a/run\.json: is no JSON object; the starts before this one are not listed", err)
        assert [start[0] for start in self.starts("a")] == [2]

    def test_a_stop_says_how_the_run_goes_on(self):
        for arguments, code, said in ((["--stop-at", "2"], 75, r"stopped after step 2 of 8 \(--stop-at\); the same command goes on without --stop-at\n$"),
                                      (["--time-limit", "00:00:00"], 75, r"stopped after step 0 of 8 \(--time-limit\); the same command goes on\n$")):
            shutil.rmtree(self.path("a"), ignore_errors=True)
            out, _ = self.train(code, 2, self.deck("a"), *arguments)
            assert re.search(said, out)
            with open(self.path("a", "report.html"), encoding="utf-8") as page:
                assert re.search(r"stopped after[^;]*", out)[0] in page.read()

    def test_time_runs_out(self):
        for limit in ("00:00:03", "00:00:30", "00:05:00"):  # a busy machine may need the first one to start
            shutil.rmtree(self.path("t"), ignore_errors=True)
            self.train(75, 1, self.deck("t"), "--set", "run.steps=1000000", "--time-limit", limit)
            if (step := self.tool(0, "inspect", "t")["step"]) > 0:
                break
        assert step > 0
        self.train(2, 1, self.deck("t"), "--time-limit", "soon")

    def test_going_back_keeps_what_is_saved_then(self):
        often = ["--set", "run.steps=12", "--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_every=4"]
        self.train(0, 2, self.deck("a"), *often)
        final, steps = self.final("a"), lambda: [row["step"] for row in self.tool(0, "ls", "a")]
        assert steps() == [4, 8, 10, 12]
        self.train(75, 2, self.deck("a"), *often, "--resume", self.path("a", "step_00000004"), "--stop-at", "7")
        assert steps() == [4, 6, 7, 8, 10, 12]
        aside = [row["path"] for row in self.tool(0, "ls", "a") if row["abandoned"]]
        assert aside == [f"a/abandoned-1_step_{step:08}" for step in (8, 10, 12)]
        assert self.tool(0, "inspect", "a")["step"] == 7
        assert [row["step"] for row in self.json_lines("a", "metrics.jsonl")] == list(range(1, 8))
        # Retention neither counts nor deletes checkpoints that were set aside.
        _, err = self.train(0, 2, self.deck("a"), *often)
        assert err == ""
        assert (self.final("a"), steps()) == (final, [4, 8, 10, 12, 8, 10, 12])
        self.rows("a", 12)  # each step once
        assert [row["path"] for row in self.tool(0, "ls", "a") if row["abandoned"]] == aside
        for path in aside:
            assert self.tool(0, "verify", path) == {"ok": True, "failures": []}
        assert self.tool(0, "inspect", aside[-1])["content_digest"] == final
        assert self.tool(0, "diff", "a", aside[-1])["equal"] == True

    def test_a_run_goes_on_from_what_was_set_aside(self):
        often = ["--set", "run.steps=12", "--set", "checkpoint.every_steps=3", "--set", "checkpoint.keep_last=9"]
        self.train(0, 2, self.deck("whole"), *often)
        self.train(75, 2, self.deck("a"), *often, "--stop-at", "9")
        self.train(75, 1, self.deck("a"), *often, "--resume", "a/step_00000003", "--stop-at", "5")  # other bits: other ranks
        out, _ = self.train(75, 2, self.deck("a"), *often, "--resume", "a/abandoned-1_step_00000009", "--stop-at", "10")
        assert "set aside in " + self.path("a") + ": abandoned-2_step_00000003, abandoned-2_step_00000005;" in out
        self.train(0, 2, self.deck("a"), *often)
        assert self.rows("a", 12) == self.rows("whole", 12)
        assert self.final("a") == self.final("whole")
        names = [os.path.basename(row["path"]) for row in self.tool(0, "ls", "a")]
        assert (names
                == ["step_00000009", "step_00000010", "step_00000012", "abandoned-1_step_00000006", "abandoned-1_step_00000009", "abandoned-2_step_00000003", "abandoned-2_step_00000005"])
        assert [row["step"] for row in self.json_lines("a", "abandoned-2_metrics.jsonl")] == [1, 2, 3, 4, 5]
        shutil.move(self.path("a", names[3]), self.path("a", "abandoned-1_step_00000007"))
        assert "it was renamed" in self.tool(0, "ls", "a")[3]["reason"]

    def test_a_branch_from_another_directory(self):
        self.train(75, 2, self.deck("a"), "--stop-at", "6")
        self.train(75, 2, self.deck("b"), "--stop-at", "5")
        self.train(75, 2, self.deck("b"), "--resume", "a", "--stop-at", "7")
        assert [(row["step"], row["abandoned"]) for row in self.tool(0, "ls", "b")] == [(6, False), (7, False), (3, True), (5, True)]  # 6 was due
        assert [row["step"] for row in self.json_lines("b", "metrics.jsonl")] == [7]
        assert [row["step"] for row in self.json_lines("b", "abandoned-1_metrics.jsonl")] == [1, 2, 3, 4, 5]

    def test_every_step_of_a_run_directory_is_verified(self):
        self.train(0, 1, self.deck("a"), "--set", "checkpoint.keep_last=9", "--stop-at", "8")
        self.train(75, 1, self.deck("a"), "--set", "checkpoint.keep_last=9", "--resume", "a/step_00000003", "--stop-at", "5")
        out = self.told("verify", "a")
        folders = ["a/step_00000003", "a/step_00000005", "a/abandoned-1_step_00000006", "a/abandoned-1_step_00000008"]
        assert out == "".join(f"{folder}: every byte is as it was saved\n" for folder in folders)
        with h5py.File(self.path(folders[2], "optimizer.h5")) as file:
            offset = file["adamw/v/embed.tokens"].id.get_offset()
        with open(self.path(folders[2], "optimizer.h5"), "r+b") as file:
            file.seek(offset + 5)
            byte = file.read(1)
            file.seek(offset + 5)
            file.write(bytes([255 - byte[0]]))
        os.truncate(self.path(folders[0], "model.h5"), 100)
        failures = self.tool(5, "verify", "a")["failures"]
        assert len(failures) == 2
        assert folders[0] + "/model.h5: has 100 bytes" in failures[0]
        assert failures[1] == folders[2] + "/optimizer.h5: /adamw/v/embed.tokens holds other bytes than were saved"
        out = self.told("ls", "a")
        head, *lines = out.splitlines()
        assert re.search(r"^ +step +size +saved \(UTC\) +loss +eval +digest +path$", head)
        saved = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ +\d\.\d{4} +"
        assert re.search(rf"^ +3 +\S+ [KMG]iB  {saved}\d\.\d{{4}}  invalid  -  +a/step_00000003/model.h5: has 100 bytes", lines[0])
        assert re.search(rf"^ +5 +\S+ [KMG]iB  {saved}-  valid    \w{{16}}  a/step_00000005 \(last\)$", lines[1])
        assert re.search(rf"^ +6 +\S+ [KMG]iB  {saved}\d\.\d{{4}}  valid    \w{{16}}  a/abandoned-1_step_00000006 \(abandoned\)$", lines[2])

    def test_the_list_has_the_losses_of_each_line_of_steps(self):
        often = ["--set", "run.steps=12", "--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_last=9"]
        self.train(0, 1, self.deck("a"), *often)
        left = {row["step"]: row for row in self.json_lines("a", "metrics.jsonl")}
        self.train(0, 1, self.deck("a"), *often, "--resume", self.path("a", "step_00000004"), "--set", "optimizer.lr=0.003")
        own = {row["step"]: row for row in self.json_lines("a", "metrics.jsonl")}
        listed = self.tool(0, "ls", "a")
        assert len(listed) == 6 + 4
        for row in listed:
            of = (left if row["abandoned"] else own)[row["step"]]
            assert (row["loss"], row["eval_loss"]) == (of["loss"], of.get("eval_loss")), row
        evaluated = [row for row in listed if row["eval_loss"] is not None and not row["abandoned"]]
        best = min(evaluated, key=lambda row: row["eval_loss"])["step"]
        marks = {(row["step"], row["abandoned"]): row["marks"] for row in listed}
        assert ({step: found for (step, aside), found in marks.items() if found and not aside}
                == ({12: ["last", "best"]} if best == 12 else {12: ["last"], best: ["best"]}))
        assert {tuple(found) for (_, aside), found in marks.items() if aside} == {("abandoned",)}

    def test_the_best_step_is_named_as_the_list_marks_it(self):
        deck = self.deck("a", None)
        settings = ["--set", "run.steps=9", "--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep_last=20", "--set", "eval.every_steps=1"]
        self.train(0, 1, deck, *settings, "--set", "optimizer.lr=0.3")  # so high that the last step is not the best
        losses = {row["step"]: row["eval_loss"] for row in self.json_lines("a", "metrics.jsonl")}
        best, last = min(losses, key=losses.__getitem__), max(losses)
        assert best < last
        eval_step = lambda *more: json.loads(self.run_to_its_end(0, 2, "eval", *more, "--json")[0])["step"]
        for chosen, more in ((best, ["--best"]), (last, [])):
            assert eval_step(deck, "--checkpoint", "a", *more) == chosen
            assert eval_step("a", "--text", "corpus.txt", *more) == chosen
            assert self.tool(0, "convert", "a", f"of_{chosen}", *more)["step"] == chosen
        answer = lambda *named: self.run_to_its_end(0, 1, "generate", *named, "--prompt", "the", "--tokens", "20", "--temperature", "0")[0]
        wanted = answer(self.path("a", f"step_{best:08}"))
        assert [answer(named, "--best") for named in ("a", deck)] == [wanted, wanted]
        # A damaged one is passed over, in the list too.
        os.truncate(self.path("a", f"step_{best:08}", "model.h5"), 100)
        second = min(set(losses) - {best}, key=losses.__getitem__)
        assert "best" in next(row["marks"] for row in self.tool(0, "ls", "a") if row["step"] == second)
        assert eval_step("a", "--text", "corpus.txt", "--best") == second
        for path, why in (("nowhere", "is neither a checkpoint nor a run directory"), (f"a/step_{last:08}", "is no run directory")):
            assert f"{path}: {why}" in self.tool(5, "convert", path, "lost", "--best")
            _, err = self.run_to_its_end(5, 2, "generate", path, "--prompt", "the", "--best")
            assert f"{path}: {why}" in err
        self.train(0, 1, self.deck("b", None), "--set", "eval.every_steps=0")
        assert "b: holds no valid step that was evaluated" in self.tool(5, "convert", "b", "lost", "--best")

    def test_a_folder_of_runs_is_told_from_a_run(self):
        for name in ("runs/a", "runs/b"):
            deck = self.deck("a", None)
            self.train(75, 1, deck, "--set", f"checkpoint.dir={self.path(name)}", "--stop-at", "1")
        os.mkdir(self.path("runs", "c"))
        named = "it holds runs, of which one is to be named: runs/a, runs/b"
        assert self.told("ls", "runs") == f"runs: holds no checkpoints; {named}\n"
        assert self.told("ls", "runs/c") == "runs/c: holds no checkpoints\n"
        assert self.tool(5, "inspect", "runs") == f"runs: is no checkpoint: {named}\n"
        for run, found in (("runs", "none"), ("runs/a", "1")):
            _, err = self.run_to_its_end(5, 1, "audit", run)
            assert err == f"{run}: holds {found}, and an audit needs two valid steps, or one and --from 0\n"

    def test_steps_are_removed_by_name_and_never_the_newest_valid_one(self):
        often = ["--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep_last=9"]
        self.train(0, 1, self.deck("a"), *often)
        self.train(0, 1, self.deck("a"), *often, "--resume", self.path("a", "step_00000004"))
        final, steps = self.final("a"), lambda: [(row["step"], row["abandoned"]) for row in self.tool(0, "ls", "a")]
        whole = [*((step, False) for step in range(1, 9)), *((step, True) for step in range(5, 9))]
        assert steps() == whole
        for code, said, arguments in ((2, "name steps to remove, or --abandoned", []), (5, "there is no step 9; it holds 1, 2,", ["2", "9"]),
                                      (5, "is the newest valid checkpoint", ["1", "8", "--abandoned"]), (2, "", ["two"]), (2, "", ["-1"])):
            assert said in self.tool(code, "rm", "a", *arguments)
        both = self.tool(5, "rm", "a", "8", "9")
        assert "no step 9" in both and "newest valid" in both, both
        assert self.tool(5, "rm", "gone", "1") == "gone: is no run directory\n"
        dry = self.tool(0, "rm", "a", "1", "3", "3", "--abandoned", "--dry-run")
        assert (steps(), dry["dry_run"]) == (whole, True)
        done = self.tool(0, "rm", "a", "1", "3", "--abandoned")
        assert (done["removed"], done["bytes"], done["dry_run"]) == (dry["removed"], dry["bytes"], False)
        assert steps() == [(step, False) for step in (2, 4, 5, 6, 7, 8)]
        assert len(self.json_lines("a", "abandoned-1_metrics.jsonl")) == 8
        # A damaged step protects the one before it.
        os.truncate(self.path("a", "step_00000008", "model.h5"), 100)
        assert "step_00000007: is the newest valid checkpoint" in self.tool(5, "rm", "a", "7", "8")
        self.tool(0, "rm", "a", "8")
        out, err = self.train(0, 1, self.deck("a"), *often)
        assert "step_00000007" in out
        assert (err, self.final("a")) == ("", final)
        assert not [name for name in os.listdir(self.path("a")) if name == "LOCK" or name.startswith(".trash")]

    def flip(self, *names):
        """Changes a bit of a step's weights, which opening it does not show."""
        path = self.path(*names, "model.h5")
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))

    def test_the_step_that_stays_is_read_before_others_are_removed(self):
        often = ["--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep_last=9"]
        self.train(75, 1, self.deck("a"), *often, "--stop-at", "4")
        steps = lambda: [row["step"] for row in self.tool(0, "ls", "a") if row["valid"]]
        self.flip("a", "step_00000004")
        for more in ([], ["--dry-run"], ["--abandoned"]):
            err = self.tool(5, "rm", "a", "1", "2", "3", *more)
            assert "step_00000003: is the newest valid checkpoint" in err
            assert re.search("a/step_00000004/model.h5: /model/.* holds other bytes than were saved", err)
        assert steps() == [1, 2, 3, 4]
        _, err = self.run_to_its_end(0, 1, "checkpoint", "rm", "a", "1")
        assert re.fullmatch("a/step_00000004/model.h5: /model/.* holds other bytes than were saved\n", err)
        self.flip("a", "step_00000003")
        self.flip("a", "step_00000002")
        err = self.tool(5, "rm", "a", "2", "3", "4")
        assert "a: no step from which the run could go on is sound, so nothing is removed" in err
        assert err.count("holds other bytes") == 3
        for step in (2, 3):
            self.flip("a", f"step_{step:08}")  # as it was
        _, err = self.run_to_its_end(0, 1, "checkpoint", "rm", "a", "2", "4")
        assert (err, steps()) == ("", [3])
        out, _ = self.train(0, 1, self.deck("a"), *often)
        assert "step_00000003" in out

    def test_nothing_is_removed_of_what_is_no_run(self):
        os.makedirs(self.path("empty"))
        self.train(75, 1, self.deck("a", None), "--set", f"checkpoint.dir={self.path('runs', 'a')}", "--stop-at", "1")
        for path, more in (("empty", ""), ("corpus.txt", ""), ("runs/a/step_00000001", ""), ("runs", ": it holds runs, of which one is to be named: runs/a")):
            for what in ("--abandoned", "1"):
                assert self.tool(5, "rm", path, what) == f"{path}: is no run directory{more}\n"
        assert os.listdir(self.path("empty")) == []

    def test_a_row_that_is_none_is_told_of_once(self):
        often = ["--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep_last=9", "--set", "eval.every_steps=1"]
        self.train(75, 1, self.deck("a"), *often, "--stop-at", "5")
        lines = self.read("a", "metrics.jsonl").splitlines(keepends=True)
        for number, garbage in ((2, "\0" * 30 + "\n"), (4, "\n"), (3, '{"stop": 3}\n')):
            broken = [*lines]
            broken[number - 1] = garbage
            self.write("a/metrics.jsonl", "".join(broken) + '{"step": 6, "lo')  # the last line as a killed run leaves it
            said = f"a/metrics.jsonl:{number}: is no row, and is passed over\n"
            for verb in (["checkpoint", "ls", "a"], ["compare", "a", "a", "--json"], ["checkpoint", "convert", "a", f"c{number}", "--best"]):
                _, err = self.run_to_its_end(0, 1, *verb)
                assert err == said, verb
            _, err = self.run_to_its_end(0, 2, "generate", "a", "--best", "--prompt", "the", "--tokens", "1")
            assert err == said
            _, err = self.run_to_its_end(0, 2, "eval", "a", "--best", "--text", "corpus.txt")
            assert err.count(said) == 1, err
        self.write("a/metrics.jsonl", "".join(lines) + '{"step": 6, "lo')
        assert self.run_to_its_end(0, 1, "checkpoint", "ls", "a")[1] == ""
        # A run drops the last lines; those between its rows stay, and its report is without them.
        self.write("a/metrics.jsonl", "".join([*lines[:1], "x\n", *lines[2:], "y\n"]))
        _, err = self.train(75, 2, self.deck("a"), *often, "--stop-at", "7")
        told = [f"{line}: is no row, and is {fate}" for line, fate in ((2, "passed over"), (6, "dropped"), (6, "passed over"))]
        assert sorted(err.splitlines()) == [self.path("a", "metrics.jsonl:") + line for line in told]
        assert [json.loads(line)["step"] for line in self.read("a", "metrics.jsonl").splitlines()[2:]] == [3, 4, 5, 6, 7]

    def test_paths_that_are_no_utf8(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        for name in ("one", "two"):
            shutil.copytree(self.path("a"), self.path(name + "\udcff"))
        for verb, *more in (["ls"], ["verify"], ["inspect"], ["diff", "two\udcff"], ["rm", "--abandoned"], ["convert", "three\udcff"],
                            ["convert", "four\udcff", "--to", "safetensors"]):
            told = self.tool(0, verb, "one\udcff", *more, errors="surrogateescape")
            assert verb not in ("ls", "convert") or "one\ufffd" in json.dumps(told, ensure_ascii=False)
        out, _ = self.run_to_its_end(5, 1, "checkpoint", "verify", "one\udcff/none", "--json")
        assert "one\ufffd" in json.loads(out)["failures"][0]
        for verb in (["compare", "one\udcff", "two\udcff", "--json"], ["quantize", "one\udcff", "--format", "fp8_tensor", "--out", "codes\udcff.h5", "--json"]):
            out, _ = self.run_to_its_end(0, 1, *verb)
            json.loads(out)

    def test_nothing_is_removed_while_a_run_trains_there(self):
        trace = runs.Paced(self.path("trace"))
        process = self.start(1, self.deck("a"), "--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep_last=9", "--set", f"debug.trace={self.path('trace')}")
        trace.until(3)
        assert "another run trains there" in self.tool(4, "rm", "a", "1")
        assert self.tool(0, "rm", "a", "1", "--dry-run")["removed"] == ["a/step_00000001"]
        trace.let_go()
        process.communicate(timeout=runs.PATIENCE)
        assert process.returncode == 0
        trace.all()
        assert self.tool(0, "rm", "a", "1")["removed"] == ["a/step_00000001"]

    def told(self, verb, *arguments):
        """A verb's output as text."""
        done = subprocess.run([self.tessera, "checkpoint", verb, *arguments], capture_output=True, text=True, timeout=runs.PATIENCE, cwd=self.folder)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def test_initial_weights_alone(self):
        self.train(0, 2, self.deck("zero"), "--set", "run.steps=0")
        assert self.tool(0, "inspect", "zero")["step"] == 0

    def test_other_ranks_and_layouts_have_the_same_digest(self):
        """Saved at step 3 by other ranks and in other layouts than those that came to step 3 with the same bits."""
        self.train(75, 3, self.deck("a"), "--stop-at", "3")
        for ranks, weights in ((1, "discrete"), (2, "single"), (4, "discrete")):
            target = f"r{ranks}"
            self.train(75, ranks, self.deck(target, weights), "--resume", "a", "--stop-at", "3")
            found = self.tool(0, "inspect", target)
            assert (found["step"], found["expert_layout"], found["content_digest"]) == (3, weights, self.final("a"))

    def test_h5py_reads_what_the_table_says(self):
        self.train(75, 2, self.deck("a", "discrete"), "--stop-at", "2")
        step = os.path.join(self.folder, "a", "step_00000002")
        content = 0
        for name, slots in (("model.h5", ["model"]), ("optimizer.h5", ["adamw/m", "adamw/v"])):
            with h5py.File(os.path.join(step, name)) as file:
                tensors = {}
                for slot in slots:
                    for key in file[slot]:
                        data = file[slot][key]
                        assert data.dtype == numpy.float32
                        canonical = data.attrs.get("canonical", key)
                        canonical = canonical.decode() if isinstance(canonical, bytes) else canonical
                        tensors.setdefault(f"/{slot}/{canonical}", {})[int(data.attrs.get("expert", 0))] = data[...]
                rows = file["integrity/table"][...]
                assert {row["name"].decode() for row in rows} == set(tensors)
                for row in rows:
                    parts = tensors[row["name"].decode()]
                    whole = numpy.concatenate([parts[e].ravel() for e in sorted(parts)])
                    assert digest(whole) == int(row["digest"])
                    assert whole.size == int(row["elements"])
                    assert numpy.isfinite(whole).all() and whole.size > 0
                    content += int(mix64(numpy.array([fnv1a64(row["name"].decode()) ^ int(row["digest"])], dtype=numpy.uint64))[0])
                if name == "model.h5":
                    assert set(file["counters"].attrs) == {"step", "skips_in_a_row", "tokens", "t", "beta1_power", "beta2_power"}
                    scalars = [("/counters/" + key, value) for key, value in file["counters"].attrs.items()]
                    scalars += [("/data/next_sample", file["data"].attrs["next_sample"]), ("/rng/seed", file["rng"].attrs["seed"])]
        for path, value in scalars:
            bits = numpy.array([value]).view(numpy.uint64)
            one = int(mix64(bits ^ numpy.uint64(0x9E3779B97F4A7C15))[0])
            content += int(mix64(numpy.array([fnv1a64(path) ^ one], dtype=numpy.uint64))[0])
        assert f"{content & MASK:016x}" == self.final("a")

    def test_h5py_finds_what_the_index_says(self):
        for layout in ("single", "discrete"):
            self.train(75, 2, self.deck(layout, layout), "--set", "model.tied_head=true", "--stop-at", "2")
            step = os.path.join(self.folder, layout, "step_00000002")
            with open(os.path.join(step, "manifest.json")) as manifest:
                structures = json.load(manifest)["structures"]
            assert sorted(structures) == ["model.h5", "optimizer.h5"]
            for name, said in structures.items():
                path, split = os.path.join(step, name), 0
                structure = numpy.fromfile(path, numpy.uint8).astype(numpy.uint64)
                inside = numpy.ones(structure.size, bool)
                with h5py.File(path) as file:
                    places = list(file["integrity/places"][...])
                    for row in file["integrity/table"][...]:
                        whole, members = row["name"].decode(), int(row["datasets"])
                        paths = [whole] if whole in file else [whole.replace(".experts.", f".experts.{e}.") for e in range(members)]
                        assert len(paths) == members
                        split += whole not in file
                        shape, axes = [int(n) for n in row["shape"] if n], row["axes"].decode()
                        for one in paths:
                            data = file[one]
                            assert data.id.get_offset() == places.pop(0)
                            assert list(data.shape) == (shape if one == whole else shape[1:])
                            assert data.attrs["axes"].decode() == (axes if one == whole else axes.removeprefix("expert,"))
                            assert (data.dtype, row["type"]) == (numpy.float32, b"f32")
                            assert data.attrs.get("tied_to", b"") == row["tied_to"]
                            inside[data.id.get_offset() : data.id.get_offset() + data.nbytes] = False
                assert places == []
                assert (split > 0) == (layout == "discrete")
                index = numpy.flatnonzero(inside).astype(numpy.uint64) + numpy.uint64(1)
                sums = mix64(structure[inside] ^ index * numpy.uint64(0x9E3779B97F4A7C15)).sum(dtype=numpy.uint64)
                assert f"{int(sums):016x}" == said

    def test_the_documents_lines_read_a_weight(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "2")
        step = self.path("a", "step_00000002")
        with h5py.File(os.path.join(step, "model.h5")) as file:
            saved = {name: file["model"][name][...] for name in file["model"]}
        use = documents.indented(documents.section(documents.read("docs/checkpoints.md"), "Reading one"))
        page = documents.fenced(documents.section(documents.read("io/checkpoint/FORMAT.md"), "Reading a weight"), "python")
        shows, reads = next(code for code in use if "h5py" in code), page[0]
        for lines in (shows, reads):
            named = self.path(re.search(r'File\("(.+)/model\.h5"\)', lines)[1])
            os.makedirs(os.path.dirname(named))
            os.symlink(step, named)
        weight = saved["layers.0.attention.qkv.weight"]
        assert documents.run(shows, self.folder)[1] == f"{weight.shape} float32 {weight[0, :4]}\n"
        numpy.testing.assert_array_equal(documents.run(reads, self.folder)[0]["weight"], saved["embed.tokens"])

    def test_the_format_page_names_all_that_files_hold(self):
        self.train(75, 2, self.deck("a", "discrete"), "--set", "model.tied_head=true", "--stop-at", "2")
        step = self.path("a", "step_00000002")
        page = documents.read("io/checkpoint/FORMAT.md")
        held = set()
        for name in ("model.h5", "optimizer.h5"):
            with h5py.File(os.path.join(step, name)) as file:
                held |= set(file.attrs) | {"/" + group for group in file} | {"/integrity/" + item for item in file["integrity"]} | set(file["integrity/table"].dtype.names)
                file.visititems(lambda path, item: held.update(item.attrs))
        with open(os.path.join(step, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        held |= set(manifest) | set(manifest["state"]) | set(os.listdir(step))
        assert {"tied_to", "canonical", "/provenance", "non_finite", "/rng/seed", "deck.yaml"} <= held
        assert [name for name in sorted(held) if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", page)] == []

    def test_weights_quantized_beside_the_masters(self):
        """quantized.h5 equals what `tessera quantize` makes of the step, changes nothing else, and is verified like all files."""
        sets = [item for key in ("model.hidden=128", "model.ffn=128", "precision.recipe=mxfp8") for item in ("--set", key)]
        self.train(75, 2, self.deck("a"), *sets, "--stop-at", "2")
        self.train(75, 2, self.deck("b", "discrete"), *sets, "--set", "checkpoint.quantized=true", "--stop-at", "2")
        plain, step = self.path("a", "step_00000002"), self.path("b", "step_00000002")
        assert self.tool(0, "inspect", plain)["content_digest"] == self.tool(0, "inspect", step)["content_digest"]
        assert set(os.listdir(step)) - set(os.listdir(plain)) == {"quantized.h5"}
        made = self.path("made.h5")
        subprocess.run([self.tessera, "quantize", step, "--out", made], check=True, capture_output=True)
        with open(made, "rb") as tool, open(os.path.join(step, "quantized.h5"), "rb") as run:
            assert tool.read() == run.read()
        assert self.tool(0, "verify", step)["ok"] == True
        with open(os.path.join(step, "quantized.h5"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        assert "quantized.h5: holds other bytes than were saved" in self.tool(5, "verify", step)["failures"][0]
        out, _ = self.train(0, 1, self.deck("b"), *sets)  # no run reads it
        assert "resumed from" in out

    def test_saves_while_training_goes_on(self):
        """Asynchronous saves: losses and states equal those of a run that waits for its saves, and each can be resumed. 40 steps of other cases, the last one dense: TESSERA_TEST_ASYNC=2:single,4:discrete,3:"""
        whole = [case.split(":") for case in os.environ.get("TESSERA_TEST_ASYNC", "").split(",") if case]
        steps = 40 if whole else 8
        sets = [item for key in (f"run.steps={steps}", "checkpoint.every_steps=2", "checkpoint.keep_every=1") for item in ("--set", key)]
        for ranks, weights in [(int(ranks), weights) for ranks, weights in whole] or [(2, "single")]:
            waits, goes_on, alone = (f"{name}{ranks}{weights}" for name in ("waits", "beside", "none"))
            self.train(0, ranks, self.deck(waits, weights), *sets, "--set", "checkpoint.io=direct")
            out, err = self.train(0, ranks, self.deck(goes_on, weights), *sets, "--set", "checkpoint.async=true")
            self.train(0, ranks, self.deck(alone, weights), *sets, "--set", "checkpoint.every_steps=0")
            assert err == ""
            assert re.search(r"saved \S*step_00000002 \| \w{16} \| \d+\.\d\d s, training waited \d+\.\d{3} s\n", out)
            assert self.rows(goes_on, steps) == self.rows(alone, steps)
            assert self.rows(waits, steps) == self.rows(alone, steps)
            blocked = [row.get("save_blocked_ms") for row in self.json_lines(goes_on, "metrics.jsonl")]
            assert blocked[0] is None
            assert blocked[2] > 0  # before step 3 a save began
            saved = [[(row["step"], row["content_digest"], row["valid"]) for row in self.tool(0, "ls", name)] for name in (waits, goes_on)]
            assert [row[0] for row in saved[0]] == list(range(2, steps + 1, 2))
            assert saved[1] == saved[0]
            assert self.tool(0, "verify", goes_on)["ok"] == True
            for step in range(2, steps, 2 if whole else 4):
                begins = self.path(goes_on, f"step_{step:08}")
                self.train(0, ranks, self.deck(f"{goes_on}-{step}", weights), *sets, "--set", "checkpoint.every_steps=0", "--resume", begins)
                assert self.final(f"{goes_on}-{step}") == saved[0][-1][1]

    def test_what_must_not_be_resumed(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "2")
        before = self.tool(0, "ls", "a")
        _, err = self.train(3, 1, self.deck("a"), "--set", "optimizer.beta1=0.8", "--set", "batch.global=24")
        assert "optimizer.beta1" in err
        assert "batch.global" in err
        _, err = self.train(5, 1, self.deck("a"), "--resume", "none")
        assert "--resume none" in err
        _, err = self.train(5, 1, self.deck("a"), "--resume", "nowhere")
        assert "nowhere" in err
        with open(os.path.join(self.folder, "corpus.txt"), "a") as file:
            file.write("one line more\n")
        _, err = self.train(5, 1, self.deck("a"))
        assert "corpus" in err
        assert self.tool(0, "ls", "a") == before

    def test_a_colon_in_the_run_directorys_name(self):
        """MPI-IO takes what precedes a colon for the kind of file system."""
        self.train(0, 2, self.deck("whole", ""))
        for name in ("lr:mpio", "ufs:direct"):
            settings = "--set", f"checkpoint.io={name.partition(':')[2]}"
            self.train(75, 2, self.deck(name, ""), *settings, "--stop-at", "4")
            self.train(0, 2, self.deck(name, ""), *settings)
            assert self.final(name) == self.final("whole")

    def test_a_line_end_in_the_name_of_what_is_resumed(self):
        self.train(0, 2, self.deck("whole", ""))
        self.train(75, 2, self.deck("a", ""), "--stop-at", "4")
        os.rename(self.path("a"), self.path("one\ntwo"))
        self.train(0, 2, self.deck("b", ""), "--resume", "one\ntwo")
        assert self.final("b") == self.final("whole")

    def test_damage_is_named_and_passed_over(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "4")
        newest = os.path.join(self.folder, "a", "step_00000004", "model.h5")
        with h5py.File(newest) as file:
            offset = file["model"]["layers.0.moe.router.weight"].id.get_offset()
        with open(newest, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 1]))
        report = self.tool(5, "verify", "a")
        assert report["ok"] == False
        assert "/model/layers.0.moe.router.weight" in report["failures"][0]
        _, err = self.train(0, 1, self.deck("a"))
        assert "layers.0.moe.router.weight" in err
        assert self.tool(0, "verify", "a")["ok"] == True
        for name in os.listdir(os.path.join(self.folder, "a")):
            if name.startswith("step_"):
                os.truncate(os.path.join(self.folder, "a", name, "optimizer.h5"), 100)
        _, err = self.train(5, 1, self.deck("a"))
        assert "holds no valid checkpoint" in err
