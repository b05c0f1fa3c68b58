# Handlers on a small signal stack beside mappings of files that grow and shrink.
# needs: cc
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/signal_stack.c"
./program
rm program grows
