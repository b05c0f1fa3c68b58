// Odd arguments: every system call that the library serves, with descriptors, pointers, lengths and
// flags that programs pass by mistake. The results are those of tmpfs, and nothing ends by a signal.
//
// odd ROUNDS [FIRST]: each round is a child in a directory of its own with the same files and open
// descriptors; it makes CALLS calls drawn by the round's number. One line for each round on standard
// output: a hash of what was called and came of it. With ODD_CALLS in the environment, that itself.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 50, LOG_BYTES = 1 << 20, SECONDS = 30 };

// The memory that calls are given, at the same addresses in every run.
#define BASE 0x200000000
#define BUFFER BASE                 // 64 KiB; nothing is mapped behind it
#define BUFFER_END (BASE + 0x10000)
#define READ_ONLY (BASE + 0x20000)
#define NO_ACCESS (BASE + 0x22000)
#define DATA (BASE + 0x30000)       // structures, made afresh before each call
#define MAPS (BASE + 0x100000)      // where files are mapped
#define DATA_BYTES 0x10000
#define MAPS_BYTES 0x100000

// Descriptors that each round has, from this number on.
enum {
    FILE_RW = 20, FILE_READ, FILE_WRITE, APPEND, DIR, FILE_PATH, DIR_PATH, GONE_FILE, GONE_DIR,
    PIPE_READ, PIPE_WRITE, SOCKET, LINK_PATH, UNNAMED, FIFO, EVENT, EPOLL, NO_WAY, MEMORY, FIRST_FREE
};

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static uint64_t state;
static uint32_t draw(void) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return state >> 33;
}
#define ONE_OF(...) ({ long all[] = {__VA_ARGS__}; all[draw() % (sizeof all / sizeof *all)]; })

static char *log_at;
static size_t *log_len;
static void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    *log_len += vsnprintf(log_at + *log_len, LOG_BYTES - *log_len, format, list);
    va_end(list);
}

static long bad_pointer(void) {
    return ONE_OF(0, 8, BUFFER_END, BUFFER_END - 1, NO_ACCESS, 0x7ffffffff000, (long)0xffff800000000000, -1);
}

static char *at_data;
static void *data(size_t n) {
    void *p = at_data;
    at_data += (n + 15) & ~15ul;
    return memset(p, 0, n);
}

static long text(const char *t) { return (long)strcpy(data(strlen(t) + 1), t); }

// None leads out of the round's own directory, also after any change of the working directory: what
// is called has effects, as root too.
static long path(void) {
    static const char *names[] = {
        "", "d/..", "f", "f", "missing", "d", "d/", "f/", "l", "l/", "ld", "ld/", "dangling",
        "dangling/", "loop", "d/x", "f/x", "./f", "d/../f", "d/..", "d/.", "missing/f", "fifo", "socket",
        "ld/x", "l/x", "new", "new/", "d/new", "/proc/self/fd/20", "/proc/self/fd/24", "/proc/self/fd/77",
        "/proc/self/cwd/f", "d//", "e", "e/", "g", "e/./../f",
    };
    uint32_t n = draw() % 48;
    if (n < sizeof names / sizeof *names) return text(names[n]);
    if (n < 45) {
        int len = ONE_OF(255, 256, 4095, 4096, 5000);
        char *p = data(len + 1);
        memset(p, 'a', len);
        for (int i = 200; len > 300 && i < len; i += 200) p[i] = '/';
        return (long)p;
    }
    if (n == 46) {  // without an end
        memset((char *)BUFFER_END - 8, 'f', 8);
        return BUFFER_END - 8;
    }
    return bad_pointer();
}

static long descriptor(void) {
    if (draw() % 6 == 0) return ONE_OF(-1, AT_FDCWD, 77, 1000000, 0x7fffffff, (int)0x80000000);
    return FILE_RW + draw() % (FIRST_FREE + 2 - FILE_RW);
}

// The record of a removed directory is gone, and that of a FIFO that a round may remove.
static long there(long fd) { return fd == GONE_DIR || fd == FIFO ? DIR : fd; }

