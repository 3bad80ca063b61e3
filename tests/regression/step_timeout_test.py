"""A rank that stands still inside a step, without a time-out in the deck: named within that of steps, not after 300 s. One that
removes old checkpoints for longer has the time-out of saves.
"""
import contextlib
import json
import os
import re
import signal
import time

import processes
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

    def test_slow_retention_has_the_time_out_of_saves(self):
        """Rank 0 stands still while it removes the checkpoint before, for longer than a step may take."""
        often = ("run.steps=40", "eval.every_steps=0", "checkpoint.every_steps=1")
        process = self.start(2, self.deck("a", None), *(word for key in often for word in ("--set", key)), fault="retire:0:stop:30")
        deadline = time.monotonic() + runs.PATIENCE
        first = None
        while not first or processes.state_of(first) != "T":
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
            with contextlib.suppress(OSError, ValueError):
                first = json.loads(self.read("a", "LOCK"))["ranks"][0]["pid"]
        time.sleep(45)
        with contextlib.suppress(ProcessLookupError):  # it should be there
            os.kill(first, signal.SIGCONT)
        out, err = process.communicate(timeout=runs.PATIENCE)
        assert process.returncode == 0, err
        assert "saved " in out
