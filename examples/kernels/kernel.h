/* kernel.h: what the use-case kernels of this folder share.
 *
 * A kernel is the I/O of one kind of program, and nothing else of it. Each runs with the verbs (--place) or with plain
 * POSIX calls (--posix DIR), by several ranks: forked by the program (--ranks 4), or started by somebody else, one
 * by one, on whatever nodes of a pool on this host (--rank 2 --ranks 4 --meet FILE, a new file that all name). It says with which
 * controls (--controls default, declared, or others), checks what it reads, and prints one line with its rates.
 *
 * Every 512 bytes that a kernel writes begin with a word that is made of their place and a seed, so that a check finds what is missing,
 * old or somewhere else. Ranks wait for each other for 120 s at most; if one fails, all end.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "forebay/iov.h"

#ifdef __cplusplus
#define KERNEL_NORETURN [[noreturn]]
extern "C" {
#else
#define KERNEL_NORETURN _Noreturn
#endif

enum { MIB = 1 << 20, RANKS_MAX = 64 };

/* A rank of a kernel that runs. */
struct job {
    int rank, ranks;
    int scale;                /* --scale: how much it does; 1 is little */
    bool collective;          /* --collective */
    bool apart;               /* --apart */
    const char *dir;          /* POSIX: its directory. NULL: verbs, with */
    iov_session *session;
    iov_workspace *workspace; /* of its own, made and removed by the rank 0 */
    const char *backend;      /* NULL: the session's own */
    const char *controls;     /* what is said of its files or collections; "": the defaults */
    const char *place;
    struct meeting *meeting;
};

struct kernel {
    const char *name;
    const char *declares;       /* the controls that it needs, if it says what it needs */
    void (*run)(struct job *);  /* what each rank does */
    size_t exchange;            /* bytes for each rank that all ranks see: job_exchange() */
};

/* Runs it as the command line says. What main() returns. */
int kernel_main(int argc, char **argv, const struct kernel *kernel);

/* Ends the program, and all ranks. What failed, as for printf. */
KERNEL_NORETURN void job_fail(struct job *job, const char *what, ...);
/* A verb's or system call's result, if it is not below zero. */
int64_t job_verb(struct job *job, int64_t returned, const char *what);
int64_t job_call(struct job *job, int64_t returned, const char *what);
void *job_memory(struct job *job, size_t len);

/* Waits for all ranks. */
void job_meet(struct job *job);
/* The memory for exchange of a rank. */
char *job_exchange(struct job *job, int rank);
/* A time that is measured begins: all ranks begin together. */
double job_begin(struct job *job);
/* It ends: so much was done by this rank, in the time of the slowest. Goes into the line. */
void job_done(struct job *job, double began, const char *what, double amount, const char *unit);
/* A number that isn't a rate goes into the line: the sum over all ranks. */
void job_count(struct job *job, const char *what, int n);
double job_now(void);
/* Computes for a while: what the program does besides I/O. So many rounds of a stencil over `cells`, about 1 us for 1000 cells. */
void job_compute(double *cells, size_t count, int rounds);

/* ---- bytes that know where they belong ---- */

void job_stamp(void *bytes, size_t len, uint64_t seed, uint64_t at);
void job_check(struct job *job, const void *bytes, size_t len, uint64_t seed, uint64_t at);

/* ---- objects: collections, or files ---- */

struct object;

struct object *object_create(struct job *job, const char *name);
struct object *object_open(struct job *job, const char *name, bool to_write);
void object_write(struct object *object, const void *from, size_t len, uint64_t at);
void object_read(struct object *object, void *to, size_t len, uint64_t at);
/* What was written is to be seen by others: what `consistency=commit` waits for. */
void object_commit(struct object *object);
void object_close(struct object *object);
void object_delete(struct job *job, const char *name);
/* From here on the rank has a directory, or workspace, of its own, until objects_together(), which finds it empty. */
void objects_apart(struct job *job);
void objects_together(struct job *job);
/* The collection, for what else the verbs can do; NULL: it is a file. */
iov_collection *object_collection(const struct object *object);

#ifdef __cplusplus
}
#endif

#endif
