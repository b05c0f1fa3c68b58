// What mmap and its relatives do, printed: mmap-calls.sh compares a pool with a plain directory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define P 4096L
#define RW (PROT_READ | PROT_WRITE)
#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static __thread sigjmp_buf back;
static __thread volatile void *fault_at;
static __thread volatile int fault_code, guarded;

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (!guarded) { signal(sig, SIG_DFL); return; }
    fault_at = info->si_addr;
    fault_code = info->si_code;
    siglongjmp(back, sig);
}

static void handlers(void) {
    struct sigaction old, sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &sa, &old);
    printf("SIGBUS before: %s\n", old.sa_handler == SIG_DFL ? "default" : "something");
    sigaction(SIGSEGV, &sa, 0);
    sigaction(SIGBUS, 0, &old);
    printf("SIGBUS now: %s\n", old.sa_sigaction == on_fault ? "ours" : "something else");
}

// What reading (or writing, with w) a byte gives: the byte, or the signal.
static const char *touch(volatile char *p, int w) {
    static __thread char text[8][40];
    static __thread int n;
    char *out = text[n++ % 8];
    guarded = 1;
    int sig = sigsetjmp(back, 1);
    if (sig == 0) {
        char c = *p;
        if (w) *p = (char)w;
        sprintf(out, w ? "%02x<-%02x" : "%02x", (unsigned char)c, (unsigned char)w);
    } else {
        sprintf(out, "%s%s", sig == SIGBUS ? "BUS" : "SEGV", (char *)fault_at == p ? "" : " elsewhere");
        if (sig == SIGBUS && fault_code != BUS_ADRERR) strcat(out, " code");
    }
    guarded = 0;
    return out;
}

static const char *name(int e) { return e == 0 ? "ok" : strerrorname_np(e); }
#define ERR(call) (errno = 0, (void)!(call), name(errno))
static const char *map_err(size_t len, int prot, int flags, int fd, off_t off) {
    errno = 0;
    void *p = mmap(0, len, prot, flags, fd, off);
    if (p != MAP_FAILED) { munmap(p, len); return "ok"; }
    return name(errno);
}

static int file(const char *path, long size, char fill) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) { perror(path); exit(1); }
    if (fill) {
        char *b = malloc(size + 1);
        memset(b, fill, size);
        if (pwrite(fd, b, size, 0) != size) perror("pwrite");
        free(b);
    } else if (ftruncate(fd, size)) perror("ftruncate");
    return fd;
}

static char *map(int fd, long len, int prot, int flags, long off) {
    char *p = mmap(0, len, prot, flags, fd, off);
    if (p == MAP_FAILED) { printf("mmap: %s\n", name(errno)); exit(1); }
    return p;
}

static int at(int fd, long off) {
    unsigned char c;
    return pread(fd, &c, 1, off) == 1 ? c : -1;
}

static long size(int fd) { struct stat s; fstat(fd, &s); return s.st_size; }

