#!/usr/bin/env python3
"""Times PyTorch on the work of quantize_bench, on one GPU: the same casts, written in PyTorch's operations and compiled.

    torch_quantize.py [--elements N] [--save FOLDER]
    torch_quantize.py --compare FOLDER

Prints a line per operation: microseconds, and the speed at which the necessary bytes move as a share of the copy
bandwidth in the same run. Scales are not swizzled; the sizes need no padding.

--save also writes FOLDER/input.safetensors, a seeded matrix x, and the results of the compiled casts, FOLDER/FORMAT.npz.
--compare (no GPU needed) compares those byte for byte with FOLDER/FORMAT.h5, made by
`tessera quantize FOLDER/input.safetensors --format FORMAT --out FOLDER/FORMAT.h5`; FORMAT is mxfp8, fp8_block and nvfp4.
"""
import argparse
import json
import pathlib
import statistics
import struct
import sys
import time

import torch

E4M3 = torch.float8_e4m3fn


def microseconds(call, repeats=5, calls=20):
    """Time of a call: the median of `repeats` means over `calls` calls, after 0.3 s of warm-up."""
    begin = time.monotonic()
    while time.monotonic() - begin < 0.3:
        call()
        torch.cuda.synchronize()
    spans = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        spans.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(spans)


def mx_scale(amax):
    """Exponent byte of amax / 448 rounded up to a power of two, and the multiplier 2^(127 - byte)."""
    bits = (amax.float() * (1 / 448)).view(torch.int32)
    code = torch.clamp((bits + 0x7FFFFF) >> 23, 0, 254)
    return code.to(torch.uint8), ((254 - code) << 23).view(torch.float32)


def mx_rowwise(x):
    blocks = x.view(x.shape[0], -1, 32)
    scale, multiplier = mx_scale(blocks.abs().amax(-1))
    return (blocks.float() * multiplier[..., None]).to(E4M3).view(x.shape), scale


def mx_columnwise(x):
    blocks = x.view(-1, 32, x.shape[1])
    scale, multiplier = mx_scale(blocks.abs().amax(1))
    return (blocks.float() * multiplier[:, None]).to(E4M3).view(x.shape), scale


def mxfp8(x):
    return mx_rowwise(x), mx_columnwise(x)


