/* update.c: a state that is changed in several places, of which after a crash all or none may have changed.
 *
 * Each update puts its number into 8 blocks of 4 KiB, spread over 1 MiB. With the verbs it is a batch with `rollback`: it writes
 * the blocks where they are. With POSIX calls, the usual way: a new file, which is synced and renamed over the old one.
 *
 * First the rate of updates is measured. Then a child does them, and is killed at random, again and again; each time the state is opened
 * as after a crash, and must be that of one update, wholly. (One that had begun may have been undone.)
 *
 * Controls: what a failure means (rollback). Consistency stays strict: what isn't seen in order can't be whole after a crash.
 */
#define _GNU_SOURCE

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernel.h"

enum { STATE = 1 * MIB, BLOCK = 4096, BLOCKS = 8, KILLS = 10 };

static uint64_t place(int block)
{
    return (uint64_t)block * (STATE / BLOCKS);
}

static const char *name_of(const struct job *job, const char *suffix)
{
    static char name[64];
    snprintf(name, sizeof name, "state.%d%s", job->rank, suffix);
    return name;
}

static void update_in_batch(struct job *job, iov_collection *state, char *const blocks, uint64_t n)
{
    iov_batch *batch;
    job_verb(job, iov_batch_create(job->session, IOV_ROLLBACK, IOV_FREE, &batch), "batch");
    for (int i = 0; i < BLOCKS; i++) {
        char *block = blocks + (size_t)i * BLOCK;
        job_stamp(block, BLOCK, n, place(i));
        memcpy(block + 8, &n, sizeof n);
        job_verb(job, iov_write(state, block, BLOCK, place(i), batch), "write");
    }
    job_verb(job, iov_batch_start(batch), "start");
    job_verb(job, iov_wait(batch, -1), "wait");
    job_verb(job, iov_batch_result(batch), "update");
    job_verb(job, iov_batch_free(batch), "free");
}

static void update_by_renaming(struct job *job, char *all, uint64_t n)
{
    char from[4200], to[4200];
    for (int i = 0; i < BLOCKS; i++) {
        job_stamp(all + place(i), BLOCK, n, place(i));
        memcpy(all + place(i) + 8, &n, sizeof n);
    }
    snprintf(from, sizeof from, "%s/%s", job->dir, name_of(job, ".new"));
    snprintf(to, sizeof to, "%s/%s", job->dir, name_of(job, ""));
    unlink(from); /* what a crash has left */
    struct object *new = object_create(job, name_of(job, ".new"));
    object_write(new, all, STATE, 0);
    object_commit(new);
    object_close(new);
    job_call(job, rename(from, to), "rename");
}

/* Updates from `first` on, up to `last`. */
static void update(struct job *job, uint64_t first, uint64_t last)
{
    char *memory = job_memory(job, STATE);
    struct object *state = job->dir ? NULL : object_open(job, name_of(job, ""), true);
    for (uint64_t n = first; n <= last; n++) {
        if (job->dir)
            update_by_renaming(job, memory, n);
        else
            update_in_batch(job, object_collection(state), memory, n);
    }
    if (state)
        object_close(state);
    free(memory);
}

/* The number of the update that the state is of, which it is of wholly. */
static uint64_t look(struct job *job, bool after_crash)
{
    char block[BLOCK];
    uint64_t n = 0;
    iov_workspace *again;
    if (after_crash && !job->dir) { /* who loads a workspace undoes what a dead process has left half done */
        job_verb(job, iov_workspace_load(job->session, "update", &again), "recover");
        job_verb(job, iov_workspace_close(again), "close");
    }
    struct object *state = object_open(job, name_of(job, ""), false);
    for (int i = 0; i < BLOCKS; i++) {
        uint64_t here;
        object_read(state, block, BLOCK, place(i));
        memcpy(&here, block + 8, sizeof here);
        n = i == 0 ? here : n;
        if (here != n)
            job_fail(job, "half an update: block %d is of %llu, the first of %llu", i,
                     (unsigned long long)here, (unsigned long long)n);
        job_check(job, block, BLOCK, n, place(i));
    }
    object_close(state);
    return n;
}

/* The verbs of a forked child need a session of its own. */
static void open_anew(struct job *job)
{
    if (job->dir)
        return;
    job_verb(job, iov_session_open(job->place, &job->session), "session");
    if (job->backend)
        job_fail(job, "kills need collections of the pool: without --backend");
    job_verb(job, iov_workspace_load(job->session, "update", &job->workspace), "workspace");
}

static void kill_and_look(struct job *job)
{
    const uint64_t before = look(job, false);
    const pid_t child = fork();
    job_call(job, child, "fork");
    if (child == 0) {
        open_anew(job);
        update(job, before + 1, UINT64_MAX);
        _exit(1);
    }
    /* Not before it is at it; then anywhere. What a reader sees meanwhile may be half an update. */
    char block[16];
    const double until = job_now() + 60;
    for (uint64_t n = before; n == before;) {
        struct object *state = object_open(job, name_of(job, ""), false);
        object_read(state, block, sizeof block, 0);
        object_close(state);
        memcpy(&n, block + 8, sizeof n);
        if (job_now() > until || waitpid(child, NULL, WNOHANG) != 0)
            job_fail(job, "the child makes no updates");
    }
    const struct timespec nap = {.tv_nsec = random() % 3000000};
    nanosleep(&nap, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    const uint64_t n = look(job, true);
    if (n < before)
        job_fail(job, "after the crash it is update %llu, but %llu had been made",
                 (unsigned long long)n, (unsigned long long)before);
}

static void run(struct job *job)
{
    const uint64_t updates = 50 * (uint64_t)job->scale;
    srandom((unsigned)(job_now() * 1e6) + (unsigned)job->rank);
    char *zeros = job_memory(job, STATE);
    struct object *state = object_create(job, name_of(job, ""));
    object_write(state, zeros, STATE, 0);
    object_close(state);
    free(zeros);

    double began = job_begin(job);
    update(job, 1, updates);
    job_done(job, began, "updates", (double)updates, "/s");
    if (look(job, false) != updates)
        job_fail(job, "the last update isn't there");

    const int kills = job->backend ? 0 : KILLS;
    for (int i = 0; i < kills * job->ranks; i++) {
        if (i % job->ranks == job->rank)
            kill_and_look(job);
        job_meet(job); /* one at a time: who recovers does it for all */
    }
    job_count(job, "kills-survived", kills);
    object_delete(job, name_of(job, ""));
    if (job->dir) {
        char left[4200];
        snprintf(left, sizeof left, "%s/%s", job->dir, name_of(job, ".new"));
        unlink(left);
    }
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {.name = "update", .declares = "failure=rollback", .run = run};
    return kernel_main(argc, argv, &kernel);
}
