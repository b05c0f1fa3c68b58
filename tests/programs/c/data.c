/* Reading, writing, copying, sizes: with their flags, offsets and errors. */
#include "call.h"

static void show(const char *f) {
    char b[4096]; int fd = open(f, O_RDONLY); int n = read(fd, b, sizeof b - 1); close(fd);
    unsigned h = 0; for (int i = 0; i < n; i++) { h = h * 31 + (unsigned char)b[i]; if (!b[i]) b[i] = '.'; }
    b[n > 0 ? n : 0] = 0; SAY("%s: %d [%.60s] %x", f, n, b, h);
}

int main(void) {
    char b[64] = "";
    int fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0644), ro = open("f", O_RDONLY), wo = open("f", O_WRONLY), ap = open("f", O_RDWR | O_APPEND);
    struct iovec v[3] = {{"one ", 4}, {"", 0}, {"two", 3}}, w[2] = {{b, 2}, {b + 2, 20}};
    P(writev(fd, v, 3)); show("f"); P(pwritev(fd, v, 3, 100)); P(pwritev(fd, v, -1, 0)); P(pwritev(fd, v, 1025, 0)); P(pwritev(fd, v, 3, -1)); P(writev(ro, v, 3)); P(readv(wo, w, 2));
    P(writev(fd, v, 0)); P(preadv(fd, w, 2, 1)); SAY("%s", b); P(lseek(fd, 0, SEEK_CUR)); P(preadv2(fd, w, 2, -1, 0)); P(lseek(fd, 0, SEEK_CUR));
    P(pwrite(fd, "x", 1, -1)); P(pread(fd, b, 1, -5)); P(pread(ro, b, 1, 1000)); P(read(wo, b, 1)); P(write(ro, b, 1)); P(write(99, b, 1)); P(read(fd, b, 0));
    P(ftruncate(fd, 7)); P(pwritev2(fd, v, 1, 0, RWF_APPEND)); show("f"); P(lseek(fd, 0, SEEK_SET)); P(pwritev2(fd, v, 1, -1, RWF_APPEND)); P(lseek(fd, 0, SEEK_CUR)); show("f");
    P(pwritev2(ap, v, 1, 0, 0x20 /* RWF_NOAPPEND */)); show("f"); P(pwrite(ap, "end", 3, 0)); show("f"); P(pwritev2(ap, v, 1, 0, 0x20 | RWF_APPEND));
    P(pwritev2(fd, v, 1, 0, RWF_DSYNC)); P(pwritev2(fd, v, 3, 0, RWF_SYNC)); P(preadv2(fd, w, 1, 0, RWF_HIPRI)); P(pwritev2(fd, v, 1, 0, 0x4000000));
    P(lseek(fd, -1, SEEK_SET)); P(lseek(fd, 0, 9)); P(lseek(fd, -2, SEEK_END)); P(lseek(fd, 100, SEEK_END)); P(write(fd, "far", 3)); show("f");
    P(lseek(fd, 0, SEEK_DATA)); P(lseek(fd, 1 << 20, SEEK_DATA)); P(lseek(fd, 0, SEEK_HOLE));
    P(ftruncate(ro, 0)); P(ftruncate(fd, -1)); P(truncate("f", 10)); P(truncate("none", 1)); P(truncate("f", -1)); P(truncate(".", 1)); show("f");
    P(fallocate(fd, 0, 0, 20)); show("f"); P(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 8192)); show("f"); P(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2, 3)); show("f");
    P(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 1)); P(fallocate(fd, 0, 0, 0)); P(fallocate(fd, 0, -1, 1)); P(fallocate(ro, 0, 0, 1)); P(posix_fallocate(fd, 0, 30)); show("f");
    P(fsync(fd)); P(fdatasync(ro)); P(sync_file_range(fd, 0, 10, 1)); P(syncfs(fd)); sync(); P(readahead(fd, 0, 10)); P(posix_fadvise(fd, 0, 10, POSIX_FADV_DONTNEED));
    /* copies */
    int to = open("g", O_RDWR | O_CREAT | O_TRUNC, 0644), p[2], null = open("/dev/null", O_RDWR); off_t i = 1, o = 5; loff_t li = 0, lo = 0;
    pipe(p); lseek(fd, 0, SEEK_SET);
    P(sendfile(to, fd, NULL, 4)); P(sendfile(to, fd, &i, 4)); SAY("%d", (int)i); show("g"); P(lseek(fd, 0, SEEK_CUR)); P(sendfile(p[1], fd, NULL, 5)); P(read(p[0], b, 60)); b[5] = 0; SAY("%s", b);
    P(sendfile(null, fd, NULL, 100)); P(sendfile(ro, fd, NULL, 1)); P(sendfile(to, wo, NULL, 1)); P(sendfile(to, 99, NULL, 1)); i = -1; P(sendfile(to, fd, &i, 1));
    li = 2; lo = 20; P(copy_file_range(fd, &li, to, &lo, 5, 0)); SAY("%d %d", (int)li, (int)lo); show("g"); li = 0; lo = 2; P(copy_file_range(fd, &li, fd, &lo, 5, 0)); P(copy_file_range(fd, &li, to, &lo, 5, 1));
    /* flags has 32 bits: a compiler may leave anything above them in the register */
    P(syscall(SYS_copy_file_range, fd, NULL, to, NULL, 2L, 1L << 32)); P(syscall(SYS_copy_file_range, fd, NULL, to, NULL, 2L, 1L << 32 | 1)); show("g");
    lseek(fd, 0, SEEK_SET); lseek(to, 0, SEEK_SET); P(copy_file_range(fd, NULL, to, NULL, 1000, 0)); show("g"); P(copy_file_range(fd, NULL, to, NULL, 1000, 0)); P(copy_file_range(fd, NULL, ap, NULL, 1, 0)); P(copy_file_range(fd, NULL, ro, NULL, 1, 0)); P(copy_file_range(fd, NULL, p[1], NULL, 1, 0));
    li = 0; P(splice(fd, &li, p[1], NULL, 6, 0)); SAY("%d", (int)li); P(splice(p[0], NULL, to, &lo, 6, 0)); SAY("%d", (int)lo); show("g"); P(splice(fd, NULL, to, NULL, 1, 0)); P(splice(fd, NULL, p[1], &lo, 1, 0));
    P(splice(p[0], NULL, to, NULL, 6, SPLICE_F_NONBLOCK)); P(write(p[1], "pipe", 4)); P(splice(p[0], NULL, ap, NULL, 4, 0)); P(close(p[1])); P(splice(p[0], NULL, to, NULL, 6, 0)); (void)o;
    P(open("t", O_RDWR | O_CREAT | O_TRUNC, 0444));
    P(unlink("f")); P(unlink("g")); P(unlink("t"));
    return 0;
}
