#!/usr/bin/env bash
# From a fresh Debian 12 to a trained model: installs what is missing, builds the program, trains
# inputs/quickstart/moe_text.yaml on 2 MPI ranks. Half-way it stops with a checkpoint and resumes from it. Each
# invocation is a new run, in runs/quickstart-<date>-<time>. Arguments go to `tessera train`, e.g. --set run.steps=20.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobscripts/debian/build.sh host --target tessera
launcher=$(sed -n 's/^MPIEXEC_EXECUTABLE:[^=]*=//p' build/host/CMakeCache.txt)
deck=inputs/quickstart/moe_text.yaml
run=runs/quickstart-$(date +%Y%m%d-%H%M%S)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

steps=$(sed -n 's/^run:.*steps: *\([0-9]*\).*/\1/p' $deck)
for argument; do [[ $argument == *run.steps=* ]] && steps=${argument##*=}; done
train() { "$launcher" -n 2 build/host/tessera train $deck --set checkpoint.dir="$run" "$@"; }

printf '\n[quickstart] training on 2 ranks in %s, to step %s of %s\n' "$run" $((steps / 2)) "$steps"
code=0
train "$@" --stop-at $((steps / 2)) || code=$?
((code == 75)) || exit "$code"  # 75: stopped early, resumable
printf '\n[quickstart] the same command again goes on from the checkpoint\n'
train "$@"
printf '\n[quickstart] checkpoints of %s\n' "$run"
build/host/tessera checkpoint ls "$run"
