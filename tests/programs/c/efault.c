/* Pointers to nowhere: EFAULT, never a crash. Each call that takes pointers gets a bad one in the place of each of
   them in turn, in a process of its own; what comes of it is what the kernel says on a plain file system. */
#include "call.h"
#include <poll.h>

static int f, d, s, p[2], u[2], n, e;
static char text[70000];
static struct iovec v = {text, 5};
static struct pollfd fds[2];
static fd_set set;
static struct timespec zero;
static struct flock lock = {.l_type = F_WRLCK, .l_len = 1};
static char *argv_[] = {"true", NULL};
static struct open_how_ { uint64_t flags, mode, resolve; } how = {O_RDONLY};
static struct epoll_event event = {.events = EPOLLIN};
static struct msghdr message = {.msg_iov = &v, .msg_iovlen = 1};
static struct mmsghdr messages[2];
static struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "nobody"}, there = {.sun_family = AF_UNIX};
static int len = sizeof address, on = 1;
static struct xattr_args_ { uint64_t value; uint32_t size, flags; } xargs;
static long offset;
static struct rlimit64 limit;

/* Which arguments are pointers, by bits; the arguments are those of a call that could succeed. */
struct call { const char *name; long nr; int pointers; long a[6]; };
#define L(x) (long)(x)
#define C(name, nr, pointers, ...) {name, nr, pointers, {__VA_ARGS__}}
enum { EDGE = 5, A = 1, B = 2, CC = 4, D = 8, E = 16, F = 32 };

