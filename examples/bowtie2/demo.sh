#!/usr/bin/env bash
# Runs pipeline.sh on the plain file system and in a pool, compares the results
# byte for byte, and says how it went. Exit code 0: the same bytes in both.
#
#   FOREBAY     the program (default: what `make build` has made; else the command and its two
#               libraries are built here, in less time and a little slower)
#   DEMO_MEDIA  what the pool is made of (default: memory:1G)
#   DEMO_KEEP   set: leave the directory with the results in place
#   demo.sh --plain: only the part without Forebay
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
media=${DEMO_MEDIA:-memory:1G}
mount=${DEMO_MOUNT:-/fb}
examples=/usr/share/doc/bowtie2/examples
pool=demo-$$
plain_only=
[ "${1:-}" != --plain ] || plain_only=1

say() { printf '\n%s\n' "$*"; }
elapsed() { awk -v a="$1" -v b="$2" 'BEGIN{printf "%.2f", b - a}'; }

"$root/tests/install-packages" --demo
if [ -z "$plain_only" ]; then
  forebay=${FOREBAY:-}
  if [ -z "$forebay" ]; then
    target=${CARGO_TARGET_DIR:-$root/target}
    forebay=$target/release/forebay
    if [ ! -x "$forebay" ]; then
      say "Building Forebay"
      (cd "$root" && cargo build --profile quick -p forebay-cli -p forebay-preload -p forebay-audit)
      forebay=$target/quick/forebay
    fi
  fi
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/forebay-demo-XXXXXX")
memory=/dev/shm
[ -d "$memory" ] && [ -w "$memory" ] || memory=$work
FOREBAY_HOME=$(mktemp -d "$memory/fbd-XXXXXX")
export FOREBAY_HOME
clean_up() {
  [ -n "$plain_only" ] || timeout 30 "$forebay" down --pool "$pool" --force > /dev/null 2>&1 || true
  rm -rf "$FOREBAY_HOME"
  if [ -n "${DEMO_KEEP:-}" ]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

mkdir -p "$work/plain/ref" "$work/plain/reads" "$work/pool"
cp "$examples/reference/lambda_virus.fa.gz" "$work/plain/ref/"
cp "$examples"/reads/{reads_1,reads_2,longreads}.fq.gz "$work/plain/reads/"

say "The pipeline on the plain file system"
t0=$EPOCHREALTIME
(cd "$work/plain" && timeout 300 "$here/pipeline.sh")
t1=$EPOCHREALTIME
plain_seconds=$(elapsed "$t0" "$t1")
echo "  $plain_seconds s in all, $(find "$work/plain/results" -type f | wc -l) files"
if [ -n "$plain_only" ]; then
  (cd "$work/plain/results" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
  exit 0
fi

say "The same in a pool of $media, by: forebay run"
cat > "$work/in-the-pool.sh" <<'END'
cd "$1"
started=$EPOCHREALTIME
"$2" || exit
awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN{printf "%.2f\n", b - a}' > "$3/seconds"
# What lies where is asked from beside the pool, while it is still there.
unset LD_PRELOAD
"$4" df --pool "$5" > "$3/df" 2>&1 || echo "forebay df: exit code $?" >> "$3/df"
"$4" ls --pool "$5" /results > "$3/ls" 2>&1 || echo "forebay ls: exit code $?" >> "$3/ls"
true
END
echo "  in:  ref ($(du -sbh "$work/plain/ref" | cut -f1)) to $mount/ref, reads ($(du -sbh "$work/plain/reads" | cut -f1)) to $mount/reads"
echo "  out: $mount/results"
code=0
t2=$EPOCHREALTIME
timeout 300 "$forebay" run --pool "$pool" --media "$media" --mount "$mount" \
  --in "$work/plain/ref:/ref" --in "$work/plain/reads:/reads" --out "/results:$work/pool/results" \
  -- bash "$work/in-the-pool.sh" "$mount" "$here/pipeline.sh" "$work" "$forebay" "$pool" || code=$?
t3=$EPOCHREALTIME
if [ "$code" != 0 ]; then
  say "FAILED: the pipeline in the pool ended with exit code $code"
  exit 1
fi
pool_seconds=$(elapsed "$t2" "$t3")

say "Where it lay while the pool was there (forebay df)"
sed 's/^/  /' "$work/df"
say "Results in the pool (forebay ls /results)"
sed 's/^/  /' "$work/ls"

say "Results, compared byte for byte"
same=0
different=0
while read -r file; do
  if cmp "$work/plain/results/$file" "$work/pool/results/$file"; then
    same=$((same + 1))
    printf '  same  %9d bytes  %s\n' "$(stat -c %s "$work/pool/results/$file")" "$file"
  else
    different=$((different + 1))
  fi
done < <(cd "$work/plain" && find results -type f -printf '%P\n' | sort)
more=$(comm -13 <(cd "$work/plain/results" && find . | sort) <(cd "$work/pool/results" && find . | sort))
[ -z "$more" ] || { echo "  only from the pool: $more"; different=$((different + 1)); }

say "Time"
echo "  plain file system   $plain_seconds s"
echo "  in the pool         $(cat "$work/seconds") s the pipeline; $pool_seconds s with making the pool, staging in and out, and taking it down"

if [ "$different" = 0 ] && [ "$same" -gt 0 ]; then
  say "OK: $same files, the same bytes from the pool as from the plain file system"
else
  say "FAILED: $different of $((same + different)) files differ"
  exit 1
fi
