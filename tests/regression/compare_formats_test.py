"""Every command of docs/compare_formats.md and of the study in docs/recipes/format.md, on their decks and sweeps with fewer steps.

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


SHORTER = (("steps: 4", "steps: 200"), ("every_steps: 2", "every_steps: 20"), ("statistics_every: 2", "statistics_every: 50"),
           ("warmup_steps: 2", "warmup_steps: 20"), ("layers: 1", "layers: 4"), ("seq_len: 32", "seq_len: 64"))


class Pages(runs.InFolder):
    def run_page(self, page, deck_name, sweep_name, lines, begins):
        """Runs a page's commands on its deck and sweep, whose first column `begins` with; what each said."""
        blocks = [textwrap.dedent(block).strip("\n") for block in documents.indented(page)]
        (deck,) = [block for block in blocks if block.startswith("schema_version")]
        (sweep,) = [block for block in blocks if block.startswith(begins + ",")]
        commands = [block for block in blocks if block not in (deck, sweep)]
        self.assertEqual((len(commands), len(sweep.split())), (3, lines))
        for short, long in SHORTER:
            self.assertIn(long, deck)
            deck = deck.replace(long, short)
        self.write(deck_name, deck)
        self.write(sweep_name, sweep)
        shutil.copytree(os.path.join(documents.ROOT, "docs"), self.path("docs"))
        for name in ("python", "jobscripts"):
            os.symlink(os.path.join(documents.ROOT, name), self.path(name))
        os.makedirs(self.path("build", "host"))
        os.symlink(runs.TESSERA, self.path("build", "host", "tessera"))
        said = [subprocess.run(["bash", "-ec", command], cwd=self.folder, capture_output=True, text=True, timeout=runs.PATIENCE,
                               env={**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "TESSERA": runs.TESSERA, "MPIEXEC": MPIEXEC, "OMP_NUM_THREADS": "1"}) for command in commands]
        for done in said:
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return said

    def test_compare_formats(self):
        said = self.run_page(documents.read("docs/compare_formats.md"), "formats.yaml", "formats.csv", 10, "precision.recipe")
        table = said[0].stdout[said[0].stdout.index("precision.primary_weights"):]
        self.assertEqual(len(re.findall(r"\d \+- \d", table)), 3 * 2 + 2 * 2, table)
        self.assertIn('class="band b2"', self.read("formats.html"))
        self.assertIn("quantizers in step 4", said[1].stdout)
        self.assertRegex(said[2].stdout, r"(?m)^4 gradient columnwise 0\.\d+")

    def test_a_format_of_ones_own(self):
        page = documents.read("docs/recipes/format.md").split("## Add one to the program")[0]
        said = self.run_page(page, "own.yaml", "own.csv", 10, "precision.recipe.weight")
        self.assertIn("int4_128", self.read("own.html"))
        errors = {tuple(words[:3]): float(words[3]) for words in map(str.split, said[1].stdout.splitlines())}
        self.assertEqual(len(errors), 2 * 4 * 2)
        for (element, block, role), error in errors.items():
            self.assertTrue(0.01 < error < 0.5, (element, block, role))
            if block != "16":  # larger blocks, larger errors
                self.assertLess(errors[element, "16", role], error)
        self.assertIn("int4_16x16_e4m3", said[2].stdout + self.read_format("codes.h5"))

    def read_format(self, name):
        import h5py
        with h5py.File(self.path(name)) as file:
            names = []
            file.visititems(lambda _, item: names.append(item.attrs["format"]) if "format" in item.attrs else None)
            return " ".join(sorted({str(one) for one in names}))


if __name__ == "__main__":
    runs.TESSERA, MPIEXEC = os.path.abspath(sys.argv.pop(1)), sys.argv.pop(1)
    unittest.main(verbosity=2)
