# System calls that a pool refuses.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/refused.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
