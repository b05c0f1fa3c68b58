# A program ends while its threads store to a mapped file: its exit code is its own.
# needs: gcc
set -euo pipefail
source "$CASES/../lib.sh"
gcc -O1 -pthread "$CASES/../c/exit_mapped.c" -o "$OUTER/exit_mapped"
for i in $(seq 20); do rc=0; "$OUTER/exit_mapped" mapped || rc=$?; echo "$rc"; done | sort | uniq -c
stat -c %s mapped; rm mapped
