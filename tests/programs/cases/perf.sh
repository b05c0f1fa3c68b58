# needs: perf
# media: memory
# perf writes what it has recorded from memory that it shares with the kernel.
source "$CASES/../lib.sh"
perf record -o "$OUTER/data" true > /dev/null 2>&1 || { echo "perf can't record here"; rm -rf "$OUTER"/data* "$OUTER/.debug"; exit 0; }
rm -f "$OUTER"/data*
perf record -q -- sh -c 'for i in 1 2 3; do ls > /dev/null; done'; perf report --stdio 2> /dev/null | grep -c 'Total Lost Samples'
perf record -q -g -o named -- true; perf script -i named 2> /dev/null | head -1 | wc -l
perf stat -o numbers true; grep -c 'Performance counter stats' numbers
perf record -q -o - -- true | wc -c | sed 's/^[1-9][0-9]*$/some bytes/'
rm -rf perf.data* named numbers "$OUTER/.debug"
