/* iov_backend.h: the interface of back ends for Forebay's verbs that programs implement.
 *
 * A back end is a shared object with the function iov_backend_ops(), which returns a table of
 * functions. iov_backend_attach(session, NAME, "/path/to/it.so", CONFIGURATION) attaches it. It can
 * be attached several times, with different configurations. It stores only the bytes of
 * collections, not their names, metadata and controls. docs/howto/verbs.md has the concepts,
 * examples/backends/ a working example.
 *
 * Rules
 * - Several threads call functions at the same time, also for one object. No function is called
 *   for an object while `close` runs for it, or afterwards.
 * - A result below zero is a negated errno (-ENOSPC). `error` may return its message.
 * - In a forked child no function is called for instances and objects that the parent opened.
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
    const char *name;      /* the collection's name, unique in the workspace */
    struct iov_uuid uuid;  /* the collection's UUID */
};

struct iov_backend_table {
    uint32_t abi;              /* IOV_BACKEND_ABI */
    uint32_t outlives_process; /* not 0 if bytes outlive the process */
    size_t size;               /* sizeof(struct iov_backend_table) */
    const char *kind;          /* the name of the kind, for messages; stays valid */

    /* Makes an instance. The back end interprets `config`. */
    int (*init)(const char *config, void **backend);
    /* Frees the instance. All its objects have been closed before. */
    void (*shutdown)(void *backend);
    /* Returns 0 if the back end supports these controls ("mutability=append,temporality=once";
     * others have their defaults), else -ENOTSUP. It must refuse an unsupported control, never
     * ignore it. */
    int (*supports)(void *backend, const char *controls);

    /* Creates an empty object. -EEXIST if this address has one. */
    int (*create)(void *backend, const struct iov_address *at, const char *controls, void **object);
    /* Opens an object, which may be open already. -ENOENT if it doesn't exist. */
    int (*open)(void *backend, const struct iov_address *at, const char *controls, void **object);
    /* Removes an object. A missing object is no error. If possible, programs that have it open can
     * continue to use it. */
    int (*remove)(void *backend, const struct iov_address *at);

    /* Reads from offset `at`, and returns the number of bytes: fewer than `len` only at the end.
     * Bytes that were never written are zero. */
    int64_t (*read)(void *object, void *to, size_t len, uint64_t at);
    /* Writes all `len` bytes at offset `at`, or fails. */
    int (*write)(void *object, const void *from, size_t len, uint64_t at);
    /* Appends all `len` bytes in one piece, and returns their offset in bytes. */
    int64_t (*append)(void *object, const void *from, size_t len);
    /* Sets the size in bytes: truncates the object, or adds zeros. */
    int (*truncate)(void *object, uint64_t size);
    /* Returns the size in bytes. */
    int64_t (*length)(void *object);
    /* Makes written bytes durable, as fsync(2) does; returns 0 if there is nothing to do. */
    int (*sync)(void *object);
    /* Closes an object. The handle is invalid afterwards, even if this fails. */
    int (*close)(void *object);

    /* Returns the message of this thread's last failure, valid until the thread's next call; NULL
     * if there is none. In the table, only this function may be NULL. */
    const char *(*error)(void);
};

/* The function that the shared object must export. The table stays valid. */
const struct iov_backend_table *iov_backend_ops(void);

#ifdef __cplusplus
}
#endif

#endif
