/* What a pool refuses, and how. Outside, where it may be allowed or need root, the same lines are printed. */
#include "call.h"
#include <sys/mount.h>

static void expect(const char *what, long result, int error) {
    int e = errno, ok = !in_pool() || (result < 0 && e == error);
    SAY("%s: %s", what, ok ? "as it should be" : result < 0 ? strerrorname_np(e) : "allowed");
}

static long mount_at(const char *at, const char *type) { return CALL(165, "none", at, type, 0, 0); }

#define REFUSED(e) (errno = 0, expect(#e, (long)(e), EOPNOTSUPP))

int main(void) {
    char here[PATH_MAX], b[256]; getcwd(here, sizeof here);
    int d = open(".", O_RDONLY), f = open("f", O_RDWR | O_CREAT, 0644), mount;
    struct { unsigned bytes; int type; char h[128]; } handle = {128, 0, ""};
    if (!in_pool()) d = f = -1;
    const char *path = in_pool() ? "f" : "/nothing";
    if (!in_pool()) strcpy(here, "/nothing");
    REFUSED(CALL(303, d, path, &handle, &mount, 0)); REFUSED(CALL(303, AT_FDCWD, path, &handle, &mount, 0)); REFUSED(CALL(304, f, &handle, 0));
    errno = 0; expect("chroot", CALL(161, here), geteuid() ? EPERM : EOPNOTSUPP); errno = 0; expect("chroot to nothing", CALL(161, "nothing"), ENOENT); errno = 0; expect("chroot to a file", CALL(161, path), in_pool() ? ENOTDIR : ENOENT); REFUSED(CALL(301, -1, 1, 2ull, d, path)); REFUSED(CALL(428, d, path, 0)); REFUSED(CALL(433, d, path, 0)); REFUSED(CALL(429, -1, "", d, path, 0)); REFUSED(CALL(442, d, path, 0, 0, 0)); REFUSED(CALL(467, d, path, 0, 0, 0));
    REFUSED(CALL(155, here, here)); REFUSED(CALL(179, 0, here, 0, 0)); REFUSED(CALL(443, f, 0, 0, 0)); if (in_pool()) REFUSED(CALL(163, here)); else SAY("CALL(163, here): as it should be"); REFUSED(CALL(167, path, 0)); REFUSED(CALL(168, path)); REFUSED(CALL(468, d, path, b, 24, 0)); REFUSED(CALL(469, d, path, b, 24, 0)); REFUSED(CALL(451, f, b, b, 0));
    REFUSED(ioctl(f, 0x40049409 /* FICLONE */, f)); REFUSED(fallocate(f, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    errno = 0; expect("io_uring_setup", CALL(425, 4, b), ENOSYS);
    errno = 0; expect("tee", CALL(276, f, f, 1, 0), EINVAL);
    /* Mounting: for root what the kernel says where it can't, for others that they mayn't. */
    mkdir("m", 0755); P(mount_at("m/none", "tmpfs")); P(mount_at("m", "no-such-type")); P(mount_at("f/x", "tmpfs")); P(umount2("m", 0)); P(umount2("m/none", 0));
    if (in_pool()) P(mount_at("m", "tmpfs")); else SAY("mount_at(\"m\", \"tmpfs\") = EOPNOTSUPP");
    if (fork() == 0) { if (getuid() == 0 && setresuid(1, 1, 1) < 0) _exit(1); P(mount_at("m", "tmpfs")); P(mount_at("m", "no-such-type")); P(umount2("m", 0)); exit(0); } wait(0); rmdir("m");
    P(unlink("f"));
    return 0;
}
