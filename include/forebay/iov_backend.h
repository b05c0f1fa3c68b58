/* iov_backend.h: programs' own back ends for Forebay's verbs.
 *
 * A back end is a shared object with the function iov_backend_ops(), which returns a table.
 * iov_backend_attach(session, NAME, "/path/to/it.so", CONFIGURATION) attaches it, as often as
 * wanted, with different configurations. It keeps the bytes of collections, and nothing else: not
 * their names, metadata and controls. docs/howto/verbs.md has the concepts, examples/backends/ a
 * working example.
 *
 * Rules
 * - Several threads call functions at the same time, also for one object. No object is used while
 *   or after it is closed.
 * - A number below zero is a negated errno (-ENOSPC). `error` may have its message.
 * - In a forked child no function is called for what the parent opened.
 */
#ifndef FOREBAY_IOV_BACKEND_H
#define FOREBAY_IOV_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "iov.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the table. Any change of it changes the version. */
#define IOV_BACKEND_ABI 1

/* Identifies a collection's bytes. Valid during the call. */
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

    /* Makes an instance. The back end interprets `config`. */
    int (*init)(const char *config, void **backend);
    /* Ends the instance. All its objects are closed. */
    void (*shutdown)(void *backend);
    /* Returns 0 if these controls ("mutability=append,temporality=once"; others have their
     * defaults) can be kept, -ENOTSUP if one can't. A control that can't be kept must be refused,
     * never ignored. */
    int (*supports)(void *backend, const char *controls);

    /* Makes an empty object: -EEXIST if there is one at this address. */
    int (*create)(void *backend, const struct iov_address *at, const char *controls, void **object);
    /* Opens an object: -ENOENT if there is none. It may be open already. */
    int (*open)(void *backend, const struct iov_address *at, const char *controls, void **object);
    /* Removes an object. It is no error if there is none. Programs that have it open go on using
     * it, if possible. */
    int (*remove)(void *backend, const struct iov_address *at);

    /* Reads, and returns the number of bytes: fewer than `len` only at the end. Bytes that were
     * never written are zero. */
    int64_t (*read)(void *object, void *to, size_t len, uint64_t at);
    /* Writes all of it, or fails. */
    int (*write)(void *object, const void *from, size_t len, uint64_t at);
    /* Writes all of it at the end, in one piece, and returns its offset. Bytes. */
    int64_t (*append)(void *object, const void *from, size_t len);
    /* Sets the size: cuts the object, or adds zeros. Bytes. */
    int (*truncate)(void *object, uint64_t size);
    /* Returns the size. Bytes. */
    int64_t (*length)(void *object);
    /* Makes written bytes durable, as fsync(2) does; returns 0 if there is nothing to do. */
    int (*sync)(void *object);
    /* Ends the use of an object. It is invalid even if this fails. */
    int (*close)(void *object);

    /* Returns the message of this thread's last failure, valid until its next call; NULL if there
     * is none. This pointer may be NULL; no other may. */
    const char *(*error)(void);
};

/* The function that the shared object must export. The table stays valid. */
const struct iov_backend_table *iov_backend_ops(void);

#ifdef __cplusplus
}
#endif

#endif
