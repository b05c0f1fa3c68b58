/* Threads that block all signals: bad addresses are EFAULT, and masks are as they were set. */
#include "call.h"
#include <pthread.h>

static volatile int got;
static void on_signal(int s) { got = s; }
static sigset_t all, none, was;

static void show(const char *when) {
    sigset_t now, waiting; pthread_sigmask(SIG_BLOCK, NULL, &now); sigpending(&waiting);
    SAY("%s: blocked SEGV %d BUS %d USR1 %d, waiting SEGV %d BUS %d USR1 %d, got %d", when, sigismember(&now, SIGSEGV), sigismember(&now, SIGBUS), sigismember(&now, SIGUSR1), sigismember(&waiting, SIGSEGV), sigismember(&waiting, SIGBUS), sigismember(&waiting, SIGUSR1), got);
}

static void bad_addresses(void) {
    int fd = open("f", O_RDWR | O_CREAT, 0644); struct stat s;
    P(stat((char *)1, &s)); P(stat("f", (void *)1)); P(pwrite(fd, "12345", 5, 0)); P(pread(fd, (void *)1, 3, 0)); P(pwrite(fd, (void *)1, 3, 0)); P(unlink((char *)-1)); P(close(fd));
}

/* Pages that a mapped file gets from another process. */
static void grown(void) {
    int fd = open("g", O_RDWR | O_CREAT, 0644); char *m = mmap(0, 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fflush(stdout); pid_t p = fork(); if (p == 0) { pwrite(fd, "later", 5, 2 * 4096); _exit(0); } waitpid(p, NULL, 0);
    SAY("%.5s", m + 2 * 4096); munmap(m, 4 * 4096); P(close(fd)); P(unlink("g"));
}

static void *thread(void *arg) { show("thread"); bad_addresses(); return NULL; }

/* What kills a process. */
static void dies(const char *what, void f(void)) {
    fflush(stdout); pid_t p = fork(); if (p == 0) { struct rlimit no = {0, 0}; setrlimit(RLIMIT_CORE, &no); f(); _exit(0); }
    int st; waitpid(p, &st, 0); SAY("%s: signal %d, exit %d", what, WIFSIGNALED(st) ? WTERMSIG(st) : 0, WIFEXITED(st) ? WEXITSTATUS(st) : 0);
}
static void touch(void) { *(volatile int *)1 = 1; }
static void sent(void) { raise(SIGSEGV); show("sent"); }
static void sent_and_let_through(void) { raise(SIGSEGV); pthread_sigmask(SIG_SETMASK, &none, NULL); }
static void handled(void) { signal(SIGSEGV, on_signal); signal(SIGBUS, on_signal); raise(SIGSEGV); kill(getpid(), SIGBUS); raise(SIGUSR1); show("handled, blocked"); sigset_t one; sigemptyset(&one); sigaddset(&one, SIGBUS); pthread_sigmask(SIG_UNBLOCK, &one, &was); show("one let through"); signal(SIGUSR1, SIG_IGN); pthread_sigmask(SIG_SETMASK, &none, NULL); show("all let through"); }
static void handled_fault(void) { signal(SIGSEGV, on_signal); touch(); }
static void in_handler(int s) { bad_addresses(); }
static void masked_handler(void) {
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    struct sigaction a = {.sa_handler = in_handler, .sa_mask = all}, old; sigaction(SIGUSR2, &a, NULL); sigaction(SIGUSR2, NULL, &old); SAY("its mask: %d %d", sigismember(&old.sa_mask, SIGSEGV), sigismember(&old.sa_mask, SIGTERM));
    raise(SIGUSR2); show("after the handler");
}
static void executed(void) { execl("/proc/self/exe", "masks", "again", NULL); }

int main(int argc, char **argv) {
    sigfillset(&all); sigemptyset(&none);
    if (argc > 1) { bad_addresses(); return 0; }
    close(open("f", O_CREAT | O_WRONLY, 0644)); show("at first");
    P(pthread_sigmask(SIG_BLOCK, &all, &was)); show("all blocked"); bad_addresses(); grown();
    pthread_t t; pthread_create(&t, NULL, thread, NULL); pthread_join(t, NULL);
    dies("a fault", touch); dies("a handled fault", handled_fault); dies("sent", sent); dies("sent and let through", sent_and_let_through); dies("handled", handled); dies("executed", executed);
    signal(SIGSEGV, SIG_DFL); P(CALL(14, 77, &all, NULL, 8)); P(CALL(14, SIG_BLOCK, 1, NULL, 8)); P(CALL(14, SIG_BLOCK, NULL, 1, 8)); P(CALL(14, SIG_BLOCK, NULL, NULL, 9));
    dies("in a handler", masked_handler);
    pthread_sigmask(SIG_SETMASK, &was, NULL); show("at last"); P(unlink("f"));
    return 0;
}
