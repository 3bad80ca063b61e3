"""What is seen of each start of a run: on the console, in run.json and report.html, and in debug.trace.
"""
import html
import json
import os
import random
import re
import shutil
import signal

import runs


class Starts(runs.Runs):
    def page(self, directory):
        """Facts and starts of report.html: {label: text}, and the rows' cells."""
        text = self.read(directory, "report.html")
        facts = {html.unescape(label): html.unescape(value) for label, value in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)}
        rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr><th>(?=\d).*?</tr>", text)]
        return facts, [list(map(html.unescape, row)) for row in rows]

    def starts(self, directory):
        return json.loads(self.read(directory, "run.json"))["starts"]

    def killed(self, rows, *arguments):
        """Trains, and kills the run by SIGKILL after so many rows of its trace."""
        trace = runs.Paced(self.path("pipe"))
        process = self.start(1, self.deck("a"), *arguments, "--set", f"debug.trace={self.path('pipe')}")
        trace.until(rows)
        os.kill(self.rank_of(), signal.SIGKILL)
        trace.let_go()
        process.communicate(timeout=runs.PATIENCE)
        trace.all()
        os.remove(self.path("pipe"))

    def test_each_start_tells_how_it_went(self):
        every = ["--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_last=2", "--set", "checkpoint.keep_every=4"]
        self.train(75, 2, self.deck("a"), *every, "--stop-at", "5")
        self.killed(2, *every, "--set", "run.steps=1000", "--allow-change", "run.steps")
        reached = self.json_lines("a", "metrics.jsonl")[-1]["step"]
        assert "end" not in self.starts("a")[1]
        end = self.page("a")[0]["end"]
        assert re.search(r"^still running at (\S+ \S+) UTC, .* a page that has not changed by (\S+ \S+) UTC is stale", end)
        now, stale = re.findall(r"(\d{4}-\S+ \S+) UTC", end)
        assert now < stale
        self.train(75, 1, self.deck("a"), *every, "--resume", self.path("a", "step_00000004"), "--set", "optimizer.lr=0.005", "--stop-at", "7")
        facts, rows = self.page("a")
        steps = [row[1] for row in rows]
        assert [row[0] for row in rows] == ["1", "2", "3"]
        assert (steps[0], steps[2]) == ("1 to 5", "5 to 7")
        assert re.search(r"^6 to \d+$", steps[1])
        assert int(steps[1].split()[-1]) >= min(reached, 7)
        assert ([row[4] for row in rows]
                == ["stopped after step 5 of 8 (--stop-at)", "without a word: killed, or its machine", "stopped after step 7 of 8 (--stop-at)"])
        assert re.search(r"^back from step \d+ to 4; from \S+/a/step_00000004; .*optimizer.lr: 0.01 -> 0.005", rows[2][5])
        assert rows[0][3].startswith("2 ranks of 1 thread on ") and rows[2][3].startswith("1 rank of 1 thread on "), rows
        # Saves: all that were made by any start, those that are still there apart.
        assert self.starts("a")[0]["saves"] == [2, 4, 5]
        assert self.starts("a")[2]["saves"] == [6, 7]
        assert 'class="removed"' in self.read("a", "report.html")
        assert facts["newest checkpoint"] == "step 7, digest " + self.final("a")
        assert facts["directory"].endswith(":" + self.path("a"))
        assert f"<h1>small: {self.path('a')}</h1>" in self.read("a", "report.html")
        for chart in ("Balance loss", "Router z loss", "Time by region, start 3"):
            assert chart in self.read("a", "report.html")
        assert "formula" not in facts

    def test_lines_of_the_console(self):
        draw = random.Random(11)
        for number in range(4):
            name, every, steps = f"c{number}", draw.choice([1, 2, 3, 5, 50]), draw.randint(6, 11)
            out, _ = self.train(0, 1, self.deck(name, None), "--set", f"run.log_every={every}", "--set", f"run.steps={steps}", "--set", "eval.every_steps=0")
            lines = [(int(step), time, unit, rate) for step, time, unit, rate in re.findall(r"^step (\d+)/.* \| (\S+) (m?s) \| (\S+) tok/s", out, re.M)]
            assert [line[0] for line in lines] == sorted({1, steps, *range(every, steps + 1, every)}), (every, steps)
            rows, before = self.json_lines(name, "metrics.jsonl"), 0
            for step, time, unit, rate in lines:
                since = [row["step_ms"] for row in rows[before:step]]
                mean, shown = sum(since) / len(since), float(time) * (1000 if unit == "s" else 1)
                assert abs(shown / mean - 1) <= 0.06, (step, since)
                tokens = float(rate.rstrip("kMG")) * {"k": 1e3, "M": 1e6, "G": 1e9}.get(rate[-1], 1)
                assert abs(tokens / (12 * 32 / mean * 1e3) - 1) <= 0.06, (step, since)
                before = step

    def test_a_trace_keeps_the_rows_of_every_start(self):
        trace = ["--set", f"debug.trace={self.path('trace.jsonl')}"]
        self.train(0, 2, self.deck("whole"), *trace)
        whole = [{key: value for key, value in row.items() if key != "overlapped"} for row in self.json_lines("trace.jsonl")]
        for stop in (2, 5, 7):  # the first start of a run replaces the file of another run
            self.train(75, 2, self.deck("a"), *trace, "--stop-at", str(stop))
        self.train(0, 2, self.deck("a"), *trace)
        parts = [f"trace.jsonl{end}" for end in (".1", ".2", ".3", "")]
        rows = [[{key: value for key, value in row.items() if key != "overlapped"} for row in self.json_lines(part)] for part in parts]
        assert [[row["step"] for row in part] for part in rows] == [[1, 2], [3, 4, 5], [6, 7], [8]]
        assert sum(rows, []) == whole
        assert not os.path.exists(self.path("trace.jsonl.4"))

    def test_rows_of_checkpoints_that_are_gone_are_set_aside(self):
        deck = self.deck("a", None)
        self.train(75, 1, deck, "--stop-at", "4")
        rows = self.read("a", "metrics.jsonl")
        for name in os.listdir(self.path("a")):
            if name.startswith("step_"):
                shutil.rmtree(self.path("a", name))
        out, _ = self.train(75, 1, deck, "--set", "optimizer.lr=0.02", "--stop-at", "2")
        assert ("its checkpoints are gone, so the run begins anew; rows of the run before are set aside: abandoned-1_metrics.jsonl\n") in out
        assert self.read("a", "abandoned-1_metrics.jsonl") == rows
        assert [row["step"] for row in self.json_lines("a", "metrics.jsonl")] == [1, 2]
        out, _ = self.train(0, 1, deck, "--set", "optimizer.lr=0.02")  # and the run goes on as others do
        assert "set aside" not in out
        assert len(self.json_lines("a", "metrics.jsonl")) == 8
        assert not os.path.exists(self.path("a", "abandoned-2_metrics.jsonl"))
