/* iov.h: Forebay's verbs. Workspaces, collections with metadata, and batches, for C.
 *
 * Link with -lforebay_iov. Concepts, controls and rules: docs/verbs.md. In short:
 *
 * - A session has a metadata store (a pool, or this process) and back ends, in which bytes lie.
 * - A workspace is a namespace in it; a collection a sequence of bytes with a name, a UUID, key-value metadata and controls.
 * - Verbs are carried out at once if their last argument, the batch, is NULL. With a batch, they are noted, and
 *   run after iov_batch_start().
 *
 * What functions return: a number below zero is an errno with its sign turned (-ENOENT), and iov_error() has the
 * sentence. A verb that is carried out at once returns 0, or what is said of it. A verb that goes into a batch returns the number of
 * its request, from 0 on; what came of it is told by iov_result().
 *
 * Threads: everything may be called by several threads, but for one batch that is being collected, and a handle that is being closed.
 * Forks: in a forked child the parent's handles give -EPERM. It may open sessions of its own.
 * Memory given to a verb in a batch (buffers, and places for results) has to stay until the batch has ended. Texts don't.
 */
#ifndef FOREBAY_IOV_H
#define FOREBAY_IOV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It goes up when something is added; what is there stays. 2: memory of pools and tokens,
 * iov_when(), iov_backend_choose(). */
#define IOV_ABI 2

/* The version of the library that is loaded. It serves programs that were compiled for it, or for a lower one. */
uint32_t iov_abi(void);

/* The sentence about the last failure in this thread; "" if there was none. Valid until the next one. */
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

/* A key with its value. In changes of metadata, NULL instead of a value takes the key away. */
struct iov_pair {
    const char *key;
    const char *value;
};

/* What can be said of a new collection. Zeros mean defaults. */
struct iov_options {
    size_t size;                 /* sizeof(struct iov_options) */
    const char *backend;         /* where its bytes lie; NULL: the session's first */
    const char *controls;        /* "mutability=append,temporality=once"; NULL: the strict defaults */
    const struct iov_pair *meta; /* its metadata */
    size_t meta_count;           /* how many pairs */
};

/* What is known of a workspace or a collection. */
struct iov_record {
    const char *name;
    const char *backend;
    const char *controls;        /* those that aren't the default */
    const struct iov_pair *meta; /* by key */
    size_t meta_count;
    struct iov_uuid uuid;
};

/* What a failure in a batch means (docs/verbs.md). */
enum iov_failure {
    IOV_STOP = 0,    /* what hasn't begun is skipped */
    IOV_CONTINUE = 1, /* all is done that doesn't need what failed */
    IOV_ROLLBACK = 2  /* as IOV_STOP, and what was done is undone */
};

/* In which order a batch runs. */
enum iov_order {
    IOV_FREE = 0, /* any; what uses a collection that the batch opens waits for that */
    IOV_CHAIN = 1 /* as noted, one after the other */
};

/* What became of a request. */
enum iov_status {
    IOV_WAITING = 0,
    IOV_RUNNING = 1,
    IOV_DONE = 2,
    IOV_FAILED = 3,
    IOV_SKIPPED = 4,
    IOV_UNDONE = 5
};

/* ---- sessions ---- */

/* Opens a session: "pool:NAME"; "pool": $FOREBAY_POOL, or the pool `default`; "memory": this process only;
 * "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]": an etcd (docs/verbs.md; attach a back end then); "": what $FOREBAY_METADATA says, or "pool". */
int iov_session_open(const char *place, iov_session **session);

/* Ends the use of a session. It goes when nothing uses it any more. */
int iov_session_close(iov_session *session);

/* Attaches a back end under a name, by which collections name it. `kind` is memory, null, directory or forebay; or, with a '/' in
 * it, the path of a shared object (iov_backend.h). `config` is what the back end makes of it; NULL: "". */
int iov_backend_attach(iov_session *session, const char *name, const char *kind, const char *config);

