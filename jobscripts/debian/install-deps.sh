#!/usr/bin/env bash
# Installs the missing ones of the Debian packages that Tessera is built and tested with, without questions.
#   install-deps.sh [--slurm] [--clang] [--arm64] [--openmpi] [--prose]   --slurm: also a Slurm of one machine, for the job scripts, and networks of simulated hosts
#                                                             --clang: also the compiler of preset clang, and its OpenMP
#                                                             --arm64: also a cross compiler for 64-bit Arm, and qemu
#                                                             --openmpi: also Open MPI, its HDF5, and what Slurm's mpi/pmix opens
#                                                             --prose: also the text of inputs/prose
set -euo pipefail
packages=(build-essential ca-certificates ccache cmake git ninja-build pkg-config
  mpich libmpich-dev libhdf5-mpich-dev hdf5-tools
  libdnnl-dev ocl-icd-opencl-dev  # dnnl's CMake package requires OpenCL, which apt only recommends
  libcli11-dev libfmt-dev libicu-dev libssl-dev libyaml-cpp-dev nlohmann-json3-dev
  libbenchmark-dev libgmock-dev libgtest-dev clang-tidy doxygen
  python3 python3-h5py python3-pip python3-pytest python3-pytest-subtests python3-venv)
for argument in "$@"; do
  case $argument in
    --slurm) packages+=(slurm-wlm munge iproute2) ;;
    --clang) packages+=(clang-22 libomp-22-dev) ;;
    --arm64) packages+=(g++-aarch64-linux-gnu qemu-user) ;;
    --openmpi) packages+=(openmpi-bin libopenmpi-dev libhdf5-openmpi-dev libpmix-dev) ;;  # Slurm's plugin opens libpmix.so, without a number
    --prose) packages+=(bible-kjv) ;;
    *) echo "install-deps.sh: unknown argument '$argument' (--slurm, --clang, --arm64, --openmpi, --prose)" >&2; exit 2 ;;
  esac
done
say() { echo "[deps] $*"; }

installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null | awk '$1 == "installed" {print $2}' || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "$package" <<< "$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then say "all ${#packages[@]} Debian packages are here"; exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || { say "needs root or sudo for: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"; }
say "installing ${#missing[@]} of ${#packages[@]} Debian packages: ${missing[*]}"
apt update
apt install -y --no-install-recommends "${missing[@]}"
