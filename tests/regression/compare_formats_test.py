"""Every command of docs/compare_formats.md, on its deck and sweep with fewer steps.

usage: compare_formats_test.py TESSERA MPIEXEC
"""
import os
import re
import shutil
import subprocess
import sys
import textwrap
import unittest

import documents
import runs

MPIEXEC = ""


class CompareFormats(runs.InFolder):
    def test_every_command(self):
        blocks = [textwrap.dedent(block).strip("\n") for block in documents.indented(documents.read("docs/compare_formats.md"))]
        (deck,) = [block for block in blocks if block.startswith("schema_version")]
        (sweep,) = [block for block in blocks if block.startswith("precision.recipe,")]
        commands = [block for block in blocks if block not in (deck, sweep)]
        self.assertEqual(len(commands), 3)
        self.assertEqual(len(sweep.split()), 10)
        for short, long in (("steps: 4", "steps: 200"), ("every_steps: 2", "every_steps: 20"), ("statistics_every: 2", "statistics_every: 50"),
                            ("warmup_steps: 2", "warmup_steps: 20"), ("layers: 1", "layers: 4"), ("seq_len: 32", "seq_len: 64")):
            self.assertIn(long, deck)
            deck = deck.replace(long, short)
        self.write("formats.yaml", deck)
        self.write("formats.csv", sweep)
        shutil.copytree(os.path.join(documents.ROOT, "docs"), self.path("docs"))
        for name in ("python", "jobscripts"):
            os.symlink(os.path.join(documents.ROOT, name), self.path(name))
        os.makedirs(self.path("build", "host"))
        os.symlink(runs.TESSERA, self.path("build", "host", "tessera"))
        said = [subprocess.run(["bash", "-ec", command], cwd=self.folder, capture_output=True, text=True, timeout=runs.PATIENCE,
                               env={**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "TESSERA": runs.TESSERA, "MPIEXEC": MPIEXEC, "OMP_NUM_THREADS": "1"}) for command in commands]
        for done in said:
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        table = said[0].stdout[said[0].stdout.index("precision.primary_weights"):]
        self.assertEqual(len(re.findall(r"\d \+- \d", table)), 3 * 2 + 2 * 2, table)
        self.assertIn('class="band b2"', self.read("formats.html"))
        self.assertIn("quantizers in step 4", said[1].stdout)
        self.assertRegex(said[2].stdout, r"(?m)^4 gradient columnwise 0\.\d+")


if __name__ == "__main__":
    runs.TESSERA, MPIEXEC = os.path.abspath(sys.argv.pop(1)), sys.argv.pop(1)
    unittest.main(verbosity=2)