/* New collections that name no back end, whose path /WORKSPACE/NAME fits `pattern` ("/campaign/raw-*") and of which all of `controls` is said ("temporality=once"; NULL:
 * any), get this one. Of several choices that fit, the last one made counts; where none fits, it is the session's first back end. */
int iov_backend_choose(iov_session *session, const char *pattern, const char *controls,
                       const char *name);

/* ---- workspaces ---- */

int iov_workspace_create(iov_session *session, const char *name, const struct iov_pair *meta,
                         size_t meta_count, iov_workspace **workspace);

/* Uses one that is there. */
int iov_workspace_load(iov_session *session, const char *name, iov_workspace **workspace);

/* Those whose metadata fit, by name: project = "mcse" and step >= 2. "" is all. */
int iov_workspace_search(iov_session *session, const char *predicate, iov_records **found);

/* What is known of it. One record. */
int iov_workspace_get_meta(iov_workspace *workspace, iov_records **record);

int iov_workspace_set_meta(iov_workspace *workspace, const struct iov_pair *changes, size_t count);

/* Ends its use. */
int iov_workspace_close(iov_workspace *workspace);

/* Deletes it, if it is empty, and if so ends its use. */
int iov_workspace_delete(iov_workspace *workspace);

/* ---- collections ---- */

/* Makes one and opens it. `options` may be NULL. With a batch, the handle is there at once; requests of the batch may use it, others
 * when it has been made. It has to be closed even if it never was. */
int64_t iov_collection_create(iov_workspace *workspace, const char *name,
                              const struct iov_options *options, iov_collection **collection,
                              iov_batch *batch);

/* Opens one by its name. Handles are as with iov_collection_create(). */
int64_t iov_collection_open(iov_workspace *workspace, const char *name,
                            iov_collection **collection, iov_batch *batch);

/* Opens one by its UUID. */
int64_t iov_collection_open_uuid(iov_workspace *workspace, const struct iov_uuid *uuid,
                                 iov_collection **collection, iov_batch *batch);

/* What is known of one, by its name. One record. Its bytes aren't touched. */
int64_t iov_collection_lookup(iov_workspace *workspace, const char *name, iov_records **record,
                              iov_batch *batch);

/* Those whose metadata fit, by name. */
int64_t iov_collection_search(iov_workspace *workspace, const char *predicate,
                              iov_records **found, iov_batch *batch);

/* Deletes one by its name. Who has it open goes on with it, where the back end can have that. */
int64_t iov_collection_delete(iov_workspace *workspace, const char *name, iov_batch *batch);

/* Ends its use. The handle is gone when this returns, with a batch too, and even if it fails. */
int64_t iov_collection_close(iov_collection *collection, iov_batch *batch);

/* ---- bytes and metadata of open collections ---- */

/* Reads the chunk at `at`: how many bytes. Fewer than `len` only at the end. */
int64_t iov_read(iov_collection *collection, void *to, size_t len, uint64_t at, iov_batch *batch);

/* Writes a chunk, all of it. If it fails, a first part may have been written. */
int64_t iov_write(iov_collection *collection, const void *from, size_t len, uint64_t at,
                  iov_batch *batch);

/* Writes behind the end, in one piece: where it lies. */
int64_t iov_append(iov_collection *collection, const void *from, size_t len, iov_batch *batch);

/* Makes it so long: cut, or with zeros behind. */
int64_t iov_truncate(iov_collection *collection, uint64_t size, iov_batch *batch);

/* What fsync(2) does, where the back end has it. */
int64_t iov_sync(iov_collection *collection, iov_batch *batch);

/* Copies the chunk of `len` bytes at `at` to another collection: how many bytes there were. Inside a
   pool, the nodes that hold them do it; none passes through this process. */
int64_t iov_copy(iov_collection *from, uint64_t at, uint64_t len, iov_collection *to,
                 uint64_t to_at, iov_batch *batch);

/* How many bytes it has. */
int64_t iov_size(iov_collection *collection);

/* Its UUID. */
int iov_collection_uuid(iov_collection *collection, struct iov_uuid *uuid);

/* What is known of it. One record. */
int64_t iov_get_meta(iov_collection *collection, iov_records **record, iov_batch *batch);