// Not by the number of a descriptor: that is on another file system, with a path of another length.
static long named(void) {
    for (;;) {
        long p = path();
        if (p < DATA || p >= DATA + DATA_BYTES || *(char *)p != '/') return p;
    }
}

// Of a file that is open for writing ETXTBSY may come first.
static long not_executable(void) {
    for (;;) {
        long p = named();
        if (p < DATA || p >= DATA + DATA_BYTES || !strchr("fgl", ((char *)p)[strlen((char *)p) - !!*(char *)p])) return p;
    }
}

static long buffer(void) { return draw() % 4 ? ONE_OF(BUFFER, BUFFER + 1, BUFFER + 100, BUFFER_END - 10) : draw() % 8 ? bad_pointer() : READ_ONLY; }
static long length(void) { return ONE_OF(0, 1, 7, 16, 24, 100, 279, 4096, 5000, 65536, 1 << 20, 0x7fffffff, 0x80000000, 1l << 62, (long)(1ul << 63), -1); }
static long offset(void) { return ONE_OF(0, 0, 1, 100, 4095, 4096, 20000, 1l << 32, INT64_MAX, INT64_MIN, -1, -4096); }
static long flags(void) { return ONE_OF(0, 0, 0, 1, 2, 3, 4, 8, 16, 32, 64, 99, 0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x1100, 1 << draw() % 32, -1); }

static long vector(void) {
    if (draw() % 6 == 0) return bad_pointer();
    struct iovec *v = data(16 * sizeof *v);
    for (int i = 0; i < 16; i++) v[i] = (struct iovec){(void *)(draw() % 8 ? BUFFER + 200 * i : buffer()), draw() % 8 ? draw() % 50 : length()};
    return (long)v;
}

static long value64(long n) {
    if (draw() % 5 == 0) return bad_pointer();
    long *p = data(8);
    *p = n;
    return (long)p;
}

static long times(void) {
    if (draw() % 4 == 0) return draw() % 2 ? 0 : bad_pointer();
    long *p = data(32);
    for (int i = 0; i < 4; i++) p[i] = ONE_OF(0, 1, 5, 999999, 1000000, 999999999, 1000000000, -1, UTIME_NOW, UTIME_OMIT, 1234567890);
    return (long)p;
}

static long lock(void) {
    if (draw() % 8 == 0) return bad_pointer();
    struct flock *k = data(sizeof *k);
    *k = (struct flock){ONE_OF(F_RDLCK, F_WRLCK, F_UNLCK, 7, -1), ONE_OF(0, 1, 2, 9, -1), ONE_OF(0, 1, 10, -1, INT64_MAX), ONE_OF(0, 1, 10, -1, -20, INT64_MAX), draw() % 4 == 0};
    // The size of a directory is its file system's own.
    if (k->l_whence == SEEK_END) k->l_start = 100, k->l_len = k->l_len < 0 ? 1 : k->l_len;
    return (long)k;
}

static long address(void) {
    if (draw() % 6 == 0) return bad_pointer();
    struct sockaddr_un *a = data(256);
    a->sun_family = ONE_OF(AF_UNIX, AF_UNIX, AF_UNIX, AF_INET, AF_UNSPEC);
    const char *p = (char *)path();
    if ((long)p >= DATA && (long)p < DATA + DATA_BYTES) strncpy(a->sun_path, p, sizeof a->sun_path);
    return (long)a;
}

static long message(void) {
    if (draw() % 5 == 0) return bad_pointer();
    struct msghdr *m = data(64 * sizeof(struct mmsghdr));
    m->msg_iov = (struct iovec *)vector();
    m->msg_iovlen = ONE_OF(0, 1, 2, 1024, 1025, -1);
    if (draw() % 2) m->msg_name = (void *)address(), m->msg_namelen = ONE_OF(0, 2, 20, 110, 128, -1);
    else {
        struct cmsghdr *c = data(64);
        *c = (struct cmsghdr){ONE_OF(0, 16, 20, 24, 1000, -1), SOL_SOCKET, SCM_RIGHTS};
        *(int *)CMSG_DATA(c) = descriptor();
        m->msg_control = c;
        m->msg_controllen = ONE_OF(0, 8, 20, 24, 64, 1 << 20, -1);
    }
    return (long)m;
}

