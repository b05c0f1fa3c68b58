# Odd descriptors, pointers, lengths and flags for all served calls: 100,000 calls whose results
# are tmpfs's, and no signal. To see the calls of a round: ODD_CALLS=1 odd 1 ROUND.
#
# Left out, each for its reason: calls that the pool refuses (c-refused); F_SETLEASE, seals,
# FALLOC_FL_ZERO_RANGE and RENAME_WHITEOUT, in which tmpfs is alone; SEEK_DATA and
# SEEK_HOLE (the grain of holes); mremap and remap_file_pages (mmap-calls); what changes the
# process's user or ends it; dup2 onto Forebay's own numbers, attributes of a removed directory or
# FIFO, and offsets near 2^63 (docs/reference/known-limits.md, docs/reference/limits.md).
# needs: cc
# media: memory
# timeout: 300
set -euo pipefail
cc -O1 -w -o program "$CASES/../c/odd.c"
cp program "$OUTER/program"; rm program
here=$WORK
# Other file systems differ in such things from tmpfs, which is asked in the plain run.
if [ "$(stat -f -c %t .)" != 46424159 ]; then
  here=$(mktemp -d /dev/shm/odd.XXXXXX)
  trap 'rm -rf "$here"' EXIT
fi
mkdir -p "$here/a/b"
(cd "$here/a/b" && "$OUTER/program" 2000)
cc -O1 -w -o "$OUTER/program" "$CASES/../c/extremes.c"
(cd "$here/a/b" && "$OUTER/program")
rm -rf "$OUTER/program" "$here/a"
