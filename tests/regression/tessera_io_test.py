"""python/tessera_io.py reads the output of runs and of `tessera quantize`, and agrees with the program.
"""
import json
import os
import re
import subprocess
import sys

import h5py
import numpy
import pytest

import runs
import tessera_io


class Runs(runs.Runs):
    def test_a_run_and_its_checkpoints(self):
        for layout in ("single", "discrete"):
            with self.subtests.test(layout):
                self.train(75, 2, self.deck(layout, layout), "--stop-at", "4", "--set", "optimizer.moments=bf16")
                run, told = tessera_io.Run(self.path(layout)), self.tool(0, "inspect", layout)
                rows = self.json_lines(layout, "metrics.jsonl")
                assert run.column("loss").tolist() == [row["loss"] for row in rows]
                assert numpy.isfinite(run.column("eval_loss")).tolist() == ["eval_loss" in row for row in rows]
                assert [step.step for step in run.checkpoints()] == [3, 4]
                newest = run.newest()
                assert (newest.content_digest, newest.counters["/counters/t"]) == (told["content_digest"], 4)
                assert round(abs(newest.counters["/counters/beta1_power"] - (0.9**4)), 7) == 0
                assert newest.slots() == ["adamw/m", "adamw/v", "model"]
                assert ([(name, list(newest[name].shape)) for name in newest.names()]
                        == [(tensor["name"], tensor["shape"]) for tensor in told["tensors"]])
                moments = newest.slot("adamw/m")["embed.tokens"]
                assert (moments.dtype, numpy.any(moments)) == (numpy.float32, True)
                assert newest.verify() == []

    def test_gradients_of_one_batch_as_the_manual_says(self):
        """Its commands and its lines of Python, as they stand there."""
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "manual.md"), encoding="utf-8") as file:
            section = file.read().split("## Gradients of one batch\n")[1].split("\n## ")[0]
        commands, lines = (re.sub("(?m)^    ", "", block) for block in re.findall(r"(?m)^(?:    .*\n)+", section))
        deck = self.write("wide.yaml", runs.DECK.replace("DIR", self.path("runs", "demo")).replace("MOE", "").replace("ffn: 48", "ffn: 64"))
        self.train(75, 1, deck, "--stop-at", "2")
        os.mkdir(self.path("bin"))
        os.symlink(os.path.abspath(self.tessera), self.path("bin", "tessera"))
        commands = commands.replace("DECK", deck).replace("mpiexec", self.launcher)
        done = subprocess.run(["bash", "-ec", commands], cwd=self.folder, capture_output=True, text=True, check=False, timeout=runs.PATIENCE,
                              env={**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"], "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stdout + done.stderr
        python = os.path.dirname(tessera_io.__file__)
        done = subprocess.run([sys.executable, "-c", lines.replace('"python"', repr(python))], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        cosines = {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}
        begun = tessera_io.Run(self.path("runs", "demo")).newest()
        assert sorted(cosines) == sorted(begun.names())
        assert all(0.3 < cosine < 1.00001 for cosine in cosines.values()), cosines
        assert min(cosines.values()) < 0.9999
        for recipe in ("bf16", "mxfp8", "nvfp4"):
            run = tessera_io.Run(self.path("runs", "gradient_" + recipe))
            squares = sum(numpy.sum(numpy.square(run.newest().slot("adamw/m")[name], dtype=numpy.float64)) for name in begun.names())
            assert round(abs(numpy.sqrt(squares) / run.column("grad_norm")[0] - 1), 3) == 0
            for name in begun.names():
                assert numpy.array_equal(run.newest()[name], begun[name]), name

    def test_what_is_not_there_is_named(self):
        os.mkdir(self.path("empty"))
        with h5py.File(self.path("q.h5"), "w") as file:
            file.create_group("mlp.up")
        for path, said in (("gone", "is not there"), ("empty", "has no"), ("corpus.txt", "is a file")):
            for ask, needed in ((lambda: tessera_io.Run(self.path(path)).rows(), "metrics.jsonl"), (lambda: tessera_io.Run(self.path(path)).column("loss"), "metrics.jsonl"),
                                (lambda: tessera_io.Checkpoint(self.path(path)), "manifest.json")):
                with pytest.raises(FileNotFoundError) as raised:
                    ask()
                text = f"{said} {needed}" if said == "has no" else said
                assert re.search(rf"^{self.path(path)}: {text}, and a .* is needed$", str(raised.value))
        for ask in (lambda: tessera_io.Run(self.path("gone")).newest(), lambda: tessera_io.Run(self.path("corpus.txt")).checkpoints(),
                    lambda: tessera_io.Run(self.path("empty")).newest(), lambda: tessera_io.dequantized(self.path("gone"), "a")):
            with pytest.raises(FileNotFoundError, match="^/.*: (is no|holds no) "):
                ask()
        with pytest.raises(KeyError, match="has no mlp.down; it has mlp.up"):
            tessera_io.dequantized(self.path("q.h5"), "mlp.down")

    def test_a_byte_that_changed_is_named(self):
        self.train(75, 1, self.deck("a", ""), "--stop-at", "1")
        step = tessera_io.Run(self.path("a")).newest()
        with h5py.File(step.path / "model.h5") as file:
            place = file["model/embed.tokens"].id.get_offset()
        with open(step.path / "model.h5", "r+b") as file:
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 1]))
        assert step.verify() == ["/model/embed.tokens"]


class Quantized(runs.InFolder):
    def test_every_format_is_decoded_as_its_report_says(self):
        random = numpy.random.default_rng(5)
        given = {"a": random.standard_normal((96, 160)), "stack": random.standard_normal((3, 64, 96))}
        given["a"][5, 32:64] = 0
        with h5py.File(self.path("in.h5"), "w") as file:
            for name, values in given.items():
                file[name] = values.astype(numpy.float32)
        assert len(tessera_io.BLOCKS) == 17
        for form in tessera_io.BLOCKS:
            out = self.path(form + ".h5")
            done = subprocess.run([self.tessera, "quantize", self.path("in.h5"), "--format", form, "--out", out, "--json"],
                                  check=True, capture_output=True, text=True, timeout=runs.PATIENCE)
            for tensor in json.loads(done.stdout)["tensors"]:
                with self.subtests.test(form, tensor=tensor["name"]):
                    name = tensor["name"].strip("/")
                    exact, values = given[name].astype(numpy.float32).astype(float), tessera_io.dequantized(out, name)
                    assert values.shape == exact.shape
                    noise = ((values - exact) ** 2).sum()
                    assert round(abs(tensor["snr_db"] - (10 * numpy.log10((exact**2).sum() / noise))), 4) == 0
                    assert tensor["snr_db"] > 15
