/* dup2 onto every number up to the limit, also onto those that the library holds for itself: it has
   to move out of the way, whatever other threads do, and never use a number that isn't its own. */
#include "call.h"
#include <pthread.h>
#include <sys/wait.h>

enum { LIMIT = 1024 };
static int file, outside;
static volatile int done;
static int failures;

static void check(int is_right, const char *what, int n) {
    if (!is_right && failures++ < 5) SAY("%s %d: %s", what, n, strerrorname_np(errno));
}

/* What needs descriptors of the library: names, data, mappings, a directory of the process. */
static void work(const char *name, int n) {
    char b[8] = "", other[64];
    snprintf(other, sizeof other, "%s.new", name);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    check(fd >= 0, "open", n);
    check(pwrite(fd, "content", 7, 100000 + n) == 7, "pwrite", n);
    check(pread(fd, b, 7, 100000 + n) == 7 && !strcmp(b, "content"), "pread", n);
    char *m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(m != MAP_FAILED, "mmap", n);
    if (m != MAP_FAILED) { m[5] = 'x'; munmap(m, 4096); }
    check(pread(fd, b, 1, 5) == 1 && b[0] == 'x', "mapped", n);
    check(epoll_ctl(0, EPOLL_CTL_ADD, fd, &(struct epoll_event){0}) == -1, "epoll_ctl", n);
    check(close(fd) == 0, "close", n);
    check(rename(name, other) == 0 && unlink(other) == 0, "rename, unlink", n);
}

static void onto(int n) {
    struct stat s, t;
    check(dup2(outside, n) == n && fstat(n, &s) == 0 && fstat(outside, &t) == 0, "dup2 outside", n);
    check(s.st_ino == t.st_ino && s.st_dev == t.st_dev, "another file", n);
    check(dup3(file, n, O_CLOEXEC) == n && fcntl(n, F_GETFD) == FD_CLOEXEC, "dup3", n);
    check(write(n, "1", 1) == 1, "write", n);
    check(close(n) == 0 && close(n) == -1, "close", n);
}

static void *worker(void *name) {
    for (int n = 0; !done; n++) work(name, n % 1000);
    return 0;
}

static void all(int first) {
    for (int n = first; n < LIMIT; n++) {
        onto(n);
        if (n % 16 == 0) work("alone", n);
    }
}

static void in_a_vfork_child(void) {
    int status;
    pid_t child = vfork();
    if (!child) {
        for (int n = LIMIT / 2; n < LIMIT; n++)
            if (dup2(outside, n) != n) _exit(1);
        int fd = open("of a child", O_RDWR | O_CREAT, 0644);
        _exit(fd < 0 ? 2 : write(fd, "x", 1) != 1 ? 3 : 0);
    }
    waitpid(child, &status, 0);
    SAY("vfork %d", WEXITSTATUS(status));
    work("after", 1);
}

int main(int argc, char **argv) {
    struct rlimit l = {LIMIT, LIMIT};
    pthread_t t[2];
    struct stat s;
    char b[9] = "";
    P(setrlimit(RLIMIT_NOFILE, &l));
    file = open("file", O_RDWR | O_CREAT, 0644);
    outside = open(argv[1], O_RDWR);
    check(file == 3 && outside == 4, "numbers", outside);
    work("first", 0);
    all(5);
    SAY("alone %d", failures);
    in_a_vfork_child();
    pthread_create(&t[0], 0, worker, "one");
    pthread_create(&t[1], 0, worker, "two");
    /* The numbers below are the other threads'. */
    for (int i = 0; i < 3; i++) all(100);
    done = 1;
    pthread_join(t[0], 0), pthread_join(t[1], 0);
    SAY("beside threads %d", failures);
    pid_t child = fork();
    if (!child) { failures = 0; all(5); _exit(failures > 0); }
    int status;
    waitpid(child, &status, 0);
    SAY("forked %d", WEXITSTATUS(status));
    /* Nobody has taken the file outside for one of the library's. */
    P(fstat(file, &s)); SAY("%d", (int)s.st_size);
    P(pread(outside, b, 8, 0)); SAY("%s", b);
    P(fstat(outside, &s)); SAY("%d", (int)s.st_size);
    return failures > 0;
}
