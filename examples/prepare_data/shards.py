"""Files of tokens and marks, made of parts, each written whole or not at all. Used by prepare.py."""
import array
import os
import struct
import zlib


def write_whole(path, write):
    """Writes a file by temporary name, fsync and rename, so that it appears whole or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    with open(unfinished, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def part(folder, number, val):
    return folder / f"{number:08}.{'val' if val else 'train'}"


def marks_beside(path):
    return path.with_suffix(".marks") if path.suffix == ".bin" else path.with_name(path.name + ".marks")


def mark(path, files, count):
    """Writes the marks of a shard of `count` tokens: a header {magic, version, count, CRC of the tokens}, then a byte a token."""
    held = path.read_bytes()[1024:]

    def write(file):
        file.write(struct.pack("<iiqI", 20261127, 1, count, zlib.crc32(held)).ljust(1024, b"\0"))
        for piece in files(count):
            file.write(piece)
    write_whole(marks_beside(path), write)


class Pieces:
    """The bytes of files one after another, some at a time."""

    def __init__(self, paths):
        self.paths, self.rest = iter(paths), b""

    def __call__(self, most):
        """Yields pieces of at most `most` bytes together, fewer at the end."""
        while most > 0:
            if not self.rest:
                path = next(self.paths, None)
                if path is None:
                    return
                self.rest = path.read_bytes()
                continue
            taken, self.rest = self.rest[:most], self.rest[most:]
            most -= len(taken)
            yield taken


def join(out, jobs, val, code, most, marked):
    """Joins parts to shards of at most `most` tokens in llm.c's format (a header of 256 int32, then tokens), and their marks;
    (tokens, paths in parts/)."""
    size, counts, kept = array.array(code).itemsize, [], []
    name = "val" if val else "train"
    parts = [part(out / "parts", number, val) for number in range(jobs)]
    tokens, marks = Pieces(parts), Pieces(map(marks_beside, parts))

    def shard(file):
        file.write(bytes(1024))
        count = 0
        for piece in tokens(most * size):
            file.write(piece)
            count += len(piece) // size
        file.seek(0)
        file.write(struct.pack("<256i", *((20240520, 1) if size == 2 else (20240801, 7)), count, *([0] * 253)))
        counts.append(count)

    while not counts or counts[-1] == most:
        path = out / "parts" / f"{name}_{len(counts):06}.bin"
        write_whole(path, shard)
        if counts[-1] == 0:
            path.unlink()
            counts.pop()
            break
        kept.append(path)
        if marked:
            mark(path, marks, counts[-1])
            kept.append(marks_beside(path))
    return sum(counts), kept
