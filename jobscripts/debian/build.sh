#!/usr/bin/env bash
# Builds one preset (host, v2, v3, v4, clang, openmpi, debug, asan, tsan, cuda or arm64): installs packages, Kokkos, a
# launcher where that of MPICH loses exit codes and, for CUDA, headers of cuDNN and CUTLASS, then configures and builds.
# Does only what is not yet done.
#   build.sh PRESET [arguments of cmake --build, e.g. --target tessera]
# TESSERA_WERROR=ON in the environment makes warnings errors. A new folder of preset host compiles up to eight files as one, which halves a
# whole build; TESSERA_UNITY=OFF compiles each by itself, for work on a few of them. A folder stays as it was configured.
# TESSERA_ORACLE_PYTHON names the Python of tests that need packages. Objects that another checkout has compiled come from ccache.
set -euo pipefail
preset=${1:?host, v2, v3, v4, clang, openmpi, debug, asan, tsan, cuda or arm64}; shift
cd "$(dirname "$0")/../.."
here=jobscripts/debian
step() { printf '\n[%s] %s\n' "$preset" "$*"; }

step "packages"; $here/install-deps.sh $(case $preset in arm64 | clang | openmpi) echo "--$preset" ;; esac)
if [ "$preset" = arm64 ]; then step "libraries for arm64"; $here/install-arm64-sysroot.sh; fi
case $preset in
  v2 | v3 | v4 | clang | openmpi) kokkos=host ;;
  asan | tsan) kokkos=debug ;;
  *) kokkos=$preset ;;
esac
step "Kokkos"; $here/install-kokkos.sh "$kokkos"
if [ "$preset" = cuda ]; then
  step "headers of cuDNN's graph API"; $here/install-headers.sh cudnn-frontend
  step "headers of CUTLASS"; $here/install-headers.sh cutlass
fi
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1  # paths in the checkout become relative, so that checkouts share objects
options=(-DTESSERA_WERROR="${TESSERA_WERROR:-OFF}")
if [ "$preset" != openmpi ] && [ "$preset" != arm64 ]; then
  launcher=$($here/install-launcher.sh)
  [ -z "$launcher" ] || options+=(-DMPIEXEC_EXECUTABLE="$launcher")
fi
if [ "$preset" = host ] && [ ! -e build/host/CMakeCache.txt ]; then TESSERA_UNITY=${TESSERA_UNITY:-ON}; fi
[ -z "${TESSERA_UNITY:-}" ] || options+=(-DTESSERA_UNITY="$TESSERA_UNITY")
[ -z "${TESSERA_ORACLE_PYTHON:-}" ] || options+=(-DTESSERA_ORACLE_PYTHON="$TESSERA_ORACLE_PYTHON")
step "configuration"; cmake --preset "$preset" "${options[@]}"
step "build"; cmake --build --preset "$preset" "$@"
