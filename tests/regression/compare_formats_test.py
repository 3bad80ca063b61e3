"""Every command of docs/compare_formats.md and of the study in docs/recipes/format.md, on their decks and sweeps with fewer steps.
"""
import os
import re
import shutil
import subprocess
import sys
import textwrap

import documents
import runs



SHORTER = (("steps: 4", "steps: 200"), ("every_steps: 2", "every_steps: 20"), ("statistics_every: 2", "statistics_every: 50"),
           ("warmup_steps: 2", "warmup_steps: 20"), ("layers: 1", "layers: 4"), ("seq_len: 32", "seq_len: 64"))


class Pages(runs.InFolder):
    def run_page(self, page, deck_name, sweep_name, lines, begins):
        """Runs a page's commands on its deck and sweep, whose first column `begins` with; what each said."""
        blocks = [textwrap.dedent(block).strip("\n") for block in documents.indented(page)]
        (deck,) = [block for block in blocks if block.startswith("schema_version")]
        (sweep,) = [block for block in blocks if block.startswith(begins + ",")]
        commands = [block for block in blocks if block not in (deck, sweep)]
        assert (len(commands), len(sweep.split())) == (3, lines)
        for short, long in SHORTER:
            assert long in deck
            deck = deck.replace(long, short)
        self.write(deck_name, deck)
        self.write(sweep_name, sweep)
        shutil.copytree(os.path.join(documents.ROOT, "docs"), self.path("docs"))
        for name in ("python", "jobscripts"):
            os.symlink(os.path.join(documents.ROOT, name), self.path(name))
        os.makedirs(self.path("build", "host"))
        os.symlink(self.tessera, self.path("build", "host", "tessera"))
        said = [subprocess.run(["bash", "-ec", command], cwd=self.folder, capture_output=True, text=True, timeout=runs.PATIENCE,
                               env={**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "TESSERA": self.tessera, "MPIEXEC": self.launcher, "OMP_NUM_THREADS": "1"}) for command in commands]
        for done in said:
            assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return said

    def test_compare_formats(self):
        said = self.run_page(documents.read("docs/compare_formats.md"), "formats.yaml", "formats.csv", 10, "precision.recipe")
        table = said[0].stdout[said[0].stdout.index("precision.primary_weights"):]
        assert len(re.findall(r"\d \+- \d", table)) == 3 * 2 + 2 * 2, table
        assert 'class="band b2"' in self.read("formats.html")
        assert "quantizers in step 4" in said[1].stdout
        assert re.search(r"(?m)^4 gradient columnwise 0\.\d+", said[2].stdout)

    def test_a_format_of_ones_own(self):
        page = documents.read("docs/recipes/format.md").split("## Add one to the program")[0]
        said = self.run_page(page, "own.yaml", "own.csv", 10, "precision.recipe.weight")
        assert "int4_128" in self.read("own.html")
        errors = {tuple(words[:3]): float(words[3]) for words in map(str.split, said[1].stdout.splitlines())}
        assert len(errors) == 2 * 4 * 2
        for (element, block, role), error in errors.items():
            assert 0.01 < error < 0.5, (element, block, role)
            if block != "16":  # larger blocks, larger errors
                assert errors[element, "16", role] < error
        assert "int4_16x16_e4m3" in said[2].stdout + self.read_format("codes.h5")

    def read_format(self, name):
        import h5py
        with h5py.File(self.path(name)) as file:
            names = []
            file.visititems(lambda _, item: names.append(item.attrs["format"]) if "format" in item.attrs else None)
            return " ".join(sorted({str(one) for one in names}))
