/* pthread_cancel of threads blocked in calls: cleanup handlers run (compiled as C), destructors too (as C++). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno); exit(1); } } while (0)
static int p[2];
static volatile int cleaned, started, destroyed, caught;
static void clean(void *arg) { (void)arg; cleaned++; }
#ifdef __cplusplus
struct Guard { ~Guard() { destroyed++; } };
#endif
static void *block(void *arg) {
#ifdef __cplusplus
    Guard guard;
    try {
#endif
    char c;
    pthread_cleanup_push(clean, 0);
    started = 1;
    switch ((long)arg) {
    case 0: (void)!read(p[0], &c, 1); break;
    case 1: poll(0, 0, 100000); break;
    case 2: sleep(1000); break;
    case 3: pause(); break;
    }
    CHECK(0);
    pthread_cleanup_pop(0);
#ifdef __cplusplus
    } catch (...) { caught++; throw; }
#endif
    return 0;
}
static void *spin(void *arg) {
    (void)arg;
    char c;
    pthread_cleanup_push(clean, 0);
    started = 1;
    int fd = open("/dev/zero", O_RDONLY);
    for (;;) (void)!read(fd, &c, 1);
    pthread_cleanup_pop(0);
    return 0;
}
int main(void) {
    int n = 0, blocked = 0;
    CHECK(pipe(p) == 0);
    for (int i = 0; i < 40; i++) {
        pthread_t t;
        started = 0;
        CHECK(pthread_create(&t, 0, i % 5 == 4 ? spin : block, (void *)(long)(i % 5)) == 0);
        while (!started) usleep(100);
        usleep(i % 2 ? 3000 : 0);
        CHECK(pthread_cancel(t) == 0);
        void *r;
        CHECK(pthread_join(t, &r) == 0);
        CHECK(r == PTHREAD_CANCELED);
        n++;
        blocked += i % 5 != 4;
        CHECK(cleaned == n);
#ifdef __cplusplus
        CHECK(destroyed == blocked && caught == blocked);
#endif
    }
    /* Disabled: nothing happens in the call. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, 0);
    pthread_cancel(pthread_self());
    CHECK(write(p[1], "z", 1) == 1);
    puts("ok");
    return 0;
}
