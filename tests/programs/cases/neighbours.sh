# needs: gcc python3
# media: memory
# Programs that bring other libraries with them: sanitizers, other mallocs, profilers that wrap calls, clocks that lie.
source "$CASES/../lib.sh"
cat > "$OUTER/files.c" <<'C'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>
static void *many(void *name) {
  char path[100];
  for (int i = 0; i < 50; i++) {
    snprintf(path, sizeof path, "%s-%d", (char *)name, i);
    FILE *f = fopen(path, "w");
    if (!f || fprintf(f, "%d\n", i) < 2 || fclose(f)) perror(path);
    if (i % 2) unlink(path);
  }
  return NULL;
}
int main(int argc, char **argv) {
  char *text = malloc(20), *names[] = { "a", "b", "c" };
  pthread_t threads[3];
  FILE *f = fopen("file", "w+");
  if (!f) { perror("file"); return 1; }
  fprintf(f, "hello %d\n", 42); rewind(f); printf("%s", fgets(text, 20, f)); fclose(f);
  for (int i = 0; i < 3; i++) pthread_create(threads + i, NULL, many, names[i]);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  fflush(stdout);
  if (fork() == 0) { f = fopen("file", "a"); fputs("child\n", f); fclose(f); free(text); exit(0); }
  wait(NULL);
  int fd = open("file", O_RDWR); char *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); m[0] = 'H'; munmap(m, 4096); close(fd);
  fflush(stdout); if (system("cat file; ls | wc -l")) perror("system");
  if (argc > 1) text[atoi(argv[1])] = 1;
  free(text); return 0;
}
C
for kind in address undefined thread leak; do
  section "$kind sanitizer"
  gcc -g -O1 -pthread "-fsanitize=$kind" -o "$OUTER/files" "$OUTER/files.c" || continue
  # ThreadSanitizer doesn't run where addresses are random in more bits than it knows; nothing to do with pools.
  [ "$kind" = thread ] && ! (cd "$OUTER"; ./files) > /dev/null 2>&1 && continue
  mkdir "$kind"; cd "$kind"; "$OUTER/files"; echo "exit code $?"; cd ..
  [ "$kind" = address ] && { cd "$kind"; "$OUTER/files" 25 2>&1 | grep -o 'ERROR: AddressSanitizer: [a-z-]* on' ; cd ..; }
done
(cd "$OUTER"; rm -f file ?-*)
gcc -g -O1 -pthread -o "$OUTER/files" "$OUTER/files.c"
for library in libjemalloc.so.2 libtcmalloc_minimal.so.4 libtcmalloc.so.4 libeatmydata.so; do
  for place in /lib /usr/lib; do
    for path in "$place"/*/"$library"; do [ -e "$path" ] && found=$path; done
  done
  [ -n "${found:-}" ] || continue
  echo "$found is here" >&2
  mkdir "$library"; cd "$library"
  LD_PRELOAD=$found "$OUTER/files" >&2
  LD_PRELOAD=$found python3 -c '
import mmap, os, sys, threading
def work(k):
    for i in range(50):
        with open("%d-%d" % (k, i), "wb") as f:
            f.write(b"x" * i * 100)
threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
assert sys.argv[1] in open("/proc/self/maps").read()
print(sum(os.path.getsize(n) for n in os.listdir(".")), os.popen("cat 0-1 | wc -c").read(), end="")' "$library" >&2
  found=; cd ..; rm -r "$library"
done
if type -P faketime > /dev/null; then faketime '2001-02-03 04:05:06' bash -c 'date +%F; touch dated; stat -c %y dated | cut -c1-19' >&2; rm -f dated; fi
section a profiler
cat > "$OUTER/profiler.c" <<'C'
/* As Darshan does: wraps calls, asks the loader for the next of their name, and reports at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static long opens, reads, writes, in, out;
static __thread int depth;
#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define OPEN(name) int name(const char *path, int flags, ...) { REAL(name); va_list a; va_start(a, flags); int mode = va_arg(a, int); va_end(a); \
  depth++; int fd = real(path, flags, mode); depth--; if (fd >= 0 && !strncmp(path, "data", 4)) __sync_fetch_and_add(&opens, 1); return fd; }
OPEN(open) OPEN(open64)
ssize_t read(int fd, void *to, size_t n) { REAL(read); ssize_t r = real(fd, to, n); if (r == 500) { reads++; in += r; } return r; }
ssize_t write(int fd, const void *from, size_t n) { REAL(write); ssize_t r = real(fd, from, n); if (r == 1000) { writes++; out += r; } return r; }
int close(int fd) { REAL(close); return real(fd); }
__attribute__((destructor)) static void report(void) {
  char path[100];
  snprintf(path, sizeof path, "report-%s", program_invocation_short_name);
  FILE *f = fopen(path, "a");
  if (f) { fprintf(f, "%ld opens, %ld reads of %ld bytes, %ld writes of %ld bytes\n", opens, reads, in, writes, out); fclose(f); }
}
C
gcc -shared -fPIC -O1 -w -o "$OUTER/profiler.so" "$OUTER/profiler.c" -ldl
LD_PRELOAD=$OUTER/profiler.so python3 -c '
import os
for i in range(10):
    f = os.open("data%d" % i, os.O_RDWR | os.O_CREAT); os.write(f, b"x" * 1000); os.lseek(f, 0, 0); os.read(f, 500); os.close(f)
os.system("cat data0 data1 > together; wc -c < together")'
cat report-python3 report-cat report-wc
section what libc has, once more
gcc -shared -fPIC -O1 -w -fno-builtin -o "$OUTER/wrapper.so" "$CASES/../c/wrapper.c" -ldl
LD_PRELOAD=$OUTER/wrapper.so bash -c 'echo many > wrapped; cp wrapped copied; mkdir some; mv copied some/; ls -l some | wc -l; cat wrapped some/copied; rm -r some wrapped'
LD_PRELOAD=$OUTER/wrapper.so python3 -c '
import mmap, os, threading
def work(k):
    for i in range(30):
        with open("%d-%d" % (k, i), "wb+") as f:
            f.write(b"x" * (i * 1000 + 1)); f.flush()
            m = mmap.mmap(f.fileno(), 0); m[0] = 121; m.flush(); m.close()
threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
names = [n for n in os.listdir(".") if n[0].isdigit()]
print(len(names), sum(os.path.getsize(n) for n in names)); [os.unlink(n) for n in names]'
rm report-* "$OUTER"/{profiler.so,wrapper.so,files}
