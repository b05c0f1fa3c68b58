/* Programs that are hard on a library inside them: that close everything, become daemons, have small stacks
   and a malloc of their own, and fork while other threads open and close. */
#include "call.h"
#include <pthread.h>
#include <dirent.h>

/* Its own malloc, from one block, never freed. It counts. */
static char heap[64 << 20];
static size_t heap_used;
static volatile int allocations;
void *malloc(size_t n) { allocations++; size_t at = __atomic_fetch_add(&heap_used, (n + 31) & ~15ul, __ATOMIC_RELAXED); if (at + n + 16 > sizeof heap) { errno = ENOMEM; return NULL; } *(size_t *)(heap + at) = n; return heap + at + 16; }
void free(void *p) { (void)p; }
void *calloc(size_t a, size_t b) { void *p = malloc(a * b); if (p) memset(p, 0, a * b); return p; }
void *realloc(void *p, size_t n) { void *q = malloc(n); if (p && q) { size_t old = *(size_t *)((char *)p - 16); memcpy(q, p, old < n ? old : n); } return q; }

/* A bit of everything; 0 if all went well. */
static char deep[600], block[300000];
static int everything(const char *dir) {
    char a[256], b[256], small[64]; struct stat s; int fd, bad = 0;
    snprintf(a, sizeof a, "%s/a", dir); snprintf(b, sizeof b, "%s/b", dir);
    bad += mkdir(dir, 0755) != 0; bad += (fd = open(a, O_RDWR | O_CREAT, 0644)) < 0; bad += write(fd, block, sizeof block) != sizeof block; bad += pread(fd, small, 64, 7) != 64; bad += ftruncate(fd, 100) != 0;
    struct iovec v[4] = {{small, 64}, {small, 64}, {small, 64}, {small, 64}}; bad += writev(fd, v, 4) != 256; bad += fsync(fd) != 0; char *m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); bad += m == MAP_FAILED; if (m != MAP_FAILED) { m[5] = 'x'; munmap(m, 4096); }
    bad += close(fd) != 0; bad += rename(a, b) != 0; bad += link(b, a) != 0; bad += stat(a, &s) != 0 || s.st_nlink != 2; bad += chmod(a, 0600) != 0; bad += utimensat(AT_FDCWD, a, NULL, 0) != 0;
    snprintf(small, sizeof small, "%s/l", dir); bad += symlink("b", small) != 0; bad += access(small, R_OK) != 0; bad += readlink(small, a, sizeof a) != 1; unlink(small);
    for (int i = 0; i < 40; i++) { snprintf(small, sizeof small, "%s/%d", dir, i); fd = open(small, O_CREAT | O_WRONLY, 0644); bad += write(fd, small, 10) != 10; bad += close(fd) != 0; }
    fd = open(dir, O_RDONLY); char entries[2048]; int n, total = 0; while ((n = CALL(217, fd, entries, sizeof entries)) > 0) total += n; bad += n != 0 || total < 1000; close(fd);
    for (int i = 0; i < 40; i++) { snprintf(small, sizeof small, "%s/%d", dir, i); bad += unlink(small) != 0; }
    bad += access(deep, F_OK) != 0; bad += stat(deep + 2, &s) != 0;
    snprintf(a, sizeof a, "%s/a", dir); bad += unlink(a) != 0; bad += unlink(b) != 0; bad += rmdir(dir) != 0;
    return bad;
}

static void *on_small_stack(void *arg) { return (void *)(long)everything(arg); }

static void stacks(void) {
    static const size_t sizes[] = {65536, 131072, 0};
    for (int i = 0; sizes[i]; i++) {
        size_t n = sizes[i]; char *stack = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), name[16]; void *bad; pthread_attr_t at; pthread_t t;
        memset(stack, 0x5a, n); pthread_attr_init(&at); pthread_attr_setstack(&at, stack, n); sprintf(name, "st%d", i);
        P(pthread_create(&t, &at, on_small_stack, name)); P(pthread_join(t, &bad)); P((long)bad);
        size_t unused = 0; while (unused < n && stack[unused] == 0x5a) unused++;
        if (getenv("SHOW_STACK")) fprintf(stderr, "stack of %zu: %zu used\n", n, n - unused);
        P(unused > 4096);
    }
}

static void *churn(void *arg) {
    int which = *(int *)arg, a = open("A", O_RDONLY), b = open("B", O_RDONLY), stop = 0;
    while (!stop) { dup2(a, 100 + which); int f = open("A", O_RDONLY); dup2(b, 100 + which); close(f); stop = access("stop", F_OK) == 0; }
    return NULL;
}

