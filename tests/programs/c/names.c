/* Paths: opening, links, attributes, directories; relative to descriptors, empty, by /proc, by openat2. */
#include "call.h"
#include <dirent.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <sched.h>

static int how2(int dir, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve) {
    struct open_how h = {flags, mode, resolve};
    int fd;
    // The kernel doesn't say where ".." leads below a root while anybody on the machine renames or mounts anything.
    for (int i = 0; (fd = CALL(437, dir, path, &h, sizeof h)) < 0 && errno == EAGAIN && i < 10000; i++) sched_yield();
    if (fd >= 0) close(fd);
    return fd < 0 ? fd : 0;
}

static const char *link_of(int fd) {
    static char a[64], b[PATH_MAX];
    sprintf(a, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(a, b, sizeof b - 1);
    b[n > 0 ? n : 0] = 0;
    char *w = getenv("WORK");
    return !strncmp(b, w, strlen(w)) ? b + strlen(w) : b;
}

static void opening(void) {
    P(mkdir("d", 0755)); P(mkdir("d/e", 0700)); P(open("d/f", O_CREAT | O_EXCL | O_RDWR, 0640)); P(open("d/f", O_CREAT | O_EXCL | O_RDWR, 0640));
    P(open("d", O_RDWR)); P(open("d", O_CREAT)); P(open("d/f/", O_RDONLY)); P(open("d/f/x", O_RDONLY)); P(open("none", O_RDONLY)); P(open("", O_RDONLY));
    P(open("d/f", O_DIRECTORY)); P(open("d/new/", O_CREAT | O_RDWR, 0644)); P(symlink("d/f", "l")); P(open("l", O_RDONLY | O_NOFOLLOW)); P(open("l", O_RDONLY));
    P(symlink("nowhere", "dang")); P(open("dang", O_CREAT | O_EXCL | O_RDWR, 0644)); P(open("dang", O_RDONLY)); P(open("dang", O_CREAT | O_RDWR, 0644)); P(access("nowhere", F_OK)); P(symlink("loop", "loop")); P(open("loop", O_RDONLY));
    P(creat("d/c", 0600)); P(openat(99, "d", O_RDONLY)); P(openat(3, "x", O_RDONLY)); P(close_range(3, 50, 0));
    char longname[300]; memset(longname, 'x', 299); longname[299] = 0; P(open(longname, O_RDONLY)); longname[255] = 0; P(open(longname, O_CREAT | O_WRONLY, 0644)); P(unlink(longname)); P(close(3));
}

static void unnamed(void) {
    char p[64];
    int fd = open("d", O_TMPFILE | O_RDWR, 0644); SAY("%d", fd); P(write(fd, "tmp", 3)); P(linkat(fd, "", AT_FDCWD, "t1", AT_EMPTY_PATH)); P(linkat(fd, "", AT_FDCWD, "t1", AT_EMPTY_PATH));
    sprintf(p, "/proc/self/fd/%d", fd); P(linkat(AT_FDCWD, p, AT_FDCWD, "t2", AT_SYMLINK_FOLLOW)); struct stat s; P(fstat(fd, &s)); P(s.st_nlink); P(linkat(AT_FDCWD, p, AT_FDCWD, "t3", 0)); close(fd);
    fd = open("d", O_TMPFILE | O_RDWR, 0644); sprintf(p, "/proc/self/fd/%d", fd); P(linkat(AT_FDCWD, p, AT_FDCWD, "t3", AT_SYMLINK_FOLLOW)); close(fd);
    fd = open("d", O_TMPFILE | O_EXCL | O_RDWR, 0644); P(linkat(fd, "", AT_FDCWD, "t4", AT_EMPTY_PATH)); close(fd); P(open("d", O_TMPFILE | O_RDONLY, 0644)); P(open("d/f", O_TMPFILE | O_RDWR, 0644)); P(open("none", O_TMPFILE | O_RDWR, 0644));
    fd = open("gone", O_CREAT | O_RDWR, 0644); unlink("gone"); P(linkat(fd, "", AT_FDCWD, "back", AT_EMPTY_PATH)); P(fstat(fd, &s)); P(s.st_nlink); close(fd);
    P(stat("t2", &s)); P(s.st_nlink); P(s.st_size); P(unlink("t1")); P(unlink("t2")); P(unlink("t3"));
}

static void by_proc(void) {
    char p[64], b[32] = ""; struct stat s, t;
    int fd = open("d/f", O_RDWR), d = open("d", O_RDONLY);
    P(write(fd, "hello", 5)); sprintf(p, "/proc/self/fd/%d", fd); int g = open(p, O_RDONLY); P(read(g, b, 9)); SAY("%s %s", b, link_of(g)); P(stat(p, &s)); P(lstat(p, &t)); P(S_ISREG(s.st_mode) && S_ISLNK(t.st_mode)); P(truncate(p, 3)); P(fstat(fd, &s)); P(s.st_size); P(chmod(p, 0600)); P(access(p, R_OK)); close(g);
    sprintf(p, "/dev/fd/%d", fd); g = open(p, O_RDWR | O_APPEND); P(g >= 0); P(write(g, "!", 1)); close(g);
    sprintf(p, "/proc/%d/fd/%d", getpid(), fd); g = open(p, O_RDONLY); P(g >= 0); P(read(g, b, 9)); SAY("%.4s", b); close(g); P(stat(p, &s)); P(s.st_size);
    sprintf(p, "/proc/thread-self/fd/%d", fd); P(stat(p, &s)); sprintf(p, "/proc/self/task/%d/fd/%d", getpid(), fd); P(stat(p, &s)); P(s.st_size);
    sprintf(p, "/proc/self/fd/%d/f", d); P(stat(p, &s)); P(s.st_size); P(access(p, R_OK)); sprintf(p, "/proc/self/fd/%d/../l", d); P(lstat(p, &s)); P(S_ISLNK(s.st_mode));
    P(stat("/proc/self/cwd", &s)); P(S_ISDIR(s.st_mode)); P(stat("/proc/self/cwd/d/f", &s)); P(s.st_size); P(open("/proc/self/cwd/d", O_RDONLY | O_DIRECTORY) >= 0); sprintf(p, "/proc/self/fd/%d", d); P(chdir(p)); P(access("f", F_OK)); P(chdir("/proc/self/cwd/..")); P(access("d/f", F_OK)); { char at[PATH_MAX], r[PATH_MAX + 32]; getcwd(at, sizeof at); snprintf(r, sizeof r, "/proc/self/root%s/d/f", at); P(stat(r, &s)); P(s.st_size); P(truncate(r, 3)); P(stat("d/f", &s)); P(s.st_size); }
    dup2(fd, 0); P(stat("/dev/stdin", &s)); P(s.st_size); g = open("/dev/stdin", O_RDONLY); P(g >= 0); b[0] = 0; P(read(g, b, 9)); close(g); P(open("/dev/stdin", O_RDONLY | O_NOFOLLOW)); SAY("%s", link_of(fd)); rename("d/f", "d/f2"); SAY("%s", link_of(fd)); rename("d/f2", "d/f");
    P(fork() == 0 ? (sprintf(p, "/proc/%d/fd/%d", getppid(), fd), g = open(p, O_RDONLY), b[0] = 0, _exit(g >= 0 && read(g, b, 9) == 4 ? 0 : 1), 0) : 0); int st; wait(&st); P(st);
    close_range(3, 50, 0);
}

static void restricted(void) {
    int d = open("d", O_RDONLY); char *work = getenv("WORK"), abs[PATH_MAX]; sprintf(abs, "%s/d/f", work);
    symlink("../d/f", "d/up"); symlink("e/../f", "d/in"); symlink(abs, "d/abs"); symlink("/f", "d/root"); symlink("/", "slash"); symlink("/proc/self/cwd", "magic");
    for (int r = 0; r <= 0x3f; r = r ? r * 2 : 1) {
        if (r == 0x20) break;
        SAY("resolve %x", r);
        P(how2(d, "f", 0, 0, r)); P(how2(d, "e/../f", 0, 0, r)); P(how2(d, "../d/f", 0, 0, r)); P(how2(d, "up", 0, 0, r)); P(how2(d, "in", 0, 0, r)); P(how2(d, "abs", 0, 0, r)); P(how2(d, "root", 0, 0, r)); P(how2(d, "/f", 0, 0, r));
        P(how2(d, "..", 0, 0, r)); P(how2(d, ".", 0, 0, r)); P(how2(d, "e/../..", 0, 0, r)); P(how2(AT_FDCWD, "l", 0, 0, r)); P(how2(AT_FDCWD, "slash", 0, 0, r)); if (r != 1) P(how2(AT_FDCWD, abs, 0, 0, r)); P(how2(d, "none", 0, 0, r)); P(how2(AT_FDCWD, "magic", O_PATH, 0, r)); P(how2(AT_FDCWD, "l", O_NOFOLLOW, 0, r)); P(how2(AT_FDCWD, "l", O_PATH | O_NOFOLLOW, 0, r)); P(how2(d, "new", O_CREAT | O_RDWR, 0600, r)); P(unlink("d/new"));
    }
    P(how2(d, "../l", 0, 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)); P(how2(d, "f", 0, 0, RESOLVE_BENEATH | RESOLVE_IN_ROOT)); P(how2(d, "f", 0, 0, 0x1000)); P(how2(d, "f", 0, 0644, 0)); P(how2(d, "f", O_CREAT | O_RDWR, 010000, 0)); P(how2(d, "f", 1ull << 40, 0, 0));
    struct { struct open_how h; uint64_t more; } big = {{0, 0, 0}, 0}; P(CALL(437, d, "f", &big, sizeof big) >= 0); big.more = 1; P(CALL(437, d, "f", &big, sizeof big)); P(CALL(437, d, "f", &big, 8));
    unlink("d/up"); unlink("d/in"); unlink("d/abs"); unlink("d/root"); unlink("slash"); unlink("magic"); close_range(3, 50, 0);
}

static void attributes(void) {
    int d = open("d", O_RDONLY), f = open("d/f", O_RDWR); struct stat s; struct statx x; struct timespec t[2] = {{1000, 5}, {2000, 7}}; struct timeval v[2] = {{3000, 1}, {4000, 2}}; struct utimbuf u = {5, 6};
    P(fchmodat(d, "f", 0604, 0)); P(fstat(f, &s)); SAY("%o", s.st_mode); P(CALL(452, f, "", 0611, AT_EMPTY_PATH)); P(fstat(f, &s)); SAY("%o", s.st_mode); P(CALL(452, d, "f", 0600, 0x1)); P(chmod("none", 0600)); P(CALL(452, AT_FDCWD, "l", 0600, AT_SYMLINK_NOFOLLOW));
    P(fchownat(d, "f", getuid(), getgid(), 0)); P(fchownat(f, "", getuid(), -1, AT_EMPTY_PATH)); P(fchownat(d, "", -1, -1, AT_EMPTY_PATH)); P(fchownat(d, "f", -1, -1, 0x8000)); P(lchown("l", -1, getgid())); P(chown("none", 1, 1));
    P(utimensat(d, "f", t, 0)); P(fstat(f, &s)); SAY("%ld.%ld %ld.%ld", s.st_atim.tv_sec, s.st_atim.tv_nsec, s.st_mtim.tv_sec, s.st_mtim.tv_nsec); t[0].tv_nsec = UTIME_OMIT; t[1].tv_sec = 9; P(futimens(f, t)); P(fstat(f, &s)); SAY("%ld %ld.%ld", s.st_atim.tv_sec, s.st_mtim.tv_sec, s.st_mtim.tv_nsec); t[1].tv_nsec = 2000000000; P(utimensat(d, "f", t, 0)); t[1].tv_nsec = 1; P(utimensat(AT_FDCWD, "l", t, AT_SYMLINK_NOFOLLOW)); P(lstat("l", &s)); P(s.st_mtim.tv_sec); P(utimensat(f, "", t, AT_EMPTY_PATH)); P(utimensat(d, "f", t, 0x10));
    P(utimes("d/f", v)); P(futimesat(d, "f", v)); P(CALL(261, f, NULL, v)); P(stat("d/f", &s)); SAY("%ld %ld", s.st_atim.tv_sec, s.st_mtim.tv_nsec); P(utime("d/f", &u)); P(stat("d/f", &s)); SAY("%ld %ld", s.st_atim.tv_sec, s.st_mtim.tv_sec); P(utime("d/f", NULL)); v[0].tv_usec = 1000000; P(utimes("d/f", v));
    P(statx(d, "f", 0, STATX_BASIC_STATS, &x)); SAY("%o %d", x.stx_mode, (int)x.stx_size); P(statx(f, "", AT_EMPTY_PATH, STATX_SIZE, &x)); P(statx(d, "", AT_EMPTY_PATH, STATX_SIZE, &x)); P(statx(d, "f", 0, 0x80000000u, &x)); P(statx(d, "f", AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, 0, &x)); P(statx(d, "f", 0x40000000, 0, &x)); P(statx(d, "", 0, 0, &x)); P(statx(AT_FDCWD, "", AT_EMPTY_PATH, 0, &x)); P(S_ISDIR(x.stx_mode));
    P(fstatat(d, "f", &s, 0)); P(fstatat(AT_FDCWD, "l", &s, AT_SYMLINK_NOFOLLOW)); P(S_ISLNK(s.st_mode)); P(fstatat(d, "", &s, 0)); P(fstatat(d, "f", &s, 0x40000000)); P(stat("d/f/", &s)); P(stat("d/.", &s)); P(fstatat(99, "f", &s, 0)); P(fstatat(f, "f", &s, 0)); P(fstatat(99, "/proc", &s, 0));
    P(faccessat(d, "f", R_OK, 0)); P(CALL(439, d, "f", R_OK, AT_EACCESS)); P(CALL(439, f, "", R_OK, AT_EMPTY_PATH)); P(access("d/f", 8)); P(CALL(439, d, "f", R_OK, 0x40000)); P(access("d/none", R_OK)); P(access("l/", F_OK)); P(access("d/f", X_OK) == 0 || errno == EACCES);
    P(symlinkat("there", d, "sl")); char b[10] = ""; P(readlinkat(d, "sl", b, 3)); SAY("%.3s", b); P(readlinkat(d, "sl", b, 0)); P(readlinkat(d, "f", b, 3)); P(unlinkat(d, "sl", 0)); P(symlink("", "x")); P(symlink("x", "d/f"));
    struct { uint64_t value; uint32_t size, flags; } xa = {(uint64_t)"val", 3, 0}, back = {(uint64_t)b, 10, 0};
    long r = CALL(463, d, "f", 0, "user.at", &xa, sizeof xa); int known = r == 0 || errno != ENOSYS; SAY("%d", known || r != 0);
    if (known) { r = CALL(464, d, "f", 0, "user.at", &back, sizeof back); char list[40]; long m = CALL(465, f, "", AT_EMPTY_PATH, list, sizeof list); long q = CALL(466, d, "f", 0, "user.at"), z = CALL(464, d, "f", 0, "user.at", &back, sizeof back); SAY("%ld %.3s %ld %s %ld %ld %s", r, b, m, list, q, z, strerrorname_np(errno)); }
    close_range(3, 50, 0);
}

static void names(void) {
    int d = open("d", O_RDONLY), e = open("d/e", O_RDONLY | O_DIRECTORY); struct stat s; char b[4096];
    P(mkdirat(d, "m", 0777)); P(mkdirat(d, "m", 0777)); P(mkdir("d/n/", 0755)); P(mkdir("none/x", 0755)); P(mkdir(".", 0755)); P(rmdir("d/n/.")); P(rmdir("d/n")); P(rmdir("d")); P(rmdir("d/f")); P(unlink("d")); P(unlinkat(d, "m", 0)); P(unlinkat(d, "m", AT_REMOVEDIR)); P(unlinkat(d, "f", AT_REMOVEDIR)); P(unlinkat(d, "f", 0x10)); P(rmdir("..") != 0);
    P(mknodat(d, "fifo", S_IFIFO | 0600, 0)); P(mknod("d/reg", 0644, 0)); P(stat("d/reg", &s)); SAY("%o", s.st_mode); P(mknod("d/sock", S_IFSOCK | 0644, 0)); P(open("d/sock", O_RDWR)); P(mknod("d/dir", S_IFDIR | 0644, 0)); P(unlink("d/fifo")); P(unlink("d/reg")); P(unlink("d/sock"));
    P(linkat(d, "f", d, "h", 0)); P(link("d/f", "d/h")); P(link("d", "dd")); P(link("l", "ll")); P(lstat("ll", &s)); P(S_ISLNK(s.st_mode)); P(linkat(AT_FDCWD, "l", AT_FDCWD, "lf", AT_SYMLINK_FOLLOW)); P(lstat("lf", &s)); P(S_ISREG(s.st_mode)); P(s.st_nlink); P(linkat(d, "f", d, "hh", 0x8)); P(unlink("ll")); P(unlink("lf"));
    P(renameat(d, "h", e, "moved")); P(renameat2(e, "moved", d, "f", RENAME_NOREPLACE)); P(renameat2(e, "moved", d, "c", RENAME_EXCHANGE)); P(renameat2(e, "moved", d, "c", RENAME_EXCHANGE | RENAME_NOREPLACE)); P(renameat2(e, "moved", d, "c", 0x100)); P(renameat2(e, "none", d, "c", RENAME_EXCHANGE)); P(rename("d", "d/e/x")); P(rename("d/e", "d")); P(rename("d/f", "d/e")); P(rename("d/e", "d/f")); P(rename("d/.", "x")); P(rename("d/e/moved", "d/h")); P(rename("d/h", "d/h")); P(unlink("d/h")); P(rename("none", "x")); P(rename("d/f", "none/x")); P(renameat2(d, "f", d, "w", RENAME_WHITEOUT) == 0 || errno == EINVAL || errno == EPERM); rename("d/w", "d/f"); unlink("d/w");
    P(fchdir(e)); P(getcwd(b, sizeof b) != NULL); SAY("%s", b + strlen(getenv("WORK"))); P(getcwd(b, 2) == NULL ? -1 : 0); P(chdir("..")); P(access("f", F_OK)); P(chdir("f")); P(chdir("none")); P(fchdir(d)); P(chdir("..")); P(chdir("/")); P(getcwd(b, sizeof b) != NULL); SAY("%s", b); P(chdir(getenv("WORK"))); P(chdir("l"));
    mkdir("gone", 0755); P(chdir("gone")); P(rmdir("../gone")); P(getcwd(b, sizeof b) == NULL ? -1 : 0); P(open("x", O_CREAT | O_RDWR, 0644)); P(chdir("..")  == 0 || errno == ENOENT); P(chdir(getenv("WORK")));
    DIR *dir = opendir("d"); int n = 0; while (readdir(dir)) n++; SAY("%d", n); rewinddir(dir); n = 0; while (readdir(dir)) n++; SAY("%d", n); closedir(dir); P(CALL(217, d, b, 10)); P(CALL(78, d, b, sizeof b) > 0); P(lseek(d, 0, SEEK_SET)); P(CALL(217, open("d/f", O_RDONLY), b, sizeof b));
    struct statfs sf; P(statfs("d/f", &sf)); P(sf.f_namelen); P(statfs("none", &sf)); close_range(3, 50, 0);
}

int main(void) { umask(022); opening(); unnamed(); by_proc(); restricted(); attributes(); names(); return 0; }
