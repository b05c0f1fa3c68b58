/* A library that makes its system calls itself, as Rust's rustix does: files, mappings, processes, a thread. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "raw.h"

static void say(const char *what, long result) { printf("%s %ld\n", what, result); fflush(stdout); }

static long put(const char *path, const char *text) {
  long fd = raw4(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return fd;
  long n = raw3(SYS_write, fd, (long)text, strlen(text));
  long closed = raw3(SYS_close, fd, 0, 0);
  return closed < 0 ? closed : n;
}

/* What a temporary file goes through: made, written, looked at, put in its place. */
static void files(const char *top) {
  char path[4096], to[4096], text[100] = "";
  struct stat s;
  struct statx x;
  snprintf(path, sizeof path, "%s/.tmp", top);
  snprintf(to, sizeof to, "%s/placed", top);
  say("mkdir", raw3(SYS_mkdir, (long)top, 0755, 0));
  say("put", put(path, "first\nsecond\n"));
  say("exclusive", raw4(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CREAT | O_EXCL, 0600));
  long fd = raw3(SYS_open, (long)path, O_RDWR, 0);
  say("fstat", raw3(SYS_fstat, fd, (long)&s, 0) ? -1 : s.st_size);
  say("lseek", raw3(SYS_lseek, fd, 6, SEEK_SET));
  say("read", raw3(SYS_read, fd, (long)text, sizeof text - 1));
  printf("%s", text);
  say("truncate", raw3(SYS_ftruncate, fd, 5000, 0));
  say("pwrite", raw4(SYS_pwrite64, fd, (long)"end", 3, 4997));
  char *m = (char *)raw6(SYS_mmap, 0, 5000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  printf("mapped %.5s %.3s\n", m, m + 4997);
  m[0] = 'F';
  say("munmap", raw3(SYS_munmap, (long)m, 5000, 0));
  say("fsync", raw3(SYS_fsync, fd, 0, 0));
  long copy = raw3(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 100);
  say("dup", copy);
  say("close", raw3(SYS_close, fd, 0, 0));
  say("pread", raw4(SYS_pread64, copy, (long)text, 5, 0));
  printf("%.5s\n", text);
  say("close", raw3(SYS_close, copy, 0, 0));
  say("rename", raw3(SYS_rename, (long)path, (long)to, 0));
  say("gone", raw4(SYS_newfstatat, AT_FDCWD, (long)path, (long)&s, 0));
  say("statx", raw6(SYS_statx, AT_FDCWD, (long)to, 0, STATX_SIZE, (long)&x, 0) ? -1 : x.stx_size);
  say("symlink", raw3(SYS_symlink, (long)"placed", (long)path, 0));
  memset(text, 0, sizeof text);
  say("readlink", raw3(SYS_readlink, (long)path, (long)text, sizeof text));
  printf("%s\n", text);
  say("unlink", raw3(SYS_unlink, (long)path, 0, 0));
  say("missing", raw3(SYS_open, (long)path, O_RDONLY, 0));
  say("bad address", raw3(SYS_open, 8, O_RDONLY, 0));
}

/* Arguments that are only known when it runs, the number among them. */
__attribute__((noinline)) long any(long nr, long a, long b, long c, long d) { return raw4(nr, a, b, c, d); }

static void processes(const char *top) {
  char path[4096];
  snprintf(path, sizeof path, "%s/shared", top);
  long fd = raw4(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CREAT | O_APPEND, 0644);
  int status = 0;
  long pid = raw3(SYS_fork, 0, 0, 0);
  if (pid == 0) {
    raw3(SYS_write, fd, (long)"child\n", 6);
    raw3(SYS_close, fd, 0, 0);
    raw3(SYS_exit_group, 3, 0, 0);
  }
  say("wait", raw4(SYS_wait4, pid, (long)&status, 0, 0) == pid ? WEXITSTATUS(status) : -1);
  say("write", raw3(SYS_write, fd, (long)"parent\n", 7));
  say("clone", (pid = any(SYS_clone, SIGCHLD, 0, 0, 0)) >= 0);
  if (pid == 0) {
    const char *argv[] = { "/bin/sh", "-c", "cat <&3 >> own; echo executed >> own", 0 };
    any(SYS_dup2, fd, 3, 0, 0);
    any(SYS_lseek, 3, 0, SEEK_SET, 0);
    any(SYS_chdir, (long)top, 0, 0, 0);
    any(SYS_execve, (long)argv[0], (long)argv, (long)(const char *[]){ 0 }, 0);
    any(SYS_exit_group, 9, 0, 0, 0);
  }
  say("wait", raw4(SYS_wait4, pid, (long)&status, 0, 0) == pid ? WEXITSTATUS(status) : -1);
  say("close", raw3(SYS_close, fd, 0, 0));
}

/* A thread that libc knows nothing of, on the thread area of its parent. */
static volatile int ended;
static const char *thread_top;

__attribute__((noinline, noreturn, used)) static void thread(void) {
  char path[64] = "from-thread-?", text[] = "from thread ?\n";
  long dir = raw4(SYS_openat, AT_FDCWD, (long)thread_top, O_RDONLY | O_DIRECTORY, 0);
  for (int i = 0; i < 200; i++) {
    path[12] = 'a' + i % 20;
    text[12] = 'a' + i % 20;
    long fd = raw4(SYS_openat, dir, (long)path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || raw3(SYS_write, fd, (long)text, sizeof text - 1) != sizeof text - 1 || raw3(SYS_close, fd, 0, 0)) ended = -i - 1000;
  }
  raw3(SYS_close, dir, 0, 0);
  if (!ended) ended = 1;
  raw6(SYS_futex, (long)&ended, FUTEX_WAKE, 1, 0, 0, 0);
  for (;;) raw3(SYS_exit, 0, 0, 0);
}

static void threads(const char *top) {
  static char stack[256 << 10] __attribute__((aligned(64)));
  long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, r;
  thread_top = top;
  long *sp = (long *)(stack + sizeof stack) - 2;
  __asm__ volatile("xor %%r10d, %%r10d\n xor %%r8d, %%r8d\n xor %%edx, %%edx\n syscall\n test %%rax, %%rax\n jnz 1f\n xor %%ebp, %%ebp\n call %P4\n1:"
                   : "=a"(r) : "0"((long)SYS_clone), "D"(flags), "S"(sp), "i"(thread) : "rcx", "rdx", "r8", "r10", "r11", "memory");
  say("thread", r > 0);
  for (int v; (v = ended) == 0;) raw6(SYS_futex, (long)&ended, FUTEX_WAIT, v, 0, 0, 0);
  say("ended", ended);
}

/* The two bytes of the instruction inside other instructions, and in data amid code. */
__attribute__((noinline)) long bytes(long n) {
  long r = n + 0x050f;
  if (n & 1) r ^= 0x11050f00;
  __asm__ volatile("jmp 1f\n .byte 0x0f, 0x05, 0x0f, 0x05\n1: lea 0x050f(%0), %0" : "+r"(r));
  return r;
}

/* A function that no table describes. */
long undescribed(void);
__asm__(".pushsection .text\n .type undescribed, @function\nundescribed: mov $39, %eax\n syscall\n ret\n .size undescribed, . - undescribed\n .popsection");

void work(const char *top) {
  files(top);
  processes(top);
  threads(top);
  say("bytes", bytes(1) + bytes(2));
  say("undescribed", undescribed() == raw3(SYS_getpid, 0, 0, 0));
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("RAW_BEGIN");
  if (path) say("begin", put(path, "by a constructor\n"));
}
