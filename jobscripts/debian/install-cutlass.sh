#!/usr/bin/env bash
# Puts the headers of CUTLASS 4.2.0 into a per-user cache and prints the folder that holds them; does nothing where they
# are already there. A CUDA build without them multiplies experts' rows by kernels of its own alone, at half the speed on Hopper.
#   install-cutlass.sh
# The source is PyPI's wheel (BSD licence), of which the headers alone are kept.
set -euo pipefail
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tessera
prefix=$cache/cutlass-4.2.0
if [ -f "$prefix/.complete" ]; then echo "$prefix"; exit 0; fi

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
echo "[cutlass] fetching the headers (PyPI: nvidia-cutlass 4.2.0.0)" >&2
python3 -m pip download -q --no-deps --only-binary=:all: -d "$work" nvidia-cutlass==4.2.0.0 >&2
wheel=$(ls "$work"/*.whl)
echo "f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6  $wheel" | sha256sum --check --quiet >&2
mkdir -p "$cache"
rm -rf "$prefix.part" "$prefix"
python3 -m zipfile -e "$wheel" "$work/wheel"
mkdir "$prefix.part"
mv "$work/wheel/cutlass_library/source/include" "$prefix.part/include"
mv "$prefix.part" "$prefix"
touch "$prefix/.complete"
echo "$prefix"
