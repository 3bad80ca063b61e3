"""Writes mx.json: blocks of 32 numbers with the scale, codes and decoded values of each MX format, by number_formats.py.

    python3 tests/oracle/mx_cases.py        # numpy alone

Blocks hold normal numbers of any binade, ties and their neighbours, powers of two around the element's largest value,
subnormals, zeros of both signs, NaN and infinity. Numbers are the bits of fp32.
"""
import json
import pathlib

import numpy as np

import number_formats as formats
from number_formats import F32

FILE = pathlib.Path(__file__).parent / "mx.json"


def blocks(element):
    random = np.random.default_rng(7)
    for binade in (-140, -126, -40, -3, 0, 5, 60, 110, 126):
        yield np.ldexp(random.standard_normal(32).astype(F32), binade).astype(F32)
    table = element.table()
    table = table[table <= element.largest]
    middles = ((table[1:] + table[:-1]) / 2).astype(F32)
    near = np.concatenate([middles, np.nextafter(middles, F32(0)), np.nextafter(middles, F32(np.inf)), table.astype(F32)])
    for first in range(0, near.size, 31):  # the largest value in each block keeps its scale at 1
        block = np.concatenate([near[first:first + 31] * random.choice([-1, 1], near[first:first + 31].size), [element.largest]])
        yield np.resize(block, 32).astype(F32)
    for amax in (element.largest, np.nextafter(F32(element.largest), F32(np.inf)), np.nextafter(F32(element.largest), F32(0))):
        yield np.resize(np.array([amax, -amax / 3, 0.0, -0.0], F32), 32)
    yield np.zeros(32, F32)
    yield np.full(32, np.nan, F32)
    yield np.resize(np.array([np.nan, 1.5, -np.nan, -0.3], F32), 32)
    yield np.resize(np.array([np.inf, 1.5, -np.inf, np.nan, 0.0], F32), 32)


def words(values):
    return [f"{word:#010x}" for word in formats.bits(values).reshape(-1)]


def cases():
    made = {}
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for name, element in formats.MX.items():
            made[name] = []
            for x in blocks(element):
                copy = formats.mx(x[None], (1, 32), element)
                made[name].append(dict(x=words(x), scale=f"{copy.scales[0, 0]:#x}", codes=[f"{code:#x}" for code in copy.codes[0]],
                                       values=words(copy.values[0].astype(F32))))
    return made


if __name__ == "__main__":
    FILE.write_text(json.dumps(cases(), separators=(",", ":")).replace("},{", "},\n{") + "\n")
