#!/usr/bin/env bash
# Puts optional headers of CUDA builds into a per-user cache and prints their folder; does nothing if they are there.
#   install-headers.sh cudnn-frontend   cuDNN's C++ graph API; without it attention uses only the project's own kernels
#   install-headers.sh cutlass          without it experts' products use only own kernels, at half the speed on Hopper
# The sources are wheels from PyPI (MIT and BSD licence), of which only the headers are kept.
set -euo pipefail
name=${1:?cudnn-frontend or cutlass}
case $name in
  cudnn-frontend) version=1.18.0 package=nvidia-cudnn-frontend==1.18.0 include=include
    digest=382ea063b92cbfd5b442cb75ff8422932d78276aecf139e46713ed1ad3d07af4
    wheel_of=(--python-version 3.11 --implementation cp --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64) ;;
  cutlass) version=4.2.0 package=nvidia-cutlass==4.2.0.0 include=cutlass_library/source/include
    digest=f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6 wheel_of=() ;;
  *) echo "[headers] $name: cudnn-frontend or cutlass" >&2; exit 2 ;;
esac
. "$(dirname "$0")/cached.sh"
claim "$name-$version"

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
echo "[$name] fetching the headers (PyPI: $package)" >&2
python3 -m pip download -q --no-deps --only-binary=:all: "${wheel_of[@]}" -d "$work" "$package" >&2
wheel=$(ls "$work"/*.whl)
echo "$digest  $wheel" | sha256sum --check --quiet >&2
python3 -m zipfile -e "$wheel" "$work/wheel"
mkdir "$prefix.part"
mv "$work/wheel/$include" "$prefix.part/include"
keep
