// Random mappings by several processes: see mmap-storm.sh.
//
// mmap-storm steps SEED COUNT: a coordinator has processes do one thing at a time on two files and
// prints what each saw; the same seed gives the same output on any file system.
// mmap-storm safety SEED SECONDS: all at once, with kills; each file may only ever hold zeros and its own
// tag, whatever stale mappings write.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define P 4096L
#define RW (PROT_READ | PROT_WRITE)
enum { WORKERS = 5, FILES = 2, MAPS = 6 };

static uint64_t rng;
static uint64_t rnd(uint64_t n) {
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return rng % n;
}

static sigjmp_buf back;
static volatile sig_atomic_t guarded;
static void on_bus(int sig) {
    if (!guarded) { signal(sig, SIG_DFL); return; }
    siglongjmp(back, 1);
}

// ---- steps ----

struct cmd { uint64_t op, seed; };
struct map { char *p; long len, off; int prot, shared, fd; };
static struct map maps[MAPS];
static int fds[FILES];
static int cmd_pipe[WORKERS][2], answer_pipe[WORKERS][2];

static const char *file_name(int f) { return f ? "storm-b" : "storm-a"; }
static void mix(uint64_t *h, uint64_t v) { *h = (*h ^ v) * 0x100000001b3; }

static long size_of(int fd) {
    struct stat s;
    return fstat(fd, &s) ? -1 : s.st_size;
}

// Every page of a mapping: its content, or that it isn't there.
static uint64_t look(struct map *m) {
    volatile uint64_t h = 14695981039346656037u;
    for (volatile long i = 0; i < m->len; i += P) {
        guarded = 1;
        if (sigsetjmp(back, 1) == 0) {
            uint64_t sum = 14695981039346656037u;
            for (long k = 0; k < P; k += 8) mix(&sum, *(uint64_t *)(m->p + i + k));
            // What lies behind the end of the file isn't defined.
            long end = size_of(m->fd) - (m->off + i);
            if (end > 0 && end < P) {
                sum = 14695981039346656037u;
                for (long k = 0; k < end; k++) mix(&sum, (unsigned char)m->p[i + k]);
            }
            guarded = 0;
            uint64_t v = h;
            mix(&v, sum);
            h = v;
        } else {
            guarded = 0;
            uint64_t v = h;
            mix(&v, 0xb05);
            h = v;
        }
    }
    return h;
}

// Only mappings of which each process sees all changes, and no kills: what a copy of another node's file can do.
static int only_shared;

static int same_file(int a, int b) {
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_ino == y.st_ino;
}

