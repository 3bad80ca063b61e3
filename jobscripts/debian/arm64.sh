#!/usr/bin/env bash
# Tests for 64-bit Arm on an x86-64 machine: gets cross compiler, Debian's arm64 libraries and Kokkos, builds the tests of
# kernels, layouts, decks and checkpoints, and runs them under qemu. Arguments go to ctest.
#   arm64.sh [--compile] [arguments of ctest]        --compile: no run
set -euo pipefail
cd "$(dirname "$0")/../.."
compile=
if [ "${1:-}" = --compile ]; then compile=yes; shift; fi
jobscripts/debian/build.sh arm64 --target portable_tests arm64_tests
if [ -n "$compile" ]; then exit 0; fi
printf '\n[arm64] ctest\n'
exec ctest --preset arm64 -j2 -L 'portable|arm64' "$@"
