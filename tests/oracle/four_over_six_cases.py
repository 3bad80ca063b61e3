"""Writes four_over_six.json: blocks of 16 numbers in nvfp4_46, by number_formats.py: both scales, both sums of errors,
which is taken, codes and decoded values without the tensor's scale.

    python3 tests/oracle/four_over_six_cases.py        # numpy alone

Blocks hold normal numbers of any binade under several amaxes of the tensor, magnitudes around those on
which the choice turns, some of which lose equally much both ways, scales that underflow with a 6 alone, and zeros, NaN and
infinity. Numbers are the bits of fp32.
"""
import json
import pathlib

import numpy as np

import number_formats as formats
from number_formats import F32

FILE = pathlib.Path(__file__).parent / "four_over_six.json"


def blocks():
    """(the tensor's amax, a block)."""
    random = np.random.default_rng(7)
    for amax in (1.0, 1536.0, 3e-5, 2.0**100, 1e-38, 1e-41):
        for below in (1.0, 0.3, 0.01, 1e-4, 1e-6):
            for _ in range(6):
                x = random.standard_normal(16) / 3
                yield F32(amax), formats.bf16(x * amax * below)
    for steps in range(-6, 7):  # scale 1: with a 6 the number 5 is lost, with a 4 its 3.33; between them the choice turns
        x = np.full(16, 0.25 * steps, F32)
        x[:4] = 6, 5, 4.5, 3.5
        yield F32(1536), x
    for turning in np.linspace(4.0, 5.5, 49, dtype=F32):
        yield F32(1536), np.resize(np.array([6, -turning], F32), 16)
    for pattern in ([6, 0], [6, 3, 1.5], [0, -0.0], [6, 2.25], [6, -2.25, 0.75], [6, 0.75]):  # nothing lost one way
        yield F32(1536), np.resize(np.array(pattern, F32), 16)
    for units in range(1, 14):  # w around half of the least scale, 2^-9, and around 2/3 of that
        yield F32(1536), np.resize(np.array([6 * units * 2.0**-13, -units * 2.0**-13], F32), 16)
    for special in ([np.inf, 1], [np.nan, 5, 6, -np.nan], [np.nan], [-np.inf], [0.0, -0.0], [np.inf, np.nan, 0]):
        yield F32(1536), np.resize(np.array(special, F32), 16)
    for amax in (0.0, np.inf):
        yield F32(amax), np.resize(np.array([amax, 1, -3], F32), 16)


def word(number):
    return f"{int(formats.bits(number).reshape(-1)[0]):#010x}"


def cases():
    made = []
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for amax, x in blocks():
            (six, _, error6), (four, _, error4), takes_four = formats.four_over_six(x[None], (1, 16), amax)
            copy = formats.nvfp4_46(x[None], (1, 16), amax)
            made.append(dict(amax=word(amax), x=[word(v) for v in x], six=int(six[0, 0]), four=int(four[0, 0]),
                             errors=[int(error6[0, 0]), int(error4[0, 0])], takes_four=bool(takes_four[0, 0]),
                             codes=[int(code) for code in copy.codes[0]], values=[word(F32(v)) for v in copy.values[0]]))
    return made


if __name__ == "__main__":
    FILE.write_text(json.dumps(cases(), separators=(",", ":")).replace("},{", "},\n{") + "\n")
