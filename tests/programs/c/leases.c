// Leases: granted, refused, broken by opening and truncating, given up and down.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t got, which;
static void on(int n) { got++, which = n; }
static const char *name(int lease) {
  return lease == F_RDLCK ? "read" : lease == F_WRLCK ? "write" : lease == F_UNLCK ? "none" : "odd";
}
static void set(const char *what, int fd, int lease) {
  int r = fcntl(fd, F_SETLEASE, lease);
  printf("%s: %s: %s", what, name(lease), r ? strerror(errno) : "yes");
  printf(", has %s\n", name(fcntl(fd, F_GETLEASE)));
}
static int opened(int flags) { return open("f", flags | O_CREAT, 0644); }
static void try(const char *what, int flags) {
  int fd = opened(flags);
  printf("%s: %s\n", what, fd < 0 ? strerror(errno) : "opened");
  if (fd >= 0) close(fd);
}
// A child opens the file, or truncates it, and waits; its parent, told by a signal, answers with `answer`.
static void broken(const char *what, int lease, int flags, int answer) {
  int fd = opened(O_RDONLY);
  got = 0, set(what, fd, lease);
  sigset_t io, before;
  sigfillset(&io), sigprocmask(SIG_BLOCK, &io, &before);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    close(fd);
    int own = flags < 0 ? truncate("f", 1) : opened(flags);
    _exit(own < 0);
  }
  // At most 5 s, in which the signal comes or the child ends.
  for (int n = 0; n < 500 && !got && child; n++) {
    struct timespec t = {0, 10000000};
    int how;
    sigprocmask(SIG_SETMASK, &before, 0), nanosleep(&t, 0), sigprocmask(SIG_BLOCK, &io, 0);
    if (child && waitpid(child, &how, WNOHANG) == child) printf("child ends with %d, ", WEXITSTATUS(how)), child = 0;
  }
  sigprocmask(SIG_SETMASK, &before, 0);
  printf("told %d times by %s, shall have %s\n", (int)got, got ? strsignal(which) : "nobody", name(fcntl(fd, F_GETLEASE)));
  if (child) {
    int how;
    usleep(50000), printf("child waits: %s\n", waitpid(child, &how, WNOHANG) ? "no" : "yes");
    if (answer < 0) close(fd);
    else set("answer", fd, answer);
    waitpid(child, &how, 0), printf("child ends with %d\n", WEXITSTATUS(how));
    if (answer >= 0) close(fd);
  } else
    close(fd);
}
int main(void) {
  setvbuf(stdout, 0, _IOLBF, 0);
  struct sigaction act = {.sa_handler = on, .sa_flags = SA_RESTART};
  sigaction(SIGIO, &act, 0), sigaction(SIGUSR1, &act, 0);
  int fd = opened(O_RDWR), other;
  set("open for writing", fd, F_RDLCK), set("alone", fd, F_WRLCK), set("again", fd, F_WRLCK);
  set("up", fd, F_UNLCK), set("up twice", fd, F_UNLCK);
  printf("odd: %s\n", fcntl(fd, F_SETLEASE, 17) ? strerror(errno) : "yes");
  other = opened(O_RDONLY), set("another has it", fd, F_WRLCK), set("another writes", other, F_RDLCK);
  close(fd), set("reads", other, F_RDLCK), try("reading", O_RDONLY | O_NONBLOCK), try("writing", O_WRONLY | O_NONBLOCK);
  printf("told %d times, shall have %s\n", (int)got, name(fcntl(other, F_GETLEASE)));
  set("given up", other, F_UNLCK), try("writing", O_WRONLY | O_NONBLOCK);
  set("again", other, F_RDLCK), fd = dup(other), close(other), printf("by dup: %s\n", name(fcntl(fd, F_GETLEASE)));
  close(fd), got = 0, try("after its close", O_WRONLY | O_NONBLOCK), printf("told %d times\n", (int)got);
  broken("read, written", F_RDLCK, O_WRONLY, F_UNLCK);
  broken("read, read", F_RDLCK, O_RDONLY, F_UNLCK);
  broken("write, read", F_WRLCK, O_RDONLY, F_RDLCK);
  broken("write, written", F_WRLCK, O_RDWR, F_UNLCK);
  broken("write, cut by open", F_WRLCK, O_WRONLY | O_TRUNC, -1);
  broken("write, cut", F_WRLCK, -1, F_UNLCK);
  broken("by path alone", F_WRLCK, O_PATH, F_UNLCK);
  fd = opened(O_RDWR), fcntl(fd, F_SETSIG, SIGUSR1), printf("signal %s\n", strsignal(fcntl(fd, F_GETSIG)));
  got = 0, set("with a signal", fd, F_WRLCK), try("reading", O_RDONLY | O_NONBLOCK);
  printf("told %d times by %s; owner is%s this process\n", (int)got, strsignal(which), fcntl(fd, F_GETOWN) == getpid() ? "" : "n't");
  close(fd);
  // Nobody is told: neither this process nor its group.
  fd = opened(O_RDWR), got = 0, set("for nobody", fd, F_WRLCK);
  printf("nobody: %s", fcntl(fd, F_SETOWN, 0) ? strerror(errno) : "yes"), printf(", owner %d\n", fcntl(fd, F_GETOWN));
  try("reading", O_RDONLY | O_NONBLOCK), printf("told %d times\n", (int)got);
  struct f_owner_ex group = {F_OWNER_PGRP, -getpid()};
  printf("a group below 0: %s\n", fcntl(fd, F_SETOWN_EX, &group) ? strerror(errno) : "yes");
  close(fd), unlink("f"), mkdir("d", 0755), fd = open("d", O_RDONLY | O_DIRECTORY), close(fd), rmdir("d");
  return 0;
}
