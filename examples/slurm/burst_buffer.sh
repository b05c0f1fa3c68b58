#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --time=10
#BB_LUA forebay size=200M
#BB_LUA forebay stage_in /home/me/case /input
#BB_LUA forebay stage_out /output /home/me/results-%j
# With the site's burst_buffer.lua: the input is there before the job has its node, and results go out after it has
# given the node back. The pool's files lie in $FOREBAY_STAGED; here it is opened, and let go.
set -euo pipefail
export FOREBAY_POOL="job-$SLURM_JOB_ID"
let_go() {
    local keeper dir
    keeper=$(forebay status --json | sed -n 's/^ *"keeper": \([0-9]*\),*$/\1/p')
    dir=$(forebay status --json | sed -n 's/^ *"dir": "\(.*\)",*$/\1/p')
    kill "$keeper"
    while kill -0 "$keeper" 2> /dev/null; do sleep 0.1; done
    rm -rf -- "$dir"
}
# A daemon that knows of a job goes on after SIGTERM.
env -u SLURM_JOB_ID forebay up --reopen --from "$FOREBAY_STAGED"
trap let_go EXIT
forebay exec -- ./task.sh
