"""A rank that stands still inside a step, without a time-out in the deck: named within that of steps, not after 300 s.

usage: step_timeout_test.py TESSERA MPIEXEC [unittest arguments]
"""
import json
import os
import re
import signal
import time

import runs


class StepTimeout(runs.Runs):
    def test_after_twenty_steps_a_stopped_rank_is_named_soon(self):
        endless = ("run.steps=1000000", "eval.every_steps=0", "checkpoint.every_steps=0")
        process = self.start(2, self.deck("a", None), *(word for key in endless for word in ("--set", key)))
        deadline = time.monotonic() + runs.PATIENCE
        while self.steps() < 25:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        pid = json.loads(self.read("a", "LOCK"))["ranks"][1]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            _, err = process.communicate(timeout=runs.PATIENCE)
        finally:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(process.returncode, 7, err)
        waited = int(re.search(r"rank 0 has waited (\d+) s", err).group(1))
        self.assertGreaterEqual(waited, 30)
        self.assertLess(waited, 300, err)
        self.assertIn("rank 1 does not answer", err)

    def steps(self):
        return len(self.json_lines("a", "metrics.jsonl")) if os.path.exists(self.path("a", "metrics.jsonl")) else 0


if __name__ == "__main__":
    runs.main()
