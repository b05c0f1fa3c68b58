/* All ways to make a process, each checked for what parent and child see. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/sched.h>
#include <unistd.h>

extern char **environ;
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno); exit(1); } } while (0)

static int status_of(pid_t pid) {
    int status = -1;
    CHECK(waitpid(pid, &status, __WALL) == pid);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static volatile int shared;
static int child(void *arg) {
    shared = 7;
    char c = 'x';
    if (write(*(int *)arg, &c, 1) != 1) return 99;
    return 42;
}

static pid_t __attribute__((noinline)) vfork_exec(int depth) {
    volatile char fill[200];
    memset((void *)fill, depth, sizeof fill);
    pid_t pid = vfork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "exit 5", (char *)0);
        _exit(127);
    }
    for (unsigned i = 0; i < sizeof fill; i++) CHECK(fill[i] == (char)depth);
    return pid;
}

int main(void) {
    int p[2];
    char c = 0;
    for (int i = 0; i < 50; i++) CHECK(status_of(vfork_exec(i)) == 5);
    {
        pid_t pid = vfork();
        if (pid == 0) _exit(3);
        CHECK(status_of(pid) == 3);
    }
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(getppid() > 0 && getpid() > 0 ? 11 : 1);
        CHECK(status_of(pid) == 11);
    }
    /* posix_spawn with file actions and a failure. */
    for (int i = 0; i < 20; i++) {
        CHECK(pipe(p) == 0);
        posix_spawn_file_actions_t fa;
        posix_spawn_file_actions_init(&fa);
        posix_spawn_file_actions_addopen(&fa, 0, "/magic", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&fa, p[1], 1);
        posix_spawn_file_actions_addclose(&fa, p[0]);
        char *argv[] = {"cat", 0};
        pid_t pid;
        CHECK(posix_spawnp(&pid, "cat", &fa, 0, argv, environ) == 0);
        close(p[1]);
        char buf[300], host[300];
        ssize_t n = read(p[0], buf, sizeof buf);
        int fd = open("/etc/hostname", O_RDONLY);
        CHECK(read(fd, host, sizeof host) == n && memcmp(buf, host, n) == 0);
        close(fd);
        close(p[0]);
        CHECK(status_of(pid) == 0);
        CHECK(posix_spawn(&pid, "/nonexistent", 0, 0, argv, environ) == ENOENT);
        posix_spawn_file_actions_destroy(&fa);
    }
    /* clone with a stack: vfork-like, sharing memory without waiting, and separate. */
    static char stack[65536] __attribute__((aligned(16)));
    CHECK(pipe(p) == 0);
    int flags[] = {CLONE_VM | CLONE_VFORK | SIGCHLD, CLONE_VM | SIGCHLD, SIGCHLD, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD};
    for (int i = 0; i < 40; i++) {
        int f = flags[i % 4];
        shared = 0;
        pid_t pid = clone(child, stack + sizeof stack, f, &p[1]);
        CHECK(pid > 0);
        CHECK(read(p[0], &c, 1) == 1 && c == 'x');
        CHECK(status_of(pid) == 42);
        CHECK(shared == (f & CLONE_VM ? 7 : 0));
    }
    CHECK(clone(child, stack + sizeof stack, CLONE_SIGHAND, &p[1]) == -1 && errno == EINVAL);
    /* through syscall(): the number is known at run time only. */
    CHECK(syscall(SYS_getpid) == getpid());
    for (int i = 0; i < 10; i++) {
        struct clone_args a = {.exit_signal = SIGCHLD};
        pid_t pid = syscall(SYS_clone3, &a, sizeof a);
        if (pid == 0) _exit(21);
        CHECK(status_of(pid) == 21);
        pid = syscall(SYS_fork);
        if (pid == 0) _exit(22);
        CHECK(status_of(pid) == 22);
        pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) _exit(23);
        CHECK(status_of(pid) == 23);
    }
    CHECK(syscall(SYS_clone3, 0, 0) == -1 && errno == EINVAL);
    CHECK(syscall(100000) == -1 && errno == ENOSYS);
    CHECK(syscall(-5L) == -1 && errno == ENOSYS);
    CHECK(close(-1) == -1 && errno == EBADF);
    CHECK(read(1 << 30, &c, 1) == -1 && errno == EBADF);
    CHECK(WEXITSTATUS(system("exit 9")) == 9);
    FILE *f = popen("cat /magic; exit 2", "r");
    char line[300];
    CHECK(f && fgets(line, sizeof line, f));
    CHECK(WEXITSTATUS(pclose(f)) == 2);
    puts("ok");
    return 0;
}
