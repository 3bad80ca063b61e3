#!/usr/bin/env bash
# Builds everything for the CPU and runs the tests, without those of the label `further` (TESTING.md). Arguments go to
# ctest in place of this choice, e.g. -L unit, or -R layout.
#   test.sh [--whole | v2 | v3 | v4] [arguments of ctest]
# --whole: all tests. With a level: only tests whose bits must be equal on every CPU (label portable, with all tests of
# kernels), built for x86-64 CPUs of that level, with oneDNN limited to it; skipped on a CPU of a lower level.
set -euo pipefail
cd "$(dirname "$0")/../.."
level=host
case ${1:-} in
  v2 | v3 | v4) level=$1; shift ;;
  --whole) shift ;;
  "") set -- -LE further ;;
esac

if [ "$level" = host ]; then
  jobscripts/debian/install-deps.sh --slurm
  export TESSERA_ORACLE_PYTHON=${TESSERA_ORACLE_PYTHON:-$(jobscripts/debian/install-tokenizers.sh)}
  jobscripts/debian/build.sh host
else
  declare -A newest=([v2]=sse4_2 [v3]=avx2 [v4]=avx512vl)
  if ! grep -qw "${newest[$level]}" /proc/cpuinfo; then
    echo "[test] this CPU is below x86-64-$level: nothing to run"
    exit 0
  fi
  jobscripts/debian/build.sh "$level" --target portable_tests
  set -- -L portable "$@"
fi
printf '\n[test] ctest\n'
exec ctest --preset "$level" -j$((2 * $(nproc))) "$@"  # tests wait half of their time: for launchers, disks and time-outs
