#!/usr/bin/env bash
# Unpacks Debian's arm64 libraries, without installing them, into a per-user cache and prints its folder; does nothing if all
# are there. Does not need root: apt resolves and fetches with separate lists.
#   install-arm64-sysroot.sh
set -euo pipefail
packages=(libc6-dev libstdc++-12-dev libgomp1
  libmpich-dev libhdf5-mpich-dev libdnnl-dev ocl-icd-opencl-dev
  libcli11-dev libfmt-dev libicu-dev libssl-dev libyaml-cpp-dev nlohmann-json3-dev
  libbenchmark-dev libgmock-dev libgtest-dev)
. "$(dirname "$0")/cached.sh"
claim sysroot-arm64 "${packages[*]}"

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,archives}/partial
: > "$work/status"
apt() {
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 \
    -o Dir::State="$work" -o Dir::State::status="$work/status" -o Dir::Cache="$work" -o Acquire::Retries=3 "$@"
}
echo "[arm64] fetching Debian's packages for arm64" >&2
apt update > "$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
apt install -y --download-only --no-install-recommends "${packages[@]}" > "$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }

mkdir "$prefix.part"
for package in "$work"/archives/*.deb; do dpkg -x "$package" "$prefix.part"; done
# Absolute links would lead to this machine's own libraries.
find "$prefix.part" -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln -sfnr "$prefix.part$(readlink "$link")" "$link"
done
keep
