"""Each test in Python is named by a ctest test, and each name is that of a test: a test that python_test() was not told of never runs.
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))


class Named:
    def nodes(self, ctest):
        """What ctest tests name, as pytest does: FILE, FILE::CLASS, FILE::CLASS::TEST, FILE::CLASS::TEST[CASE]."""
        with tempfile.TemporaryDirectory() as folder:  # in the build's own, ctest would begin the log of the run under way anew
            with open(os.path.join(folder, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
                file.write(f'subdirs("{self.build}")\n')
            listed = subprocess.run([ctest, "--show-only=json-v1"], cwd=folder, capture_output=True, text=True, check=True, timeout=120)
        commands = [test.get("command", []) for test in json.loads(listed.stdout)["tests"]]
        words = [word for command in commands if command[1:3] == ["-m", "pytest"] for word in command[3:command.index("--tessera")]]
        return {os.path.relpath(os.path.realpath(word), ROOT) for word in words}

    def test_ctest_names_what_pytest_collects(self, configured):
        nodes = self.nodes(configured["CMAKE_CTEST_COMMAND"])
        files = {node.split("::")[0] for node in nodes}
        done = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-qq", "--tessera", self.tessera, *sorted(files)], cwd=ROOT,
                              capture_output=True, text=True, timeout=240)
        assert done.returncode in (0, 77), done.stdout + done.stderr  # 77: files were skipped
        collected = [line for line in done.stdout.splitlines() if "::" in line]
        there = {line.split("::")[0] for line in collected}  # all but files that miss a library
        covering = {test: {node for node in nodes if test == node or test.startswith((node + "::", node + "["))} for test in collected}
        assert [test for test, names in covering.items() if not names] == []
        assert {node for node in nodes if node.split("::")[0] in there} - set().union(*covering.values()) == set()
