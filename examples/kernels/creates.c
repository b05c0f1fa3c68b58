/* creates.c: many small objects: made, looked up, deleted; one by one, and in batches of 1,000 (as mdtest does, and IO500's "mdtest easy").
 *
 * With the verbs, what is done one by one is done again by a batch; with POSIX calls there is only the first. Each rank has names of its own in
 * a workspace, or directory, that all share. --apart: in one of its own (mdtest -u).
 *
 * Controls: who has a file open has it alone (exclusive). So a directory of its own keeps its names with the rank; in one that all share it
 * changes nothing.
 */
#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "kernel.h"

enum { BATCH = 1000, NAME = 48 };

static void name_of(const struct job *job, char *name, int n)
{
    snprintf(name, NAME, "object.%d.%06d", job->rank, n);
}

static void one_by_one(struct job *job, int files)
{
    char name[NAME], path[4200];
    double began = job_begin(job);
    for (int i = 0; i < files; i++) {
        name_of(job, name, i);
        object_close(object_create(job, name));
    }
    job_done(job, began, "create", files, "/s");

    began = job_begin(job);
    for (int i = 0; i < files; i++) {
        struct stat known;
        iov_records *record;
        name_of(job, name, i);
        snprintf(path, sizeof path, "%s/%s", job->dir ? job->dir : "", name);
        if (job->dir) {
            job_call(job, stat(path, &known), path);
            continue;
        }
        job_verb(job, iov_collection_lookup(job->workspace, name, &record, NULL), name);
        iov_records_free(record);
    }
    job_done(job, began, "look-up", files, "/s");

    began = job_begin(job);
    for (int i = 0; i < files; i++) {
        name_of(job, name, i);
        object_delete(job, name);
    }
    job_done(job, began, "delete", files, "/s");
}

static iov_batch *batch(struct job *job)
{
    iov_batch *made;
    job_verb(job, iov_batch_create(job->session, IOV_STOP, IOV_FREE, &made), "batch");
    return made;
}

static void finish(struct job *job, iov_batch *b)
{
    job_verb(job, iov_batch_start(b), "start");
    job_verb(job, iov_wait(b, -1), "wait");
    job_verb(job, iov_batch_result(b), "batch");
    job_verb(job, iov_batch_free(b), "free");
}

static void in_batches(struct job *job, int files)
{
    const struct iov_options options = {
        .size = sizeof options, .backend = job->backend, .controls = job->controls};
    char name[NAME];
    double began = job_begin(job);
    for (int from = 0; from < files; from += BATCH) {
        iov_batch *b = batch(job);
        for (int i = from; i < files && i < from + BATCH; i++) {
            iov_collection *made;
            name_of(job, name, i);
            job_verb(job, iov_collection_create(job->workspace, name, &options, &made, b), name);
            job_verb(job, iov_collection_close(made, b), name);
        }
        finish(job, b);
    }
    job_done(job, began, "create-in-batches", files, "/s");

    began = job_begin(job);
    for (int from = 0; from < files; from += BATCH) {
        iov_batch *b = batch(job);
        for (int i = from; i < files && i < from + BATCH; i++) {
            name_of(job, name, i);
            job_verb(job, iov_collection_delete(job->workspace, name, b), name);
        }
        finish(job, b);
    }
    job_done(job, began, "delete-in-batches", files, "/s");
}

static void run(struct job *job)
{
    const int files = 250 * job->scale;
    if (job->apart)
        objects_apart(job);
    one_by_one(job, files);
    if (!job->dir)
        in_batches(job, files);
    if (job->apart)
        objects_together(job);
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {.name = "creates", .declares = "parallelism=exclusive", .run = run};
    return kernel_main(argc, argv, &kernel);
}
