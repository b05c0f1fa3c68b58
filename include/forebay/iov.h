/* iov.h: Forebay's verbs. Workspaces, collections with metadata, and batches, for C.
 *
 * Link with -lforebay_iov. Concepts, controls and rules: docs/howto/verbs.md. In short:
 *
 * - A session has a metadata store (a pool, etcd or this process), and back ends that store bytes.
 * - A workspace is a namespace in the metadata store. It has collections: sequences of bytes with a
 *   name, a UUID, key-value metadata and controls.
 * - Verbs are carried out at once if their last argument, the batch, is NULL. With a batch, they
 *   are added to it, and run after iov_batch_start().
 *
 * Results: a number below zero is a negated errno (-ENOENT), and iov_error() returns the message. A
 * verb that is carried out at once returns 0, or the number that its comment names. A verb that is
 * added to a batch returns the number of its request, counted from 0; iov_result() returns its
 * result.
 *
 * Threads: several threads may call all functions at the same time, except with a batch to which
 * one of them adds verbs, or a handle that one of them closes.
 * Forks: in a forked child the parent's handles give -EPERM. The child may open sessions.
 * Memory passed to a verb in a batch (buffers, and places for results) must stay valid until the
 * batch has ended. Texts are copied.
 */
#ifndef FOREBAY_IOV_H
#define FOREBAY_IOV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. Additions increment it; existing functions and types stay as they
 * are. Version 2 added memory of pools and tokens, iov_when(), iov_backend_choose(). */
#define IOV_ABI 2

/* Returns the version of the loaded library. The library serves programs that were compiled for
 * this version or a lower one. */
uint32_t iov_abi(void);

/* Returns the message of this thread's last failure; "" if there was none. Valid until the next
 * failure. */
const char *iov_error(void);

/* ---- types ---- */

typedef struct iov_session iov_session;
typedef struct iov_workspace iov_workspace;
typedef struct iov_collection iov_collection;
typedef struct iov_batch iov_batch;
typedef struct iov_records iov_records;

struct iov_uuid {
    uint8_t bytes[16];
};

/* A key and its value. In changes of metadata, the value NULL removes the key. */
struct iov_pair {
    const char *key;
    const char *value;
};

/* The options of a new collection. Zeros mean defaults. */
struct iov_options {
    size_t size;                 /* sizeof(struct iov_options) */
    const char *backend;         /* the back end's name; NULL: the session's default */
    const char *controls;        /* "mutability=append,temporality=once"; NULL: the strict defaults */
    const struct iov_pair *meta; /* its metadata */
    size_t meta_count;           /* number of pairs */
};

/* The record of a workspace or a collection. */
struct iov_record {
    const char *name;
    const char *backend;
    const char *controls;        /* those that differ from the defaults */
    const struct iov_pair *meta; /* sorted by key */
    size_t meta_count;
    struct iov_uuid uuid;
};

/* The effect of a failure in a batch (docs/howto/verbs.md). */
enum iov_failure {
    IOV_STOP = 0,    /* requests that haven't begun are skipped */
    IOV_CONTINUE = 1, /* all requests run that don't need a failed one */
    IOV_ROLLBACK = 2  /* as IOV_STOP, and finished requests are undone */
};

/* The order in which a batch runs. */
enum iov_order {
    IOV_FREE = 0, /* any order, but uses of a collection wait for the batch to open it */
    IOV_CHAIN = 1 /* one after the other, in the order of their addition */
};

/* The state of a request. */
enum iov_status {
    IOV_WAITING = 0,
    IOV_RUNNING = 1,
    IOV_DONE = 2,
    IOV_FAILED = 3,
    IOV_SKIPPED = 4,
    IOV_UNDONE = 5
};

/* ---- sessions ---- */

/* Opens a session. `place` says where its metadata are: "pool:NAME"; "pool": the pool of
 * $FOREBAY_POOL, or the pool `default`; "memory": this process; "etcd://HOST:PORT[,HOST:PORT...]
 * [/PREFIX]": an etcd (docs/howto/verbs.md), for which a back end must be attached; "":
 * $FOREBAY_METADATA, or else "pool". */
int iov_session_open(const char *place, iov_session **session);

/* Closes a session. It is freed when its workspaces, collections and batches are closed, too. */
int iov_session_close(iov_session *session);

/* Attaches a back end under a name, by which collections name it. `kind` is memory,
 * directory or forebay; or, with a '/' in it, the path of a shared object (iov_backend.h). The
 * back end interprets `config`; NULL: "". */
