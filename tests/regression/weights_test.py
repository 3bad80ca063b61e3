"""Weights without their run: their evaluation, and runs that start with them.
"""
import json
import math
import os
import random
import re
import shutil
import struct

import h5py

import runs


class Weights(runs.Runs):
    def evaluate(self, code, ranks, *arguments):
        out, err = self.run_to_its_end(code, ranks, "eval", *arguments)
        if code == 0:
            assert (out.count("\n"), err) == (1, "")
        return json.loads(out) if code == 0 else err

    def test_eval_finds_what_training_found(self):
        for weights, ranks in (("single", 2), ("", 3)):
            self.train(0, ranks, self.deck("a", weights), "--set", "checkpoint.every_steps=0")
            self.train(75, ranks, self.deck("b", weights), "--stop-at", "3")
            for run, step in (("a", 8), ("b", 3)):
                row = self.json_lines(run, "metrics.jsonl")[step - 1]
                want = {"step": step, "eval_loss": row["eval_loss"], "tokens": row["tokens"]}
                for place in (run, os.path.join(run, f"step_{step:08}")):
                    found = self.evaluate(0, ranks, self.deck(run, weights), "--checkpoint", place, "--json")
                    assert {key: found[key] for key in want} == want
                    assert found["eval_windows"] <= found["eval_windows_kept"]
                    assert round(abs(math.log(found["perplexity"]) - found["eval_loss"]), 4) == 0
                    assert round(abs(found["bits_a_byte"] * math.log(2) - found["eval_loss"]), 4) == 0
            # Whole micro-batches are added in one order: any number of ranks gets the same bits, also if it exceeds the
            # number of windows. (5 ranks could not train this deck.)
            for other in (1, 2, 3, 4, 5):
                found = self.evaluate(0, other, self.deck("a", weights), "--checkpoint", "a", "--json")
                assert found["eval_loss"] == self.json_lines("a", "metrics.jsonl")[-1]["eval_loss"]
            few = ["--set", "batch.global=2", "--set", "eval.batches=1"]
            losses = {self.evaluate(0, other, self.deck("a", weights), "--checkpoint", "a", "--json", *few)["eval_loss"]
                      for other in (1, 2, 3, 4)}
            assert len(losses) == 1, losses
            for run in ("a", "b"):
                os.rename(self.path(run), self.path(f"{run}-{weights}"))

    def test_eval_refuses(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        before = sorted(os.listdir(self.path("a")))
        assert "nowhere" in self.evaluate(5, 2, self.deck("a"), "--checkpoint", "nowhere")
        assert "eval_fraction" in self.evaluate(3, 1, self.deck("a"), "--checkpoint", "a", "--set", "data.eval_fraction=0")
        err = self.evaluate(5, 2, self.deck("a"), "--checkpoint", "a", "--set", "model.heads=2", "--set", "model.layers=3")
        assert "key: model.heads was 4, is 2 in the deck" in err
        assert "missing: /model/layers.2.attention.qkv.weight" in err
        os.truncate(self.path("a", "step_00000001", "model.h5"), 100)
        assert "model.h5" in self.evaluate(5, 1, self.deck("a"), "--checkpoint", "a")
        assert sorted(os.listdir(self.path("a"))) == before
        self.evaluate(2, 1, self.deck("a"))

    def test_a_loss_that_is_not_finite_is_an_error(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        self.run_to_its_end(0, 1, "checkpoint", "convert", "a", "hf", "--to", "safetensors")
        with open(self.path("hf", "model.safetensors"), "r+b") as file:
            (header,) = struct.unpack("<Q", file.read(8))
            size = file.seek(0, os.SEEK_END)
            file.seek(8 + header)
            file.write(b"\xff" * (size - 8 - header))  # NaN in every type
        for ranks in (1, 2):
            assert "hf: the loss of these weights is no number" in self.evaluate(6, ranks, self.deck("a"), "--checkpoint", "hf", "--json")

    def test_eval_says_it_in_words(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        out, _ = self.run_to_its_end(0, 1, "eval", self.deck("a"), "--checkpoint", "a")
        assert re.search(r"^step 1 \| eval_loss \d+\.\d+ \| perplexity [\d.]+ \| [\d.]+ bits a byte \| \d+ of [\d,]+ windows?, [\d,]+ tokens \| recipe bf16 \| " r"384 tokens trained on\n$", out)
        for recipe in ("nvfp4", "fp8_block"):
            out, _ = self.run_to_its_end(0, 1, "eval", self.deck("a"), "--checkpoint", "a", "--set", f"precision.recipe={recipe}")
            assert f"| recipe {recipe} (the checkpoint's is bf16) |" in out

    def tensors(self, run):
        return {tensor["name"]: tensor["digest"] for tensor in self.tool(0, "inspect", run)["tensors"]}

    def test_a_run_starts_with_given_weights(self):
        self.train(75, 2, self.deck("a"), "--stop-at", "4")
        for ranks, weights in ((1, "discrete"), (3, "single")):
            name = f"b{ranks}"
            deck = self.deck(name, weights)
            out, _ = self.train(0, ranks, deck, "--set", "checkpoint.init_from=a", "--set", "run.steps=0")
            assert "starts with the weights of" in out
            found = self.tool(0, "inspect", name)
            assert (found["step"], found["tokens"]) == (0, 0)
            assert self.tensors(name) == self.tensors("a")
            assert found["optimizer"] != self.tool(0, "inspect", "a")["optimizer"]  # moments begin anew
        # The corpus may differ from the saved run's; and a second start resumes, whatever init_from says.
        deck = self.deck("c")
        arguments = [deck, "--set", "checkpoint.init_from=a", "--set", "optimizer.beta1=0.8", "--set", "run.steps=9"]
        self.train(75, 2, *arguments, "--stop-at", "5")
        first = self.json_lines("c", "metrics.jsonl")[0]
        assert first["loss"] < self.json_lines("a", "metrics.jsonl")[0]["loss"]
        os.rename(self.path("a"), self.path("gone"))
        out, _ = self.train(0, 2, *arguments)
        assert "resumed from" in out
        assert len(self.rows("c", 9)) == 9

    def test_another_models_weights(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        wider = ["--set", "checkpoint.init_from=a", "--set", "model.layers=3"]
        _, err = self.train(5, 2, self.deck("b"), *wider)
        assert "is of another model" in err
        assert "missing: /model/layers.2.attention.qkv.weight" in err
        assert not os.path.exists(self.path("b"))
        missing = [line.split("/model/")[1] for line in err.splitlines() if "missing:" in line]
        self.train(0, 2, self.deck("b"), *wider, "--set", f"checkpoint.init_missing=[{', '.join(missing)}]", "--set", "run.steps=0")
        self.train(0, 1, self.deck("drawn"), "--set", "model.layers=3", "--set", "run.steps=0")
        drawn, given = self.tensors("drawn"), self.tensors("a")
        assert self.tensors("b") == {**drawn, **given}

        _, err = self.train(5, 1, self.deck("c"), "--set", "checkpoint.init_from=b", "--set", "model.layers=2")
        assert "extra: /model/layers.2.attention.qkv.weight" in err
        self.train(0, 1, self.deck("c"), "--set", "checkpoint.init_from=b", "--set", "model.layers=2", "--set", "run.steps=0", "--set",
                   "checkpoint.init_ignore_extra=true")
        assert self.tensors("c") == given

        _, err = self.train(5, 1, self.deck("d"), "--set", "checkpoint.init_from=a", "--set", "model.ffn=64")
        assert "shape: /model/layers.0.moe.experts.gate_up.weight is [4,96,32], the model has [4,128,32]" in err
        _, err = self.train(3, 1, self.deck("d"), "--set", "checkpoint.init_from=a", "--set", "checkpoint.init_missing=[nothing]")
        assert "checkpoint.init_missing: nothing is no weight of the model" in err
        _, err = self.train(5, 1, self.deck("d"), "--set", "checkpoint.init_from=nowhere")
        assert "nowhere" in err
        assert not os.path.exists(self.path("d"))

    def test_converted_weights(self):
        self.train(75, 2, self.deck("a"), "--stop-at", "2")
        self.tool(0, "convert", "a", "half", "--weights-only", "--dtype", "bf16", "--experts", "discrete")
        self.tool(0, "convert", "half", "rounded", "--dtype", "fp32")
        for ranks in (1, 3):
            self.train(0, ranks, self.deck(f"b{ranks}"), "--set", "checkpoint.init_from=half", "--set", "run.steps=0")
            assert self.tensors(f"b{ranks}") == self.tensors("rounded")
        assert self.tensors("b1") != self.tensors("a")
        losses = [self.evaluate(0, 2, self.deck("a"), "--checkpoint", source, "--json")["eval_loss"] for source in ("half", "rounded")]
        assert losses[0] == losses[1]
        _, err = self.train(5, 2, self.deck("c"), "--resume", "half")
        assert "holds weights alone" in err

    def test_weights_of_another_program(self):
        self.train(75, 1, self.deck("a", ""), "--stop-at", "2")
        self.tool(0, "convert", "a", "llama", "--to", "safetensors")
        out, _ = self.train(0, 2, self.deck("b", ""), "--set", "checkpoint.init_from=llama", "--set", "run.steps=0")
        assert "starts with the weights of" in out
        assert self.tensors("b") == self.tensors("a")
        _, err = self.train(5, 2, self.deck("c", ""), "--set", "checkpoint.init_from=llama", "--set", "model.rope_base=500")
        assert "key: model.rope_base was 10000, is 500 in the deck" in err

    def rows_of(self, place, tensors):
        """The bytes of each row of some tensors, by their names for transformers, read from what convert makes of a checkpoint."""
        folder = self.path("read_" + os.path.basename(place))
        self.tool(0, "convert", place, folder, "--to", "safetensors")
        with open(os.path.join(folder, "model.safetensors"), "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            header, payload = json.loads(file.read(length)), file.read()
        shutil.rmtree(folder)
        found = {}
        for name in tensors:
            begin, end = header[name]["data_offsets"]
            width = (end - begin) // header[name]["shape"][0]
            found[name] = [payload[at:at + width] for at in range(begin, end, width)]
        return found

    def test_rows_for_new_tokens(self):
        tables, grow = ("model.embed_tokens.weight", "lm_head.weight"), "checkpoint.init_rows=[embed.tokens, head.weight]"
        self.train(75, 2, self.deck("a"), "--stop-at", "2")
        self.tool(0, "convert", "a", "a_hf", "--to", "safetensors")
        given, digests, draw = self.rows_of("a", tables), self.tensors("a"), random.Random(5)
        cases = [(1, "a", []), (2, "a", ["sharding=full"]), (3, "a_hf", ["checkpoint.io=mpio"]), (3, "a", ["sharding=full", "checkpoint.io=mpio"])]
        for i, (ranks, source, settings) in enumerate(cases):
            vocab, more = draw.randrange(257, 400), [word for setting in settings for word in ("--set", setting)]
            size = ["--set", f"model.vocab={vocab}", "--set", "run.steps=0"]
            self.train(0, 1, self.deck(f"drawn{i}"), *size)
            drawn = self.rows_of(f"drawn{i}", tables)
            start = ["--set", f"checkpoint.init_from={source}", *size, *more]
            _, err = self.train(5, ranks, self.deck(f"b{i}"), *start)
            assert f"shape: /model/head.weight is [256,32], the model has [{vocab},32]" in err
            out, _ = self.train(0, ranks, self.deck(f"b{i}"), *start, "--set", grow)
            assert f"embed.tokens: the first 256 of {vocab} rows are those of the weights, the rest is drawn" in out
            found = self.rows_of(f"b{i}", tables)
            for name in tables:
                assert found[name] == given[name] + drawn[name][256:], (name, i)
            other = self.tensors(f"b{i}")
            assert {name for name in digests if other[name] != digests[name]} == {"embed.tokens", "head.weight"}
        # The same bits however many ranks and wherever the rows lie; and it trains.
        self.train(0, 3, self.deck("c"), "--set", "checkpoint.init_from=a", "--set", grow, "--set", "model.vocab=300", "--set", "sharding=full")
        assert len(self.rows("c", 8)) == 8

    def test_rows_that_do_not_grow(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1", "--set", "model.vocab=300")
        rows = ["--set", "checkpoint.init_from=a", "--set", "checkpoint.init_rows=[embed.tokens, head.weight]"]
        _, err = self.train(5, 2, self.deck("b"), *rows, "--set", "model.vocab=299")  # fewer rows: which would be left out?
        assert "shape: /model/embed.tokens is [300,32], the model has [299,32]" in err
        _, err = self.train(5, 2, self.deck("b"), *rows, "--set", "model.vocab=301", "--set", "model.hidden=64")
        assert "shape: /model/embed.tokens is [300,32], the model has [301,64]" in err
        out, _ = self.train(0, 1, self.deck("same"), *rows, "--set", "model.vocab=300", "--set", "run.steps=0")
        assert "the rest is drawn" not in out
        assert self.tensors("same") == self.tensors("a")
        for name, why in (("layers.0.attention.qkv.weight", "has no row a token or position"), ("lm_head.weight", "is no weight of the model")):
            _, err = self.train(3, 2, self.deck("b"), "--set", "checkpoint.init_from=a", "--set", "model.vocab=300", "--set", f"checkpoint.init_rows=[{name}]")
            assert f"checkpoint.init_rows: {name} {why}" in err
        assert not os.path.exists(self.path("b"))
        # Wrong bytes among the rows that are taken are found.
        with open(self.path("a", "step_00000001", "model.h5"), "r+b") as file:
            data = file.read()
            at = data.index(self.rows_of("a", ["model.embed_tokens.weight"])["model.embed_tokens.weight"][7])
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        _, err = self.train(5, 2, self.deck("b"), *rows, "--set", "model.vocab=301")
        assert "embed.tokens holds other bytes than were saved" in err

    def test_wrong_bytes_of_positions_behind_a_shorter_models(self):
        learned = ["--set", "model.position=learned"]
        self.train(75, 1, self.deck("a", ""), *learned, "--stop-at", "1")
        shorter = [*learned, "--set", "model.seq_len=16", "--set", "checkpoint.init_from=a", "--set", "run.steps=0"]
        for ranks, more in ((1, []), (3, ["--set", "sharding=full"])):
            self.train(0, ranks, self.deck(f"b{ranks}", ""), *shorter, *more)
        assert self.tensors("b1") == self.tensors("b3")
        path = self.path("a", "step_00000001", "model.h5")
        with h5py.File(path) as file:
            name, = (name for name in file["model"] if "position" in name)
            table = file["model"][name]
            begin, width, rows = table.id.get_offset(), 4 * table.shape[1], table.shape[0]
        assert rows == 32
        with open(path, "rb") as file:
            sound = file.read()
        for ranks, row, more in ((1, 3, []), (1, 16, []), (3, 31, ["--set", "sharding=full"]), (2, 25, ["--set", "checkpoint.io=mpio"])):
            at = begin + row * width + 5
            self.write(path, sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:])
            _, err = self.train(5, ranks, self.deck("c", ""), *shorter, *more)
            assert f"/model/{name} holds other bytes than were saved" in err, (row, err)

    def test_wrong_bytes_are_found(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        with open(self.path("a", "step_00000001", "model.h5"), "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(end // 2)
            byte = file.read(1)
            file.seek(end // 2)
            file.write(bytes([byte[0] ^ 1]))
        assert "holds other bytes than were saved" in self.evaluate(5, 2, self.deck("a"), "--checkpoint", "a")
        _, err = self.train(5, 2, self.deck("b"), "--set", "checkpoint.init_from=a")
        assert "holds other bytes than were saved" in err
