#!/usr/bin/env bash
# From a fresh Debian 12 to a trained model: installs what is missing, builds the program, trains
# inputs/quickstart/moe_text.yaml on 2 MPI ranks. Arguments go to `tessera train`, e.g. --set run.steps=20.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobscripts/debian/build.sh host --target tessera
printf '\n[quickstart] training on 2 ranks\n'
launcher=$(sed -n 's/^MPIEXEC_EXECUTABLE:[^=]*=//p' build/host/CMakeCache.txt)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$launcher" -n 2 build/host/tessera train inputs/quickstart/moe_text.yaml "$@"
