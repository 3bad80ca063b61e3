"""Training and evaluation on answers alone (data.loss_mask) and within documents (data.documents: apart): equal on any number of
ranks and micro-batches and after a resume, no NaN where a batch has no answer; what cannot be done is refused. And choosing
among steps: checkpoint.keep_best, run.stop_after.
"""
import array
import json
import math
import os
import random
import re
import struct
import subprocess
import zlib

import runs

DECK = """schema_version: 1
run: {name: small, steps: 4, threads: 1}
model: {layers: 2, hidden: 32, heads: 2, seq_len: 16, norm: rms, activation: swiglu, position: POSITION, ffn: 32, vocab: 64, bias: false}
data: {kind: tokens, files: ["train_*.bin"], eval_files: ["val.bin"], loss_mask: true, documents: apart}
batch: {global: 12, micro: MICRO}
eval: {every_steps: 2, batches: 2}
reduce: {order: batch}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: run, every_steps: 2, io: direct}
"""
ANSWER, BEGINS = 1, 2


class Answers(runs.Runs):
    def setup_method(self):
        super().setup_method()
        self.draws = random.Random(self.name)

    def corpus(self, name, tokens, marks=None):
        """Writes a token file, and its marks unless they are None."""
        data = array.array("H", tokens).tobytes()
        with open(self.path(name + ".bin"), "wb") as file:
            file.write(struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0") + data)
        if marks is not None:
            with open(self.path(name + ".marks"), "wb") as file:
                file.write(struct.pack("<iiqI", 20261127, 1, len(tokens), zlib.crc32(data)).ljust(1024, b"\0") + bytes(marks))

    def chats(self, name, conversations, answers=0.4):
        """Conversations of drawn questions and answers; returns tokens and marks."""
        tokens, marks = [], []
        for _ in range(conversations):
            length, answer = self.draws.randint(3, 30), 0
            for i in range(length):
                if self.draws.random() < 0.3:
                    answer = int(self.draws.random() < answers)
                tokens.append((tokens[-1] * 3 + i + answer) % 61 if tokens else 1)
                marks.append(answer * ANSWER + (BEGINS if i == 0 else 0))
        self.corpus(name, tokens, marks)
        return tokens, marks

    def deck(self, micro=1, position="rotary", **changes):
        text = DECK.replace("MICRO", str(micro)).replace("POSITION", position)
        for before, after in changes.values():
            assert before in text
            text = text.replace(before, after)
        return self.write("deck.yaml", text)

    def results(self, directory):
        return [(row["loss"], row.get("eval_loss"), row["grad_norm"], row.get("targets")) for row in self.json_lines(directory, "metrics.jsonl")]

    def call(self, code, *arguments):
        done = subprocess.run([self.tessera, *arguments], cwd=self.folder, capture_output=True, text=True, check=False, timeout=runs.PATIENCE,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == code, (arguments, done.stdout[-500:], done.stderr)
        return done.stdout if code == 0 else done.stderr

    def final_digest(self, directory):
        return self.tool(0, "inspect", directory)["content_digest"]


class Equal(Answers):
    def test_bits_are_equal_on_any_ranks_and_after_a_resume(self):
        self.chats("train_0", 60)
        self.chats("train_1", 40)
        self.chats("val", 30)
        for position in ("rotary", "learned"):
            wanted = None
            for ranks, micro, stop in ((1, 1, None), (3, 1, 2), (2, 1, None)):
                deck, directory = self.deck(micro, position), f"run-{position}-{ranks}"
                settings = ("--set", f"checkpoint.dir={directory}")
                if stop:
                    self.train(75, ranks, deck, *settings, "--stop-at", str(stop))
                self.train(0, ranks, deck, *settings)
                found = self.results(directory), self.final_digest(directory)
                wanted = wanted or found
                assert found == wanted, (position, ranks)
            for ranks in (1, 4):
                out, _ = self.run_to_its_end(0, ranks, "eval", deck, "--checkpoint", f"run-{position}-1", "--json")
                assert json.loads(out)["eval_loss"] == wanted[0][-1][1]

    def test_the_size_of_micro_batches_changes_rounding_alone(self):
        self.chats("train_0", 80, answers=0.1)  # so that micro-batches differ much in their answers
        self.chats("val", 30)
        first = None
        for micro in (1, 3, 12):
            self.train(0, 1, self.deck(micro), "--set", f"checkpoint.dir=run{micro}")
            found = self.results(f"run{micro}")
            first = first or found
            for ours, theirs in zip(found, first):
                assert ours[3] == theirs[3]
                for a, b in zip(ours[:3], theirs[:3]):
                    assert a is b is None or math.isclose(a, b, rel_tol=3e-3), (micro, ours, theirs)

    def test_loss_and_gradient_are_means_over_answers(self):
        """A batch with answers in some windows alone is the batch of these windows, of which every token is one."""
        self.chats("val", 30)
        for answered in (1, self.draws.randint(2, 11)):
            tokens = [self.draws.randrange(61) for _ in range(12 * 16 + 1)]
            end = answered * 16
            self.corpus("train_0", tokens, [ANSWER * (0 < i <= end) for i in range(len(tokens))])
            changes = {"documents": ("documents: apart", "documents: joined"), "order": ("loss_mask: true", "shuffle: false, loss_mask: true"),
                       "steps": ("steps: 4", "steps: 1")}
            self.train(0, 1, self.deck(1, **changes), "--set", f"checkpoint.dir=masked{answered}")
            os.remove(self.path("train_0.marks"))
            self.corpus("train_0", tokens[:end + 1])
            self.train(0, 1, self.deck(1, **changes), "--set", f"checkpoint.dir=whole{answered}", "--set", f"batch.global={answered}",
                       "--set", "data.loss_mask=false")
            masked, whole = self.results(f"masked{answered}")[0], self.results(f"whole{answered}")[0]
            assert masked[3] == end
            for ours, theirs in zip(masked[:3:2], whole[:3:2]):
                assert math.isclose(ours, theirs, rel_tol=1e-3), (answered, masked, whole)

    def test_a_batch_without_an_answer_changes_nothing_but_decay(self):
        tokens, marks = self.chats("train_0", 120)
        self.chats("val", 30)
        cut = 12 * 16 + 1  # the first step's windows, in order
        marks[:cut] = [mark & BEGINS for mark in marks[:cut]]
        self.corpus("train_0", tokens, marks)
        deck = self.deck(1, shuffle=("loss_mask: true", "shuffle: false, loss_mask: true"))
        for ranks in (1, 3):
            self.train(0, ranks, deck, "--set", f"checkpoint.dir=run{ranks}")
        assert self.results("run1") == self.results("run3")
        loss, _, norm, targets = self.results("run1")[0]
        assert (loss, norm, targets) == (0, 0, 0)
        for loss, _, norm, targets in self.results("run1")[1:]:
            assert loss > 0 and norm > 0 and targets > 0

    def test_what_is_no_answer_has_no_effect_as_a_target(self):
        """With documents of one token nothing is seen of others, so that words that are neither answers nor their neighbours before
        are without effect."""
        tokens, marks = self.chats("train_0", 100)
        self.chats("val", 30)
        marks = [mark & ANSWER | BEGINS for mark in marks]
        self.corpus("train_0", tokens, marks)
        deck = self.deck()
        self.train(0, 1, deck, "--set", "checkpoint.dir=before")
        changed = [token if marks[i] & ANSWER or (i + 1 < len(marks) and marks[i + 1] & ANSWER) else 63 - token for i, token in enumerate(tokens)]
        assert changed != tokens
        self.corpus("train_0", changed, marks)
        self.train(0, 1, deck, "--set", "checkpoint.dir=behind")
        assert self.results("before") == self.results("behind")

    def test_documents_of_text_are_files(self):
        draws, text = self.draws, lambda size: "".join(self.draws.choices("abcdef \n", k=size))
        os.remove(self.path("corpus.txt"))
        files = [text(draws.randint(20, 90)) for _ in range(30)]
        for i, one in enumerate(files):
            self.write(f"f{i:02}.txt", one)
        plain = re.sub(r"data: .*", 'data: {files: ["f*.txt"], shuffle: false, documents: apart}', DECK).replace(", vocab: 64", "")
        deck = self.write("deck.yaml", plain.replace("MICRO", "2").replace("POSITION", "rotary"))
        self.train(0, 1, deck)
        self.train(0, 1, deck, "--set", "data.documents=joined", "--set", "checkpoint.dir=joined")
        assert self.results("run") != self.results("joined")
        # The same bytes in one file are one document, and equal to documents joined.
        for i in range(1, 30):
            os.remove(self.path(f"f{i:02}.txt"))
        self.write("f00.txt", "".join(files))
        self.train(0, 1, deck, "--set", "checkpoint.dir=one")
        for ours, theirs in zip(self.results("one"), self.results("joined")):
            assert math.isclose(ours[0], theirs[0], rel_tol=1e-3), (ours, theirs)


class Refused(Answers):
    def test_marks_that_do_not_fit(self):
        tokens, marks = self.chats("train_0", 60)
        self.chats("val", 30)
        deck = self.deck()
        self.call(0, "validate", deck)
        os.remove(self.path("train_0.marks"))
        assert "train_0.marks is not there, and data.loss_mask needs it" in self.call(5, "validate", deck)
        self.corpus("train_0", tokens, marks[:-1])
        assert re.search(r"train_0\.marks: promises \d+ marks and holds \d+", self.call(5, "validate", deck))
        self.corpus("train_0", tokens, marks)
        with open(self.path("train_0.marks"), "rb") as file:
            held = file.read()
        self.corpus("train_0", tokens[::-1])
        assert "was made for other tokens than" in self.call(5, "validate", deck)
        with open(self.path("train_0.marks"), "wb") as file:
            file.write(held[:500])
        assert "is no file of marks" in self.call(5, "validate", deck)

    def test_nothing_to_learn_or_to_evaluate(self):
        tokens, marks = self.chats("train_0", 60)
        self.chats("val", 30, answers=0)
        assert "evaluated windows holds an answer" in self.call(5, "validate", self.deck())
        self.chats("val", 30)
        self.corpus("train_0", tokens, [mark & BEGINS for mark in marks])
        assert "no window for training holds an answer" in self.call(5, "validate", self.deck())

    def test_documents_without_a_mark(self):
        tokens, _ = self.chats("train_0", 60)
        os.remove(self.path("train_0.marks"))
        self.chats("val", 30)
        os.remove(self.path("val.marks"))
        deck = self.deck(mask=("loss_mask: true, ", ""))
        assert "nothing says where documents begin" in self.call(3, "validate", deck)
        self.corpus("train_1", tokens, [0] * len(tokens))
        assert "has marks of documents beside it, and" in self.call(5, "validate", deck)
        text = self.write("text.yaml", self.read("deck.yaml").replace("kind: tokens", "kind: text, loss_mask: true").replace(", vocab: 64", ""))
        assert "data.loss_mask: needs data.kind tokens" in self.call(3, "validate", text)

    def test_a_resume_with_other_marks_is_refused(self):
        tokens, marks = self.chats("train_0", 60)
        self.chats("val", 30)
        deck = self.deck()
        self.train(75, 1, deck, "--stop-at", "2")
        self.corpus("train_0", tokens, [mark ^ ANSWER for mark in marks])
        _, err = self.train(5, 1, deck)
        assert "corpus" in err


class Chosen(Answers):
    def test_the_best_step_stays_and_enough_is_enough(self):
        self.chats("train_0", 30)
        self.chats("val", 30)
        deck = self.deck(1, steps=("steps: 4", "steps: 60"), often=("every_steps: 2", "every_steps: 1"), rate=("lr: 0.01", "lr: 0.05"),
                         saves=("dir: run, every_steps: 1", "dir: run, keep_best: true"))
        self.train(0, 2, deck, "--set", "run.stop_after=3", "--set", "checkpoint.dir=whole")
        rows = self.json_lines("whole", "metrics.jsonl")
        losses = [row["eval_loss"] for row in rows]
        best = min(range(len(losses)), key=losses.__getitem__)
        assert len(losses) == best + 4  # three evaluations after it
        assert len(losses) < 60
        folders = sorted(name for name in os.listdir(self.path("whole")) if name.startswith("step_"))
        assert f"step_{best + 1:08}" in folders
        assert f"step_{len(losses):08}" in folders
        assert len(folders) <= 3
        again, _ = self.train(0, 1, deck, "--set", "run.stop_after=3", "--set", "checkpoint.dir=whole")
        assert "3 evaluations in a row without a lower loss than after step" in again
        # In parts, and on other ranks, the same step is chosen.
        for stop in (best // 2 + 1, best + 2):
            self.train(75, 1, deck, "--set", "run.stop_after=3", "--set", "checkpoint.dir=parts", "--stop-at", str(stop))
        out, _ = self.train(0, 3, deck, "--set", "run.stop_after=3", "--set", "checkpoint.dir=parts")
        assert [row["eval_loss"] for row in self.json_lines("parts", "metrics.jsonl")] == losses
        assert f"step_{best + 1:08}" in os.listdir(self.path("parts"))
        assert f"done after step {len(losses)} of 60" in out
        # With more patience the run goes on.
        self.train(0, 1, deck, "--set", "run.stop_after=0", "--set", "run.steps=60", "--set", "checkpoint.dir=parts")
        assert len(self.json_lines("parts", "metrics.jsonl")) == 60
