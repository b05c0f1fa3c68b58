/* kernel.c: see kernel.h. The command line, ranks and their meeting, times, and what is written. objects.c has the objects. */
#define _GNU_SOURCE

#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "objects.h"

enum { PATIENCE_SECONDS = 120, LINE = 1024 };

/* What all ranks see: zeros at first. */
struct meeting {
    atomic_int arrived;
    atomic_int round;
    atomic_int failed;
    double took[RANKS_MAX], amount[RANKS_MAX];
    char controls[LINE]; /* those that are kept */
    char line[LINE];     /* what will be printed */
    char exchange[];
};

static size_t exchange_each;

double job_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void job_fail(struct job *job, const char *what, ...)
{
    va_list arguments;
    va_start(arguments, what);
    fprintf(stderr, "rank %d: ", job->rank);
    vfprintf(stderr, what, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    atomic_store(&job->meeting->failed, 1);
    exit(1);
}

int64_t job_verb(struct job *job, int64_t returned, const char *what)
{
    if (returned < 0)
        job_fail(job, "%s: %s", what, iov_error());
    return returned;
}

int64_t job_call(struct job *job, int64_t returned, const char *what)
{
    if (returned < 0)
        job_fail(job, "%s: %s", what, strerror(errno));
    return returned;
}

void *job_memory(struct job *job, size_t len)
{
    void *memory = aligned_alloc(4096, (len + 4095) / 4096 * 4096);
    if (!memory)
        job_fail(job, "no memory for %zu bytes", len);
    memset(memory, 0, len);
    return memory;
}

void job_meet(struct job *job)
{
    struct meeting *m = job->meeting;
    int round = atomic_load(&m->round);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == job->ranks) {
        atomic_store(&m->arrived, 0);
        atomic_fetch_add(&m->round, 1);
    }
    double until = job_now() + PATIENCE_SECONDS;
    while (atomic_load(&m->round) == round) {
        const struct timespec nap = {.tv_nsec = 20000};
        nanosleep(&nap, NULL);
        if (atomic_load(&m->failed))
            exit(1);
        if (job_now() > until)
            job_fail(job, "others didn't come within %d s", PATIENCE_SECONDS);
    }
}

char *job_exchange(struct job *job, int rank)
{
    return job->meeting->exchange + (size_t)rank * exchange_each;
}

double job_begin(struct job *job)
{
    job_meet(job);
    return job_now();
}

/* Adds to the line what the ranks have: the sum of their amounts, divided by the longest time. */
static void tell(struct job *job, const char *what, double took, double amount, const char *unit)
{
    struct meeting *m = job->meeting;
    m->took[job->rank] = took;
    m->amount[job->rank] = amount;
    job_meet(job);
    if (job->rank == 0) {
        double slowest = 0, all = 0;
        for (int i = 0; i < job->ranks; i++) {
            slowest = m->took[i] > slowest ? m->took[i] : slowest;
            all += m->amount[i];
        }
        size_t used = strlen(m->line);
        snprintf(m->line + used, LINE - used, " %s=%.*f%s", what, *unit ? 1 : 0, all / slowest, unit);
    }
    job_meet(job);
}

void job_done(struct job *job, double began, const char *what, double amount, const char *unit)
{
    tell(job, what, job_now() - began, amount, unit);
}

void job_count(struct job *job, const char *what, int n)
{
    tell(job, what, 1, n, "");
}

void job_compute(double *cells, size_t count, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        double left = cells[0];
        for (size_t i = 1; i + 1 < count; i++) {
            double here = cells[i];
            cells[i] = 0.25 * left + 0.5 * here + 0.25 * cells[i + 1];
            left = here;
        }
    }
}

/* ---- bytes that know where they belong ---- */

enum { STRIDE = 512 };

static uint64_t word(uint64_t seed, uint64_t at)
{
    return (at + 1) * 0x9e3779b97f4a7c15u ^ (seed + 1) * 0xc2b2ae3d27d4eb4fu;
}

void job_stamp(void *bytes, size_t len, uint64_t seed, uint64_t at)
{
    for (size_t i = 0; i + sizeof(uint64_t) <= len; i += STRIDE) {
        uint64_t w = word(seed, at + i);
        memcpy((char *)bytes + i, &w, sizeof w);
    }
}

void job_check(struct job *job, const void *bytes, size_t len, uint64_t seed, uint64_t at)
{
    for (size_t i = 0; i + sizeof(uint64_t) <= len; i += STRIDE) {
        uint64_t w;
        memcpy(&w, (const char *)bytes + i, sizeof w);
        if (w != word(seed, at + i))
            job_fail(job, "at %llu there are other bytes than were written",
                     (unsigned long long)(at + i));
    }
}

