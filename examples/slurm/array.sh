#!/bin/bash
#SBATCH --array=0-2 --nodes=1 --ntasks=1 --time=10
# Each task of an array has a pool of its own: names must differ, since several tasks may be on one node.
name="job-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID"
exec forebay run --pool "$name" --in "$PWD/input:/input" --out "/output:$PWD/output-$SLURM_ARRAY_TASK_ID" -- ./task.sh
