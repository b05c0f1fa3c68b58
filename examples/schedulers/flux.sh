#!/bin/bash
#flux: -N 3 -n 6 -t 10m
# Flux: flux batch flux.sh. The job is a Flux instance; flux_rsh.sh reaches its nodes.
hosts=$(flux hostlist --expand --delimiter=, instance)
exec forebay run --pool "job-$$" --hosts "$hosts" --rsh "$PWD/flux_rsh.sh" \
    --in "$PWD/input:/input" --out "/output:$PWD/output" -- \
    bash -c 'mkdir /fb/output && exec flux run -N 3 -n 6 ./sums /fb/input /fb/output/sums'