def fp8_block(x):
    rows, columns = x.shape
    blocks = x.view(rows // 128, 128, columns // 128, 128)
    amax = blocks.abs().amax((1, 3), keepdim=True).float()
    multiplier = ((448 / amax).view(torch.int32) & 0x7F800000).view(torch.float32)
    data = (blocks.float() * multiplier).to(E4M3).view(rows, columns)
    return data, data.view(torch.uint8).t().contiguous(), 1 / multiplier


def e2m1(v):
    magnitude = v.abs()
    code = ((magnitude > 0.25).to(torch.uint8) + (magnitude >= 0.75) + (magnitude > 1.25) + (magnitude >= 1.75) +
            (magnitude > 2.5) + (magnitude >= 3.5) + (magnitude > 5))
    return code | (v < 0).to(torch.uint8) << 3


def nvfp4(x):
    rows, columns = x.shape
    tiles = x.view(rows // 16, 16, columns // 16, 16)
    amax = tiles.abs().amax((1, 3), keepdim=True).float()
    encode = 2688 / amax.amax()
    scale = (amax * (encode * (1 / 6))).to(E4M3)
    codes = e2m1(tiles.float() / (scale.float() * (1 / encode))).view(rows, columns)
    turned = codes.t().contiguous()
    pack = lambda c: c[:, 0::2] | c[:, 1::2] << 4
    return pack(codes), pack(turned), scale.view(torch.uint8)


def turn(x):
    return x.t().contiguous()


def cast(x, multiplier):
    rows, columns = x.shape
    blocks = x.bfloat16().view(rows // 128, 128, columns // 128, 128)
    return (blocks.float() * multiplier).to(E4M3).view(rows, columns)


def as_bytes(t):
    """The bytes of a tensor, as a matrix with the tensor's rows."""
    return t.contiguous().view(torch.uint8).reshape(t.shape[0], -1).cpu().numpy()


def save(folder):
    """Writes a matrix with blocks of many magnitudes, and both copies of it in three formats."""
    import numpy
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(512, 1024, generator=generator) * torch.exp2(torch.randint(-20, 20, (512, 32), generator=generator)
                                                                  .repeat_interleave(32, 1).float())
    x = x.bfloat16()
    raw = as_bytes(x).tobytes()
    header = json.dumps({"x": {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [0, len(raw)]}}).encode()
    (folder / "input.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + raw)
    x = x.cuda()
    (row, row_scale), (column, column_scale) = torch.compile(mxfp8)(x)
    numpy.savez(folder / "mxfp8.npz", rowwise_data=as_bytes(row), rowwise_scales=as_bytes(row_scale),
                columnwise_data=as_bytes(column), columnwise_scales=as_bytes(column_scale))
    row, column, scale = torch.compile(fp8_block)(x)
    numpy.savez(folder / "fp8_block.npz", rowwise_data=as_bytes(row), columnwise_data=as_bytes(column),
                rowwise_scales=as_bytes(scale.reshape(scale.shape[0], -1)))
    row, column, scale = torch.compile(nvfp4)(x)
    tiles = scale.reshape(scale.shape[0], -1)
    numpy.savez(folder / "nvfp4.npz", rowwise_data=as_bytes(row), columnwise_data=as_bytes(column),
                rowwise_scales=as_bytes(tiles.repeat_interleave(16, 0)),
                columnwise_scales=as_bytes(tiles.t().repeat_interleave(16, 0)))


def compare(folder):
    """Prints a line per array; returns the number of arrays that differ."""
    import h5py
    import numpy
    different = 0
    for name in ("mxfp8", "fp8_block", "nvfp4"):
        theirs = numpy.load(folder / f"{name}.npz")
        with h5py.File(folder / f"{name}.h5") as ours:
            for array in theirs.files:
                mine = numpy.ascontiguousarray(ours["x"][array][()])
                mine = mine.view(numpy.uint8).reshape(mine.shape[0], -1)
                same = mine.shape == theirs[array].shape and mine.size > 0
                unequal = int((mine != theirs[array]).sum()) if same else mine.size
                different += not same or unequal > 0
                print(f"{name:10s} {array:18s} {mine.shape} {unequal} of {mine.size} bytes differ")
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--save", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.compare:
        sys.exit(1 if compare(arguments.compare) else 0)
    if arguments.save:
        save(arguments.save)
    count = arguments.elements
    rows = 32
    while rows * rows * 8 <= count:
        rows *= 2
    columns = count // rows // 128 * 128
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    to = torch.empty_like(x)
    copied = 2 * x.numel() * 2 / microseconds(lambda: to.copy_(x))
    print(f"# torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}: copy {copied * 1e-6:.2f} TB/s")
    n = x.numel()
    codes = torch.randint(0, 255, x.shape, device="cuda", dtype=torch.uint8)
    multiplier = torch.full((rows // 128, 1, columns // 128, 1), 64.0, device="cuda")
    cases = [("mxfp8, both copies", mxfp8, lambda: (x,), 4.0625), ("fp8_block, both copies", fp8_block, lambda: (x,), 4.0),
             ("nvfp4, both copies", nvfp4, lambda: (x,), 5.0), ("byte transpose", turn, lambda: (codes,), 2.0),
             ("fp8_block, cast of masters", cast, lambda: (x.float(), multiplier), 5.0)]
    for name, function, inputs, bytes_each in cases:
        compiled, values = torch.compile(function), inputs()
        us = microseconds(lambda: compiled(*values))
        print(f"{name:28s} {us:9.1f} us   {bytes_each * n / us / copied:6.1%} of copy", flush=True)


if __name__ == "__main__":
    main()
