"""Makes format-<version>.tar.gz, checkpoints in the format version that a program writes: two runs (experts in one
dataset, saved by two ranks; experts in a dataset each, saved by three) and expected.json, their content as that program
reports it.

usage: make.py TESSERA MPIEXEC
"""
import gzip
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

DECK = """schema_version: 1
run: {name: LAYOUT, steps: 4, threads: 1}
model: {layers: 1, hidden: 4, heads: 2, kv_heads: 1, seq_len: 8, norm: rms, activation: swiglu, position: rotary, ffn: 8, vocab: 8, moe: {experts: 2, top_k: 1, weights: LAYOUT}}
data: {kind: tokens, files: [tokens.bin], eval_fraction: 0.1}
batch: {global: 6, micro: 1}
eval: {batches: 1}
optimizer: {lr: 0.01}
checkpoint: {dir: LAYOUT}
"""


def make(tessera, mpiexec, folder):
    """Writes the checkpoints and expected.json to the folder; returns the format version."""
    tokens = [i * i % 7 for i in range(1000)]
    with open(os.path.join(folder, "tokens.bin"), "wb") as file:  # llm.c: 256 words of header, then 16-bit tokens
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens))
    # tessera is started by name, so that checkpoints record no path of this machine.
    environment = {**os.environ, "PATH": os.path.dirname(os.path.abspath(tessera)) + os.pathsep + os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    expected = {}
    for layout, ranks in (("single", 2), ("discrete", 3)):
        with open(os.path.join(folder, layout + ".yaml"), "w") as file:
            file.write(DECK.replace("LAYOUT", layout))
        done = subprocess.run([mpiexec, "-n", str(ranks), "tessera", "train", layout + ".yaml", "--stop-at", "3"], cwd=folder, env=environment,
                              stdout=subprocess.DEVNULL)
        if done.returncode != 75:
            raise SystemExit(f"tessera ended with {done.returncode}")
        told = subprocess.run(["tessera", "checkpoint", "inspect", layout, "--json"], cwd=folder, env=environment, check=True, capture_output=True)
        expected[layout] = json.loads(told.stdout)
        loss = subprocess.run(["tessera", "eval", layout + ".yaml", "--checkpoint", layout, "--json"], cwd=folder, env=environment, check=True,
                              capture_output=True)
        expected[layout]["eval_loss"] = json.loads(loss.stdout)["eval_loss"]
        for name in os.listdir(os.path.join(folder, layout)):
            if not name.startswith("step_"):
                os.remove(os.path.join(folder, layout, name))
    with open(os.path.join(folder, "expected.json"), "w") as file:
        json.dump(expected, file, indent=1)
    return expected["single"]["format_version"]


def pack(folder, path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for parent, folders, files in os.walk(folder):
            folders.sort()
            for name in sorted(files):
                archive.add(os.path.join(parent, name), os.path.relpath(os.path.join(parent, name), folder))
    with open(path, "xb") as file, gzip.GzipFile("", "wb", 9, file, 0) as out:
        out.write(packed.getvalue())


def main():
    folder = os.path.join(tempfile.gettempdir(), "tessera-format")
    os.mkdir(folder)
    try:
        version = make(sys.argv[1], sys.argv[2], folder)
        pack(folder, os.path.join(os.path.dirname(os.path.abspath(__file__)), f"format-{version}.tar.gz"))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
