# needs: gcc
# Programs whose shared libraries lie beside them: every way by which the loader finds one
# at start, and dlopen afterwards. Both programs and libraries in $WORK, or one of them in $OUTER.
source "$CASES/../lib.sh"
mkdir bin lib other deps
cat > deps/dep.c <<'C'
int dep(void) { return 7; }
C
cat > lib.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int dep(void);
static int seen;
__attribute__((constructor)) static void begin(void) {
  char path[4096]; FILE *f; snprintf(path, sizeof path, "%s/lib.c", getenv("WORK"));
  f = fopen(path, "r"); seen = f != NULL; if (f) fclose(f);
}
const char *where(void) { Dl_info i; return dladdr((void *)where, &i) ? i.dli_fname : "?"; }
int value(void) { return 100 * VALUE + 10 * seen + dep(); }
C
cat > main.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int value(void); const char *where(void);
static int count(struct dl_phdr_info *i, size_t n, void *d) { (void)n; *(int *)d += strstr(i->dlpi_name, "libv.so") != NULL; return 0; }
int main(int argc, char **argv) {
  int n = 0, k; dl_iterate_phdr(count, &n);
  printf("%d from %s, loaded %d times\n", value(), where(), n);
  for (k = 1; k < argc; k++) {
    void *h = dlopen(argv[k], RTLD_NOW); const char *(*w)(void);
    if (!h) { printf("%s\n", dlerror()); continue; }
    w = (const char *(*)(void))dlsym(h, "where"); n = 0; dl_iterate_phdr(count, &n);
    printf("dlopen %s: %s, loaded %d times\n", argv[k], w ? w() : "nothing there", n);
  }
  printf("audit %s early %s\n", getenv("LD_AUDIT") ? "set" : "unset", getenv("FOREBAY_EARLY") ? "set" : "unset");
  return 0;
}
C
gcc -shared -fPIC -o deps/libdep.so deps/dep.c
v() { gcc -shared -fPIC -DVALUE="$1" -o "$2/libv.so" lib.c -Ldeps -ldep -Wl,-rpath,'$ORIGIN/../deps' -Wl,-soname,libv.so; }
v 1 lib; v 2 other
prog() { local out=$1; shift; gcc -o "$out" main.c -Llib -lv -Wl,-rpath-link,deps "$@"; }
prog bin/plain; prog bin/runpath "-Wl,-rpath,$WORK/lib"; prog bin/rpath -Wl,--disable-new-dtags "-Wl,-rpath,$WORK/lib"
prog bin/origin '-Wl,-rpath,$ORIGIN/../lib'; prog bin/origin-rpath -Wl,--disable-new-dtags '-Wl,-rpath,${ORIGIN}/../nowhere:${ORIGIN}/../lib'
prog bin/origin-nopie -no-pie '-Wl,-rpath,$ORIGIN/../lib'; prog bin/stripped -s '-Wl,-rpath,$ORIGIN/../lib'
gcc -shared -fPIC -DVALUE=3 -o other/libnoname.so lib.c -Ldeps -ldep -Wl,-rpath,'$ORIGIN/../deps'
gcc -o bin/slash main.c other/libnoname.so -Wl,-rpath-link,deps
gcc -o bin/absolute main.c "$WORK/other/libnoname.so" -Wl,-rpath-link,deps

