# needs: gcc python3
# Executing what lies in $WORK in every way, what a program finds out about itself, and the errors.
source "$CASES/../lib.sh"
mkdir bin sub; echo 'echo "script $0, $# arguments: $*"' > body
cat > self.c <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv) {
  char b[PATH_MAX + 1], name[17], p[64]; struct stat s, t; int i, fd;
  ssize_t n = readlink("/proc/self/exe", b, PATH_MAX); b[n < 0 ? 0 : n] = 0; prctl(PR_GET_NAME, name);
  printf("%s:", argv[0]); for (i = 1; i < argc; i++) printf(" [%s]", argv[i]); printf("\n");
  printf("  exe %s, real %s, name %s, file %s\n", b, realpath("/proc/self/exe", NULL), name, strncmp((char *)getauxval(AT_EXECFN), "/dev/fd/", 8) ? (char *)getauxval(AT_EXECFN) : "by descriptor");
  sprintf(p, "/proc/%d/exe", (int)getpid()); n = readlink(p, b, 5); printf("  cut %d", (int)n);
  printf(", link %d", lstat("/proc/self/exe", &s) == 0 && S_ISLNK(s.st_mode)); n = readlink("/proc/thread-self/exe", b, PATH_MAX); b[n < 0 ? 0 : n] = 0;
  printf(", same %d", stat("/proc/self/exe", &s) == 0 && stat(b, &t) == 0 && s.st_ino == t.st_ino && s.st_dev == t.st_dev);
  fd = open("/proc/self/exe", O_RDONLY); n = read(fd, b, 4); printf(", reads %d, writes %s\n", (int)n, open("/proc/self/exe", O_WRONLY) < 0 ? "no" : "yes");
  if (argc > 1 && !strcmp(argv[1], "again")) { argv[1] = "once"; execv("/proc/self/exe", argv); perror("execv"); }
  return 0;
}
C
sed 's/, writes %s\\n", (int)n, .*);/\\n", (int)n);/' self.c > bin/self.c; gcc -o bin/self bin/self.c; ln -s ../bin/self sub/link
cat > run.c <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static int ended(pid_t p) { int s; while (waitpid(p, &s, 0) < 0 && errno == EINTR); return WIFEXITED(s) ? WEXITSTATUS(s) : -WTERMSIG(s); }
int main(int argc, char **argv) {
  char *how = argv[1], *file = argv[2]; char **args = argv + 2; int fd, r = -1, vf; pid_t p; fflush(stdout);
  vf = !strncmp(how, "vfork", 5); how += vf ? 5 : 0;
  if (!strcmp(how, "spawn")) { r = posix_spawn(&p, file, NULL, NULL, args, environ); if (r) printf("spawn: %s\n", strerror(r)); else printf("  = %d\n", ended(p)); return 0; }
  if (!strcmp(how, "spawnp")) { r = posix_spawnp(&p, file, NULL, NULL, args, environ); if (r) printf("spawnp: %s\n", strerror(r)); else printf("  = %d\n", ended(p)); return 0; }
  volatile int error = 0; p = vf ? vfork() : fork();
  if (p == 0) {
    if (!strcmp(how, "path")) execve(file, args, environ);
    else if (!strcmp(how, "search")) execvp(file, args);
    else if (!strcmp(how, "fexecve")) { fd = open(file, O_RDONLY | O_CLOEXEC); fexecve(fd, args, environ); }
    else if (!strcmp(how, "keep")) { fd = open(file, O_RDONLY); fexecve(fd, args, environ); }
    else if (!strcmp(how, "opath")) { fd = open(file, O_PATH | O_CLOEXEC); execveat(fd, "", args, environ, AT_EMPTY_PATH); }
    else if (!strcmp(how, "at")) { fd = open("sub", O_PATH | O_DIRECTORY); execveat(fd, file, args, environ, 0); }
    else if (!strcmp(how, "atnofollow")) { execveat(AT_FDCWD, file, args, environ, AT_SYMLINK_NOFOLLOW); }
    else if (!strcmp(how, "fd")) { char b[40]; fd = open(file, O_RDONLY); sprintf(b, "/proc/self/fd/%d", fd); execv(b, args); }
    else if (!strcmp(how, "noargs")) { char *none[] = { NULL }; execve(file, none, environ); }
    else if (!strcmp(how, "big")) { char *b = malloc(4 << 20), *a[] = { file, b, NULL }; memset(b, 'x', 4 << 20); b[(4 << 20) - 1] = 0; execve(file, a, environ); }
    error = errno; if (!vf) printf("%s %s: %s\n", how, file, strerror(error)); fflush(stdout); _exit(vf ? 99 : 98);
  }
  r = ended(p); if (vf && error) printf("vfork %s %s: %s\n", how, file, strerror(error)); printf("  = %d\n", r); return 0;
}
C
gcc -o run run.c
script() { printf '%s\n' "$2" > "$1"; cat body >> "$1"; chmod +x "$1"; }
script bin/script '#!/bin/sh'; script bin/arg '#! /bin/sh  -e '; script bin/inside "#!$WORK/bin/self one  two "; ln -s bin/inside chain1
script bin/relative '#!bin/self rel'; script bin/env '#!/usr/bin/env -S sh -e'; script bin/chain "#!$WORK/bin/inside more"; script bin/crlf $'#!/bin/sh\r'; script bin/missing '#!/nowhere/sh'; script bin/bad '#!'
printf '#!/bin/sh' > bin/noline; printf '#!%s' "$WORK/bin/self" > bin/noline2; printf '#! \n' > bin/blank; cp body bin/plain; : > bin/empty; chmod +x bin/*; cp bin/self bin/noexec; cp bin/script bin/noexec.sh; chmod -x bin/noexec*; mkdir bin/dir
script 'bin/a script with a long name' '#!/bin/sh'
p=$WORK/bin/self; for i in 1 2 3 4 5 6; do printf '#!%s %s\n' "$p" $i > "bin/loop$i"; chmod +x "bin/loop$i"; p=$WORK/bin/loop$i; done
ln -s loop bin/loop; ln -s /bin/echo bin/echo; ln -s "$WORK/bin/script" "$OUTER/into"; script "$OUTER/away" "#!$WORK/bin/self out"; script "$OUTER/noexec" "#!$WORK/bin/self out"; chmod -x "$OUTER/noexec"; cp bin/self "$OUTER/self"; script bin/outer "#!$OUTER/self"; script bin/through "#!$OUTER/into"

section what a program finds
bin/self a b; ./sub/link; (cd bin; ./self; self() { :; }; PATH=.:$PATH command self x); sub/../bin/self; "$WORK/bin/self"; PATH=$WORK/sub:$PATH link; bash -c 'exec -a other bin/self'; bin/self again; sub/link again
cp bin/self moved; ./run path moved again; mv moved moved2; cp bin/self sub/hard; ln sub/hard hard; ./hard; python3 -c 'import os; os.execv("bin/self", ["zero", "", "x y"])'
section every way
short() { sed 's|/dev/fd/[0-9]*|FD|; s|/proc/self/fd/[0-9]*|FD|; s/, name .*//'; }
for how in path vforkpath spawn spawnp keep fd vforkfd; do for f in bin/self sub/link bin/script bin/inside; do echo "$how $f"; ./run $how $f x | short; done; done
for how in fexecve vforkfexecve opath; do for f in bin/self sub/link; do echo "$how $f"; ./run $how $f x | short; done; done
{ ./run at link x; ./run at ../bin/self; } | short
./run atnofollow bin/self; ./run atnofollow sub/link; ./run noargs bin/self | head -1; PATH=bin:$PATH ./run search script y; PATH=bin ./run search plain y; PATH=bin ./run spawnp plain y; PATH=nowhere:bin:$PATH ./run vforksearch self z
section scripts
for f in script arg inside relative env chain crlf missing bad noline noline2 blank plain empty outer through 'a script with a long name'; do echo "$f"; ./run path "bin/$f" x y 2>&1; done
chain1 2>/dev/null || ./chain1 z; for i in 1 4 5 6; do echo loop$i; ./run path bin/loop$i e; done; bin/plain q; bash -c 'bin/empty; echo $?; bin/plain r'; sh -c 'bin/plain s'
"$OUTER/into" a; "$OUTER/away" b; ./run path "$OUTER/into" c; ./run spawn "$OUTER/away" d; ./run path "$OUTER/noexec"; ./run path bin/echo through a link
section a script\'s name; echo 'cat /proc/$$/comm' > body; script bin/named.sh '#!/bin/bash'; bin/named.sh; script bin/named-inside.sh "#!$WORK/bin/bash"; cp /bin/bash bin/; bin/named-inside.sh; PATH=$PATH:$WORK/bin named.sh
section errors
for f in nowhere bin/nowhere bin/self/x bin/noexec bin/noexec.sh bin/dir bin bin/loop '' "bin/$(printf '%0300d' 0)"; do for how in path vforkpath spawn; do ./run $how "$f"; done; done; ./run big bin/self; ./run big bin/script
fails bin/noexec; fails bin/dir; fails bin/nowhere; fails bin/missing; fails bin/crlf
section limits
bash -c 'ulimit -v 3000000; bin/self; bin/inside'; bash -c 'ulimit -n 40; bin/self'; python3 - <<'P'
import os, subprocess, sys
print(subprocess.run(["bin/self"], close_fds=True, stdout=subprocess.PIPE).stdout.count(b"\n"))
print(subprocess.run(["./self"], cwd="bin", pass_fds=(), stdout=subprocess.PIPE).stdout.count(b"\n"))
fd = os.open("body", os.O_RDONLY); os.set_inheritable(fd, True); gone = os.open("body", os.O_RDONLY)
print(subprocess.run(["bin/bash", "-c", "cat <&%d; cat <&%d" % (fd, gone)], close_fds=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE).returncode)
P
gcc -static -o bin/static self.c && bin/static a | sed -n 1p
rm -r bin run "$OUTER"/* sub/hard hard moved2
