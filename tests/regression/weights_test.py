"""Weights without their run: their evaluation, and runs that start with them.

usage: weights_test.py TESSERA MPIEXEC
"""
import json
import math
import os

import runs


class Weights(runs.Runs):
    def evaluate(self, code, ranks, *arguments):
        out, err = self.run_to_its_end(code, ranks, "eval", *arguments)
        if code == 0:
            self.assertEqual((out.count("\n"), err), (1, ""))
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
                    self.assertEqual({key: found[key] for key in want}, want)
                    self.assertLessEqual(found["eval_windows"], found["eval_windows_kept"])
                    self.assertAlmostEqual(math.log(found["perplexity"]), found["eval_loss"], places=4)
                    self.assertAlmostEqual(found["bits_a_byte"] * math.log(2), found["eval_loss"], places=4)
            # Whole micro-batches are added in one order: any number of ranks gets the same bits, also if it exceeds the
            # number of windows. (5 ranks could not train this deck.)
            for other in (1, 2, 3, 4, 5):
                found = self.evaluate(0, other, self.deck("a", weights), "--checkpoint", "a", "--json")
                self.assertEqual(found["eval_loss"], self.json_lines("a", "metrics.jsonl")[-1]["eval_loss"])
            few = ["--set", "batch.global=2", "--set", "eval.batches=1"]
            losses = {self.evaluate(0, other, self.deck("a", weights), "--checkpoint", "a", "--json", *few)["eval_loss"]
                      for other in (1, 2, 3, 4)}
            self.assertEqual(len(losses), 1, losses)
            for run in ("a", "b"):
                os.rename(self.path(run), self.path(f"{run}-{weights}"))

    def test_eval_refuses(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        before = sorted(os.listdir(self.path("a")))
        self.assertIn("nowhere", self.evaluate(5, 2, self.deck("a"), "--checkpoint", "nowhere"))
        self.assertIn("eval_fraction", self.evaluate(3, 1, self.deck("a"), "--checkpoint", "a", "--set", "data.eval_fraction=0"))
        err = self.evaluate(5, 2, self.deck("a"), "--checkpoint", "a", "--set", "model.heads=2", "--set", "model.layers=3")
        self.assertIn("key: model.heads was 4, is 2 in the deck", err)
        self.assertIn("missing: /model/layers.2.attention.qkv.weight", err)
        os.truncate(self.path("a", "step_00000001", "model.h5"), 100)
        self.assertIn("model.h5", self.evaluate(5, 1, self.deck("a"), "--checkpoint", "a"))
        self.assertEqual(sorted(os.listdir(self.path("a"))), before)
        self.evaluate(2, 1, self.deck("a"))

    def test_eval_says_it_in_words(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        out, _ = self.run_to_its_end(0, 1, "eval", self.deck("a"), "--checkpoint", "a")
        self.assertRegex(out, r"^step 1 \| eval_loss \d+\.\d+ \| perplexity [\d.]+ \| [\d.]+ bits a byte \| \d+ of [\d,]+ windows?, [\d,]+ tokens \| recipe bf16 \| "
                              r"384 tokens trained on\n$")
        for recipe in ("nvfp4", "mxfp8"):
            out, _ = self.run_to_its_end(0, 1, "eval", self.deck("a"), "--checkpoint", "a", "--set", f"precision.recipe={recipe}")
            self.assertIn(f"| recipe {recipe} (the checkpoint's is bf16) |", out)

    def tensors(self, run):
        return {tensor["name"]: tensor["digest"] for tensor in self.tool(0, "inspect", run)["tensors"]}

    def test_a_run_starts_with_given_weights(self):
        self.train(75, 2, self.deck("a"), "--stop-at", "4")
        for ranks, weights in ((1, "discrete"), (3, "single")):
            name = f"b{ranks}"
            deck = self.deck(name, weights)
            out, _ = self.train(0, ranks, deck, "--set", "checkpoint.init_from=a", "--set", "run.steps=0")
            self.assertIn("starts with the weights of", out)
            found = self.tool(0, "inspect", name)
            self.assertEqual((found["step"], found["tokens"]), (0, 0))
            self.assertEqual(self.tensors(name), self.tensors("a"))
            self.assertNotEqual(found["optimizer"], self.tool(0, "inspect", "a")["optimizer"])  # moments begin anew
        # The corpus may differ from the saved run's; and a second start resumes, whatever init_from says.
        deck = self.deck("c")
        arguments = [deck, "--set", "checkpoint.init_from=a", "--set", "optimizer.beta1=0.8", "--set", "run.steps=9"]
        self.train(75, 2, *arguments, "--stop-at", "5")
        first = self.json_lines("c", "metrics.jsonl")[0]
        self.assertLess(first["loss"], self.json_lines("a", "metrics.jsonl")[0]["loss"])
        os.rename(self.path("a"), self.path("gone"))
        out, _ = self.train(0, 2, *arguments)
        self.assertIn("resumed from", out)
        self.assertEqual(len(self.rows("c", 9)), 9)

    def test_another_models_weights(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        wider = ["--set", "checkpoint.init_from=a", "--set", "model.layers=3"]
        _, err = self.train(5, 2, self.deck("b"), *wider)
        self.assertIn("is of another model", err)
        self.assertIn("missing: /model/layers.2.attention.qkv.weight", err)
        self.assertFalse(os.path.exists(self.path("b")))
        missing = [line.split("/model/")[1] for line in err.splitlines() if "missing:" in line]
        self.train(0, 2, self.deck("b"), *wider, "--set", f"checkpoint.init_missing=[{', '.join(missing)}]", "--set", "run.steps=0")
        self.train(0, 1, self.deck("drawn"), "--set", "model.layers=3", "--set", "run.steps=0")
        drawn, given = self.tensors("drawn"), self.tensors("a")
        self.assertEqual(self.tensors("b"), {**drawn, **given})

        _, err = self.train(5, 1, self.deck("c"), "--set", "checkpoint.init_from=b", "--set", "model.layers=2")
        self.assertIn("extra: /model/layers.2.attention.qkv.weight", err)
        self.train(0, 1, self.deck("c"), "--set", "checkpoint.init_from=b", "--set", "model.layers=2", "--set", "run.steps=0", "--set",
                   "checkpoint.init_ignore_extra=true")
        self.assertEqual(self.tensors("c"), given)

        _, err = self.train(5, 1, self.deck("d"), "--set", "checkpoint.init_from=a", "--set", "model.ffn=64")
        self.assertIn("shape: /model/layers.0.moe.experts.gate_up.weight is [4,96,32], the model has [4,128,32]", err)
        _, err = self.train(3, 1, self.deck("d"), "--set", "checkpoint.init_from=a", "--set", "checkpoint.init_missing=[nothing]")
        self.assertIn("checkpoint.init_missing: nothing is no weight of the model", err)
        _, err = self.train(5, 1, self.deck("d"), "--set", "checkpoint.init_from=nowhere")
        self.assertIn("nowhere", err)
        self.assertFalse(os.path.exists(self.path("d")))

    def test_converted_weights(self):
        self.train(75, 2, self.deck("a"), "--stop-at", "2")
        self.tool(0, "convert", "a", "half", "--weights-only", "--dtype", "bf16", "--experts", "discrete")
        self.tool(0, "convert", "half", "rounded", "--dtype", "fp32")
        for ranks in (1, 3):
            self.train(0, ranks, self.deck(f"b{ranks}"), "--set", "checkpoint.init_from=half", "--set", "run.steps=0")
            self.assertEqual(self.tensors(f"b{ranks}"), self.tensors("rounded"))
        self.assertNotEqual(self.tensors("b1"), self.tensors("a"))
        losses = [self.evaluate(0, 2, self.deck("a"), "--checkpoint", source, "--json")["eval_loss"] for source in ("half", "rounded")]
        self.assertEqual(losses[0], losses[1])
        _, err = self.train(5, 2, self.deck("c"), "--resume", "half")
        self.assertIn("holds weights alone", err)

    def test_weights_of_another_program(self):
        self.train(75, 1, self.deck("a", ""), "--stop-at", "2")
        self.tool(0, "convert", "a", "llama", "--to", "safetensors")
        out, _ = self.train(0, 2, self.deck("b", ""), "--set", "checkpoint.init_from=llama", "--set", "run.steps=0")
        self.assertIn("starts with the weights of", out)
        self.assertEqual(self.tensors("b"), self.tensors("a"))
        _, err = self.train(5, 2, self.deck("c", ""), "--set", "checkpoint.init_from=llama", "--set", "model.rope_base=500")
        self.assertIn("key: model.rope_base was 10000, is 500 in the deck", err)

    def test_wrong_bytes_are_found(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "1")
        with open(self.path("a", "step_00000001", "model.h5"), "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(end // 2)
            byte = file.read(1)
            file.seek(end // 2)
            file.write(bytes([byte[0] ^ 1]))
        self.assertIn("holds other bytes than were saved", self.evaluate(5, 2, self.deck("a"), "--checkpoint", "a"))
        _, err = self.train(5, 2, self.deck("b"), "--set", "checkpoint.init_from=a")
        self.assertIn("holds other bytes than were saved", err)


if __name__ == "__main__":
    runs.main()
