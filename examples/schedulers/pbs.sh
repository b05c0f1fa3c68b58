#!/bin/bash
#PBS -l select=3:ncpus=2:mpiprocs=2
#PBS -l walltime=00:10:00
# PBS (OpenPBS, PBS Professional). pbs_tmrsh is PBS's own remote shell; with ssh between the nodes, leave --rsh out.
cd "$PBS_O_WORKDIR" || exit
hosts=$(sort -u "$PBS_NODEFILE" | paste -sd,)
exec forebay run --pool "job-${PBS_JOBID%%[^0-9]*}" --hosts "$hosts" --rsh pbs_tmrsh \
    --in "$PWD/input:/input" --out "/output:$PWD/output" -- \
    bash -c 'mkdir /fb/output && exec mpiexec ./sums /fb/input /fb/output/sums'
