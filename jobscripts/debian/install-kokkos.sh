#!/usr/bin/env bash
# Builds Kokkos 4.7.0 into a per-user cache and prints its folder; does nothing if it is there.
#   install-kokkos.sh host|debug|cuda|arm64
# The source is the copy inside PyPI's source package of GenTen (Apache 2.0 with LLVM exception).
set -euo pipefail
flavour=${1:?host, debug, cuda or arm64}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cached.sh"
claim "kokkos-4.7.0-$flavour"
say() { echo "[kokkos] $*" >&2; }

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
say "fetching the source (PyPI: pygenten 0.1.5)"
python3 -m pip download -q --no-deps --no-binary pygenten -d "$work" pygenten==0.1.5 >&2
echo "e620f05c742905e2db705d875f1cac92ef0ed453f9e6734e9beda26cc0f9cce7  $work/pygenten-0.1.5.tar.gz" | sha256sum --check --quiet >&2
tar xzf "$work/pygenten-0.1.5.tar.gz" -C "$work" pygenten-0.1.5/tpls/kokkos
source=$work/pygenten-0.1.5/tpls/kokkos

options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=20 -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DCMAKE_INSTALL_PREFIX="$prefix.part" -DKokkos_ENABLE_SERIAL=ON -DKokkos_ENABLE_IMPL_VIEW_LEGACY=ON
  -DKokkos_ENABLE_DEPRECATED_CODE_4=OFF)
case $flavour in
  host) options+=(-DKokkos_ENABLE_OPENMP=ON) ;;
  arm64) options+=(-DKokkos_ENABLE_OPENMP=ON -DCMAKE_TOOLCHAIN_FILE="$here/arm64.cmake") ;;
  debug) options+=(-DKokkos_ENABLE_OPENMP=OFF -DKokkos_ENABLE_DEBUG_BOUNDS_CHECK=ON) ;;
  cuda)
    # CUDA 13 changed two signatures that Kokkos 4.7.0 still calls in their old form.
    sed -i -e 's/cudaGraphAddDependencies(graph, from, to, numDependencies)/cudaGraphAddDependencies(graph, from, to, nullptr, numDependencies)/' \
      -e 's/cudaMemPrefetchAsync(devPtr, count, dstDevice, m_stream)/cudaMemPrefetchAsync(devPtr, count, cudaMemLocation{cudaMemLocationTypeDevice, dstDevice}, 0, m_stream)/' \
      "$source/core/src/Cuda/Kokkos_Cuda_Instance.hpp"
    options+=(-DKokkos_ENABLE_CUDA=ON -DKokkos_ARCH_HOPPER90=ON -DKokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE=ON
      -DCMAKE_CUDA_ARCHITECTURES="${TESSERA_CUDA_ARCHITECTURE:-90}" -DCMAKE_CUDA_FLAGS=-std=c++20) ;;
  *) say "unknown flavour '$flavour' (host, debug, cuda, arm64)"; exit 2 ;;
esac
say "building ($flavour) into $prefix"
cmake -S "$source" -B "$work/build" -G Ninja "${options[@]}" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
cmake --build "$work/build" > "$work/log" 2>&1 || { tail -40 "$work/log" >&2; exit 1; }
cmake --install "$work/build" > "$work/log" 2>&1
keep  # the installed CMake package refers to its prefix by relative paths, so it can be renamed
