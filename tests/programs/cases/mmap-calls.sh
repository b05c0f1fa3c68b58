# Every call on mappings, and its errors: mmap-calls.c prints what it sees.
# needs: gcc
set -euo pipefail
gcc -O1 -w -o mmap-calls "$CASES/mmap-calls.c" -lpthread
./mmap-calls
rm mmap-calls
