"""Reads tessera's output: run directories, checkpoints, quantized files. Needs numpy, and h5py for all but metrics.

    import tessera_io
    run = tessera_io.Run("runs/moe_text")
    run.column("loss")                                   # numpy array, NaN where a row has none
    step = run.newest()                                  # Checkpoint
    step.names(), step["layers.0.attention.qkv.weight"]  # canonical names; fp32 master
    step.slot("adamw/m")["embed.tokens"], step.counters
    assert step.verify() == []                           # paths of tensors whose bytes differ from those saved
    values = tessera_io.dequantized("out.h5", "mlp.up")  # what `tessera quantize` wrote, in fp32
"""
import json
import pathlib
import re

import numpy as np

PHI = np.uint64(0x9E3779B97F4A7C15)


def digest(values):
    """64-bit additive digest of an array's stored bits by row-major position (io/checkpoint/FORMAT.md)."""
    values = np.ascontiguousarray(values)
    bits = values.reshape(-1).view(f"u{values.dtype.itemsize}").astype(np.uint64)
    with np.errstate(over="ignore"):
        z = bits ^ (np.arange(1, bits.size + 1, dtype=np.uint64) * PHI)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int(np.sum(z ^ (z >> np.uint64(31)), dtype=np.uint64))


class Run:
    """A run directory."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def rows(self):
        """The rows of metrics.jsonl in order, as dicts; unfinished lines are left out."""
        rows = []
        for line in _read(self.path, "metrics.jsonl", "run directory").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                pass
        return rows

    def column(self, name):
        """Values of one key in all rows, float64; NaN if it is null or absent."""
        return np.array([np.nan if row.get(name) is None else row[name] for row in self.rows()], np.float64)

    def quantization(self):
        """The lines of quantization.jsonl in order, as dicts (precision.statistics_every); none if a run has no such file."""
        lines = []
        for line in _read(self.path, "quantization.jsonl", "run directory").splitlines() if (self.path / "quantization.jsonl").exists() else []:
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                pass
        return lines

    def tensors(self, step):
        """{name: array} of the tensors of a step (debug.tensors): bf16 values widened to fp32, codes as they are stored."""
        import h5py

        found = {}

        def add(name, item):
            if isinstance(item, h5py.Dataset):
                values = _values(item)
                found[name] = (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values

        with h5py.File(self.path / f"tensors_{step:08}.h5") as file:
            file.visititems(add)
        return found

    def checkpoints(self):
        """Committed steps, oldest first. Their bytes are not checked: see verify()."""
        if not self.path.is_dir():
            raise FileNotFoundError(f"{self.path}: is no directory, and a run directory is needed")
        steps = [path for path in self.path.iterdir() if re.fullmatch(r"step_\d{8,}", path.name) and (path / "manifest.json").is_file()]
        return [Checkpoint(path) for path in sorted(steps, key=lambda path: int(path.name[5:]))]

    def newest(self):
        steps = self.checkpoints()
        if not steps:
            raise FileNotFoundError(f"{self.path}: holds no checkpoint yet")
        return steps[-1]


class Checkpoint:
    """A step folder. checkpoint[name] is the master weight of that canonical name, experts along the first axis."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.manifest = json.loads(_read(self.path, "manifest.json", "step folder of a checkpoint"))
        self.step, self.content_digest = self.manifest["step"], self.manifest["content_digest"]

    @property
    def counters(self):
        """Path -> value of every counter of the state: integers and floats (stored as hex digits of their bits)."""
        def value(text):
            return float(np.array([int(text, 16)], np.uint64).view(np.float64)[0]) if isinstance(text, str) else text
        return {path: value(text) for path, text in self.manifest["state"].items()}

    def slots(self):
        """Names of slots: "model", and the optimizer's, such as "adamw/m"."""
        return sorted({path.strip("/").rsplit("/", 1)[0] for path in self._table()})

    def names(self, slot="model"):
        return [path.rsplit("/", 1)[1] for path in self._table() if path.strip("/").rsplit("/", 1)[0] == slot]

    def __getitem__(self, name):
        return self.slot("model")[name]

    def slot(self, slot):
        """Mapping name -> array of one slot; arrays are read on access."""
        return _Slot(self, slot)

    def verify(self):
        """Paths of the tensors whose bytes do not match the saved digests; reads everything."""
        return [path for path, saved in self._table().items() if digest(self._stored(path)) != saved]

    def _files(self):
        import h5py
        for name in sorted(self.manifest["files"]):
            if name.endswith(".h5"):
                with h5py.File(self.path / name) as file:
                    if "integrity" in file:
                        yield file

    def _table(self):
        """Path -> digest of every tensor, in the files' order."""
        return {row["name"].rstrip(b"\0").decode(): int(row["digest"]) for file in self._files() for row in file["integrity/table"][...]}

    def _stored(self, path):
        """A tensor as stored in its file: one dataset, or the datasets of its experts stacked."""
        for file in self._files():
            if path in file:
                return _values(file[path])
            slot, name = path.rsplit("/", 1)
            experts = [dataset for dataset in file[slot].values() if _text(dataset.attrs.get("canonical", "")) == name] if slot in file else []
            if experts:
                return np.stack([_values(dataset) for dataset in sorted(experts, key=lambda dataset: int(dataset.attrs["expert"]))])
        raise KeyError(f"{self.path} has no {path}")


