#!/bin/bash
# One task: sums its part of the input files. Each task writes a file; all see all.
set -euo pipefail
mkdir -p /fb/output
files=(/fb/input/*)
for ((n = SLURM_PROCID; n < ${#files[@]}; n += SLURM_NTASKS)); do
    sha256sum "${files[n]}"
done > "/fb/output/sums-$SLURM_PROCID"
echo "task $SLURM_PROCID of $SLURM_NTASKS: $(wc -l < "/fb/output/sums-$SLURM_PROCID") files"
