/* chunks.c: each rank writes one large chunk of a shared file, at its offset (chunk per process, as fluid dynamics does).
 *
 * The time of the write is that of a collective dump: with the commit that makes it readable for all. Then each
 * rank reads the chunk of another, as after a restart with another distribution.
 *
 * Controls: what is written need not be seen by others before it is committed, and is written once.
 */
#include <stdlib.h>

#include "kernel.h"

static void run(struct job *job)
{
    const size_t len = 8 * (size_t)job->scale * MIB;
    const double mb = (double)len / 1e6;
    const uint64_t own = (uint64_t)job->rank * len;
    const uint64_t other = (uint64_t)((job->rank + 1) % job->ranks) * len;
    char *chunk = job_memory(job, len);
    job_stamp(chunk, len, 0, own);
    if (job->rank == 0)
        object_close(object_create(job, "dump"));
    job_meet(job);
    struct object *file = object_open(job, "dump", true);

    double began = job_begin(job);
    object_write(file, chunk, len, own);
    object_commit(file);
    job_done(job, began, "write", mb, "MB/s");
    object_close(file);
    job_meet(job);

    file = object_open(job, "dump", false);
    began = job_begin(job);
    object_read(file, chunk, len, other);
    job_done(job, began, "read", mb, "MB/s");
    job_check(job, chunk, len, 0, other);
    object_close(file);
    job_meet(job);
    if (job->rank == 0)
        object_delete(job, "dump");
    free(chunk);
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {
        .name = "chunks", .declares = "consistency=commit,temporality=once", .run = run};
    return kernel_main(argc, argv, &kernel);
}
