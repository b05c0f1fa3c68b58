/* Children of clone that share memory and thread area with their parent while both run, on the same and on other files.
 *   beside files|copy|fork|exec ROUNDS: with one table of descriptors, with a copy of it, with children of their own
 *   beside many CHILDREN: so many at once, every other one with a copy of the table */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *how;
static volatile long bad, signals;
static int shared;
extern char **environ;

/* Both share errno and what libc keeps in its buffers, so they do with plain calls. */
static long call(long nr, long a, long b, long c, long d) {
  long r;
  register long r10 __asm__("r10") = d;
  __asm__ volatile("" : "+r"(r10));
  r = syscall(nr, a, b, c, r10);
  return r;
}

static void wrong(int line) {
  bad++;
  char text[40] = "line ";
  int n = 5;
  for (int k = 1000; k; k /= 10) text[n++] = '0' + line / k % 10;
  text[n++] = '\n';
  if (write(2, text, n) != n) _exit(9);
}
#define CHECK(what) do { if (!(what)) wrong(__LINE__); } while (0)

static void on_signal(int n) { (void)n; signals++; }

static void work(const char *who, int turns) {
  char path[64], to[64], text[64], back[64];
  struct stat s;
  for (int i = 0; i < turns; i++) {
    snprintf(path, sizeof path, "%s-%d", who, i);
    snprintf(to, sizeof to, "%s-%d-moved", who, i);
    int n = snprintf(text, sizeof text, "%s writes %d\n", who, i);
    int fd = call(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    CHECK(call(SYS_write, fd, (long)text, n, 0) == n);
    CHECK(call(SYS_pread64, fd, (long)back, sizeof back, 0) == n && !memcmp(text, back, n));
    int copy = call(SYS_dup, fd, 0, 0, 0);
    CHECK(copy >= 0 && call(SYS_fstat, copy, (long)&s, 0, 0) == 0 && s.st_size == n);
    CHECK(call(SYS_close, fd, 0, 0, 0) == 0);
    CHECK(call(SYS_lseek, copy, 0, SEEK_END, 0) == n);
    CHECK(call(SYS_close, copy, 0, 0, 0) == 0);
    CHECK(call(SYS_rename, (long)path, (long)to, 0, 0) == 0);
    CHECK(call(SYS_write, shared, (long)"x", 1, 0) == 1);
    if (i % 3) CHECK(call(SYS_unlink, (long)to, 0, 0, 0) == 0);
    if (i % 8 == 0) call(SYS_kill, call(SYS_getpid, 0, 0, 0, 0), SIGUSR1, 0, 0);
  }
}

static int child(void *arg) {
  char *who = arg;
  work(who, 30);
  if (!strcmp(how, "copy")) {
    /* Its own business. */
    CHECK(call(SYS_close, shared, 0, 0, 0) == 0);
    CHECK(call(SYS_write, shared, (long)"x", 1, 0) < 0);
  }
  if (!strcmp(how, "fork")) {
    long pid = call(SYS_fork, 0, 0, 0, 0);
    if (pid == 0) {
      strcat(who, "f");
      work(who, 10);
      call(SYS_exit_group, bad != 0, 0, 0, 0);
    }
    int status = -1;
    CHECK(pid > 0 && call(SYS_wait4, pid, (long)&status, 0, 0) == pid && status == 0);
  }
  if (!strcmp(how, "exec") && who[1] % 2) {
    char *argv[] = { "sh", "-c", "echo executed > $0-executed", who, NULL };
    call(SYS_execve, (long)"/bin/sh", (long)argv, (long)environ, 0);
    wrong(__LINE__);
  }
  /* Every other one ends by returning, which ends the thread only; it is the last. */
  if (who[1] % 2) call(SYS_exit_group, 0, 0, 0, 0);
  return 0;
}

static int begin[2];

/* When all are there. */
static int one_of_many(void *arg) {
  char byte;
  CHECK(call(SYS_read, begin[0], (long)&byte, 1, 0) == 1);
  work(arg, 2);
  call(SYS_exit_group, 0, 0, 0, 0);
  return 0;
}

static void many(int n) {
  size_t stack = 64 << 10;
  char *stacks = mmap(NULL, n * stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  pid_t *pids = calloc(n, sizeof *pids);
  char (*names)[16] = calloc(n, sizeof *names);
  CHECK(pipe(begin) == 0);
  for (int i = 0; i < n; i++) {
    snprintf(names[i], sizeof names[i], "m%d", i);
    pids[i] = clone(one_of_many, stacks + (i + 1) * stack, CLONE_VM | (i % 2 ? CLONE_FILES : 0) | SIGCHLD, names[i]);
    CHECK(pids[i] > 0);
  }
  for (int i = 0; i < n; i++) CHECK(write(begin[1], "", 1) == 1);
  int right = 0;
  for (int i = 0; i < n; i++) {
    int status = -1;
    while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR) ;
    right += status == 0;
  }
  printf("%d of %d ended well, ", right, n);
}

int main(int argc, char **argv) {
  how = argv[1];
  int rounds = argc > 2 ? atoi(argv[2]) : 10;
  int flags = CLONE_VM | SIGCHLD;
  if (!strcmp(how, "files")) flags |= CLONE_FILES | CLONE_FS | CLONE_SIGHAND;
  signal(SIGUSR1, on_signal);
  shared = open("shared", O_WRONLY | O_CREAT | O_APPEND, 0644);
  alarm(50);
  if (!strcmp(how, "many")) many(rounds), rounds = 0;
  enum { N = 3, STACK = 256 << 10 };
  static char names[N][16];
  char *stacks = mmap(NULL, N * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int r = 0; r < rounds; r++) {
    pid_t pids[N];
    for (int i = 0; i < N; i++) {
      snprintf(names[i], sizeof names[i], "c%d", i);
      pids[i] = clone(child, stacks + (i + 1) * STACK, flags, names[i]);
      CHECK(pids[i] > 0);
    }
    work("parent", 30);
    for (int i = 0; i < N; i++) {
      int status = -1;
      pid_t got;
      while ((got = waitpid(pids[i], &status, 0)) < 0 && errno == EINTR) ;
      CHECK(got == pids[i]);
      if (status) fprintf(stderr, "child %d of round %d: status %x\n", i, r, status), bad++;
    }
  }
  /* What the children closed or left behind is nothing to the parent. */
  CHECK(write(shared, "end\n", 4) == 4);
  struct stat s;
  fstat(shared, &s);
  printf("%s: %ld wrong, signals %s, %ld bytes\n", how, bad, signals > 0 ? "arrived" : "lost", (long)s.st_size);
  if (system("ls | wc -l")) bad++;
  return bad != 0;
}
