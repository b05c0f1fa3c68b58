#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --time=10
#SBATCH --signal=B:TERM@120
# All of a job from one image (in_image.sh says which kinds; packaging/container makes one): Forebay itself is copied
# out of it, programs run in it. Nothing is installed on the nodes.
set -euo pipefail
: "${IMAGE:?}"
export IMAGE FOREBAY_POOL="job-$SLURM_JOB_ID"
own="$PWD/forebay-$SLURM_JOB_ID"
./in_image.sh cp -r /opt/forebay/bin "$own"
PATH=$own:$PATH
finish() {
    trap - EXIT TERM
    forebay stage out /output "$PWD/output" && forebay down && rm -r "$own"
}
trap finish EXIT
trap 'kill $(jobs -p); wait; exit 143' TERM

forebay up
forebay stage in "$PWD/input" /input
srun ./in_image.sh forebay exec -- ./task.sh &
wait $!