static void errors(void) {
    int fd = file("errors", 3 * P, 'e'), ro = open("errors", O_RDONLY), wo = open("errors", O_WRONLY);
    int dir = open(".", O_RDONLY), path = open("errors", O_PATH);
    printf("length 0: %s\n", map_err(0, PROT_READ, MAP_SHARED, fd, 0));
    printf("unaligned: %s\n", map_err(P, PROT_READ, MAP_SHARED, fd, 100));
    printf("no type: %s\n", map_err(P, PROT_READ, 0, fd, 0));
    printf("huge: %s\n", map_err(-P, PROT_READ, MAP_SHARED, fd, 0));
    printf("overflow: %s\n", map_err(P, PROT_READ, MAP_SHARED, fd, 0x7ffffffffffff000L));
    printf("far: %s\n", map_err(P, PROT_READ, MAP_SHARED, fd, 1L << 40));
    printf("write only: %s %s %s\n", map_err(P, PROT_READ, MAP_SHARED, wo, 0),
           map_err(P, PROT_WRITE, MAP_SHARED, wo, 0), map_err(P, PROT_NONE, MAP_PRIVATE, wo, 0));
    printf("read only: %s %s %s\n", map_err(P, PROT_READ, MAP_SHARED, ro, 0),
           map_err(P, RW, MAP_SHARED, ro, 0), map_err(P, RW, MAP_PRIVATE, ro, 0));
    printf("directory: %s, O_PATH: %s, closed: %s\n", map_err(P, PROT_READ, MAP_SHARED, dir, 0),
           map_err(P, PROT_READ, MAP_SHARED, path, 0), map_err(P, PROT_READ, MAP_SHARED, 999, 0));
    printf("validate: %s %s %s\n", map_err(P, RW, MAP_SHARED_VALIDATE, fd, 0),
           map_err(P, RW, MAP_SHARED_VALIDATE | 0x800000, fd, 0),
           map_err(P, RW, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0));
    printf("populate: %s\n", map_err(5 * P, RW, MAP_SHARED | MAP_POPULATE, fd, 0));
    printf("fixed, unaligned: %s\n", ERR(mmap((void *)0x10001, P, RW, MAP_SHARED | MAP_FIXED, fd, 0)));
    char *p = map(ro, P, PROT_READ, MAP_SHARED, 0);
    printf("read only, mprotect: %s, then %s\n", ERR(mprotect(p, P, RW)), touch(p, 'x'));
    munmap(p, P);
    p = map(ro, 5 * P, PROT_READ, MAP_SHARED, 0);
    printf("read only, behind the end, mprotect: %s\n", ERR(mprotect(p + 4 * P, P, RW)));
    munmap(p, 5 * P);
    p = map(ro, P, PROT_READ, MAP_PRIVATE, 0);
    printf("read only, private, mprotect: %s, then %s, file %x\n", ERR(mprotect(p, P, RW)), touch(p, 'x'), at(fd, 0));
    munmap(p, P);
    printf("noreplace: ");
    p = map(fd, P, PROT_READ, MAP_SHARED, 0);
    printf("%s\n", ERR(mmap(p, P, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0)));
    munmap(p, P);
    close(fd), close(ro), close(wo), close(dir), close(path);
}

static void ends(int flags, const char *what) {
    int fd = file("ends", P + 100, 'a');
    char *p = map(fd, 16 * P, RW, flags, 0);
    printf("%s: %s %s", what, touch(p + P + 99, 0), touch(p + P + 200, 0));
    printf(" %s %s\n", touch(p + 2 * P, 0), touch(p + 15 * P, 'z'));
    ftruncate(fd, 3 * P + 1);
    printf("ftruncate up: %s %s %s\n", touch(p + 2 * P, 0), touch(p + 3 * P, 0), touch(p + 4 * P, 0));
    pwrite(fd, "bbb", 3, 5 * P);
    printf("write behind: %s %s %s\n", touch(p + 4 * P, 0), touch(p + 5 * P + 2, 0), touch(p + 6 * P, 0));
    posix_fallocate(fd, 0, 8 * P);
    printf("fallocate: %s %s\n", touch(p + 7 * P, 'f'), touch(p + 8 * P, 0));
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5 * P, P);
    printf("punch: %s\n", touch(p + 5 * P + 2, 0));
    ftruncate(fd, P);
    printf("ftruncate down: %s %s %s %s\n", touch(p, 0), touch(p + P, 0), touch(p + 5 * P, 'q'), touch(p + 7 * P, 0));
    ftruncate(fd, 8 * P);
    printf("up again: %s %s %s %s\n", touch(p + P, 0), touch(p + 5 * P, 0), touch(p + 7 * P, 0), touch(p + 8 * P, 0));
    close(open("ends", O_WRONLY | O_TRUNC));
    printf("O_TRUNC: %s %s\n", touch(p, 0), touch(p + 7 * P, 0));
    truncate("ends", 2 * P);
    printf("truncate: %s %s\n", touch(p + P, 0), touch(p + 2 * P, 0));
    munmap(p, 16 * P);
    p = map(fd, 2 * P, RW, flags, 4 * P);
    printf("offset behind the end: %s", touch(p, 0));
    ftruncate(fd, 5 * P);
    printf(" %s %s\n", touch(p, 'o'), touch(p + P, 0));
    munmap(p, 2 * P);
    close(fd);
}

