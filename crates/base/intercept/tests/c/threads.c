/* Storms of threads, small stacks, threads beside forks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno); exit(1); } } while (0)
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cv = PTHREAD_COND_INITIALIZER;
static int waiting, go;
static void *work(void *arg) {
    char buf[100];
    for (int i = 0; i < 20; i++) {
        int fd = open("/magic", O_RDONLY);
        CHECK(fd >= 0);
        CHECK(read(fd, buf, sizeof buf) > 0);
        close(fd);
    }
    pthread_mutex_lock(&m);
    waiting++;
    while (!go) pthread_cond_wait(&cv, &m);
    pthread_mutex_unlock(&m);
    return arg;
}
static void *forker(void *arg) {
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(4);
        int s;
        CHECK(waitpid(pid, &s, 0) == pid && WEXITSTATUS(s) == 4);
    }
    return arg;
}
int main(void) {
    pthread_attr_t a;
    pthread_attr_init(&a);
    CHECK(pthread_attr_setstacksize(&a, 65536) == 0);
    for (int round = 0; round < 10; round++) {
        pthread_t t[60];
        go = waiting = 0;
        for (long i = 0; i < 60; i++) CHECK(pthread_create(&t[i], round % 2 ? &a : 0, i % 10 ? work : forker, (void *)i) == 0);
        for (;;) {
            pthread_mutex_lock(&m);
            int w = waiting;
            if (w == 54) go = 1, pthread_cond_broadcast(&cv);
            pthread_mutex_unlock(&m);
            if (w == 54) break;
            usleep(500);
        }
        for (long i = 0; i < 60; i++) {
            void *r;
            CHECK(pthread_join(t[i], &r) == 0 && r == (void *)i);
        }
    }
    for (int i = 0; i < 500; i++) {
        pthread_t t;
        CHECK(pthread_create(&t, 0, (void *(*)(void *))getpid, 0) == 0);
        CHECK(pthread_join(t, 0) == 0);
    }
    puts("ok");
    return 0;
}
