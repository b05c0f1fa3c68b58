# needs: gcc
# timeout: 60
# Programs that the library can't reach (statically linked, musl, Go, set-user-ID) with descriptors of the
# pool as input and output: no byte is lost, whoever shares the descriptor's offset. Where that is impossible, the
# program isn't executed.
source "$CASES/../lib.sh"
cat > "$OUTER/tool.c" <<'C'
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* say TEXT, err TEXT, fd N TEXT: a line; line: copies one line, byte by byte; cat; big BYTES; exit CODE. */
static void put(int fd, const char *text) {
  char line[200]; int n = snprintf(line, sizeof line, "%s\n", text);
  if (write(fd, line, n) != n) fprintf(stderr, "%d: %s\n", fd, strerror(errno));
}
int main(int argc, char **argv) {
  static char b[65536]; char c; int n;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "say")) put(1, argv[++i]);
    else if (!strcmp(argv[i], "err")) put(2, argv[++i]);
    else if (!strcmp(argv[i], "fd")) { n = atoi(argv[++i]); put(n, argv[++i]); }
    else if (!strcmp(argv[i], "line")) { while (read(0, &c, 1) == 1) { if (write(1, &c, 1) != 1) return 9; if (c == '\n') break; } }
    else if (!strcmp(argv[i], "cat")) { while ((n = read(0, b, sizeof b)) > 0) if (write(1, b, n) != n) return 9; }
    else if (!strcmp(argv[i], "big")) { memset(b, 'x', sizeof b); for (long left = atol(argv[++i]); left > 0; left -= n) { n = left < (long)sizeof b ? left : (long)sizeof b; if (write(1, b, n) != n) return 9; } }
    else if (!strcmp(argv[i], "exit")) return atoi(argv[++i]);
  }
  return 0;
}
C
gcc -O1 -o "$OUTER/dynamic" "$OUTER/tool.c"; gcc -O1 -static -o "$OUTER/static" "$OUTER/tool.c"; gcc -O1 -static-pie -o "$OUTER/pie" "$OUTER/tool.c"
type -P musl-gcc > /dev/null && musl-gcc -O1 -static -o "$OUTER/musl" "$OUTER/tool.c" || cp "$OUTER/static" "$OUTER/musl"
type -P musl-gcc > /dev/null && musl-gcc -O1 -o "$OUTER/musl-dynamic" "$OUTER/tool.c" || cp "$OUTER/static" "$OUTER/musl-dynamic"
D=$OUTER/dynamic; here=$WORK
# The hints on the working directory are another case's business (unreached).
cd /
printf 'a\nb\nc\nd\n' > "$here/in"
for p in static pie musl musl-dynamic; do
  S=$OUTER/$p; mkdir "$here/$p"; cd /
  F=$here/$p
  section "$p: output"
  "$S" say hello exit 7 > "$F/out" || echo "exit code $?"; cat "$F/out"
  "$S" say more >> "$F/out"; cat "$F/out"
  "$S" say out err oops say again > "$F/both" 2>&1; cat "$F/both"
  { "$S" say 1; "$D" say 2; "$S" say 3; } > "$F/turns"; cat "$F/turns"
  { "$S" say 1; "$D" say 2; "$S" say 3; } >> "$F/turns"; cat "$F/turns"
  "$S" fd 5 five 5> "$F/five"; cat "$F/five"
  exec 8> "$F/eight"; "$S" fd 8 one; "$D" fd 8 two; "$S" fd 8 three; exec 8>&-; cat "$F/eight"
  "$S" big 3000000 > "$F/big"; stat -c %s "$F/big"
  ( exec "$S" say replaced ) > "$F/exec"; cat "$F/exec"
  env -i "$S" say env > "$F/env"; cat "$F/env"
  timeout 20 "$S" say timeout > "$F/timeout"; cat "$F/timeout"
  "$S" say background > "$F/background" & wait $!; echo "$?"; cat "$F/background"
  section "$p: input"
  "$S" cat < "$here/in"
  { "$S" line; "$D" line; "$S" cat; } < "$here/in"
  { "$S" line; "$S" line; } < "$here/in"
  "$S" cat <<< "here string"
  "$S" cat << TEXT