int64_t iov_set_meta(iov_collection *collection, const struct iov_pair *changes, size_t count,
                     iov_batch *batch);

/* ---- records ---- */

size_t iov_records_count(const iov_records *records);

/* NULL if there are fewer. Valid until the records are freed. */
const struct iov_record *iov_records_get(const iov_records *records, size_t which);

void iov_records_free(iov_records *records);

/* ---- batches ---- */

int iov_batch_create(iov_session *session, enum iov_failure failure, enum iov_order order,
                     iov_batch **batch);

/* Makes a request need others that were noted before it: it waits for them, and is skipped if one fails. */
int iov_batch_after(iov_batch *batch, int64_t request, const int64_t *needed, size_t count);

int iov_batch_start(iov_batch *batch);

/* Waits until it has ended: 1 if so, 0 if the time was up. Below zero: without a limit. */
int iov_wait(iov_batch *batch, int64_t nanoseconds);

/* 1 if it has ended, 0 if not. */
int iov_test(iov_batch *batch);

typedef void iov_function(void *with);

/* Has `function` called with `with` when a request has ended; below zero: when the batch has. 1, and no call, if it has ended already; 0 if it will be called: once, by a
 * thread of the session that does nothing else, with all signals blocked. It may use verbs, and wait; calls for others wait for it. The batch has to stay until then. */
int iov_when(iov_batch *batch, int64_t request, iov_function *function, void *with);

/* Skips what hasn't begun. What is under way is done: wait for the end. */
int iov_cancel(iov_batch *batch);

/* What became of a request, so far: enum iov_status. */
int iov_request_status(iov_batch *batch, int64_t request);

/* What a request returned: what the verb returns when it is carried out at once. -EINPROGRESS if it hasn't ended, -ECANCELED
 * if it was skipped. */
int64_t iov_result(iov_batch *batch, int64_t request);

/* 0 if all of it was done; else the errno of its first failure. */
int iov_batch_result(iov_batch *batch);

/* Frees it. If it is under way, it is cancelled and waited for. */
int iov_batch_free(iov_batch *batch);

/* ---- memory ---- */

/* Memory for bytes, zeros, at the beginning of a page. Of a session with a pool it lies in the pool, on this node: other processes can have it by a
 * token, and it counts as used room. NULL if there is none. */
void *iov_allocate(iov_session *session, size_t len);

/* Gives it back. Who has attached it keeps it. */
void iov_free(iov_session *session, void *memory);

/* What mapped memory is used for. */
enum iov_access {
    IOV_READ = 0,      /* storing into it ends the program */
    IOV_READ_WRITE = 1
};

/* Puts the chunk of `len` bytes at `at` of a collection into memory: its very bytes, not a copy. They have to be there (-EINVAL behind the end),
 * in a pool (-ENOTSUP), on this node and not striped (-EREMOTE). Stays until iov_chunk_unmap(), or the session ends, also if the collection is closed or
 * deleted. Not in forked children. */
int iov_chunk_map(iov_collection *collection, uint64_t at, size_t len, enum iov_access access,
                  void **memory);

/* Takes what iov_chunk_map() or iov_chunk_attach() gave out of memory. */
int iov_chunk_unmap(iov_session *session, void *memory);

/* Names memory of a pool to other processes of this node. */
struct iov_token {
    uint8_t bytes[48];
};

/* A token for `len` bytes at `memory`: inside of what iov_allocate(), iov_chunk_map() or iov_chunk_attach() gave. It keeps nothing: it leads to the
 * chunk as long as the collection is there, and to allocated memory as long as some process has it. It is no secret: permissions are those of the collection;
 * allocated memory is its user's. */
int iov_chunk_share(iov_session *session, const void *memory, size_t len, struct iov_token *token);

/* Puts what a token names into memory, as it was mapped where the token was made. `len` may be NULL. -ENOENT if it is gone, -EREMOTE if it was made on another node. */
int iov_chunk_attach(iov_session *session, const struct iov_token *token, void **memory,
                     size_t *len);

#ifdef __cplusplus
}
#endif

#endif
