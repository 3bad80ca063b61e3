"""`tessera checkpoint convert` from outside: conversions of a trained run, read by h5py and by hand.


The safetensors library is no part of Debian; its format is read here in ten lines, and tests/oracle/hf_test.py reads
the program's folders with the library itself and with transformers.
"""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import h5py
import numpy

import runs

GOLDENS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle", "hf")
DECK = """schema_version: 1
run: {name: small, steps: 8, threads: 1}
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, seq_len: 32, norm: rms, activation: swiglu, position: rotary, ffn: 48, moe: {experts: 4, top_k: 2}}
data: {files: ["*.txt"]}
batch: {global: 8, micro: 2}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, every_steps: 4}
"""
TYPES = {"F32": numpy.dtype("<f4"), "BF16": numpy.dtype("<u2")}
BF16 = numpy.float32  # the type in which h5py reads bf16


def read_safetensors(path):
    """{name: values}, bf16 as its bits; and the metadata."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        payload = file.read()
    metadata, found, at = header.pop("__metadata__"), {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == at, (name, begin, at)
        found[name] = numpy.frombuffer(payload[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
        at = end
    assert at == len(payload) and (8 + length) % 8 == 0
    return found, metadata


def rounded(values):
    """fp32 to the bits of bf16, to nearest even."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


