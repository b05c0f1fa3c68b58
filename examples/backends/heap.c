/* heap.c: a back end for Forebay's verbs, written in C alone: bytes on the heap, as long as the session.
 *
 *     cc -std=c11 -shared -fPIC -Iinclude -o heap.so examples/backends/heap.c -lpthread
 *     iov_backend_attach(session, "mine", "./heap.so", "limit=1000000");
 *
 * The configuration may say how many bytes an object can have. A list of objects and one lock for all of them: an
 * example to begin with, not a fast one.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forebay/iov_backend.h"

struct bytes {
    struct heap *heap;
    struct bytes *next;
    struct iov_uuid uuid;
    unsigned char *data;
    size_t size;
    unsigned opened; /* by so many; freed by the last one that closes it, once it is removed */
    int removed;
};

struct heap {
    pthread_mutex_t lock;
    struct bytes *objects;
    size_t limit;
};

static _Thread_local char last_error[128];

static int fail(int code, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    return -code;
}

static const char *heap_error(void)
{
    return last_error;
}

static int heap_init(const char *config, void **backend)
{
    struct heap *heap = calloc(1, sizeof *heap);
    if (!heap)
        return fail(ENOMEM, "no memory for a heap");
    heap->limit = (size_t)1 << 40;
    if (*config) {
        char *end;
        if (strncmp(config, "limit=", 6) != 0 || config[6] < '0' || config[6] > '9' ||
            (heap->limit = strtoull(config + 6, &end, 10), *end != '\0')) {
            free(heap);
            return fail(EINVAL, "the configuration is limit=BYTES, or nothing");
        }
    }
    pthread_mutex_init(&heap->lock, NULL);
    *backend = heap;
    return 0;
}

static void heap_shutdown(void *backend)
{
    struct heap *heap = backend;
    while (heap->objects) {
        struct bytes *gone = heap->objects;
        heap->objects = gone->next;
        free(gone->data);
        free(gone);
    }
    pthread_mutex_destroy(&heap->lock);
    free(heap);
}

static int heap_supports(void *backend, const char *controls)
{
    (void)backend;
    /* Everything is seen at once, which is more than any other consistency asks for. */
    if (*controls == '\0' || strcmp(controls, "consistency=commit") == 0)
        return 0;
    return fail(ENOTSUP, "only the default controls, and consistency=commit");
}

static struct bytes *find(struct heap *heap, const struct iov_uuid *uuid)
{
    struct bytes *b = heap->objects;
    while (b && (b->removed || memcmp(&b->uuid, uuid, sizeof *uuid) != 0))
        b = b->next;
    return b;
}

static int heap_create(void *backend, const struct iov_address *at, const char *controls,
                       void **object)
{
    struct heap *heap = backend;
    (void)controls;
    struct bytes *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ENOMEM, "no memory for an object");
    made->heap = heap;
    made->uuid = at->uuid;
    made->opened = 1;
    pthread_mutex_lock(&heap->lock);
    int taken = find(heap, &at->uuid) != NULL;
    if (!taken) {
        made->next = heap->objects;
        heap->objects = made;
    }
    pthread_mutex_unlock(&heap->lock);
    if (taken) {
        free(made);
        return fail(EEXIST, "there are such bytes already");
    }
    *object = made;
    return 0;
}

static int heap_open(void *backend, const struct iov_address *at, const char *controls,
                     void **object)
{
    struct heap *heap = backend;
    (void)controls;
    pthread_mutex_lock(&heap->lock);
    struct bytes *found = find(heap, &at->uuid);
    if (found)
        found->opened++;
    pthread_mutex_unlock(&heap->lock);
    if (!found)
        return fail(ENOENT, "the bytes lay in another process, or session");
    *object = found;
    return 0;
}

/* With the lock held. */
static void free_if_unused(struct bytes *b)
{
    if (b->opened || !b->removed)
        return;
    struct bytes **at = &b->heap->objects;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    free(b->data);
    free(b);
}

static int heap_remove(void *backend, const struct iov_address *at)
{
    struct heap *heap = backend;
    pthread_mutex_lock(&heap->lock);
    struct bytes *found = find(heap, &at->uuid);
    if (found) {
        found->removed = 1;
        free_if_unused(found);
    }
    pthread_mutex_unlock(&heap->lock);
    return 0;
}

static int heap_close(void *object)
{
    struct bytes *b = object;
    struct heap *heap = b->heap;
    pthread_mutex_lock(&heap->lock);
    b->opened--;
    free_if_unused(b);
    pthread_mutex_unlock(&heap->lock);
    return 0;
}

/* With the lock held. */
static int resize(struct bytes *b, uint64_t size)
{
    if (size > b->heap->limit)
        return fail(EFBIG, "the limit of the configuration");
    if (size > b->size) {
        unsigned char *data = realloc(b->data, size);
        if (!data)
            return fail(ENOMEM, "no memory");
        memset(data + b->size, 0, size - b->size);
        b->data = data;
    }
    b->size = size;
    return 0;
}

static int64_t heap_read(void *object, void *to, size_t len, uint64_t at)
{
    struct bytes *b = object;
    pthread_mutex_lock(&b->heap->lock);
    size_t there = at < b->size ? b->size - at : 0;
    size_t n = len < there ? len : there;
    if (n)
        memcpy(to, b->data + at, n);
    pthread_mutex_unlock(&b->heap->lock);
    return (int64_t)n;
}

/* With the lock held. */
static int put(struct bytes *b, const void *from, size_t len, uint64_t at)
{
    if (len == 0)
        return 0;
    if (at > UINT64_MAX - len)
        return fail(EFBIG, "there is no such place");
    int failed = at + len > b->size ? resize(b, at + len) : 0;
    if (!failed)
        memcpy(b->data + at, from, len);
    return failed;
}

static int heap_write(void *object, const void *from, size_t len, uint64_t at)
{
    struct bytes *b = object;
    pthread_mutex_lock(&b->heap->lock);
    int failed = put(b, from, len, at);
    pthread_mutex_unlock(&b->heap->lock);
    return failed;
}

static int64_t heap_append(void *object, const void *from, size_t len)
{
    struct bytes *b = object;
    pthread_mutex_lock(&b->heap->lock);
    size_t at = b->size;
    int failed = put(b, from, len, at);
    pthread_mutex_unlock(&b->heap->lock);
    return failed ? failed : (int64_t)at;
}

static int heap_truncate(void *object, uint64_t size)
{
    struct bytes *b = object;
    pthread_mutex_lock(&b->heap->lock);
    int failed = resize(b, size);
    pthread_mutex_unlock(&b->heap->lock);
    return failed;
}

static int64_t heap_length(void *object)
{
    struct bytes *b = object;
    pthread_mutex_lock(&b->heap->lock);
    size_t size = b->size;
    pthread_mutex_unlock(&b->heap->lock);
    return (int64_t)size;
}

static int heap_sync(void *object)
{
    (void)object;
    return 0;
}

const struct iov_backend_table *iov_backend_ops(void)
{
    static const struct iov_backend_table ops = {
        .abi = IOV_BACKEND_ABI,
        .outlives_process = 0,
        .size = sizeof(struct iov_backend_table),
        .kind = "heap",
        .init = heap_init,
        .shutdown = heap_shutdown,
        .supports = heap_supports,
        .create = heap_create,
        .open = heap_open,
        .remove = heap_remove,
        .read = heap_read,
        .write = heap_write,
        .append = heap_append,
        .truncate = heap_truncate,
        .length = heap_length,
        .sync = heap_sync,
        .close = heap_close,
        .error = heap_error,
    };
    return &ops;
}
