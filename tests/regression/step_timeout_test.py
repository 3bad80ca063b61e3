"""A rank that stands still inside a step, without a time-out in the deck: named within that of steps, not after 300 s.
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
        while self.steps_done("a") < 25:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        pid = json.loads(self.read("a", "LOCK"))["ranks"][1]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            _, err = process.communicate(timeout=runs.PATIENCE)
        finally:
            os.kill(pid, signal.SIGKILL)
        assert process.returncode == 7, err
        waited = int(re.search(r"rank 0 has waited (\d+) s", err).group(1))
        assert waited >= 30
        assert waited < 300, err
        assert "rank 1 does not answer" in err