static void tails(void) {
    if (!getenv("FOREBAY_DIR")) {
        // Not every file system does this right.
        printf("size 10, after growing 00 00, reopened 0 0\ncut and grown: i 0 00\n");
        return;
    }
    int fd = file("tail", 10, 't');
    char *p = map(fd, P, RW, MAP_SHARED, 0);
    memset(p + 10, 'g', P - 10);
    printf("size %ld", size(fd));
    ftruncate(fd, 100);
    printf(", after growing %s %s", touch(p + 50, 0), touch(p + 99, 0));
    memset(p + 100, 'g', P - 100);
    munmap(p, P);
    close(fd);
    fd = open("tail", O_RDWR);
    ftruncate(fd, 2 * P);
    printf(", reopened %d %d\n", at(fd, 200), at(fd, P + 1));
    // Behind the end of a file that becomes shorter and longer while mapped.
    p = map(fd, 4 * P, RW, MAP_SHARED, 0);
    ftruncate(fd, 4 * P);
    memset(p, 'h', 4 * P);
    ftruncate(fd, 100);
    p[50] = 'i', p[150] = 'j';
    ftruncate(fd, 4 * P);
    long sum = 0;
    for (long i = 100; i < 4 * P; i++) sum += at(fd, i);
    printf("cut and grown: %c %ld %s\n", at(fd, 50), sum, touch(p + 3 * P, 0));
    munmap(p, 4 * P);
    close(fd);
    unlink("tail");
}

static long changed(const char *path, struct timespec *before) {
    struct stat s;
    stat(path, &s);
    long later = s.st_mtim.tv_sec > before->tv_sec || s.st_mtim.tv_sec == before->tv_sec && s.st_mtim.tv_nsec > before->tv_nsec;
    later &= s.st_ctim.tv_sec > before->tv_sec || s.st_ctim.tv_sec == before->tv_sec && s.st_ctim.tv_nsec > before->tv_nsec;
    *before = s.st_mtim;
    usleep(20000);
    return later;
}

static void times(void) {
    if (!getenv("FOREBAY_DIR")) {
        // Nor this.
        printf("times: read 0, msync 1, munmap 1, exit 1, kill 1\n");
        return;
    }
    int fd = file("times", 2 * P, 't');
    struct timespec t = {0};
    changed("times", &t);
    munmap(map(fd, P, PROT_READ, MAP_SHARED, 0), P);
    munmap(map(fd, P, RW, MAP_PRIVATE, 0), P);
    printf("times: read %ld", changed("times", &t));
    char *p = map(fd, P, RW, MAP_SHARED, 0);
    *p = 1, msync(p, P, MS_ASYNC);
    printf(", msync %ld", changed("times", &t));
    *p = 2, munmap(p, P);
    printf(", munmap %ld", changed("times", &t));
    fflush(stdout);
    for (int kills = 0; kills < 2; kills++) {
        pid_t pid = fork();
        if (pid == 0) {
            *map(fd, P, RW, MAP_SHARED, 0) = 3;
            if (kills) raise(SIGKILL);
            _exit(0);
        }
        waitpid(pid, 0, 0);
        long ok = 0;
        // After a kill somebody has to notice.
        for (int i = 0; i < 150 && !ok; i++) ok = changed("times", &t);
        printf(kills ? ", kill %ld\n" : ", exit %ld", ok);
    }
    close(fd);
    unlink("times");
}

