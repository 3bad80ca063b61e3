"""`tessera quantize` from outside: its output, read by the code in the documents; refusals; leftovers of a killed process.
"""
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import tarfile
import time

import h5py
import numpy
import pytest

import documents

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "U8": 1}
ARRAYS = ["columnwise_data", "columnwise_scales", "rowwise_data", "rowwise_scales"]


def bf16(values):
    """fp32 rounded to the nearest bf16, ties to even; finite."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(numpy.float32)


def weights(rows, columns, seed):
    random = numpy.random.default_rng(seed)
    return (random.standard_normal((rows, columns)) * 2.0 ** random.integers(-9, 3, (rows, 1))).astype(numpy.float32)


class Quantize:
    def path(self, *names):
        return os.path.join(self.folder, *names)

    def command(self, source, *arguments, out="out.h5", form="mxfp8"):
        return [self.tessera, "quantize", source, "--format", form, "--out", out, *arguments]

    def expect(self, code, *arguments, **options):
        done = subprocess.run(self.command(*arguments, **options), capture_output=True, text=True, timeout=300, cwd=self.folder)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert (done.stderr == "") == (code == 0), done.stderr
        return done

    def report(self, *arguments, **options):
        return json.loads(self.expect(0, *arguments, "--json", **options).stdout)

    def safetensors(self, tensors, name="in.safetensors"):
        """Writes a safetensors file of {name: array, or (type, shape) of zeros that take no place on the disk}."""
        header, place = {}, 0
        for key, value in tensors.items():
            kind, shape = value if isinstance(value, tuple) else ("F32", value.shape)
            size = int(numpy.prod(shape, dtype=numpy.int64)) * SIZES[kind]
            header[key] = {"dtype": kind, "shape": list(shape), "data_offsets": [place, place + size]}
            place += size
        text = json.dumps(header).encode()
        with open(self.path(name), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            begin = file.tell()
            for key, value in tensors.items():
                file.seek(begin + header[key]["data_offsets"][0])
                if not isinstance(value, tuple):
                    file.write(value.astype("<f4").tobytes())
            file.truncate(begin + place)
        return name


class Written(Quantize):
    def test_the_documents_lines_read_a_weight_back(self):
        code = documents.indented(documents.section(documents.read("docs/formats.md"), "Reading what `tessera quantize` wrote"))
        assert len(code) == 2, "a command, and how to read what it wrote"
        command = code[0].split("#")[0].split()
        assert command[:2] == ["tessera", "quantize"]
        name = re.search(r'file\["(.+?)"\]', code[1])[1]
        given = weights(96, 160, 1)
        given[5, 32:64] = 0
        self.safetensors({name: given}, command[2])
        subprocess.run([self.tessera, *command[1:]], cwd=self.folder, check=True, capture_output=True)
        values = documents.run(code[1], self.folder)[0]["values"]
        # Each value is the nearest of its block's grid: error at most half a unit in the last place, or half the least
        # subnormal.
        peak = numpy.abs(bf16(given)).reshape(96, 5, 32).max(axis=2)
        least = numpy.where(peak > 0, 2.0 ** numpy.ceil(numpy.log2(numpy.maximum(peak, 2.0**-100) / 448)), 0)
        assert (numpy.abs(values - bf16(given)) <= numpy.maximum(numpy.abs(bf16(given)) / 16, numpy.repeat(least, 32, axis=1) * 2.0**-10)).all()
        os.remove(self.path(command[command.index("--out") + 1]))
        # The reported statistics match the values read back.
        stated = self.report(command[2], out=command[command.index("--out") + 1])["tensors"][0]
        error = numpy.abs(values - given.astype(float))
        assert round(abs(stated["snr_db"] - (10 * numpy.log10((given.astype(float) ** 2).sum() / (error**2).sum()))), 6) == 0
        assert round(abs(stated["max_rel_error"] - (error[given != 0] / numpy.abs(given[given != 0])).max()), 6) == 0
        assert round(abs(stated["zeros"] - (values == 0).mean()), 9) == 0
        assert sum(stated["scale_exponents"].values()) == 96 * 5
        exponents = numpy.log2(least[peak > 0]).astype(int)
        for exponent in set(exponents):
            assert stated["scale_exponents"][str(exponent)] == (exponents == exponent).sum()

    def test_people_read_two_lines_a_tensor(self):
        source = self.safetensors({"exact": numpy.ones((32, 32)), "some": weights(32, 64, 6), "vector": numpy.ones(32), "x": numpy.ones((3, 3))})
        assert re.search(r"""^exact \[32,32\] mxfp8 rowwise \+ columnwise: SNR none, max relative error 0, .*
  blocks by scale: 2\^-8 32
