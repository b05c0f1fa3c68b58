# Threads that block all signals get EFAULT for bad addresses; what they block is as they set it.
# needs: cc
set -euo pipefail
cc -O1 -w -pthread -o program "$CASES/../c/masks.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
