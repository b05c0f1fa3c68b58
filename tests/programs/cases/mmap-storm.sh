# Random mappings by several processes at once, with kills: mmap-storm.c.
# needs: gcc
set -euo pipefail
gcc -O1 -w -o mmap-storm "$CASES/mmap-storm.c"
for seed in 1 2 3 4; do ./mmap-storm steps $seed 3000; done
for seed in 1 2; do ./mmap-storm safety $seed 3; done
rm mmap-storm