some \[32,64\] mxfp8 rowwise \+ columnwise: SNR 3\d\.\d\d dB, .*
  blocks by scale:( 2\^-\d+ \d+)+
x: skipped: \[3,3\] suits neither direction .*
$""", self.expect(0, source).stdout)

    def test_a_checkpoint_is_a_source_too(self):
        with tarfile.open(os.path.join(HERE, "checkpoints", "format-1.1.tar.gz")) as archive:
            archive.extractall(self.folder)
        source = os.path.join("single", "step_00000003", "model.h5")
        report = self.report(source, form="fp8_block")
        with h5py.File(self.path(source)) as before, h5py.File(self.path("out.h5")) as after:
            wanted = ["model/" + name for name, data in before["model"].items() if data.ndim > 1]
            assert [t["name"] for t in report["tensors"]] == sorted(wanted)
            for name in wanted:
                given, group = before[name], after[name]
                assert sorted(group) == ["amax", *ARRAYS]
                assert tuple(group.attrs["shape"]) == given.shape
                assert (group.attrs["format"], group.attrs["source_dtype"]) == (b"fp8_block", b"fp32")
                assert group["rowwise_data"].shape == given.shape
                peaks = numpy.abs(bf16(given[...])).max(axis=(-2, -1))
                assert (group["amax"][...].reshape(peaks.shape) == peaks).all()
        assert self.report(source, "--tensor", "/" + wanted[0], form="fp8_block", out="one.h5")["skipped"] == []

    def test_a_checkpoints_wrong_bytes_are_refused(self):
        """Damage in another tensor does not matter; damage in another expert does, since digests are of all experts."""
        with tarfile.open(os.path.join(HERE, "checkpoints", "format-1.1.tar.gz")) as archive:
            archive.extractall(self.folder)
        for layout, damaged, told, whole in (
                ("single", "model/layers.0.attention.qkv.weight", "model/layers.0.attention.qkv.weight", "model/embed.tokens"),
                ("discrete", "model/layers.0.moe.experts.1.down.weight", "model/layers.0.moe.experts.down.weight", "model/embed.tokens")):
            source = os.path.join(layout, "step_00000003", "model.h5")
            with h5py.File(self.path(source), "r+") as file:
                file[damaged][0, 0] += 1
            for chosen in ((), ("--tensor", damaged), ("--tensor", damaged.replace(".1.", ".0."))):
                done = self.expect(5, source, *chosen, form="fp8_block")
                assert f"{source}: /{told} holds other bytes than were saved" in done.stderr
                assert not [name for name in os.listdir(self.folder) if name.startswith("out")]
            self.report(source, "--tensor", whole, form="fp8_block", out=layout + ".h5")

    def test_nan_and_infinity_are_passed_over_by_the_statistics(self):
        for form in ("fp8_block", "fp8_block_1d", "fp8_tensor", "fp8_tensor_e5m2", "mxfp8", "mxfp8_2d", "mxfp8_e5m2",
                     "mxfp6_e3m2", "mxfp6_e3m2_2d", "mxfp6_e2m3", "mxfp6_e2m3_2d", "mxfp4", "mxfp4_2d", "nvfp4", "nvfp4_1d", "nvfp4_46", "nvfp4_46_1d"):
            for name, value in (("nan", numpy.nan), ("infinite", numpy.inf)):
                some = weights(64, 64, 2)
                some[::7, ::5] = -value
                source = self.safetensors({"some": some, "whole": numpy.full((64, 64), value, numpy.float32)})
                report = self.report(source, form=form, out=f"{form}.{name}.h5")
                some, whole = report["tensors"]
                assert whole["snr_db"] is None
                assert (some["non_finite"], whole["non_finite"]) == (130, 4096)
                assert whole["saturated"] == (form.startswith(("nvfp4", "mxfp4", "mxfp6")) or name == "infinite")  # FP8 has a code for NaN
                assert some["saturated"] >= (130 / 4096 if name == "infinite" else 0)
                if name == "nan":
                    assert some["snr_db"] > 10

    def test_memory_is_that_of_a_panel_whatever_the_rows(self):
        source = self.safetensors({"tall": ("BF16", (1 << 20, 32)), "wide": ("BF16", (32, 1 << 20)), "square": ("BF16", (5632, 5632))})
        peaks = []
        for name in ("square", "tall", "wide"):
            child = subprocess.Popen(self.command(source, "--tensor", name, out=f"{name}.h5", form="fp8_block"), cwd=self.folder,
                                     stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            assert child.returncode == 0
            peaks.append(usage.ru_maxrss)
        built = json.loads(subprocess.run([self.tessera, "info", "--json"], capture_output=True, check=True).stdout)
        if built["build_type"] == "Release" and built["back_end"] != "Cuda":  # nothing else holds memory there
            assert max(peaks) < 400 << 10
        assert max(peaks) < 1.5 * peaks[0]


class Refused(Quantize):
    def refused(self, words, source, *arguments, code=5, **options):
        before = sorted(os.listdir(self.folder))
        message = self.expect(code, source, *arguments, **options).stderr
        for word in words:
            assert word in message
        assert sorted(os.listdir(self.folder)) == before

    def beginning(self, name):
        with open(self.path(name), "rb") as file:
            return file.read(5000)

    def test_tensors(self):
        source = self.safetensors({"scalar": ("F32", ()), "vector": ("F32", (64,)), "empty": ("F32", (0, 64)), "ragged": ("F32", (33, 33)),
                                   "double": ("F64", (32, 32)), "bytes": ("U8", (32, 32)), "deep": ("F32", (1, 1, 32, 32))})
        for name, words in {"scalar": "[] is neither a matrix", "vector": "[64] is neither a matrix", "empty": "[0,64] is empty",
                            "ragged": "[33,33] suits neither direction of mxfp8: blocks of 1 x 32", "double": "[32,32] is of type F64",
                            "bytes": "[32,32] is of type u8, neither", "deep": "[1,1,32,32] is neither a matrix", "gone": "no such tensor among its 7"}.items():
            self.refused([f"in.safetensors: {name}: ", words], source, "--tensor", name)
        self.refused(["none of its 7 tensors suits mxfp8", "bytes: "], source)
        self.refused(["none of its 7 tensors suits nvfp4_row", "bytes: "], source, form="nvfp4_row")
        self.refused(["ragged: nvfp4_row has a scale for each row and column, which no file holds: use nvfp4_1d"], source, "--tensor", "ragged", form="nvfp4_row")
        self.refused(["--format: int4 not in {fp8_block,", "mxfp8_2d"], source, code=2, form="int4")

    def test_a_header_of_more_than_an_index_holds(self):
        text = json.dumps({"w": {"dtype": "F32", "shape": [2**62 - 1, 2**61], "data_offsets": [0, 16]}}).encode()
        with open(self.path("in.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + bytes(16))
        self.refused(["w: [4611686018427387903,2305843009213693952] has more elements than a file holds"], "in.safetensors")

    def test_files(self):
        source = self.safetensors({"w": weights(64, 64, 3)})
        with h5py.File(self.path("in.h5"), "w") as file:
            file["chunked"] = numpy.zeros((1, 1))
            file.create_dataset("group/packed", data=weights(64, 64, 4), chunks=(32, 32), compression="gzip")
            file["plain"] = weights(64, 64, 4)
        self.refused(["group/packed: [64,64] is no contiguous"], "in.h5", "--tensor", "group/packed")
        assert [s["name"] for s in self.report("in.h5")["skipped"]] == ["chunked", "group/packed"]
        os.remove(self.path("out.h5"))
        for name, content in (("text.safetensors", b"no tensors"), ("text.h5", b"no tensors"), ("empty.h5", b""), ("empty.safetensors", b""),
                              ("half.h5", self.beginning("in.h5")), ("half.safetensors", self.beginning(source)), ("in.txt", b"text")):
            with open(self.path(name), "wb") as file:
                file.write(content)
            self.refused([name], name)
        self.refused(["absent.h5"], "absent.h5")
        self.refused(["exists already"], source, out=source)
        self.refused(["absent/out.h5.tmp: cannot be made: No such file or directory"], source, out="absent/out.h5", code=4)

    def test_steps_that_are_no_checkpoints(self):
        with tarfile.open(os.path.join(HERE, "checkpoints", "format-1.1.tar.gz")) as archive:
            archive.extractall(self.folder)
        step, other = (os.path.join(layout, "step_00000003") for layout in ("single", "discrete"))
        self.report("single", form="fp8_block", out="whole.h5")
        shutil.copy(self.path(step, "model.h5"), self.path("own.h5"))
        shutil.copy(self.path(other, "model.h5"), self.path(step, "model.h5"))
        for source in (step, "single"):
            self.refused([os.path.join(step, "model.h5") + ": "], source, form="fp8_block")
        shutil.copy(self.path("own.h5"), self.path(step, "model.h5"))
        os.remove(self.path(step, "manifest.json"))
        for source in (step, "single"):
            self.refused([f"{step}: holds no manifest.json"], source, form="fp8_block")
        os.mkdir(self.path("hf"))
        self.safetensors({"w": weights(64, 64, 3)}, os.path.join("hf", "model.safetensors"))
        self.refused(["hf: holds safetensors without the config.json"], "hf")
        with open(self.path("hf", "config.json"), "w") as file:
            file.write("{}")
        self.refused(["hf: is a folder: name a .safetensors or .h5 file in it, or convert it"], "hf")
        self.report(os.path.join("hf", "model.safetensors"))

    def test_a_row_of_texts_where_one_is_expected(self):
        with h5py.File(self.path("in.h5"), "w") as file:
            file.attrs["file_type"] = numpy.full(15, b"x" * 4000)
            file["integrity/table"] = numpy.zeros(1)
            file["w"] = numpy.zeros((32, 32), "float32")
        self.refused(["in.h5: /@file_type has another type"], "in.h5")

    def test_a_full_disk_leaves_nothing(self):
        source = self.safetensors({"w": ("F32", (1024, 1024))})
        # Like a full disk: no file may grow beyond this.
        limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        done = subprocess.run(self.command(source), cwd=self.folder, capture_output=True, text=True, preexec_fn=limited)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert "out.h5.tmp" in done.stderr
        assert os.listdir(self.folder) == [source]

    def test_a_killed_one_leaves_what_the_next_clears_away(self):
        source = self.safetensors({"w": ("F32", (4096, 4096))})
        child = subprocess.Popen(self.command(source, form="fp8_block"), cwd=self.folder, stdout=subprocess.DEVNULL)
        while not os.path.exists(self.path("out.h5.tmp")):
            assert child.poll() is None
            time.sleep(0.001)
        child.send_signal(signal.SIGSTOP)
        left = os.path.exists(self.path("out.h5.tmp"))
        assert left or os.path.exists(self.path("out.h5"))
        child.kill()
        child.wait()
        if not left:
            pytest.skip("it ended before it could be stopped")
        assert sorted(os.listdir(self.folder)) == [source, "out.h5.tmp"]
        done = subprocess.run(self.command(source), cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "out.h5.tmp: removed; a process that did not reach its end had left it" in done.stderr
        assert sorted(os.listdir(self.folder)) == [source, "out.h5"]