section search path
fails bin/plain; LD_LIBRARY_PATH=$WORK/lib bin/plain; LD_LIBRARY_PATH=/nowhere:$WORK/other:$WORK/lib bin/plain
(cd lib && LD_LIBRARY_PATH=. ../bin/plain; LD_LIBRARY_PATH=../other: ../bin/plain); LD_LIBRARY_PATH=other bin/plain
section runpath and rpath
for p in runpath rpath origin origin-rpath origin-nopie stripped absolute; do echo "$p:"; bin/$p; LD_LIBRARY_PATH=$WORK/other bin/$p; done
echo slash:; bin/slash; (cd bin; fails ./slash)
ln -s ../bin/origin other/link; other/link; cp bin/origin other/copy; other/copy; mv lib lib2; fails bin/origin; mv lib2 lib
section preloaded
LD_PRELOAD="$LD_PRELOAD $WORK/other/libv.so" bin/origin; LD_PRELOAD="$LD_PRELOAD:other/libv.so" bin/origin
section opened later
bin/origin libv.so "$WORK/lib/libv.so" lib/libv.so "$WORK/other/libv.so" ./bin/../other/libv.so libnone.so '$ORIGIN/../other/libnoname.so'
LD_LIBRARY_PATH=$WORK/other bin/plain libnoname.so
section outside
cp bin/plain bin/runpath "$OUTER"; LD_LIBRARY_PATH=$WORK/lib "$OUTER/plain"; "$OUTER/runpath"
cp -r lib deps "$OUTER"; prog bin/away "-Wl,-rpath,$OUTER/lib"; bin/away; cp bin/origin "$OUTER/lib"; "$OUTER/lib/origin"
ln -s "$WORK/lib" "$OUTER/into"; LD_LIBRARY_PATH=$OUTER/into bin/plain; rm "$OUTER/into"
section thread-local storage
cat > tls.c <<'C'
__thread char big[50000] __attribute__((tls_model("initial-exec"))) = "big"; __thread int small = 3;
char *tls(int n) { small += n; return big + n; }
C
cat > threads.c <<'C'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
char *tls(int n); extern __thread int small;
static void *run(void *p) { munmap(mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 8192); free(malloc(100)); char *b = tls(0); if (b[0] != 'b') abort(); b[0] = 'x'; small++; memset(tls(1), 1, 49000); return b == tls(0) ? p : 0; }
int main(int argc, char **argv) {
  pthread_t t[8]; int i; void *r; const char *tunables = getenv("GLIBC_TUNABLES");
  for (i = 0; i < 8; i++) if (pthread_create(t + i, 0, run, t)) return 1;
  for (i = 0; i < 8; i++) { pthread_join(t[i], &r); if (r != t) return 2; }
  printf("%s %d, %s %d, tunables %s, left %s\n", tls(0), small, argv[argc - 1], argc, tunables ? tunables : "none", getenv("FOREBAY_STATIC_TLS") ? "something" : "nothing"); return 0;
}
C
gcc -shared -fPIC -o lib/libtls.so tls.c; gcc -o bin/threads threads.c -Llib -ltls -pthread; cp bin/threads "$OUTER"
export LD_LIBRARY_PATH=$WORK/lib; bin/threads a b; "$OUTER/threads" c; GLIBC_TUNABLES=glibc.malloc.check=0 bin/threads; GLIBC_TUNABLES= "$OUTER/threads"; bash -c 'exec -a other bin/threads | sed "s/1,/one,/"'
unset LD_LIBRARY_PATH
section small stacks
cat > small.c <<'C'
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int value(void);
static void *run(void *p) { int fd; munmap(mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 8192); free(malloc(100)); fd = open(p, O_RDONLY); return fd >= 0 && !close(fd) && access("none", F_OK) < 0 ? p : 0; }
int main(int argc, char **argv) {
  pthread_t t[40]; pthread_attr_t a; int i, good = 0; void *r; pthread_attr_init(&a); pthread_attr_setstacksize(&a, 65536);
  for (i = 0; i < 40; i++) if (pthread_create(t + i, &a, run, argv[argc - 1])) return 1;
  for (i = 0; i < 40; i++) { pthread_join(t[i], &r); good += r == argv[argc - 1]; }
  printf("%d threads, %d\n", good, value()); return 0;
}
C
gcc -o small small.c -Llib -lv -Wl,-rpath-link,deps '-Wl,-rpath,$ORIGIN/lib' -pthread; ./small lib.c; cp small "$OUTER"; LD_LIBRARY_PATH=$WORK/lib "$OUTER/small" lib.c
section gone while it runs
cat > stay.c <<'C'
#include <stdio.h>
#include <unistd.h>
int value(void);
int main(void) { char b[2]; puts("ready"); fflush(stdout); if (read(0, b, 1) != 1) return 1; printf("%d\n", value()); return 0; }
C
gcc -o stay stay.c -Llib -lv -Wl,-rpath-link,deps '-Wl,-rpath,$ORIGIN/lib'
mkfifo "$OUTER/say" "$OUTER/hear"; ./stay < "$OUTER/say" > "$OUTER/hear" & exec 5> "$OUTER/say" 6< "$OUTER/hear"
read -r line <&6; echo "$line"; rm lib/libv.so deps/libdep.so; for i in 1 2 3 4; do head -c 3000000 /dev/zero | tr '\0' x > "fill$i"; done; echo >&5; cat <&6; wait; rm fill? "$OUTER/say" "$OUTER/hear"
rm -r bin "$OUTER"/*
