#!/bin/bash
# Checks in two minutes whether the hosts of an allocation can train together: that ranks start on all of them, that their
# builds, libraries, instructions, GPUs and clocks are alike, that all see FOLDER with its locks and renames, and how long
# collectives take.
#
#   jobscripts/cluster/check_hosts.sh FOLDER LAUNCHER...
#   jobscripts/cluster/check_hosts.sh /scratch/check srun --mpi=pmi2 --nodes=2 --ntasks-per-node=4
#   jobscripts/cluster/check_hosts.sh /scratch/check mpiexec.mpich -hosts a,b -n 8
#
# TESSERA names the program (default: tessera). FOLDER must not exist; it is left for a look, with a file for each check.
# Ends with 0 if nothing is wrong.
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
folder=$(realpath -m "$1")
shift
program=$(command -v "${TESSERA:-tessera}") || { echo "TESSERA is no program: ${TESSERA:-tessera}" >&2; exit 2; }
program=$(realpath "$program")
mkdir "$folder"
refuse() {
  echo "WRONG: $1" >&2
  exit 1
}

echo "1. ranks by host"
timeout 60 "$@" hostname </dev/null >"$folder/ranks.txt" 2>"$folder/ranks.err" ||
  refuse "the launcher does not start ranks: $folder/ranks.err"
ranks=$(wc -l <"$folder/ranks.txt")
sort "$folder/ranks.txt" | uniq -c
[ "$(sort -u "$folder/ranks.txt" | wc -l)" -gt 1 ] || echo "   one host only"

echo "2. renames: a file of each rank, seen here by its new name"
# shellcheck disable=SC2016  # expanded by each rank
timeout 60 "$@" sh -c 'f=$(mktemp "$0/new.XXXXXXXX") && hostname >"$f" && mv "$f" "$0/renamed.${f##*.}"' "$folder" </dev/null 2>"$folder/renames.err" ||
  refuse "a rank cannot write or rename in $folder: $folder/renames.err"
seen=0
for _ in $(seq 100); do
  seen=$(find "$folder" -name 'renamed.*' | wc -l)
  [ "$seen" -ge "$ranks" ] && break
  sleep 0.1
done
[ "$seen" -eq "$ranks" ] || refuse "$seen of $ranks renamed files are seen on $(hostname): is $folder shared?"

echo "3. a run: builds, libraries, instructions, GPUs, clocks, locks, equal replicas"
cd "$folder"
for i in $(seq 2000); do echo "$i lines of text, of which none is like another: $((i * 7919 % 100003))"; done >corpus.txt
# So many parameters that bandwidth shows: 25 million.
cat >check.yaml <<DECK
schema_version: 1
run: {name: check, steps: 12, log_every: 4}
model: {layers: 2, hidden: 1024, heads: 16, seq_len: 64}
data: {files: [corpus.txt], eval_fraction: 0}
batch: {global: $ranks, micro: 1}
sample: {tokens: 0}
optimizer: {lr: 0.001, warmup_steps: 2}
comm: {timeout_s: 60}
checkpoint: {dir: run}
debug: {replica_hash_every: 6}
DECK
code=0
TESSERA_TIMEOUT=60 timeout 100 "$@" "$program" train check.yaml </dev/null >run.txt 2>run.err || code=$?
[ "$code" -ne 124 ] || refuse "the run of 12 steps took longer than 100 s, and had come to: $(tail -n 1 run.txt)"
[ "$code" -eq 0 ] || refuse "the run ended with $code: $(tail -n 20 run.err)"
grep -E '^clocks' run.txt || true
"$program" checkpoint verify run >verify.txt || refuse "the checkpoint is damaged: $folder/verify.txt"

echo "4. collectives of a step, and the time that no work hid"
grep -E '^(step 12/12|communication was)|^  (waiting|reduce|publish|all_)' run.txt
awk '/^  all_(gather|to_all)/ { bytes += $4 }
     /^communication was under way/ { seconds = $6 }
     END { if (seconds > 0) printf "   %.2f GB/s received by a rank while collectives were under way\n", 12 * bytes / seconds / 1e9 }' run.txt
echo "nothing is wrong"
