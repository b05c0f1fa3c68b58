# Signals in the midst of file operations: handlers that use files themselves, that jump
# away, that are removed after one call; cancelled threads; bad addresses.
# needs: gcc
set -euo pipefail
cat > s.c <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t count, value, code;
static int log_fd;
#define MUST(x) do { if (!(x)) { printf("%d: %s: %s\n", __LINE__, #x, strerror(errno)); exit(1); } } while (0)

// The next one comes when this one is over: a pool of several nodes may take longer for what a handler
// does than a timer leaves time, and then nothing else would be done.
static volatile long again;
static void timer_once(long us) { struct itimerval t = {{0, 0}, {0, us}}; setitimer(ITIMER_REAL, &t, 0); }
static void on_alarm(int s) {
  int saved = errno, fd = open("from-handler", O_CREAT | O_WRONLY | O_APPEND, 0644);
  if (fd < 0 || write(fd, "x", 1) != 1) _exit(90);
  close(fd);
  struct stat st;
  if (stat("work", &st) && errno != ENOENT) _exit(91);
  if (write(log_fd, ".", 1) != 1) _exit(92);
  count++;
  if (again) timer_once(again);
  errno = saved;
}
static void on_info(int s, siginfo_t *i, void *c) { value = i->si_value.sival_int; code = i->si_code; count++; }
static void on_count(int s) { count++; }
static volatile int several[3];
static void on_several(int s, siginfo_t *i, void *c) { several[s - SIGRTMIN - 4]++; }
static sigjmp_buf away;
static void on_jump(int s) { count++; siglongjmp(away, 1); }
static char *bad;
static void on_segv(int s, siginfo_t *i, void *c) { value = i->si_addr == bad; siglongjmp(away, 1); }

static void timer(long us) {
  struct itimerval t = {{0, us}, {0, us}};
  MUST(!setitimer(ITIMER_REAL, &t, 0));
}
static void work(int rounds) {
  char b[3000], c[3000];
  for (int i = 0; i < rounds; i++) {
    int fd = open("work", O_CREAT | O_RDWR | (i % 3 ? 0 : O_TRUNC), 0644);
    MUST(fd >= 0);
    memset(b, 'a' + i % 26, sizeof b);
    MUST(pwrite(fd, b, sizeof b, i % 5 * 1000) == sizeof b);
    MUST(pread(fd, c, sizeof c, i % 5 * 1000) == sizeof c && !memcmp(b, c, sizeof b));
    MUST(!rename("work", "work2") && !rename("work2", "work"));
    MUST(!close(fd));
    if (i % 7 == 0) MUST(!unlink("work"));
  }
}
static int held;
static void cleanup(void *p) { (*(int *)p)++; }
static void *victim(void *p) {
  char b[100];
  pthread_cleanup_push(cleanup, p);
  int fd = open("victim", O_CREAT | O_RDWR, 0644);
  for (;;) { pwrite(fd, b, sizeof b, 0); pread(fd, b, sizeof b, 0); fsync(fd); close(open("victim", O_RDONLY)); }
  pthread_cleanup_pop(1);
  return 0;
}

