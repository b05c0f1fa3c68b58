/* Every function of iov.h, as a C program uses it: verbs PLACE DIRECTORY HEAP.SO
 *
 * PLACE is a session's; DIRECTORY one for the back end `directory`; HEAP.SO the example of a back end. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "forebay/iov.h"

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #what,    \
                    iov_error());                                                                \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static const int64_t MINUTE = 60 * (int64_t)1000000000;

/* Whether the last failure's sentence has this in it. */
static int says(const char *text)
{
    return strstr(iov_error(), text) != NULL;
}

static void verbs_at_once(iov_workspace *w, const char *backend)
{
    const struct iov_pair meta[] = {{"project", "mcse"}, {"step", "3"}};
    const struct iov_options options = {
        .size = sizeof options, .backend = backend, .meta = meta, .meta_count = 2};
    iov_collection *c = NULL, *second = NULL;
    char bytes[16];
    CHECK(iov_collection_create(w, backend, &options, &c, NULL) == 0);
    CHECK(iov_collection_create(w, backend, &options, &second, NULL) == -EEXIST && second == NULL);
    CHECK(says(backend));
    CHECK(iov_write(c, "hello", 5, 2, NULL) == 0);
    CHECK(iov_append(c, " world", 6, NULL) == 7);
    CHECK(iov_size(c) == 13);
    CHECK(iov_read(c, bytes, sizeof bytes, 0, NULL) == 13);
    CHECK(memcmp(bytes, "\0\0hello world", 13) == 0);
    CHECK(iov_read(c, NULL, 0, 0, NULL) == 0 && iov_read(c, NULL, 1, 0, NULL) == -EINVAL);
    CHECK(iov_copy(c, 2, 3, c, 20, NULL) == 3);
    CHECK(iov_read(c, bytes, 4, 19, NULL) == 4 && memcmp(bytes, "\0hel", 4) == 0);
    CHECK(iov_truncate(c, 4, NULL) == 0 && iov_size(c) == 4);
    CHECK(iov_sync(c, NULL) == 0);

    struct iov_uuid uuid;
    iov_records *known = NULL;
    CHECK(iov_collection_uuid(c, &uuid) == 0);
    CHECK(iov_get_meta(c, &known, NULL) == 0 && iov_records_count(known) == 1);
    const struct iov_record *record = iov_records_get(known, 0);
    CHECK(memcmp(&record->uuid, &uuid, sizeof uuid) == 0);
    CHECK(strcmp(record->name, backend) == 0 && strcmp(record->backend, backend) == 0);
    CHECK(strcmp(record->controls, "") == 0 && record->meta_count == 2);
    CHECK(strcmp(record->meta[1].key, "step") == 0 && strcmp(record->meta[1].value, "3") == 0);
    CHECK(iov_records_get(known, 1) == NULL);
    iov_records_free(known);
    const struct iov_pair changes[] = {{"step", "4"}, {"project", NULL}};
    CHECK(iov_set_meta(c, changes, 2, NULL) == 0);
    CHECK(iov_collection_search(w, "step > 3 and not exists project", &known, NULL) == 0);
    CHECK(iov_records_count(known) == 1);
    iov_records_free(known);
    CHECK(iov_collection_search(w, "step >", &known, NULL) == -EINVAL && known == NULL);
    CHECK(says("column 7"));
    CHECK(iov_collection_lookup(w, backend, &known, NULL) == 0);
    CHECK(iov_records_get(known, 0)->meta_count == 1);
    iov_records_free(known);
    CHECK(iov_collection_close(c, NULL) == 0);
    CHECK(iov_collection_open_uuid(w, &uuid, &c, NULL) == 0 && iov_size(c) == 4);
    CHECK(iov_collection_close(c, NULL) == 0);
    CHECK(iov_collection_delete(w, backend, NULL) == 0);
    CHECK(iov_collection_open(w, backend, &c, NULL) == -ENOENT && c == NULL);
    CHECK(iov_collection_lookup(w, backend, &known, NULL) == -ENOENT && known == NULL);
}