static long polled(void) {
    if (draw() % 5 == 0) return bad_pointer();
    struct pollfd *p = data(16 * sizeof *p);
    for (int i = 0; i < 16; i++) p[i] = (struct pollfd){descriptor(), draw() & 0x3f, 7};
    return (long)p;
}

static long set(void) {
    if (draw() % 3 == 0) return draw() % 2 ? 0 : bad_pointer();
    long *p = data(128);
    *p = (uint64_t)draw() << 20 & 0xffffffffff;
    return (long)p;
}

static long how(void) {
    if (draw() % 6 == 0) return bad_pointer();
    uint64_t *p = data(64);
    p[0] = ONE_OF(0, O_RDWR, O_WRONLY, O_DIRECTORY, O_PATH, O_CREAT | O_RDWR, 1l << 40, -1);
    p[1] = ONE_OF(0, 0, 0644, 010000);
    p[2] = ONE_OF(0, 0, 1, 2, 4, 8, 16, 24, 64);
    p[3] = draw() % 8 == 0;
    return (long)p;
}

static long request_list(void) {
    if (draw() % 5 == 0) return bad_pointer();
    long *list = data(8 * 8);
    for (int i = 0; i < 8; i++) list[i] = draw() % 8 ? (long)data(64) : bad_pointer();
    return (long)list;
}

// What an argument is, by a letter.
static long argument(char kind) {
    switch (kind) {
    case 'f': return descriptor();
    case 'D': return draw() % 2 ? AT_FDCWD : there(descriptor());
    case 'p': return path();
    case 'b': return buffer();
    case 'n': return length();
    case 'o': return offset();
    case 'O': return draw() % 2 ? 0 : value64(offset());
    case 'v': return vector();
    case 'c': return ONE_OF(0, 1, 2, 3, 8, 16, 1025, 0x7fffffff, -1);
    case 'F': return ONE_OF(0, 1, 2, 3) | ONE_OF(0, 0, 0, O_CREAT, O_CREAT | O_EXCL, O_TRUNC, O_DIRECTORY, O_NOFOLLOW, O_NOFOLLOW | O_DIRECTORY, O_PATH, O_PATH | O_NOFOLLOW, O_APPEND, O_TMPFILE, O_CREAT | O_DIRECTORY, O_NOATIME, O_CREAT | O_PATH, 1 << draw() % 32);
    case 'm': return ONE_OF(0, 0644, 0777, 04755, 02755, 01777, 07777, 010000, S_IFIFO | 0644, S_IFREG | 0600, S_IFDIR | 0700, 0170000, -1);
    case 'x': return flags();
    case 'w': return ONE_OF(0, 1, 2, 5, -1);
    case 't': return times();
    case 'K': return ONE_OF(F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_OFD_GETLK, F_OFD_SETLK, F_GETPIPE_SZ, F_GETSIG, 1027, 1028, 1035, 1036, 1037, 1038, 999, -1);
    case 'z': return draw() % 2 ? lock() : ONE_OF(0, 1, 30, 1023, 1024, -1, O_APPEND, O_NONBLOCK, O_DIRECT);
    case 'L': return LOCK_NB | ONE_OF(LOCK_SH, LOCK_EX, LOCK_UN, 0, 3, 99, 16, -1);
    case 'a': return address();
    case 'A': return ONE_OF(0, 1, 2, 3, 20, 110, 111, 1000, -1);
    case 'I': return value64(ONE_OF(0, 2, 110, 128, -1));
    case 's': return draw() % 5 ? text((char *)ONE_OF((long)"user.a", (long)"user.b", (long)"user.", (long)"user", (long)"", (long)"trusted.a", (long)"security.a", (long)"system.a", (long)"other.a")) : path();
    case 'H': return there(descriptor());
    case 'r': return named();
    case 'X': return not_executable();
    case 'W': return flags() & ~RENAME_WHITEOUT;
    case 'Y': {  // what isn't removed
        static const char *to[] = {"", "d", "ld/", "d/.", "f", "l/", "missing", "dangling", "loop"};
        return text(to[draw() % 9]);
    }
    case 'Q': return flags();
    case 'E': return flags() & ~FALLOC_FL_ZERO_RANGE;
    case 'k': return ONE_OF(0, MSG_DONTWAIT, MSG_NOSIGNAL);
    case 'e': return ONE_OF(0, 1, 4096, 8192, 5000, -1);
    case 'i': return ONE_OF(0, 1, 100, 4096, 20000, 1l << 32, INT64_MIN, -1, -4096);
    case 'M': return draw() % 2 ? 0 : MAPS + 4096 * (draw() % 4) + ONE_OF(0, 0, 0, 1);
    case 'N': return ONE_OF(0, 1, 4096, 8192, 5000, -1, (long)(1ul << 63), 1l << 62);
    case 'P': return ONE_OF(0, 1, 2, 3, 3, 4, 8, 99, -1);
    case 'G': return ONE_OF(0, 1, 2, 3, 3, 1, 2, 1) | ONE_OF(0, 0, 0, MAP_ANONYMOUS, MAP_NORESERVE, MAP_POPULATE, MAP_SYNC);
    case 'q': return polled();
    case 'S': return set();
    case 'u': return ONE_OF(0, -1, 1000, 65534);
    case 'j': return ONE_OF(50, 51, 255, 300, 1024, 24, -1, 1 << 30);
    case 'h': return message();
    case 'y': return how();
    case 'R': return request_list();
    case 'C': return value64(ONE_OF(0, 0, 1, BUFFER));
    case '0': return 0;
    case '1': return ONE_OF(0, 0, 1, -1);
    case 'Z': return draw() % 4 ? (long)data(16) : ONE_OF(BUFFER_END, NO_ACCESS, 8);  // no time at all
    case 'B': return MAPS + 4096 * (draw() % 4) + ONE_OF(0, 0, 0, 1);
    case 'g': return ONE_OF(0, 1, 4, 8, 11, 13, 16, 128, -1);
    }
    abort();
}

