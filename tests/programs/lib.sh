# Helpers for the cases: `source "$CASES/../lib.sh"`. Nothing here may print
# what differs from one file system to the next: the size and the number of
# links of directories, blocks, inode numbers, and the order of entries.

# ls -l style listings without dates, inode numbers and directory sizes.
plain_ls() {
  ls --time-style=+ "$@" | awk '/^total /{next} /^d/{$2="-"; $5="-"} {$1=$1; print}'
}

# The permissions, type and size of each operand, and its times if they were set.
plain_stat() {
  local f
  for f in "$@"; do
    if [ -d "$f" ] && [ ! -L "$f" ]; then stat -c '%n: %A %a %F' "$f"
    else stat -c '%n: %A %a %F links=%h size=%s' "$f"; fi
  done
}

# Run a command that has to fail; print its exit code and its messages.
fails() {
  local rc=0
  "$@" 2>&1 || rc=$?
  echo "exit code $rc from: $*"
  [ "$rc" -ne 0 ]
}

section() { echo "== $*"; }
