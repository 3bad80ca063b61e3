#!/usr/bin/env bash
# From a fresh Debian 12 to a trained model: installs what is missing, builds the program, trains
# inputs/quickstart/moe_text.yaml on 2 MPI ranks. Arguments go to `tessera train`, e.g. --set run.steps=20.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=jobscripts/debian
step() { printf '\n[quickstart] %s\n' "$*"; }

step "1/4 packages"; $here/install-deps.sh
step "2/4 Kokkos"; $here/install-kokkos.sh host
step "3/4 build"
cmake --preset host
cmake --build --preset host --target tessera
step "4/4 training on 2 ranks"
launcher=$(sed -n 's/^MPIEXEC_EXECUTABLE:[^=]*=//p' build/host/CMakeCache.txt)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$launcher" -n 2 build/host/tessera train inputs/quickstart/moe_text.yaml "$@"
