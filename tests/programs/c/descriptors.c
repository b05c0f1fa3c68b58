/* Descriptors: their numbers, dup, fcntl, ioctl, O_PATH, waiting, what may be done with which. */
#include "call.h"

static void numbers(void) {
    int p[2];
    P(open("a", O_RDWR | O_CREAT, 0644)); /* 3 */
    P(open("/dev/null", O_RDONLY)); /* 4 */
    P(dup(3)); /* 5 */
    P(pipe(p)); SAY("%d %d", p[0], p[1]); /* 6 7 */
    P(close(4)); P(open("b", O_RDWR | O_CREAT, 0644)); /* 4 */
    P(close(3)); P(dup(5)); /* 3 */
    P(close(5)); P(pipe2(p, O_CLOEXEC)); SAY("%d %d", p[0], p[1]);
    P(dup2(3, 20)); P(dup2(4, 6)); P(dup2(p[0], 20)); P(dup3(3, 3, 0)); P(dup2(3, 3)); P(dup2(99, 3));
    P(dup3(3, 30, O_CLOEXEC)); P(fcntl(30, F_GETFD)); P(dup3(3, 30, 1));
    P(fcntl(3, F_DUPFD, 40)); P(fcntl(40, F_GETFD)); P(fcntl(3, F_DUPFD_CLOEXEC, 40)); P(fcntl(41, F_GETFD));
    P(fcntl(3, F_DUPFD, -1));
    P(CALL(312, getpid(), getpid(), 0, 3, 40) == 0); P(CALL(312, getpid(), getpid(), 0, 3, 4) == 0);
    P(close_range(3, 50, 4 /* CLOSE_RANGE_CLOEXEC */)); P(fcntl(3, F_GETFD)); P(fcntl(40, F_GETFD));
    P(close_range(3, 1000, 0)); P(fcntl(3, F_GETFD)); P(close(40)); P(open("a", O_RDONLY)); P(close(3));
}

static void limits(void) {
    struct rlimit l = {40, 4096};
    int n = 0, fd;
    P(setrlimit(RLIMIT_NOFILE, &l));
    while ((fd = open("a", O_RDONLY)) >= 0) n = fd;
    SAY("last %d %s", n, strerrorname_np(errno));
    P(dup(3)); P(fcntl(3, F_DUPFD, 0)); P(fcntl(3, F_DUPFD, 100)); P(dup2(3, 40)); P(dup2(3, 39));
    P(close(17)); P(dup(0)); P(close(17)); P(open("b", O_RDONLY));
    for (fd = 3; fd < 40; fd++) close(fd);
    P(fcntl(5, F_GETFD));
}

static void flags(void) {
    int fd = open("a", O_RDWR | O_APPEND | O_CLOEXEC);
    SAY("%d", fd);
    P(fcntl(fd, F_GETFD)); P(fcntl(fd, F_SETFD, 0)); P(fcntl(fd, F_GETFD));
    P(fcntl(fd, F_GETFL)); P(write(fd, "12345", 5)); P(lseek(fd, 0, SEEK_SET)); P(write(fd, "678", 3));
    P(fcntl(fd, F_SETFL, O_NONBLOCK | O_WRONLY | O_CREAT)); P(fcntl(fd, F_GETFL)); P(lseek(fd, 0, SEEK_SET));
    P(write(fd, "AB", 2)); P(lseek(fd, 0, SEEK_END)); P(fcntl(fd, F_SETFL, O_APPEND)); P(fcntl(fd, F_GETFL));
    P(fcntl(fd, F_SETFL, 0));
    P(fcntl(fd, F_GETLEASE)); P(fcntl(fd, F_GETPIPE_SZ)); P(fcntl(fd, F_SETPIPE_SZ, 4096)); P(fcntl(fd, F_GETSIG));
    P(fcntl(fd, 9999)); uint64_t hint = 77; P(fcntl(fd, 1036 /* F_SET_RW_HINT */, &(uint64_t){0}));
    P(fcntl(fd, 1035 /* F_GET_RW_HINT */, &hint)); SAY("%d", (int)hint);
    int n = -1; off_t size = -1;
    P(lseek(fd, 3, SEEK_SET)); P(ioctl(fd, FIONREAD, &n)); SAY("%d", n);
    P(ioctl(fd, FIOQSIZE, &size)); P(ioctl(fd, 2 /* FIGETBSZ */, &n)); SAY("%d", n);
    P(ioctl(fd, FIOCLEX)); P(fcntl(fd, F_GETFD)); P(ioctl(fd, FIONCLEX)); P(fcntl(fd, F_GETFD));
    n = 1; P(ioctl(fd, FIONBIO, &n)); P(fcntl(fd, F_GETFL)); n = 0; P(ioctl(fd, FIONBIO, &n)); P(fcntl(fd, F_GETFL));
    P(ioctl(fd, TCGETS, &(char[100]){0})); P(ioctl(fd, 0x12345678, 0)); P(isatty(fd));
    P(close(fd));
    int d = open(".", O_RDONLY | O_DIRECTORY);
    P(fcntl(d, F_GETFL) & ~O_LARGEFILE); P(read(d, &n, 1)); P(write(d, &n, 1)); P(ftruncate(d, 0)); P(pread(d, &n, 1, 0));
    P(fsync(d)); P(mmap(0, 4096, PROT_READ, MAP_PRIVATE, d, 0) == MAP_FAILED); P(lseek(d, 0, SEEK_SET));
    P(fallocate(d, 0, 0, 1)); P(close(d));
}

