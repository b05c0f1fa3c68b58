/* iov_backend.h: back ends of one's own for Forebay's verbs.
 *
 * A back end is a shared object with the function iov_backend_ops(), which returns a table. It is attached by
 * iov_backend_attach(session, NAME, "/path/to/it.so", CONFIGURATION), as often as wanted, with different configurations. It
 * keeps the bytes of collections; names, metadata and controls are kept by others. docs/verbs.md has the concepts,
 * examples/backends/ one that works.
 *
 * Rules
 * - Functions are called by several threads at the same time, also for one object. No object is used while or
 *   after it is closed.
 * - A number below zero is an errno with its sign turned (-ENOSPC). `error` may tell the sentence that goes with it.
 * - In a forked child nothing of what the parent opened is called.
 */
#ifndef FOREBAY_IOV_BACKEND_H
#define FOREBAY_IOV_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "iov.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the table. A change of what is there changes it. */
#define IOV_BACKEND_ABI 1

/* Whose bytes. Valid during the call. */
struct iov_address {
    const char *workspace; /* the workspace's name */
    const char *name;      /* the collection's name, unique in it */
    struct iov_uuid uuid;  /* the collection's UUID */
};

struct iov_backend_table {
    uint32_t abi;              /* IOV_BACKEND_ABI */
    uint32_t outlives_process; /* not 0: bytes outlive the process */
    size_t size;               /* sizeof(struct iov_backend_table) */
    const char *kind;          /* for messages; stays valid */

    /* Makes an instance. Its configuration is a text whose meaning is the back end's. */
    int (*init)(const char *config, void **backend);
    /* Ends it. All its objects are closed. */
    void (*shutdown)(void *backend);
    /* 0 if these controls ("mutability=append,temporality=once"; what isn't named is the default) can be kept,
     * -ENOTSUP if one can't. What can't be kept is to be refused, never ignored. */
    int (*supports)(void *backend, const char *controls);

    /* Makes an empty object: -EEXIST if there is one at this address. */
    int (*create)(void *backend, const struct iov_address *at, const char *controls, void **object);
    /* Opens an object: -ENOENT if there is none. It may be open already. */
    int (*open)(void *backend, const struct iov_address *at, const char *controls, void **object);
    /* Removes an object. That there is none is no error. Who has it open goes on with it, if that can be. */
    int (*remove)(void *backend, const struct iov_address *at);

    /* How many bytes were read: fewer than `len` only at the end. What was never written is zero. */
    int64_t (*read)(void *object, void *to, size_t len, uint64_t at);
    /* Writes all of it, or fails. */
    int (*write)(void *object, const void *from, size_t len, uint64_t at);
    /* Writes all of it at the end, in one piece, and returns where. */
    int64_t (*append)(void *object, const void *from, size_t len);
    /* Makes it so long: cut, or with zeros behind. */
    int (*truncate)(void *object, uint64_t size);
    /* How many bytes it has. */
    int64_t (*length)(void *object);
    /* What fsync(2) does; 0 where there is nothing to do. */
    int (*sync)(void *object);
    /* Ends the use of an object. It is gone even if this fails. */
    int (*close)(void *object);

    /* A sentence about this thread's last failure, valid until its next call; NULL if there is none. The function
     * may be NULL; no other may. */
    const char *(*error)(void);
};

/* What the shared object has to have. The table stays valid. */
const struct iov_backend_table *iov_backend_ops(void);

#ifdef __cplusplus
}
#endif

#endif
