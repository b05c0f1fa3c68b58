/* exec while other threads use a pool for the first time: births_exec FILE COUNT
 *
 * COUNT children, which haven't used the pool, start threads that open FILE, and execute this program
 * meanwhile; it opens FILE, too, and waits. Prints "ready" when all of them wait, and ends them when its
 * standard input ends. In the end, a child that shares this process's memory executes a program, and this
 * process uses the pool for the first time: nothing holds it up.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *opens(void *file)
{
    for (;;) {
        int fd = open(file, O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
            close(fd);
    }
}

static char stack[64 << 10];

static int executes(void *unused)
{
    execl("/bin/true", "true", NULL);
    _exit(2);
}

static int first_use(const char *file)
{
    int status, pid = clone(executes, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return 5;
    time_t begun = time(NULL);
    if (open(file, O_RDONLY) < 0)
        return 6;
    if (time(NULL) - begun > 5) {
        fprintf(stderr, "the first use took %ld s\n", (long)(time(NULL) - begun));
        return 7;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char c = 0;
    if (argc == 2) {
        if (open(argv[1], O_RDONLY) < 0) {
            perror(argv[1]);
            return 1;
        }
        return write(1, &c, 1) == 1 && read(0, &c, 1) == 0 ? 0 : 1;
    }
    int count = atoi(argv[2]), said[2], end[2];
    if (pipe(said) != 0 || pipe(end) != 0)
        return 2;
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid < 0)
            return 2;
        if (pid == 0) {
            pthread_t thread;
            dup2(end[0], 0);
            dup2(said[1], 1);
            close(end[1]);
            for (int k = 0; k < 2; k++)
                pthread_create(&thread, NULL, opens, argv[1]);
            usleep(i % 30 * 10);
            execl(argv[0], argv[0], argv[1], NULL);
            _exit(2);
        }
    }
    for (int i = 0; i < count; i++)
        if (read(said[0], &c, 1) != 1)
            return 3;
    puts("ready");
    fflush(stdout);
    while (read(0, &c, 1) > 0)
        ;
    close(end[1]);
    for (int i = 0; i < count; i++) {
        int status;
        if (wait(&status) < 0 || status != 0) {
            fprintf(stderr, "a child ended with %x\n", status);
            return 4;
        }
    }
    return first_use(argv[1]);
}
