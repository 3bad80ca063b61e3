"""Writes row_scales.json: two matrices in nvfp4_row, by number_formats.py: of both copies amaxes, scales, codes and decoded
values.

    python3 tests/oracle/row_scale_cases.py        # numpy alone

The rows of the first matrix hold numbers of binades all over fp32's range, amaxes beside those at which the power of
two changes, and zeros, NaN and infinity; the second matrix is its transpose. Numbers are the bits of fp32.
"""
import json
import pathlib

import numpy as np

import number_formats as formats
from number_formats import F32

FILE = pathlib.Path(__file__).parent / "row_scales.json"


def matrix():
    random = np.random.default_rng(11)
    x = random.standard_normal((32, 32)).clip(-3, 3) / 4
    for row, size in enumerate((1, 2688, 2704, 2672, 1344, 1e-3, 3e4, 2.0**-126, 2.0**-133, 2.0**-117, 2.0**100, 3e38)):
        x[row] *= size
        x[row, row] = size  # the row's amax; 2672 and 2704 are the bf16 numbers beside 2688
    x[12, 16:] *= 2.0**-20  # a block whose scale underflows beside the row's amax
    x[13] = 0
    x[14, ::3] = -0.0
    x[15, 5] = np.inf
    x[16, 9] = np.nan
    x[17] = np.nan
    x[18, 20:] = np.nan
    x[19, 1] = -np.inf
    x[20:] *= np.exp2(random.integers(-60, 60, (12, 1)))
    with np.errstate(over="ignore"):
        return formats.bf16(x.astype(F32))


def words(numbers):
    return [[f"{int(word):#010x}" for word in row] for row in formats.bits(numbers).reshape(np.shape(numbers))]


def copy_of(x, block):
    copy = formats.nvfp4_row(x, block)
    amaxes = np.fmax.reduce(np.abs(x), axis=int(block[0] == 1), initial=F32(0))
    return dict(amaxes=words(amaxes[None])[0], scales=copy.scales.tolist(), codes=copy.codes.tolist(),
                values=words(copy.values.astype(F32)))


def cases():
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return [dict(x=words(x), rowwise=copy_of(x, (1, 16)), columnwise=copy_of(x, (16, 1)))
                for x in (matrix(), np.ascontiguousarray(matrix().T))]


if __name__ == "__main__":
    FILE.write_text(json.dumps(cases(), separators=(",", ":")).replace("],[", "],\n[") + "\n")
