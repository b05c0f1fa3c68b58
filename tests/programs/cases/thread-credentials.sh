# needs: gcc
# Working directory, umask, ids, groups and capabilities that a thread has for itself; access(2) asks
# for the real user.
source "$CASES/../lib.sh"
gcc -O1 -w -pthread -o "$OUTER/threads" "$CASES/../c/thread_credentials.c"
"$OUTER/threads" 2>&1
cat sub/deeper/executed
rm "$OUTER/threads"
