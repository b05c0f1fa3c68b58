#!/bin/bash
# in_image.sh PROGRAM [ARGUMENTS]: runs a program in the image $IMAGE, where it sees the host's pools and the directory
# in which it is called. $IMAGE is an image of Apptainer (NAME.sif), a directory with an unpacked image, or the name of
# an image that podman has on this node.
set -euo pipefail
: "${IMAGE:?}"
# By its path: the user may have another number in the image.
export FOREBAY_HOME=${FOREBAY_HOME:-/dev/shm/forebay-$UID}
mkdir -p -m 700 "$FOREBAY_HOME"
if [[ $IMAGE = *.sif ]]; then
    exec apptainer exec --bind "$FOREBAY_HOME,$PWD" --pwd "$PWD" "$IMAGE" "$@"
elif [[ -d $IMAGE ]]; then
    # Without any runtime: a mount namespace of the user's own.
    exec unshare --map-root-user --mount bash -euc '
        image=$1 dir=$2
        shift 2
        for path in /dev /proc "$FOREBAY_HOME" "$dir"; do
            mkdir -p "$image$path"
            mount --rbind "$path" "$image$path"
        done
        export PATH=/opt/forebay/bin:/usr/sbin:/usr/bin:/sbin:/bin
        exec chroot "$image" bash -c "cd \"\$0\" && exec \"\$@\"" "$dir" "$@"' bash "$IMAGE" "$PWD" "$@"
else
    exec podman run --rm --pid=host --network=host --env 'FOREBAY_*' --env 'SLURM_*' --workdir "$PWD" \
        --volume "$FOREBAY_HOME:$FOREBAY_HOME" --volume "$PWD:$PWD" "$IMAGE" "$@"
fi
