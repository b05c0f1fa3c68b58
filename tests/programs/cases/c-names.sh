# Paths: opening, links, attributes, directories; by descriptor, by /proc, by openat2.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/names.c"
cp program "$OUTER/program"; rm program
"$OUTER/program" | cat
rm "$OUTER/program"
