"""Changes of a resumed run by --allow-change, and steps that are skipped as spikes.
"""
import json
import math
import os
import re
import shutil
import subprocess

import runs

WINDOW = 128


class Changes(runs.Runs):
    def go(self, code, run, *arguments, ranks=2, source="base"):
        """A run of its own folder, from the last checkpoint of another one unless it has its own."""
        resume = [] if os.path.exists(self.path(run)) or source is None else ["--resume", self.path(source)]
        return self.train(code, ranks, self.deck(run, ""), *resume, *arguments)

    def base(self, *settings):
        """8 steps, 2 of them of warm-up."""
        self.go(0, "base", *settings, source=None)

    def rates(self, run):
        return {row["step"]: row["lr"] for row in self.json_lines(run, "metrics.jsonl")}

    def recorded(self, run):
        with open(self.path(run, "run.json")) as file:
            record = json.load(file)
        return {change["key"]: (change["before"], change["now"]) for change in record["changes"]}, record

    def test_a_decay_branches_off_a_constant_run(self):
        self.base("--set", "optimizer.schedule=constant")
        _, err = self.go(2, "branch", "--set", "optimizer.schedule=wsd", "--allow-change", "optimizer.shedule")
        assert "did you mean optimizer.schedule?" in err
        wsd = ["--set", "optimizer.schedule=wsd", "--set", "optimizer.decay_steps=4", "--set", "run.steps=12"]
        _, err = self.go(3, "branch", *wsd)
        for key in ("optimizer.schedule", "optimizer.decay_steps", "run.steps"):
            assert f"unless `train --allow-change {key}` lets it change" in err
        assert not os.path.exists(self.path("branch"))
        _, err = self.go(3, "branch", *wsd, "--allow-change", "run.steps")
        assert "--allow-change run.steps" not in err
        assert "--allow-change optimizer.schedule" in err
        allowed = ["--allow-change", "run.steps,optimizer.schedule", "--allow-change", "optimizer.decay_steps"]
        out, _ = self.go(75, "branch", *wsd, *allowed, "--stop-at", "10")
        assert "changed after step 8:" in out
        assert "learning rate: step 9 has 0.0075, and had 0.01 before the change; the last one, 12, has 0" in out
        changes, record = self.recorded("branch")
        assert changes == {"run.steps": ("8", "12"), "optimizer.schedule": ("constant", "wsd"), "optimizer.decay_steps": ("0", "4")}
        self.go(0, "branch", *wsd)  # changed once, and for good
        assert self.recorded("branch")[0] == {}
        assert [start["changes"] != [] for start in self.recorded("branch")[1]["starts"]] == [True, False]
        for step, rate in zip(range(9, 13), (0.0075, 0.005, 0.0025, 0)):
            assert round(abs(self.rates("branch")[step] - rate), 6) == 0
        # A run in two parts equals the run in one part.
        self.go(0, "whole", *wsd, *allowed)
        assert self.final("whole") == self.final("branch")
        self.compared("base", "branch")
        if h5py := self.h5py():
            with h5py.File(self.path("branch", "step_00000012", "model.h5")) as file:
                lines = file["provenance"].attrs["changes"].decode().split("\n")
            assert lines == ["step 8: optimizer.decay_steps: 0 -> 4", "step 8: optimizer.schedule: constant -> wsd", "step 8: run.steps: 8 -> 12", ""]

    def test_a_run_that_ended_goes_on_from_its_last_rate(self):
        """Its schedule has no rate behind its last step: of a warm-up over all steps it would be none at all, of a cosine one that rises."""
        for name, warmup, before in (("warm", 8, "0.01"), ("cosine", 2, "0")):
            schedule = ["--set", f"optimizer.warmup_steps={warmup}", "--set", "optimizer.schedule=cosine"]
            self.go(0, name, *schedule, source=None)
            out, _ = self.go(75, name, *schedule, "--set", "run.steps=16", "--allow-change", "run.steps", "--stop-at", "9")
            assert re.search(f"learning rate: step 9 has [0-9.e-]+, and had {before} before the change; the last one, 16, has 0\n", out), out

    def test_changes_count_from_the_checkpoint_that_is_resumed(self):
        """Not from a newer one that proves damaged."""
        self.base()
        self.go(0, "run", "--set", "run.steps=12", "--allow-change", "run.steps")
        self.go(0, "run", "--set", "run.steps=16", "--allow-change", "run.steps", "--set", "checkpoint.every_steps=4")
        payload = self.path("run", "step_00000016", "model.h5")
        with open(payload, "r+b") as file:
            file.seek(os.path.getsize(payload) // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 64]))
        _, err = self.go(3, "run", "--set", "run.steps=16")
        assert "trying the checkpoint before" in err
        assert "unless `train --allow-change run.steps` lets it change" in err
        out, _ = self.go(0, "run", "--set", "run.steps=20", "--allow-change", "run.steps")
        assert "changed after step 12: run.steps 12 -> 20" in out
        assert self.recorded("run")[0] == {"run.steps": ("12", "20")}

    def compared(self, *run_names):
        told = json.loads(self.compare(*run_names, "--json")[0])
        assert not os.path.exists(self.path("compare.html")), "a page that nobody asked for"
        assert self.compare(*run_names, "--json", "--out", "compare.html")[1] == ""
        assert told["differing"] == ["optimizer.decay_steps", "optimizer.schedule", "run.steps"]
        assert [run["settings"]["run.steps"] for run in told["runs"]] == ["8", "12"]
        assert [run["step"] for run in told["runs"]] == [8, 12]
        for text in ("branch", "optimizer.schedule", "Throughput"):
            assert text in self.read("compare.html")
        os.remove(self.path("compare.html"))
        done = subprocess.run([self.tessera, "compare", "base", "nothing"], capture_output=True, text=True, timeout=60, cwd=self.folder)
        assert done.returncode == 5
        assert "nothing: is no run directory" in done.stderr
        assert not os.path.exists(self.path("compare.html"))
        for name in run_names:  # pages of runs: the deck and the saves
            for text in ("<summary>Deck</summary>", 'class="save"', "windows of 32 tokens"):
                assert text in self.read(name, "report.html")

    def compare(self, *arguments):
        done = subprocess.run([self.tessera, "compare", *arguments], capture_output=True, text=True, timeout=60, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def test_no_page_of_other_runs_is_replaced_without_a_word(self):
        self.go(75, "a", "--stop-at", "1", source=None)
        for name in ("b", "c"):
            shutil.copytree(self.path("a"), self.path(name))
        pages = lambda: {name: self.read(name) for name in os.listdir(self.folder) if name.endswith(".html")}
        kept = {}
        for number, names in enumerate((["a", "b"], ["c"], ["a", "b", "c"], ["b"]), 1):
            page = "compare.html" if number == 1 else f"compare-{number}.html"
            out, err = self.compare(*names)
            assert out.splitlines()[-1] == page
            assert ("compare.html shows other runs" in err) == (number > 1)
            assert {name: text for name, text in pages().items() if name != page} == kept
            for again in (names, names[::-1], ["./" + name + "/" for name in names]):  # the same set: its page anew
                assert self.compare(*again)[0].splitlines()[-1] == page
                assert sorted(pages()) == sorted([*kept, page])
            kept = pages()
        self.compare("b", "c", "--json")
        assert pages() == kept
        assert "compare.html: in place of a page of other runs: a, b" in self.compare("b", "c", "--out", "compare.html")[1]
        assert self.compare("b", "c", "--out", "compare.html")[1] == ""
        self.write("compare-5.html", "notes")
        self.write("compare.html", "notes")
        done = subprocess.run([self.tessera, "compare", "a", "c"], capture_output=True, text=True, timeout=60, cwd=self.folder)
        assert done.returncode == 2
        assert "another kind of file" in done.stderr

    def test_a_run_that_was_moved_or_copied_is_told_how_to_go_on(self):
        self.go(75, "run", "--stop-at", "2", source=None)
        shutil.copytree(self.path("run"), self.path("copy"))
        os.makedirs(self.path("deep"))
        shutil.move(self.path("run"), self.path("deep", "moved"))
        step = "step_00000002"
        for deck in ("copy/deck.resolved.yaml", f"copy/{step}/deck.yaml", "deep/moved/deck.resolved.yaml", f"deep/moved/{step}/deck.yaml"):
            place = deck.split("/deck")[0].removesuffix("/" + step)
            with self.subtests.test(deck=deck):
                said = self.validate(deck)
                assert (f"the deck lies in the run directory {place}: to go on with the run that is there, add --set checkpoint.dir={place} (allowed)"
                        in said)
                assert "lies in the run directory" not in self.validate(deck, "--set", f"checkpoint.dir={place}")
                assert "lies in the run directory" not in self.validate(deck, "--set", "checkpoint.dir=elsewhere")
        _, err = self.train(75, 1, self.path("copy", "deck.resolved.yaml"), "--stop-at", "1")
        assert "add --set checkpoint.dir=copy (allowed)" in err
        out, err = self.train(75, 1, self.path("copy", "deck.resolved.yaml"), "--stop-at", "3", "--set", "checkpoint.dir=copy")
        assert "resumed from" in out
        assert "lies in the run directory" not in err
        assert "lies in the run directory" not in self.validate("run/deck.resolved.yaml"), "in its own place"

    def validate(self, *arguments):
        done = subprocess.run([self.tessera, "validate", *arguments], capture_output=True, text=True, timeout=60, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def test_a_run_goes_on_with_larger_batches(self):
        self.base()
        larger = ["--set", "batch.global=24", "--set", "run.steps=10"]
        out, _ = self.go(0, "larger", *larger, "--allow-change", "batch.global,run.steps")
        assert "samples: none is left out, 24 of a step from sample 96 on" in out
        rows = self.json_lines("larger", "metrics.jsonl")
        assert [row["tokens"] for row in rows] == [(96 + 24) * 32, (96 + 48) * 32]
        # The samples continue in the same order: a run with batches of 12 sees the same ones in twice as many steps.
        told = self.tool(0, "inspect", "larger")
        assert (told["step"], told["tokens"]) == (10, 144 * 32)
        self.go(75, "parts", *larger, "--allow-change", "batch.global,run.steps", "--stop-at", "9")
        self.go(0, "parts", *larger, ranks=3)
        assert self.tool(0, "inspect", "parts")["tokens"] == told["tokens"]
        self.go(75, "again", *larger, "--allow-change", "batch.global,run.steps", "--stop-at", "9")
        self.go(0, "again", *larger)
        assert self.final("again") == self.final("larger")
        _, err = self.go(3, "shorter", "--set", "run.steps=5", "--allow-change", "run.steps")
        assert "run.steps: is 5, and 8 steps are done in" in err

    def test_another_rate_is_told_of(self):
        self.base()
        out, _ = self.go(0, "rate", "--set", "optimizer.lr=0.03", "--set", "run.steps=10", "--allow-change", "run.steps")
        assert re.search(r"changed after step 8: optimizer\.lr \S+ -> 0\.03;", out)
        assert self.recorded("rate")[0]["optimizer.lr"][1] == "0.03"

    def resumed(self, run, ranks, *settings, moe=False):
        """Steps 7 and 8 behind step 6 of the run "base" or "moe": what is told and recorded as changed, and the final digest."""
        words = [word for setting in settings for word in ("--set", setting)]
        out, _ = self.train(0, ranks, self.deck(run, "single" if moe else None), "--resume", self.path("moe" if moe else "base"), *words)
        told = re.findall(r"^changed after step 6: (.*)$", out, re.MULTILINE)
        return "".join(told), self.recorded(run)[0], self.final(run)

    def test_other_sums_are_told_of(self):
        """The micro-batch, the order of sums and what that follows from; where no bit changes nothing is told."""
        self.go(75, "base", "--stop-at", "6", source=None)
        self.train(75, 2, self.deck("moe"), "--stop-at", "6")
        same, same_moe = self.resumed("same", 2), self.resumed("same_moe", 2, moe=True)
        assert same[:2] == same_moe[:2] == ("", {})
        for number, (key, before, now, *moe) in enumerate((("batch.micro", 1, 2), ("reduce.order", "rank", "batch"), ("sharding", "optimizer", "full"),
                                                           ("precision.fuse_wgrad", "true", "false"), ("parallel.expert", 1, 2, "moe"))):
            told, recorded, digest = self.resumed(f"other{number}", 2, f"{key}={now}", moe=bool(moe))
            assert (told, recorded) == (f"{key} {before} -> {now}", {key: (str(before), str(now))})
            assert digest != (same_moe if moe else same)[2], key
        assert self.resumed("three", 3)[:2] == ("ranks 2 -> 3", {"ranks": ("2", "3")})
        order = ("reduce.order=batch",)
        in_order = self.resumed("in_order", 2, *order)
        self.train(75, 2, self.deck("more", None), "--resume", self.path("in_order", "step_00000006"), "--set", "reduce.order=batch", "--stop-at", "7")
        for name, ranks, settings in (("ranks", 3, order), ("full", 2, (*order, "sharding=full"))):
            out, _ = self.train(0, ranks, self.deck(name, None), "--resume", self.path("more"), *(w for s in settings for w in ("--set", s)))
            assert "changed after" not in out
            assert (self.recorded(name)[0], self.final(name)) == ({}, in_order[2]), name

    def test_a_run_goes_on_with_more_data(self):
        self.base()
        self.write("more.txt", runs.CORPUS[::-1])
        _, err = self.go(5, "more")
        assert "unless `train --allow-change data.files` lets it change" in err
        out, _ = self.go(0, "more", "--set", "run.steps=10", "--allow-change", "data.files,run.steps")
        assert "changed after step 8: run.steps 8 -> 10; data.files corpus " in out
        assert "windows may come again" in out
        assert sorted(self.recorded("more")[0]) == ["data.files", "run.steps"]
        self.go(0, "more", "--set", "run.steps=10")

    def test_what_no_run_can_change_is_refused(self):
        self.base()
        for keys, text in (("model.hidden", "cannot change in a resumed run"), ("data", "is a section"),
                           ("run.steps,run.steps", "is named twice"), ("nothing", "unknown key")):
            _, err = self.go(2, "none", "--allow-change", keys)
            assert err.count(text) == 1, err
            assert not os.path.exists(self.path("none"))
        _, err = self.go(3, "none", "--set", "model.hidden=64", "--set", "model.heads=8", "--allow-change", "run.steps")
        assert "--allow-change model" not in err

    @staticmethod
    def h5py():
        try:
            import h5py
        except ImportError:
            return None
        return h5py


class Spikes(runs.Runs):
    SETTINGS = ["--set", "optimizer.skip_spikes=0.5", "--set", "optimizer.schedule=constant", "--set", "optimizer.lr=1e-5", "--set", "run.steps=140",
                "--set", "eval.every_steps=67", "--set", "checkpoint.every_steps=0", "--set", "model.layers=1", "--set",
                "batch.global=6"]

    def expected(self, rows):
        """The steps whose norm is more than 0.5 deviations above the mean of the window, computed in double."""
        norms = [row["grad_norm"] for row in rows]
        spikes = []
        for at in range(WINDOW + 1, len(norms)):
            window = norms[at - 1 - WINDOW:at - 1]
            mean = sum(window) / WINDOW
            deviation = math.sqrt(sum((norm - mean) ** 2 for norm in window) / WINDOW)
            if norms[at] > mean + 0.5 * deviation:
                spikes.append(at + 1)
        return spikes

    def test_spikes_are_skipped_the_same_in_parts_and_on_all_ranks(self):
        self.train(0, 2, self.deck("whole", ""), *self.SETTINGS)
        rows = self.json_lines("whole", "metrics.jsonl")
        spikes = [row["step"] for row in rows if row["spike"]]
        assert [row["step"] for row in rows if row["skipped"]] == spikes
        assert spikes == self.expected(rows)
        assert 0 < len(spikes) < 11, spikes
        self.train(75, 2, self.deck("parts", ""), *self.SETTINGS, "--stop-at", str(spikes[0] - 1))
        self.train(75, 2, self.deck("parts", ""), *self.SETTINGS, "--stop-at", str(spikes[0]))
        self.train(0, 2, self.deck("parts", ""), *self.SETTINGS)
        assert self.rows("parts", 140) == self.rows("whole", 140)
        assert self.final("parts") == self.final("whole")
        assert f"{len(spikes)} spike" in self.read("whole", "report.html")
        # A run without skip_spikes skips none, and its checkpoints have no norms; switched on later, it first collects
        # 128.
        assert self.tool(0, "verify", "whole")["failures"] == []
        self.train(75, 1, self.deck("later", ""), *self.SETTINGS, "--set", "optimizer.skip_spikes=0", "--stop-at", "100")
        self.train(0, 1, self.deck("later", ""), *self.SETTINGS)
        assert not any(row["skipped"] for row in self.json_lines("later", "metrics.jsonl"))
