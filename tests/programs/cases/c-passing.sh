# Descriptors passed over Unix sockets.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/passing.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
