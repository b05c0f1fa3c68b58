/* Pointers to nowhere: EFAULT, never a crash. Each call in a process of its own. */
#include "call.h"

#define TRY(e) do { fflush(stdout); pid_t p_ = fork(); if (p_ == 0) { errno = 0; long r_ = (long)(e); printf("%s = %s%.0ld\n", #e, r_ < 0 ? strerrorname_np(errno) : "", r_ < 0 ? 0 : r_); fflush(stdout); _exit(0); } \
    int s_; waitpid(p_, &s_, 0); if (s_) SAY("%s: died, %d", #e, s_); } while (0)

int main(void) {
    void *none = mmap(0, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *bad[] = {NULL, (void *)1, none, (void *)-1, (void *)(1l << 62)};
    int d = open(".", O_RDONLY), p[2]; char text[8192]; struct iovec good = {text, 5};
    int f = open("f", O_RDWR | O_CREAT, 0644); memset(text, 'x', sizeof text); for (int i = 0; i < 40; i++) write(f, text, sizeof text); symlink("f", "l"); pipe(p);
    for (int i = 0; i < 5; i++) {
        void *b = bad[i]; SAY("-- %d", i); struct iovec v[2] = {{text, 5}, {b, 10}}, w = {b, 70000};
        TRY(open(b, O_RDONLY)); TRY(openat(d, b, O_RDONLY)); TRY(stat(b, (void *)text)); TRY(lstat("f", b)); TRY(stat("f", b)); TRY(fstat(f, b)); TRY(fstatat(d, "f", b, 0)); TRY(CALL(332, d, "f", 0, 0, b)); TRY(statfs("f", b)); TRY(fstatfs(f, b)); TRY(access(b, 0)); TRY(mkdir(b, 0755)); TRY(unlink(b)); TRY(rmdir(b)); TRY(symlink(b, "x")); TRY(symlink("f", b)); TRY(readlink(b, text, 9)); TRY(readlink("l", b, 9)); TRY(chmod(b, 0)); TRY(truncate(b, 0)); TRY(chdir(b)); TRY(CALL(79, b, 1000)); TRY(mknod(b, 0644, 0)); TRY(CALL(437, d, b, b, 24));
        TRY(pread(f, b, 10, 0)); TRY(pread(f, b, 100000, 0)); TRY(pwrite(f, b, 10, 0)); TRY(pwrite(f, b, 100000, 0)); TRY(readv(f, b, 1)); TRY(writev(f, b, 1)); TRY(preadv(f, &w, 1, 0)); TRY(pwritev(f, &w, 1, 0)); TRY(CALL(217, d, b, 1000)); if (b) TRY(utimensat(d, "f", b, 0)); if (b) TRY(utimes("f", b)); TRY(fsetxattr(f, b, "x", 1, 0)); TRY(setxattr(b, "user.a", "x", 1, 0)); TRY(getxattr("f", b, text, 10));
        TRY(fcntl(f, F_SETLK, b)); TRY(fcntl(f, F_GETLK, b)); TRY(fcntl(f, F_OFD_SETLK, b)); TRY(ioctl(f, FIONREAD, b)); TRY(CALL(254, 99, b, 1));
        if (b) TRY(CALL(302, 0, RLIMIT_FSIZE, b, NULL));
    }
    /* The end of the buffer isn't there. */
    char *edge = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); mprotect(edge + 4096, 4096, PROT_NONE); memset(edge, 'e', 4096);
    TRY(open(edge + 4090, O_RDONLY)); TRY(stat("f", (void *)(edge + 4000))); TRY(pread(f, edge + 4090, 100, 0) != 0); TRY(pwrite(f, edge + 4090, 100, 0) != 0);
    P(unlink("f")); P(unlink("l")); unlink("x");
    return 0;
}
