#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --time=10
#SBATCH --signal=B:TERM@120
# An MPI program: mpicc -o sums sums.c. Its ranks read what was staged in, and write one file together.
# --mpi is what the program's MPI library was built for: pmi2 for MPICH and its relatives, pmix for Open MPI
# (`srun --mpi=list` shows what this Slurm has). `forebay run` makes no directory for the results.
exec forebay run --pool "job-$SLURM_JOB_ID" --in "$PWD/input:/input" --out "/output:$PWD/output" -- \
    bash -c 'mkdir /fb/output && exec srun --mpi=pmi2 ./sums /fb/input /fb/output/sums'
