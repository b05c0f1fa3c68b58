#!/usr/bin/env bash
# Many small samples aligned to one index, as jobs on several nodes do it: the program of bowtie2.toml that run.py measures.
#
#   bowtie2.sh make    the index, and a file of reads for each sample
#   bowtie2.sh use     as rank RANK of RANKS: aligns SCALE samples
#   bowtie2.sh digest  what all results are, in one line
#
# AT is the directory.
set -euo pipefail
export LC_ALL=C
examples=/usr/share/doc/bowtie2/examples
READS=100

case $1 in
  make)
    mkdir "$AT/index" "$AT/reads" "$AT/results"
    gzip -dc "$examples/reference/lambda_virus.fa.gz" > "$AT/lambda.fa"
    bowtie2-build --quiet --seed 1 "$AT/lambda.fa" "$AT/index/lambda" > "$AT/index/build.log"
    # (sed reads to the end: gzip isn't to die of a closed pipe.)
    for sample in $(seq 0 $((RANKS * SCALE - 1))); do
      gzip -dc "$examples/reads/reads_1.fq.gz" |
        sed -n "$((sample * READS * 4 + 1)),$(((sample + 1) * READS * 4))p" > "$AT/reads/$sample.fq"
    done ;;
  use)
    for n in $(seq 0 $((SCALE - 1))); do
      sample=$((RANK * SCALE + n))
      bowtie2 --seed 1 -x "$AT/index/lambda" -U "$AT/reads/$sample.fq" -S "$AT/results/$sample.sam" 2> "$AT/results/$sample.log"
    done ;;
  digest)
    cat "$AT"/results/*.sam "$AT"/results/*.log | sed '/^@PG/d' | sha256sum ;;
esac