/* ---- the command line ---- */

struct said {
    struct job job;
    const char *meet, *backend;
    const char *controls; /* those that are to be said; "": none */
};

static const char *const usage =
    "usage: %s [--place pool:NAME] [--backend KIND:CONFIGURATION] | --posix DIR\n"
    "    [--controls default|declared|CONTROL=VALUE,...] [--ranks N [--rank R --meet FILE]] [--scale N] [--collective] [--apart]\n"
    "declared are: %s\n";

static int number(const char *text, int least, int most)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < least || n > most) {
        fprintf(stderr, "'%s' is no number from %d to %d\n", text, least, most);
        exit(2);
    }
    return (int)n;
}

static struct said parse(int argc, char **argv, const struct kernel *kernel)
{
    struct said said = {.controls = "", .job = {.rank = -1, .ranks = 1, .scale = 4, .place = "pool"}};
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--collective") == 0) {
            said.job.collective = true;
            continue;
        }
        if (strcmp(option, "--apart") == 0) {
            said.job.apart = true;
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : "";
        if (strcmp(option, "--place") == 0)
            said.job.place = value;
        else if (strcmp(option, "--posix") == 0)
            said.job.dir = value;
        else if (strcmp(option, "--backend") == 0)
            said.backend = value;
        else if (strcmp(option, "--meet") == 0)
            said.meet = value;
        else if (strcmp(option, "--controls") == 0 && strcmp(value, "declared") == 0)
            said.controls = kernel->declares;
        else if (strcmp(option, "--controls") == 0 && strcmp(value, "default") == 0)
            said.controls = "";
        else if (strcmp(option, "--controls") == 0 && strchr(value, '='))
            said.controls = value;
        else if (strcmp(option, "--ranks") == 0)
            said.job.ranks = number(value, 1, RANKS_MAX);
        else if (strcmp(option, "--rank") == 0)
            said.job.rank = number(value, 0, RANKS_MAX - 1);
        else if (strcmp(option, "--scale") == 0)
            said.job.scale = number(value, 1, 1024);
        else {
            fprintf(stderr, usage, argv[0], kernel->declares);
            exit(2);
        }
    }
    if (said.job.rank >= said.job.ranks || (said.job.rank >= 0) != (said.meet != NULL)) {
        fprintf(stderr, usage, argv[0], kernel->declares);
        exit(2);
    }
    return said;
}

static struct meeting *hold_meeting(const struct said *said, size_t len)
{
    int fd = -1, flags = MAP_SHARED;
    if (said->meet) {
        fd = open(said->meet, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        /* A new file has zeros; longer than it is, whoever comes first makes it. */
        if (fd < 0 || ftruncate(fd, (off_t)len) < 0) {
            perror(said->meet);
            exit(1);
        }
    } else {
        flags |= MAP_ANONYMOUS;
    }
    void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory == MAP_FAILED) {
        perror("memory that all ranks see");
        exit(1);
    }
    if (fd >= 0)
        close(fd);
    return memory;
}

static void run_rank(const struct said *said, const struct kernel *kernel, struct job *job)
{
    struct meeting *m = job->meeting;
    objects_begin(job, kernel->name, said->backend);
    if (job->rank == 0 && *said->controls)
        objects_agree(job, said->controls, m->controls, m->line, LINE);
    job_meet(job);
    job->controls = m->controls;
    kernel->run(job);
    job_meet(job);
    objects_end(job);
    if (job->rank == 0)
        printf("%s%s ranks=%d %s=%s controls=%s\n", kernel->name, m->line, job->ranks,
               job->dir ? "posix" : "verbs", job->dir ? said->job.dir : job->place,
               !*said->controls ? "default" : *job->controls ? job->controls : "none");
}

int kernel_main(int argc, char **argv, const struct kernel *kernel)
{
    struct said said = parse(argc, argv, kernel);
    struct job *job = &said.job;
    exchange_each = kernel->exchange;
    job->meeting =
        hold_meeting(&said, sizeof(struct meeting) + kernel->exchange * (size_t)job->ranks);
    if (job->rank >= 0) {
        run_rank(&said, kernel, job);
        return 0;
    }
    for (job->rank = 0; job->rank < job->ranks; job->rank++) {
        pid_t child = fork();
        if (child < 0)
            job_fail(job, "fork: %s", strerror(errno));
        if (child == 0) {
            run_rank(&said, kernel, job);
            exit(0);
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0)
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            failed = 1;
            atomic_store(&job->meeting->failed, 1); /* the others don't wait for it */
        }
    return failed;
}
