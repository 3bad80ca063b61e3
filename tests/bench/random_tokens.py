#!/usr/bin/env python3
"""Writes uniformly random tokens as llm.c's files hold them (magic 20240520, version 1, uint16), for benchmarks.

    random_tokens.py FILE COUNT VOCABULARY
"""
import pathlib
import random
import struct
import sys
from array import array

path, count, vocabulary = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if not 1 <= vocabulary <= 1 << 16:
    sys.exit("random_tokens.py: the vocabulary must fit 16 bits")
draw = random.Random(1234)
path.parent.mkdir(parents=True, exist_ok=True)
with path.open("wb") as file:
    file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
    array("H", draw.choices(range(vocabulary), k=count)).tofile(file)
