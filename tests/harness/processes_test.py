"""What processes.py says of a process that is watched from its start to its end.
"""
import os
import shutil
import signal
import subprocess
import time
import uuid

import processes

SLEEP = shutil.which("sleep")


def until(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


class Processes:
    def setup_method(self):
        self.mark = str(uuid.uuid4())

    def sleeper(self, **variables):
        process = subprocess.Popen([SLEEP, "600"], cwd=self.folder, env={**os.environ, "MARK": self.mark, **variables})
        self.at_end.callback(process.wait)
        self.at_end.callback(process.kill)
        until(lambda: process.pid in processes.find(SLEEP, self.folder, MARK=self.mark))
        return process

    def test_each_condition_tells_one_from_another(self):
        first, second = self.sleeper(PMI_RANK="0"), self.sleeper(OMPI_COMM_WORLD_RANK="3")
        both = {first.pid, second.pid}
        assert set(processes.find(SLEEP, self.folder, MARK=self.mark)) == both
        assert set(processes.find(MARK=self.mark)) == both
        assert processes.find(SLEEP, MARK=self.mark, PMI_RANK="0") == [first.pid]
        assert processes.ranks(SLEEP, self.folder) == {0: first.pid, 3: second.pid}
        assert processes.find(SLEEP, self.folder, MARK="another") == []
        assert processes.find(SLEEP, os.path.dirname(self.folder), MARK=self.mark) == []
        assert processes.find(os.path.realpath("/proc/self/exe"), MARK=self.mark) == []
        assert set(processes.find(space=processes.space_of(os.getpid()), MARK=self.mark)) == both
        assert processes.find(space="pid:[1]", MARK=self.mark) == []

    def test_states(self):
        process = self.sleeper()
        until(lambda: processes.state_of(process.pid) == "S")
        process.send_signal(signal.SIGSTOP)
        until(lambda: processes.state_of(process.pid) == "T")
        process.send_signal(signal.SIGTERM)  # waits until the process goes on
        assert processes.signalled(process.pid, signal.SIGTERM)
        assert not processes.signalled(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        until(lambda: processes.state_of(process.pid) == "Z")
        assert process.wait() == -signal.SIGTERM

    def test_of_a_process_that_has_ended_nothing_is_said(self):
        process = self.sleeper(PMI_RANK="2")
        process.kill()
        process.wait()
        assert (processes.state_of(process.pid), processes.space_of(process.pid)) == ("", "")
        assert (processes.environment(process.pid), processes.computed(process.pid)) == ({}, 0.0)
        assert not processes.signalled(process.pid, signal.SIGTERM)
        assert processes.find(MARK=self.mark) == []

    def test_computed_time_grows(self):
        began = processes.computed(os.getpid())
        until(lambda: processes.computed(os.getpid()) > began)
