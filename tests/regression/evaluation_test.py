"""What an evaluation takes: windows drawn from all files, equal on any number of ranks and after a resume; every token of a text;
and what is told where weights or tokens are of another kind.
"""
import gzip
import json
import math
import os
import random
import re
import shutil
import subprocess

import runs

DECK = """schema_version: 1
run: {name: small, steps: 4, threads: 1}
model: {layers: 1, hidden: 32, heads: 2, seq_len: LENGTH, norm: rms, activation: swiglu, position: rotary, ffn: 32}
data: {files: ["f*.txt"], eval_fraction: FRACTION}
batch: {global: 12, micro: MICRO}
eval: {every_steps: 2, batches: 2}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: run, every_steps: 2, io: direct}
"""


def words(draws, size):
    """So many bytes of text, of one to four bytes a character."""
    text, alphabet = "", "abcdefgh     \n,.é中𝄞"
    while len(text.encode()) < size:
        text += draws.choice(alphabet)
    return text


class Evaluations(runs.Runs):
    def setup_method(self):
        super().setup_method()
        self.draws = random.Random(self.name)
        os.remove(self.path("corpus.txt"))

    def corpus(self, files, least=200, most=3000):
        for i in range(files):
            self.write(f"f{i:03}.txt", words(self.draws, self.draws.randint(least, most)))

    def words_deck(self, length=16, fraction=0.1, micro=2):
        return self.write("deck.yaml", DECK.replace("LENGTH", str(length)).replace("FRACTION", str(fraction)).replace("MICRO", str(micro)))

    def validated(self, *settings, code=0):
        done = self.call(code, "validate", "deck.yaml", *(word for one in settings for word in ("--set", one)))
        return done.stdout if code == 0 else done.stderr

    def call(self, code, *arguments, text=None):
        """The program by itself."""
        done = subprocess.run([self.tessera, *arguments], cwd=self.folder, input=text, capture_output=True, text=True, check=False,
                              timeout=runs.PATIENCE, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == code, (arguments, done.stdout[-500:], done.stderr)
        return done

    def evaluate(self, ranks, *arguments):
        out, err = self.run_to_its_end(0, ranks, "eval", *arguments, "--json")
        return json.loads(out), err


class Drawn(Evaluations):
    def test_the_loss_is_equal_on_any_ranks_and_after_a_resume(self):
        for ranks in (1, 3):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            self.corpus(self.draws.randint(2, 30))
            deck = self.words_deck(self.draws.choice((8, 16, 33)), self.draws.choice((0.03, 0.1, 0.4)), self.draws.choice((1, 2)))
            settings = ("--set", f"data.eval_seed={self.draws.randint(0, 99)}")
            self.train(75, ranks, deck, *settings, "--stop-at", "2")
            self.train(0, ranks, deck, *settings)
            rows = {row["step"]: row["eval_loss"] for row in self.json_lines("run", "metrics.jsonl") if "eval_loss" in row}
            assert sorted(rows) == [2, 4]
            for step, loss in rows.items():
                for others in (1, 2, 3, 4) if step == 4 else (2,):
                    found, err = self.evaluate(others, deck, *settings, "--checkpoint", f"run/step_{step:08}")
                    assert (found["eval_loss"], err) == (loss, "")
            for changed in ("data.eval_seed=100", "data.eval_fraction=0.5", "data.eval_windows=tail"):
                found, err = self.evaluate(1, deck, *settings, "--set", changed, "--checkpoint", "run")
                assert re.search(r"WARNING: these weights were trained on other windows of this corpus \(data\.eval_\w+ \S+ there, \S+ here", err)

    def test_counts_and_few_files_are_said(self):
        self.corpus(60, 900, 1100)
        self.words_deck()
        drawn, tail = self.validated(), self.validated("data.eval_windows=tail")
        pattern = r"eval: 24 of (\d+) windows, 384 tokens, from (\d+) of 60 files"
        kept, files = map(int, re.search(pattern, drawn).groups())
        assert kept > 300
        assert files > 12
        assert "WARNING" not in drawn
        few = int(re.search(pattern, tail)[2])
        assert re.search(rf"WARNING: the evaluated windows come from {few} of 60 files, and drawn ones would from \d\d", tail)
        self.write("held.yaml", self.read("deck.yaml").replace("eval_fraction: 0.1", "eval_files: [g*.txt]"))
        for i in range(40):
            self.write(f"g{i:02}.txt", words(self.draws, 1000))
        for windows, least, most in (("drawn", 10, 24), ("tail", 1, 1)):
            out = self.call(0, "validate", "held.yaml", "--set", f"data.eval_windows={windows}").stdout
            assert ("WARNING" in out) == (windows == "tail")
            assert least <= int(re.search(r"from (\d+) of 40 files", out)[1]) <= most
        self.train(0, 1, "deck.yaml", "--set", "run.steps=2")
        assert "eval: 24 of" in self.read("run", "report.html")

    def test_a_resume_keeps_its_windows_or_tells(self):
        self.corpus(20)
        deck = self.words_deck()
        first, _ = self.train(75, 2, deck, "--set", "data.eval_windows=tail", "--stop-at", "2")
        self.train(0, 2, deck, "--set", "data.eval_windows=tail", "--set", "checkpoint.dir=whole")
        # A deck that leaves the key open, as one of before, goes on with what the weights were trained with.
        out, _ = self.train(0, 2, deck)
        assert "data.eval_windows: tail, as the weights were trained" in out
        assert self.tool(0, "inspect", "run")["content_digest"] == self.tool(0, "inspect", "whole")["content_digest"]
        assert self.json_lines("run", "metrics.jsonl")[-1]["eval_loss"] == self.json_lines("whole", "metrics.jsonl")[-1]["eval_loss"]
        found, err = self.evaluate(1, deck, "--checkpoint", "run")
        assert found["eval_loss"] == self.json_lines("run", "metrics.jsonl")[-1]["eval_loss"]
        assert "as the weights were trained" in err
        longer = ("--set", "run.steps=5", "--allow-change", "run.steps")
        for setting in ("data.eval_windows=drawn", "data.eval_seed=7", "data.eval_fraction=0.3"):
            key = setting.split("=")[0]
            _, err = self.train(3, 2, deck, *longer, "--set", setting)
            assert f"{key}: is " in err
        out, _ = self.train(0, 2, deck, *longer, "--set", "data.eval_windows=drawn", "--allow-change", "data.eval_windows")
        assert "evaluation: windows that steps up to 4 were trained on may be among those evaluated now" in out
        out, _ = self.train(0, 2, deck, "--set", "run.steps=6", "--allow-change", "run.steps", "--set", "data.eval_windows=drawn", "--set", "eval.batches=1")
        assert "eval.batches 2 -> 1" in out


class Texts(Evaluations):
    def setup_method(self):
        super().setup_method()
        self.corpus(3)
        self.deck_path = self.words_deck(16, 0.1, 2)
        self.train(0, 1, self.deck_path, "--set", "checkpoint.every_steps=0")

    def test_every_token_but_the_first_is_predicted_once(self):
        for _ in range(3):
            text = words(self.draws, self.draws.randint(20, 200))
            size = len(text.encode())
            self.write("t.txt", text)
            found, _ = self.evaluate(1, "run", "--text", "t.txt")
            assert (found["eval_tokens"], found["eval_windows"], found["eval_bytes"]) == (size - 1, -(-(size - 1) // 16), size - 1)
            assert round(abs(found["perplexity"] - math.exp(found["eval_loss"])), 2) == 0
            assert round(abs(found["bits_a_byte"] * math.log(2) - found["eval_loss"]), 4) == 0
            for ranks in (2, 3, 4):
                assert self.evaluate(ranks, "run", "--text", "t.txt")[0] == found

    def test_experts_and_full_sharding(self):
        """Whatever the ranks of the run held, any number of ranks finds the same."""
        self.write("moe.yaml", self.read("deck.yaml").replace("ffn: 32", "ffn: 32, moe: {experts: 4, top_k: 2}"))
        self.write("t.txt", words(self.draws, 150))
        for settings in (["--set", "parallel.expert=2"], ["--set", "sharding=full"]):
            shutil.rmtree(self.path("run"))
            self.train(0, 2, "moe.yaml", *settings)
            found = [self.evaluate(ranks, "run", "--text", "t.txt")[0] for ranks in (1, 2, 3, 4)]
            assert found == found[:1] * 4

    def test_windows_add_up_to_the_text(self):
        """The last, shorter window is the text that begins with it; whole ones are those of an evaluation of the file."""
        text = "".join(self.draws.choice("abc def\n") for _ in range(16 * 5 + 8))
        parts = {"whole.txt": text, "long.txt": text[:81], "rest.txt": text[80:]}
        losses = {}
        for name, part in parts.items():
            self.write(name, part)
            losses[name] = self.evaluate(1, "run", "--text", name)[0]
        total = sum(losses[name]["eval_loss"] * losses[name]["eval_tokens"] for name in ("long.txt", "rest.txt"))
        assert round(abs(losses["whole.txt"]["eval_loss"] * 87 - total), 3) == 0
        exact, _ = self.evaluate(1, "run", "--text", "rest.txt", "--set", "model.seq_len=7")  # 7 targets without padding
        assert exact["eval_tokens"] == losses["rest.txt"]["eval_tokens"]
        assert round(abs(losses["rest.txt"]["eval_loss"] - exact["eval_loss"]), 4) == 0
        held, _ = self.evaluate(1, self.deck_path, "--checkpoint", "run", "--set", "data.eval_fraction=0", "--set", "data.eval_files=[long.txt]",
                                "--set", "data.eval_windows=tail")
        assert held["eval_loss"] == losses["long.txt"]["eval_loss"]

    def test_ways_to_name_model_and_text(self):
        self.write("t.txt", "a text of some length, and more")
        said = {self.call(0, "eval", model, "--text", "t.txt").stdout for model in ("run", "run/step_00000004", "deck.yaml")}
        said.add(self.call(0, "eval", "run", "--text", "-", text=self.read("t.txt")).stdout)
        assert len(said) == 1, said
        assert re.search(r"^step 4 \| eval_loss \S+ \| perplexity \S+ \| \S+ bits a byte \| 2 windows, 30 of 31 tokens, 30 bytes \| recipe bf16 \| ", said.pop())
        other = self.call(0, "eval", "run", "--text", "t.txt", "--set", "precision.recipe=mxfp8").stdout
        assert "recipe mxfp8 (the checkpoint's is bf16)" in other
        os.link(self.path("f001.txt"), self.path("other.txt"))
        for name in ("f000.txt", "other.txt"):  # nothing is trained: told, not refused
            done = self.call(0, "eval", "deck.yaml", "--checkpoint", "run", "--set", "data.eval_fraction=0", "--set", f"data.eval_files=[{name}]")
            assert re.search(rf"WARNING: .*{name} is trained on too", done.stderr)
        for i in range(3):
            os.remove(self.path(f"f{i:03}.txt"))  # needs no corpus
        self.call(0, "eval", "run", "--text", "t.txt")

    def test_what_is_no_text_is_refused(self):
        self.write("t.txt", "some text, of which there is enough")
        with open(self.path("packed.txt"), "wb") as file:
            file.write(gzip.compress(b"text" * 100))
        for name, content in (("empty", b""), ("one", b"a"), ("latin", b"caf\xe9 " + b"plain " * 300), ("cut", "中".encode()[:2]), ("nul", b"a\0b" * 9),
                              ("wide", "text in UTF-16".encode("utf-16"))):
            with open(self.path(name), "wb") as file:
                file.write(content)
        os.mkfifo(self.path("pipe"))
        os.symlink("nowhere", self.path("link"))
        for code, name, said in ((5, "empty", "is empty"), (5, "one", "is one token long"), (5, "latin", "is no UTF-8 from its byte 3 on"),
                                 (5, "cut", "UTF-8"), (5, "nul", "is binary"), (5, "wide", "is text in UTF-16"), (5, "packed.txt", "is compressed by gzip"),
                                 (5, "pipe", "is a pipe or device"), (5, "link", "is a link to nowhere, which is not there"), (5, "run", "is a folder"),
                                 (5, "gone", "is not there")):
            err = self.call(code, "eval", "run", "--text", name).stderr
            assert f"--text {name}: " in err
            assert said in err
        assert "--text standard input: is empty" in self.call(5, "eval", "run", "--text", "-", text="").stderr
        for ranks in (2, 3):
            assert "is one token long" in self.run_to_its_end(5, ranks, "eval", "run", "--text", "one")[1]
        for code, arguments, said in ((2, ["eval", "run"], "--checkpoint PATH is needed"), (2, ["eval", "run", "--text", "t.txt", "--checkpoint", "run"], "excludes"),
                                      (3, ["eval", "run", "--text", "t.txt", "--set", "data.eval_fraction=0"], "changes nothing in the loss of a text"),
                                      (3, ["eval", "run", "--text", "t.txt", "--set", "precision.recip=nvfp4"], "did you mean precision.recipe"),
                                      (5, ["eval", "nowhere", "--text", "t.txt"], "nowhere")):
            assert said in self.call(code, *arguments).stderr
