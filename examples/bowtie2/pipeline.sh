#!/usr/bin/env bash
# A short genome pipeline: index a reference, align reads to it, sort, summarise.
#
#   REF      the reference, FASTA, compressed by gzip
#   READS    the directory with reads_1.fq.gz, reads_2.fq.gz and longreads.fq.gz
#   RESULTS  the directory to write to
#
# It knows nothing of Forebay: in a pool and on any other file system it runs as
# it is. With the same relative paths it makes the same bytes everywhere.
set -euo pipefail
export LC_ALL=C TZ=UTC

REF=${REF:-ref/lambda_virus.fa.gz}
READS=${READS:-reads}
RESULTS=${RESULTS:-results}

started=$EPOCHREALTIME
step() {
  local now=$EPOCHREALTIME
  [ -z "${name:-}" ] || awk -v a="$started" -v b="$now" -v n="$name" 'BEGIN{printf "  %6.2f s  %s\n", b - a, n}'
  name=${1:-}
  started=$now
}

# The command line that bowtie2 notes in the header is of no interest.
align() { bowtie2 -p 2 --reorder --seed 1 -x "$RESULTS/index/lambda" "$@" | sed '/^@PG/d'; }
sorted() { samtools sort --no-PG -m 1M -T "$RESULTS/tmp/sort" -O bam -o "$1" -; }

mkdir -p "$RESULTS/index" "$RESULTS/tmp"

step "unpack the reference"
gzip -dc "$REF" > "$RESULTS/lambda.fa"

step "build the index"
bowtie2-build --quiet --seed 1 "$RESULTS/lambda.fa" "$RESULTS/index/lambda" > /dev/null

step "align the pairs and sort"
align -1 "$READS/reads_1.fq.gz" -2 "$READS/reads_2.fq.gz" 2> "$RESULTS/pairs.log" | sorted "$RESULTS/pairs.bam"

step "align the long reads and sort"
align --local -U "$READS/longreads.fq.gz" 2> "$RESULTS/long.log" | sorted "$RESULTS/long.bam"

step "merge and index"
samtools merge --no-PG -f "$RESULTS/all.bam" "$RESULTS/pairs.bam" "$RESULTS/long.bam"
samtools index "$RESULTS/all.bam"
samtools faidx "$RESULTS/lambda.fa"

step "summarise"
samtools flagstat "$RESULTS/all.bam" > "$RESULTS/flagstat.txt"
samtools idxstats "$RESULTS/all.bam" > "$RESULTS/idxstats.txt"
samtools depth -a "$RESULTS/all.bam" > "$RESULTS/depth.txt"
samtools view "$RESULTS/all.bam" 'gi|9626243|ref|NC_001416.1|:1000-2000' > "$RESULTS/region.sam"
rmdir "$RESULTS/tmp"

step
echo "  $(sed -n 1p "$RESULTS/pairs.log"), $(tail -n 1 "$RESULTS/pairs.log")"
awk '{n += $3} END{printf "  mean depth %.1f over %d bases\n", n / NR, NR}' "$RESULTS/depth.txt"