static void verbs_in_a_batch(iov_session *session, iov_workspace *w, const char *backend)
{
    enum { COUNT = 50 };
    const struct iov_options options = {.size = sizeof options, .backend = backend};
    iov_batch *batch = NULL;
    iov_collection *all[COUNT];
    int64_t reads[COUNT];
    char names[COUNT][16];
    char *buffers = iov_allocate(session, COUNT * 8);
    iov_records *found = NULL, *known = NULL;
    CHECK(buffers != NULL && (size_t)buffers % 4096 == 0);
    CHECK(iov_batch_create(session, IOV_STOP, IOV_FREE, &batch) == 0);
    CHECK(iov_wait(batch, 0) == -EINVAL && says("hasn't been started"));
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "n%d", i);
        const struct iov_pair number = {"n", names[i] + 1};
        CHECK(iov_collection_create(w, names[i], &options, &all[i], batch) >= 0);
        CHECK(iov_set_meta(all[i], &number, 1, batch) >= 0);
        int64_t written = iov_write(all[i], names[i], strlen(names[i]), 0, batch);
        int64_t appended = iov_append(all[i], "!", 1, batch);
        CHECK(iov_batch_after(batch, appended, &written, 1) == 0);
        reads[i] = iov_read(all[i], buffers + 8 * i, 8, 0, batch);
        CHECK(iov_batch_after(batch, reads[i], &appended, 1) == 0);
    }
    CHECK(iov_get_meta(all[0], &known, batch) >= 0);
    CHECK(iov_batch_start(batch) == 0);
    CHECK(iov_batch_start(batch) == -EBUSY && iov_sync(all[0], batch) == -EBUSY);
    CHECK(iov_wait(batch, MINUTE) == 1 && iov_test(batch) == 1);
    CHECK(iov_batch_result(batch) == 0);
    for (int i = 0; i < COUNT; i++) {
        int64_t n = iov_result(batch, reads[i]);
        CHECK(n == (int64_t)strlen(names[i]) + 1 && buffers[8 * i + n - 1] == '!');
        CHECK(iov_request_status(batch, reads[i]) == IOV_DONE);
    }
    CHECK(iov_result(batch, 9999) == -EINVAL && iov_result(batch, -1) == -EINVAL);
    CHECK(known != NULL && strcmp(iov_records_get(known, 0)->name, "n0") == 0);
    iov_records_free(known);
    CHECK(iov_batch_free(batch) == 0);

    CHECK(iov_batch_create(session, IOV_CONTINUE, IOV_CHAIN, &batch) == 0);
    iov_collection *absent = NULL;
    int64_t fails = iov_collection_open(w, "absent", &absent, batch);
    int64_t skipped = iov_truncate(absent, 0, batch);
    CHECK(iov_collection_close(absent, batch) >= 0);
    for (int i = 0; i < COUNT; i++) {
        CHECK(iov_collection_close(all[i], batch) >= 0);
        if (i < COUNT - 1)
            CHECK(iov_collection_delete(w, names[i], batch) >= 0);
    }
    int64_t search = iov_collection_search(w, "n >= 0", &found, batch);
    CHECK(iov_collection_lookup(w, names[COUNT - 1], &known, batch) >= 0);
    CHECK(iov_batch_start(batch) == 0 && iov_wait(batch, MINUTE) == 1);
    CHECK(iov_result(batch, fails) == -ENOENT && says("absent"));
    CHECK(iov_result(batch, skipped) == -ECANCELED);
    CHECK(iov_request_status(batch, skipped) == IOV_SKIPPED);
    CHECK(iov_batch_result(batch) == -ENOENT);
    CHECK(iov_result(batch, search) == 0 && iov_records_count(found) == 1);
    CHECK(strcmp(iov_records_get(found, 0)->name, names[COUNT - 1]) == 0);
    CHECK(known != NULL);
    iov_records_free(known);
    iov_records_free(found);
    CHECK(iov_batch_free(batch) == 0);
    CHECK(iov_collection_delete(w, names[COUNT - 1], NULL) == 0);

    /* Never started, and cancelled. */
    CHECK(iov_batch_create(session, IOV_ROLLBACK, IOV_FREE, &batch) == 0);
    CHECK(iov_collection_create(w, "never", &options, &absent, batch) == 0);
    CHECK(iov_batch_free(batch) == 0);
    CHECK(iov_size(absent) == -EBADF && iov_collection_close(absent, NULL) == -EBADF);
    CHECK(iov_batch_create(session, IOV_STOP, IOV_FREE, &batch) == 0);
    CHECK(iov_collection_search(w, "", &found, batch) == 0);
    CHECK(iov_batch_start(batch) == 0 && iov_cancel(batch) == 0);
    CHECK(iov_wait(batch, -1) == 1 && iov_batch_free(batch) == 0);
    iov_records_free(found);
    iov_free(session, buffers);
}

