#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --time=10
#SBATCH hetjob
#SBATCH --nodes=2 --ntasks-per-node=2
# A heterogeneous job: the pool has the nodes of all components, and each component's tasks see it.
set -euo pipefail
export FOREBAY_POOL="job-$SLURM_JOB_ID"
trap 'forebay down --force' EXIT
forebay up
forebay stage in "$PWD/input" /input
srun --het-group=1 forebay exec -- ./task.sh
srun --het-group=0 forebay exec -- bash -c 'cat /fb/output/sums-* | sort -k 2 > /fb/output/all'
forebay stage out /output "$PWD/output"
