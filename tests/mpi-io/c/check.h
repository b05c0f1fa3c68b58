/* What the programs share: ending with a reason, and reading a file back by plain POSIX calls. */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, ranks;
static const char *now = "start"; /* what is being tried */

static void fail(int line, const char *what, const char *why) {
  fprintf(stderr, "%s: rank %d, line %d: %s: %s\n", now, rank, line, what, why);
  fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

#define CHECK(x) do { if (!(x)) fail(__LINE__, #x, strerror(errno)); } while (0)

/* An MPI call that must succeed. */
#define OK(x) do { \
    int ok_rc = (x); \
    if (ok_rc != MPI_SUCCESS) { \
      char ok_why[MPI_MAX_ERROR_STRING]; int ok_n; \
      MPI_Error_string(ok_rc, ok_why, &ok_n); \
      fail(__LINE__, #x, ok_why); \
    } \
  } while (0)

/* One that must fail with an error of this class. */
#define FAILS(wanted, x) do { \
    int f_rc = (x), f_class = MPI_SUCCESS; \
    MPI_Error_class(f_rc, &f_class); \
    if (f_class != (wanted)) { \
      char f_why[MPI_MAX_ERROR_STRING]; int f_n; \
      MPI_Error_string(f_rc, f_why, &f_n); \
      fail(__LINE__, #x " did not fail with " #wanted, f_why); \
    } \
  } while (0)

static inline void *room(size_t size) {
  void *p = calloc(1, size ? size : 1);
  CHECK(p);
  return p;
}

static inline void compare(int line, const unsigned char *got, const unsigned char *wanted, size_t size, const char *what) {
  for (size_t i = 0; i < size; i++)
    if (got[i] != wanted[i]) {
      char why[120];
      snprintf(why, sizeof why, "byte %zu of %zu: %d, not %d", i, size, got[i], wanted[i]);
      fail(line, what, why);
    }
}
#define SAME(got, wanted, size) compare(__LINE__, (const void *)(got), (const void *)(wanted), size, #got)

/* Each rank, so each node, reads the whole file by POSIX calls: exactly these bytes. */
static inline void whole(int line, const char *path, const void *wanted, size_t size) {
  MPI_Barrier(MPI_COMM_WORLD);
  struct stat st;
  int fd = open(path, O_RDONLY);
  if (fd < 0) fail(line, path, strerror(errno));
  CHECK(!fstat(fd, &st));
  if ((size_t)st.st_size != size) {
    char why[80];
    snprintf(why, sizeof why, "%lld bytes, not %zu", (long long)st.st_size, size);
    fail(line, path, why);
  }
  unsigned char *got = room(size);
  for (size_t at = 0; at < size;) {
    ssize_t n = pread(fd, got + at, size - at, at);
    CHECK(n > 0);
    at += n;
  }
  compare(line, got, wanted, size, path);
  free(got);
  CHECK(!close(fd));
  MPI_Barrier(MPI_COMM_WORLD);
}
#define WHOLE(path, wanted, size) whole(__LINE__, path, wanted, size)

static inline void fill(unsigned char *p, size_t size, unsigned seed) {
  unsigned x = seed * 2654435761u + 1;
  for (size_t i = 0; i < size; i++) {
    x = x * 1664525u + 1013904223u;
    p[i] = x >> 24;
  }
}
