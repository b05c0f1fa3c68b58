// Threads with a working directory, umask, ids and capabilities of their own: as the kernel has them.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_barrier_t turn;
static void both(void) { pthread_barrier_wait(&turn); }
static void made(const char *who, const char *path) {
  int fd = open(path, O_CREAT | O_WRONLY, 0666);
  struct stat s;
  if (fd < 0 || lstat(path, &s)) printf("%s: %s: %s\n", who, path, strerror(errno));
  else printf("%s: %s: uid %d gid %d mode %o\n", who, path, s.st_uid, s.st_gid, s.st_mode & 0777);
  if (fd >= 0) close(fd);
}
static void where(const char *who) {
  char at[PATH_MAX];
  if (getcwd(at, sizeof at)) printf("%s is %s\n", who, strstr(at, "/sub") ? "below" : "above");
  else printf("%s: getcwd: %s\n", who, strerror(errno));
}
static void tries(const char *who, const char *path) {
  int fd = open(path, O_RDONLY);
  printf("%s opens %s: %s; access: %s\n", who, path, fd < 0 ? strerror(errno) : "yes",
         access(path, R_OK) ? strerror(errno) : "yes");
  if (fd >= 0) close(fd);
}
static void *of_thread(void *unused) {
  // It shares them with the thread that made it.
  where("third"), made("third", "of-third"), umask(027), mkdir("deeper", 0777);
  if (chdir("deeper")) printf("chdir: %s\n", strerror(errno));
  return 0;
}
static void *fs(void *unused) {
  if (unshare(CLONE_FS)) printf("unshare: %s\n", strerror(errno));
  if (chdir("sub")) printf("chdir: %s\n", strerror(errno));
  umask(077);
  made("thread", "own"), both(), both(), where("thread");
  pthread_t third;
  pthread_create(&third, 0, of_thread, 0), pthread_join(third, 0), where("thread");
  pid_t child = fork();
  if (child == 0) where("child"), made("child", "of-child"), fflush(stdout), _exit(0);
  waitpid(child, 0, 0);
  fflush(stdout);
  if ((child = vfork()) == 0) execlp("sh", "sh", "-c", "umask; echo executed > executed", (char *)0), _exit(1);
  waitpid(child, 0, 0);
  made("thread", "in-deeper");
  if (chdir("../..")) printf("chdir: %s\n", strerror(errno));
  where("thread");
  return 0;
}
static void capabilities(unsigned drop) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  syscall(SYS_capget, &head, data);
  data[0].effective &= ~drop;
  if (syscall(SYS_capset, &head, data)) printf("capset: %s\n", strerror(errno));
}
static void *ids(void *unused) {
  syscall(SYS_setfsgid, 5555), syscall(SYS_setfsuid, 5555);
  made("fsuid", "open/fsuid"), tries("fsuid", "secret"), both(), both();
  syscall(SYS_setfsuid, 0), syscall(SYS_setfsgid, 0), tries("again", "secret");
  syscall(SYS_setresgid, -1, 6666, -1), syscall(SYS_setresuid, -1, 6666, -1);
  made("effective", "open/effective"), tries("effective", "secret"), both(), both();
  syscall(SYS_setresuid, -1, 0, -1), syscall(SYS_setresgid, -1, 0, -1);
  gid_t group = 7777;
  syscall(SYS_setgroups, 1, &group);
  capabilities(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH | 1 << CAP_FOWNER | 1 << CAP_CHOWN);
  tries("without capabilities", "of-other"), tries("in its group", "of-group");
  printf("chmod: %s\n", chmod("of-other", 0600) ? strerror(errno) : "yes");
  printf("chown: %s\n", chown("of-other", 0, 0) ? strerror(errno) : "yes");
  both(), both();
  return 0;
}
static void of_other(const char *path, uid_t uid, gid_t gid, mode_t mode) {
  close(open(path, O_CREAT | O_WRONLY, 0600));
  if (chown(path, uid, gid) || chmod(path, mode)) perror(path);
}
int main(int n, char **a) {
  setvbuf(stdout, 0, _IOLBF, 0);
  pthread_barrier_init(&turn, 0, 2);
  umask(022), mkdir("sub", 0777), mkdir("open", 0777), chmod("open", 0777);
  pthread_t thread;
  pthread_create(&thread, 0, fs, 0);
  both(), where("main"), made("main", "of-main"), both();
  pthread_join(thread, 0);
  if (geteuid() == 0 && n == 1) {
    of_other("secret", 0, 0, 0600), of_other("of-other", 1234, 1234, 0600), of_other("of-group", 1234, 7777, 0640);
    pthread_create(&thread, 0, ids, 0);
    both(), made("main", "open/main1"), tries("main", "secret"), both();
    both(), made("main", "open/main2"), both();
    both(), tries("main", "of-other"), both();
    pthread_join(thread, 0);
    // A child that shares the memory and changes its user leaves its parent as it is.
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) syscall(SYS_setresuid, 4321, 4321, 4321), _exit(access("secret", R_OK) ? 3 : 4);
    int how;
    waitpid(child, &how, 0), printf("child: %d\n", WEXITSTATUS(how));
    made("main", "open/main3"), tries("main", "secret");
    // One that becomes another user and makes a child keeps where it is, and what it has open.
    fflush(stdout);
    if ((child = fork()) == 0) {
      int fd = open("open/main1", O_RDWR);
      if (setresuid(4321, 4321, 4321)) perror("setresuid");
      where("user");
      if (fork() == 0) printf("fsync: %d\n", fsync(fd)), fflush(stdout), _exit(0);
      wait(&how), printf("ends with %d\n", WEXITSTATUS(how)), fflush(stdout), _exit(0);
    }
    waitpid(child, &how, 0);
  }
  return 0;
}
