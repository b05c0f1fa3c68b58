# needs: gcc python3
# Symbolic links on the plain file system that lead into $WORK: followed by every call, also
# dangling ones; what doesn't follow links sees the links.
source "$CASES/../lib.sh"
mkdir -p dir/sub empty; echo content > dir/file; echo deep > dir/sub/deep; printf '#!/bin/sh\necho ran "$@"\n' > dir/script; chmod +x dir/script
cd "$OUTER"; mkdir real
ln -s "$WORK/dir/file" file; ln -s "$WORK/dir" dir; ln -s "$WORK/dir/new" new; ln -s "$WORK/nowhere" nowhere; ln -s "$WORK/dir/script" script
ln -s ../dir real/up; ln -s real/up again; ln -s "$WORK/empty" empty; ln -s "$OUTER/back" "$WORK/dir/out"; ln -s "$WORK/dir/file" back; ln -s "$WORK/dir/circle" circle; ln -s "$OUTER/circle" "$WORK/dir/circle"

section reading
cat file dir/file dir/sub/deep real/up/file again/sub/deep dir/out "$OUTER/dir/../dir/file"; ls dir dir/ again/sub; fails cat nowhere; fails cat dir/none; fails cat dir/file/x; fails cat circle; fails cat none/file; (cd /; cat "$OUTER/dir/file"; fails cat "$OUTER/nowhere/x")
stat -c '%n %F' file dir new nowhere again; stat -L -c '%n %F' file dir again dir/sub; fails stat -L nowhere; [ -e file ] && [ ! -e new ] && [ -L new ] && [ -d dir ] && [ -x script ] && [ -f again/file ] && echo as it should be
readlink file; readlink -f file dir/sub again/sub/deep dir/out; realpath again; test file -ef "$WORK/dir/file" && echo the same; ls -l file | sed 's/.* file/file/'; find . -name '*e*' | sort; find -L dir | sort; ls -la dir/ | wc -l
section writing
echo made > new; cat "$WORK/dir/new"; echo more >> file; cat file; echo x > dir/sub/x; : > dir/y; mkdir dir/d; rmdir dir/d; (set -C; fails bash -c 'set -C; echo z > nowhere2/x'); touch -d 2011-01-01 dir/y; stat -c %Y dir/y; chmod 600 file; stat -L -c %a file; truncate -s 3 file; cat file; echo
mv dir/y dir/z; mv dir/z .; cat z; mv z dir/; ln dir/z dir/hard; ln -s file dir/soft; cat dir/soft; rm dir/hard dir/soft dir/z new; ls dir "$WORK/dir"; cp -r dir/sub copied; cat copied/deep; cp -a copied dir/; ls dir/copied; tar cf - dir/. | tar tf - | sort; rm -r dir/copied
echo again > new; rm new; ls "$WORK/dir"; echo s > nowhere; cat "$WORK/nowhere"; rm "$WORK/nowhere"
section directories
cd dir; pwd; pwd -P; /bin/pwd; cat file; cd ..; pwd; cd -P again/sub; pwd; cat deep; cd "$OUTER"; (cd empty && echo here > here && ls); ls "$WORK/empty"; (cd real/up/.. && ls); fails bash -c 'cd nowhere'; fails bash -c 'cd file' 2>&1 | tail -1
section running
./script a; dir/script b; (cd dir && ./script c); PATH=$OUTER/dir:$PATH script d; sh -c './again/script e'; fails ./nowhere
python3 - <<'P'
import os, shutil
def e(f, *a, **k):
    try: r = f(*a, **k); return r if isinstance(r, (str, int, bytes, list, type(None))) else "ok"
    except OSError as x: return x.strerror
