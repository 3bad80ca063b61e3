#!/usr/bin/env bash
# Packages, Kokkos, for CUDA cuDNN's headers, configuration and build of one preset: host, debug, asan or cuda. Does only what is not yet done.
#   build.sh PRESET [arguments of cmake --build, e.g. --target tessera]
set -euo pipefail
preset=${1:?host, debug, asan or cuda}; shift
cd "$(dirname "$0")/../.."
here=jobscripts/debian
step() { printf '\n[%s] %s\n' "$preset" "$*"; }

step "packages"; $here/install-deps.sh
step "Kokkos"; $here/install-kokkos.sh "${preset/asan/debug}"
if [ "$preset" = cuda ]; then step "headers of cuDNN's graph API"; $here/install-cudnn-frontend.sh; fi
step "configuration"; cmake --preset "$preset"
step "build"; cmake --build --preset "$preset" "$@"
