# needs: gcc gdb strace
# media: memory
# A program under gdb, strace and (where it is installed) valgrind.
source "$CASES/../lib.sh"
cat > program.c <<'C'
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv) {
  FILE *f = fopen("numbers", "w");
  for (int i = 0; i < 1000; i++) fprintf(f, "%d\n", i);
  fclose(f);
  struct stat s; stat("numbers", &s); printf("%d bytes\n", (int)s.st_size);
  int fd = open("numbers", O_RDWR);
  char b[4] = "", *m = mmap(NULL, s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  m[0] = '9'; munmap(m, s.st_size); if (pread(fd, b, 3, 0) != 3) return 2; printf("%.1s\n", b); close(fd);
  DIR *d = opendir("."); int n = 0; while (readdir(d)) n++; closedir(d); printf("%d entries\n", n);
  if (argc > 1) { char *p = malloc(10); if (p[11] == 'x') puts("x"); free(p); }
  return 0;
}
C
gcc -g -O0 -w -o program program.c; cp program "$OUTER/program"
for p in ./program "$OUTER/program"; do
  section gdb
  gdb -nx -batch -ex 'set debuginfod enabled off' -ex 'break main' -ex run -ex 'next 3' -ex 'print argc' -ex 'tbreak 16' -ex continue -ex 'print s.st_size' -ex 'print b' -ex continue "$p" 2>&1 |
    grep -E '^(\$|[0-9]+ (bytes|entries)|\[Inferior)' | sed 's/process [0-9]*/process/'
  section strace
  strace -f -o "$OUTER/trace" -e trace=execve,execveat "$p" > out; cat out; grep -c ' execve.*= 0$' "$OUTER/trace"; rm "$OUTER/trace"
done
section the loader
cp program "$OUTER/program"; ldd ./program | sed -n 's/ => .*//p' | grep -c libc.so; /lib64/ld-linux-x86-64.so.2 ./program; /lib64/ld-linux-x86-64.so.2 --library-path /tmp "$WORK/program"
if type -P valgrind > /dev/null; then
  echo "valgrind is here" >&2
  # Not for a program in the pool: valgrind, which is no program of libc's, reads its file.
  for p in "$OUTER/program"; do
    valgrind -q --error-exitcode=5 "$p" > out 2> "$OUTER/errors"; cat out >&2; echo "valgrind: $?, $(wc -l < "$OUTER/errors") lines" >&2
    [ ! -s "$OUTER/errors" ] || { cat "$OUTER/errors" >&2; exit 1; }
    valgrind -q --error-exitcode=5 "$p" bad > /dev/null 2> "$OUTER/errors" && exit 1
    grep -q 'Invalid read of size 1' "$OUTER/errors"
  done
  # Of a program in the pool a line says why valgrind doesn't find it.
  rc=0; valgrind -q ./program > out 2> "$OUTER/errors" || rc=$?
  case "${FOREBAY_DIR:+preload} $rc $(grep -c 'forebay: .*valgrind.*--with-mount' "$OUTER/errors")" in
    'preload 127 1' | ' 0 0') echo "valgrind: as expected" >&2 ;;
    *) echo "valgrind: $rc"; cat "$OUTER/errors" ;;
  esac
  rm "$OUTER/errors"
fi
rm -f out "$OUTER/program" program
