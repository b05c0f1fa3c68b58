/* checkpoint.c: a program that goes on computing while its last checkpoint is written.
 *
 * Its state is copied aside, which is quick; a batch makes, writes and closes the checkpoint from there, while the
 * program changes its state again. The one before is deleted when the new one is whole, in the same batch. At the end the program
 * "restarts": it reads what the newest checkpoint has. With POSIX calls it waits for each checkpoint.
 *
 * Controls: a checkpoint never changes once it is written (immutable), and who reads it opens it after that (session).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

enum { STATE = 8 * MIB, CHECKPOINTS = 5, CELLS = 4000, ROUNDS = 2000 };

static const char *name_of(const struct job *job, int n)
{
    static char name[64];
    snprintf(name, sizeof name, "checkpoint.%d.%d", job->rank, n);
    return name;
}

/* Starts writing checkpoint n from `copy`. */
static iov_batch *start(struct job *job, const char *copy, int n)
{
    const struct iov_options options = {
        .size = sizeof options, .backend = job->backend, .controls = job->controls};
    iov_collection *checkpoint;
    iov_batch *batch;
    job_verb(job, iov_batch_create(job->session, IOV_STOP, IOV_FREE, &batch), "batch");
    job_verb(job,
             iov_collection_create(job->workspace, name_of(job, n), &options, &checkpoint, batch),
             "create");
    job_verb(job, iov_write(checkpoint, copy, STATE, 0, batch), "write");
    const int64_t whole = job_verb(job, iov_collection_close(checkpoint, batch), "close");
    if (n > 0) {
        int64_t old = job_verb(
            job, iov_collection_delete(job->workspace, name_of(job, n - 1), batch), "delete");
        job_verb(job, iov_batch_after(batch, old, &whole, 1), "after");
    }
    job_verb(job, iov_batch_start(batch), "start");
    return batch;
}

static void finish(struct job *job, iov_batch *batch)
{
    if (!batch)
        return;
    job_verb(job, iov_wait(batch, -1), "wait");
    job_verb(job, iov_batch_result(batch), "checkpoint");
    job_verb(job, iov_batch_free(batch), "free");
}

static void write_now(struct job *job, const char *state, int n)
{
    struct object *checkpoint = object_create(job, name_of(job, n));
    object_write(checkpoint, state, STATE, 0);
    object_close(checkpoint);
    if (n > 0)
        object_delete(job, name_of(job, n - 1));
}

static void run(struct job *job)
{
    static double cells[CELLS];
    const int checkpoints = CHECKPOINTS * job->scale;
    char *state = job_memory(job, STATE), *copy = job_memory(job, STATE);
    iov_batch *writing = NULL;

    double began = job_begin(job);
    for (int n = 0; n < checkpoints; n++) {
        job_compute(cells, CELLS, ROUNDS);
        job_stamp(state, STATE, (uint64_t)n, (uint64_t)job->rank);
        if (job->dir) {
            write_now(job, state, n);
            continue;
        }
        finish(job, writing);
        memcpy(copy, state, STATE);
        writing = start(job, copy, n);
    }
    finish(job, writing);
    job_done(job, began, "checkpoints", checkpoints, "/s");

    struct object *newest = object_open(job, name_of(job, checkpoints - 1), false);
    memset(state, 0, STATE);
    object_read(newest, state, STATE, 0);
    job_check(job, state, STATE, (uint64_t)checkpoints - 1, (uint64_t)job->rank);
    object_close(newest);
    object_delete(job, name_of(job, checkpoints - 1));
    free(state);
    free(copy);
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {.name = "checkpoint",
                                  .declares = "consistency=session,mutability=immutable",
                                  .run = run};
    return kernel_main(argc, argv, &kernel);
}