static void what_is_refused(iov_session *session, iov_workspace *w, const char *heap)
{
    iov_session *other = NULL;
    iov_workspace *none = NULL;
    iov_collection *c = NULL;
    iov_batch *batch = NULL;
    CHECK(iov_session_open("nowhere", &other) == -EINVAL && other == NULL && says("nowhere"));
    CHECK(iov_session_open(NULL, &other) == -EINVAL && iov_session_open("memory", NULL) == -EINVAL);
    CHECK(iov_backend_attach(session, "b", "/nonexistent.so", NULL) == -ENOENT && says("nonexistent"));
    CHECK(iov_backend_attach(session, "b", heap, "limit=x") == -EINVAL && says("limit=BYTES"));
    CHECK(iov_backend_attach(session, "b", "tape", "") == -EINVAL && says("tape"));
    CHECK(iov_workspace_load(session, "absent", &none) == -ENOENT && none == NULL);
    CHECK(iov_workspace_create(session, "a/b", NULL, 0, &none) == -EINVAL);
    CHECK(iov_workspace_create(session, "\xff", NULL, 0, &none) == -EINVAL && says("UTF-8"));
    struct iov_options options = {.size = 8};
    CHECK(iov_collection_create(w, "c", &options, &c, NULL) == -EINVAL && says("iov_options.size"));
    options = (struct iov_options){.size = sizeof options, .controls = "mutability=soft"};
    CHECK(iov_collection_create(w, "c", &options, &c, NULL) == -EINVAL && says("soft"));
    options.controls = "mutability=append";
    options.backend = "heap";
    CHECK(iov_collection_create(w, "c", &options, &c, NULL) == -ENOTSUP);
    CHECK(says("'heap'") && says("mutability=append") && says("only the default controls"));
    options.controls = "consistency=commit";
    CHECK(iov_collection_create(w, "c", &options, &c, NULL) == 0);
    CHECK(iov_write(c, "x", 1, 1000000, NULL) == -EFBIG && says("the limit of the configuration"));
    CHECK(iov_collection_close(c, NULL) == 0 && iov_collection_delete(w, "c", NULL) == 0);
    options = (struct iov_options){.size = sizeof options, .backend = "absent"};
    CHECK(iov_collection_create(w, "c", &options, &c, NULL) == -ENODEV && says("attached:"));
    CHECK(iov_batch_create(session, (enum iov_failure)7, IOV_FREE, &batch) == -EINVAL);
    CHECK(iov_read(NULL, NULL, 0, 0, NULL) == -EINVAL && iov_collection_close(NULL, NULL) == -EINVAL);
}

/* How many collections of the workspace there are whose `of` is `many`. */
static size_t count_of_many(iov_workspace *w)
{
    iov_records *found = NULL;
    CHECK(iov_collection_search(w, "of = \"many\"", &found, NULL) == 0);
    const size_t count = iov_records_count(found);
    iov_records_free(found);
    return count;
}

/* Batches of deletions, which are made together in the same way. There are `many` collections; three of them go before. */
static void many_are_deleted(iov_session *session, iov_workspace *w, int many, const int gone[3])
{
    enum { FAILS, SUCCEEDS, CONTINUES };
    char name[32];
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "many %d", gone[i]);
        CHECK(iov_collection_delete(w, name, NULL) == 0);
    }
    for (int pass = FAILS; pass <= CONTINUES; pass++) {
        iov_batch *batch = NULL;
        int64_t deletes[256];
        int n = 0, left = 0;
        CHECK(many < 256 && iov_batch_create(session, pass == CONTINUES ? IOV_CONTINUE : IOV_ROLLBACK, IOV_FREE, &batch) == 0);
        for (int i = 0; i < many; i++) {
            const int there = i != gone[0] && i != gone[1] && i != gone[2];
            snprintf(name, sizeof name, "many %d", i);
            /* Those with even numbers go in the second pass. */
            if (pass != SUCCEEDS || (there && i % 2 == 0))
                CHECK((deletes[n++] = iov_collection_delete(w, name, batch)) >= 0);
            left += there && i % 2 != 0;
        }
        if (pass == CONTINUES) /* one of them twice: "many 1" */
            CHECK((deletes[n++] = iov_collection_delete(w, "many 1", batch)) >= 0);
        CHECK(iov_batch_start(batch) == 0 && iov_wait(batch, 60000000000) == 1);
        CHECK(iov_batch_result(batch) == (pass == SUCCEEDS ? 0 : -ENOENT));
        if (pass == CONTINUES) {
            for (int i = 0; i < many; i++) {
                const int there = i != gone[0] && i != gone[1] && i != gone[2] && i % 2 != 0;
                CHECK(i == 1 || iov_result(batch, deletes[i]) == (there ? 0 : -ENOENT));
            }
            const int64_t first = iov_result(batch, deletes[1]), second = iov_result(batch, deletes[many]);
            CHECK((first == 0 && second == -ENOENT) || (first == -ENOENT && second == 0));
        }
        CHECK(iov_batch_free(batch) == 0);
        CHECK(count_of_many(w) == (size_t)(pass == FAILS ? many - 3 : pass == SUCCEEDS ? left : 0));
    }
}

