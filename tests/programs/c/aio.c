/* The kernel's asynchronous I/O, by system calls, as libaio makes them: on files here and outside in one context. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int setup(unsigned n, aio_context_t *c) { return syscall(SYS_io_setup, n, c); }
static int destroy(aio_context_t c) { return syscall(SYS_io_destroy, c); }
static int submit(aio_context_t c, long n, struct iocb **l) { return syscall(SYS_io_submit, c, n, l); }
static int get(aio_context_t c, long least, long most, struct io_event *e, struct timespec *t) { return syscall(SYS_io_getevents, c, least, most, e, t); }
static const char *err(long r) { return r < 0 ? strerrorname_np(errno) : "done"; }

static struct iocb one(int op, int fd, void *b, size_t n, long at) {
    return (struct iocb){.aio_lio_opcode = op, .aio_fildes = fd, .aio_buf = (unsigned long)b, .aio_nbytes = n, .aio_offset = at, .aio_data = 1000 + at};
}

static aio_context_t shared;
static int here, outside;
#define MANY 2000

/* Takes all events of the requests that the other thread makes, some at a time, waiting without an end. */
static void *taker(void *sum) {
    struct io_event e[7];
    for (long left = MANY; left > 0;) {
        long least = left < 3 ? left : 1 + left % 3, n = get(shared, least, 7 < left ? 7 : left, e, 0);
        if (n < least) { printf("io_getevents: %ld of %ld, %s\n", n, least, strerror(errno)); exit(1); }
        for (int i = 0; i < n; i++) *(long *)sum += e[i].res + e[i].data;
        left -= n;
    }
    return 0;
}

