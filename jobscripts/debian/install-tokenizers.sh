#!/usr/bin/env bash
# Puts Python with what examples/prepare_data needs (PyPI: tokenizers, tqdm, jinja2) into a per-user cache and prints its interpreter,
# for the tests of that program, which find Debian's pytest in it too.
set -euo pipefail
shopt -s inherit_errexit
. "$(dirname "$0")/cached.sh"
packages=(tokenizers==0.22.1 tqdm==4.67.1 jinja2==3.1.6 markupsafe==3.0.4)
fetch() {
  claim "tokenizers-$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" "${packages[*]} beside the system's"
  echo "[tokenizers] fetching ${packages[*]}" >&2
  /usr/bin/python3 -m venv --system-site-packages "$prefix.part" >&2
  "$prefix.part/bin/python3" -m pip install -q --disable-pip-version-check --no-deps "${packages[@]}" >&2
  keep
}
folder=$(fetch)
echo "$folder/bin/python3"
