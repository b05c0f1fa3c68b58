# Watching files and directories: every event, its order, name and cookie; several processes, small buffers, overflow.
# needs: cc
set -euo pipefail
cc -O1 -w -pthread -o program "$CASES/../c/inotify.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