int main(void) {
    static char a[8192] __attribute__((aligned(4096))), b[8192] __attribute__((aligned(4096))), c[100];
    const char *out = getenv("OUTER");
    char path[4096];
    snprintf(path, sizeof path, "%s/outside", out);
    here = open("here", O_RDWR | O_CREAT, 0644);
    outside = open(path, O_RDWR | O_CREAT, 0644);
    aio_context_t x = 0;
    int r = setup(64, &x);
    printf("io_setup %s, %d\n", err(r), x != 0);
    r = setup(64, &x); printf("again %s\n", err(r));
    memset(a, 'a', sizeof a);
    /* One after the other, in one list: here, outside, here. */
    struct iocb w[3] = {one(IOCB_CMD_PWRITE, here, a, 8192, 0), one(IOCB_CMD_PWRITE, outside, a, 4096, 0), one(IOCB_CMD_PWRITE, here, "end", 3, 8192)};
    struct iocb *list[3] = {&w[0], &w[1], &w[2]};
    struct io_event e[16];
    r = submit(x, 3, list); printf("io_submit %d\n", r);
    r = get(x, 3, 16, e, 0); printf("io_getevents %d\n", r);
    long sum = 0, objects = 0;
    for (int i = 0; i < r; i++) sum += e[i].res, objects += e[i].obj == (unsigned long)&w[e[i].data == 1000 ? (e[i].res == 8192 ? 0 : 1) : 2];
    printf("sum %ld, %ld objects\n", sum, objects);
    struct timespec none = {0, 0}, bit = {0, 20000000};
    r = get(x, 0, 16, e, &none); printf("nothing left: %d\n", r);
    r = get(x, 1, 16, e, &bit); printf("nor later: %d\n", r);
    /* Vectors, reading behind the end, syncing. */
    struct iovec v[2] = {{b, 5}, {c, 50}};
    struct iocb more[5] = {one(IOCB_CMD_PREADV, here, v, 2, 8190), one(IOCB_CMD_PREAD, here, b + 100, 10, 100000), one(IOCB_CMD_FSYNC, here, 0, 0, 0),
                           one(IOCB_CMD_FDSYNC, outside, 0, 0, 0), one(IOCB_CMD_PWRITEV, outside, v, 1, 10)};
    for (int i = 0; i < 5; i++) {
        struct iocb *l = &more[i];
        r = submit(x, 1, &l); printf("%d: %s", i, err(r));
        if (r == 1) { r = get(x, 1, 1, e, 0); printf(", %d event, res %lld", r, r == 1 ? (long long)e[0].res : -1); }
        printf("\n");
    }
    printf("read %.5s\n", b);
    /* What can't be is said at once, or after those before it. */
    int reader = open("here", O_RDONLY);
    struct iocb bad = one(IOCB_CMD_PWRITE, reader, a, 10, 0), fine = one(IOCB_CMD_PREAD, reader, c, 10, 0), no = one(IOCB_CMD_PREAD, 999, c, 1, 0), odd = one(77, here, c, 1, 0), below = one(IOCB_CMD_PREAD, here, c, 1, -5);
    struct iocb *l1[2] = {&bad, &fine}, *l2[2] = {&fine, &bad}, *l3 = &no, *l4 = &odd, *l5 = &below;
    r = submit(x, 2, l1); printf("not for writing: %s\n", err(r));
    r = submit(x, 2, l2); printf("after one: %d\n", r);
    r = get(x, 1, 5, e, 0); printf("its event: %d, %lld\n", r, (long long)e[0].res);
    r = submit(x, 1, &l3); printf("not open: %s\n", err(r));
    r = submit(x, 1, &l4); printf("no such: %s\n", err(r));
    r = submit(x, 1, &l5); printf("below: %s\n", err(r));
    r = submit(x, 1, (void *)8); printf("nowhere: %s\n", err(r));
    r = submit(x, -1, &l4); printf("less than none: %s\n", err(r));
    r = get(x, 3, 2, e, 0); printf("more than most: %s\n", err(r));
    /* An event descriptor is told. */
    int ev = eventfd(0, 0);
    unsigned long count = 0;
    struct iocb tell[2] = {one(IOCB_CMD_PREAD, here, b, 10, 0), one(IOCB_CMD_PREAD, outside, b, 10, 0)};
    struct iocb *lt[2] = {&tell[0], &tell[1]};
    for (int i = 0; i < 2; i++) tell[i].aio_flags = IOCB_FLAG_RESFD, tell[i].aio_resfd = ev;
    r = submit(x, 2, lt); printf("with an event descriptor: %d\n", r);
    r = get(x, 2, 2, e, 0);
    ssize_t got = read(ev, &count, 8);
    printf("%d, read %zd, count %lu\n", r, got, count);
    tell[0].aio_resfd = here; r = submit(x, 1, lt); printf("a file instead: %s\n", err(r));
    struct iocb *lf = &fine; r = submit(x, 1, &lf); r = syscall(SYS_io_cancel, x, &fine, e);
    printf("too late: %s\n", r < 0 && (errno == EINVAL || errno == EINPROGRESS) ? "as it may be" : err(r));
    r = get(x, 1, 1, e, &bit);
    /* A child has no contexts. */
    fflush(stdout);
    if (fork() == 0) { r = get(x, 0, 1, e, &none); printf("in a child: %s\n", err(r)); x = 0; r = setup(2, &x); r = submit(x, 1, &lf); r = get(x, 1, 1, e, 0); printf("with one of its own: %d\n", r); exit(0); }
    wait(0);
    r = destroy(x); printf("io_destroy %s\n", err(r));
    r = destroy(x); printf("again %s\n", err(r));
    r = submit(x, 1, &lf); printf("after that: %s\n", err(r));
    /* One thread asks, another one sleeps until something is there. */
    if (setup(MANY, &shared)) return 1;
    pthread_t t;
    long all = 0;
    pthread_create(&t, 0, taker, &all);
    static struct iocb rr[MANY];
    for (long i = 0; i < MANY; i++) {
        rr[i] = one(i % 2 ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD, i % 3 ? here : outside, b + 4096 * (i % 2), 100, i % 50 * 10);
        struct iocb *l = &rr[i];
        if (i % 50 == 0) usleep(2000);
        if (submit(shared, 1, &l) != 1) { printf("request %ld: %m\n", i); return 1; }
    }
    pthread_join(t, 0);
    printf("two threads: %ld\n", all);
    destroy(shared);
    return 0;
}