// How a call's result is compared with tmpfs's: the value, its sign, the bytes read, the stat.
enum { EXACT, SIGN, READ, STAT };

// Calls by number: what is compared, and what their arguments are.
static const struct {
    const char *name;
    int number, compared;
    const char *arguments;
} calls[] = {
#define CALL(name, compared, arguments) {#name, SYS_##name, compared, arguments}
    CALL(open, EXACT, "pFm"), CALL(openat, EXACT, "DpFm"), CALL(openat2, EXACT, "Dpyn"),
    CALL(creat, EXACT, "pm"), CALL(close, EXACT, "f"), CALL(close_range, EXACT, "ffx"),
    CALL(dup, EXACT, "f"), CALL(dup2, EXACT, "fj"), CALL(dup3, EXACT, "fjF"),
    CALL(fcntl, EXACT, "fKz"), CALL(flock, EXACT, "fL"), CALL(poll, EXACT, "qc0"),
    CALL(ppoll, EXACT, "qcZ0"), CALL(select, EXACT, "cSSSZ"), CALL(pselect6, EXACT, "cSSSZ0"),
    CALL(epoll_ctl, EXACT, "fxfb"), CALL(read, READ, "fbn"), CALL(write, EXACT, "fbn"),
    CALL(pread64, READ, "fbno"), CALL(pwrite64, EXACT, "fbno"), CALL(readv, EXACT, "fvc"),
    CALL(writev, EXACT, "fvc"), CALL(preadv, EXACT, "fvco"), CALL(pwritev, EXACT, "fvco"),
    CALL(preadv2, EXACT, "fvco0Q"), CALL(pwritev2, EXACT, "fvco0Q"), CALL(lseek, EXACT, "fiw"),
    CALL(sendfile, EXACT, "ffOn"), CALL(copy_file_range, EXACT, "fOfOnx"),
    CALL(splice, EXACT, "fOfOnx"), CALL(tee, EXACT, "ffnx"), CALL(vmsplice, EXACT, "fvcx"),
    CALL(truncate, EXACT, "pi"), CALL(ftruncate, EXACT, "fi"), CALL(fallocate, EXACT, "fEoA"),
    CALL(fsync, EXACT, "f"), CALL(fdatasync, EXACT, "f"), CALL(sync_file_range, EXACT, "foox"),
    CALL(syncfs, EXACT, "f"), CALL(readahead, EXACT, "fon"), CALL(fadvise64, EXACT, "foox"),
    CALL(mmap, SIGN, "MNPGfo"), CALL(munmap, EXACT, "BN"), CALL(msync, EXACT, "MNx"),
    CALL(mprotect, EXACT, "MNP"), CALL(madvise, EXACT, "Bex"),
    CALL(mlock, EXACT, "MN"), CALL(mlock2, EXACT, "MNx"), CALL(stat, STAT, "pb"),
    CALL(lstat, STAT, "pb"), CALL(fstat, STAT, "Hb"), CALL(newfstatat, STAT, "Dpbx"),
    CALL(statx, EXACT, "Dpxxb"), CALL(statfs, EXACT, "pb"), CALL(fstatfs, EXACT, "fb"),
    CALL(getdents, SIGN, "fbn"), CALL(getdents64, SIGN, "fbn"), CALL(access, EXACT, "px"),
    CALL(faccessat, EXACT, "Dpx"), CALL(faccessat2, EXACT, "Dpxx"), CALL(chmod, EXACT, "pm"),
    CALL(fchmod, EXACT, "fm"), CALL(fchmodat, EXACT, "Dpm"), CALL(fchmodat2, EXACT, "Dpmx"),
    CALL(chown, EXACT, "puu"), CALL(lchown, EXACT, "puu"), CALL(fchown, EXACT, "fuu"),
    CALL(fchownat, EXACT, "Dpuux"), CALL(utime, EXACT, "pt"), CALL(utimes, EXACT, "pt"),
    CALL(futimesat, EXACT, "Dpt"), CALL(utimensat, EXACT, "Dptx"), CALL(umask, EXACT, "m"),
    CALL(setxattr, EXACT, "psbnx"), CALL(lsetxattr, EXACT, "psbnx"),
    CALL(fsetxattr, EXACT, "Hsbnx"), CALL(getxattr, EXACT, "psbn"),
    CALL(lgetxattr, EXACT, "psbn"), CALL(fgetxattr, EXACT, "Hsbn"), CALL(listxattr, EXACT, "pbn"),
    CALL(llistxattr, EXACT, "pbn"), CALL(flistxattr, EXACT, "Hbn"), CALL(removexattr, EXACT, "ps"),
    CALL(lremovexattr, EXACT, "ps"), CALL(fremovexattr, EXACT, "Hs"), CALL(mkdir, EXACT, "pm"),
    CALL(mkdirat, EXACT, "Dpm"), CALL(rmdir, EXACT, "p"), CALL(unlink, EXACT, "p"),
    CALL(unlinkat, EXACT, "Dpx"), CALL(rename, EXACT, "rr"), CALL(renameat, EXACT, "DrDr"),
    CALL(renameat2, EXACT, "DrDrW"), CALL(link, EXACT, "rr"), CALL(linkat, EXACT, "DrDrx"),
    CALL(symlink, EXACT, "rr"), CALL(symlinkat, EXACT, "pDp"), CALL(readlink, READ, "rbn"),
    CALL(readlinkat, READ, "Drbn"), CALL(mknod, EXACT, "pm0"), CALL(mknodat, EXACT, "Dpm0"),
    CALL(chdir, EXACT, "Y"), CALL(fchdir, EXACT, "H"), CALL(getcwd, SIGN, "bc"),
    CALL(execve, EXACT, "Xbb"), CALL(execveat, EXACT, "DXbbx"), CALL(bind, EXACT, "faA"),
    CALL(connect, EXACT, "faA"), CALL(sendto, EXACT, "fbnk00"), CALL(getsockname, EXACT, "fbI"),
    CALL(getpeername, EXACT, "fbI"), CALL(accept, EXACT, "fbI"), CALL(listen, EXACT, "fx"),
    CALL(recvfrom, EXACT, "fbnx00"), CALL(sendmsg, EXACT, "fhk"), CALL(sendmmsg, EXACT, "fhck"),
    CALL(recvmsg, EXACT, "fhx"), CALL(inotify_add_watch, EXACT, "fpx"),
    CALL(inotify_rm_watch, EXACT, "fx"), CALL(kcmp, EXACT, "11xff"), CALL(io_setup, SIGN, "cC"),
    CALL(io_destroy, EXACT, "b"), CALL(io_submit, EXACT, "bcR"), CALL(io_cancel, EXACT, "bbb"),
    CALL(io_getevents, EXACT, "bccbZ"), CALL(setrlimit, EXACT, "x0"), CALL(prlimit64, EXACT, "1x00"),
    CALL(rt_sigaction, EXACT, "gb0n"), CALL(rt_sigprocmask, EXACT, "x0bn"),
   
    CALL(timerfd_settime, EXACT, "fxb0"), CALL(epoll_wait, EXACT, "fbc0"),
};

