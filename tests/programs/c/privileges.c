// Set-user-ID and set-group-ID bits go with a change of the bytes, unless by one with CAP_FSETID; who
// isn't of a set-group-ID directory's group can't make programs that run with its rights.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
static mode_t mode(const char *path) {
  struct stat s;
  return stat(path, &s) ? 0 : s.st_mode & 07777;
}
static int other;
static void change(int how, int fd) {
  struct iovec v = {"vector", 6};
  switch (how) {
  case 0: write(fd, "x", 1); break;
  case 1: pwrite(fd, "x", 1, 3); break;
  case 2: writev(fd, &v, 1); break;
  case 3: ftruncate(fd, 2); break;
  case 4: truncate("f", 2); break;
  case 5: close(open("f", O_WRONLY | O_TRUNC)); break;
  case 6: close(open("f", O_RDWR)); break;
  case 7: fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4096); break;
  case 8: copy_file_range(other, 0, fd, 0, 3, 0); break;
  case 9: write(fd, "", 0); break;
  case 10: { char b[2]; pread(fd, b, 2, 0); break; }
  }
}
static const char *const ways[] = {"write", "pwrite", "writev", "ftruncate", "truncate", "O_TRUNC", "opening",
                                   "fallocate", "copy_file_range", "write of nothing", "read"};
static void all(const char *who) {
  static const mode_t modes[] = {04755, 02755, 06777, 02745, 0755};
  for (int how = 0; how <= 10; how++) {
    printf("%s, %s:", who, ways[how]);
    for (int i = 0; i < 5; i++) {
      unlink("f");
      // The mode is set while it is open, as an installer does.
      int fd = open("f", O_CREAT | O_RDWR, 0600);
      write(fd, "content", 7), fchmod(fd, modes[i]);
      lseek(other, 0, 0), change(how, fd);
      printf(" %o", mode("f")), close(fd);
      fd = open("f", O_RDWR), chmod("f", modes[i]);
      lseek(other, 0, 0), change(how, fd), change(how, fd);
      printf("/%o", mode("f")), close(fd);
    }
    puts("");
  }
}
static void in_directory(const char *who, const char *dir) {
  static const mode_t modes[] = {02770, 02711, 02710, 06755, 0770};
  char path[64];
  printf("%s in %s:", who, dir);
  for (int i = 0; i < 5; i++) {
    snprintf(path, sizeof path, "%s/f%d", dir, i), unlink(path);
    close(open(path, O_CREAT | O_WRONLY, modes[i]));
    printf(" %o", mode(path)), unlink(path);
    mknod(path, S_IFIFO | modes[i], 0), printf(" %o", mode(path)), unlink(path);
  }
  snprintf(path, sizeof path, "%s/d", dir), mkdir(path, 0710), printf(" directory %o\n", mode(path)), rmdir(path);
}
// chown(2) with neither user nor group takes the bits away, but not for other users than the owner.
static void others_chown(void) {
  int fd = open("mine", O_CREAT | O_RDWR, 0600);
  fchmod(fd, 04755);
  pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0) setresuid(65534, 65534, 65534), fchown(fd, -1, -1);
    _exit(0);
  }
  waitpid(child, 0, 0), printf("another's chown leaves %o", mode("mine"));
  fchown(fd, -1, -1), printf(", the owner's %o\n", mode("mine")), close(fd), unlink("mine");
}
// A user without privileges, of the file's group or not: only who isn't loses a set-group-ID bit without the
// group's right to execute.
static void of_group(const char *who, gid_t group) {
  static const mode_t modes[] = {02666, 06666, 02676};
  static const int hows[] = {0, 1, 2, 7, 8};
  for (int how = 0; how < 5; how++) {
    printf("%s, %s:", who, ways[hows[how]]);
    for (int i = 0; i < 3; i++) {
      unlink("f");
      int fd = open("f", O_CREAT | O_RDWR, 0600);
      write(fd, "content", 7);
      if (fchown(fd, 0, 7777)) perror("f");
      fchmod(fd, modes[i]), lseek(other, 0, 0);
      pid_t child = fork();
      if (child == 0) {
        if (setgroups(1, &group) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) perror("ids");
        change(hows[how], fd), _exit(0);
      }
      waitpid(child, 0, 0), printf(" %o", mode("f")), close(fd);
    }
    puts("");
  }
}
int main(void) {
  umask(0);
  other = open("other", O_CREAT | O_RDWR, 0600), write(other, "another", 7);
  mkdir("own", 0777), chmod("own", 02777);
  if (geteuid() == 0) {
    mkdir("groups", 0777);
    if (chown("groups", 0, 7777) || chmod("groups", 02777)) perror("groups");
    of_group("another group", 8888), of_group("the file's group", 7777);
    all("with CAP_FSETID"), in_directory("with CAP_FSETID", "groups");
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    syscall(SYS_capget, &head, data), data[0].effective &= ~(1 << CAP_FSETID), syscall(SYS_capset, &head, data);
    in_directory("without", "groups");
  }
  all("without"), in_directory("without", "own");
  others_chown();
  return unlink("f");
}
