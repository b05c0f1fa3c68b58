/* nfsmount.c: a directory of an NFS server as a file system, by libnfs and FUSE, for tests on kernels without an NFS client.
 *
 *     nfsmount URL MOUNTPOINT          URL as of libnfs: nfs://127.0.0.1/export
 *
 * One request at a time. It ends when it is unmounted.
 */
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fuse3/fuse.h>
#include <nfsc/libnfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

static struct nfs_context *nfs;

static void fill(struct stat *st, const struct nfs_stat_64 *s)
{
    memset(st, 0, sizeof(*st));
    st->st_dev = s->nfs_dev;
    st->st_ino = s->nfs_ino;
    st->st_mode = s->nfs_mode;
    st->st_nlink = s->nfs_nlink;
    st->st_uid = s->nfs_uid;
    st->st_gid = s->nfs_gid;
    st->st_rdev = s->nfs_rdev;
    st->st_size = s->nfs_size;
    st->st_blksize = 4096;
    st->st_blocks = (s->nfs_used + 511) / 512;
    st->st_atim = (struct timespec){ s->nfs_atime, s->nfs_atime_nsec };
    st->st_mtim = (struct timespec){ s->nfs_mtime, s->nfs_mtime_nsec };
    st->st_ctim = (struct timespec){ s->nfs_ctime, s->nfs_ctime_nsec };
}

static int n_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    struct nfs_stat_64 s;
    int rc = fi ? nfs_fstat64(nfs, (void *)fi->fh, &s) : nfs_lstat64(nfs, path, &s);
    if (rc == 0)
        fill(st, &s);
    return rc;
}

static int n_readlink(const char *path, char *to, size_t size)
{
    int rc = nfs_readlink(nfs, path, to, (int)size - 1);
    if (rc >= 0)
        to[size - 1] = 0;
    return rc < 0 ? rc : 0;
}

static int n_readdir(const char *path, void *buffer, fuse_fill_dir_t add, off_t at, struct fuse_file_info *fi,
                     enum fuse_readdir_flags flags)
{
    (void)at, (void)fi, (void)flags;
    struct nfsdir *dir;
    int rc = nfs_opendir(nfs, path, &dir);
    if (rc < 0)
        return rc;
    for (struct nfsdirent *e; (e = nfs_readdir(nfs, dir));)
        add(buffer, e->name, NULL, 0, 0);
    nfs_closedir(nfs, dir);
    return 0;
}

static int n_open(const char *path, struct fuse_file_info *fi)
{
    struct nfsfh *fh;
    int rc = nfs_open(nfs, path, fi->flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW), &fh);
    if (rc == 0) {
        fi->fh = (uint64_t)fh;
        fi->direct_io = 1;
    }
    return rc;
}

static int n_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    struct nfsfh *fh;
    int rc = nfs_create(nfs, path, fi->flags & ~O_NOFOLLOW, mode & 07777, &fh);
    if (rc == 0) {
        fi->fh = (uint64_t)fh;
        fi->direct_io = 1;
    }
    return rc;
}

static int n_read(const char *path, char *to, size_t n, off_t at, struct fuse_file_info *fi)
{
    (void)path;
    size_t done = 0;
    while (done < n) {
        int got = nfs_pread(nfs, (void *)fi->fh, at + done, n - done, to + done);
        if (got < 0)
            return got;
        if (got == 0)
            break;
        done += got;
    }
    return (int)done;
}

static int n_write(const char *path, const char *from, size_t n, off_t at, struct fuse_file_info *fi)
{
    (void)path;
    size_t done = 0;
    while (done < n) {
        int put = nfs_pwrite(nfs, (void *)fi->fh, at + done, n - done, (void *)(from + done));
        if (put < 0)
            return put;
        done += put;
    }
    return (int)done;
}

static int n_release(const char *path, struct fuse_file_info *fi)
{
    (void)path;
    return nfs_close(nfs, (void *)fi->fh);
}