/* A batch of creations, which are made together where they concern other nodes. Three of the names are taken. */
static void many_at_once(iov_session *session, iov_workspace *w)
{
    enum { MANY = 150 };
    const struct iov_pair meta = {"of", "many"};
    const struct iov_options options = {.size = sizeof options, .meta = &meta, .meta_count = 1};
    static const int taken[] = {0, 70, MANY - 1};
    char name[32], byte = 0;
    for (size_t i = 0; i < 3; i++) {
        iov_collection *c = NULL;
        snprintf(name, sizeof name, "many %d", taken[i]);
        CHECK(iov_collection_create(w, name, NULL, &c, NULL) == 0);
        CHECK(iov_collection_close(c, NULL) == 0);
    }
    for (int rolled_back = 1; rolled_back >= 0; rolled_back--) {
        iov_batch *batch = NULL;
        iov_collection *made[MANY] = {NULL};
        int64_t creates[MANY];
        CHECK(iov_batch_create(session, rolled_back ? IOV_ROLLBACK : IOV_CONTINUE, IOV_FREE, &batch) == 0);
        for (int i = 0; i < MANY; i++) {
            snprintf(name, sizeof name, "many %d", i);
            creates[i] = iov_collection_create(w, name, &options, &made[i], batch);
            CHECK(creates[i] >= 0 && iov_write(made[i], "x", 1, (uint64_t)i, batch) >= 0);
        }
        CHECK(iov_batch_start(batch) == 0 && iov_wait(batch, 60000000000) == 1);
        CHECK(iov_batch_result(batch) == -EEXIST && says("exists already"));
        for (int i = 0; i < MANY && !rolled_back; i++) {
            const int there = i == taken[0] || i == taken[1] || i == taken[2];
            CHECK(iov_result(batch, creates[i]) == (there ? -EEXIST : 0));
            CHECK(iov_result(batch, creates[i] + 1) == (there ? -ECANCELED : 0));
            if (!there)
                CHECK(iov_size(made[i]) == i + 1 && iov_read(made[i], &byte, 1, (uint64_t)i, NULL) == 1 && byte == 'x');
        }
        for (int i = 0; i < MANY; i++)
            (void)iov_collection_close(made[i], NULL); /* some never were open */
        CHECK(iov_batch_free(batch) == 0);
        CHECK(count_of_many(w) == (rolled_back ? 0 : MANY - 3));
    }
    many_are_deleted(session, w, MANY, taken);
}

