/* Signals that arrive in a call: EINTR, restart, jumping out, walking the stack, small alternate stacks. */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <time.h>
#include <poll.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno); exit(1); } } while (0)
static int p[2];
static volatile int hits, frames_ok;
static sigjmp_buf env;
static char *main_low;
int main(void);

/* Again and again: on a busy machine the first one may come before the call that it is to interrupt. */
static void alarm_in(int us) {
    struct itimerval t = {.it_value = {.tv_usec = us}, .it_interval = {.tv_usec = 200000}};
    CHECK(setitimer(ITIMER_REAL, &t, 0) == 0);
}
static void no_alarm(void) {
    struct itimerval t = {0};
    CHECK(setitimer(ITIMER_REAL, &t, 0) == 0);
}
/* Takes what one signal or several have fed. */
static void fed(void) {
    char all[64];
    alarm_in(3000);
    ssize_t n = read(p[0], all, sizeof all);
    no_alarm();
    CHECK(n >= 1 && all[0] == 'y');
    int left;
    CHECK(ioctl(p[0], FIONREAD, &left) == 0);
    CHECK(left <= (int)sizeof all && (!left || read(p[0], all, left) == left));
}
static void count(int s) { (void)s; hits++; }
static void feed(int s) { (void)s; hits++; CHECK(write(p[1], "y", 1) == 1); }
static void jump(int s) { (void)s; siglongjmp(env, 1); }
static void trace(int s) {
    (void)s;
    void *f[64];
    int n = backtrace(f, 64);
    for (int i = 0; i < n; i++)
        if ((char *)f[i] > main_low && (char *)f[i] < main_low + 4000) frames_ok = 1;
}
static void set(int flags, void (*h)(int)) {
    struct sigaction a = {.sa_handler = h, .sa_flags = flags};
    CHECK(sigaction(SIGALRM, &a, 0) == 0);
}

int main(void) {
    char c = 0;
    void *warm[4];
    backtrace(warm, 4);
    main_low = (char *)main;
    CHECK(pipe(p) == 0);
    set(0, count);
    for (int i = 0; i < 5; i++) {
        alarm_in(3000);
        CHECK(read(p[0], &c, 1) == -1 && errno == EINTR);
    }
    no_alarm();
    CHECK(hits >= 5);
    alarm_in(3000);
    struct timespec t = {5, 0}, left;
    CHECK(nanosleep(&t, &left) == -1 && errno == EINTR && (left.tv_sec || left.tv_nsec));
    alarm_in(3000);
    CHECK(poll(0, 0, 5000) == -1 && errno == EINTR);
    no_alarm();
    set(SA_RESTART, feed);
    fed();
    for (volatile int i = 0; i < 20; i++) {
        set(SA_RESTART, jump);
        if (!sigsetjmp(env, 1)) {
            alarm_in(2000);
            read(p[0], &c, 1);
            CHECK(0);
        }
        no_alarm();
    }
    set(0, trace);
    alarm_in(3000);
    CHECK(read(p[0], &c, 1) == -1 && errno == EINTR);
    no_alarm();
    CHECK(frames_ok);
    static char alt[8192];
    stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
    CHECK(sigaltstack(&ss, 0) == 0);
    set(SA_ONSTACK | SA_RESTART, feed);
    fed();
    /* Stopped and continued in a call that restarts through restart_syscall. */
    pid_t me = getpid(), kid = fork();
    if (kid == 0) {
        usleep(5000); kill(me, SIGSTOP); usleep(5000); kill(me, SIGCONT);
        _exit(0);
    }
    struct timespec s = {0, 40000000};
    CHECK(nanosleep(&s, 0) == 0);
    CHECK(poll(0, 0, 10) == 0);
    puts("ok");
    return 0;
}
