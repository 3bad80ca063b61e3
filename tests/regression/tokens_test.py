"""Runs on token files, with their tokenizer and separate evaluation files; and a GPT-2 of shorter sequences.
"""
import array
import json
import math
import os
import random
import re
import shutil
import struct
import time

import pytest

import runs

ORACLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle")
TOKENIZER = os.path.join(ORACLE, "tokenizers", "gpt2", "tokenizer.json")
DECK = """schema_version: 1
run: {name: words, steps: 6, threads: 1}
model: {layers: 1, hidden: 32, heads: 2, seq_len: 32, norm: rms, activation: swiglu, position: rotary, ffn: 48}
data: {kind: tokens, files: ["train_*.bin"], eval_files: ["val_*.bin"], tokenizer: tok/tokenizer.json}
batch: {global: 6, micro: 1}
eval: {every_steps: 3, batches: 2}
sample: {tokens: 8, prompt: "The quick", every_steps: 2}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, every_steps: 3, io: direct}
"""


class Tokens(runs.Runs):
    def setup_method(self):
        super().setup_method()
        os.mkdir(self.path("tok"))
        shutil.copy(TOKENIZER, self.path("tok"))
        with open(os.path.join(ORACLE, "tokenizers", "gpt2", "golden.json")) as file:
            ids = [id for case in json.load(file)["cases"] for id in case["ids"]]
        self.tokens("train_0.bin", ids * 3)
        self.tokens("train_1.bin", ids[::-1])
        self.tokens("val_0.bin", ids[5:1000])

    def tokens(self, name, ids):
        """Writes a token file of llm.c's format."""
        with open(self.path(name), "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253))
            file.write(array.array("H", ids).tobytes())

    def words(self, directory, deck=DECK):
        return self.write(directory + ".yaml", deck.replace("DIR", self.path(directory)))

    def test_a_file_that_is_cut_short_is_named(self):
        deck = self.words("a", DECK.replace(", tokenizer: tok/tokenizer.json", "").replace("sample: {tokens: 8,", "sample: {tokens: 0,"))
        process = self.start(1, deck, "--set", "run.steps=100000000", "--set", "model.vocab=50257", "--set", "checkpoint.every_steps=0")
        metrics, deadline = self.path("a", "metrics.jsonl"), time.monotonic() + runs.PATIENCE
        while not os.path.exists(metrics) or not os.path.getsize(metrics):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.truncate(self.path("train_0.bin"), 0)
        out, err = process.communicate(timeout=runs.PATIENCE)
        assert process.returncode == 5, (out[-1000:], err)
        assert "train_0.bin: was cut short while it was in use" in err

    def need_icu(self):
        if not runs.reads_tokenizers(self.tessera):
            pytest.skip("built without ICU")

    def test_a_run_with_its_tokenizer(self):
        self.need_icu()
        out, _ = self.train(0, 2, self.words("a"))
        assert out.count("sample: The quick") == 3  # after steps 2 and 4, and at the end
        whole = self.rows("a", 6)
        assert [row[1] is not None for row in whole] == [False, False, True] * 2
        with open(TOKENIZER) as file:
            text = file.read()
        for place in ("a", os.path.join("a", "step_00000006")):
            assert self.read(place, "tokenizer.json") == text
        assert self.tool(0, "verify", "a") == {"ok": True, "failures": []}
        self.train(0, 2, self.words("silent"), "--set", "sample.tokens=0")  # samples change no bit
        assert self.final("silent") == self.final("a")
        # Stopped and resumed the run is the same; other numbers of ranks get the same evaluation loss.
        self.train(75, 2, self.words("b"), "--stop-at", "4")
        self.train(0, 2, self.words("b"))
        assert (self.final("b"), self.rows("b", 6)) == (self.final("a"), whole)
        for ranks in (1, 3):
            out, _ = self.run_to_its_end(0, ranks, "eval", self.words("a"), "--checkpoint", "a", "--json")
            assert json.loads(out)["eval_loss"] == whole[-1][1]
        # generate uses the tokenizer that the run stored, and prints text.
        out, _ = self.run_to_its_end(0, 1, "generate", "a", "--prompt", "The quick brown", "--tokens", "5", "--json")
        assert json.loads(out)["text"]
        self.tool(0, "convert", "a", "hf", "--to", "safetensors")
        assert self.read("hf", "tokenizer.json") == text
        assert json.loads(self.read("hf", "generation_config.json")) == {"eos_token_id": 0, "pad_token_id": 0}
        assert json.loads(self.read("hf", "tokenizer_config.json"))["eos_token"] == "<|endoftext|>"
        assert json.loads(self.read("hf", "config.json"))["vocab_size"] == 420
        self.tool(0, "convert", "hf", "back")
        assert self.read("back", "tokenizer.json") == text
        assert self.tool(0, "verify", "back") == {"ok": True, "failures": []}

    def test_tokens_and_tokenizers_that_do_not_fit(self):
        self.need_icu()
        self.tokens("train_2.bin", [3, 420, 5] * 99)
        _, err = self.train(5, 2, self.words("a"))
        assert "train_2.bin: token 420 at position 1" in err
        _, err = self.train(5, 1, self.words("a"), "--set", "model.vocab=500")  # the tokenizer's vocabulary counts
        assert "train_2.bin: token 420 at position 1" in err
        os.remove(self.path("train_2.bin"))
        _, err = self.train(3, 1, self.words("a"), "--set", "model.vocab=100")
        assert "model.vocab: is 100, and data.tokenizer has 420 tokens" in err
        shutil.copy(os.path.join(ORACLE, "tokenizers", "qwen2", "tokenizer.json"), self.folder)
        _, err = self.train(5, 1, self.words("a"))
        assert "data.tokenizer: is not the one that" in err
        os.remove(self.path("tokenizer.json"))
        with open(TOKENIZER) as file:
            other = json.load(file)
        other["model"]["type"] = "Unigram"
        self.write(os.path.join("tok", "tokenizer.json"), json.dumps(other))
        _, err = self.train(5, 2, self.words("a"))
        assert re.search(r"a.yaml:4:\d+: data.tokenizer: .*model: Unigram is not supported; byte-level BPE is", err)
        _, err = self.train(5, 1, self.words("a"), "--set", "data.tokenizer=nowhere.json")
        assert "nowhere.json" in err
        assert not os.path.exists(self.path("a"))

    def altered(self, draws, tokenizer):
        """Another tokenizer of the same size: it has other merges, other ids, or cuts text elsewhere."""
        model, kind = tokenizer["model"], draws.choice(("merges", "ids", "normalizer"))
        if kind == "merges":
            at = draws.randrange(len(model["merges"]) - 1)
            model["merges"][at], model["merges"][at + 1] = model["merges"][at + 1], model["merges"][at]
        elif kind == "ids":
            one, other = draws.sample([token for token in model["vocab"] if not token.startswith("<")], 2)
            model["vocab"][one], model["vocab"][other] = model["vocab"][other], model["vocab"][one]
        else:
            tokenizer["normalizer"] = {"type": "NFC"} if not tokenizer.get("normalizer") else None
        return tokenizer

    def test_weights_of_another_tokenizer_are_refused(self):
        """By eval and by a resume, unless allowed; the same tokenizer elsewhere, written otherwise, is the same."""
        self.need_icu()
        deck, draws = self.words("a", DECK.replace("every_steps: 2}", "every_steps: 0}")), random.Random(3)
        self.train(75, 2, deck, "--stop-at", "3")
        with open(TOKENIZER) as file:
            text = file.read()
        os.mkdir(self.path("other"))
        moved = self.write(os.path.join("other", "same.json"), json.dumps(json.loads(text), indent=3))
        for _ in range(4):
            path = self.write(os.path.join("other", "tokenizer.json"), json.dumps(self.altered(draws, json.loads(text))))
            for verb, arguments in (("eval", ["--checkpoint", "a"]), ("train", [])):
                _, err = self.run_to_its_end(5, 2, verb, deck, *arguments, "--set", f"data.tokenizer={path}")
                assert re.search("another tokenizer than", err)
        _, err = self.run_to_its_end(0, 1, "eval", deck, "--checkpoint", "a", "--set", f"data.tokenizer={path}", "--set",
                                     "checkpoint.init_other_tokenizer=true")
        assert re.search(r"trained with another tokenizer than data\.tokenizer: .*\(allowed\)", err)
        assert self.run_to_its_end(0, 1, "eval", deck, "--checkpoint", "a", "--set", f"data.tokenizer={moved}")[1] == ""
        out, _ = self.train(75, 2, deck, "--set", f"data.tokenizer={moved}", "--stop-at", "4")
        assert "changed after" not in out
        out, _ = self.train(0, 2, deck, "--set", f"data.tokenizer={path}", "--allow-change", "data.tokenizer")
        assert re.search(r"changed after step 4: data\.tokenizer \S+ -> \S+other/tokenizer\.json", out)
        assert self.read("a", "step_00000006", "tokenizer.json") == self.read("other", "tokenizer.json")

    def test_the_loss_of_a_text(self):
        self.need_icu()
        self.train(0, 1, self.words("a"))
        for text in ("The quick brown fox, é and 中, twice.\n" * 20, " begins with a space", "aa"):
            self.write("t.txt", text)
            out, _ = self.run_to_its_end(0, 2, "generate", "a", "--prompt", text[:40], "--tokens", "1", "--json")
            first = len(json.loads(out)["prompt_tokens"])
            found = [self.run_to_its_end(0, ranks, "eval", "a", "--text", "t.txt", "--json")[0] for ranks in (1, 2, 3)]
            assert len(set(found)) == 1
            found = json.loads(found[0])
            if len(text) <= 40:
                assert found["eval_tokens"] == first - 1
            assert found["eval_bytes"] < len(text.encode())
            assert found["eval_bytes"] >= len(text.encode()) - 12
            bits = found["eval_loss"] * found["eval_tokens"] / math.log(2) / found["eval_bytes"]
            assert round(abs(found["bits_a_byte"] / bits - 1), 4) == 0
        self.tool(0, "convert", "a", "hf", "--to", "safetensors")  # the same weights in a folder of Hugging Face
        self.write("t.txt", "The quick brown fox, twice.\n" * 9)
        here, there = (json.loads(self.run_to_its_end(0, 1, "eval", place, "--text", "t.txt", "--set", "precision.compute=bf16", "--json")[0])
                       for place in ("a", "hf"))  # without it that of the folder's numbers, fp32
        assert [there[key] for key in ("eval_loss", "eval_tokens", "eval_bytes")] == [here[key] for key in ("eval_loss", "eval_tokens", "eval_bytes")]
        assert "checkpoint_recipe" not in there
        bare = DECK.replace(", tokenizer: tok/tokenizer.json", "").replace("tokens: 8", "tokens: 0").replace("norm: rms", "vocab: 420, norm: rms")
        self.train(0, 1, self.words("b", bare))
        _, err = self.run_to_its_end(5, 2, "eval", "b", "--text", "t.txt")
        assert "holds no tokenizer.json, so no text can be encoded" in err

    def test_files_to_evaluate_on(self):
        deck = self.words("a", DECK.replace(", tokenizer: tok/tokenizer.json", "").replace("tokens: 8", "tokens: 0").replace(
            "norm: rms", "vocab: 420, norm: rms"))
        out, _ = self.train(0, 2, deck)
        assert "for training, 31 for evaluation" in out
        assert self.rows("a", 6)[2][1]
        assert not os.path.exists(self.path("a", "tokenizer.json"))
        _, err = self.train(5, 1, deck, "--set", "data.eval_files=[nothing_*.bin]")
        assert "data.eval_files: nothing_*.bin: fits no file" in err
        _, err = self.train(3, 1, deck, "--set", "data.eval_fraction=0.1")
        assert "data.eval_fraction: keeps a share of 0.1" in err
        self.tokens("val_0.bin", [1] * 32)
        _, err = self.train(5, 1, deck)
        assert "the corpus of data.eval_files has 32 tokens" in err

    def test_a_mixture_of_corpora(self):
        plain = DECK.replace(", tokenizer: tok/tokenizer.json", "").replace("tokens: 8", "tokens: 0").replace("norm: rms", "vocab: 420, norm: rms")
        mixed = plain.replace('files: ["train_*.bin"]', 'files: [train_0.bin, "*_1.bin"], mixture: [2, 1]')
        deck = self.words("a", mixed)
        for verb, line in (("validate", "# corpus:"), ("plan", "mixture:")):
            out, _ = self.run_to_its_end(0, 1, verb, deck, "--ranks", "2")
            assert re.search(rf"(?m)^{line} .*66\.7% train_0\.bin.*, 33\.3% \*_1\.bin", out)
        out, _ = self.train(0, 2, deck)
        assert re.search(r"corpus: .*66\.7% train_0\.bin \(\d+ windows, \d+\.\d\d epochs\), 33\.3% \*_1\.bin \(", out)
        # Stopped and resumed the run is the same; other numbers of ranks see the same sequences but sum in another
        # order.
        self.train(75, 2, self.words("b", mixed), "--stop-at", "2")
        self.train(0, 2, self.words("b", mixed))
        assert (self.final("b"), self.rows("b", 6)) == (self.final("a"), self.rows("a", 6))
        self.train(0, 3, self.words("c", mixed))
        for other, own in zip(self.rows("c", 6), self.rows("a", 6)):
            assert abs(other[0] / own[0] - 1) <= 2e-3
        self.train(0, 2, self.words("plain", plain))
        assert self.rows("plain", 6)[0] != self.rows("a", 6)[0]
        # Other mixture weights change the order of samples: a resumed run changes them only by request.
        more = [self.words("d", mixed.replace("[2, 1]", "[1, 2]")), "--resume", self.path("a"), "--set", "run.steps=7"]
        _, err = self.train(3, 2, *more, "--allow-change", "run.steps")
        assert re.search(r"d\.yaml:4:\d+: data\.mixture: is \[1, 2\], and was \[2, 1\].*--allow-change data\.mixture", err)
        out, _ = self.train(0, 2, *more, "--allow-change", "run.steps,data.mixture")
        assert re.search(r"data\.mixture \[2, 1\] -> \[1, 2\](.|\n)*from sample 36 on, at \d+\.\d\d epochs of \d+ windows of train_0\.bin, ", out)
        # Problems are named with their corpus, all at once.
        self.tokens("train_0.bin", [])
        self.tokens("train_1.bin", [3, 420, 5] * 99)
        _, err = self.train(5, 2, self.words("e", mixed))
        assert re.search(r"e\.yaml:4:\d+: data\.files: train_0\.bin: .*train_0\.bin: the corpus is empty", err)
        assert re.search(r"e\.yaml:4:\d+: data\.files: \*_1\.bin: .*train_1\.bin: token 420 at position 1 is outside", err)
        _, err = self.train(3, 1, self.words("e", mixed.replace("[2, 1]", "[2, 0]")))
        assert re.search(r"e\.yaml:4:\d+: data\.mixture: 0 is out of range", err)
        _, err = self.train(3, 1, self.words("e", mixed.replace("[2, 1]", "[2]")))
        assert re.search(r"e\.yaml:4:\d+: data\.mixture: is of length 1, and data\.files of length 2", err)
        assert not os.path.exists(self.path("e"))

    def test_a_gpt2_of_shorter_sequences(self):
        folder = os.path.join(ORACLE, "hf", "gpt2")
        deck = DECK.replace(", tokenizer: tok/tokenizer.json", "").replace("tokens: 8", "tokens: 0").replace("steps: 6", "steps: 0")
        deck = deck.replace("model: {layers: 1, hidden: 32, heads: 2, seq_len: 32, norm: rms, activation: swiglu, position: rotary, ffn: 48}",
                            "model: {layers: 2, hidden: 24, heads: 3, seq_len: 8, ffn: 40, vocab: 61, tied_head: true}")
        self.tokens("train_0.bin", [i * 7 % 61 for i in range(999)])
        self.tokens("train_1.bin", [i * 5 % 61 for i in range(999)])
        self.tokens("val_0.bin", [i * 3 % 61 for i in range(999)])
        self.train(0, 2, self.words("a", deck), "--set", f"checkpoint.init_from={folder}")
        prompt = ["--prompt-ids", "3,4,5", "--tokens", "5", "--temperature", "0", "--json"]
        answers = [json.loads(self.run_to_its_end(0, 1, "generate", place, *prompt)[0])["tokens"] for place in ("a", folder)]
        assert answers[0] == answers[1]
        # Weights of a checkpoint with longer sequences can be used; those with shorter ones are refused.
        self.train(0, 1, self.words("b", deck), "--set", "checkpoint.init_from=a", "--set", "model.seq_len=6")
        _, err = self.train(5, 1, self.words("c", deck), "--set", "checkpoint.init_from=a", "--set", "model.seq_len=9")
        assert "shape: /model/embed.positions is [8,24], the model has [9,24]" in err