static void killed(void) {
    int fd = file("killed", 300 * P, 'k');
    fflush(stdout);
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            char *p = map(fd, 300 * P, RW, MAP_SHARED, 0);
            memset(p + i * 100 * P, 'A' + i, 100 * P);
            raise(SIGKILL);
        }
        waitpid(pid, 0, 0);
    }
    printf("killed: %c%c%c%c\n", at(fd, 0), at(fd, 150 * P), at(fd, 200 * P), at(fd, 300 * P - 1));
    close(fd);
}

// The first thread ends, the others go on: the process lives, with all that it has mapped.
static char *lasting;
static void *last_thread(void *fd) {
    usleep(1500000);
    lasting[5 * P] = 'L';
    ftruncate((int)(long)fd, 6 * P);
    printf("first thread gone: %s %s %d\n", touch(lasting + 5 * P, 0), touch(lasting + 6 * P, 0), at((int)(long)fd, 5 * P));
    fflush(stdout);
    _exit(0);
}

static void first_thread_ends(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        long fd = file("first", 8 * P, 'f');
        lasting = map(fd, 8 * P, RW, MAP_SHARED, 0);
        unlink("first");
        pthread_t t;
        pthread_create(&t, 0, last_thread, (void *)fd);
        pthread_exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("status %x\n", status);
}

static void privates(void) {
    int fd = file("private", 4 * P, 'p');
    char *p = map(fd, 4 * P, RW, MAP_PRIVATE, 0);
    pwrite(fd, "Q", 1, 0);
    printf("private sees %s", touch(p, 0));
    p[1] = 'x';
    pwrite(fd, "R", 1, P);
    printf(", page of its own %s, other page %s, file %c\n", touch(p + 1, 0), touch(p + P, 0), at(fd, 1));
    madvise(p, P, MADV_DONTNEED);
    printf("DONTNEED: %s\n", touch(p + 1, 0));
    p[2 * P] = 'y';
    ftruncate(fd, 2 * P);
    printf("own page cut: %s\n", touch(p + 2 * P, 0));
    ftruncate(fd, 4 * P);
    printf("and back: %s\n", touch(p + 2 * P, 0));
    munmap(p, 4 * P);
    close(fd);
}

