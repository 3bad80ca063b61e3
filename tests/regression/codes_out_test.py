"""Codes out: safetensors of a step hold the bytes that `tessera quantize` makes of it, in the layouts that loaders know, and
decode to the same values by numpy alone; and back.
"""
import json
import os
import subprocess

import h5py
import numpy as np

import held_runs
import runs
import tessera_io
from tessera_io import E2M1, E4M3

SIZES = ("model.hidden=256", "model.ffn=256", "model.kv_heads=2")
TYPES = {"F8_E4M3": np.uint8, "U8": np.uint8, "F32": np.float32, "BF16": np.uint16}
PARTS = {"attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attention.out": ("self_attn.o_proj",),
         "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"), "mlp.down": ("mlp.down_proj",)}


def read(folder):
    """The tensors of a folder's files, {name: (type, array)}, and its config.json."""
    found = {}
    for name in os.listdir(folder):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            payload = file.read()
        for tensor, entry in header.items():
            if tensor != "__metadata__":
                begin, end = entry["data_offsets"]
                found[tensor] = entry["dtype"], np.frombuffer(payload[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return found, json.load(file)


def value(tensors, module):
    """The values of a module's weight, by what its tensors are."""
    get = lambda suffix: tensors[module + suffix][1]
    if module + ".weight_scale_inv" in tensors:
        scale = np.repeat(np.repeat(get(".weight_scale_inv"), 128, axis=0), 128, axis=1)
        codes = E4M3[get(".weight")]
        return codes * scale[:codes.shape[0], :codes.shape[1]]
    if module + ".weight_packed" in tensors or module + ".weight_scale_2" in tensors:
        packed = get(".weight_packed" if module + ".weight_packed" in tensors else ".weight")
        codes = E2M1[np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)]
        if module + ".weight_scale_2" not in tensors and module + ".weight_global_scale" not in tensors:
            return codes * np.repeat(np.ldexp(np.float32(1), get(".weight_scale").astype(int) - 127), 32, axis=1)
        scale = E4M3[get(".weight_scale")]
        scale = scale * get(".weight_scale_2") if module + ".weight_scale_2" in tensors else scale / get(".weight_global_scale")
        return codes * np.repeat(scale, 16, axis=1)
    codes, scale = E4M3[get(".weight")], get(".weight_scale")
    if scale.dtype == np.uint8:
        return codes * np.repeat(np.ldexp(np.float32(1), scale.astype(int) - 127), 32, axis=1)
    if scale.ndim == 2:
        return codes * np.repeat(np.repeat(scale, 128, axis=0), 128, axis=1)[:codes.shape[0], :codes.shape[1]]
    return codes * scale


class CodesOut(held_runs.HeldRuns):
    def converted(self, name, *arguments, code=0):
        done = subprocess.run([self.tessera, "checkpoint", "convert", self.path(name), self.path(name + "_out"), "--to", "safetensors",
                               "--codes", *arguments], capture_output=True, text=True, timeout=runs.PATIENCE)
        assert done.returncode == code, done.stderr
        assert "Kokkos" not in done.stderr
        return read(self.path(name + "_out")) if code == 0 else done.stderr

    def expect_codes(self, name, recipe, quantizes, *arguments, sets=(), steps=1):
        self.run_of(name, recipe, "dense", 1, *SIZES, *sets, steps=steps)
        tensors, config = self.converted(name, *arguments)
        held = self.path(name + ".h5")
        subprocess.run([self.tessera, "quantize", self.path(name), "--out", held], check=True, capture_output=True)
        seen = set()
        for layer in (0, 1):
            for part, modules in PARTS.items():
                path = f"model/layers.{layer}.{part}.weight"
                whole = tessera_io.dequantized(held, path)
                with h5py.File(held) as file:
                    codes = file[path + "/rowwise_data"][...]
                for module, values, bytes_ in zip(modules, np.split(whole, len(modules)), np.split(codes, len(modules))):
                    module = f"model.layers.{layer}.{module}"
                    stored = tensors.get(module + ".weight_packed", tensors.get(module + ".weight"))[1]
                    assert np.array_equal(stored, bytes_), module
                    np.testing.assert_allclose(value(tensors, module), values, rtol=3e-7, atol=0, err_msg=module)
                    seen.add(module)
        named = config["quantization_config"]
        assert named["quant_method"] == quantizes
        for group in named.get("config_groups", {}).values():
            assert set(group["targets"]) <= seen
        left = named.get("ignore", named.get("modules_to_not_convert"))
        assert sorted(left) == ["lm_head", "model.embed_tokens"]
        assert tensors["lm_head.weight"][0] == "BF16"
        self.expect_back(name, tensors)
        return named

    def expect_back(self, name, tensors):
        """A folder of codes becomes a checkpoint of the values that they stand for, to the bit."""
        done = subprocess.run([self.tessera, "checkpoint", "convert", self.path(name + "_out"), self.path(name + "_back")],
                              capture_output=True, text=True, timeout=runs.PATIENCE)
        assert done.returncode == 0, done.stderr
        assert "14 of its weights are codes" in done.stdout + done.stderr
        masters = tessera_io.Checkpoint(self.path(name + "_back"))
        for layer in (0, 1):
            for part, modules in PARTS.items():
                values = np.concatenate([value(tensors, f"model.layers.{layer}.{module}") for module in modules])
                held = masters[f"layers.{layer}.{part}.weight"]
                assert held.dtype == np.float32
                assert np.array_equal(held.view(np.uint32), values.astype(np.float32).view(np.uint32)), (layer, part)

    def test_fp8_block(self):
        named = self.expect_codes("a", "fp8_block", "fp8")
        assert named["weight_block_size"] == [128, 128]
        path = self.path("a_out", "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["quantization_config"]["weight_block_size"] = [64, 64]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        done = subprocess.run([self.tessera, "checkpoint", "convert", self.path("a_out"), self.path("lost")], capture_output=True, text=True,
                              timeout=runs.PATIENCE)
        assert (done.returncode, os.path.exists(self.path("lost"))) == (5, False), done
        assert "quantization_config.weight_block_size: [64,64], and scales of blocks of [128,128] are read" in done.stderr

    def test_fp8_tensor(self):
        assert self.expect_codes("a", "fp8_tensor", "compressed-tensors")["format"] == "float-quantized"

    def test_mxfp8(self):
        for recipe in ("mxfp8", "mxfp8_2d"):
            assert self.expect_codes(recipe, recipe, "compressed-tensors")["format"] == "mxfp8-quantized"

    def test_nvfp4(self):
        assert self.expect_codes("a", "nvfp4", "compressed-tensors")["format"] == "nvfp4-pack-quantized"
        self.expect_codes("b", "nvfp4", "modelopt", "--layout", "modelopt")
        assert os.path.exists(self.path("b_out", "hf_quant_config.json"))

    def test_nvfp4_46(self):
        assert self.expect_codes("a", "nvfp4_46", "compressed-tensors")["format"] == "nvfp4-pack-quantized"
        self.expect_codes("b", "nvfp4_46", "modelopt", "--layout", "modelopt")

    def test_mxfp4(self):
        for recipe in ("mxfp4", "mxfp4_2d"):
            assert self.expect_codes(recipe, recipe, "compressed-tensors")["format"] == "mxfp4-pack-quantized"

    def test_the_recipe_of_the_step(self):
        named = self.expect_codes("a", "fp8_block", "compressed-tensors", sets=("precision.schedule=[{from_step: 2, recipe: mxfp8}]",), steps=2)
        assert named["format"] == "mxfp8-quantized"

    def test_damaged_codes_are_refused_by_name(self):
        self.run_of("a", "nvfp4", "dense", 1, *SIZES, steps=1)
        self.converted("a")
        path = self.path("a_out", "model.safetensors")
        with open(path, "rb") as file:
            whole = file.read()
        for before, after, said in (("o_proj.weight_scale\"", "o_proj.weight_scalf\"", "neither _scale nor _scale_inv"),
                                    ("o_proj.weight_global_scale\"", "o_proj.weight_global_scalf\"", "is of no type that the layouts")):
            with open(path, "wb") as file:
                file.write(whole.replace(before.encode(), after.encode()))
            index = self.path("a_out", "model.safetensors.index.json")
            if os.path.exists(index):
                os.remove(index)
            done = subprocess.run([self.tessera, "checkpoint", "convert", self.path("a_out"), self.path("a_back")], capture_output=True, text=True)
            assert done.returncode == 5, done.stderr
            assert said in done.stderr
            assert "model.layers.1.self_attn.o_proj.weight" in done.stderr
            assert not os.path.exists(self.path("a_back"))

    def test_several_formats(self):
        rules = "precision.layers=[{blocks: [first 1], recipe: nvfp4}, {modules: [attention.out], recipe: fp8_block}]"
        named = self.expect_codes("a", "mxfp8", "compressed-tensors", sets=(rules,))
        assert named["format"] == "mixed-precision"
        assert {group["format"] for group in named["config_groups"].values()} == {"float-quantized", "mxfp8-quantized", "nvfp4-pack-quantized"}

    def test_refused_by_name(self):
        self.run_of("cut", "fp8_block", "dense", 1, steps=1)  # queries, keys and values have 64 rows each
        err = self.converted("cut", code=5)
        assert ("model.layers.0.self_attn.k_proj.weight: its rows 64 to 128 of layers.0.attention.qkv.weight begin or end " "within a block of fp8_block, 128 rows high"
                in err)
        assert "model.layers.1.self_attn.k_proj.weight" in err
        assert "v_proj" not in err  # which ends where the matrix does
        self.run_of("plain", "bf16", "dense", 1, "precision.primary_weights=bf16", steps=1)
        assert "its run multiplies no weight as codes" in self.converted("plain", code=5)
        for name in ("cut", "plain"):
            assert not [entry for entry in os.listdir(self.path()) if entry.startswith(name + "_out")]
