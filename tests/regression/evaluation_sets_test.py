"""Several evaluation sets by name (data.eval_sets): figures of each in log, records, report, compare and eval, equal on any
number of ranks and to those of a run with that set alone; which of them chooses steps; and what is refused.
"""
import json
import math
import os
import random
import re
import shutil
import subprocess

import runs

DECK = """schema_version: 1
run: {name: small, steps: 6, threads: 1}
model: {layers: 1, hidden: 32, heads: 2, seq_len: 16, norm: rms, activation: swiglu, position: rotary, ffn: 32}
data: {files: ["corpus.txt"]SETS}
batch: {global: 12, micro: 2}
eval: {every_steps: 2, batches: 2}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: run, every_steps: 2, io: direct}
"""
NAMED = {"code": ["code_*.txt"], "a-1_b": ["prose.txt", "verse.txt"]}


class Sets(runs.Runs):
    def setup_method(self):
        super().setup_method()
        draws = random.Random(self.name)
        for name in ("code_1", "code_2", "prose", "verse", "held_out"):
            alphabet = draws.sample("abcdefghijklmnop ;{}()\n", 9)
            self.write(name + ".txt", "".join(draws.choice(alphabet) for _ in range(draws.randint(150, 900))))

    def deck_of(self, sets, rest="", name="deck.yaml"):
        listed = ", ".join(f"{{name: {name}, files: {json.dumps(files)}}}" for name, files in sets.items())
        return self.write(name, DECK.replace("SETS", f", eval_sets: [{listed}]{rest}" if sets else rest))

    def call(self, code, *arguments):
        done = subprocess.run([self.tessera, *arguments], cwd=self.folder, capture_output=True, text=True, check=False, timeout=runs.PATIENCE,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == code, (arguments, done.stdout[-500:], done.stderr)
        return done.stdout if code == 0 else done.stderr

    def evaluated(self, directory):
        """{step: {key: value}} of the evaluations in a run's record."""
        return {row["step"]: {key: value for key, value in row.items() if key.startswith(("eval_loss", "bits_a_byte"))}
                for row in self.json_lines(directory, "metrics.jsonl") if "eval_loss" in row}


class Figures(Sets):
    def test_each_set_has_the_loss_that_it_has_alone(self):
        for rest in ("", ", eval_files: [held_out.txt]", ", eval_fraction: 0.1"):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            deck = self.deck_of(NAMED, rest)
            names = ["held"] * bool(rest) + list(NAMED)
            out, _ = self.train(0, 2, deck)
            found = self.evaluated("run")
            assert list(found) == [2, 4, 6]
            for step, row in found.items():
                assert list(row) == ["eval_loss"] + [key for name in names for key in (f"eval_loss/{name}", f"bits_a_byte/{name}")]
                assert row["eval_loss"] == row[f"eval_loss/{names[0]}"]
                for name in names:  # a byte is a token
                    assert math.isclose(row[f"bits_a_byte/{name}"], row[f"eval_loss/{name}"] / math.log(2), rel_tol=1e-6)
            line = " | eval " + ", ".join(f"{name} {found[6][f'eval_loss/{name}']:.4f}" for name in names) + " | "
            assert line in out
            # Alone, each has the same bits: another set changes none.
            for name, files in NAMED.items():
                alone = self.deck_of({}, f", eval_files: {json.dumps(files)}, eval_fraction: 0", "alone.yaml")
                result = json.loads(self.call(0, "eval", alone, "--checkpoint", "run/step_00000006", "--json"))
                assert result["eval_loss"] == found[6][f"eval_loss/{name}"]
            for ranks in (1, 3):
                text, _ = self.run_to_its_end(0, ranks, "eval", deck, "--checkpoint", "run/step_00000006", "--json")
                result = json.loads(text)
                assert result["eval_loss"] == found[6]["eval_loss"]
                assert ({name: set["eval_loss"] for name, set in result["eval_sets"].items()}
                        == {name: found[6][f"eval_loss/{name}"] for name in names})
            lines = self.call(0, "eval", deck, "--checkpoint", "run").splitlines()
            assert [re.match(r"step 6 \| (\S+) \| eval_loss ", line)[1] for line in lines] == names

    def test_one_set_keeps_its_records(self):
        out, _ = self.train(0, 1, self.deck_of({}))
        assert [list(row) for row in self.evaluated("run").values()] == [["eval_loss"]] * 3
        assert re.search(r"\| eval \d\.\d{4} \|", out)
        assert "eval_sets" not in json.loads(self.call(0, "eval", "deck.yaml", "--checkpoint", "run", "--json"))
        assert "Evaluation sets" not in self.read("run", "report.html")

    def test_pages_and_plans_tell_of_each(self):
        deck = self.deck_of(NAMED, ", eval_fraction: 0.1")
        told = self.call(0, "validate", deck)
        for name in ("held", *NAMED):
            assert re.search(rf"; eval {name}: \d+ of \d+ windows, \d+ tokens", told)
        self.train(0, 1, deck)
        last = self.evaluated("run")[6]
        page = self.read("run", "report.html")
        assert "Evaluation sets" in page
        for name in ("held", *NAMED):
            assert re.search(rf"<dt>evaluation of {name}</dt><dd>{last[f'eval_loss/{name}']:.4f}, \d\.\d{{4}} bits a byte; lowest ", page)
        self.train(0, 1, self.deck_of({"code": NAMED["code"]}, "", "other.yaml"), "--set", "checkpoint.dir=other")
        table = self.call(0, "compare", "run", "other")
        for name in ("held", *NAMED):
            assert f"eval {name}" in table
        found = json.loads(self.call(0, "compare", "run", "other", "--json"))["runs"]
        assert list(found[0]["eval_sets"]) == ["held", *NAMED]
        assert list(found[1]["eval_sets"]) == ["code"]
        assert round(abs(found[0]["eval_sets"]["code"]["eval_loss"] - last["eval_loss/code"]), 6) == 0


class Chosen(Sets):
    def test_the_followed_set_chooses(self):
        """Rates so high that the sets differ in their best steps."""
        deck = self.deck_of(NAMED, ", eval_fraction: 0.1")
        often = ("--set", "eval.every_steps=1", "--set", "run.steps=40", "--set", "optimizer.lr=0.1", "--set", "checkpoint.every_steps=0",
                 "--set", "checkpoint.keep_best=true")
        for name in ("held", *NAMED):
            directory = f"run-{name}"
            self.train(75, 2, deck, *often, "--set", f"eval.follow={name}", "--set", "run.stop_after=4", "--set", f"checkpoint.dir={directory}",
                       "--stop-at", "3")
            self.train(0, 1, deck, *often, "--set", f"eval.follow={name}", "--set", "run.stop_after=4", "--set", f"checkpoint.dir={directory}")
            rows = self.evaluated(directory)
            losses = [row[f"eval_loss/{name}"] for row in rows.values()]
            assert [row["eval_loss"] for row in rows.values()] == losses
            best = min(range(len(losses)), key=losses.__getitem__)
            assert len(losses) == min(40, best + 5), "four evaluations behind the best"
            assert f"step_{best + 1:08}" in os.listdir(self.path(directory))

    def test_another_set_may_be_followed_from_a_restart_on(self):
        deck = self.deck_of(NAMED, ", eval_fraction: 0.1")
        settings = ("--set", "eval.every_steps=1", "--set", "run.steps=9", "--set", "checkpoint.keep_best=true", "--set", "optimizer.lr=0.1")
        self.train(75, 1, deck, *settings, "--stop-at", "6")
        self.train(0, 1, deck, *settings, "--set", "eval.follow=code")
        rows = self.evaluated("run")
        losses = [row["eval_loss/code"] for row in rows.values()]
        assert rows[6]["eval_loss"] == rows[6]["eval_loss/held"]
        assert rows[9]["eval_loss"] == rows[9]["eval_loss/code"]
        if (best := min(range(9), key=losses.__getitem__)) >= 6:
            assert f"step_{best + 1:08}" in os.listdir(self.path("run"))


class Refused(Sets):
    def test_what_is_trained_on_or_missing(self):
        for sets, pattern in (({"code": ["corpus.txt"]}, r"data\.eval_sets: .*corpus\.txt is trained on too"),
                              ({"code": ["gone_*.txt"]}, r"data\.eval_sets: .*gone_\*\.txt"),
                              ({"code": ["code_1.txt"], "short": ["short.txt"]}, r"data\.eval_sets: short: ")):
            self.write("short.txt", "too short")
            for verb in (("validate",), ("train",)):
                code = {"corpus.txt": 3}.get(sets["code"][0], 5)
                assert re.search(pattern, self.call(code, *verb, self.deck_of(sets)))
            assert not os.path.exists(self.path("run"))
        self.write("copy.txt", self.read("corpus.txt"))
        assert "holds what" in self.call(0, "validate", self.deck_of({"code": ["copy.txt"]}))