static void path_only(void) {
    char b[64] = ""; struct stat s; struct statfs f; struct flock l = {.l_type = F_RDLCK}; struct pollfd p = {.events = POLLIN};
    symlink("a", "l");
    int fd = open("a", O_PATH), dir = open(".", O_PATH), link = open("l", O_PATH | O_NOFOLLOW);
    SAY("%d %d %d", fd, dir, link);
    P(fcntl(fd, F_GETFL)); P(fcntl(dir, F_GETFL)); P(fcntl(fd, F_GETFD)); P(fcntl(fd, F_SETFD, FD_CLOEXEC)); P(fcntl(fd, F_SETFL, 0));
    P(read(fd, b, 1)); P(write(fd, b, 1)); P(pread(fd, b, 1, 0)); P(lseek(fd, 0, SEEK_SET)); P(ftruncate(fd, 0));
    P(fstat(fd, &s)); P(S_ISREG(s.st_mode)); P(fstat(link, &s)); P(S_ISLNK(s.st_mode)); P(fstatfs(fd, &f));
    P(fchmod(fd, 0600)); P(fchown(fd, -1, -1)); P(futimens(fd, NULL)); P(fsetxattr(fd, "user.a", "1", 1, 0)); P(fgetxattr(fd, "user.a", b, 1));
    P(fsync(fd)); P(fallocate(fd, 0, 0, 1)); P(flock(fd, 1)); P(fcntl(fd, F_GETLK, &l)); P(ioctl(fd, FIONREAD, b));
    P(mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED); P(CALL(217, dir, b, sizeof b)); P(posix_fadvise(fd, 0, 0, 0) != 0);
    p.fd = fd; P(poll(&p, 1, 0)); P(p.revents == POLLNVAL);
    P(readlinkat(link, "", b, sizeof b)); SAY("%s", b); P(readlinkat(fd, "", b, sizeof b));
    P(fstatat(fd, "", &s, AT_EMPTY_PATH)); P(fstatat(dir, "a", &s, 0)); P(openat(dir, "a", O_RDONLY)); P(openat(fd, "a", O_RDONLY));
    P(fchmodat(fd, "", 0600, AT_EMPTY_PATH) == 0 || errno == EINVAL || errno == EOPNOTSUPP); P(fchownat(fd, "", -1, -1, AT_EMPTY_PATH));
    P(faccessat(fd, "", R_OK, AT_EMPTY_PATH)); P(CALL(452, fd, "", 0640, AT_EMPTY_PATH));
    P(fchdir(dir)); P(fchdir(fd)); P(dup(fd)); P(fcntl(fd, F_DUPFD, 50)); P(fcntl(50, F_GETFL));
    sprintf(b, "/proc/self/fd/%d", fd); P(open(b, O_RDWR)); P(unlinkat(dir, "l", 0));
    P(open("none", O_PATH)); P(open("a", O_PATH | O_DIRECTORY)); P(close_range(3, 100, 0));
}

static void waiting(void) {
    int fd = open("a", O_RDWR), p[2], e = epoll_create1(0);
    pipe(p);
    struct pollfd l[3] = {{fd, POLLIN | POLLOUT | POLLPRI, 0}, {p[0], POLLIN, 0}, {-1, POLLIN, 9}};
    P(poll(l, 3, 5000)); SAY("%x %x %x", l[0].revents, l[1].revents, l[2].revents);
    write(p[1], "x", 1); P(poll(l, 3, 0)); SAY("%x %x", l[0].revents, l[1].revents);
    l[0].events = POLLPRI; l[1].fd = 77; P(poll(l, 3, 0)); SAY("%x %x", l[0].revents, l[1].revents);
    struct timespec t = {5, 0}; l[0].events = POLLIN; P(ppoll(l, 1, &t, NULL));
    fd_set r, w, x; FD_ZERO(&r); FD_ZERO(&w); FD_ZERO(&x); FD_SET(fd, &r); FD_SET(p[0], &r); FD_SET(fd, &w); FD_SET(fd, &x);
    struct timeval v = {5, 0}; P(select(20, &r, &w, &x, &v)); SAY("%d %d %d %d", !!FD_ISSET(fd, &r), !!FD_ISSET(p[0], &r), !!FD_ISSET(fd, &w), !!FD_ISSET(fd, &x));
    struct epoll_event ev = {EPOLLIN, {0}}; P(epoll_ctl(e, EPOLL_CTL_ADD, fd, &ev)); P(epoll_ctl(e, EPOLL_CTL_ADD, p[0], &ev)); P(epoll_wait(e, &ev, 1, 0));
    P(close_range(3, 100, 0));
}

/* What is done with the same description by others: dup, fork, exec share offset and flags. */
static void shared(char **argv) {
    int fd = open("a", O_RDWR | O_TRUNC), d = dup(fd);
    P(write(fd, "abcdef", 6)); P(lseek(d, 0, SEEK_CUR)); P(fcntl(d, F_SETFL, O_APPEND)); P(fcntl(fd, F_GETFL));
    if (fork() == 0) { lseek(fd, 2, SEEK_SET); close(fd); _exit(0); }
    wait(NULL); P(lseek(fd, 0, SEEK_CUR)); fflush(stdout);
    if (vfork() == 0) { char n[12]; sprintf(n, "%d", d); execl(argv[0], argv[0], "child", n, NULL); _exit(1); }
    wait(NULL); P(lseek(fd, 0, SEEK_CUR)); P(fcntl(fd, F_GETFL)); P(close(fd)); P(close(d));
}

int main(int argc, char **argv) {
    if (argc == 3) { int d = atoi(argv[2]); P(lseek(d, 1, SEEK_CUR)); P(fcntl(d, F_SETFL, 0)); return 0; }
    numbers(); flags(); path_only(); waiting(); shared(argv); limits();
    return 0;
}
