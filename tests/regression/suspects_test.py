"""A step that would be skipped is computed once more. Other bits are a machine's fault: the run ends with code 8 and the names
of ranks, hosts, devices and tensors, nothing of the step is kept, and the same command goes on. Equal bits are the
data's: the step is skipped. A spot check finds faults that look sound: a micro-batch that two ranks compute.
"""
import itertools
import os
import re
import socket

import runs

FAULTY = 5  # the step


class Suspects(runs.Runs):
    def settings(self, order):
        return ("--set", f"reduce.order={order}", "--set", "checkpoint.every_steps=2", "--set", "batch.micro=2")

    def test_a_machine_that_computes_other_bits_ends_the_run(self):
        kinds = {"activation": "the losses of micro-batch|the gradient of ", "gradient": "the gradient of ", "shard": "the gradient of "}
        whole = {}
        for number, (ranks, order, kind) in enumerate(itertools.product((1, 2, 3), ("rank", "batch"), kinds)):
            if (ranks, order) not in whole:
                name = f"whole{len(whole)}"
                self.train(0, ranks, self.deck(name), *self.settings(order))
                whole[ranks, order] = self.rows(name), self.final(name)
            name, rank = f"run{number}", ranks - 1
            out, err = self.train(8, ranks, self.deck(name), *self.settings(order), fault=f"step{FAULTY}:{rank}:{kind}")
            assert f"step {FAULTY} would be skipped, and gave other bits" in err
            assert re.search(rf"rank \d \({socket.gethostname()}, .*\): ({kinds[kind]})", err)
            if kind == "shard":
                assert f"rank {rank} (" in err
            assert self.json_lines(name, "metrics.jsonl")[-1]["step"] == FAULTY - 1
            assert max(entry for entry in os.listdir(self.path(name)) if entry.startswith("step_")) == "step_00000004"
            self.train(0, ranks, self.deck(name), *self.settings(order))
            assert (self.rows(name), self.final(name)) == whole[ranks, order], (ranks, order, kind)

    def test_what_the_data_does_twice_is_skipped(self):
        for ranks, order in itertools.product((1, 2), ("rank", "batch")):
            name = f"run{ranks}{order}"
            out, _ = self.train(0, ranks, self.deck(name), *self.settings(order), fault=f"step{FAULTY}:{ranks - 1}:nan")
            assert f"step {FAULTY}: computed once more with the same bits" in out
            assert [row["step"] for row in self.json_lines(name, "metrics.jsonl") if row["skipped"]] == [FAULTY]

    def test_a_run_may_be_asked_not_to(self):
        out, _ = self.train(0, 2, self.deck("run"), *self.settings("rank"), "--set", "debug.confirm_skips=never", fault=f"step{FAULTY}:1:shard")
        assert "once more" not in out
        assert [row["step"] for row in self.json_lines("run", "metrics.jsonl") if row["skipped"]] == [FAULTY]


class SpotChecks(runs.Runs):
    """Every 4th step is checked."""

    CHECKED = 4

    def settings(self, experts=1, sharding="optimizer", order="rank", *more):
        named = (f"parallel.expert={experts}", f"sharding={sharding}", f"reduce.order={order}", "checkpoint.every_steps=2", "batch.micro=2", *more)
        return [word for setting in named for word in ("--set", setting)]

    def made(self, name, ranks, experts, settings, code=0, fault="", every=0):
        deck = self.deck(name, "discrete" if experts > 1 else None)
        return self.train(code, ranks, deck, *settings, "--set", f"debug.spot_check_every={every}", fault=fault)

    def outcome(self, name):
        return self.rows(name), self.final(name)

    def test_a_fault_that_looks_sound_is_named(self):
        """Alone, two, three ranks and groups: the same message names host, tensor and rank; the same command goes on with the
        bits of a run without checks."""
        blames = "rank {} is at fault$"
        unsure = "rank {} is at fault, or rank {} always errs in the same way$"
        number = 0
        for ranks, experts, sharding, order, faulty, faults in (
                (1, 1, "optimizer", "batch", 0, {"bit": [blames.format(0)], "number": [blames.format(0)]}),
                (2, 1, "full", "rank", 1, {"bit": [blames.format(1)], "bit_for_another": [unsure.format(1, 0)]}),
                (3, 1, "optimizer", "rank", 1, {"bit_always": 2 * [blames.format(1)], "number": [blames.format(1)]}),
                (3, 1, "full", "batch", 2, {"bit_for_another": [blames.format(2)]}),
                (4, 2, "optimizer", "rank", 3, {"bit": [blames.format(3)]})):
            settings = self.settings(experts, sharding, order, *(("batch.global=16",) if ranks == 4 else ()))
            whole = f"whole{number}"
            self.made(whole, ranks, experts, settings)
            for fault, verdicts in faults.items():
                number += 1
                name = f"run{number}"
                _, err = self.made(name, ranks, experts, settings, 8, f"step{self.CHECKED}:{faulty}:{fault}", self.CHECKED)
                lines = [line for line in err.splitlines() if line.startswith("  micro-batch ")]
                assert len(lines) == len(verdicts), err
                for line, verdict in zip(lines, verdicts):
                    device = rf"rank \d \({socket.gethostname()}, .*\)"
                    assert re.search(rf"micro-batch \d, the gradient of \S+ by {device} and by {device}: {verdict}", line)
                assert self.json_lines(name, "metrics.jsonl")[-1]["step"] == self.CHECKED - 1
                assert max(entry for entry in os.listdir(self.path(name)) if entry.startswith("step_")) == "step_00000002"
                self.made(name, ranks, experts, settings)
                assert self.outcome(name) == self.outcome(whole), (ranks, experts, sharding, order, fault)

    def test_without_a_check_it_trains_on_silently(self):
        settings = self.settings()
        self.made("whole", 2, 1, settings)
        for fault in ("bit", "number"):
            self.made(fault, 2, 1, settings, 0, f"step{self.CHECKED}:1:{fault}", every=self.CHECKED - 1)
            assert self.final(fault) != self.final("whole")

    def test_checks_change_no_bit(self):
        cases = ((1, 1, "optimizer", "batch", "precision.recipe=nvfp4"), (2, 1, "full", "rank", "precision.recipe=mxfp8"),
                 (2, 2, "optimizer", "batch"), (3, 1, "optimizer", "rank", "proof.reduce_overlap=false"),
                 (4, 2, "full", "batch", "recompute.mode=full"), (4, 1, "full", "batch", "precision.recipe=fp8_block", "proof.gather_overlap=false"))
        for number, (ranks, *case) in enumerate(cases):
            settings = self.settings(*case, "model.hidden=64", "model.ffn=96", "batch.global=24")
            self.made(f"off{number}", ranks, case[0], settings)
            self.made(f"on{number}", ranks, case[0], settings, every=number % 3 + 1)
            assert self.outcome(f"on{number}") == self.outcome(f"off{number}"), (ranks, *case)
