#!/bin/bash
#BSUB -n 6 -R "span[ptile=2]"
#BSUB -W 10
# LSF: bsub < lsf.sh. blaunch is LSF's own remote shell.
hosts=$(sort -u "$LSB_DJOB_HOSTFILE" | paste -sd,)
exec forebay run --pool "job-$LSB_JOBID" --hosts "$hosts" --rsh blaunch \
    --in "$PWD/input:/input" --out "/output:$PWD/output" -- \
    bash -c 'mkdir /fb/output && exec mpiexec ./sums /fb/input /fb/output/sums'
