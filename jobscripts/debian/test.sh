#!/usr/bin/env bash
# Builds everything for the CPU and runs the tests. Arguments go to ctest, e.g. -L unit, or -R layout.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobscripts/debian/install-deps.sh --slurm
jobscripts/debian/build.sh host
printf '\n[test] ctest\n'
exec ctest --preset host -j2 "$@"