print(e(os.lstat, "file"), os.path.islink("file"), e(os.stat, "file"), e(os.stat, "file", follow_symlinks=False))
fd = os.open(".", os.O_RDONLY)
print(e(lambda: os.read(os.open("dir/file", os.O_RDONLY, dir_fd=fd), 3)), sorted(os.listdir("dir/sub")), e(os.open, "file", os.O_RDONLY | os.O_NOFOLLOW), e(os.open, "new", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
print(e(os.mkdir, "new"), e(os.mkdir, "dir/m"), e(os.rename, "dir/m", "dir/n"), e(os.rmdir, "dir/n"), e(os.rmdir, "empty"), e(os.unlink, "dir/none"))
print(e(os.utime, "file", (1, 2)), os.stat("file").st_mtime, e(os.chmod, "again/file", 0o640), oct(os.stat("file").st_mode), e(os.access, "script", os.X_OK), e(os.access, "nowhere", os.F_OK))
print(e(os.symlink, "x", "dir/l"), e(os.readlink, "dir/l"), e(os.link, os.environ["WORK"] + "/dir/script", "dir/h"), e(os.unlink, "dir/l"), e(os.statvfs, "dir"), e(os.truncate, "file", 1), os.stat("file").st_size)
# The link itself is what isn't removed, renamed or made, also with a slash behind it.
vacant = os.environ["WORK"] + "/vacant"; os.mkdir(vacant); os.symlink(vacant, "vacant")
print(e(os.rmdir, "vacant/"), e(os.unlink, "vacant/"), e(os.rename, "vacant/", "moved"), e(os.mkdir, "vacant/"), os.path.isdir("vacant"), os.path.isdir("vacant/"))
os.rmdir(vacant); os.unlink("vacant")
print(e(os.chdir, "again"), os.getcwd(), e(os.chdir, fd), os.getcwd(), e(shutil.rmtree, "dir"), os.path.exists("dir/sub"))
print(e(os.rename, "dir/none", "real/sub"), e(os.rename, os.environ["WORK"] + "/dir/file", "dir/renamed"), sorted(os.listdir("dir")))
P
cat > t.c <<'C'
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
/* A thread that is cancelled while an open waits, in a call whose failure would be looked at. */
static void clean(void *p) { *(int *)p = 1; }
static void *wait(void *p) { pthread_cleanup_push(clean, p); open("fifo", O_RDONLY); pthread_cleanup_pop(0); return 0; }
int main(void) { int done = 0; pthread_t t; void *r; mkfifo("fifo", 0600); pthread_create(&t, 0, wait, &done); usleep(20000); pthread_cancel(t); pthread_join(t, &r); printf("%d %d\n", done, r == PTHREAD_CANCELED); return 0; }
C
gcc -o t t.c -pthread; ./t; rm t t.c fifo
section turning
# A link that leads to either side in turn while a file is made through it: it is made on one of both.
# (Not with an origin: the kernel has a directory at either end, and may get there first.)
[ -z "${ORIGIN:-}" ] || exit 0
mkdir -p "$WORK/side" side; cat > t.c <<'C'
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static const char *sides[2];
static atomic_int is_over;
static void set(int i) { unlink("link.new"); symlink(sides[i & 1], "link.new"); rename("link.new", "link"); }
static void *turn(void *p) { for (int i = 0; !is_over; i++) set(i); return p; }
int main(int n, char **a) {
  pthread_t t; int failed = 0, removed = 0; (void)n; sides[0] = a[1]; sides[1] = a[2]; set(0);
  pthread_create(&t, 0, turn, 0);
  for (int i = 0; i < 4000; i++) {
    int fd = open("link", O_CREAT | O_WRONLY, 0644);
    if (fd < 0) { if (!failed++) printf("%s\n", strerror(errno)); continue; }
    close(fd); removed += !unlink(sides[0]) + !unlink(sides[1]);
  }
  is_over = 1; pthread_join(t, 0); printf("%d failed, %d made\n", failed, removed); return 0;
}
C
gcc -O1 -o t t.c -pthread; ./t "$OUTER/side/f" "$WORK/side/f"; rm t t.c link; ls side "$WORK/side"