static long call(const struct call *c, int i, void *bad) {
    long a[6]; memcpy(a, c->a, sizeof a); lseek(f, 0, SEEK_SET); lseek(s, 0, SEEK_SET); lseek(d, 0, SEEK_SET); if (i >= 0) a[i] = L(bad);
    return syscall(c->nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* In a process of its own, which mustn't die. */
#define IN_CHILD(title, ...) do { fflush(stdout); pid_t p_ = fork(); \
    if (p_ == 0) { errno = 0; long r_ = (__VA_ARGS__); printf("%s = %s%.0ld\n", title, r_ < 0 ? strerrorname_np(errno) : r_ ? "" : "0", r_ < 0 ? 0 : r_); fflush(stdout); _exit(0); } \
    int s_; waitpid(p_, &s_, 0); if (s_) SAY("%s: died, %d", title, s_); } while (0)
#define TRY(x) IN_CHILD(#x, (long)(x))

static void walk(const struct call *c, void **bad, int count) {
    for (int i = 0; i < 6; i++) for (int k = 0; k < count; k++) if (c->pointers & 1 << i) {
        /* Where a part of the buffer is there, a part may be read or written. */
        if (k == EDGE && (strstr(c->name, "read") || strstr(c->name, "write")) && !strchr(c->name, 'v')) { IN_CHILD(c->name, call(c, i, bad[k]) >= 0 || errno == EFAULT); continue; }
        char title[80]; snprintf(title, sizeof title, "%s, argument %d, address %d", c->name, i, k);
        IN_CHILD(title, call(c, i, bad[k]));
    }
}

static void prepare(void) {
    memset(text, 'x', sizeof text);
    f = open("f", O_RDWR | O_CREAT, 0644); for (int i = 0; i < 5; i++) write(f, text, sizeof text);
    s = open("small", O_RDWR | O_CREAT, 0644); write(s, "small", 5); lseek(s, 0, SEEK_SET);
    d = open(".", O_RDONLY); symlink("f", "l"); pipe(p); socketpair(AF_UNIX, SOCK_DGRAM, 0, u); e = epoll_create1(0); n = socket(AF_UNIX, SOCK_DGRAM, 0);
    strcpy(there.sun_path, "there"); bind(socket(AF_UNIX, SOCK_DGRAM, 0), (void *)&there, sizeof there); write(p[1], "pipe", 4); write(u[1], "sent", 4); fcntl(u[0], F_SETFL, O_NONBLOCK); fcntl(p[0], F_SETFL, O_NONBLOCK);
    fds[0].fd = f; fds[0].events = POLLIN; fds[1].fd = p[1]; fds[1].events = POLLOUT; FD_SET(f, &set); messages[0].msg_hdr = messages[1].msg_hdr = message; event.data.fd = f; zero.tv_nsec = 0;
    mkdir("dir", 0755); setxattr("f", "user.a", "1", 1, 0); xargs.value = L(text); xargs.size = 5;
}

static void all(void **bad, int count) {
    struct iovec vf[2] = {{text, 5}, {text, 5}};
    static char control[CMSG_SPACE(4)] __attribute__((aligned(8))); struct cmsghdr *h = (void *)control; h->cmsg_level = SOL_SOCKET; h->cmsg_type = SCM_RIGHTS; h->cmsg_len = CMSG_LEN(4); memcpy(CMSG_DATA(h), &f, 4);
    static struct timeval now[2]; static struct timespec stamps[2];
    static uint64_t clone_args[11] = {0};
    struct call calls[] = {
        C("open", 2, A, L("f"), 0), C("openat", 257, B, d, L("f"), 0), C("openat2", 437, B | CC, d, L("f"), L(&how), 24), C("creat", 85, A, L("c"), 0644),
        C("fcntl SETLK", 72, CC, f, F_SETLK, L(&lock)), C("fcntl GETLK", 72, CC, f, F_GETLK, L(&lock)), C("fcntl OFD_SETLK", 72, CC, f, F_OFD_SETLK, L(&lock)), C("fcntl OFD_GETLK", 72, CC, f, F_OFD_GETLK, L(&lock)), C("fcntl GET_RW_HINT", 72, CC, f, 1035, L(text)),
        C("ioctl FIONREAD", 16, CC, f, FIONREAD, L(text)), C("ioctl FIONBIO", 16, CC, f, FIONBIO, L(&on)), C("ioctl FIGETBSZ", 16, CC, f, 2, L(text)), C("ioctl FIOQSIZE", 16, CC, f, 0x5460, L(text)),
        C("poll", 7, A, L(fds), 2, 0), C("ppoll", 271, A | CC, L(fds), 2, L(&zero), 0, 8), C("select", 23, B | CC | D | E, f + 1, L(&set), L(&set), L(&set), L(&zero)), C("pselect6", 270, B | CC | D | E, f + 1, L(&set), L(&set), L(&set), L(&zero), 0), C("epoll_ctl", 233, D, e, EPOLL_CTL_ADD, f, L(&event)), C("epoll_ctl on a pipe", 233, D, e, EPOLL_CTL_ADD, p[0], L(&event)),
        C("read", 0, B, f, L(text), 10), C("read small", 0, B, s, L(text), 10), C("read much", 0, B, f, L(text), 69000), C("write", 1, B, f, L(text), 10), C("write small", 1, B, s, L(text), 3), C("write much", 1, B, f, L(text), 69000),
        C("pread64", 17, B, f, L(text), 10, 0), C("pread64 small", 17, B, s, L(text), 10, 0), C("pwrite64", 18, B, f, L(text), 10, 0), C("pwrite64 small", 18, B, s, L(text), 3, 0), C("readv", 19, B, f, L(vf), 2), C("writev", 20, B, f, L(vf), 2), C("preadv", 295, B, f, L(vf), 2, 0), C("pwritev", 296, B, f, L(vf), 2, 0), C("preadv2", 327, B, f, L(vf), 2, 0, 0, 0), C("pwritev2", 328, B, f, L(vf), 2, 0, 0, 0),
        C("sendfile", 40, CC, f, s, L(&offset), 3), C("copy_file_range", 326, B | D, s, L(&offset), f, L(&offset), 3, 0), C("splice in", 275, D, p[0], 0, f, L(&offset), 2, 0), C("splice out", 275, B, f, L(&offset), p[1], 0, 2, 0), C("truncate", 76, A, L("f"), 100000),
        C("stat", 4, A | B, L("f"), L(text)), C("lstat", 6, A | B, L("l"), L(text)), C("fstat", 5, B, f, L(text)), C("newfstatat", 262, B | CC, d, L("f"), L(text), 0), C("newfstatat of a descriptor", 262, CC, f, L(""), L(text), AT_EMPTY_PATH), C("statx", 332, B | E, d, L("f"), 0, 0x7ff, L(text)), C("statfs", 137, A | B, L("f"), L(text)), C("fstatfs", 138, B, f, L(text)),
        C("getdents", 78, B, d, L(text), 32000), C("getdents64", 217, B, d, L(text), 32000), C("access", 21, A, L("f"), 0), C("faccessat", 269, B, d, L("f"), 0), C("faccessat2", 439, B, d, L("f"), 0, 0),
        C("chmod", 90, A, L("f"), 0644), C("fchmodat", 268, B, d, L("f"), 0644), C("fchmodat2", 452, B, d, L("f"), 0644, 0), C("chown", 92, A, L("f"), -1, -1), C("lchown", 94, A, L("l"), -1, -1), C("fchownat", 260, B, d, L("f"), -1, -1, 0),
        C("faccessat2 of a descriptor", 439, B, f, L(""), 0, AT_EMPTY_PATH), C("fchmodat2 of a descriptor", 452, B, f, L(""), 0644, AT_EMPTY_PATH), C("fchownat of a descriptor", 260, B, f, L(""), -1, -1, AT_EMPTY_PATH), C("linkat of a descriptor", 265, B | D, f, L(""), d, L("l"), AT_EMPTY_PATH), C("statx of a descriptor", 332, B | E, f, L(""), AT_EMPTY_PATH, 0x7ff, L(text)), C("utimensat of a descriptor", 280, B | CC, f, L(""), L(stamps), AT_EMPTY_PATH), C("fgetxattrat", 464, B, f, L(""), AT_EMPTY_PATH, L("user.a"), L(&xargs), 16),
        C("utime", 132, A | B, L("f"), L(now)), C("utimes", 235, A | B, L("f"), L(now)), C("futimesat", 261, B | CC, d, L("f"), L(now)), C("utimensat", 280, B | CC, d, L("f"), L(stamps), 0),
        C("setxattr", 188, A | B | CC, L("f"), L("user.b"), L(text), 3, 0), C("lsetxattr", 189, A | B | CC, L("f"), L("user.b"), L(text), 3, 0), C("fsetxattr", 190, B | CC, f, L("user.b"), L(text), 3, 0), C("getxattr", 191, A | B | CC, L("f"), L("user.a"), L(text), 3), C("lgetxattr", 192, A | B | CC, L("f"), L("user.a"), L(text), 3), C("fgetxattr", 193, B | CC, f, L("user.a"), L(text), 3),
        C("listxattr", 194, A | B, L("f"), L(text), 300), C("llistxattr", 195, A | B, L("f"), L(text), 300), C("flistxattr", 196, B, f, L(text), 300), C("removexattr", 197, A | B, L("f"), L("user.c")), C("lremovexattr", 198, A | B, L("f"), L("user.c")), C("fremovexattr", 199, B, f, L("user.c")),
        C("setxattrat", 463, B | D | E, d, L("f"), 0, L("user.d"), L(&xargs), 16), C("getxattrat", 464, B | D | E, d, L("f"), 0, L("user.a"), L(&xargs), 16), C("listxattrat", 465, B | D, d, L("f"), 0, L(text), 300), C("removexattrat", 466, B | D, d, L("f"), 0, L("user.c")),
        C("mkdir", 83, A, L("dir"), 0755), C("mkdirat", 258, B, d, L("dir"), 0755), C("rmdir", 84, A, L("none"), 0), C("unlink", 87, A, L("none")), C("unlinkat", 263, B, d, L("none"), 0), C("rename", 82, A | B, L("f"), L("f")), C("renameat", 264, B | D, d, L("f"), d, L("f")), C("renameat2", 316, B | D, d, L("f"), d, L("f"), 0),
        C("link", 86, A | B, L("f"), L("l")), C("linkat", 265, B | D, d, L("f"), d, L("l"), 0), C("symlink", 88, A | B, L("f"), L("l")), C("symlinkat", 266, A | CC, L("f"), d, L("l")), C("readlink", 89, A | B, L("l"), L(text), 10), C("readlinkat", 267, B | CC, d, L("l"), L(text), 10), C("mknod", 133, A, L("f"), 0100644, 0), C("mknodat", 259, B, d, L("f"), 0100644, 0),
        C("chdir", 80, A, L("dir")), C("getcwd", 79, A, L(text), 4096), C("chroot", 161, A, L("none")),
        C("execve", 59, A | B | CC, L("/bin/true"), L(argv_), L(argv_ + 1)), C("execveat", 322, B | CC | D, AT_FDCWD, L("/bin/true"), L(argv_), L(argv_ + 1), 0), C("execveat of a descriptor", 322, B, f, L(""), L(argv_), L(argv_ + 1), AT_EMPTY_PATH), C("clone3", 435, A, L(clone_args), 0, 0),
        C("rt_sigaction", 13, B | CC, SIGUSR1, L(text + 32000), L(text + 33000), 8), C("setrlimit", 160, B, RLIMIT_CORE, L(&limit)), C("prlimit64", 302, CC | D, 0, RLIMIT_CORE, L(&limit), L(&limit)),
        C("inotify_add_watch", 254, B, 99, L("f"), 1), C("name_to_handle_at", 303, B, 99, L("f"), L(text), L(text), 0), C("mount", 165, B, L("none"), L("none"), L("none"), 0, 0),
        C("bind", 49, B, n, L(&address), len), C("connect", 42, B, n, L(&address), len), C("sendto", 44, B | E, n, L(text), 3, 0, L(&there), len), C("getsockname", 51, B | CC, n, L(text), L(&len)), C("getpeername", 52, B | CC, u[0], L(text), L(&len)),
        C("sendmsg", 46, B, u[0], L(&message), 0), C("sendmmsg", 307, B, u[0], L(messages), 2, 0), C("recvmsg", 47, B, u[0], L(&message), 0), C("recvmmsg", 299, B | E, u[0], L(messages), 2, 0, 0),
        C("landlock_add_rule", 445, CC, 99, 1, L(text), 0),
    };
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) walk(&calls[i], bad, count);
    /* A bad pointer behind a good one. */
    for (int k = 0; k < count; k++) {
        void *b = bad[k]; SAY("-- behind, address %d", k);
        struct iovec v2[2] = {{text, 5}, {b, 10}}, w = {b, 69000};
        if (k != EDGE) { TRY(pwritev(f, &w, 1, 0)); TRY(preadv(f, &w, 1, 0)); TRY(preadv(f, v2, 2, 0)); } TRY(pwritev(f, v2, 2, 0) > 0 || errno == EFAULT);
        if (k) { struct msghdr m = message; m.msg_name = b; m.msg_namelen = 20; TRY(sendmsg(n, &m, 0)); m = message; m.msg_control = b; m.msg_controllen = sizeof control; TRY(sendmsg(u[0], &m, 0)); m = message; m.msg_iov = b; TRY(sendmsg(u[0], &m, 0)); TRY(recvmsg(u[0], &m, 0)); m.msg_iov = &v; m.msg_name = b; m.msg_namelen = 20; struct mmsghdr mm[2] = {{.msg_hdr = m}, {.msg_hdr = m}}; TRY(sendmmsg(n, mm, 2, 0)); m.msg_name = NULL; m.msg_control = b; m.msg_controllen = sizeof control; mm[0].msg_hdr = mm[1].msg_hdr = m; TRY(sendmmsg(u[0], mm, 2, 0)); }
        if (k) { char *args[] = {"true", b, NULL}; TRY(execve("/bin/true", args, argv_ + 1)); TRY(execve("/bin/true", argv_, args)); struct xattr_args_ x = {L(b), 5}; TRY(CALL(463, d, "f", 0, "user.e", &x, 16)); }
    }
}

