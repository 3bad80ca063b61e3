"""A step that would be skipped is computed once more. Other bits are a machine's fault: the run ends with code 8 and the names
of ranks, hosts, devices and tensors, nothing of the step is kept, and the same command goes on. Equal bits are the
data's: the step is skipped.

usage: suspects_test.py TESSERA MPIEXEC
"""
import itertools
import os
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
            self.assertIn(f"step {FAULTY} would be skipped, and gave other bits", err)
            self.assertRegex(err, rf"rank \d \({socket.gethostname()}, .*\): ({kinds[kind]})")
            if kind == "shard":
                self.assertIn(f"rank {rank} (", err)
            self.assertEqual(self.json_lines(name, "metrics.jsonl")[-1]["step"], FAULTY - 1)
            self.assertEqual(max(entry for entry in os.listdir(self.path(name)) if entry.startswith("step_")), "step_00000004")
            self.train(0, ranks, self.deck(name), *self.settings(order))
            self.assertEqual((self.rows(name), self.final(name)), whole[ranks, order], (ranks, order, kind))

    def test_what_the_data_does_twice_is_skipped(self):
        for ranks, order in itertools.product((1, 2), ("rank", "batch")):
            name = f"run{ranks}{order}"
            out, _ = self.train(0, ranks, self.deck(name), *self.settings(order), fault=f"step{FAULTY}:{ranks - 1}:nan")
            self.assertIn(f"step {FAULTY}: computed once more with the same bits", out)
            self.assertEqual([row["step"] for row in self.json_lines(name, "metrics.jsonl") if row["skipped"]], [FAULTY])

    def test_a_run_may_be_asked_not_to(self):
        out, _ = self.train(0, 2, self.deck("run"), *self.settings("rank"), "--set", "debug.confirm_skips=never", fault=f"step{FAULTY}:1:shard")
        self.assertNotIn("once more", out)
        self.assertEqual([row["step"] for row in self.json_lines("run", "metrics.jsonl") if row["skipped"]], [FAULTY])


if __name__ == "__main__":
    runs.main()
