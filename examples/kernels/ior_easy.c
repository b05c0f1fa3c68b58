/* ior_easy.c: file per process, in large pieces, from the beginning to the end (IOR's and IO500's "easy").
 *
 * Each rank writes a file of its own; then it reads its neighbour's, so that no memory of its own helps.
 *
 * Controls: who has a file open has it alone (exclusive), and what is written need not be seen by others before it is closed (session).
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

static void run(struct job *job)
{
    const size_t pieces = 8 * (size_t)job->scale;
    const double mb = (double)(pieces * MIB) / 1e6;
    char *piece = job_memory(job, MIB), own[32], next[32];
    const int neighbour = (job->rank + 1) % job->ranks;
    snprintf(own, sizeof own, "file.%d", job->rank);
    snprintf(next, sizeof next, "file.%d", neighbour);

    double began = job_begin(job);
    struct object *file = object_create(job, own);
    for (size_t i = 0; i < pieces; i++) {
        job_stamp(piece, MIB, (uint64_t)job->rank, i * MIB);
        object_write(file, piece, MIB, i * MIB);
    }
    object_close(file);
    job_done(job, began, "write", mb, "MB/s");

    began = job_begin(job);
    file = object_open(job, next, false);
    for (size_t i = 0; i < pieces; i++) {
        object_read(file, piece, MIB, i * MIB);
        job_check(job, piece, MIB, (uint64_t)neighbour, i * MIB);
    }
    object_close(file);
    job_done(job, began, "read", mb, "MB/s");

    object_delete(job, own);
    free(piece);
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {.name = "ior-easy",
                                  .declares = "consistency=session,parallelism=exclusive",
                                  .run = run};
    return kernel_main(argc, argv, &kernel);
}
