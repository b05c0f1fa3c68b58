# Descriptors: numbers, dup, fcntl, ioctl, O_PATH, poll and the like.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/descriptors.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
