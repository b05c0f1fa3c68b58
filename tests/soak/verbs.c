/* Processes that use a pool by the verbs, and end in all ways: verbs PLACE COUNT SECONDS SEED
 *
 * Prints how many there were. Each opens a session of its own, writes and reads a collection, and closes all of it,
 * nothing of it, or is killed. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "forebay/iov.h"

#define CHECK(what)                                                                                                  \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #what, iov_error());          \
            _exit(9);                                                                                                \
        }                                                                                                            \
    } while (0)

/* So many processes are killed at most between two looks at what they have left. */
enum { MOST = 1 << 20 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void use(const char *place, int closes, int forever)
{
    iov_session *session = NULL;
    iov_workspace *w = NULL;
    CHECK(iov_session_open(place, &session) == 0);
    CHECK(iov_workspace_load(session, "soak", &w) == 0);
    do {
        char name[64], bytes[16];
        iov_collection *c = NULL;
        snprintf(name, sizeof name, "c-%d", getpid());
        CHECK(iov_collection_create(w, name, NULL, &c, NULL) == 0);
        CHECK(iov_write(c, "hello", 5, 2, NULL) == 0);
        CHECK(iov_read(c, bytes, 7, 0, NULL) == 7 && memcmp(bytes, "\0\0hello", 7) == 0);
        CHECK(iov_collection_close(c, NULL) == 0);
        CHECK(iov_collection_delete(w, name, NULL) == 0);
    } while (forever);
    if (closes) {
        CHECK(iov_workspace_close(w) == 0);
        CHECK(iov_session_close(session) == 0);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    long count = atol(argv[2]), total = 0;
    double until = now() + atof(argv[3]);
    iov_session *session = NULL;
    iov_workspace *w = NULL;
    static pid_t killed[MOST];
    long kills = 0;
    srand(atoi(argv[4]));
    CHECK(iov_session_open(argv[1], &session) == 0);
    int made = iov_workspace_create(session, "soak", NULL, 0, &w);
    if (made == -EEXIST)
        made = iov_workspace_load(session, "soak", &w);
    CHECK(made == 0);
    CHECK(iov_workspace_close(w) == 0 && iov_session_close(session) == 0);
    while ((!count || total < count) && now() < until) {
        int how = rand() % 4, wait = rand() % 20000, status = 0;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            use(argv[1], how == 0, how == 3);
            if (how == 1)
                _exit(0);
            exit(0);
        }
        total++;
        if (how == 3) {
            usleep(wait);
            kill(pid, SIGKILL);
            killed[kills++ % MOST] = pid;
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(how == 3 ? WIFSIGNALED(status) : status == 0);
    }
    CHECK(iov_session_open(argv[1], &session) == 0);
    CHECK(iov_workspace_load(session, "soak", &w) == 0);
    /* What the killed have left. On other nodes they may have died between two steps, which their node's keeper
     * completes within some seconds: until then the name is in use. */
    for (double patience = now() + 30;;) {
        for (long i = 0; i < kills && i < MOST; i++) {
            char name[64];
            snprintf(name, sizeof name, "c-%d", killed[i]);
            int gone = iov_collection_delete(w, name, NULL);
            CHECK(gone == 0 || gone == -ENOENT || gone == -EBUSY);
            if (gone == -EBUSY && now() > patience)
                fprintf(stderr, "%s: %s\n", name, iov_error());
        }
        if (iov_workspace_delete(w) == 0)
            break;
        CHECK(now() < patience);
        usleep(200000);
    }
    CHECK(iov_session_close(session) == 0);
    printf("total %ld\n", total);
    return 0;
}
