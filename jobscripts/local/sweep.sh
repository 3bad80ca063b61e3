#!/usr/bin/env bash
# Sweep without Slurm: trains a deck with the values of each line of a file, one run after another, like an array job of
# jobscripts/slurm/train.sbatch, with the same file and options.
#
#   jobscripts/local/sweep.sh [--array=1-3,5] [--ntasks=N] DECK --sweep FILE.csv [OPTIONS OF tessera train]
#
# --array: the tasks, numbered from 1; default: one for each line of values. --ntasks: ranks of a run; default 1.
# FILE.csv: see train.sbatch. Task T writes to FILE-T.log. A run that stops early (exit 75) is started again, unless --stop-at
# asked for it; after a task that fails the others still run. INT or TERM: the run saves, and the same command continues later.
# Exit code: that of the first task that failed. Environment: TESSERA and TESSERA_RESTARTS, see train.sbatch;
#   MPIEXEC           the MPI library's launcher; the one that `tessera info` names, else mpiexec
set -euo pipefail
fail() { echo "sweep.sh: $2" >&2; exit "$1"; }

array='' ranks=1
while true; do
  case ${1:-} in
    --array=*) array=${1#*=} ;;
    --ntasks=*) ranks=${1#*=} ;;
    *) break ;;
  esac
  shift
done
[ $# -ge 3 ] && [ "$2" = --sweep ] || fail 2 "usage: sweep.sh [--array=1-3,5] [--ntasks=N] DECK --sweep FILE.csv [OPTIONS]"
file=$3
[ -r "$file" ] || fail 2 "$file cannot be read"
[[ $ranks =~ ^[1-9][0-9]*$ ]] || fail 2 "--ntasks=$ranks is no number of ranks"
[[ $array =~ ^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$ ]] || fail 2 "--array=$array: numbers and ranges are needed, as 1-3,5"
tasks=$(awk 'NR > 1 && NF {print NR - 1}' < "$file")
if [ -n "$array" ]; then
  tasks=$(tr , '\n' <<< "$array" | while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done)
fi
[ -n "$tasks" ] || fail 2 "$file: no line of values follows the line of keys"

# Stands in for Slurm: srun becomes the launcher, and the loop below starts a job again.
if [ -z "${MPIEXEC:-}" ]; then
  MPIEXEC=$("${TESSERA:-build/host/tessera}" info --json 2> /dev/null | sed -n 's/.*"launcher":"\([^"]*\)".*/\1/p' || true)
fi
MPIEXEC=${MPIEXEC:-mpiexec}
srun() {
  shift  # an option of srun
  unset "${!SLURM_@}"  # the launcher would believe that it runs under Slurm
  "$MPIEXEC" -n "$ranks" "$@" &
  local run=$! code signalled=yes
  # Not all launchers forward USR1. A TERM to the whole process group comes here as well.
  trap 'signalled=yes; kill -TERM "$run" 2> /dev/null || true' USR1 TERM
  while [ $signalled = yes ]; do signalled=no code=0; wait "$run" || code=$?; done
  return "$code"
}
squeue() { :; }
export -f srun squeue
export MPIEXEC ranks

interrupted=no signalled=no job=
trap 'interrupted=yes signalled=yes; [ -z "$job" ] || kill -USR1 "$job" 2> /dev/null || true' INT TERM
first_failure=0
for task in $tasks; do
  log=$(basename "$file" .csv)-$task.log
  echo "[sweep] task $task: $(sed -n 1p "$file") = $(sed -n $((task + 1))p "$file") > $log"
  for ((restarts = 0; ; ++restarts)); do
    SLURM_JOB_ID=sweep-$$ SLURM_ARRAY_TASK_ID=$task SLURM_RESTART_COUNT=$restarts \
      bash "$(dirname "$0")/../slurm/train.sbatch" "$@" >> "$log" 2>&1 &
    job=$!
    while true; do
      signalled=no code=0
      wait "$job" || code=$?
      [ $signalled = yes ] || break  # else `wait` may have returned only because of the signal
    done
    job=
    [[ $(tail -n 1 "$log") != "[train] stopped where --stop-at says"* ]] || break
    [ "$code" -eq 75 ] && [ $interrupted = no ] && [ "$restarts" -lt "${TESSERA_RESTARTS:-100}" ] || break
    echo "[sweep] task $task: stopped early, started again"
  done
  [ "$code" -eq 0 ] || echo "[sweep] task $task: ended with $code; $(tail -n 1 "$log")" >&2
  [ "$first_failure" -ne 0 ] || first_failure=$code
  [ $interrupted = no ] || fail 75 "interrupted in task $task; the same command goes on"
done
exit "$first_failure"
