# Reading, writing, copying, sizes: flags, offsets, errors.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/data.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
