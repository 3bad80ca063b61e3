#!/usr/bin/env bash
# Configures and builds one preset with libraries from modules, Spack or a prefix, and prints what was found.
#   build.sh host|cuda [arguments of cmake --build, e.g. --target tessera]
# Environment:
#   TESSERA_MODULES            modules to load first, e.g. "gcc/12 cuda/13 mpich/4.2 hdf5/1.14-mpi kokkos/4.7-cuda"
#   TESSERA_SPACK              a Spack environment to activate instead (spack.yaml is beside this file)
#   TESSERA_CUDA_ARCHITECTURE  default 90, or a list such as "90;100a;103a;120a"; Kokkos must have been built for the first of them
#   Kokkos_ROOT, NCCL_ROOT, CMAKE_PREFIX_PATH  needed if modules do not set them
#   TESSERA_CPU                -march of the host code; default: that of the compiling machine
set -euo pipefail
preset=${1:-}
case $preset in host | cuda) shift ;; *) sed -n '2,9p' "$0" >&2; exit 2 ;; esac
cd "$(dirname "$0")/../.."
missing() { echo "build.sh: no $1" >&2; exit 4; }

set +u  # module functions of sites may use unset variables
if [ -n "${TESSERA_MODULES:-}" ]; then
  command -v module > /dev/null || missing "'module' in this shell: run it by bash -l, or source the site's modules.sh first"
  # shellcheck disable=SC2086 # a list
  module load $TESSERA_MODULES
fi
if [ -n "${TESSERA_SPACK:-}" ]; then
  command -v spack > /dev/null || missing "spack in PATH: source its setup-env.sh first"
  activation=$(spack env activate --sh "$TESSERA_SPACK")
  eval "$activation"
fi
set -u

options=()
[ -z "${TESSERA_CPU+set}" ] || options+=("-DTESSERA_CPU=$TESSERA_CPU")
if [ "$preset" = cuda ]; then
  command -v nvcc > /dev/null || missing "nvcc in PATH: load the site's CUDA module (13.0 was used)"
  options+=("-DTESSERA_CUDA_ARCHITECTURE=${TESSERA_CUDA_ARCHITECTURE:-90}")
fi
cmake --preset "$preset" ${options[@]+"${options[@]}"}
cmake --build --preset "$preset" "$@"
if [ -x "build/$preset/tessera" ]; then "build/$preset/tessera" info; fi
