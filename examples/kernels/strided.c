/* strided.c: a matrix in a shared file, row by row, of which each rank has some columns.
 *
 * Each rank's columns are a piece of 2 KiB in every row: a strided access. Plain: each writes its pieces where they
 * belong. --collective: the ranks first give each other what they have, through memory that all see, so that each
 * one has whole rows, next to each other, and writes them in one piece (what MPI-IO calls two phases).
 *
 * Controls: what is written need not be seen by others before it is committed.
 */
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

enum { PIECE = 2048, ROWS = 128 /* for each rank, in a round */ };

/* A round's rows begin there. */
static size_t row_of(const struct job *job, int round)
{
    return (size_t)round * ROWS * (size_t)job->ranks;
}

static uint64_t place(const struct job *job, size_t row, int rank)
{
    return ((uint64_t)row * (uint64_t)job->ranks + (uint64_t)rank) * PIECE;
}

static void plain(struct job *job, struct object *file, const char *columns, size_t first)
{
    for (size_t i = 0; i < (size_t)ROWS * (size_t)job->ranks; i++)
        object_write(file, columns + i * PIECE, PIECE, place(job, first + i, job->rank));
}

static void collective(struct job *job, struct object *file, const char *columns, size_t first)
{
    const size_t width = (size_t)job->ranks * PIECE;
    /* The rank `to` gets ROWS rows of this round; my columns of them. */
    for (int to = 0; to < job->ranks; to++)
        for (size_t i = 0; i < ROWS; i++)
            memcpy(job_exchange(job, to) + i * width + (size_t)job->rank * PIECE,
                   columns + ((size_t)to * ROWS + i) * PIECE, PIECE);
    job_meet(job);
    const size_t mine = first + (size_t)job->rank * ROWS;
    object_write(file, job_exchange(job, job->rank), ROWS * width, place(job, mine, 0));
    job_meet(job); /* the memory for exchange is written again */
}

static void run(struct job *job)
{
    const int rounds = 4 * job->scale;
    const size_t rows = (size_t)ROWS * (size_t)job->ranks;
    const double mb = (double)((size_t)rounds * rows * PIECE) / 1e6;
    char *columns = job_memory(job, rows * PIECE);
    if (job->rank == 0)
        object_close(object_create(job, "matrix"));
    job_meet(job);
    struct object *file = object_open(job, "matrix", true);

    double began = job_begin(job);
    for (int round = 0; round < rounds; round++) {
        const size_t first = row_of(job, round);
        for (size_t i = 0; i < rows; i++)
            job_stamp(columns + i * PIECE, PIECE, 0, place(job, first + i, job->rank));
        (job->collective ? collective : plain)(job, file, columns, first);
    }
    object_commit(file);
    job_done(job, began, job->collective ? "write-collective" : "write", mb, "MB/s");
    object_close(file);
    job_meet(job);

    /* Whole rows, of other ranks' columns too. */
    file = object_open(job, "matrix", false);
    const size_t share = rows * PIECE;
    began = job_begin(job);
    for (int round = 0; round < rounds; round++) {
        const uint64_t at = place(job, row_of(job, round), 0) + (uint64_t)job->rank * share;
        object_read(file, columns, share, at);
        job_check(job, columns, share, 0, at);
    }
    job_done(job, began, "read", mb, "MB/s");
    object_close(file);
    job_meet(job);
    if (job->rank == 0)
        object_delete(job, "matrix");
    free(columns);
}

int main(int argc, char **argv)
{
    const struct kernel kernel = {.name = "strided",
                                  .declares = "consistency=commit",
                                  .run = run,
                                  .exchange = (size_t)ROWS * PIECE * RANKS_MAX};
    return kernel_main(argc, argv, &kernel);
}
