/* Threads that libc knows nothing of, made by clone without CLONE_SETTLS: all are on one thread area, that of the thread
 * that made them, and work at the same time as it does.
 *   raw_threads own|libc ROUNDS: made, and calling, by instructions of this file's own, or by libc's clone() and syscall()
 *   raw_threads processes ROUNDS: as own; each makes processes, by fork and as vfork does */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "raw.h"

enum { N = 3, STACK = 256 << 10 };
static int own, processes, shared;
static volatile int go, ids[2 * N]; /* The kernel clears an id when nothing runs on that stack any more. */
static volatile long wrong;
static char stacks[2 * N][STACK] __attribute__((aligned(4096)));

/* All share errno: only results count. */
static long call(long nr, long a, long b, long c, long d) { return own ? raw4(nr, a, b, c, d) : syscall(nr, a, b, c, d); }

static void is_wrong(int line, long got) {
  char text[64];
  long n = 0;
  for (const char *s = "line "; *s;) text[n++] = *s++;
  for (int k = 1000; k; k /= 10) text[n++] = '0' + line / k % 10;
  text[n++] = ' ', text[n++] = got < 0 ? '-' : '+', got = got < 0 ? -got : got;
  for (int k = 1000; k; k /= 10) text[n++] = '0' + got / k % 10;
  text[n++] = '\n';
  raw3(SYS_write, 2, (long)text, n);
  __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
}
#define CHECK(what, want) do { long r_ = (what); if (!(r_ want)) is_wrong(__LINE__, r_); } while (0)

static void on_signal(int n) { (void)n; }

static void work(char who, int files) {
  char path[] = "file-w-00", to[] = "kept-w-00", text[] = "w writes 00\n", back[64];
  path[5] = to[5] = text[0] = who;
  struct stat s;
  for (int i = 0; i < files; i++) {
    path[7] = to[7] = text[9] = '0' + i / 10;
    path[8] = to[8] = text[10] = '0' + i % 10;
    long n = sizeof text - 1;
    long fd = call(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd, >= 0);
    CHECK(call(SYS_write, fd, (long)text, n, 0), == n);
    CHECK(call(SYS_pread64, fd, (long)back, sizeof back, 0), == n);
    CHECK(memcmp(text, back, n), == 0);
    long copy = call(SYS_dup, fd, 0, 0, 0);
    CHECK(copy, >= 0);
    CHECK(call(SYS_fstat, copy, (long)&s, 0, 0), == 0);
    CHECK(s.st_size, == n);
    CHECK(call(SYS_close, fd, 0, 0, 0), == 0);
    CHECK(call(SYS_lseek, copy, 0, SEEK_END, 0), == n);
    CHECK(call(SYS_close, copy, 0, 0, 0), == 0);
    CHECK(call(SYS_rename, (long)path, (long)to, 0, 0), == 0);
    CHECK(call(SYS_write, shared, (long)text, n, 0), == n);
    if (i % 3) CHECK(call(SYS_unlink, (long)to, 0, 0, 0), == 0);
    if (i % 8 == 0) call(SYS_kill, call(SYS_getpid, 0, 0, 0, 0), SIGUSR1, 0, 0);
  }
}

static long make(long which, long flags, void (*begin)(long));

/* What it closes is its own business. */
static void child(long which) {
  static const char *argv[] = { "/bin/sh", "-c", "echo executed >> executed", 0 };
  work('A' + which % N, 3);
  CHECK(raw3(SYS_close, shared, 0, 0), == 0);
  CHECK(raw3(SYS_write, shared, (long)"x", 1), == -9);
  raw3(SYS_execve, (long)argv[0], (long)argv, (long)environ);
  raw3(SYS_exit_group, 9, 0, 0);
}

static void make_processes(long which) {
  int status = -1;
  long pid = raw3(SYS_fork, 0, 0, 0);
  if (pid == 0) {
    work('x' + which, 5);
    raw3(SYS_exit_group, wrong != 0, 0, 0);
  }
  CHECK(raw4(SYS_wait4, pid, (long)&status, 0, 0), == pid);
  CHECK(status, == 0);
  pid = make(N + which, CLONE_VM | CLONE_VFORK | SIGCHLD, child);
  CHECK(raw4(SYS_wait4, pid, (long)&status, 0, 0), == pid);
  CHECK(status, == 0);
}

static void thread(long which) {
  while (!go) raw3(SYS_sched_yield, 0, 0, 0);
  work('a' + which, 40);
  if (processes) make_processes(which), work('a' + which, 10);
  for (;;) raw3(SYS_exit, 0, 0, 0);
}

static int for_libc(void *which) { thread((long)which); return 0; }

static long make(long which, long flags, void (*begin)(long)) {
  if (!own) return clone(for_libc, stacks[which] + STACK, flags, (void *)which, 0, 0, &ids[which]);
  long *sp = (long *)(stacks[which] + STACK) - 2, r;
  sp[0] = which, sp[1] = (long)begin;
  register long r10 __asm__("r10") = (long)&ids[which];
  __asm__ volatile("xor %%r8d, %%r8d\n xor %%edx, %%edx\n syscall\n test %%rax, %%rax\n jnz 1f\n xor %%ebp, %%ebp\n mov (%%rsp), %%rdi\n call *8(%%rsp)\n hlt\n1:"
                   : "=a"(r) : "0"((long)SYS_clone), "D"(flags), "S"(sp), "r"(r10) : "rcx", "rdx", "r8", "r11", "memory");
  return r;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  processes = !strcmp(argv[1], "processes");
  own = processes || !strcmp(argv[1], "own");
  int rounds = atoi(argv[2]);
  signal(SIGUSR1, on_signal);
  alarm(100);
  shared = open("shared", O_WRONLY | O_CREAT | O_APPEND, 0644);
  for (int r = 0; r < rounds; r++) {
    go = 0;
    for (long i = 0; i < N; i++) {
      ids[i] = 1;
      CHECK(make(i, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID, thread), > 0);
    }
    go = 1;
    work('p', 40);
    for (int i = 0; i < N; i++) while (ids[i]) raw6(SYS_futex, (long)&ids[i], FUTEX_WAIT, 1, 0, 0, 0);
  }
  struct stat s;
  fstat(shared, &s);
  printf("%s: %ld wrong, %ld lines\n", argv[1], wrong, (long)s.st_size / 12);
  return wrong != 0;
}