here document
TEXT
  "$S" cat < "$F/big" > "$F/copy"; cmp "$F/big" "$F/copy" && echo same
  "$S" cat < "$F/big" | wc -c
  "$S" big 2000000 | "$S" cat > "$F/piped"; stat -c %s "$F/piped"
  section "$p: scripts"
  printf '#!%s\n' "$S" > "$F/script"; chmod +x "$F/script"
  "$F/script" say script > "$F/from-script" 2> /dev/null; cat "$F/from-script"
done
section children of a static shell
if type -P busybox > /dev/null; then busybox sh -c "echo one; '$D' say two; '$OUTER/static' say three" > "$here/shell"; cat "$here/shell" >&2; [ "$(wc -l < "$here/shell")" = 3 ]; rm "$here/shell"; fi
if type -P go > /dev/null; then HOME=$OUTER GOTOOLCHAIN=local go version > "$here/go"; grep -c 'go version' "$here/go" >&2; rm "$here/go"; fi
S=$OUTER/static
section descriptors above 2
# A leaked one that somebody else reads: nothing is read ahead.
exec 8< "$here/in"
coproc "$S" say up cat 2> /dev/null
exec 6<&"${COPROC[0]}" 7>&"${COPROC[1]}"; child=$COPROC_PID
read -r -t 10 up <&6; sleep 0.2; read -r first <&8 || true
eval "exec ${COPROC[1]}>&-"; exec 7>&-; wait "$child"; read -r second <&8 || true
echo "$up $first $second"; exec 6<&- 8<&-
# More than are served.
( for n in {20..45}; do eval "exec $n> '$here/leaked-$n'"; done; "$S" say many > "$here/many" 2> /dev/null; echo "$?" )
cat "$here/many"; rm "$here"/leaked-*
section set-user-ID
if [ "$CASE_UID" = 0 ]; then
  cp "$D" "$OUTER/set"; chown 65534 "$OUTER/set"; chmod 4755 "$OUTER/set"; chmod 755 "$OUTER"
  "$OUTER/set" say privileged > "$here/set"; cat "$here/set"
fi
section from Python
if type -P python3 > /dev/null; then
  python3 - "$OUTER/static" "$here" <<'PY'
import os, subprocess, sys, tempfile
program, here = sys.argv[1:]
with tempfile.TemporaryFile(dir=here) as f:
    code = subprocess.run([program, "say", "nameless"], stdout=f).returncode
    f.seek(0)
    print(code, f.read())
with open(here + "/shared", "w") as f:
    print("before", file=f, flush=True)
    subprocess.run([program, "say", "between"], stdout=f)
    print("after", file=f)
print(open(here + "/shared").read())
actions = [(os.POSIX_SPAWN_OPEN, 1, here + "/spawned", os.O_WRONLY | os.O_CREAT, 0o644)]
child = os.posix_spawn(program, ["static", "say", "spawned"], os.environ, file_actions=actions)
print(os.waitid(os.P_PID, child, os.WEXITED).si_status, open(here + "/spawned").read())
PY
fi
section an exec that fails late
# The child is stopped while the courier starts, for longer than the courier waits before it reads ahead.
if type -P python3 > /dev/null; then
  cp "$OUTER/static" "$OUTER/refused"; chmod 600 "$OUTER/refused"; seq 100000 > "$here/numbers"
  python3 - "$OUTER/refused" "$here/numbers" <<'PY'
import os, signal, sys, time
program, numbers = sys.argv[1:]
child = os.fork()
if child == 0:
    os.dup2(os.open(numbers, os.O_RDONLY), 0)
    before = os.read(0, 4)
    try:
        os.execv(program, ["refused", "cat"])
    except OSError as e:
        print(e.strerror, before, os.read(0, 4), os.lseek(0, 0, os.SEEK_CUR), flush=True)
    os._exit(0)
