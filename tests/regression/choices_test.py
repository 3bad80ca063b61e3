"""Choices of experts that a run records and another follows, and experts of a capacity, from outside.
"""
import collections
import json
import math
import os
import struct

import runs

MIXTURE = ("{experts: 6, top_k: 2, ffn: 32, first_dense: 1, shared_ffn: 16, scores: sigmoid, groups: 3, top_groups: 2, bias: true, "
           "balance_over: batch}")
LAYERS, TOKENS, K, EXPERTS, LENGTH = 2, 12 * 32, 2, 6, 32
HEAD, STEP = 4096, LAYERS * TOKENS * K * 2


class Choices(runs.Runs):
    def deck_of(self, name, moe=MIXTURE):
        text = runs.DECK.replace("MOE", f", moe: {moe}").replace("DIR", self.path(name)).replace("layers: 2", "layers: 3")
        # Sums over ranks in the order of the batch: without it gradients, and so later choices, may differ with the ranks.
        return self.write(f"{name}.yaml", text.replace("bucket_mib: 0.01", "bucket_mib: 0.01, order: batch") + "routing: {every_steps: 1}\n")

    def make(self, name, *settings, ranks=2, code=0, more=(), moe=MIXTURE, fault=""):
        words = [word for setting in settings for word in ("--set", setting)]
        return self.train(code, ranks, self.deck_of(name, moe), *words, *more, fault=fault)

    def record(self, name, *settings, **how):
        """Makes a run that records, and returns the record's bytes behind its head."""
        self.make(name, f"routing.record={name}.bin", *settings, **how)
        with open(self.path(f"{name}.bin"), "rb") as file:
            return file.read()[HEAD:]

    def routing(self, name):
        return [row for row in map(json.loads, self.read(name, "routing.jsonl").splitlines()) if "load" in row]

    def choices(self, data):
        """Of every step and layer: the experts of each token."""
        for step in range(len(data) // STEP):
            for layer in range(LAYERS):
                at = (step * LAYERS + layer) * TOKENS * K
                numbers = struct.unpack_from(f"={TOKENS * K}H", data, at * 2)
                yield step + 1, layer + 1, [[n - 1 for n in numbers[t * K:(t + 1) * K]] for t in range(TOKENS)]

    def test_any_ranks_write_the_same_and_no_bit_changes(self):
        self.make("plain", ranks=1)
        want = self.record("a", ranks=1)
        assert len(want) == 8 * STEP
        ways = {"two": (2, []), "three": (3, ["recompute.mode=full"]), "five": (5, ["model.moe.weights=discrete"]), "full": (2, ["sharding=full"]),
                "checked": (2, ["debug.spot_check_every=2"])}
        for name, (ranks, settings) in ways.items():
            assert self.record(name, *settings, ranks=ranks) == want, name
            assert self.final(name) == self.final("plain"), name
        loads = {(row["step"], row["layer"]): row["load"] for row in self.routing("plain")}
        for step, layer, tokens in self.choices(want):
            assert all(len(set(token)) == K for token in tokens)
            count = collections.Counter(expert for token in tokens for expert in token)
            assert [count[e] for e in range(EXPERTS)] == loads[step, layer]

    def test_a_run_that_follows_its_own_record_has_its_bits(self):
        want = self.record("a", ranks=2)
        rows = [{**row, "differ": 0} for row in self.routing("a")]
        ways = {"one": (1, []), "three": (3, ["recompute.mode=full"]), "five": (5, ["batch.micro=1"]), "checked": (2, ["debug.spot_check_every=2"]),
                "full": (2, ["sharding=full", "model.moe.weights=discrete"])}
        for name, (ranks, settings) in ways.items():
            assert self.record(name, "routing.replay=a.bin", *settings, ranks=ranks) == want, name
            assert (self.final(name), self.routing(name)) == (self.final("a"), rows), name
            assert self.rows(name) == self.rows("a"), name
        self.make("redone", "routing.replay=a.bin", fault="step4:all:redo")
        assert (self.final("redone"), self.routing("redone")) == (self.final("a"), rows)

    def test_other_arithmetic_and_other_ranks_follow_the_same_choices(self):
        """Of a run in bf16: bias, load and every choice are its own in any format, with experts on any ranks."""
        self.record("a", ranks=1)
        keys = ("step", "layer", "load", "max_vio", "bias", "choices", "unused")
        want = [{key: row[key] for key in keys} for row in self.routing("a")]
        ways = {"nvfp4": (2, ["precision.recipe=nvfp4"]), "fp32": (1, ["precision.compute=fp32"]), "micro": (2, ["batch.micro=3"]),
                "spread": (4, ["parallel.expert=2"]), "sgd": (3, ["optimizer.lr=0.1", "model.moe.weights=discrete"])}
        differing = {}
        for name, (ranks, settings) in ways.items():
            self.make(name, "routing.replay=a.bin", *settings, ranks=ranks)
            rows = self.routing(name)
            assert [{key: row[key] for key in keys} for row in rows] == want, name
            differing[name] = [row["differ"] for row in rows]
            assert self.final(name) != self.final("a"), name
        assert max(differing["nvfp4"]) > 0
        assert differing["sgd"][-1] > 0
        assert differing["micro"][:LAYERS] == [0] * LAYERS, "the first step's own choices"

    def test_a_resumed_run_goes_on_in_its_record(self):
        want = self.record("a", ranks=2)
        keep = ("--set", "checkpoint.keep_last=9")
        for stop in (1, 5):
            self.record("b", ranks=2, code=75, more=("--stop-at", str(stop), *keep))
        # A machine that dies leaves steps behind the checkpoint, the last in part.
        with open(self.path("b.bin"), "ab") as file:
            file.write(bytes(STEP + 99))
        assert self.record("b", ranks=3, more=keep) == want
        assert self.final("b") == self.final("a")
        # A branch takes no step from the line that it leaves.
        branch = ("--resume", self.path("b", "step_00000003"), *keep)
        err = self.make("b", "routing.record=b.bin", ranks=2, code=5, more=branch)[1]
        assert "routing.record: b.bin: is a record of steps 1 to 8, of which a branch that begins after step 3 would overwrite some" in err
        with open(self.path("b.bin"), "rb") as file:
            assert file.read()[HEAD:] == want
        self.make("b", "routing.record=c.bin", ranks=2, more=branch)
        with open(self.path("c.bin"), "rb") as file:
            assert file.read()[HEAD:] == want[3 * STEP:]
        # What begins in the middle can be followed from there, and a replay is resumed.
        self.make("d", "routing.replay=a.bin", ranks=2, code=75, more=("--stop-at", "3"))
        self.make("d", "routing.replay=c.bin", ranks=3)
        assert self.final("d") == self.final("a")

    def test_a_record_of_something_else_is_refused_before_the_first_step(self):
        self.record("a", ranks=1)
        with open(self.path("a.bin"), "rb") as file:
            whole = file.read()
        pieces = {"short": whole[:HEAD + 7 * STEP], "torn": whole[:-5], "holed": whole[:-6] + bytes(6), "twice": whole[:-2] + whole[-4:-2],
                  "head": whole[:99], "text": b"no record\n" * 1000, "empty": b""}
        for name, data in pieces.items():
            with open(self.path(f"{name}.bin"), "wb") as file:
                file.write(data)
        refusals = [("a", ["run.seed=5"], "run.seed 1234 instead of 5"), ("a", ["batch.global=6"], "batch.global 12 instead of 6"),
                    ("a", ["model.seq_len=16"], "seq_len 32 instead of 16"), ("a", ["model.moe.top_k=3"], "top_k 2 instead of 3"),
                    ("a", ["model.moe.experts=12"], "experts 6 instead of 12"), ("a", ["model.moe.first_dense=0"], "first_dense 1 instead of 0"),
                    ("a", ["data.shuffle=false"], "its samples are other windows"), ("a", ["data.eval_fraction=0.3"], "its samples are other windows"),
                    ("a", ["run.steps=9"], "holds steps 1 to 8, and this run makes 1 to 9"), ("short", [], "holds steps 1 to 7, and this run makes 1 to 8"),
                    ("torn", [], "ends early"), ("holed", [], "step 8, layer 1 of those with experts, token 382 of the batch: holds no choice"),
                    ("twice", [], "token 383 of the batch: holds no choice"), ("head", [], "is no record"), ("text", [], "is no record"),
                    ("empty", [], "is no record"), ("absent", [], "absent.bin")]
        for name, settings, text in refusals:
            err = self.make("b", f"routing.replay={name}.bin", *settings, code=5, ranks=2)[1]
            assert "routing.replay: " in err, name
            assert text in err, (name, settings)
            assert not os.path.exists(self.path("b")), (name, settings)
        for name, code, text in (("a", 5, "is the record of a run in another directory, of steps 1 to 8"), ("text", 2, "routing.record text.bin: is there, and is another kind of file")):
            err = self.make("b", f"routing.record={name}.bin", code=code, ranks=2)[1]
            assert text in err
        with open(self.path("a.bin"), "rb") as file:
            assert file.read() == whole
        # A step that a rank finds damaged ends all, by name.
        with open(self.path("late.bin"), "wb") as file:
            at = HEAD + 3 * STEP + 700
            file.write(whole[:at] + bytes(4) + whole[at + 4:])
        err = self.make("late", "routing.replay=late.bin", code=5, ranks=3)[1]
        assert "late.bin: step 4, layer 0 of those with experts, token 175 of the batch: holds no choice" in err

    def dropped(self, data, capacity):
        """Shares of the slots beyond a capacity, from the choices alone."""
        most = math.ceil(capacity * LENGTH * K / EXPERTS)
        for step, layer, tokens in self.choices(data):
            count = sum(max(0, n - most) for begin in range(0, TOKENS, LENGTH)
                        for n in collections.Counter(e for token in tokens[begin:begin + LENGTH] for e in token).values())
            yield step, layer, count / (TOKENS * K)

    def test_experts_of_a_capacity_take_the_first_tokens_of_each_sequence(self):
        moe = MIXTURE.replace("bias: true", "bias: true, capacity: 1.1")
        data = self.record("a", ranks=1, moe=moe)
        rows = self.routing("a")
        assert [(row["step"], row["layer"], row["dropped"]) for row in rows] == list(self.dropped(data, 1.1))
        assert max(row["dropped"] for row in rows) > 0
        ways = {"two": (2, []), "three": (3, ["recompute.mode=full"]), "full": (2, ["sharding=full", "model.moe.weights=discrete"])}
        for name, (ranks, settings) in ways.items():
            assert self.record(name, *settings, ranks=ranks, moe=moe) == data, name
            assert (self.final(name), self.routing(name), self.rows(name)) == (self.final("a"), rows, self.rows("a")), name
        # With experts of other ranks, and with other micro-batches, the first step's choices and drops.
        for name, ranks, setting in (("spread", 4, "parallel.expert=2"), ("micro", 2, "batch.micro=3")):
            self.make(name, setting, ranks=ranks, moe=moe, code=75, more=("--stop-at", "1"))
            assert self.routing(name) == rows[:LAYERS], name

    def test_ample_capacity_is_none(self):
        self.make("none", ranks=2)
        for name, capacity in (("even", 3), ("more", 100)):
            self.make(name, f"model.moe.capacity={capacity}", ranks=2)
            assert (self.final(name), self.rows(name)) == (self.final("none"), self.rows("none"))
            assert {row["dropped"] for row in self.routing(name)} == {0}

    def test_every_recipe_drops_alike_whatever_holds_the_weights(self):
        moe = MIXTURE.replace("shared_ffn: 16", "shared_ffn: 32").replace("bias: true", "bias: true, capacity: 0.8")
        for recipe in ("fp8_block", "fp8_tensor", "mxfp8", "nvfp4"):
            ends = {}
            for held in ("bf16", "quantized"):
                name = f"{recipe}_{held}"
                self.make(name, f"precision.recipe={recipe}", f"precision.primary_weights={held}", "model.ffn=64", ranks=2, moe=moe)
                ends[held] = self.final(name), self.routing(name)
                assert max(row["dropped"] for row in self.routing(name)) > 0.05
            assert ends["bf16"] == ends["quantized"], recipe
