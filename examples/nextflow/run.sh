#!/usr/bin/env bash
# A Nextflow pipeline in a pool: stage in, run, stage out.
#
#     examples/nextflow/run.sh INPUT_DIRECTORY RESULT_DIRECTORY
#
# The pool is that of $FOREBAY_POOL (default: a new one for the run). Nextflow is the command of this
# name on $PATH, else the jars that Maven puts into target/nextflow (40 MB, once). Java 17 or later.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
input=$(realpath "$1") results=$(realpath -m "$2")
forebay=${FOREBAY:-forebay}
target=${CARGO_TARGET_DIR:-$here/../../target}

if nextflow=$(command -v nextflow); then
    nextflow=("$nextflow")
else
    jars=$target/nextflow
    if [ ! -e "$jars/complete" ]; then
        mvn -q -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$jars"
        touch "$jars/complete"
    fi
    open=()
    for package in java.lang java.io java.net java.nio java.util java.util.concurrent.locks sun.nio.ch sun.nio.fs; do
        open+=("--add-opens=java.base/$package=ALL-UNNAMED")
    done
    nextflow=(java "${open[@]}" -XX:TieredStopAtLevel=1 -cp "$jars/*" nextflow.cli.Launcher)
    # Nothing else is fetched.
    export NXF_OFFLINE=true NXF_PLUGINS_DEFAULT=false
fi

# Nextflow's history and cache of a run (-resume) lie outside of the pool.
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
export NXF_HOME=$run/home NXF_ANSI_LOG=false NXF_DISABLE_CHECK_LATEST=true

pool=${FOREBAY_POOL:-nextflow-$$}
if [ -z "${FOREBAY_POOL:-}" ]; then
    "$forebay" up --pool "$pool" --media memory:1G
    trap '"$forebay" down --force --pool "$pool"; rm -rf "$run"' EXIT
fi
"$forebay" stage in --pool "$pool" "$input" /in
cd "$run"
"$forebay" exec --pool "$pool" -- mkdir -p /fb/scratch
"$forebay" exec --pool "$pool" -- "${nextflow[@]}" -C "$here/nextflow.config" run "$here/main.nf"
"$forebay" stage out --pool "$pool" /results "$results"
