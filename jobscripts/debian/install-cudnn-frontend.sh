#!/usr/bin/env bash
# Puts the headers of cuDNN's C++ graph API 1.18.0 into a per-user cache and prints the folder that holds them; does
# nothing where they are already there. A CUDA build without them has attention kernels of its own alone.
#   install-cudnn-frontend.sh
# The source is PyPI's wheel (MIT licence), of which the headers alone are kept.
set -euo pipefail
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tessera
prefix=$cache/cudnn-frontend-1.18.0
if [ -f "$prefix/.complete" ]; then echo "$prefix"; exit 0; fi

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
echo "[cudnn-frontend] fetching the headers (PyPI: nvidia-cudnn-frontend 1.18.0)" >&2
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
  --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 -d "$work" nvidia-cudnn-frontend==1.18.0 >&2
wheel=$(ls "$work"/*.whl)
echo "382ea063b92cbfd5b442cb75ff8422932d78276aecf139e46713ed1ad3d07af4  $wheel" | sha256sum --check --quiet >&2
mkdir -p "$cache"
rm -rf "$prefix.part" "$prefix"
python3 -m zipfile -e "$wheel" "$work/wheel"
mkdir "$prefix.part"
mv "$work/wheel/include" "$prefix.part/include"
mv "$prefix.part" "$prefix"
touch "$prefix/.complete"
echo "$prefix"
