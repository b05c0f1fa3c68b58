/* ior_hard.c: one shared file of records of 47,008 bytes, which lie interleaved: 0, 1, 2, 3, 0, 1, ... (IOR's and IO500's "hard").
 *
 * Nothing is aligned to anything: every page at an end of a record has two writers. Each rank then reads
 * its neighbour's records.
 *
 * Controls: what is written need not be seen by others before it is committed.
 */
#include <stdlib.h>

#include "kernel.h"

enum { RECORD = 47008 };

static uint64_t place(const struct job *job, size_t i, int rank)
{
    return ((uint64_t)i * (uint64_t)job->ranks + (uint64_t)rank) * RECORD;
}

static void run(struct job *job)
{
    const size_t records = 100 * (size_t)job->scale;
    const double mb = (double)(records * RECORD) / 1e6;
    const int neighbour = (job->rank + 1) % job->ranks;
    char *record = job_memory(job, RECORD);
    if (job->rank == 0)
        object_close(object_create(job, "shared"));
    job_meet(job);
    struct object *file = object_open(job, "shared", true);

    double began = job_begin(job);
    for (size_t i = 0; i < records; i++) {
        const uint64_t at = place(job, i, job->rank);
        job_stamp(record, RECORD, 0, at);
        object_write(file, record, RECORD, at);
    }
    object_commit(file);
    job_done(job, began, "write", mb, "MB/s");
    object_close(file);
    job_meet(job);
    file = object_open(job, "shared", false);

    began = job_begin(job);
    for (size_t i = 0; i < records; i++) {
        const uint64_t at = place(job, i, neighbour);
        object_read(file, record, RECORD, at);
        job_check(job, record, RECORD, 0, at);
    }
    job_done(job, began, "read", mb, "MB/s");

    object_close(file);
    job_meet(job);
    if (job->rank == 0)
        object_delete(job, "shared");
    free(record);
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {
        .name = "ior-hard", .declares = "consistency=commit", .run = run};
    return kernel_main(argc, argv, &kernel);
}
