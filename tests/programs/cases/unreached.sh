# needs: gcc
# media: memory
# Programs that the library can't reach: statically linked, Go, set-user-ID. They run as ever. Under
# `forebay exec`, a message says that such a program sees no path of the pool. Through a mount they see everything.
source "$CASES/../lib.sh"
cat > "$OUTER/show.c" <<'C'
#include <stdio.h>
#include <string.h>
#include <errno.h>
int main(int argc, char **argv) {
  char line[100];
  FILE *f = argc > 1 ? fopen(strncmp(argv[1], "--from=", 7) ? argv[1] : argv[1] + 7, "r") : stdin;
  if (!f || !fgets(line, sizeof line, f)) { fprintf(stderr, "%s: %s\n", argv[1], strerror(errno)); return 3; }
  printf("%s", line);
  return 0;
}
C
echo inside > file; echo outside > "$OUTER/file"
hints() { grep -c 'forebay: .*forebay mount' "$OUTER/err" || :; }
# A program shows a file of $WORK, or an error and a hint.
sees() {
  local rc=0 out
  out=$("$@" 2> "$OUTER/err") || rc=$?
  case "${FOREBAY_DIR:+preload} $rc $out $(hints)" in
    'preload 3  1' | ' 0 inside 0') echo "$(basename "$1"): as expected" ;;
    *) echo "$*: exit code $rc, '$out', $(hints) hints"; cat "$OUTER/err" ;;
  esac
}
try() {
  echo "= $1"
  sees "$OUTER/$1" "$WORK/file"
  # No hint where nothing is missed; in $WORK its working directory is (pools: working_directory.py).
  bash -c "cd /; $OUTER/$1 $OUTER/file; cd '$OUTER'; $OUTER/$1 file" 2> "$OUTER/err"; hints
  (cd "$OUTER"; "./$1" file; "./$1" nothere) 2> "$OUTER/err" || echo "exit code $?"; hints
  "$OUTER/$1" "$OUTER/file" | cat > copy; cat copy
}
section statically linked
gcc -O1 -static -o "$OUTER/static" "$OUTER/show.c"; try static
gcc -O1 -static-pie -o "$OUTER/pie" "$OUTER/show.c"; try pie
sees "$OUTER/pie" "--from=$WORK/file"
cp "$OUTER/static" here; ./here "$OUTER/file"; echo piped | ./here
if type -P gofmt > /dev/null; then
  # A program made by Go's compiler, which is where Go is.
  echo "go is here" >&2
  echo 'package inside' > file.go; rc=0
  out=$(HOME=$OUTER/home gofmt "$WORK/file.go" 2> "$OUTER/err") || rc=$?
  case "${FOREBAY_DIR:+preload} $rc $out $(hints)" in
    'preload 2  1' | ' 0 package inside 0') echo "as expected" ;;
    *) echo "gofmt: $rc '$out' $(hints)"; exit 1 ;;
  esac >&2
  rm -r file.go; rm -rf "$OUTER/home"
fi
section set-user-ID
# Needs a program that belongs to another user: root can make one, others have passwd.
if [ "$CASE_UID" = 0 ]; then
  cp "$(type -P id)" "$OUTER/set"; chown 65534:65534 "$OUTER/set"; chmod 6755 "$OUTER/set"; "$OUTER/set" -u; (cd "$WORK"; "$OUTER/set" -g)
  cp "$(type -P cat)" "$OUTER/set"; chown 65534:65534 "$OUTER/set"; chmod 6755 "$OUTER/set"; chmod 644 "$OUTER/file"
  "$OUTER/set" "$OUTER/file"; echo piped | "$OUTER/set" | cat
fi
type -P passwd > /dev/null && passwd -S "$(id -un)" | wc -l
type -P su > /dev/null && [ "$CASE_UID" = 0 ] && su -s /bin/sh -c 'cat file; [ "$(pwd)" = "$WORK" ] && echo there' root
rm -f "$OUTER"/{static,pie,golang,set,err}
