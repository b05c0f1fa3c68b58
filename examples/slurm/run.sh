#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --time=10
#SBATCH --signal=B:TERM@120
# The whole job in one command: input comes in, the tasks of all nodes work in the pool, results go out. Two minutes
# before its time ends, the job is told to stop: then the tasks are ended, and what is there is saved.
# A job that begins again after a node has died first removes what its earlier run has left in memory.
[[ -z ${SLURM_RESTART_COUNT:-} ]] ||
    srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 forebay pools --clean --here
# `exec`: the signal reaches Forebay itself, not a shell that waits for it.
exec forebay run --pool "job-$SLURM_JOB_ID" --in "$PWD/input:/input" --out "/output:$PWD/output" -- \
    srun ./task.sh
