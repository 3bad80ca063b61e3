#!/usr/bin/env bash
# Makes a corpus of several MB of English: the King James Version of the Bible (public domain) from Debian's package
# bible-kjv, with a verse on each line and an empty line between chapters. Every twentieth chapter is held out.
#   prose.sh [FOLDER]        writes FOLDER/train.txt (3.9 MB) and FOLDER/held.txt (0.2 MB); FOLDER: data/prose of the checkout
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../../data/prose}
"$here/install-deps.sh" --prose

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d -p "$folder"); trap 'rm -rf "$work"' EXIT
# One verse a line, as "Ge1:1 In the beginning ...". The program looks for its data in the working directory first.
(cd "$work" && bible -f gen1:1-rev22:21) | awk -v train="$work/train.txt" -v held="$work/held.txt" '
  { split($1, reference, ":") }
  reference[1] != chapter {
    chapter = reference[1]
    file = ++chapters % 20 ? train : held
    if (begun[file]++) print "" > file
  }
  { print substr($0, length($1) + 2) > file }'
mv "$work/train.txt" "$work/held.txt" "$folder"
echo "[prose] $(wc -c < "$folder/train.txt") bytes in $folder/train.txt, $(wc -c < "$folder/held.txt") in $folder/held.txt"
