/* samples.c: training: many small files, read in an order that is drawn anew for each epoch.
 *
 * The ranks make the files together, and list them. In each epoch every rank reads its share of a common random
 * order. With the verbs, the next 32 files are opened, read and closed by a batch while the program works on
 * the 32 before; with POSIX calls, one after the other.
 *
 * Controls: a file never changes once it is written (immutable), and who reads it opens it after that (session).
 */
#define _GNU_SOURCE

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

enum { SAMPLE = 16 << 10, GROUP = 32, EPOCHS = 3, NAME = 32 };

static void name_of(char *name, int n)
{
    snprintf(name, NAME, "sample.%06d", n);
}

/* How many files the directory or the workspace has. */
static int count(struct job *job)
{
    int n = 0;
    if (job->dir) {
        DIR *dir = opendir(job->dir);
        if (!dir)
            job_fail(job, "opendir %s", job->dir);
        while (readdir(dir))
            n++;
        closedir(dir);
        return n - 2; /* . and .. */
    }
    iov_records *all;
    job_verb(job, iov_collection_search(job->workspace, "", &all, NULL), "search");
    n = (int)iov_records_count(all);
    iov_records_free(all);
    return n;
}

/* The same order for all ranks. */
static void shuffle(int *order, int files, unsigned epoch)
{
    srandom(epoch + 1);
    for (int i = 0; i < files; i++)
        order[i] = i;
    for (int i = files - 1; i > 0; i--) {
        const int j = (int)(random() % (i + 1)), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

static iov_batch *fetch(struct job *job, const int *which, int files, char *to)
{
    iov_batch *batch;
    job_verb(job, iov_batch_create(job->session, IOV_STOP, IOV_FREE, &batch), "batch");
    for (int i = 0; i < files; i++) {
        iov_collection *sample;
        char name[NAME];
        name_of(name, which[i]);
        job_verb(job, iov_collection_open(job->workspace, name, &sample, batch), name);
        job_verb(job, iov_read(sample, to + (size_t)i * SAMPLE, SAMPLE, 0, batch), name);
        job_verb(job, iov_collection_close(sample, batch), name);
    }
    job_verb(job, iov_batch_start(batch), "start");
    return batch;
}

static void look(struct job *job, const int *which, int files, const char *bytes)
{
    for (int i = 0; i < files; i++)
        job_check(job, bytes + (size_t)i * SAMPLE, SAMPLE, (uint64_t)which[i], 0);
}

static int group(int files, int from)
{
    return files - from < GROUP ? files - from : GROUP;
}

static void read_with_verbs(struct job *job, const int *mine, int files, char *const buffers[2])
{
    iov_batch *coming = fetch(job, mine, group(files, 0), buffers[0]);
    for (int from = 0, turn = 0; from < files; from += GROUP, turn = !turn) {
        iov_batch *here = coming;
        job_verb(job, iov_wait(here, -1), "wait");
        job_verb(job, iov_batch_result(here), "read");
        job_verb(job, iov_batch_free(here), "free");
        if (from + GROUP < files)
            coming = fetch(job, mine + from + GROUP, group(files, from + GROUP), buffers[!turn]);
        look(job, mine + from, group(files, from), buffers[turn]);
    }
}

static void read_with_posix(struct job *job, const int *mine, int files, char *buffer)
{
    for (int i = 0; i < files; i++) {
        char name[NAME];
        name_of(name, mine[i]);
        struct object *sample = object_open(job, name, false);
        object_read(sample, buffer, SAMPLE, 0);
        object_close(sample);
        look(job, mine + i, 1, buffer);
    }
}

static void run(struct job *job)
{
    const int own = 250 * job->scale / job->ranks, files = own * job->ranks;
    int *order = job_memory(job, (size_t)files * sizeof *order);
    char *const buffers[2] = {job_memory(job, GROUP * SAMPLE), job_memory(job, GROUP * SAMPLE)};
    char name[NAME];

    double began = job_begin(job);
    for (int i = 0; i < own; i++) {
        const int n = i * job->ranks + job->rank;
        name_of(name, n);
        job_stamp(buffers[0], SAMPLE, (uint64_t)n, 0);
        struct object *sample = object_create(job, name);
        object_write(sample, buffers[0], SAMPLE, 0);
        object_close(sample);
    }
    job_done(job, began, "make", own, "/s");

    began = job_begin(job);
    const int there = count(job);
    job_done(job, began, "list", there, "/s");
    if (there != files)
        job_fail(job, "%d files are listed of %d", there, files);

    began = job_begin(job);
    for (unsigned epoch = 0; epoch < EPOCHS; epoch++) {
        shuffle(order, files, epoch);
        const int *mine = order + job->rank * own;
        if (job->dir)
            read_with_posix(job, mine, own, buffers[0]);
        else
            read_with_verbs(job, mine, own, buffers);
    }
    job_done(job, began, "read", EPOCHS * own, "/s");

    for (int i = 0; i < own; i++) {
        name_of(name, i * job->ranks + job->rank);
        object_delete(job, name);
    }
    free(order);
    free(buffers[0]);
    free(buffers[1]);
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {.name = "samples",
                                  .declares = "consistency=session,mutability=immutable",
                                  .run = run};
    return kernel_main(argc, argv, &kernel);
}
