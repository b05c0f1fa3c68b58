#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --time=10
#SBATCH --signal=B:TERM@120
# A pool for several steps, which is saved and removed also if a step fails or the job is told to stop.
set -euo pipefail
export FOREBAY_POOL="job-$SLURM_JOB_ID"
finish() {
    trap - EXIT TERM
    forebay stage out /output "$PWD/output" && forebay down
}
# A shell acts on a signal when its child has ended, but at once while it waits.
step() {
    srun "$@" &
    wait $!
}
trap finish EXIT
trap 'kill $(jobs -p); wait; exit 143' TERM

forebay up
forebay stage in "$PWD/input" /input
step forebay exec -- ./task.sh
step --nodes=1 --ntasks=1 forebay exec -- bash -c 'cat /fb/output/sums-* | sort -k 2 > /fb/output/all'