def has_child():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(open("/proc/%s/stat" % pid).read().rsplit(")", 1)[1].split()[1]) == child:
                return True
        except OSError:
            pass
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if has_child():
        os.kill(child, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
        break
PY
  rm "$OUTER/refused" "$here/numbers"
fi
section statuses
if type -P python3 > /dev/null; then
  python3 - "$OUTER/static" <<'PY'
import os, subprocess, sys, time
pool = os.environ.get("FOREBAY_DIR")
# A note about an earlier process with the child's number says nothing about the child.
r, w = os.pipe()
child = os.fork()
if child == 0:
    os.read(r, 1)
    os._exit(0)
if pool:
    os.makedirs(pool + "/couriers", exist_ok=True)
    note = "%s/couriers/%d-%d" % (pool, os.stat("/proc/self/ns/pid").st_ino, child)
    with open(note, "w") as f:
        f.write("1 %d 1\nlost" % os.getpid())
os.write(w, b"x")
print("of another", os.waitpid(child, 0)[1])
# Looked at twice, it is lost twice.
child = os.fork()
if child == 0:
    os.read(r, 1)
    os._exit(0)
if pool:
    start = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
    note = "%s/couriers/%d-%d" % (pool, os.stat("/proc/self/ns/pid").st_ino, child)
    with open(note, "w") as f:
        f.write("1 %d %s\nlost" % (os.getpid(), start))
os.write(w, b"x")
os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
looked = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT).si_status
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("twice", (looked, status) == ((74, 74) if pool else (0, 0)) or (looked, status))
PY
fi
section under strace
if type -P strace > /dev/null; then strace -f -o "$OUTER/trace" "$OUTER/static" say traced > "$here/traced"; cat "$here/traced" >&2; rm "$here/traced" "$OUTER/trace"; fi
section a descriptor that is received
cat > "$OUTER/pass.c" <<'C'
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
/* pass FILE RECEIVER: sends FILE, open for writing, to RECEIVER, which writes to it. */
int main(int argc, char **argv) {
  union { struct cmsghdr h; char b[CMSG_SPACE(sizeof(int))]; } c;
  char x = 'x'; struct iovec v = {&x, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c.b, .msg_controllen = sizeof c.b};
  if (argc == 2) {
    if (recvmsg(atoi(argv[1]), &m, 0) != 1 || !CMSG_FIRSTHDR(&m)) return 2;
    int fd; memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    if (write(fd, "received\n", 9) != 9) { printf("%s\n", strerror(errno)); return 3; }
    return 0;
  }
  int s[2], status, fd = open(argv[1], O_WRONLY | O_CREAT, 0644);
  socketpair(AF_UNIX, SOCK_STREAM, 0, s);
  if (fork() == 0) { char n[9]; sprintf(n, "%d", s[1]); close(fd); execl(argv[2], "receiver", n, (char *)0); _exit(9); }
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET; h->cmsg_type = SCM_RIGHTS; h->cmsg_len = CMSG_LEN(sizeof fd); memcpy(CMSG_DATA(h), &fd, sizeof fd);
  if (sendmsg(s[0], &m, 0) != 1) return 4;
  wait(&status); return WEXITSTATUS(status);
}
C
gcc -O1 -w -o "$OUTER/pass" "$OUTER/pass.c"; gcc -O1 -w -static -o "$OUTER/receive" "$OUTER/pass.c"
"$OUTER/pass" "$here/passed" "$OUTER/pass"; cat "$here/passed"
rc=0; "$OUTER/pass" "$here/unseen" "$OUTER/receive" > "$OUTER/err" || rc=$?
case "${FOREBAY_DIR:+preload} $rc $(cat "$OUTER/err") $(cat "$here/unseen")" in
  'preload 3 Bad file descriptor ' | ' 0  received') echo "as expected" ;;
  *) echo "exit code $rc, '$(cat "$OUTER/err")', '$(cat "$here/unseen")'" ;;
esac
rm "$here/unseen" "$OUTER"/{pass,receive,pass.c,err}
section what is impossible
# Input and output by one offset: only through a mount or outside.
exec 7<> "$here/two"; rc=0
"$OUTER/static" say two <&7 >&7 2> "$OUTER/err" || rc=$?
exec 7>&-
case "${FOREBAY_DIR:+preload} $rc $(grep -c 'forebay: .*not executed' "$OUTER/err") $(cat "$here/two")" in
  'preload 126 1 ' | ' 0 0 two') echo "as expected" ;;
  *) echo "exit code $rc, '$(cat "$here/two")'"; cat "$OUTER/err" ;;
esac
rm -f "$here/two" "$OUTER"/{static,pie,musl,musl-dynamic,dynamic,set,err,tool.c}; rm -rf "$OUTER/.config" "$OUTER/.cache" "$OUTER/go"
