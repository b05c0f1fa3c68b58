# Signals when something changes in a directory (F_NOTIFY).
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/dnotify.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
