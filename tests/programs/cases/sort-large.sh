# sort with a buffer much smaller than its input: temporary files in the pool.
# needs: sort awk gzip
set -euo pipefail
source "$CASES/../lib.sh"
awk 'BEGIN{s = 1; for (i = 0; i < 400000; i++) { s = (s * 16807) % 2147483647; print s, "line", i }}' > input
wc -c < input; mkdir tmp
sort -S 500K -T tmp input | sha256sum
sort -S 500K -T tmp -n -o sorted input; sort -c -n sorted && sha256sum < sorted
sort -S 1M -T tmp --parallel=2 -k3,3n input | cmp - input && echo as before
sort -S 500K -T tmp --batch-size=3 -n input | cmp - sorted && echo merged in steps
sort -S 1M -T tmp --compress-program=gzip -n input | cmp - sorted && echo compressed
sort -S 1M -n -T tmp -o input input; cmp input sorted && echo in place
sort -S 1M -T tmp -u -k1,1n -m sorted input | wc -l
TMPDIR=$PWD/tmp sort -S 500K -n input | tail -n 1
fails sort -S 500K -T missing input | tail -n 2
find tmp
