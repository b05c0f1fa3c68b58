/* cost.c: what a verb costs: cost PLACE [COUNT]
 *
 *     cc -std=c11 -O2 -Iinclude -o cost examples/verbs/cost.c -Ltarget/release -lforebay_iov
 *     forebay up;  ./cost pool:default;  forebay down
 *
 * Nanoseconds for each call: on the back end `memory`, whose bytes are this process's, and on the session's own.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "forebay/iov.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The program ends with the sentence about what failed. */
static int64_t done(int64_t returned)
{
    if (returned < 0) {
        fprintf(stderr, "cost: %s\n", iov_error());
        exit(1);
    }
    return returned;
}

static void at_once(iov_workspace *workspace, const char *backend, const char *bytes, long count)
{
    enum { SIZE = 4096, BLOCKS = 256 };
    const struct iov_options options = {.size = sizeof options, .backend = backend};
    iov_collection *collection;
    char block[SIZE];
    done(iov_collection_create(workspace, "cost", &options, &collection, NULL));
    for (int i = 0; i < BLOCKS; i++) /* what is measured isn't the first touch of memory */
        done(iov_write(collection, bytes, SIZE, (uint64_t)i * SIZE, NULL));
    double began = now();
    for (long i = 0; i < count; i++)
        done(iov_write(collection, bytes, SIZE, (uint64_t)(i % BLOCKS) * SIZE, NULL));
    double written = now();
    for (long i = 0; i < count; i++)
        done(iov_read(collection, block, SIZE, (uint64_t)(i % BLOCKS) * SIZE, NULL));
    double read = now();
    printf("%s: write 4 KiB %.0f ns, read %.0f ns\n", backend ? backend : "the session's own",
           (written - began) / (double)count, (read - written) / (double)count);
    done(iov_collection_close(collection, NULL));
    done(iov_collection_delete(workspace, "cost", NULL));
}

static void in_batches(iov_session *session, iov_workspace *workspace, const char *bytes, long count)
{
    enum { REQUESTS = 1000 };
    const struct iov_options options = {.size = sizeof options, .backend = "memory"};
    iov_collection *collection;
    done(iov_collection_create(workspace, "cost", &options, &collection, NULL));
    long batches = (count + REQUESTS - 1) / REQUESTS;
    double began = now();
    for (long n = 0; n < batches; n++) {
        iov_batch *batch;
        done(iov_batch_create(session, IOV_STOP, IOV_FREE, &batch));
        for (int i = 0; i < REQUESTS; i++)
            done(iov_write(collection, bytes, 4096, (uint64_t)i * 4096, batch));
        done(iov_batch_start(batch));
        done(iov_wait(batch, -1));
        done(iov_batch_result(batch));
        done(iov_batch_free(batch));
    }
    printf("memory, in batches of %d: %.0f ns\n", REQUESTS,
           (now() - began) / (double)(batches * REQUESTS));
    done(iov_collection_close(collection, NULL));
    done(iov_collection_delete(workspace, "cost", NULL));
}

int main(int argc, char **argv)
{
    static char bytes[4096];
    long count = argc > 2 ? atol(argv[2]) : 1000000;
    iov_session *session;
    iov_workspace *workspace;
    if (argc < 2 || count < 1) {
        fprintf(stderr, "usage: cost PLACE [COUNT]   (pool:NAME, or memory)\n");
        return 2;
    }
    memset(bytes, 'x', sizeof bytes);
    done(iov_session_open(argv[1], &session));
    done(iov_workspace_create(session, "cost", NULL, 0, &workspace));
    at_once(workspace, "memory", bytes, count);
    at_once(workspace, NULL, bytes, count);
    in_batches(session, workspace, bytes, count);
    done(iov_workspace_delete(workspace));
    done(iov_session_close(session));
    return 0;
}