class Conversions(runs.InFolder):
    @classmethod
    def setup_class(cls):
        """One run for all: trained to the end in `a`, and stopped in the middle in `b`."""
        cls.folder = cls.at_class_end.enter_context(tempfile.TemporaryDirectory(prefix="tessera-convert-"))
        made = cls()
        made.setup_method()
        made.train(0, "a")
        made.train(75, "b", "--stop-at", "4")

    def train(self, code, name, *arguments, deck=DECK):
        path = self.write(name + ".yaml", deck.replace("DIR", self.path(name)))
        done = subprocess.run([self.launcher, "-n", "2", self.tessera, "train", path, *arguments], capture_output=True, text=True,
                              timeout=3000, cwd=self.folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == code, (arguments, done.returncode, done.stdout[-2000:], done.stderr)
        return done.stdout + done.stderr

    def convert(self, *arguments):
        return self.tool(0, "convert", *arguments)

    def weights(self, name):
        """{canonical name: values} of a checkpoint, by h5py alone."""
        found = {}
        with h5py.File(self.path(name, "model.h5")) as file:
            for key, data in file["model"].items():
                parts = found.setdefault(text(data.attrs.get("canonical", key)), {})
                parts[int(data.attrs.get("expert", -1))] = data[...]
        return {key: parts[-1] if -1 in parts else numpy.stack([parts[e] for e in sorted(parts)])
                for key, parts in found.items()}

    def test_layouts_and_a_run_that_goes_on(self):
        report = self.convert("b", "discrete", "--experts", "discrete")
        assert report["content_digest"] == self.final("b")
        assert (report["step"], report["dtype"], report["expert_layout"], report["to"]) == (4, "fp32", "discrete", "tessera")
        assert self.tool(0, "verify", "discrete") == {"ok": True, "failures": []}
        assert self.tool(0, "inspect", "discrete")["expert_layout"] == "discrete"
        assert self.tool(0, "diff", "discrete", "b")["equal"] == True
        with h5py.File(self.path("discrete", "optimizer.h5")) as file:
            assert file["adamw/v/layers.1.moe.experts.3.down.weight"].shape == (32, 48)
            assert text(file["provenance"].attrs["parent_digest"]) == self.final("b")
        self.convert("discrete", "single", "--experts", "single")
        assert self.final("single") == self.final("b")
        with open(self.path("single", "deck.yaml")) as one, open(self.path("b", "step_00000004", "deck.yaml")) as other:
            assert one.read() == other.read()
        # A run resumed from a converted checkpoint equals the run that never stopped.
        for source in ("discrete", "single"):
            out = self.train(0, f"from_{source}", "--resume", self.path(source))
            assert "resumed from" in out
            assert self.final(f"from_{source}") == self.final("a")

    def test_weights_alone(self):
        report = self.convert("a", "weights", "--weights-only")
        assert sorted(os.listdir(self.path("weights"))) == ["deck.yaml", "manifest.json", "model.h5"]
        assert self.tool(0, "verify", "weights")["ok"] == True
        inspected = self.tool(0, "inspect", "weights")
        assert (inspected["step"], inspected["optimizer"], inspected["content_digest"]) == (8, {}, report["content_digest"])
        assert report["content_digest"] != self.final("a")
        whole = {tensor["name"]: tensor["digest"] for tensor in self.tool(0, "inspect", "a")["tensors"]}
        assert {tensor["name"]: tensor["digest"] for tensor in inspected["tensors"]} == whole
        self.train(5, "not_resumed", "--resume", self.path("weights"))
        without = {row["name"]: row["max_abs"] for row in self.tool(1, "diff", "a", "weights")["tensors"]}
        assert {without[name] for name in without if name.startswith("/adamw/")} == {None}
        assert {without["/model/" + name] for name in whole} == {0.0}
        self.convert("weights", "again", "--experts", "discrete")
        assert self.final("again") == report["content_digest"]
        # A new run starts from the converted weights.
        start = DECK.replace("every_steps: 4", "init_from: " + self.path("weights")).replace("steps: 8", "steps: 0")
        self.train(0, "started", deck=start)
        started = self.tool(0, "inspect", "started")
        assert started["step"] == 0
        assert {tensor["name"]: tensor["digest"] for tensor in started["tensors"]} == whole

    def test_bf16(self):
        report = self.convert("a", "narrow", "--dtype", "bf16")
        assert report["dtype"] == "bf16"
        assert self.tool(0, "verify", "narrow")["ok"] == True
        types = {tensor["dtype"] for tensor in self.tool(0, "inspect", "narrow")["tensors"]}
        assert types == {"bf16"}
        wide, narrow = self.weights("a/step_00000008"), self.weights("narrow")
        assert wide.keys() == narrow.keys()
        for name, values in narrow.items():
            assert values.dtype.itemsize == 4, "h5py knows no type of 2 bytes with these fields"
            exact = (rounded(wide[name]).astype(numpy.uint32) << 16).view(numpy.float32)
            numpy.testing.assert_array_equal(values.astype(numpy.float32), exact, name)
        with h5py.File(self.path("narrow", "optimizer.h5")) as file:  # moments stay what they are
            with h5py.File(self.path("a", "step_00000008", "optimizer.h5")) as before:
                key = "adamw/m/layers.0.attention.qkv.weight"
                numpy.testing.assert_array_equal(file[key][...], before[key][...])
        assert "bf16" in self.train(5, "not_resumed_either", "--resume", self.path("narrow"))
        assert self.tool(0, "diff", "narrow", "narrow")["equal"] == True
        apart = {row["name"]: row["max_abs"] for row in self.tool(1, "diff", "a", "narrow")["tensors"]}
        for name, values in narrow.items():  # rounding errors
            assert apart["/model/" + name] == numpy.abs(values.astype(float) - wide[name]).max()

    def test_mixtral_for_others(self):
        self.convert("a", "hf", "--to", "safetensors", "--max-shard", "40KB")
        with open(self.path("hf", "model.safetensors.index.json")) as file:
            index = json.load(file)
        found = {}
        for name in sorted(set(index["weight_map"].values())):
            tensors, metadata = read_safetensors(self.path("hf", name))
            assert metadata == {"format": "pt"}
            for key in tensors:
                assert index["weight_map"][key] == name
            found.update(tensors)
        assert set(found) == set(index["weight_map"])
        assert index["metadata"]["total_size"] == sum(values.nbytes for values in found.values())
        assert len(set(index["weight_map"].values())) > 3
        ours, layer = self.weights("a/step_00000008"), "model.layers.1."
        qkv, gate_up = ours["layers.1.attention.qkv.weight"], ours["layers.1.moe.experts.gate_up.weight"]
        wanted = {"model.embed_tokens.weight": ours["embed.tokens"], "lm_head.weight": ours["head.weight"],
                  "model.norm.weight": ours["final_norm.weight"],
                  layer + "self_attn.q_proj.weight": qkv[:32], layer + "self_attn.k_proj.weight": qkv[32:48],
                  layer + "self_attn.v_proj.weight": qkv[48:],
                  layer + "self_attn.o_proj.weight": ours["layers.1.attention.out.weight"],
                  layer + "block_sparse_moe.gate.weight": ours["layers.1.moe.router.weight"],
                  layer + "block_sparse_moe.experts.2.w1.weight": gate_up[2, :48],
                  layer + "block_sparse_moe.experts.2.w3.weight": gate_up[2, 48:],
                  layer + "block_sparse_moe.experts.2.w2.weight": ours["layers.1.moe.experts.down.weight"][2]}
        for name, values in wanted.items():
            numpy.testing.assert_array_equal(found[name], values, name)
        assert len(found) == 3 + 2 * (2 + 4 + 1 + 3 * 4)
        with open(self.path("hf", "config.json")) as file:
            config = json.load(file)
        assert ((config["model_type"], config["architectures"], config["num_local_experts"], config["num_key_value_heads"], config["rms_norm_eps"], config["torch_dtype"])
                == ("mixtral", ["MixtralForCausalLM"], 4, 2, 1e-5, "float32"))
        # Converted back: the same weights, of step 0.
        self.convert("hf", "back")
        back = self.tool(0, "inspect", "back")
        assert (back["step"], back["optimizer"]) == (0, {})
        assert [tensor["digest"] for tensor in back["tensors"]] == [tensor["digest"] for tensor in self.tool(0, "inspect", "a")["tensors"]]
        assert self.tool(0, "verify", "back")["ok"] == True
        self.convert("a", "hf16", "--to", "safetensors", "--dtype", "bf16")
        narrow, _ = read_safetensors(self.path("hf16", "model.safetensors"))
        for name, values in found.items():
            numpy.testing.assert_array_equal(narrow[name], rounded(values), name)

    def test_a_run_starts_from_anothers_model(self):
        for model in ("gpt2", "llama", "mixtral", "gpt2_fp16", "olmoe", "glm4_moe"):
            self.convert(os.path.join(GOLDENS, model), model)
            with open(self.path(model, "deck.yaml")) as file:
                deck = file.read()
            done = subprocess.run([self.tessera, "validate", self.path(model, "deck.yaml")], capture_output=True, text=True)
            assert (done.returncode, len(done.stderr.splitlines())) == (5, 1), done.stderr
            assert "data.files: *.bin: fits no file" in done.stderr
            # Its deck, with what only a run can say.
            numpy.concatenate([numpy.array([20240520, 1, 4000] + [0] * 253, "<i4").view("<u2"),
                               (numpy.arange(4000) * 7 % 61).astype("<u2")]).tofile(self.path("tokens.bin"))
            run = deck.replace("init_from: \"\"", f"init_from: {self.path(model)}").replace("*.bin", "tokens.bin")
            assert run != deck
            out = self.train(0, f"run_{model}", "--set", "run.steps=2", "--set", "batch.global=2", "--set",
                             f"checkpoint.dir={self.path('run_' + model)}", deck=run)
            assert "saved" in out
            assert self.tool(0, "inspect", f"run_{model}")["step"] == 2
            done = subprocess.run([self.tessera, "validate", self.path(f"run_{model}.yaml")], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr

    def test_state_of_routers(self):
        """Biases and loads stay fp32 in every conversion, and a run goes on from one; other programs' mixtures have none."""
        deep = DECK.replace("top_k: 2}", "top_k: 2, ffn: 32, first_dense: 1, shared_ffn: 16, shared_gate: true, scores: sigmoid, scale: 2.0, groups: 2, "
                            "top_groups: 1, bias: true, balance_over: batch}")
        self.train(0, "deep", deck=deep)
        self.train(75, "deep_b", "--stop-at", "4", deck=deep)
        self.convert("deep_b", "deep_discrete", "--experts", "discrete")
        self.train(0, "deep_on", "--resume", self.path("deep_discrete"), deck=deep)
        assert self.final("deep_on") == self.final("deep")
        self.convert("deep", "deep_narrow", "--dtype", "bf16")
        types = {tensor["name"]: tensor["dtype"] for tensor in self.tool(0, "inspect", "deep_narrow")["tensors"]}
        counted = ["layers.1.moe.router.bias", "layers.1.moe.router.load"]
        assert sorted(name for name, dtype in types.items() if dtype == "fp32") == counted
        assert types["layers.1.moe.shared.gate.weight"] == "bf16"
        wide, narrow = self.weights("deep/step_00000008"), self.weights("deep_narrow")
        for name in counted:
            assert numpy.array_equal(wide[name], narrow[name])
        assert wide[counted[1]].sum() == 8 * 32 * 2
        assert wide[counted[0]].any()
        err = self.tool(5, "convert", "deep", "deep_hf", "--to", "safetensors")
        assert [line.split(": ")[1] for line in err.splitlines()] == ["model.moe.shared_gate", "model.moe.shared_ffn"], err
        assert not os.path.exists(self.path("deep_hf"))
        # With a shared expert that glm4_moe has: out without the load, and in again.
        self.train(0, "plain", deck=deep.replace("shared_ffn: 16, shared_gate: true", "shared_ffn: 64"))
        self.convert("plain", "plain_hf", "--to", "safetensors")
        with open(self.path("plain_hf", "config.json")) as file:
            config = json.load(file)
        assert ([config[key] for key in ("model_type", "n_shared_experts", "first_k_dense_replace", "n_group", "topk_group")]
                == ["glm4_moe", 2, 1, 2, 1])
        wide = self.weights("plain/step_00000008")
        found, _ = read_safetensors(self.path("plain_hf", "model.safetensors"))
        assert numpy.array_equal(found["model.layers.1.mlp.gate.e_score_correction_bias"], wide[counted[0]])
        assert not [name for name in found if "load" in name]
        self.convert("plain_hf", "plain_back")
        back = self.weights("plain_back")
        assert back.keys() == wide.keys() - {counted[1]}
        for name, values in back.items():
            assert numpy.array_equal(values, wide[name]), name

    def test_a_dense_model_becomes_a_mixture(self):
        """Experts that copy a layer compute what it did, and a run goes on from them."""
        dense = DECK.replace(", moe: {experts: 4, top_k: 2}", "")
        self.train(0, "dense", deck=dense)
        report = self.convert("dense", "many", "--upcycle", "experts=4,top_k=2,first_dense=1")
        assert (report["step"], self.tool(0, "verify", "many")["ok"]) == (0, True)
        weights, source = self.weights("many"), self.weights("dense/step_00000008")
        assert numpy.array_equal(weights["layers.0.mlp.down.weight"], source["layers.0.mlp.down.weight"])
        for part in ("gate_up", "down"):
            for expert in range(4):
                assert numpy.array_equal(weights[f"layers.1.moe.experts.{part}.weight"][expert], source[f"layers.1.mlp.{part}.weight"])
        assert weights["layers.1.moe.router.weight"].any()
        losses = []
        mixture = dense.replace("ffn: 48", "ffn: 48, moe: {experts: 4, top_k: 2, first_dense: 1}")
        for name, deck, begin in (("on_dense", dense, self.path("dense")), ("on_many", mixture, self.path("many"))):
            self.train(0, name, "--set", "run.steps=1", "--set", "optimizer.warmup_steps=0", "--set", f"checkpoint.init_from={begin}", deck=deck)
            with open(self.path(name, "metrics.jsonl")) as file:
                losses.append(json.loads(file.readline())["loss"])
        assert abs(losses[0] - losses[1]) <= 2e-2  # weights are bf16 there
        assert "--upcycle" in self.tool(2, "convert", "dense", "none", "--upcycle", "experts=4")
        assert "is empty" in self.tool(2, "convert", "dense", "none", "--upcycle", "")
        for gap in ("experts=8,top_k=2,", "experts=8,,top_k=2"):
            assert '"": takes experts=N' in self.tool(2, "convert", "dense", "none", "--upcycle", gap)
        for twice in ("experts=8,top_k=2,experts=4", "experts=4,top_k=2,seed=1,seed=1"):
            assert "is there twice" in self.tool(2, "convert", "dense", "none", "--upcycle", twice)
        assert "model.moe.top_k: " in self.tool(2, "convert", "dense", "none", "--upcycle", "experts=4,top_k=5")
        assert "model.moe: " in self.tool(5, "convert", "a", "none", "--upcycle", "experts=4,top_k=2")
        assert not os.path.exists(self.path("none"))

    def test_what_no_other_program_can_express(self):
        dense = DECK.replace(", moe: {experts: 4, top_k: 2}", "").replace("norm: rms", "norm: layer")
        self.train(0, "odd", "--set", "run.steps=0", deck=dense)
        err = self.tool(5, "convert", "odd", "odd_hf", "--to", "safetensors")
        for key in ("model.position", "model.activation", "model.kv_heads"):
            assert key in err
        assert not os.path.exists(self.path("odd_hf"))

    def test_refusals_leave_nothing(self):
        before = sorted(os.listdir(self.folder))
        assert "exists already, and is not replaced: give another name" in self.tool(5, "convert", "a", "b")
        assert "nowhere" in self.tool(5, "convert", "nowhere", "out")
        assert "--experts" in self.tool(2, "convert", "a", "out", "--to", "safetensors", "--experts", "single")
        self.tool(2, "convert", "a", "out", "--dtype", "fp16")
        self.tool(2, "convert", "a")
        assert sorted(os.listdir(self.folder)) == before
        # Damage: the tensor is named, whatever the target format.
        shutil.copytree(self.path("a", "step_00000008"), self.path("damaged"))
        with h5py.File(self.path("damaged", "optimizer.h5")) as file:
            offset = file["adamw/v/layers.1.moe.experts.down.weight"].id.get_offset()
        with open(self.path("damaged", "optimizer.h5"), "r+b") as file:
            file.seek(offset + 4097)
            byte = file.read(1)
            file.seek(offset + 4097)
            file.write(bytes([byte[0] ^ 4]))
        for arguments in ([], ["--experts", "discrete"], ["--dtype", "bf16"]):
            assert "/adamw/v/layers.1.moe.experts.down.weight" in self.tool(5, "convert", "damaged", "out", *arguments)
        self.convert("damaged", "sound_part", "--weights-only")  # the model itself is whole
        shutil.rmtree(self.path("sound_part"))
        shutil.rmtree(self.path("damaged"))
        assert sorted(os.listdir(self.folder)) == before

    def test_a_full_disk_leaves_nothing(self):
        before = sorted(os.listdir(self.folder))

        small_files = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        for arguments in ([], ["--to", "safetensors"]):
            err = self.tool(4, "convert", "a", "out", *arguments, preexec_fn=small_files)
            assert "out.tmp." in err
            assert sorted(os.listdir(self.folder)) == before

    def test_what_a_killed_one_left_is_cleared_away(self):
        self.sparse_folder("wide", 1 << 18)
        before = sorted(os.listdir(self.folder))
        for arguments in ([], ["--to", "safetensors"]):
            converting = subprocess.Popen([self.tessera, "checkpoint", "convert", "wide", "out", *arguments], cwd=self.folder,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not (left := [name for name in os.listdir(self.folder) if name not in before]):
                assert converting.poll() is None
                time.sleep(0.001)
            converting.kill()
            converting.wait()
            assert re.search(r"^out\.tmp\.[0-9a-f]{8}$", " ".join(left))
            again = subprocess.run([self.tessera, "checkpoint", "convert", "wide", "out", *arguments], cwd=self.folder, capture_output=True, text=True)
            assert again.returncode == 0, again
            assert f"{left[0]}: removed" in again.stderr
            shutil.rmtree(self.path("out"))
            assert sorted(os.listdir(self.folder)) == before

    def sparse_folder(self, name, vocabulary):
        """A GPT-2 folder of zeros, nearly all of them in two tables."""
        width, length = 64, 1 << 19
        shapes = {"transformer.wte.weight": (vocabulary, width), "transformer.wpe.weight": (length, width),
                  "transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)}
        for part, (rows, columns) in {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
                                      "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}.items():
            shapes |= {f"transformer.h.0.{part}.weight": (rows, columns), f"transformer.h.0.{part}.bias": (columns,)}
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"transformer.h.0.{norm}.weight": (width,), f"transformer.h.0.{norm}.bias": (width,)}
        header, at = {}, 0
        for tensor, shape in shapes.items():
            end = at + 4 * int(numpy.prod(shape))
            header[tensor], at = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}, end
        words = json.dumps(header).encode()
        os.mkdir(self.path(name))
        with open(self.path(name, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(words)) + words)
            file.truncate(8 + len(words) + at)
        with open(self.path(name, "config.json"), "w") as file:
            json.dump({"model_type": "gpt2", "n_layer": 1, "n_embd": width, "n_head": 2, "n_positions": length,
                       "vocab_size": vocabulary}, file)

    def peak(self, *arguments):
        """The most memory that a command of the program held, in KiB. Started by a bare interpreter, since a process
        counts what its parent held when it was forked."""
        spawn = ("import os, sys; _, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0);"
                 "print(os.waitstatus_to_exitcode(status), usage.ru_maxrss, file=sys.stderr)")
        done = subprocess.run([sys.executable, "-S", "-c", spawn, self.tessera, *arguments], cwd=self.folder,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        code, peak = map(int, done.stderr.split()[-2:])
        assert code == 0, done.stderr
        return peak

    def test_memory_is_that_of_two_blocks_whatever_the_model(self):
        peaks = []
        for name, vocabulary in (("small", 256), ("large", 1 << 18)):
            self.sparse_folder(name, vocabulary)
            for source, target in ((name, name + "_in"), (name + "_in", name + "_out")):
                to = "safetensors" if target.endswith("out") else "tessera"
                peaks.append(self.peak("checkpoint", "convert", source, target, "--to", to))
            for left in (name, name + "_in", name + "_out"):
                shutil.rmtree(self.path(left))
        built = json.loads(subprocess.run([self.tessera, "info", "--json"], capture_output=True, check=True).stdout)
        if built["build_type"] == "Release" and built["back_end"] != "Cuda":  # nothing else holds memory there
            assert max(peaks) < self.peak("info") + (40 << 10)  # `info`: libraries, which differ by distribution
        assert max(peaks[2:]) < 1.1 * max(peaks[:2])

    def test_help_names_every_option(self):
        done = subprocess.run([self.tessera, "checkpoint", "convert", "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        for word in ("SRC", "DST", "--experts single|discrete", "--dtype fp32|bf16", "--to tessera|safetensors",
                     "--weights-only", "--max-shard", "--json", "checkpoint.init_from"):
            assert word in done.stdout
