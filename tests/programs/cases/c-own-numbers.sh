# dup2 onto descriptor numbers that the library holds for itself.
# needs: cc
set -euo pipefail
cc -O1 -w -pthread -o program "$CASES/../c/own_numbers.c"
cp program "$OUTER/program"; rm program
echo outside > "$OUTER/outside"
timeout 60 "$OUTER/program" "$OUTER/outside"
rm "$OUTER/program" "$OUTER/outside"