static void make(const char *name, int bytes) {
    int f = open(name, O_CREAT | O_RDWR, 0644);
    for (int i = 0; i < bytes; i++) (void)!write(f, &(char){'a' + i % 26}, 1);
    close(f);
}

static void at(int number, int fd) {
    if (fd != number) dup2(fd, number), close(fd);
}

static void prepare(void) {
    make("f", 100), make("g", 5), make("gone", 10);
    truncate("f", 10000);
    mkdir("d", 0755), mkdir("e", 0755), mkdir("gone-d", 0755), make("d/x", 3);
    symlink("f", "l"), symlink("d", "ld"), symlink("nowhere", "dangling"), symlink("loop", "loop");
    mkfifo("fifo", 0644);
    at(FILE_RW, open("f", O_RDWR)), at(FILE_READ, open("f", O_RDONLY));
    at(FILE_WRITE, open("f", O_WRONLY)), at(APPEND, open("g", O_RDWR | O_APPEND));
    at(DIR, open("d", O_RDONLY)), at(FILE_PATH, open("f", O_PATH)), at(DIR_PATH, open("d", O_PATH));
    at(GONE_FILE, open("gone", O_RDWR)), at(GONE_DIR, open("gone-d", O_RDONLY));
    unlink("gone"), rmdir("gone-d");
    int p[2];
    (void)!pipe2(p, O_NONBLOCK);
    at(PIPE_READ, p[0]), at(PIPE_WRITE, p[1]);
    (void)!write(PIPE_WRITE, "0123456789", 10);
    at(SOCKET, socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    at(LINK_PATH, open("l", O_PATH | O_NOFOLLOW)), at(UNNAMED, open(".", O_TMPFILE | O_RDWR, 0600));
    at(FIFO, open("fifo", O_RDWR | O_NONBLOCK)), at(EVENT, eventfd(1, EFD_NONBLOCK));
    at(EPOLL, epoll_create1(0)), at(NO_WAY, open("g", 3));
    at(MEMORY, memfd_create("m", 0));
    (void)!write(MEMORY, "0123456789", 10);
    for (int i = 0; i < 3; i++) mmap((void *)(MAPS + 0x4000 * i), 0x4000, 3, MAP_FIXED | MAP_SHARED, FILE_RW, 0);
}

static void call(int round, int n) {
    memset((void *)BUFFER, 'b', 0x10000);
    at_data = (char *)DATA;
    int which = draw() % (sizeof calls / sizeof *calls);
    long a[6] = {0};
    const char *arguments = calls[which].arguments;
    for (int i = 0; arguments[i]; i++) a[i] = argument(arguments[i]);
    say("%d.%d %s", round, n, calls[which].name);
    for (int i = 0; arguments[i]; i++) {
        const char *p = (char *)a[i];
        if (strchr("psrX", arguments[i]) && a[i] >= DATA && a[i] < DATA + DATA_BYTES) say(" %.40s", p);
        else say(" %lx", a[i]);
    }
    errno = 0;
    long r = syscall(calls[which].number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (r < 0) say(" = %s", strerrorname_np(errno));
    else say(" = %ld", calls[which].compared == SIGN ? r > 0 : r);
    int to = calls[which].compared == STAT && calls[which].number == SYS_newfstatat ? 2 : 1;
    if (calls[which].compared == READ) to = calls[which].number == SYS_readlinkat ? 2 : 1;
    if (r > 0 && r <= 0x10000 && calls[which].compared == READ) {
        uint32_t sum = 0;
        for (long i = 0; i < r; i++) sum = sum * 31 + ((unsigned char *)a[to])[i];
        say(" %08x", sum);
    }
    if (r == 0 && calls[which].compared == STAT) {
        struct stat s;
        memcpy(&s, (void *)a[to], sizeof s);
        say(" %o %d %d", s.st_mode & (S_ISLNK(s.st_mode) ? S_IFMT : -1), s.st_uid, s.st_gid);
        if (S_ISREG(s.st_mode)) say(" %ld %ld", s.st_nlink, s.st_size);
    }
    say("\n");
}

// The last line.
static char *last(char *text) {
    char *line = text;
    for (char *p = text; *p; p++) if (*p == '\n' && p[1]) line = p;
    return line;
}

static int take(const char *name, const struct stat *s, int kind, struct FTW *at) {
    (void)s, (void)at;
    if (kind == FTW_D || kind == FTW_DNR) chmod(name, 0700);
    return 0;
}
static int drop(const char *name, const struct stat *s, int kind, struct FTW *at) {
    (void)s, (void)kind, (void)at;
    return remove(name);
}

int main(int n, char **a) {
    int rounds = n > 1 ? atoi(a[1]) : 100, first = n > 2 ? atoi(a[2]) : 0;
    int flags = MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    mmap((void *)BUFFER, 0x10000, 3, flags | MAP_PRIVATE, -1, 0);
    mmap((void *)READ_ONLY, 0x1000, PROT_READ, flags | MAP_PRIVATE, -1, 0);
    mmap((void *)NO_ACCESS, 0x1000, PROT_NONE, flags | MAP_PRIVATE, -1, 0);
    mmap((void *)DATA, DATA_BYTES, 3, flags | MAP_PRIVATE, -1, 0);
    mmap((void *)MAPS, MAPS_BYTES, PROT_NONE, flags | MAP_PRIVATE, -1, 0);
    log_at = mmap(0, LOG_BYTES + 4096, 3, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
    log_len = (size_t *)(log_at + LOG_BYTES);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 1024});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    for (int round = first; round < first + rounds; round++) {
        *log_len = *log_at = 0;
        mkdir("round", 0755), mkdir("round/in", 0755);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int ignored[] = {SIGPIPE, SIGXFSZ, SIGIO};
            for (int i = 0; i < 3; i++) signal(ignored[i], SIG_IGN);
            alarm(SECONDS);
            umask(022);
            if (chdir("round/in")) _exit(1);
            prepare();
            state = round;
            for (int i = 0; i < 3; i++) draw();
            for (int i = 0; i < CALLS; i++) call(round, i);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (getenv("ODD_CALLS")) fwrite(log_at, 1, *log_len, stdout);
        uint64_t hash = 14695981039346656037u;
        for (size_t i = 0; i < *log_len; i++) hash = (hash ^ log_at[i]) * 1099511628211;
        printf("%d: %lx\n", round, hash);
        if (status) printf("%d: ends with status %x, in:%s", round, status, last(log_at));
        nftw("round", take, 20, FTW_PHYS);
        nftw("round", drop, 20, FTW_PHYS | FTW_DEPTH);
    }
    return 0;
}
