"""Checkpoints from outside: resume, stop, tools, and h5py as a second reader.

usage: checkpoint_test.py TESSERA MPIEXEC
"""
import json
import os
import re
import shutil

import h5py
import numpy

import documents
import runs

MASK = 2**64 - 1


def mix64(z):
    z = ((z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9))
    z = ((z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB))
    return z ^ (z >> numpy.uint64(31))


def digest(values):
    """FORMAT.md, written anew."""
    bits = values.ravel().view(numpy.uint32).astype(numpy.uint64)
    index = numpy.arange(1, bits.size + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    return int(mix64(bits ^ index).sum(dtype=numpy.uint64))


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


class Checkpoints(runs.Runs):
    def test_a_stopped_run_is_the_run_that_was_not(self):
        self.train(0, 2, self.deck("a"))
        self.assertEqual([row["step"] for row in self.tool(0, "ls", "a")], [6, 8])
        self.train(75, 2, self.deck("b"), "--stop-at", "5")
        self.assertEqual([row["step"] for row in self.tool(0, "ls", "b")], [3, 5])
        out, _ = self.train(0, 2, self.deck("b"))
        self.assertIn("resumed from", out)
        self.assertEqual(self.rows("b"), self.rows("a"))
        self.assertEqual(self.final("b"), self.final("a"))
        self.assertEqual(self.tool(0, "diff", "a", "b")["equal"], True)
        self.assertEqual(self.tool(1, "diff", "a/step_00000006", "b")["equal"], False)
        # Resumed once more, there is nothing left to do.
        self.train(0, 2, self.deck("b"))
        self.assertEqual(self.rows("b"), self.rows("a"))

    def test_time_runs_out(self):
        for limit in ("00:00:03", "00:00:30", "00:05:00"):  # a busy machine may need the first one to start
            shutil.rmtree(self.path("t"), ignore_errors=True)
            self.train(75, 1, self.deck("t"), "--set", "run.steps=1000000", "--time-limit", limit)
            if (step := self.tool(0, "inspect", "t")["step"]) > 0:
                break
        self.assertGreater(step, 0)
        self.train(2, 1, self.deck("t"), "--time-limit", "soon")

    def test_going_back_keeps_what_is_saved_then(self):
        often = ["--set", "run.steps=12", "--set", "checkpoint.every_steps=2", "--set", "checkpoint.keep_every=4"]
        self.train(0, 2, self.deck("a"), *often)
        final, steps = self.final("a"), lambda: [row["step"] for row in self.tool(0, "ls", "a")]
        self.assertEqual(steps(), [4, 8, 10, 12])
        _, err = self.train(75, 2, self.deck("a"), *often, "--resume", self.path("a", "step_00000004"), "--stop-at", "7")
        self.assertIn("holds checkpoints of later steps than 4, up to step_00000012", err)
        self.assertEqual(steps(), [4, 6, 7, 8, 10, 12])
        for step in (8, 10, 12):
            shutil.rmtree(self.path("a", f"step_{step:08}"))
        _, err = self.train(0, 2, self.deck("a"), *often)
        self.assertEqual(err, "")
        self.assertEqual((self.final("a"), steps()), (final, [4, 8, 10, 12]))

    def test_initial_weights_alone(self):
        self.train(0, 2, self.deck("zero"), "--set", "run.steps=0")
        self.assertEqual(self.tool(0, "inspect", "zero")["step"], 0)

    def test_other_ranks_and_layouts_have_the_same_digest(self):
        self.train(75, 3, self.deck("a"), "--stop-at", "3")
        want = self.final("a")
        for ranks, weights in ((1, "discrete"), (2, "single"), (4, "discrete")):
            target = f"r{ranks}"
            self.train(75, ranks, self.deck(target, weights), "--resume", "a", "--stop-at", "4")
            self.assertEqual(self.tool(0, "inspect", target)["step"], 4)
        self.assertEqual(self.tool(0, "inspect", "r1")["expert_layout"], "discrete")
        self.assertEqual(self.final("a"), want)

    def test_h5py_reads_what_the_table_says(self):
        self.train(75, 2, self.deck("a", "discrete"), "--stop-at", "2")
        step = os.path.join(self.folder, "a", "step_00000002")
        content = 0
        for name, slots in (("model.h5", ["model"]), ("optimizer.h5", ["adamw/m", "adamw/v"])):
            with h5py.File(os.path.join(step, name)) as file:
                tensors = {}
                for slot in slots:
                    for key in file[slot]:
                        data = file[slot][key]
                        self.assertEqual(data.dtype, numpy.float32)
                        canonical = data.attrs.get("canonical", key)
                        canonical = canonical.decode() if isinstance(canonical, bytes) else canonical
                        tensors.setdefault(f"/{slot}/{canonical}", {})[int(data.attrs.get("expert", 0))] = data[...]
                rows = file["integrity/table"][...]
                self.assertEqual({row["name"].decode() for row in rows}, set(tensors))
                for row in rows:
                    parts = tensors[row["name"].decode()]
                    whole = numpy.concatenate([parts[e].ravel() for e in sorted(parts)])
                    self.assertEqual(digest(whole), int(row["digest"]))
                    self.assertEqual(whole.size, int(row["elements"]))
                    self.assertTrue(numpy.isfinite(whole).all() and whole.size > 0)
                    content += int(mix64(numpy.array([fnv1a64(row["name"].decode()) ^ int(row["digest"])], dtype=numpy.uint64))[0])
                if name == "model.h5":
                    scalars = [("/counters/" + key, file["counters"].attrs[key]) for key in
                               ("step", "t", "beta1_power", "beta2_power", "skips_in_a_row", "tokens")]
                    scalars += [("/data/next_sample", file["data"].attrs["next_sample"]), ("/rng/seed", file["rng"].attrs["seed"])]
        for path, value in scalars:
            bits = numpy.array([value]).view(numpy.uint64)
            one = int(mix64(bits ^ numpy.uint64(0x9E3779B97F4A7C15))[0])
            content += int(mix64(numpy.array([fnv1a64(path) ^ one], dtype=numpy.uint64))[0])
        self.assertEqual(f"{content & MASK:016x}", self.final("a"))

    def test_h5py_finds_what_the_index_says(self):
        for layout in ("single", "discrete"):
            self.train(75, 2, self.deck(layout, layout), "--set", "model.tied_head=true", "--stop-at", "2")
            step = os.path.join(self.folder, layout, "step_00000002")
            with open(os.path.join(step, "manifest.json")) as manifest:
                structures = json.load(manifest)["structures"]
            self.assertEqual(sorted(structures), ["model.h5", "optimizer.h5"])
            for name, said in structures.items():
                path, split = os.path.join(step, name), 0
                structure = numpy.fromfile(path, numpy.uint8).astype(numpy.uint64)
                inside = numpy.ones(structure.size, bool)
                with h5py.File(path) as file:
                    places = list(file["integrity/places"][...])
                    for row in file["integrity/table"][...]:
                        whole, members = row["name"].decode(), int(row["datasets"])
                        paths = [whole] if whole in file else [whole.replace(".experts.", f".experts.{e}.") for e in range(members)]
                        self.assertEqual(len(paths), members)
                        split += whole not in file
                        shape, axes = [int(n) for n in row["shape"] if n], row["axes"].decode()
                        for one in paths:
                            data = file[one]
                            self.assertEqual(data.id.get_offset(), places.pop(0))
                            self.assertEqual(list(data.shape), shape if one == whole else shape[1:])
                            self.assertEqual(data.attrs["axes"].decode(), axes if one == whole else axes.removeprefix("expert,"))
                            self.assertEqual((data.dtype, row["type"]), (numpy.float32, b"f32"))
                            self.assertEqual(data.attrs.get("tied_to", b""), row["tied_to"])
                            inside[data.id.get_offset() : data.id.get_offset() + data.nbytes] = False
                self.assertEqual(places, [])
                self.assertEqual(split > 0, layout == "discrete")
                index = numpy.flatnonzero(inside).astype(numpy.uint64) + numpy.uint64(1)
                sums = mix64(structure[inside] ^ index * numpy.uint64(0x9E3779B97F4A7C15)).sum(dtype=numpy.uint64)
                self.assertEqual(f"{int(sums):016x}", said)

    def test_the_documents_lines_read_a_weight(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "2")
        step = self.path("a", "step_00000002")
        with h5py.File(os.path.join(step, "model.h5")) as file:
            saved = {name: file["model"][name][...] for name in file["model"]}
        readme = documents.indented(documents.section(documents.read("README.md"), "Checkpoints"))
        page = documents.fenced(documents.section(documents.read("io/checkpoint/FORMAT.md"), "Reading a weight"), "python")
        shows, reads = next(code for code in readme if "h5py" in code), page[0]
        for lines in (shows, reads):
            named = self.path(re.search(r'File\("(.+)/model\.h5"\)', lines)[1])
            os.makedirs(os.path.dirname(named))
            os.symlink(step, named)
        weight = saved["layers.0.attention.qkv.weight"]
        self.assertEqual(documents.run(shows, self.folder)[1], f"{weight.shape} float32 {weight[0, :4]}\n")
        numpy.testing.assert_array_equal(documents.run(reads, self.folder)[0]["weight"], saved["embed.tokens"])

    def test_the_format_page_names_all_that_files_hold(self):
        self.train(75, 2, self.deck("a", "discrete"), "--set", "model.tied_head=true", "--stop-at", "2")
        step = self.path("a", "step_00000002")
        page = documents.read("io/checkpoint/FORMAT.md")
        held = set()
        for name in ("model.h5", "optimizer.h5"):
            with h5py.File(os.path.join(step, name)) as file:
                held |= set(file.attrs) | {"/" + group for group in file} | {"/integrity/" + item for item in file["integrity"]} | set(file["integrity/table"].dtype.names)
                file.visititems(lambda path, item: held.update(item.attrs))
        with open(os.path.join(step, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        held |= set(manifest) | set(manifest["state"]) | set(os.listdir(step))
        self.assertTrue({"tied_to", "canonical", "/provenance", "non_finite", "/rng/seed", "deck.yaml"} <= held)
        self.assertEqual([name for name in sorted(held) if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", page)], [])

    def test_what_must_not_be_resumed(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "2")
        before = self.tool(0, "ls", "a")
        _, err = self.train(3, 1, self.deck("a"), "--set", "optimizer.beta1=0.8", "--set", "batch.global=24")
        self.assertIn("optimizer.beta1", err)
        self.assertIn("batch.global", err)
        _, err = self.train(5, 1, self.deck("a"), "--resume", "none")
        self.assertIn("--resume none", err)
        _, err = self.train(5, 1, self.deck("a"), "--resume", "nowhere")
        self.assertIn("nowhere", err)
        with open(os.path.join(self.folder, "corpus.txt"), "a") as file:
            file.write("one line more\n")
        _, err = self.train(5, 1, self.deck("a"))
        self.assertIn("corpus", err)
        self.assertEqual(self.tool(0, "ls", "a"), before)

    def test_damage_is_named_and_passed_over(self):
        self.train(75, 1, self.deck("a"), "--stop-at", "4")
        newest = os.path.join(self.folder, "a", "step_00000004", "model.h5")
        with h5py.File(newest) as file:
            offset = file["model"]["layers.0.moe.router.weight"].id.get_offset()
        with open(newest, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 1]))
        report = self.tool(5, "verify", "a")
        self.assertEqual(report["ok"], False)
        self.assertIn("/model/layers.0.moe.router.weight", report["failures"][0])
        _, err = self.train(0, 1, self.deck("a"))
        self.assertIn("layers.0.moe.router.weight", err)
        self.assertEqual(self.tool(0, "verify", "a")["ok"], True)
        for name in os.listdir(os.path.join(self.folder, "a")):
            if name.startswith("step_"):
                os.truncate(os.path.join(self.folder, "a", name, "optimizer.h5"), 100)
        _, err = self.train(5, 1, self.deck("a"))
        self.assertIn("holds no valid checkpoint", err)


if __name__ == "__main__":
    runs.main()
