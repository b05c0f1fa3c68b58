/* objects.c: what the kernels write to: collections of a workspace, or files of a directory.
 *
 * The same five calls of both, so that a kernel compares them. Kernels that do more with verbs (batches) use
 * those directly.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "objects.h"

struct object {
    struct job *job;
    iov_collection *collection; /* NULL: the file */
    int fd;
};

enum { PATH = 4096 };

void objects_begin(struct job *job, const char *name, const char *backend)
{
    static char dir[PATH];
    if (job->dir) {
        snprintf(dir, sizeof dir, "%s/%s", job->dir, name);
        job->dir = dir;
        if (job->rank == 0)
            job_call(job, mkdir(dir, 0777), dir);
        job_meet(job);
        return;
    }
    job_verb(job, iov_session_open(job->place, &job->session), "session");
    if (backend) {
        static char kind[PATH];
        snprintf(kind, sizeof kind, "%s", backend);
        char *config = strchr(kind, ':');
        if (config)
            *config++ = '\0';
        job->backend = "bytes";
        job_verb(job, iov_backend_attach(job->session, "bytes", kind, config), "back end");
    }
    if (job->rank == 0)
        job_verb(job, iov_workspace_create(job->session, name, NULL, 0, &job->workspace), name);
    job_meet(job);
    if (job->rank != 0)
        job_verb(job, iov_workspace_load(job->session, name, &job->workspace), name);
}

void objects_end(struct job *job)
{
    if (job->dir) {
        if (job->rank == 0)
            job_call(job, rmdir(job->dir), job->dir);
        return;
    }
    if (job->rank == 0)
        job_verb(job, iov_workspace_delete(job->workspace), "delete the workspace");
    else
        job_verb(job, iov_workspace_close(job->workspace), "close the workspace");
    job_verb(job, iov_session_close(job->session), "close the session");
}

/* What all ranks have, while one is apart. */
static const char *common_dir;
static iov_workspace *common;

void objects_apart(struct job *job)
{
    static char own[PATH + 32];
    common_dir = job->dir;
    common = job->workspace;
    snprintf(own, sizeof own, "%s%crank.%d", job->dir ? job->dir : "ranks", job->dir ? '/' : '.', job->rank);
    if (job->dir) {
        job_call(job, mkdir(own, 0777), own);
        job->dir = own;
    } else {
        job_verb(job, iov_workspace_create(job->session, own, NULL, 0, &job->workspace), own);
    }
}

void objects_together(struct job *job)
{
    if (job->dir)
        job_call(job, rmdir(job->dir), job->dir);
    else
        job_verb(job, iov_workspace_delete(job->workspace), "delete the rank's workspace");
    job->dir = common_dir;
    job->workspace = common;
}

/* Whether `controls` can be kept: 0, or the errno. */
static int can_keep(struct job *job, const char *controls)
{
    if (job->dir) /* what new files of a directory get is said of the directory */
        return setxattr(job->dir, "user.forebay.controls", controls, strlen(controls), 0) ? errno : 0;
    const struct iov_options options = {
        .size = sizeof options, .backend = job->backend, .controls = controls};
    iov_collection *probe;
    int64_t made = iov_collection_create(job->workspace, "probe", &options, &probe, NULL);
    if (made < 0)
        return (int)-made;
    job_verb(job, iov_collection_close(probe, NULL), "probe");
    job_verb(job, iov_collection_delete(job->workspace, "probe", NULL), "probe");
    return 0;
}

void objects_agree(struct job *job, const char *controls, char *kept, char *line, size_t room)
{
    char all[256], *next = all;
    snprintf(all, sizeof all, "%s", controls);
    for (char *one; (one = strsep(&next, ","));) {
        size_t used = strlen(kept);
        snprintf(kept + used, room - used, "%s%s", used ? "," : "", one);
        int refused = can_keep(job, kept);
        if (!refused)
            continue;
        kept[used] = '\0';
        if (refused != EOPNOTSUPP)
            job_fail(job, "%s: %s", one, strerror(refused));
        used = strlen(line);
        snprintf(line + used, room - used, " (%s: not kept here)", one);
    }
}

static struct object *object(struct job *job)
{
    struct object *o = job_memory(job, sizeof *o);
    *o = (struct object){.job = job, .fd = -1};
    return o;
}

iov_collection *object_collection(const struct object *o)
{
    return o->collection;
}

static int open_file(struct job *job, const char *name, int flags)
{
    char path[PATH + 256];
    snprintf(path, sizeof path, "%s/%s", job->dir, name);
    return (int)job_call(job, open(path, flags | O_CLOEXEC, 0666), path);
}

struct object *object_create(struct job *job, const char *name)
{
    struct object *o = object(job);
    const struct iov_options options = {
        .size = sizeof options, .backend = job->backend, .controls = job->controls};
    if (job->dir)
        o->fd = open_file(job, name, O_RDWR | O_CREAT | O_EXCL);
    else
        job_verb(job, iov_collection_create(job->workspace, name, &options, &o->collection, NULL),
                 name);
    return o;
}

struct object *object_open(struct job *job, const char *name, bool to_write)
{
    struct object *o = object(job);
    if (job->dir)
        o->fd = open_file(job, name, to_write ? O_RDWR : O_RDONLY);
    else
        job_verb(job, iov_collection_open(job->workspace, name, &o->collection, NULL), name);
    return o;
}

void object_write(struct object *o, const void *from, size_t len, uint64_t at)
{
    if (o->collection) {
        job_verb(o->job, iov_write(o->collection, from, len, at, NULL), "write");
        return;
    }
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(o->fd, (const char *)from + done, len - done, (off_t)(at + done));
        done += (size_t)job_call(o->job, n, "pwrite");
    }
}

void object_read(struct object *o, void *to, size_t len, uint64_t at)
{
    size_t done = 0;
    if (o->collection)
        done = (size_t)job_verb(o->job, iov_read(o->collection, to, len, at, NULL), "read");
    for (size_t n = 1; !o->collection && done < len && n > 0; done += n)
        n = (size_t)job_call(o->job, pread(o->fd, (char *)to + done, len - done, (off_t)(at + done)),
                             "pread");
    if (done < len)
        job_fail(o->job, "read: %zu bytes at %llu, not %zu", done, (unsigned long long)at, len);
}

void object_commit(struct object *o)
{
    if (o->collection)
        job_verb(o->job, iov_sync(o->collection, NULL), "sync");
    else
        job_call(o->job, fsync(o->fd), "fsync");
}

void object_close(struct object *o)
{
    if (o->collection)
        job_verb(o->job, iov_collection_close(o->collection, NULL), "close");
    else
        job_call(o->job, close(o->fd), "close");
    free(o);
}

void object_delete(struct job *job, const char *name)
{
    char path[PATH + 256];
    if (!job->dir) {
        job_verb(job, iov_collection_delete(job->workspace, name, NULL), name);
        return;
    }
    snprintf(path, sizeof path, "%s/%s", job->dir, name);
    job_call(job, unlink(path), path);
}
