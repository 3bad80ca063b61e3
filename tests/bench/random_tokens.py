#!/usr/bin/env python3
"""Writes uniformly random tokens as llm.c's files hold them, for benchmarks: as uint16 (magic 20240520, version 1), and
of a vocabulary that does not fit 16 bits as uint32 (magic 20240801, version 7).

    random_tokens.py FILE COUNT VOCABULARY
"""
import pathlib
import random
import struct
import sys
from array import array

path, count, vocabulary = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if not 1 <= vocabulary <= 1 << 32:
    sys.exit("random_tokens.py: the vocabulary must fit 32 bits")
draw = random.Random(1234)
path.parent.mkdir(parents=True, exist_ok=True)
with path.open("wb") as file:
    magic, version, kind = (20240520, 1, "H") if vocabulary <= 1 << 16 else (20240801, 7, "I")
    file.write(struct.pack("<256i", magic, version, count, *[0] * 253))
    array(kind, draw.choices(range(vocabulary), k=count)).tofile(file)