int iov_backend_attach(iov_session *session, const char *name, const char *kind, const char *config);

/* Makes `name` the back end of new collections that name none, whose path /WORKSPACE/NAME matches
 * `pattern` ("/campaign/raw-*") and which declare all of `controls` ("temporality=once"; NULL:
 * any). Of several matching calls the last one wins; without a match, the session's default is
 * taken. */
int iov_backend_choose(iov_session *session, const char *pattern, const char *controls,
                       const char *name);

/* ---- workspaces ---- */

int iov_workspace_create(iov_session *session, const char *name, const struct iov_pair *meta,
                         size_t meta_count, iov_workspace **workspace);

/* Opens an existing workspace. */
int iov_workspace_load(iov_session *session, const char *name, iov_workspace **workspace);

/* Finds the workspaces whose metadata match a predicate (project = "mcse" and step >= 2), sorted by
 * name. "" matches all. */
int iov_workspace_search(iov_session *session, const char *predicate, iov_records **found);

/* Returns the workspace's record. */
int iov_workspace_get_meta(iov_workspace *workspace, iov_records **record);

int iov_workspace_set_meta(iov_workspace *workspace, const struct iov_pair *changes, size_t count);

/* Closes the workspace. */
int iov_workspace_close(iov_workspace *workspace);

/* Deletes the workspace, which must be empty, and closes it. */
int iov_workspace_delete(iov_workspace *workspace);

/* ---- collections ---- */

/* Creates a collection and opens it. `options` may be NULL. With a batch, the handle is valid at
 * once: later requests of the batch may use it, other calls only after the request has ended. The
 * handle must be closed even if creating the collection failed. */
int64_t iov_collection_create(iov_workspace *workspace, const char *name,
                              const struct iov_options *options, iov_collection **collection,
                              iov_batch *batch);

/* Opens a collection by its name. For the handle see iov_collection_create(). */
int64_t iov_collection_open(iov_workspace *workspace, const char *name,
                            iov_collection **collection, iov_batch *batch);

/* Opens a collection by its UUID. */
int64_t iov_collection_open_uuid(iov_workspace *workspace, const struct iov_uuid *uuid,
                                 iov_collection **collection, iov_batch *batch);

/* Returns the record of a collection, by its name. Doesn't access its bytes. */
int64_t iov_collection_lookup(iov_workspace *workspace, const char *name, iov_records **record,
                              iov_batch *batch);

/* Finds the collections whose metadata match a predicate, sorted by name. */
int64_t iov_collection_search(iov_workspace *workspace, const char *predicate,
                              iov_records **found, iov_batch *batch);

/* Deletes a collection by its name. If the back end supports it, programs that have the collection
 * open can continue to use it. */
int64_t iov_collection_delete(iov_workspace *workspace, const char *name, iov_batch *batch);

/* Closes the collection. The handle is invalid when this returns: also with a batch, and also if
 * closing fails. */
int64_t iov_collection_close(iov_collection *collection, iov_batch *batch);

/* ---- bytes and metadata of open collections ---- */

/* Reads from offset `at` on. Returns the number of bytes, fewer than `len` only at the end. */
int64_t iov_read(iov_collection *collection, void *to, size_t len, uint64_t at, iov_batch *batch);

/* Writes all `len` bytes at offset `at`. If it fails, a first part may have been written. */
int64_t iov_write(iov_collection *collection, const void *from, size_t len, uint64_t at,
                  iov_batch *batch);

/* Appends all `len` bytes in one piece. Returns their offset in bytes. */
int64_t iov_append(iov_collection *collection, const void *from, size_t len, iov_batch *batch);

/* Sets the size in bytes: truncates the collection, or adds zeros. */
int64_t iov_truncate(iov_collection *collection, uint64_t size, iov_batch *batch);

/* Makes written bytes durable, as fsync(2) does, if the back end supports it. */
int64_t iov_sync(iov_collection *collection, iov_batch *batch);

/* Copies the `len` bytes at offset `at` to offset `to_at` of another collection. Returns the number
 * of bytes copied. Inside a pool, the nodes that have the bytes copy them, without this process. */
int64_t iov_copy(iov_collection *from, uint64_t at, uint64_t len, iov_collection *to,
                 uint64_t to_at, iov_batch *batch);

/* Returns the collection's size in bytes. */
int64_t iov_size(iov_collection *collection);

/* Returns the collection's UUID. */
int iov_collection_uuid(iov_collection *collection, struct iov_uuid *uuid);