static void parts(void) {
    int fd = file("parts", 8 * P, 'a');
    for (int i = 0; i < 8; i++) pwrite(fd, &(char){'0' + i}, 1, i * P);
    char *p = map(fd, 8 * P, RW, MAP_SHARED, 0);
    munmap(p + 2 * P, P);
    printf("hole: %s %s %s\n", touch(p + P, 0), touch(p + 2 * P, 0), touch(p + 3 * P, 0));
    mmap(p + 4 * P, P, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("anonymous over it: %s\n", touch(p + 4 * P, 'A'));
    mmap(p + 5 * P, P, RW, MAP_SHARED | MAP_FIXED, fd, 0);
    printf("another page over it: %s\n", touch(p + 5 * P, 0));
    ftruncate(fd, 5 * P);
    printf("cut: %s %s %s %s\n", touch(p + 4 * P, 0), touch(p + 5 * P, 0), touch(p + 6 * P, 0), touch(p + 3 * P, 0));
    mprotect(p + P, P, PROT_READ);
    printf("mprotect: %s %s %s\n", touch(p + P, 'w'), touch(p, 'w'), touch(p + P, 0));
    mprotect(p + 6 * P, P, PROT_READ);
    ftruncate(fd, 8 * P);
    printf("grown behind mprotect: %s %s %s\n", touch(p + 6 * P, 'w'), touch(p + 6 * P, 0), touch(p + 7 * P, 'w'));
    madvise(p, P, MADV_DONTNEED);
    printf("DONTNEED: %s\n", touch(p, 0));
    printf("REMOVE: %s", ERR(madvise(p + 7 * P, P, MADV_REMOVE)));
    printf(" %s %d, read-only page %s\n", touch(p + 7 * P, 0), at(fd, 7 * P), ERR(madvise(p + P, P, MADV_REMOVE)));
    printf("msync: %s %s %s %s %s %s\n", ERR(msync(p, P, MS_SYNC)), ERR(msync(p, P, MS_ASYNC | MS_INVALIDATE)),
           ERR(msync(p, P, MS_SYNC | MS_ASYNC)), ERR(msync(p + 1, P, MS_SYNC)), ERR(msync(p, 4 * P, MS_SYNC)),
           ERR(msync(p, P, 64)));
    printf("mlock: %s %s\n", ERR(mlock(p, 2 * P)), ERR(munlock(p, 2 * P)));
    munmap(p, 8 * P);
    // Over what is there already, and over a part of itself.
    p = map(fd, 4 * P, RW, MAP_SHARED, 0);
    mmap(p + P, 2 * P, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 3 * P);
    printf("over itself: %s %s %s\n", touch(p + P, 0), touch(p + P, 'n'), touch(p + 3 * P, 0));
    close(fd);
    munmap(p - 0, 4 * P);
    printf("gone: %s\n", touch(p, 0));
}

static void lives_on(void) {
    int fd = file("lives", 3 * P, 'l');
    char *p = map(fd, 3 * P, RW, MAP_SHARED, 0);
    close(fd);
    unlink("lives");
    p[P] = 'L';
    printf("closed, unlinked: %s", touch(p + P, 0));
    fd = file("lives", 3 * P, 'n');
    printf(", a new one: %s, %c\n", touch(p + P, 0), at(fd, P));
    pid_t pid = fork();
    if (pid == 0) {
        p[0] = 'c';
        char *q = map(fd, P, RW, MAP_SHARED, 0);
        q[0] = 'C';
        munmap(p + 2 * P, P);
        _exit(0);
    }
    waitpid(pid, 0, 0);
    printf("child: %s %c %s\n", touch(p, 0), at(fd, 0), touch(p + 2 * P, 0));
    rename("lives", "lives2");
    file("lives3", P, '3');
    rename("lives3", "lives2");
    char *q = map(fd, 3 * P, RW, MAP_SHARED, 0);
    q[P] = 'r';
    printf("replaced: %c\n", at(fd, P));
    munmap(p, 3 * P);
    munmap(q, 3 * P);
    close(fd);
}

static char *remap(char *p, long old, long new, int flags, char *to) {
    errno = 0;
    char *q = mremap(p, old, new, flags, to);
    if (q == MAP_FAILED) { printf(" %s", name(errno)); return 0; }
    return q;
}

static void remaps(void) {
    int fd = file("remap", 64 * P, 0);
    for (int i = 0; i < 64; i++) pwrite(fd, &(char){i + 1}, 1, i * P);
    char *room = map(-1, 400 * P, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, 0);
    char *p = mmap(room + 100 * P, 8 * P, RW, MAP_SHARED | MAP_FIXED, fd, 2 * P);
    printf("mremap shrinks:");
    printf(" %d %s %s\n", remap(p, 8 * P, 4 * P, 0, 0) == p, touch(p + 3 * P, 0), touch(p + 4 * P, 0));
    printf("in the way:");
    remap(p, 4 * P, 8 * P, 0, 0);
    munmap(room + 104 * P, 100 * P);
    printf(", free: %d %s %s\n", remap(p, 4 * P, 70 * P, 0, 0) == p, touch(p + 60 * P, 0), touch(p + 62 * P, 0));
    ftruncate(fd, 66 * P);
    printf("file follows: %s\n", touch(p + 63 * P, 'm'));
    p[10 * P] = 'k';
    char *q = remap(p, 70 * P, 20 * P, MREMAP_MAYMOVE | MREMAP_FIXED, room + 10 * P);
    printf("moved: %d %s %s %s, old %s %s\n", q == room + 10 * P, touch(q, 0), touch(q + 10 * P, 0),
           touch(q + 20 * P, 0), touch(p, 0), touch(p + 30 * P, 0));
    p = remap(q, 20 * P, 200 * P, MREMAP_MAYMOVE, 0);
    printf("grown and moved: %d %s %s %s %s\n", p != 0, touch(p, 0), touch(p + 50 * P, 0), touch(p + 63 * P, 0), touch(p + 150 * P, 0));
    printf("part of it moved:");
    q = remap(p + 2 * P, P, P, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    printf(" %s, %s %s %s\n", touch(q, 0), touch(p + P, 0), touch(p + 2 * P, 0), touch(p + 3 * P, 0));
    printf("duplicate:");
    char *d = remap(p + 5 * P, 0, 2 * P, MREMAP_MAYMOVE, 0);
    d[0] = 'D';
    printf(" %s %s %s\n", touch(d + P, 0), touch(p + 5 * P, 0), touch(p + 6 * P, 0));
    printf("dontunmap:");
    char *u = remap(p + 8 * P, P, P, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    printf(" %d %s %s\n", u != 0 && u != p + 8 * P, touch(u, 0), touch(p + 8 * P, 0));
    printf("errors:");
    remap(p, P, P, MREMAP_FIXED, room);
    remap(p + 1, P, P, MREMAP_MAYMOVE, 0);
    remap(p, P, 0, MREMAP_MAYMOVE, 0);
    remap(p, 2 * P, 2 * P, MREMAP_MAYMOVE | MREMAP_FIXED, p + P);
    remap(p, P, 2 * P, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    remap(p, P, P, 128, 0);
    remap(p + 2 * P, P, 3 * P, MREMAP_MAYMOVE, 0);
    printf("\n");
    munmap(p, 200 * P), munmap(d, 2 * P);
    // Private pages move with it.
    p = map(fd, 4 * P, RW, MAP_PRIVATE, 0);
    p[P] = 'v';
    mprotect(p + 2 * P, P, PROT_READ);
    q = remap(p, 2 * P, 6 * P, MREMAP_MAYMOVE, 0);
    printf("private: %s %s %s, file %d, left %s\n", touch(q + P, 0), touch(q, 'w'), touch(q + 5 * P, 0), at(fd, P), touch(p + 2 * P, 0));
    printf("private duplicate:");
    remap(q, 0, P, MREMAP_MAYMOVE, 0);
    printf("\n");
    munmap(q, 6 * P);
    munmap(p + 2 * P, 2 * P);
    munmap(room, 400 * P);
    close(fd);
}

static void buffers(void) {
    int fd = file("buffers", 2 * P, 'b'), other = file("other", 20000, 'o');
    char *p = map(fd, 8 * P, RW, MAP_SHARED, 0);
    printf("read behind the end: %s\n", ERR(read(other, p + 4 * P, 100)));
    pwrite(fd, "x", 1, 6 * P);
    printf("read: %zd %s", pread(other, p + 2 * P, 100, 0), touch(p + 2 * P + 99, 0));
    printf(", over the end: %zd", pread(other, p + 6 * P, 2 * P, 0));
    struct iovec v[2] = {{p + P, 10}, {p + 3 * P, P}};
    printf(", readv %zd\n", preadv(other, v, 2, 5));
    printf("write from it: %zd, from itself: %zd", pwrite(other, p + 5 * P, 50, 0), pwrite(fd, p + P, P, 7 * P));
    printf(", %s %d %d\n", touch(p + 7 * P + 9, 0), at(other, 49), at(other, 50));
    ftruncate(fd, 3 * P);
    printf("write from behind the end: %s", ERR(write(other, p + 4 * P, 10)));
    int pipes[2];
    pipe(pipes);
    write(pipes[1], "pipe", 4);
    ftruncate(fd, 5 * P);
    printf(", pipe %zd %s\n", read(pipes[0], p + 4 * P, 4), touch(p + 4 * P + 3, 0));
    munmap(p, 8 * P);
    close(fd), close(other), close(pipes[0]), close(pipes[1]);
}

static void small(void) {
    int fd = file("small", 10, 's');
    close(fd);
    fd = open("small", O_RDWR);
    char *p = map(fd, P, RW, MAP_SHARED, 0);
    int two = open("small", O_RDWR);
    pwrite(two, "T", 1, 3);
    p[4] = 'U';
    printf("small: %s %c %ld\n", touch(p + 3, 0), at(two, 4), size(two));
    close(two), close(fd);
    fd = open("small", O_RDWR | O_APPEND);
    write(fd, "more", 4);
    printf("appended: %s\n", touch(p + 13, 0));
    munmap(p, P);
    close(fd);
    fd = open("small", O_RDONLY);
    char b[20] = "";
    printf("%zd %s\n", read(fd, b, 19), b);
    close(fd);
    fd = file("empty", 0, 0);
    p = map(fd, P, RW, MAP_SHARED, 0);
    printf("empty: %s", touch(p, 0));
    write(fd, "1", 1);
    printf(" %s\n", touch(p, 0));
    munmap(p, P);
    close(fd);
}

static void sparse(void) {
    long len = 8L << 30;
    int fd = file("sparse", len, 0);
    char *p = map(fd, len, RW, MAP_SHARED, 0);
    p[0] = 'a', p[len / 2] = 'b', p[len - 1] = 'c';
    printf("sparse: %c %c %c %s\n", at(fd, 0), at(fd, len / 2), at(fd, len - 1), touch(p + len / 3, 0));
    char *q = map(fd, len, PROT_READ, MAP_PRIVATE, 0);
    printf("private: %s %s %s\n", touch(q + len / 2, 0), touch(q + len / 5, 0), touch(q + len - 1, 0));
    int other = file("other", 100, 'o');
    printf("read into it: %zd", pread(other, p + len / 7, 100, 0));
    printf(" %s, populate %s %s\n", touch(p + len / 7 + 99, 0), ERR(madvise(p + len / 9 / P * P, P, MADV_POPULATE_READ)),
           ERR(mlock(p + len / 11 / P * P, P)));
    munmap(p, len), munmap(q, len);
    ftruncate(fd, 0);
    close(fd), close(other);
    unlink("sparse");
}

static void code(void) {
#ifdef __x86_64__
    int fd = file("code", P, 0);
    pwrite(fd, "\xb8\x2a\0\0\0\xc3", 6, 0);
    int (*f)(void) = (int (*)(void))map(fd, P, PROT_READ | PROT_EXEC, MAP_PRIVATE, 0);
    printf("code says %d\n", f());
    munmap((void *)f, P);
    close(fd);
#endif
}

static char *shared_page;
static volatile int go, stop;
static void *toucher(void *x) {
    (void)x;
    long ok = 0, bus = 0;
    while (!stop) *touch(shared_page + 5 * P, 0) == 'B' ? bus++ : ok++;
    return (void *)(long)(ok > 0 && bus > 0);
}

static void others(void) {
    // Another process's truncation and growth is seen by each touch after it.
    int fd = file("others", 8 * P, 'O');
    char *p = map(fd, 8 * P, RW, MAP_SHARED, 0);
    int to[2], from[2];
    pipe(to), pipe(from);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        char c;
        close(to[1]);
        while (read(to[0], &c, 1) == 1) {
            char r = *touch(p + 5 * P, 0), s = *touch(p + 6 * P, c);
            write(from[1], &r, 1), write(from[1], &s, 1);
        }
        _exit(0);
    }
    close(to[0]);
    char c[2];
#define ASK(x) (write(to[1], x, 1), read(from[0], c, 1), read(from[0], c + 1, 1), c)
    printf("others: %.2s", ASK("1"));
    ftruncate(fd, 6 * P);
    printf(" %.2s", ASK("2"));
    ftruncate(fd, 2 * P);
    printf(" %.2s", ASK("3"));
    ftruncate(fd, 8 * P);
    printf(" %.2s", ASK("4"));
    printf(", page %d", at(fd, 6 * P));
    close(open("others", O_WRONLY | O_TRUNC));
    printf(" %.2s", ASK("5"));
    pwrite(fd, "P", 1, 7 * P);
    printf(" %.2s", ASK("6"));
    printf(", page %d\n", at(fd, 6 * P));
    close(to[1]), close(from[0]), close(from[1]);
    waitpid(pid, 0, 0);
    // Threads that touch it all the while.
    shared_page = p;
    pthread_t t[3];
    for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, toucher, 0);
    for (int i = 0; i < 300; i++) { ftruncate(fd, 2 * P); usleep(100); ftruncate(fd, 8 * P); usleep(100); }
    stop = 1;
    for (int i = 0; i < 3; i++) { void *r; pthread_join(t[i], &r); printf("thread %ld\n", (long)r); }
    munmap(p, 8 * P);
    close(fd);
}

static void many(void) {
    int fd = file("many", 64 * P, 'm');
    static char *p[3000];
    for (int i = 0; i < 3000; i++) p[i] = map(fd, P, RW, MAP_SHARED, i % 64 * P);
    for (int i = 0; i < 3000; i++) p[i][i] = (char)i;
    long sum = 0;
    for (int i = 0; i < 3000; i++) sum += (unsigned char)at(fd, i % 64 * P + i);
    for (int i = 0; i < 3000; i++) munmap(p[i], P);
    char *q = map(fd, 64 * P, RW, MAP_SHARED, 0);
    for (int i = 0; i < 64; i += 2) munmap(q + i * P, P);
    printf("many: %ld %s %s\n", sum, touch(q + 2 * P, 0), touch(q + 3 * P, 0));
    munmap(q, 64 * P);
    close(fd);
}

// A file that becomes shorter while a child that maps it is only being made.
static void young_children(void) {
    int missed = 0;
    for (int i = 0; i < 100; i++) {
        int fd = file("young", 4 * P, 'y'), go[2];
        char *p = map(fd, 4 * P, RW, i % 2 ? MAP_SHARED : MAP_PRIVATE, 0);
        touch(p + 3 * P, 0);
        if (pipe(go)) return;
        pid_t pid = fork();
        if (pid == 0) {
            char c;
            close(go[1]);
            (void)!read(go[0], &c, 1);
            _exit(strcmp(touch(p + 3 * P, 0), "BUS") != 0);
        }
        ftruncate(fd, P);
        close(go[0]);
        close(go[1]);
        int status;
        waitpid(pid, &status, 0);
        missed += status != 0;
        munmap(p, 4 * P);
        close(fd);
    }
    printf("young children: %d see what was cut off\n", missed);
}

static void all_locked(void) {
    struct rlimit none = {64 << 20, 64 << 20};
    setrlimit(RLIMIT_MEMLOCK, &none);
    int fd = file("locked", 3 * P, 'k');
    char *p = map(fd, 5 * P, RW, MAP_SHARED | MAP_LOCKED, 0);
    printf("locked: %s %s\n", touch(p + 2 * P, 0), touch(p + 4 * P, 0));
    ftruncate(fd, 5 * P);
    printf("grown: %s\n", touch(p + 4 * P, 'l'));
    munmap(p, 5 * P);
    close(fd);
}

int main(void) {
    setvbuf(stdout, 0, _IOLBF, 0);
    handlers();
    errors();
    ends(MAP_SHARED, "shared");
    ends(MAP_PRIVATE, "private");
    tails(), times(), killed(), first_thread_ends(), privates(), parts(), lives_on(), remaps(), buffers(), small(), sparse(), code(), others(), many(), young_children(), all_locked();
    fflush(stdout);
    // Left to the default action.
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGBUS, SIG_DFL);
        int fd = file("last", 100, 'x');
        return map(fd, 2 * P, RW, MAP_SHARED, 0)[P];
    }
    int status;
    waitpid(pid, &status, 0);
    printf("default: signal %d\n", WTERMSIG(status));
    return 0;
}
