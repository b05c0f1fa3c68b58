# A small C project: compiled, archived, linked, made again in part, and run.
# needs: gcc make ar ranlib nm
# timeout: 120
set -euo pipefail
source "$CASES/../lib.sh"
mkdir -p proj/{src,include,lib}; cd proj
cat > include/text.h <<'C'
#ifndef TEXT_H
#define TEXT_H
#include "common.h"
int text_count(const char *path);
int text_upper(const char *from, const char *to);
#endif
C
cat > include/common.h <<'C'
#ifndef COMMON_H
#define COMMON_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); perror(#x); exit(9); } } while (0)
#endif
C
cat > include/dirs.h <<'C'
#include "common.h"
int dirs_count(const char *path);
C
cat > lib/text.c <<'C'
#include <ctype.h>
#include "text.h"
int text_count(const char *path) {
  FILE *f = fopen(path, "r"); int n = 0; char line[200];
  CHECK(f); while (fgets(line, sizeof line, f)) n++;
  CHECK(!ferror(f)); CHECK(!fclose(f)); return n;
}
int text_upper(const char *from, const char *to) {
  FILE *a = fopen(from, "r"), *b = fopen(to, "w"); int c, n = 0;
  CHECK(a && b); while ((c = getc(a)) != EOF) { putc(toupper(c), b); n++; }
  CHECK(!fclose(a)); CHECK(!fclose(b)); return n;
}
C
cat > lib/dirs.c <<'C'
#include <dirent.h>
#include "dirs.h"
int dirs_count(const char *path) {
  DIR *d = opendir(path); struct dirent *e; int n = 0; long where;
  CHECK(d); while ((e = readdir(d))) { CHECK(strlen(e->d_name) > 0); n++; }
  rewinddir(d); CHECK(readdir(d)); where = telldir(d); e = readdir(d);
  if (e) { char name[256]; strcpy(name, e->d_name); seekdir(d, where); e = readdir(d); CHECK(e && !strcmp(name, e->d_name)); }
  CHECK(dirfd(d) >= 0); CHECK(!closedir(d)); return n;
}
C
cat > src/stdio.c <<'C'
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "text.h"
#include "dirs.h"
int run_stdio(void) {
  FILE *f = fopen("s", "w+"); char b[100]; long p; fpos_t fp; char *line = NULL; size_t cap = 0; int v, fd, i;
  CHECK(f); for (i = 0; i < 5000; i++) CHECK(fprintf(f, "line %d\n", i) > 0);
  p = ftell(f); printf("tell %ld\n", p); CHECK(!fseek(f, 7 * 3, SEEK_SET)); CHECK(fgets(b, 100, f)); printf("%s", b);
  CHECK(!fgetpos(f, &fp)); CHECK(fscanf(f, "line %d\n", &v) == 1); printf("scanned %d\n", v); CHECK(!fsetpos(f, &fp)); CHECK(getline(&line, &cap, f) > 0); printf("%s", line); free(line);
  CHECK(!fseek(f, -4, SEEK_END)); printf("read %zu\n", fread(b, 1, 100, f)); printf("eof %d\n", !!feof(f)); clearerr(f);
  CHECK(!fseeko(f, 0, SEEK_SET)); CHECK(fwrite("LINE", 4, 1, f) == 1); CHECK(!fflush(f)); CHECK(!ftruncate(fileno(f), 1000)); CHECK(!fclose(f));
  printf("count %d\n", text_count("s")); printf("upper %d\n", text_upper("s", "S")); printf("count %d\n", text_count("S"));
  f = fopen("s", "a"); CHECK(f); setvbuf(f, NULL, _IOLBF, 0); fputs("appended\n", f); CHECK(!fclose(f)); f = fopen("s", "rx"); CHECK(f); CHECK(!fclose(f)); f = fopen("s", "wx"); printf("exclusive %s\n", f ? "made" : strerror(errno));
  f = fopen("s", "r"); CHECK(f); f = freopen("S", "r", f); CHECK(f); CHECK(fgets(b, 100, f)); printf("reopened %s", b); CHECK(!fclose(f));
  fd = open("s", O_RDWR); f = fdopen(fd, "r+"); CHECK(f); CHECK(!fseek(f, 995, SEEK_SET)); CHECK(fgets(b, 100, f)); printf("fdopen %s", b); CHECK(!fclose(f)); CHECK(fcntl(fd, F_GETFD) < 0);
  f = fopen("missing", "r"); printf("%s\n", f ? "?" : strerror(errno)); f = fopen("nowhere/x", "w"); printf("%s\n", f ? "?" : strerror(errno)); CHECK(!remove("S")); CHECK(!rename("s", "t")); CHECK(access("s", F_OK) < 0 && !access("t", R_OK | W_OK));
  f = tmpfile(); CHECK(f); fputs("tmp", f); rewind(f); CHECK(fgets(b, 10, f)); printf("%s\n", b); CHECK(!fclose(f)); strcpy(b, "mk-XXXXXX"); fd = mkstemp(b); CHECK(fd >= 0); CHECK(!close(fd)); CHECK(!unlink(b)); strcpy(b, "md-XXXXXX"); CHECK(mkdtemp(b)); CHECK(!rmdir(b));
  return 0;
}
static int seen; static int visit(const char *p, const struct stat *s, int t, struct FTW *w) { (void)p; (void)s; (void)w; seen += t == FTW_F || t == FTW_SL ? 1 : 100; return 0; }
int run_calls(void) {
  char b[100], path[4096]; struct stat s, s2; struct iovec v[2]; int fd, fd2, i; glob_t g; off_t o;
  CHECK(!mkdir("dir", 0755)); for (i = 0; i < 300; i++) { sprintf(b, "dir/f%03d", i); fd = creat(b, 0644); CHECK(fd >= 0); CHECK(write(fd, b, strlen(b)) == 8); CHECK(!close(fd)); }
  printf("entries %d\n", dirs_count("dir")); CHECK(!symlink("f001", "dir/link")); CHECK(!nftw("dir", visit, 8, FTW_PHYS)); printf("visited %d\n", seen); CHECK(!glob("dir/f00*", 0, NULL, &g)); printf("globbed %zu %s\n", g.gl_pathc, g.gl_pathv[3]); globfree(&g);
  fd = open("dir/f000", O_RDWR); CHECK(fd >= 0); o = lseek(fd, 100000, SEEK_SET); CHECK(o == 100000); CHECK(write(fd, "!", 1) == 1); CHECK(lseek(fd, -3, SEEK_CUR) == 99998); CHECK(read(fd, b, 10) == 3 && b[0] == 0 && b[2] == '!'); CHECK(lseek(fd, -5, SEEK_SET) < 0 && errno == EINVAL);
  CHECK(!fstat(fd, &s)); printf("size %lld\n", (long long)s.st_size); fd2 = dup(fd); CHECK(lseek(fd2, 4, SEEK_SET) == 4 && lseek(fd, 0, SEEK_CUR) == 4); v[0].iov_base = b; v[0].iov_len = 2; v[1].iov_base = b + 10; v[1].iov_len = 2; CHECK(readv(fd, v, 2) == 4); printf("%.2s%.2s\n", b, b + 10); CHECK(!close(fd)); CHECK(pread(fd2, b, 3, 0) == 3);
  CHECK(!unlink("dir/f000")); CHECK(write(fd2, "after unlink", 12) == 12); CHECK(pread(fd2, b, 12, 8) == 12); b[12] = 0; printf("%s\n", b); CHECK(!fstat(fd2, &s)); printf("links %d\n", (int)s.st_nlink); CHECK(stat("dir/f000", &s2) < 0 && errno == ENOENT); CHECK(!ftruncate(fd2, 5)); CHECK(!fstat(fd2, &s) && s.st_size == 5); CHECK(!close(fd2));
  CHECK(!rename("dir/f002", "dir/f003")); CHECK(rename("dir", "dir/x") < 0 && errno == EINVAL); CHECK(!rename("dir", "dir2")); CHECK(rmdir("dir2") < 0 && errno == ENOTEMPTY); CHECK(!chdir("dir2")); CHECK(getcwd(path, sizeof path)); printf("%s\n", strrchr(path, '/')); CHECK(realpath("link", path)); printf("%s\n", strrchr(path, '/')); CHECK(!chdir("..")); CHECK(readlink("dir2/link", b, 100) == 4);
  fd = open("dir2", O_RDONLY | O_DIRECTORY); fd2 = openat(fd, "f005", O_RDWR | O_TRUNC); CHECK(fd2 >= 0); CHECK(write(fd2, "at", 2) == 2); CHECK(!close(fd2)); CHECK(!fstatat(fd, "f005", &s, 0) && s.st_size == 2); CHECK(!faccessat(fd, "f005", R_OK, 0)); CHECK(!unlinkat(fd, "f005", 0)); CHECK(!renameat(fd, "f006", fd, "f005")); CHECK(!fchdir(fd)); CHECK(!access("f005", F_OK)); CHECK(!chdir("..")); CHECK(!close(fd)); printf("entries %d\n", dirs_count("dir2"));
  return 0;
}
C
cat > src/procs.c <<'C'
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "text.h"
static void append(int k) {
  char line[64]; int i, n, fd = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644); CHECK(fd >= 0);
  for (i = 0; i < 250; i++) { n = sprintf(line, "process %d line %d %.*s\n", k, i, i % 30, "..............................."); CHECK(write(fd, line, n) == n); }
  CHECK(!close(fd));
}
static void locked(void) {
  int i, fd, n; char b[20];
  for (i = 0; i < 25; i++) {
    while ((fd = open("lock", O_CREAT | O_EXCL | O_WRONLY, 0600)) < 0) { CHECK(errno == EEXIST); usleep(200); }
    CHECK(!close(fd)); fd = open("counter", O_RDWR | O_CREAT, 0644); CHECK(fd >= 0); n = read(fd, b, 19); CHECK(n >= 0); b[n] = 0;
    n = sprintf(b, "%d", atoi(b) + 1); CHECK(pwrite(fd, b, n, 0) == n); CHECK(!close(fd)); CHECK(!unlink("lock"));
  }
}
int run_procs(void) {
  int i, status, bad = 0; pid_t p;
  fflush(stdout);
  for (i = 0; i < 4; i++) { p = fork(); CHECK(p >= 0); if (!p) { append(i); locked(); _exit(0); } }
  while (wait(&status) > 0) bad += status != 0;
  printf("bad %d lines %d counter lines %d\n", bad, text_count("log"), text_count("counter")); return bad;
}
C
cat > src/main.c <<'C'
#include "common.h"
int run_stdio(void); int run_calls(void); int run_procs(void);
int main(int argc, char **argv) {
  printf("%d arguments, %s\n", argc, strrchr(argv[0], '/'));
  return run_stdio() || run_calls() || run_procs();
}
C
cat > Makefile <<'M'
CFLAGS = -O1 -D_GNU_SOURCE -Wall -Iinclude
OBJ = src/main.o src/stdio.o src/procs.o
LIB = lib/text.o lib/dirs.o
all: demo
demo: $(OBJ) liball.a ; @echo link; $(CC) -o $@ $(OBJ) -L. -lall
liball.a: $(LIB) ; @echo archive; rm -f $@; ar rcsD $@ $(LIB)
%.o: %.c ; @echo compile $<; $(CC) $(CFLAGS) -MMD -MP -c -o $@ $<
clean: ; rm -f demo liball.a $(OBJ) $(LIB) $(OBJ:.o=.d) $(LIB:.o=.d)
.SILENT:
-include $(OBJ:.o=.d) $(LIB:.o=.d)
M
find . -type f -exec touch -d '2010-01-01' {} +