static uint64_t step(uint64_t op, int me) {
    int f = rnd(FILES), n = rnd(MAPS);
    struct map *m = &maps[n];
    long at = rnd(40 * P), len = 1 + rnd(6 * P), size = size_of(fds[f]);
    char *b = alloca(len);
    switch (op) {
    case 0: case 1: case 2: // mmap
        if (m->p) return 1;
        m->len = (1 + rnd(20)) * P, m->off = rnd(20) * P, m->shared = rnd(3) > 0 || only_shared, m->fd = dup(fds[f]);
        m->prot = rnd(4) ? RW : PROT_READ;
        m->p = mmap(0, m->len, m->prot, (m->shared ? MAP_SHARED : MAP_PRIVATE) | (rnd(8) ? 0 : MAP_POPULATE), fds[f], m->off);
        if (m->p == MAP_FAILED) { m->p = 0; close(m->fd); return 1000 + errno; }
        return look(m);
    case 3: // munmap
        if (!m->p) return 2;
        munmap(m->p, m->len);
        m->p = 0;
        return close(m->fd);
    case 4: { // a part goes
        if (!m->p || m->len < 3 * P) return 4;
        long cut = (1 + rnd(m->len / P - 1)) * P;
        if (rnd(2)) munmap(m->p + cut, m->len - cut), m->len = cut;
        else munmap(m->p, cut), m->p += cut, m->off += cut, m->len -= cut;
        return look(m);
    }
    case 5: case 6: case 7: // store
        if (!m->p || !(m->prot & PROT_WRITE)) return 5;
        size = size_of(m->fd) - m->off;
        if (size > m->len) size = m->len;
        if (size <= 0) return 6;
        at = rnd(size);
        if (len > size - at) len = size - at;
        memset(m->p + at, 1 + rnd(255), len);
        return look(m);
    case 8: case 9: // load
        return m->p ? look(m) : 7;
    case 10: case 11: // write
        memset(b, 1 + rnd(255), len);
        return pwrite(fds[f], b, len, at);
    case 12: // append
        memset(b, 1 + rnd(255), len);
        if (size > 60 * P) return 8;
        return pwrite(fds[f], b, len, size);
    case 13: case 14: { // read
        uint64_t h = 1;
        long got = pread(fds[f], b, len, at);
        for (long i = 0; i < got; i++) mix(&h, (unsigned char)b[i]);
        mix(&h, got);
        return h;
    }
    case 15: case 16: case 17: return ftruncate(fds[f], rnd(45 * P));
    case 18: { // by name
        int fd = open(file_name(f), O_RDWR | O_CREAT | (rnd(4) ? 0 : O_TRUNC), 0644);
        if (rnd(2)) { close(fds[f]); fds[f] = fd; } else close(fd);
        return size_of(fds[f]);
    }
    case 19: return rnd(4) ? 9 : (uint64_t)unlink(file_name(f));
    case 20: return fallocate(fds[f], 0, at, len);
    case 21: return fallocate(fds[f], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len);
    case 22: case 23: { // mremap
        if (!m->p) return 10;
        long now = (1 + rnd(24)) * P;
        char *p = mremap(m->p, m->len, now, MREMAP_MAYMOVE);
        if (p == MAP_FAILED) return 2000 + errno;
        m->p = p, m->len = now;
        return look(m);
    }
    case 24: // elsewhere
        if (!m->p) return 11;
        {
            char *room = mmap(0, m->len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            char *p = mremap(m->p, m->len, m->len, MREMAP_MAYMOVE | MREMAP_FIXED, room);
            if (p == MAP_FAILED) return 3000 + errno;
            m->p = p;
        }
        return look(m);
    case 25: return m->p ? (uint64_t)msync(m->p, m->len, rnd(2) ? MS_SYNC : MS_ASYNC) : 12;
    case 26: // a copy between file and mapping
        if (!m->p || !(m->prot & PROT_WRITE) || m->off >= size_of(m->fd)) return 13;
        {
            long room = size_of(m->fd) - m->off;
            if (room > m->len) room = m->len;
            if (len > room) len = room;
            // Over itself, the order in which bytes are copied shows.
            if (only_shared && same_file(m->fd, fds[f])) return 15;
            long got = rnd(2) ? pread(fds[f], m->p, len, at) : pwrite(fds[f], m->p, len, at);
            return got + look(m);
        }
    case 27: // DONTNEED: private pages are the file's again
        if (!m->p) return 14;
        madvise(m->p, m->len, MADV_DONTNEED);
        return look(m);
    case 28: { // a second process: takes the place of an empty one
        int k = rnd(WORKERS);
        return 100 + k; // answered by the coordinator
    }
    default: return me;
    }
}

static void worker(int me) {
    struct cmd c;
    while (read(cmd_pipe[me][0], &c, sizeof c) == sizeof c) {
        rng = c.seed;
        uint64_t answer;
        if (c.op >= 100) {
            fflush(stdout);
            int k = c.op - 100;
            pid_t pid = fork();
            if (pid == 0) { me = k; continue; }
            answer = pid;
        } else {
            answer = step(c.op, me);
        }
        if (write(answer_pipe[me][1], &answer, 8) != 8) break;
    }
    _exit(0);
}

static uint64_t ask(int k, uint64_t op, uint64_t seed) {
    struct cmd c = {op, seed};
    uint64_t answer = 0;
    if (write(cmd_pipe[k][1], &c, sizeof c) != sizeof c || read(answer_pipe[k][0], &answer, 8) != 8) {
        printf("process %d is gone\n", k);
        fflush(stdout);
        _exit(1);
    }
    return answer;
}

static int steps(long count) {
    pid_t pids[WORKERS] = {0};
    for (int f = 0; f < FILES; f++) fds[f] = open(file_name(f), O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int k = 0; k < WORKERS; k++) if (pipe(cmd_pipe[k]) || pipe(answer_pipe[k])) return 1;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    // The answers' ends stay open here: a worker that dies is noticed by the alarm.
    alarm(40);
    if ((pids[0] = fork()) == 0) {
        signal(SIGCHLD, SIG_IGN);
        signal(SIGBUS, on_bus);
        for (int k = 0; k < WORKERS; k++) close(cmd_pipe[k][1]);
        alarm(0);
        worker(0);
    }
    for (long i = 0; i < count; i++) {
        int k = rnd(WORKERS);
        uint64_t op = rnd(29), seed = rng;
        if (!pids[k]) continue;
        if (op == 28) {
            int other = rnd(WORKERS);
            if (other == k || only_shared && pids[other]) continue;
            if (pids[other]) {
                // It may be the last one.
                kill(pids[other], SIGKILL);
                while (kill(pids[other], 0) == 0) { waitpid(pids[other], 0, WNOHANG); usleep(200); }
                pids[other] = 0;
                printf("%ld: %d killed\n", i, other);
            } else {
                pids[other] = ask(k, 100 + other, seed);
                printf("%ld: %d forked %d\n", i, k, other);
            }
            continue;
        }
        printf("%ld: %d does %d: %lx\n", i, k, (int)op, ask(k, op, seed));
    }
    for (int k = 0; k < WORKERS; k++) close(cmd_pipe[k][1]);
    return 0;
}

// ---- safety ----

enum { TAGS = 12 };
static void tag_name(char *b, int t) { sprintf(b, "tag-%d", t); }

static int safe(int fd, int t, const char *who) {
    static unsigned char b[64 * 4096];
    long n = pread(fd, b, sizeof b, rnd(30) * P);
    for (long i = 0; i < n; i++)
        if (b[i] != 0 && b[i] != t + 1) {
            fprintf(stderr, "%s: file %d shows %d\n", who, t, b[i] - 1);
            return 0;
        }
    return 1;
}

static void abuse(uint64_t seed) {
    struct { char *p; long len; int tag; } held[10] = {0};
    rng = seed;
    for (;;) {
        int t = rnd(TAGS), h = rnd(10);
        char name[32];
        tag_name(name, t);
        int fd = open(name, O_RDWR | O_CREAT | (rnd(6) ? 0 : O_TRUNC), 0644);
        if (fd < 0) _exit(2);
        unsigned char b[5 * 4096];
        memset(b, t + 1, sizeof b);
        switch (rnd(8)) {
        case 0: case 1: (void)!pwrite(fd, b, sizeof b, rnd(60) * P); break;
        case 2: (void)!ftruncate(fd, rnd(70 * P)); break;
        case 3: if (rnd(3) == 0) unlink(name); break;
        case 4: case 5:
            if (held[h].p) munmap(held[h].p, held[h].len);
            held[h].tag = t, held[h].len = (1 + rnd(70)) * P;
            held[h].p = mmap(0, held[h].len, RW, MAP_SHARED, fd, 0);
            if (held[h].p == MAP_FAILED) _exit(3);
            break;
        default: if (!safe(fd, t, "read")) _exit(1);
        }
        close(fd);
        for (h = 0; h < 10; h++) {
            if (!held[h].p) continue;
            volatile char *p = held[h].p + rnd(held[h].len);
            guarded = 1;
            if (sigsetjmp(back, 1) == 0) {
                char c = *p;
                if (c != 0 && c != held[h].tag + 1) {
                    fprintf(stderr, "mapping of file %d shows %d\n", held[h].tag, c - 1);
                    _exit(1);
                }
                *p = held[h].tag + 1;
            }
            guarded = 0;
        }
    }
}

static int safety(long seconds) {
    pid_t pids[4] = {0};
    time_t end = time(0) + seconds;
    int bad = 0, kills = 0;
    signal(SIGBUS, on_bus);
    while (time(0) < end && !bad) {
        for (int k = 0; k < 4; k++)
            if (!pids[k]) {
                uint64_t seed = rnd(1u << 30) + 1;
                if ((pids[k] = fork()) == 0) abuse(seed);
            }
        usleep(20000);
        int k = rnd(4), status;
        kill(pids[k], SIGKILL);
        waitpid(pids[k], &status, 0);
        bad |= WIFEXITED(status) || WTERMSIG(status) != SIGKILL;
        if (bad) fprintf(stderr, "status %x\n", status);
        pids[k] = 0;
        kills++;
    }
    for (int k = 0; k < 4; k++) if (pids[k]) kill(pids[k], SIGKILL), waitpid(pids[k], 0, 0);
    for (int t = 0; t < TAGS; t++) {
        char name[32];
        tag_name(name, t);
        int fd = open(name, O_RDWR);
        if (fd >= 0) bad |= !safe(fd, t, "end");
        unlink(name);
    }
    printf("%s\n", bad ? "foreign data" : kills > 10 ? "safe" : "too few kills");
    return bad;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    rng = strtoull(argv[2], 0, 10) * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 10; i++) rnd(2);
    only_shared = strcmp(argv[1], "shared") == 0;
    return only_shared || strcmp(argv[1], "steps") == 0 ? steps(atol(argv[3])) : safety(atol(argv[3]));
}
