/* stream.c: a simulation that writes every time step, into two buffers in turn.
 *
 * While a step is computed in one buffer, the step before is written from the other: with the verbs, by a batch that runs meanwhile.
 * Plain POSIX calls have no such way; there the program waits for each write. The rate is that of computing
 * and writing together. stream.cpp and stream.rs are the same program in C++ and in Rust.
 *
 * Controls: the file only grows, by one writer at a time, and others see a step when the file is closed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

enum { STEP = 4 * MIB, CELLS = 4000, ROUNDS = 500 };

static void with_verbs(struct job *job, iov_collection *to, char *const buffers[2], int steps)
{
    static double cells[CELLS];
    iov_batch *writing = NULL;
    for (int step = 0; step < steps; step++) {
        char *buffer = buffers[step % 2];
        job_compute(cells, CELLS, ROUNDS);
        job_stamp(buffer, STEP, (uint64_t)job->rank, (uint64_t)step * STEP);
        if (writing) {
            job_verb(job, iov_wait(writing, -1), "wait");
            job_verb(job, iov_batch_result(writing), "write a step");
            job_verb(job, iov_batch_free(writing), "free");
        }
        job_verb(job, iov_batch_create(job->session, IOV_STOP, IOV_FREE, &writing), "batch");
        job_verb(job, iov_append(to, buffer, STEP, writing), "append");
        job_verb(job, iov_batch_start(writing), "start");
    }
    job_verb(job, iov_wait(writing, -1), "wait");
    job_verb(job, iov_batch_result(writing), "write a step");
    job_verb(job, iov_batch_free(writing), "free");
}

static void with_posix(struct job *job, struct object *to, char *const buffers[2], int steps)
{
    static double cells[CELLS];
    for (int step = 0; step < steps; step++) {
        const uint64_t at = (uint64_t)step * STEP;
        job_compute(cells, CELLS, ROUNDS);
        job_stamp(buffers[0], STEP, (uint64_t)job->rank, at);
        object_write(to, buffers[0], STEP, at);
    }
}

static void run(struct job *job)
{
    const int steps = 5 * job->scale;
    char *const buffers[2] = {job_memory(job, STEP), job_memory(job, STEP)}, name[32];
    snprintf(name, sizeof name, "steps.%d", job->rank);

    double began = job_begin(job);
    struct object *file = object_create(job, name);
    if (job->dir)
        with_posix(job, file, buffers, steps);
    else
        with_verbs(job, object_collection(file), buffers, steps);
    object_close(file);
    job_done(job, began, "steps", steps, "/s");

    file = object_open(job, name, false);
    for (int step = 0; step < steps; step++) {
        const uint64_t at = (uint64_t)step * STEP;
        object_read(file, buffers[0], STEP, at);
        job_check(job, buffers[0], STEP, (uint64_t)job->rank, at);
    }
    object_close(file);
    object_delete(job, name);
    free(buffers[0]);
    free(buffers[1]);
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {
        .name = "stream",
        .declares = "consistency=session,mutability=append,parallelism=exclusive",
        .run = run};
    return kernel_main(argc, argv, &kernel);
}
