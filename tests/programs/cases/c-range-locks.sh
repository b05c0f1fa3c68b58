# Byte-range locks over dup, fork and exec.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/range-locks.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