int main(void) {
  setvbuf(stdout, 0, _IONBF, 0);
  log_fd = open("log", O_CREAT | O_WRONLY | O_APPEND, 0644);
  struct sigaction a = {0}, old;
  // Handlers that use files, in the midst of operations on the same ones.
  a.sa_handler = on_alarm; a.sa_flags = SA_RESTART;
  MUST(!sigaction(SIGALRM, &a, 0));
  again = 100;
  timer_once(again);
  while (count < 300) work(50);
  again = 0;
  timer(0);
  struct stat st, lt;
  MUST(!stat("from-handler", &st) && !stat("log", &lt));
  printf("%s\n", st.st_size == count && lt.st_size == count ? "every handler ran once" : "lost");
  MUST(!sigaction(SIGALRM, 0, &old));
  printf("own handler shown: %d, flags %x\n", old.sa_handler == on_alarm, old.sa_flags & SA_RESTART);

  // What a signal carries arrives.
  a.sa_sigaction = on_info; a.sa_flags = SA_SIGINFO | SA_RESTART; count = 0;
  MUST(!sigaction(SIGUSR1, &a, 0) && !sigaction(SIGRTMIN + 3, &a, 0));
  pid_t pid = fork();
  if (!pid) {
    for (int i = 1; i <= 2000; i++) {
      union sigval v = {.sival_int = i};
      while (sigqueue(getppid(), SIGRTMIN + 3, v)) usleep(100);
    }
    _exit(0);
  }
  while (count < 2000) work(1);
  MUST(waitpid(pid, 0, 0) == pid);
  printf("queued signals: %d, last %d, code %d\n", count, value, code == SI_QUEUE);

  // Several at one moment: none is lost, and none stays blocked.
  a.sa_sigaction = on_several; memset((void *)several, 0, sizeof several);
  for (int i = 0; i < 3; i++) MUST(!sigaction(SIGRTMIN + 4 + i, &a, 0));
  pid = fork();
  if (!pid) {
    for (int i = 0; i < 6000; i++) {
      while (sigqueue(getppid(), SIGRTMIN + 4 + i % 3, (union sigval){.sival_int = i})) usleep(100);
      if (i % 30 == 29) usleep(50);
    }
    _exit(0);
  }
  time_t until = time(0) + 20;
  while (several[0] + several[1] + several[2] < 6000 && time(0) < until) work(1);
  MUST(waitpid(pid, 0, 0) == pid);
  sigset_t blocked;
  MUST(!sigprocmask(SIG_BLOCK, 0, &blocked));
  printf("several at once: %d %d %d, blocked:", several[0], several[1], several[2]);
  for (int i = 1; i <= SIGRTMAX; i++) if (sigismember(&blocked, i) == 1) printf(" %d", i);
  printf("\n");

  // A handler that is removed by its first call, and one that jumps away.
  a.sa_handler = on_jump; a.sa_flags = SA_RESETHAND; count = 0;
  MUST(!sigaction(SIGUSR2, &a, 0));
  if (!sigsetjmp(away, 1)) { raise(SIGUSR2); printf("not reached\n"); }
  MUST(!sigaction(SIGUSR2, 0, &old));
  printf("once: %d, now default: %d\n", count, old.sa_handler == SIG_DFL);
  a.sa_flags = 0; count = 0;
  MUST(!sigaction(SIGALRM, &a, 0));
  for (volatile int i = 0; i < 200; i++) {
    if (!sigsetjmp(away, 1)) { timer(200); for (;;) { int fd = open("jump", O_CREAT | O_RDWR | O_CLOEXEC, 0644); pwrite(fd, "jump", 4, 0); close(fd); } }
    timer(0);
    closefrom(20);
  }
  char b[8] = "";
  int fd = open("jump", O_RDWR);
  MUST(pread(fd, b, 8, 0) == 4);
  // The timer may fire once more on the way out.
  printf("jumped %s, file holds %s\n", count >= 200 ? "each time" : "too rarely", b);

  // Cancelled threads.
  for (int i = 0; i < 200; i++) {
    pthread_t t; void *result;
    MUST(!pthread_create(&t, 0, victim, &held));
    usleep(i * 5);
    MUST(!pthread_cancel(t) && !pthread_join(t, &result));
    MUST(result == PTHREAD_CANCELED);
    closefrom(20);
  }
  work(20);
  printf("cancelled, %s\n", held > 150 ? "most after their start" : "too early");

  // Bad addresses are errors.
  closefrom(3);
  MUST((fd = open("jump", O_RDWR)) >= 0);
  char *none = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(none + 4096, 4096);
  char big[9000]; memset(big, 1, sizeof big);
  MUST(pwrite(fd, big, sizeof big, 0) == sizeof big);
  ssize_t n = read(fd, none + 4096, 100); printf("read: %zd %s\n", n, strerrorname_np(errno));
  lseek(fd, 0, SEEK_SET);
  n = write(fd, none + 4096, 100); printf("write: %zd %s\n", n, strerrorname_np(errno));
  int small = open("small", O_CREAT | O_RDWR, 0644); MUST(write(small, "small", 5) == 5); close(small);
  small = open("small", O_RDWR);
  n = read(small, (void *)-1L, 5); printf("small: %zd %s\n", n, strerrorname_np(errno));
  struct iovec v = {none + 4096, 10};
  n = readv(fd, &v, 1); printf("readv: %zd %s\n", n, strerrorname_np(errno));
  MUST(syscall(SYS_rt_sigaction, SIGUSR2, none + 4096, 0, 8) == -1 && errno == EFAULT);

  // The same while signals come.
  a.sa_handler = on_count; a.sa_flags = SA_RESTART; count = 0;
  MUST(!sigaction(SIGALRM, &a, 0));
  timer(50);
  int wrong = 0;
  for (int i = 0; i < 20000 || count < 1000; i++) wrong += pread(fd, none + 4096, 6000, 0) != -1 || errno != EFAULT;
  timer(0);
  sigset_t now;
  MUST(!sigprocmask(SIG_BLOCK, 0, &now));
  printf("with signals: %d wrong, mask %d %d\n", wrong, sigismember(&now, SIGTERM), sigismember(&now, SIGSEGV));

  // The program's own handling of faults.
  a.sa_sigaction = on_segv; a.sa_flags = SA_SIGINFO;
  MUST(!sigaction(SIGSEGV, &a, &old));
  printf("was default: %d\n", old.sa_handler == SIG_DFL);
  bad = none + 4096;
  if (!sigsetjmp(away, 1)) *bad = 1;
  printf("own handler saw the address: %d\n", value);
  n = read(fd, bad, 100); printf("read: %zd %s\n", n, strerrorname_np(errno));
  signal(SIGSEGV, SIG_DFL);
  for (int how = 0; how < 3; how++) {
    int status;
    fflush(stdout);
    if (!(pid = fork())) {
      if (how == 0) *bad = 1;
      if (how == 1) raise(SIGSEGV);
      if (how == 2) { signal(SIGSEGV, SIG_IGN); raise(SIGSEGV); *bad = 1; }
      _exit(7);
    }
    MUST(waitpid(pid, &status, 0) == pid);
    printf("killed by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
  }
  return 0;
}
C
gcc -O1 -w -pthread -o s s.c
ulimit -c 0
timeout 60 ./s
rm from-handler log victim work
