#!/usr/bin/env bash
# A repository on one node that jobs on all nodes clone, read and push to: the program of git.toml that run.py measures.
#
#   git.sh make    a bare repository of some files and commits, packed
#   git.sh use     as rank RANK of RANKS: SCALE times a clone, its history, a commit that is pushed
#   git.sh digest  what all results are, in one line
#
# AT is the directory.
set -euo pipefail
export LC_ALL=C TZ=UTC HOME=$AT GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_AUTHOR_DATE='1700000000 +0000'
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_COMMITTER_DATE='1700000000 +0000'

# A stream for git fast-import: 150 files of 16 KiB, 20 commits that change a tenth of them.
stream() {
  awk 'BEGIN {
    srand(7)
    for (c = 1; c <= 20; c++) {
      print "commit refs/heads/main\ncommitter a <a@b> " 1700000000 + c " +0000\ndata 2\nc"
      for (f = 0; f < 150; f++) {
        if (c > 1 && f % 10 != c % 10) continue
        text = ""
        for (l = 0; l < 256; l++) text = text sprintf("%016d%016d%016d%015d\n", rand() * 1e15, rand() * 1e15, rand() * 1e15, l)
        print "M 100644 inline src/" int(f / 25) "/file" f "\ndata " length(text) "\n" text
      }
    }
  }'
}

case $1 in
  make)
    git init -q --bare "$AT/shared.git"
    git -C "$AT/shared.git" symbolic-ref HEAD refs/heads/main
    stream | git -C "$AT/shared.git" fast-import --quiet
    git -C "$AT/shared.git" gc -q ;;
  use)
    for n in $(seq "$SCALE"); do
      work=$AT/clone.$RANK.$n
      git clone -q --no-local "$AT/shared.git" "$work"
      git -C "$work" log --stat | sha256sum > "$work.log"
      git -C "$AT/shared.git" grep -c 00000 main > "$work.grep" || :
      git -C "$work" checkout -q -b "rank$RANK.$n"
      echo "$RANK $n" > "$work/new"
      git -C "$work" add new
      git -C "$work" commit -q -m new
      git -C "$work" push -q origin HEAD
    done ;;
  digest)
    git -C "$AT/shared.git" fsck --strict --no-dangling > "$AT/fsck" 2>&1 || cat "$AT/fsck"
    { git -C "$AT/shared.git" for-each-ref; cat "$AT"/clone.*.log "$AT"/clone.*.grep
      for work in "$AT"/clone.*.*; do [ ! -d "$work" ] || git -C "$work" status --short; done; } | sha256sum ;;
esac