static int n_fsync(const char *path, int data, struct fuse_file_info *fi)
{
    (void)path, (void)data;
    return nfs_fsync(nfs, (void *)fi->fh);
}

static int n_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
    return fi ? nfs_ftruncate(nfs, (void *)fi->fh, size) : nfs_truncate(nfs, path, size);
}

static int n_utimens(const char *path, const struct timespec t[2], struct fuse_file_info *fi)
{
    (void)fi;
    struct nfs_stat_64 s;
    struct timeval both[2];
    struct timespec now, old[2];
    clock_gettime(CLOCK_REALTIME, &now);
    int rc = nfs_lstat64(nfs, path, &s);
    if (rc < 0)
        return rc;
    old[0] = (struct timespec){ s.nfs_atime, s.nfs_atime_nsec };
    old[1] = (struct timespec){ s.nfs_mtime, s.nfs_mtime_nsec };
    for (int i = 0; i < 2; i++) {
        const struct timespec *from = t[i].tv_nsec == UTIME_OMIT ? &old[i] : t[i].tv_nsec == UTIME_NOW ? &now : &t[i];
        both[i] = (struct timeval){ from->tv_sec, from->tv_nsec / 1000 };
    }
    return nfs_lutimes(nfs, path, both);
}

static int n_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    (void)fi;
    return nfs_chmod(nfs, path, mode & 07777);
}

static int n_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *fi)
{
    (void)fi;
    struct nfs_stat_64 s;
    int rc = nfs_lstat64(nfs, path, &s);
    if (rc < 0)
        return rc;
    return nfs_lchown(nfs, path, uid == (uid_t)-1 ? (int)s.nfs_uid : (int)uid, gid == (gid_t)-1 ? (int)s.nfs_gid : (int)gid);
}

static int n_mkdir(const char *path, mode_t mode) { return nfs_mkdir2(nfs, path, mode & 07777); }
static int n_rmdir(const char *path) { return nfs_rmdir(nfs, path); }
static int n_unlink(const char *path) { return nfs_unlink(nfs, path); }
static int n_symlink(const char *to, const char *path) { return nfs_symlink(nfs, to, path); }
static int n_link(const char *from, const char *to) { return nfs_link(nfs, from, to); }

static int n_rename(const char *from, const char *to, unsigned int flags)
{
    return flags ? -EINVAL : nfs_rename(nfs, from, to);
}

static int n_statfs(const char *path, struct statvfs *st) { return nfs_statvfs(nfs, path, st); }

static void *n_init(struct fuse_conn_info *info, struct fuse_config *config)
{
    (void)info;
    config->use_ino = 1;
    config->hard_remove = 1;
    config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = n_init, .getattr = n_getattr, .readlink = n_readlink, .readdir = n_readdir, .open = n_open, .create = n_create,
    .read = n_read, .write = n_write, .release = n_release, .fsync = n_fsync, .truncate = n_truncate, .utimens = n_utimens,
    .chmod = n_chmod, .chown = n_chown, .mkdir = n_mkdir, .rmdir = n_rmdir, .unlink = n_unlink, .symlink = n_symlink,
    .link = n_link, .rename = n_rename, .statfs = n_statfs,
};

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: nfsmount URL MOUNTPOINT\n");
        return 2;
    }
    nfs = nfs_init_context();
    struct nfs_url *url = nfs ? nfs_parse_url_dir(nfs, argv[1]) : NULL;
    if (!url || nfs_mount(nfs, url->server, url->path) != 0) {
        fprintf(stderr, "nfsmount: %s can't be mounted: %s\n", argv[1], nfs ? nfs_get_error(nfs) : "no memory");
        return 1;
    }
    char *words[] = { argv[0], "-f", "-s", "-o", "default_permissions,fsname=nfs", argv[2], NULL };
    return fuse_main(6, words, &operations, NULL);
}
