#!/usr/bin/env bash
# Sweep without Slurm: trains a deck with the values of each line of a file, like an array job of
# jobscripts/slurm/train.sbatch, with the same file and options.
#
#   jobscripts/local/sweep.sh [--array=1-3,5] [--ntasks=N] [--jobs=N] DECK --sweep FILE.csv [OPTIONS OF tessera train]
#
# --array: the tasks, numbered from 1; default: one for each line of values. --ntasks: ranks of a run; default 1.
# --jobs: runs at a time; default 1. With more, set OMP_NUM_THREADS so that runs x ranks x threads are no more than the cores.
# FILE.csv: see train.sbatch. Task T writes to FILE-T.log, and its last line of loss and time is shown here. A run that stops
# early or whose rank is gone is started again, as there; after a task that fails the others still run. INT or TERM: the
# runs save, and the same command continues later.
# Exit code: that of the first task that failed. Environment: see train.sbatch;
#   MPIEXEC           the MPI library's launcher; the one that `tessera info` names, else mpiexec
set -euo pipefail
fail() { echo "sweep.sh: $2" >&2; exit "$1"; }

array='' ranks=1 jobs=1
while true; do
  case ${1:-} in
    --array=*) array=${1#*=} ;;
    --ntasks=*) ranks=${1#*=} ;;
    --jobs=*) jobs=${1#*=} ;;
    --array | --ntasks | --jobs) [ $# -ge 2 ] || fail 2 "$1 needs a value"; set -- "$1=$2" "${@:3}"; continue ;;
    *) break ;;
  esac
  shift
done
[ $# -ge 3 ] && [ "$2" = --sweep ] ||
  fail 2 "usage: sweep.sh [--array=1-3,5] [--ntasks=N] [--jobs=N] DECK --sweep FILE.csv [OPTIONS]"
for option in "${@:4}"; do
  case $option in --array | --array=* | --ntasks | --ntasks=* | --jobs | --jobs=*) fail 2 "$option: stands before DECK" ;; esac
done
file=$3 script=$(dirname "$0")/../slurm/train.sbatch
[ -r "$file" ] || fail 2 "$file cannot be read"
[[ $ranks =~ ^[1-9][0-9]*$ ]] || fail 2 "--ntasks=$ranks is no number of ranks"
[[ $jobs =~ ^[1-9][0-9]*$ ]] || fail 2 "--jobs=$jobs is no number of runs"
[[ $array =~ ^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$ ]] || fail 2 "--array=$array: numbers and ranges are needed, as 1-3,5"
described=$(bash "$script" --tasks "$file")
tasks=$(sed -n 's/^task \([0-9]*\):.*/\1/p' <<< "$described")
if [ -n "$array" ]; then
  tasks=$(tr , '\n' <<< "$array" | while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done)
fi
[ -n "$tasks" ] || fail 2 "$file: no line of values follows the line of keys"
state=$(mktemp -d)  # what the runs of a task and this script tell each other: interrupted, again-TASK, code-TASK
trap 'rm -rf "$state"' EXIT

# Stands in for Slurm: srun becomes the launcher, and the loop below starts again a job that queues itself.
if [ -z "${MPIEXEC:-}" ]; then
  MPIEXEC=$("${TESSERA:-build/host/tessera}" info --json 2> /dev/null | sed -n 's/.*"launcher":"\([^"]*\)".*/\1/p' || true)
fi
MPIEXEC=${MPIEXEC:-mpiexec}
srun() {
  while [[ $1 == --* ]]; do shift; done  # srun's own options
  unset "${!SLURM_@}"  # the launcher would believe that it runs under Slurm
  "$MPIEXEC" -n "$ranks" "$@" &
  local run=$! code signalled=yes
  # Not all launchers forward USR1. A TERM to the whole process group comes here as well.
  trap 'signalled=yes; kill -TERM "$run" 2> /dev/null || true' USR1 TERM
  while [ $signalled = yes ]; do signalled=no code=0; wait "$run" || code=$?; done
  return "$code"
}
squeue() { [ -e "$state/interrupted" ] || [[ $* != *%T* ]] || echo RUNNING; }
scontrol() { touch "$state/again-$SLURM_ARRAY_TASK_ID"; }
export -f srun squeue scontrol
export MPIEXEC ranks state

# Runs a task until it does not queue itself again. Its signals are those of this script, sent on.
run_task() {
  local task=$1 log began=$SECONDS restarts code signalled job='' last text
  shift
  log=$(basename "$file" .csv)-$task.log
  text=$(grep "^task $task:" <<< "$described" || echo "task $task:")
  echo "[sweep] $text > $log"
  trap 'signalled=yes; [ -z "$job" ] || kill -USR1 "$job" 2> /dev/null || true' USR1 TERM
  trap '' INT
  for ((restarts = 0; ; ++restarts)); do
    rm -f "$state/again-$task"
    SLURM_JOB_ID=sweep-$$ SLURM_ARRAY_TASK_ID=$task SLURM_RESTART_COUNT=$restarts bash "$script" "$@" >> "$log" 2>&1 &
    job=$!
    [ ! -e "$state/interrupted" ] || kill -USR1 "$job" 2> /dev/null || true
    while true; do
      signalled=no code=0
      wait "$job" || code=$?
      [ $signalled = yes ] || break  # else `wait` may have returned only because of the signal
    done
    job=
    [ -e "$state/again-$task" ] || break
    echo "[sweep] task $task: $(grep '^\[train\] .*: queued again$' "$log" | tail -n 1 | sed 's/^\[train\] //; s/: queued again$//'), started again"
  done
  last=$(grep '^step ' "$log" | tail -n 1 || true)
  [ "$code" -ne 0 ] || echo "[sweep] task $task: ${last:-no step} | done in $((SECONDS - began)) s"
  [ "$code" -eq 0 ] || [ -e "$state/interrupted" ] || echo "[sweep] task $task: ended with $code; $(grep -v '^Run with --help' "$log" | tail -n 1)" >&2
  echo "$code" > "$state/code-$task"
}

declare -A running=()  # process -> task
interrupted_in=''
interrupt() {
  touch "$state/interrupted"
  local process
  interrupted_in=${interrupted_in:-${running[*]}}
  for process in "${!running[@]}"; do kill -USR1 "$process" 2> /dev/null || true; done
}
trap interrupt INT TERM
# Waits until fewer than $1 tasks run.
wait_for_room() {
  local process
  while [ ${#running[@]} -ge "$1" ]; do
    wait -n "${!running[@]}" 2> /dev/null || true
    for process in "${!running[@]}"; do
      kill -0 "$process" 2> /dev/null || unset "running[$process]"
    done
  done
}
for task in $tasks; do
  wait_for_room "$jobs"
  [ ! -e "$state/interrupted" ] || break
  run_task "$task" "$@" &
  running[$!]=$task
done
wait_for_room 1
[ ! -e "$state/interrupted" ] || fail 75 "interrupted in task $interrupted_in; the same command goes on"
for task in $tasks; do
  code=$(< "$state/code-$task")
  [ "$code" -eq 0 ] || exit "$code"
done