section build
make -j2 | sort; ls src lib; nm liball.a | awk '/ T /{print $3}'; ar t liball.a; sha256sum < demo > first
make -q && echo up to date; make | sed "s/make\[[0-9]*\]/make/"
touch include/dirs.h; make -n | grep -c compile; make -j2 | sort
sleep 0.02; touch include/common.h; make -j2 | sort
sleep 0.02; echo '/* more */' >> lib/text.c; make | sort; sha256sum < demo | cmp - first && echo reproducible
sleep 0.02; touch liball.a; make; make -q && echo up to date; rm lib/text.o; make -j2

section run
mkdir ../run; cd ../run; TMPDIR=. ../proj/demo a b; sort -V log > log.sorted; uniq log.sorted | wc -l; rm log; cat counter; echo; awk '{print NF}' log.sorted | sort | uniq -c | awk '{$1=$1; print}'
cd ../proj; sed -i 's/return 0/return 0 +/' lib/nothing.c 2> /dev/null || echo none; sed -i 's/return n;/return n/' lib/dirs.c
fails make 2>&1 | grep -c "error: expected" || true
sed -i 's/return n$/return n; /; s/return n }/return n; }/' lib/dirs.c; make -j2 > /dev/null 2>&1 && echo mended || { cat lib/dirs.c; false; }
gcc -D_GNU_SOURCE -shared -fPIC -Iinclude -o libshared.so lib/*.c && nm -D --defined-only libshared.so | wc -l
strip -o stripped demo && [ "$(stat -c %s stripped)" -lt "$(stat -c %s demo)" ] && echo stripped; objcopy demo copied && cmp -s demo copied; gcc -E -Iinclude src/main.c | grep -c run_; gcc -S -Iinclude -o - src/main.c | grep -c main:
make clean; ls . src lib
rm -f stripped copied