class _Slot:
    def __init__(self, checkpoint, slot):
        self._checkpoint, self._slot = checkpoint, slot

    def __getitem__(self, name):
        stored = self._checkpoint._stored(f"/{self._slot}/{name}")
        return (stored.astype(np.uint32) << 16).view(np.float32) if stored.dtype == np.uint16 else stored

    def keys(self):
        return self._checkpoint.names(self._slot)


def _read(folder, name, kind):
    """Text of a file in a folder that must be of this kind."""
    try:
        return (folder / name).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        what = f"has no {name}" if folder.is_dir() else "is a file" if folder.exists() else "is not there"
        raise FileNotFoundError(f"{folder}: {what}, and a {kind} is needed") from None


def _text(value):
    return value.rstrip(b"\0").decode() if isinstance(value, bytes) else str(value)


def _values(dataset):
    """A dataset's elements; bf16, for which numpy has no type, as uint16 bits."""
    if dataset.id.get_type().get_size() == 2:
        import h5py
        raw = np.empty(dataset.shape, np.uint16)
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=dataset.id.get_type())
        return raw
    return dataset[...]


def _small_floats(exponent_bits, mantissa_bits, bias):
    """Values of all codes of a small float format, sign bit first."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    scale = np.where(exponent > 0, exponent, 1) - bias - mantissa_bits
    values = np.ldexp(np.where(exponent > 0, mantissa + (1 << mantissa_bits), mantissa).astype(np.float64), scale)
    return np.where(codes >> (exponent_bits + mantissa_bits), -values, values).astype(np.float32)


E4M3 = _small_floats(4, 3, 7)
E4M3[[0x7F, 0xFF]] = np.nan
E5M2 = _small_floats(5, 2, 15)
E5M2[[*range(0x7C, 0x80), *range(0xFC, 0x100)]] = np.nan
E3M2 = _small_floats(3, 2, 3)
E2M3 = _small_floats(2, 3, 1)
E2M1 = _small_floats(2, 1, 1)
MX = {"mxfp8": E4M3, "mxfp8_e5m2": E5M2, "mxfp6_e3m2": E3M2, "mxfp6_e2m3": E2M3, "mxfp4": E2M1}  # elements of blocks of 32
BLOCKS = {"fp8_block": (128, 128), "fp8_block_1d": (1, 128), "nvfp4": (16, 16), "nvfp4_1d": (1, 16),
          "nvfp4_46": (16, 16), "nvfp4_46_1d": (1, 16),
          **{name: (1, 32) for name in MX}, **{name + "_2d": (32, 32) for name in MX if name != "mxfp8_e5m2"},
          "fp8_tensor": None, "fp8_tensor_e5m2": None}  # None: one scale a matrix, that of its amax


def _numbers(exponent_bits, mantissa_bits):
    """Of a described element by code: sign, exponent, mantissa; without an exponent sign and whole magnitude."""
    if exponent_bits:
        return _small_floats(exponent_bits, mantissa_bits, 2 ** (exponent_bits - 1) - 1)
    magnitudes = np.arange(2**mantissa_bits, dtype=np.float32)
    return np.concatenate([magnitudes, -magnitudes])


def _described(form):
    """The parts of a described format, "int4_1x64_e8m0": numbers by code, block (None: the whole matrix), scale."""
    element, block, scale = form.split("_", 2)
    exponent, mantissa, whole, special = re.fullmatch(r"(?:e(\d)m(\d)|int(\d))(nan|ieee)?", element).groups()
    codes = _numbers(0, int(whole) - 1) if whole else _numbers(int(exponent), int(mantissa))
    if special:  # codes at the end of each half
        last = 1 if special == "nan" else 2 ** int(mantissa)
        for half in np.split(codes, 2):
            half[-last:] = np.nan
    return codes, None if block == "tensor" else tuple(int(n) for n in block.split("x")), scale


def _of_described(form, data, scales, amax):
    codes, block, scale = _described(form)
    rows, columns = data.shape
    amax = np.float32(1) if amax is None else np.float32(np.asarray(amax).reshape(-1)[0])
    if block is None:
        return codes[data] * _tensor_step(amax, np.nanmax(codes))
    if scale.startswith("e8m0"):
        steps = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    else:
        steps = scales if scale == "power" else E4M3[scales] * amax * (np.float32(1) / (np.nanmax(codes) * np.float32(448)))
    steps = np.repeat(np.repeat(steps, block[0], axis=0), block[1], axis=1)
    return codes[data] * steps[:rows, :columns]


def dequantized(path, name):
    """The rowwise copy of a tensor that `tessera quantize` wrote, decoded to fp32 [M, K] or [E, M, K], without the padding of a vocabulary."""
    import h5py
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"{path}: is no file, and one that `tessera quantize` wrote is needed")
    with h5py.File(path) as file:
        if name not in file:
            raise KeyError(f"{path} has no {name}; it has {', '.join(file)}")
        group = file[name]
        form, shape = _text(group.attrs["format"]), tuple(int(n) for n in group.attrs["shape"])
        data, scales, amax = (group[key][...] if key in group else None for key in ("rowwise_data", "rowwise_scales", "amax"))
    if data is None:
        raise ValueError(f"{name} has no rowwise copy: its shape does not suit {form}")
    if len(shape) == 3:
        amaxes = [None] * shape[0] if amax is None else amax.reshape(shape[0])
        scales = [None] * shape[0] if scales is None else scales
        return np.stack([_decoded(form, shape[1:], *member) for member in zip(data, scales, amaxes)])
    return _decoded(form, shape, data, scales, amax)


def _tensor_step(amax, largest):
    """1 / S, with S = largest / amax and its mantissa truncated, at most 2^127; 1 if amax is 0 or infinite."""
    if amax == 0 or not np.isfinite(amax):
        return np.float32(1)
    with np.errstate(over="ignore"):
        quotient = np.minimum(np.float32(largest) / amax, np.float32(2.0**127))
    return np.ldexp(np.float32(1), 1 - int(np.frexp(quotient)[1]))


def _decoded(form, shape, data, scales, amax):
    rows, columns = shape
    data = data.reshape(-1, data.shape[-1])[:rows]  # rows behind these pad the vocabulary
    if form not in BLOCKS:
        return _of_described(form, data, scales, amax)
    if BLOCKS[form] is None:
        codes = E5M2 if form.endswith("e5m2") else E4M3
        return codes[data.reshape(rows, columns)] * _tensor_step(np.float32(np.asarray(amax).reshape(-1)[0]), np.nanmax(codes))
    height, width = BLOCKS[form]
    if form.startswith(("nvfp4", "mxfp4")):
        data = np.stack([data & 15, data >> 4], axis=-1)
    data = data.reshape(rows, columns)
    if form.startswith("nvfp4"):
        tensor = np.float32(np.asarray(amax).reshape(-1)[0]) if amax is not None else np.float32(1)
        steps = E4M3[scales[:rows, :-(-columns // width)]] * tensor * np.float32(1 / (1536 if "_46" in form else 2688))
        return E2M1[data] * np.repeat(steps, width, axis=1)[:, :columns]
    if form.startswith("mx"):  # a tile's scale is repeated in each of its rows
        steps = np.ldexp(np.float32(1), scales[:rows, :-(-columns // width)].astype(np.int32) - 127)
        return MX[form.removesuffix("_2d")][data] * np.repeat(steps, width, axis=1)[:, :columns]
    values = E4M3[data]
    if form == "fp8_block_1d":  # [ceil(K/128), pad4(M)]
        steps = scales[:, :rows].T
        return values * np.repeat(steps, width, axis=1)[:, :columns]
    steps = np.repeat(np.repeat(scales, height, axis=0), width, axis=1)
    return values * steps[:rows, :columns]
