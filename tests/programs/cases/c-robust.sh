# Programs that are hard on a library inside them: closers, daemons, small stacks, forks amid threads.
# needs: cc
set -euo pipefail
cc -O1 -w -pthread -o program "$CASES/../c/robust.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