static void forks(void) {
    int fd = open("A", O_CREAT | O_WRONLY, 0644); write(fd, "A", 1); close(fd); fd = open("B", O_CREAT | O_WRONLY, 0644); write(fd, "B", 1); close(fd);
    pthread_t t[2]; int w[2] = {0, 1}, bad = 0; fd = open("A", O_RDONLY); dup2(fd, 100); dup2(fd, 101);
    for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, churn, &w[i]);
    for (int i = 0; i < 150; i++) {
        pid_t p = i % 3 == 2 ? vfork() : fork();
        if (p == 0) { int wrong = 0; for (int k = 0; k < 2; k++) { char c = 0; if (pread(100 + k, &c, 1, 0) != 1 || (c != 'A' && c != 'B')) wrong++; } _exit(wrong); }
        int st = 1; waitpid(p, &st, 0); bad += st != 0;
    }
    close(open("stop", O_CREAT | O_WRONLY, 0644)); for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    P(bad); P(unlink("stop")); P(unlink("A")); P(unlink("B")); close_range(3, 200, 0);
}

/* Children made while other threads use the pool for the first time: whatever these hold just then, no child waits for it. */
static volatile int started;
static void *first_looks(void *arg) { char n[32]; struct stat s; while (!started); for (int i = 0; i < 8; i++) { sprintf(n, "none%d", i); stat(n, &s); } return NULL; }

static void early_forks(void) {
    int bad = 0;
    for (int r = 0; r < 60; r++) {
        pid_t fresh = fork();
        if (fresh == 0) {
            pthread_t t[2]; for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, first_looks, NULL);
            usleep(300); started = 1; for (volatile int k = 0; k < r * 7919 % 400000; k++);
            pid_t p = fork();
            if (p == 0) { first_looks(NULL); _exit(0); }
            int st = 1, turns = 0; while (waitpid(p, &st, WNOHANG) == 0 && turns++ < 5000) usleep(2000);
            if (turns >= 5000) { kill(p, SIGKILL); _exit(1); }
            _exit(st != 0);
        }
        int st = 1; waitpid(fresh, &st, 0); bad += st != 0;
    }
    P(bad);
}

static void closers(void) {
    int fd = open("c", O_RDWR | O_CREAT, 0644); write(fd, "kept", 4);
    for (int i = 3; i < 65536; i++) close(i);
    P(fcntl(fd, F_GETFD)); P(open("c", O_RDONLY)); closefrom(3); P(fcntl(3, F_GETFD)); P(open("c", O_RDONLY)); P(close_range(3, ~0u, 0)); P(open("c", O_RDONLY)); P(close_range(0, ~0u, 4 /* CLOEXEC */)); for (int i = 0; i < 3; i++) fcntl(i, F_SETFD, 0);
    DIR *d = opendir("/proc/self/fd"); struct dirent *e; int list[64], n = 0; while ((e = readdir(d)) && n < 64) { int k = atoi(e->d_name); if (k > 2 && k != dirfd(d)) list[n++] = k; } closedir(d); while (n) close(list[--n]);
    P(open("c", O_RDONLY)); char b[8] = ""; P(read(3, b, 8)); SAY("%s", b); P(close(3)); P(everything("closed"));
}

static void daemons(void) {
    char here[PATH_MAX]; getcwd(here, sizeof here); fflush(stdout);
    if (fork() == 0) {
        setsid(); if (fork()) _exit(0);
        for (int i = 0; i < 4096; i++) close(i);
        open("/dev/null", O_RDWR); dup(0); dup(0); umask(0); chdir("/");
        char p[PATH_MAX + 16]; sprintf(p, "%s/daemon", here); int fd = open(p, O_CREAT | O_WRONLY, 0644); dprintf(fd, "%d from the daemon\n", fd); close(fd); sprintf(p, "%s/done", here); close(open(p, O_CREAT | O_WRONLY, 0600)); _exit(0);
    }
    wait(NULL); for (int i = 0; i < 1000 && access("done", F_OK); i++) usleep(10000);
    char b[64] = ""; int fd = open("daemon", O_RDONLY); read(fd, b, 63); SAY("%s", b); P(close(fd)); P(unlink("done"));
}

int main(void) {
    char *p = deep; p += sprintf(p, "."); for (int i = 0; i < 25; i++) { p += sprintf(p, "/directory%d", i); mkdir(deep, 0755); }
    int before = allocations; P(everything("plain")); before = allocations; int bad = everything("counted"); SAY("%d %d", bad, allocations - before);
    stacks(); forks(); early_forks(); closers(); daemons();
    return 0;
}
