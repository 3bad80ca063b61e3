#!/usr/bin/env bash
# Builds everything for the CPU and runs the tests. Arguments go to ctest, e.g. -L unit, or -R layout.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=jobscripts/debian
step() { printf '\n[test] %s\n' "$*"; }

step "1/4 packages"; $here/install-deps.sh
step "2/4 Kokkos"; $here/install-kokkos.sh host
step "3/4 build"
cmake --preset host
cmake --build --preset host
step "4/4 tests"
exec ctest --preset host -j2 "$@"
