/* A program that forbids itself all calls but a few (seccomp), and goes on with its files.
 *   sandbox FILE [warm] : the filter refuses with EPERM; with "warm", a file was used before it */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <dirent.h>

#define ALLOW(n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter filter[] = {
  BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
  ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_open), ALLOW(SYS_openat), ALLOW(SYS_close), ALLOW(SYS_fstat),
  ALLOW(SYS_newfstatat), ALLOW(SYS_lseek), ALLOW(SYS_mmap), ALLOW(SYS_munmap), ALLOW(SYS_brk), ALLOW(SYS_exit_group),
  ALLOW(SYS_getdents64), ALLOW(SYS_fcntl), ALLOW(SYS_rt_sigreturn), ALLOW(SYS_pread64), ALLOW(SYS_pwrite64),
  ALLOW(SYS_unlink), ALLOW(SYS_rename), ALLOW(SYS_mkdir), ALLOW(SYS_futex), ALLOW(SYS_getpid),
  ALLOW(SYS_fallocate), ALLOW(SYS_fdatasync),
  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
};

static void said(const char *what, long result) {
  printf("%s %ld%s%s\n", what, result, result < 0 ? ", " : "", result < 0 ? strerror(errno) : "");
}

int main(int argc, char **argv) {
  char b[4096] = "";
  struct stat s;
  if (argc > 2) {
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    said("before", write(fd, "before\n", 7));
    close(fd);
  }
  struct sock_fprog p = { sizeof filter / sizeof *filter, filter };
  said("no new privileges", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  said("filter", argc > 2 ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p));
  int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
  said("write", write(fd, "filtered\n", 9));
  memset(b, 'x', sizeof b);
  for (int i = 0; i < 1000; i++)
    if (write(fd, b, sizeof b) != sizeof b) said("large", -1);
  said("seek", lseek(fd, 0, SEEK_SET));
  said("read", read(fd, b, 9));
  said("size", fstat(fd, &s) ? -1 : s.st_size);
  said("close", close(fd));
  said("mkdir", mkdir("dir", 0755));
  said("rename", rename(argv[1], "dir/renamed"));
  said("stat", stat("dir/renamed", &s));
  fd = open("dir", O_RDONLY | O_DIRECTORY);
  said("list", syscall(SYS_getdents64, fd, b, sizeof b) > 0);
  close(fd);
  said("unlink", unlink("dir/renamed"));
  said("another call", setsid());
  for (int i = 0; i < 100; i++) {
    memset(b, 0, sizeof b);
    snprintf(b, sizeof b, "dir/%d", i);
    fd = open(b, O_WRONLY | O_CREAT, 0644);
    if (fd < 0 || write(fd, b, 100) != 100) said(b, -1);
    close(fd);
  }
  return 0;
}
