/* Tens of thousands of mappings in one process: all of one file, then of as many files as there are mappings. What is
 * printed is the same wherever the file system lies; what a call costs may not depend on how many mappings there are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 60000
#define FILES 6000
#define PAGE 4096

static char *at[MOST];
static sigjmp_buf back;

static void on_fault(int s) { siglongjmp(back, 1); }

static int gone(volatile char *p) {
    if (sigsetjmp(back, 1)) return 1;
    (void)*p;
    return 0;
}

static void must(int ok, const char *what) {
    if (!ok) { perror(what); exit(1); }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static long limit(void) {
    long n = 65530;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
    if (f) { if (fscanf(f, "%ld", &n) != 1) n = 65530; fclose(f); }
    return n;
}

/* Processor time of cutting and growing one file a hundred times, with so many other mappings as there are: the best of
 * some, in seconds. */
static double cutting(int fd, char *p) {
    double best = 1e9;
    for (int round = 0; round < 7; round++) {
        double start = now();
        for (int i = 0; i < 100; i++) {
            must(ftruncate(fd, 0) == 0 && ftruncate(fd, PAGE) == 0, "ftruncate");
            must(p[0] == 0, "bytes");
        }
        double took = now() - start;
        if (took < best) best = took;
    }
    return best;
}

/* The same for mapping, protecting and unmapping. */
static double mapping(int fd) {
    double best = 1e9;
    for (int round = 0; round < 7; round++) {
        double start = now();
        for (int i = 0; i < 100; i++) {
            char *p = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            must(p != MAP_FAILED, "mmap");
            must(mprotect(p, PAGE, PROT_READ) == 0 && mprotect(p, PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
            must(munmap(p, PAGE) == 0, "munmap");
        }
        double took = now() - start;
        if (took < best) best = took;
    }
    return best;
}

int main(int argc, char **argv) {
    char page[PAGE];
    struct sigaction sa = {.sa_handler = on_fault};
    sigaction(SIGBUS, &sa, 0);
    long max = limit(), n = max - 4000 < MOST ? max - 4000 : MOST, bad = 0, faults = 0;
    /* One file, many mappings of one page each: never two that the kernel could join. */
    int fd = open("one", O_RDWR | O_CREAT, 0644);
    memset(page, 'x', PAGE);
    must(fd >= 0 && write(fd, page, PAGE) == PAGE, "one");
    for (long i = 0; i < n; i++) {
        at[i] = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at[i] == MAP_FAILED) { printf("mapping %ld of %ld: %m\n", i, n); return 1; }
    }
    for (long i = 0; i < n; i++) bad += at[i][i % PAGE] != 'x';
    printf("mapped all; %ld bad\n", bad);
    at[n / 2][0] = 'y';
    for (long i = bad = 0; i < n; i++) bad += at[i][0] != 'y';
    for (long i = 0; i < n; i += 3) bad += mprotect(at[i], PAGE, PROT_READ) != 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        for (long i = bad = 0; i < n; i++) bad += at[i][0] != 'y';
        bad += munmap(at[1], PAGE) != 0 || mmap(at[1], PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != at[1] || at[1][1] != 'x';
        _exit(bad != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("shared; %ld bad; child: %d\n", bad, status);
    /* All of them lose their page at once, and get it back. */
    must(ftruncate(fd, 0) == 0, "ftruncate");
    for (long i = 0; i < n; i += 600) faults += gone(at[i]);
    printf("%ld of %ld cut\n", faults, (n + 599) / 600);
    must(ftruncate(fd, PAGE) == 0, "ftruncate");
    for (long i = bad = 0; i < n; i += 600) bad += at[i][0] != 0;
    for (long i = 0; i < n; i += 2) bad += munmap(at[i], PAGE) != 0;
    for (long i = 1; i < n; i += 2) bad += at[i][0] != 0;
    for (long i = 1; i < n; i += 2) bad += munmap(at[i], PAGE) != 0;
    printf("unmapped; %ld bad\n", bad);
    /* What one call costs beside few mappings of other files, and beside many. */
    char *p = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    must(p != MAP_FAILED, "mmap");
    double cut[2], map[2];
    for (long i = bad = 0, k = 0; i < FILES; i++) {
        char name[20];
        sprintf(name, "f%ld", i);
        int f = open(name, O_RDWR | O_CREAT, 0644);
        must(f >= 0 && write(f, page, PAGE) == PAGE, name);
        at[i] = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
        must(at[i] != MAP_FAILED, "mmap of a file");
        close(f);
        unlink(name);
        if (i == FILES / 100 || i == FILES - 1) { cut[k] = cutting(fd, p); map[k++] = mapping(fd); }
    }
    fprintf(stderr, "cut: %.1f and %.1f us; map: %.1f and %.1f us\n", cut[0] * 1e4, cut[1] * 1e4, map[0] * 1e4, map[1] * 1e4);
    /* With a hundred times as many; looking at each would make it dozens of times as long. */
    int old = argc > 1 && !strcmp(argv[1], "old-kernel");
    printf("a cut beside many mappings: %s\n", old || cut[1] < 4 * cut[0] ? "as beside few" : "longer");
    printf("a mapping beside many: %s\n", map[1] < 4 * map[0] ? "as beside few" : "longer");
    for (long i = 0; i < FILES; i++) bad += at[i][7] != 'x';
    printf("%ld bad\n", bad);
    return 0;
}
