"""Places of block scales as nvmath-python's get_block_scale_offset() gives them: goldens/block_scales.json. Needs PyPI's
nvmath-python and torch, no GPU. Operands are whole tiles, which that function asks for.

usage: block_scale_goldens.py > goldens/block_scales.json
"""
import json
import random

from nvmath.linalg.advanced.helpers.matmul import BlockScalingFormat, get_block_scale_offset

SIDES, SUMS = (128, 256, 640), (128, 256, 512, 1152)
BLOCKS = {"mxfp8": (BlockScalingFormat.MXFP8, 32), "nvfp4": (BlockScalingFormat.NVFP4, 16)}


def cases(draw):
    for name, (kind, block) in BLOCKS.items():
        for axis in (-1, -2):
            for rows in SIDES:
                for depth in SUMS:
                    for _ in range(12):
                        row, column = draw.randrange(rows), draw.randrange(depth // block)
                        shape, index = ((rows, depth), (row, column)) if axis == -1 else ((depth, rows), (column, row))
                        offset = get_block_scale_offset(index, shape, kind, axis=axis)
                        yield [name, axis, rows, depth, row, column, int(offset)]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case) for case in cases(random.Random(5)))
    print(f'{{"columns": ["format", "axis", "sides", "sum", "side", "block", "offset"], "cases": [\n{lines}\n]}}')
