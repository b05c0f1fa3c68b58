/* Handlers on a signal stack that is as small as it may be: pages of a growing file, and a file
 * that another process truncates, under mappings. */
#include "call.h"
#include <sys/auxv.h>
static volatile int faults;
static void fault(int s, siginfo_t *i, void *c) { (void)s; (void)i; (void)c; faults++; _exit(9); }
int main(void) {
    struct sigaction a = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    size_t len = getauxval(AT_MINSIGSTKSZ) + 2048;
    if (len < 8192) len = 8192;
    char *low = mmap(NULL, len + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t st = {.ss_sp = low + 4096, .ss_size = len};
    mprotect(low, 4096, PROT_NONE);
    P(sigaltstack(&st, NULL));
    a.sa_sigaction = fault; P(sigaction(SIGBUS, &a, NULL)); P(sigaction(SIGSEGV, &a, NULL));
    int fd = open("grows", O_RDWR | O_CREAT | O_TRUNC, 0644), bad = 0;
    char page[4096], *m = mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < 500; i++) {
        memset(page, 'a' + i % 26, sizeof page);
        if (write(fd, page, sizeof page) != sizeof page || m[i * 4096L + 7] != 'a' + i % 26) bad++;
    }
    P(bad);
    /* Others truncate it while we touch its first page. */
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) _exit(ftruncate(fd, 4096) || ftruncate(fd, 2 << 20));
        int s, done = 0;
        while (!done) { m[5]++; done = waitpid(child, &s, WNOHANG) == child; }
        if (s != 0 || m[1 << 20] != 0) bad++;
        m[1 << 20] = 1;
    }
    /* Others truncate it while we fork: what tells us must not wait for the fork. */
    pid_t other = fork();
    if (other == 0) for (;;) if (ftruncate(fd, 4096) || ftruncate(fd, 2 << 20)) _exit(1);
    for (int i = 0; i < 300; i++) {
        pid_t child = fork();
        if (child == 0) _exit(m[9] != 'a');
        int s;
        if (waitpid(child, &s, 0) != child || s != 0) bad++;
    }
    kill(other, SIGKILL); waitpid(other, NULL, 0);
    P(bad); P(faults); fflush(stdout);
    /* Behind the end the program's own handler runs. */
    if (fork() == 0) { m[3 << 20] = 1; _exit(1); }
    int s; wait(&s); P(WIFEXITED(s) ? WEXITSTATUS(s) : -WTERMSIG(s));
    return 0;
}
