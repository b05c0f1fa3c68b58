# Pointers to nowhere are EFAULT.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/efault.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
