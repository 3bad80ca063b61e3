"""Moving averages of weights (optimizer.ema) from outside: made again in numpy from a run's checkpoints, equal through a resume on
other ranks, evaluated, exported and generated from; and what is refused.
"""
import json
import os

import h5py
import numpy as np

import runs



class Averages(runs.Runs):
    decay = 0.75

    def setup_method(self):
        super().setup_method()
        self.settings = ("--set", f"optimizer.ema={self.decay}", "--set", "eval.every_steps=2", "--set", "checkpoint.every_steps=1",
                         "--set", "checkpoint.keep_last=99", "--set", "run.steps=6")

    def tensors(self, folder, slot):
        """{name: values} of a slot, 'model' or 'ema'."""
        found = {}
        with h5py.File(os.path.join(self.path(folder), "model.h5" if slot == "model" else "optimizer.h5")) as file:
            file[slot].visititems(lambda name, what: found.update({name: what[()]}) if isinstance(what, h5py.Dataset) else None)
        return found

    def rows_of(self, directory):
        return [(row["loss"], row.get("eval_loss"), row["grad_norm"]) for row in self.json_lines(directory, "metrics.jsonl")]

    def evaluate(self, *arguments):
        return json.loads(self.run_to_its_end(0, 1, "eval", *arguments, "--json")[0])


class Made(Averages):
    def test_they_are_what_their_formula_says(self):
        for weights, further in ((None, ()), ("single", ("--set", "optimizer.matrices=muon", "--set", "sharding=full"))):
            deck = self.deck(f"run-{weights}", weights)
            self.train(0, 2, deck, *self.settings, *further)
            before = None
            for step in range(1, 7):
                masters, averages = (self.tensors(f"run-{weights}/step_{step:08}", slot) for slot in ("model", "ema"))
                assert set(masters) == set(averages)
                if before:
                    for name, master in masters.items():
                        made = before[name] + np.float32(1 - self.decay) * (master - before[name])
                        np.testing.assert_array_equal(made, averages[name], name)
                        assert np.any(master != averages[name]) or not np.any(master), name
                before = averages

    def test_a_resume_on_other_ranks_and_the_digest(self):
        deck = self.deck("run")
        any_ranks = (*self.settings, "--set", "reduce.order=batch")
        self.train(0, 1, deck, *any_ranks)
        self.train(75, 3, deck, *any_ranks, "--set", "checkpoint.dir=parts", "--stop-at", "3")
        self.train(0, 2, deck, *any_ranks, "--set", "checkpoint.dir=parts", "--set", "sharding=full")
        assert self.rows_of("run") == self.rows_of("parts")
        assert self.final("run") == self.final("parts")
        self.train(0, 1, deck, *any_ranks, "--set", "optimizer.ema=0.5", "--set", "checkpoint.dir=other")
        assert self.final("run") != self.final("other"), "averages are part of the state"
        _, err = self.train(3, 1, deck, *any_ranks, "--set", "optimizer.ema=0.9")
        assert "optimizer.ema" in err


class Used(Averages):
    def test_evaluations_exports_and_texts_take_them(self):
        deck = self.deck("run")
        self.train(0, 2, deck, *self.settings)
        self.train(0, 2, deck, *self.settings, "--set", "eval.weights=trained", "--set", "checkpoint.dir=trained")
        ours, theirs = self.rows_of("run"), self.rows_of("trained")
        assert [row[::2] for row in ours] == [row[::2] for row in theirs], "what is evaluated changes no step"
        last = {"run": ours[-1][1], "trained": theirs[-1][1]}
        assert last["run"] != last["trained"]
        checkpoint = ("--checkpoint", "run/step_00000006")
        assert self.evaluate(deck, *checkpoint, "--ema")["eval_loss"] == last["run"]
        assert self.evaluate(deck, *checkpoint, "--ema")["weights"] == "ema"
        assert self.evaluate(deck, *checkpoint)["eval_loss"] == last["trained"]
        # As a checkpoint of their own, in another layout of experts, and as a folder of Hugging Face.
        self.tool(0, "convert", "run", "averages", "--ema", "--experts", "discrete")
        self.tool(0, "convert", "run", "plain", "--weights-only", "--experts", "discrete")
        assert self.evaluate(deck, "--checkpoint", "averages")["eval_loss"] == last["run"]
        assert self.evaluate(deck, "--checkpoint", "plain")["eval_loss"] == last["trained"]
        assert not os.path.exists(self.path("averages", "optimizer.h5"))
        prompt = ("--prompt", "the ", "--tokens", "20", "--temperature", "0")
        texts = {name: self.run_to_its_end(0, ranks, "generate", *arguments, *prompt)[0]
                 for name, ranks, arguments in (("ema", 1, ("run", "--ema")), ("ema of 2", 2, ("run", "--ema")), ("copy", 1, ("averages",)),
                                                ("plain", 1, ("plain",)), ("trained", 1, ("run",)))}
        assert len({texts["ema"], texts["ema of 2"], texts["copy"]}) == 1, texts
        assert texts["plain"] == texts["trained"]
        # A run may begin with them.
        self.train(0, 1, deck, "--set", "checkpoint.dir=begun", "--set", "checkpoint.init_from=averages", "--set", "run.steps=0")
        begun, averages = self.tensors("begun/step_00000000", "model"), self.tensors("run/step_00000006", "ema")
        for name, values in averages.items():
            np.testing.assert_array_equal(begun[name], values, name)

    def test_what_has_none_is_refused(self):
        deck = self.deck("run", None)
        self.train(0, 1, deck, "--set", "run.steps=1")
        for verb, arguments in (("eval", (deck, "--checkpoint", "run", "--ema")), ("generate", ("run", "--ema", "--prompt", "the"))):
            _, err = self.run_to_its_end(5, 2, verb, *arguments)
            assert err.count("holds no averages of weights: its run had no optimizer.ema") == 1, err
        assert "holds no averages" in self.tool(5, "convert", "run", "out", "--ema")
        assert not os.path.exists(self.path("out"))
        _, err = self.train(3, 1, deck, "--set", "eval.weights=ema", "--set", "checkpoint.dir=new")
        assert "eval.weights: is ema, and no averages are kept" in err