/* Returns the collection's record. */
int64_t iov_get_meta(iov_collection *collection, iov_records **record, iov_batch *batch);

int64_t iov_set_meta(iov_collection *collection, const struct iov_pair *changes, size_t count,
                     iov_batch *batch);

/* ---- records ---- */

size_t iov_records_count(const iov_records *records);

/* Returns the record with index `which`; NULL if there are fewer. Valid until the records are
 * freed. */
const struct iov_record *iov_records_get(const iov_records *records, size_t which);

void iov_records_free(iov_records *records);

/* ---- batches ---- */

int iov_batch_create(iov_session *session, enum iov_failure failure, enum iov_order order,
                     iov_batch **batch);

/* Makes a request wait for requests that were added before it. It is skipped if one of them
 * fails. */
int iov_batch_after(iov_batch *batch, int64_t request, const int64_t *needed, size_t count);

int iov_batch_start(iov_batch *batch);

/* Waits until the batch has ended, at most `nanoseconds` (below zero: without a limit). Returns 1
 * if it has ended, else 0. */
int iov_wait(iov_batch *batch, int64_t nanoseconds);

/* Returns 1 if the batch has ended, 0 if not. */
int iov_test(iov_batch *batch);

typedef void iov_function(void *with);

/* Makes a thread call `function(with)` once when a request has ended, or, with a request below
 * zero, when the batch has. Returns 0 if the call will be made; 1, without a call, if the request
 * or batch has ended already. The session has one thread for these calls, which does nothing else
 * and blocks all signals. The function may use verbs, and wait; further calls wait for its return.
 * The batch must not be freed before the call. */
int iov_when(iov_batch *batch, int64_t request, iov_function *function, void *with);

/* Skips requests that haven't begun. Requests in progress are completed: wait for the batch's
 * end. */
int iov_cancel(iov_batch *batch);

/* Returns the current state of a request: enum iov_status. */
int iov_request_status(iov_batch *batch, int64_t request);

/* Returns the result of a request: what its verb returns when it is carried out at once.
 * -EINPROGRESS if it hasn't ended, -ECANCELED if it was skipped. */
int64_t iov_result(iov_batch *batch, int64_t request);

/* Returns 0 if the batch succeeded; else the negated errno of its first failure. */
int iov_batch_result(iov_batch *batch);

/* Frees the batch. If the batch is in progress, cancels it and waits for its end. */
int iov_batch_free(iov_batch *batch);

/* ---- memory ---- */

/* Allocates a zeroed buffer, aligned to a page. In a session with a pool, the buffer is in the
 * pool, on this node: other processes can attach it by a token, and it uses the pool's room. NULL
 * if there is no room. */
void *iov_allocate(iov_session *session, size_t len);

/* Frees the buffer. Processes that have attached it keep it. */
void iov_free(iov_session *session, void *memory);

/* The access to mapped memory. */
enum iov_access {
    IOV_READ = 0,      /* writing to it ends the program */
    IOV_READ_WRITE = 1
};

/* Maps the `len` bytes at offset `at` of a collection into memory, without a copy. The bytes must
 * exist (else -EINVAL) and be in a pool (else -ENOTSUP), on this node and not striped (else
 * -EREMOTE). They stay mapped until iov_chunk_unmap() or the session's end, even if the collection
 * is closed or deleted. Forked children don't have the mapping. */
int iov_chunk_map(iov_collection *collection, uint64_t at, size_t len, enum iov_access access,
                  void **memory);

/* Unmaps memory of iov_chunk_map() or iov_chunk_attach(). */
int iov_chunk_unmap(iov_session *session, void *memory);

/* Identifies memory of a pool to other processes of this node. */
struct iov_token {
    uint8_t bytes[48];
};

/* Makes a token for the `len` bytes at `memory`, which are inside memory from iov_allocate(),
 * iov_chunk_map() or iov_chunk_attach(). The token keeps nothing alive: it is valid while the
 * collection exists, or, for allocated memory, while some process has the memory. It is no secret:
 * the collection's permissions apply; allocated memory is accessible to its user only. */
int iov_chunk_share(iov_session *session, const void *memory, size_t len, struct iov_token *token);

/* Maps the memory that a token identifies, with the access of the memory from which the token was
 * made. `len` may be NULL. -ENOENT if the memory is gone, -EREMOTE for another node's token. */
int iov_chunk_attach(iov_session *session, const struct iov_token *token, void **memory,
                     size_t *len);

#ifdef __cplusplus
}
#endif

#endif
