#!/usr/bin/env bash
# A Snakemake workflow in a campaign: run.sh CAMPAIGN SNAKEFILE [OPTIONS OF SNAKEMAKE]. Makes the campaign if there is
# none of this name. May be called again, also on another host: Snakemake goes on where it has ended.
set -euo pipefail
campaign=${1:?usage: run.sh CAMPAIGN SNAKEFILE [OPTIONS OF SNAKEMAKE]}
snakefile=$(realpath "${2:?usage: run.sh CAMPAIGN SNAKEFILE [OPTIONS OF SNAKEMAKE]}")
shift 2
path=$(forebay campaign path "$campaign" 2> /dev/null) || path=$(forebay campaign create "$campaign" "${SPEC:-7d}")
forebay campaign up "$campaign" --media "${MEDIA:-memory:1G}"
status=0
forebay exec --pool "$campaign" -- snakemake --cores "${CORES:-all}" --directory "$path" --snakefile "$snakefile" "$@" ||
    status=$?
# All changes are at their place after that.
forebay campaign down "$campaign"
exit $status