int main(void) {
    prepare();
    char *none = mmap(0, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *edge = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(edge, 'e', 4096); munmap(edge + 4096, 4096);
    /* Nothing, next to nothing, protected, the kernel's, no address at all, the last bytes of a page. */
    void *bad[] = {NULL, (void *)1, none + 4096, (void *)-1, (void *)(1l << 62), edge + 4093};
    all(bad, 6);
    /* The end of the buffer isn't there. */
    TRY(open(edge + 4090, O_RDONLY)); TRY(stat("f", (void *)(edge + 4000))); TRY(pread(f, edge + 4090, 100, 0) != 0); TRY(pwrite(f, edge + 4090, 100, 0) != 0);
    /* To be read only: what is given back doesn't fit. */
    char *fixed = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TRY(stat("f", (void *)fixed)); TRY(pread(f, fixed, 10, 0)); TRY(pread(s, fixed, 3, 0)); TRY(readlink("l", fixed, 10)); TRY(CALL(217, d, fixed, 4000)); TRY(getcwd(fixed, 4096) == NULL ? -1 : 0); TRY(fgetxattr(f, "user.a", fixed, 5)); TRY(ioctl(f, FIONREAD, fixed)); TRY(sendfile(p[1], f, (void *)fixed, 3));
    P(unlink("f")); P(unlink("l")); P(unlink("small")); P(rmdir("dir")); unlink("c"); unlink("x"); unlink("nobody"); unlink("there"); unlink("eee");
    return 0;
}
