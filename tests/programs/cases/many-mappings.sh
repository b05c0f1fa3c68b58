# A process with as many mappings as the kernel lets it have.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/many_mappings.c"
# A kernel before 6.11 can't report a single mapping: a process that cuts a file reads the list of all.
kernel=$(uname -r | awk -F. '{print ($1 > 6 || $1 == 6 && $2 >= 11) ? "" : "old-kernel"}')
./program $kernel 2> /dev/null
rm -f program one