/* In a child, with a session of its own: adds one to each of the first `len` bytes. */
static void add_in_a_child(const char *place, const struct iov_token *token, size_t len)
{
    pid_t child = fork();
    if (child == 0) {
        iov_session *own = NULL;
        void *memory = NULL;
        size_t there = 0;
        CHECK(iov_session_open(place, &own) == 0);
        CHECK(iov_chunk_attach(own, token, &memory, &there) == 0 && there == len);
        for (size_t i = 0; i < len; i++)
            ((unsigned char *)memory)[i]++;
        CHECK(iov_session_close(own) == 0);
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void memory_for_others(iov_session *session, const char *place, iov_workspace *w)
{
    struct iov_token token = {{0}}, part;
    iov_collection *c = NULL;
    void *memory = NULL, *again = NULL;
    char bytes[16];
    unsigned char *buffer = iov_allocate(session, 10000);
    CHECK(buffer && (uintptr_t)buffer % 4096 == 0);
    memset(buffer, 6, 10000);
    CHECK(iov_chunk_attach(session, &token, &memory, NULL) < 0 && !memory);
    CHECK(iov_collection_create(w, "mapped", NULL, &c, NULL) == 0);
    CHECK(iov_write(c, "0123456789", 10, 5000, NULL) == 0);
    if (strcmp(place, "memory") == 0) {
        CHECK(iov_chunk_share(session, buffer, 1, &token) == -EINVAL);
        CHECK(iov_chunk_map(c, 0, 1, IOV_READ, &memory) == -ENOTSUP && says("only collections of a pool"));
    } else {
        CHECK(iov_chunk_share(session, buffer, 10000, &token) == 0);
        CHECK(iov_chunk_share(session, buffer + 1, 10000, &part) == -EINVAL && says("inside"));
        CHECK(iov_chunk_share(session, &token, 1, &part) == -EINVAL);
        add_in_a_child(place, &token, 10000);
        CHECK(buffer[0] == 7 && buffer[9999] == 7);

        CHECK(iov_chunk_map(c, 5002, 8, IOV_READ_WRITE, &memory) == 0);
        CHECK(memcmp(memory, "23456789", 8) == 0);
        CHECK(iov_chunk_map(c, 5002, 9, IOV_READ, &again) == -EINVAL && !again);
        CHECK(iov_chunk_map(c, 0, 9, 2, &again) == -EINVAL);
        CHECK(iov_chunk_share(session, (char *)memory + 1, 2, &part) == 0);
        add_in_a_child(place, &part, 2);
        CHECK(iov_read(c, bytes, 10, 5000, NULL) == 10 && memcmp(bytes, "0124556789", 10) == 0);
        CHECK(iov_chunk_unmap(session, memory) == 0 && iov_chunk_unmap(session, memory) == -EINVAL);
    }
    iov_free(session, buffer);
    if (strcmp(place, "memory") != 0)
        CHECK(iov_chunk_attach(session, &token, &memory, NULL) == -ENOENT && says("gone"));
    CHECK(iov_collection_close(c, NULL) == 0 && iov_collection_delete(w, "mapped", NULL) == 0);
}

static void a_fork(iov_session *session, const char *place, iov_workspace *w)
{
    const struct iov_options options = {.size = sizeof options, .backend = "memory"};
    iov_collection *c = NULL;
    CHECK(iov_collection_create(w, "forked", &options, &c, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        iov_session *own = NULL;
        iov_workspace *same = NULL;
        CHECK(iov_write(c, "x", 1, 0, NULL) == -EPERM && says("fork"));
        CHECK(iov_session_close(session) == 0);
        CHECK(iov_session_open(place, &own) == 0);
        int there = strcmp(place, "memory") == 0 ? -ENOENT : 0;
        CHECK(iov_workspace_load(own, "w", &same) == there);
        /* Another program: what the parent has isn't a leak of the child's. */
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(iov_write(c, "x", 1, 0, NULL) == 0);
    CHECK(iov_collection_close(c, NULL) == 0 && iov_collection_delete(w, "forked", NULL) == 0);
}

int main(int argc, char **argv)
{
    iov_session *session = NULL;
    iov_workspace *w = NULL, *again = NULL;
    iov_records *found = NULL;
    const struct iov_pair owner = {"owner", "me"};
    CHECK(argc == 4 && iov_abi() == IOV_ABI && strcmp(iov_error(), "") == 0);
    CHECK(iov_session_open(argv[1], &session) == 0);
    CHECK(iov_backend_attach(session, "scratch", "directory", argv[2]) == 0);
    CHECK(iov_backend_attach(session, "heap", argv[3], "limit=100000") == 0);
    CHECK(iov_backend_attach(session, "large", argv[3], NULL) == 0);
    CHECK(iov_workspace_create(session, "w", &owner, 1, &w) == 0);
    CHECK(iov_workspace_load(session, "w", &again) == 0);
    CHECK(iov_workspace_set_meta(again, &(struct iov_pair){"kind", "run"}, 1) == 0);
    CHECK(iov_workspace_get_meta(w, &found) == 0 && iov_records_get(found, 0)->meta_count == 2);
    iov_records_free(found);
    CHECK(iov_workspace_search(session, "owner = \"me\"", &found) == 0);
    CHECK(iov_records_count(found) == 1);
    iov_records_free(found);
    CHECK(iov_workspace_close(again) == 0);

    const char *const backends[] = {"memory", "scratch", "heap", "large", "forebay"};
    size_t count = strcmp(argv[1], "memory") == 0 ? 4 : 5;
    for (size_t i = 0; i < count; i++) {
        verbs_at_once(w, backends[i]);
        verbs_in_a_batch(session, w, backends[i]);
    }
    what_is_refused(session, w, argv[3]);
    many_at_once(session, w);
    memory_for_others(session, argv[1], w);
    a_fork(session, argv[1], w);
    CHECK(iov_workspace_delete(w) == 0);
    CHECK(iov_session_close(session) == 0);
    puts("all as it should be");
    return 0;
}
