// Small answers of the kernel that programs rely on: which lock is named first, what is left of a
// removed directory, which error comes before EXDEV, whether two descriptors are one file.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define P(call)                                                                                \
    ({                                                                                         \
        errno = 0;                                                                             \
        long r = (long)(call);                                                                 \
        printf("%s: %ld %s\n", #call, r < 0 ? -1 : r, r < 0 ? strerrorname_np(errno) : "");    \
    })

static int file(const char *name) { return open(name, O_CREAT | O_RDWR, 0644); }

static void names(const char *outside) {
    char missing[200], there[200], in_missing[200];
    snprintf(there, sizeof there, "%s/answers", outside);
    snprintf(missing, sizeof missing, "%s/no-such-name", outside);
    snprintf(in_missing, sizeof in_missing, "%s/no-such-name/x", outside);
    close(file("f")), close(file(there)), mkdir("d", 0755), symlink("d", "ld");
    int f = file("f");
    P(link("", "n")), P(link("f", "")), P(linkat(77, "f", AT_FDCWD, "n", 0));
    P(linkat(AT_FDCWD, "f", 77, "n", 0)), P(linkat(AT_FDCWD, "f", f, "n", 0));
    P(rename("", "n")), P(rename("f", "")), P(renameat(77, "f", AT_FDCWD, "n"));
    P(renameat(AT_FDCWD, "f", f, "n"));
    // Errors of the path outside the pool come before EXDEV.
    printf("rename into a directory that is missing: %d\n", rename("f", in_missing) ? errno : 0);
    printf("link of what is missing: %d\n", link(missing, "n") ? errno : 0);
    printf("link to a name that is there: %d\n", link("f", there) ? errno : 0);
    P(rmdir("ld/")), P(unlink("ld/")), P(rename("ld/", "lz")), P(mkdir("ld/", 0755));
    P(rmdir("d/")), P(open("ld", O_RDONLY | O_NOFOLLOW | O_DIRECTORY)), P(creat("f/", 0644));
    P(open("f", O_CREAT | O_DIRECTORY | O_RDWR, 0644)), P(setxattr("f", "user.", "1", 1, 0));
    close(f), unlink(there);
}

static void locks(void) {
    int f = file("locked");
    for (int i = 3; i > 0; i--)
        fcntl(f, F_SETLK, &(struct flock){F_WRLCK, SEEK_SET, 20 * i, 5});
    if (fork() == 0) {
        for (long at = 0, n = 0; n < 5; n++) {
            struct flock k = {F_WRLCK, SEEK_SET, at, 0};
            if (fcntl(f, F_GETLK, &k) || k.l_type == F_UNLCK) break;
            printf("lock of %ld at %ld\n", (long)k.l_len, (long)k.l_start);
            at = k.l_start + k.l_len;
        }
        fflush(stdout), _exit(0);
    }
    wait(0), close(f);
}

static void removed(void) {
    char bytes[4096];
    struct stat s;
    mkdir("gone", 0755);
    int d = open("gone", O_RDONLY), back = open(".", O_RDONLY);
    rmdir("gone");
    P(fstat(d, &s)), P((long)s.st_nlink), P(syscall(SYS_getdents64, d, bytes, sizeof bytes));
    P(fchdir(d)), P(stat(".", &s)), P((long)s.st_nlink), P(stat("..", &s)), P(stat("../f", &s));
    P(stat("x", &s)), P(open("x", O_CREAT | O_WRONLY, 0644)), P((long)getcwd(bytes, 4096));
    P(chdir("..")), P(stat("f", &s)), P(fchdir(back));
    close(d), close(back);
}

// A removed directory that is open, by `at` and a path or by the descriptor.
static void removed_but_open(int at) {
    char bytes[4096];
    struct stat s;
    struct timespec t[2] = {{1000, 0}, {2000, 5}};
    int o;
#define SHOW() (fstat(at, &s), printf("mode %o, links %d, times %ld %ld\n", s.st_mode, (int)s.st_nlink, (long)s.st_atime, (long)s.st_mtime))
    P(fstatat(at, ".", &s, 0)), P(fstatat(at, "./..", &s, 0)), P(fstatat(at, "../f", &s, 0));
    P(fstatat(at, "", &s, AT_EMPTY_PATH)), P(fstatat(at, "x", &s, 0)), P(fstatat(at, "../none", &s, 0));
    P(faccessat(at, ".", R_OK, 0)), P(faccessat(at, "..", R_OK, 0)), P(futimens(at, t)), SHOW();
    P(fchmod(at, 0700)), SHOW(), P(fchmodat(at, ".", 0711, 0)), SHOW();
    P(syscall(452, at, "", 0701, AT_EMPTY_PATH)), SHOW(), P(utimensat(at, ".", t, 0)), P(futimens(at, t));
    P(fchown(at, -1, -1)), P(fchown(at, getuid(), getgid())), P(fchownat(at, ".", getuid(), getgid(), 0));
    P(fchownat(at, "", getuid(), getgid(), AT_EMPTY_PATH)), P((s.st_uid == getuid()));
    P(fsetxattr(at, "user.a", "123", 3, 0)), P(fgetxattr(at, "user.a", bytes, 100)), P(flistxattr(at, bytes, 100));
    P(fsetxattr(at, "user.a", "1", 1, XATTR_CREATE)), P(fsetxattr(at, "user.b", "1", 1, XATTR_REPLACE));
    P(fgetxattr(at, "user.b", bytes, 100)), P(fremovexattr(at, "user.a")), P(fremovexattr(at, "user.a"));
    P((o = openat(at, ".", O_RDONLY)) < 0), P(fchmod(o, 0750)), SHOW(), P(fchdir(o)), P(close(o));
    P((o = openat(at, ".", O_RDONLY | O_DIRECTORY)) < 0), P(close(o)), P((o = openat(at, ".", O_PATH)) < 0);
    P(fstat(o, &s)), P(close(o)), P((o = openat(at, "..", O_RDONLY)) < 0), P(fstatat(o, "f", &s, 0)), P(close(o));
    P(openat(at, ".", O_RDWR)), P(openat(at, "x", O_CREAT | O_RDWR, 0600)), P(openat(at, ".", O_CREAT | O_RDWR, 0600));
    P(mkdirat(at, "x", 0700)), P(mkdirat(at, ".", 0700)), P(symlinkat("f", at, "l")), P(linkat(AT_FDCWD, "../f", at, "n", 0));
    P(unlinkat(at, "x", 0)), P(unlinkat(at, ".", AT_REMOVEDIR)), P(unlinkat(at, "x", AT_REMOVEDIR));
    P(renameat(at, "x", at, "y")), P(readlinkat(at, ".", bytes, 100)), P(lseek(at, 0, SEEK_SET));
    P(syscall(SYS_getdents64, at, bytes, sizeof bytes));
}

static void removed_in_use(void) {
    char bytes[100];
    struct stat s;
    struct timespec t[2] = {{1000, 0}, {2000, 5}};
    int o, back = open(".", O_RDONLY);
    for (int way = 0; way < 3; way++) {
        printf("removed directory, %s\n", way == 0 ? "open" : way == 1 ? "replaced by a rename" : "in a child");
        mkdir("gone", 0755), mkdir("other", 0755);
        int d = open("gone", O_RDONLY);
        way == 1 ? rename("other", "gone") : rmdir("gone"), fflush(stdout);
        if (way < 2 || fork() == 0) removed_but_open(d), fflush(stdout), way < 2 ? (void)0 : _exit(0);
        if (way == 2) wait(0), fstat(d, &s), printf("mode in the parent: %o\n", s.st_mode);
        fchdir(back), close(d), rmdir("gone"), rmdir("other");
    }
    puts("removed working directory");
    mkdir("gone", 0755), chdir("gone"), rmdir("../gone");
    P(stat(".", &s)), P((long)s.st_nlink), P(stat("", &s)), P(access(".", X_OK)), P(chmod(".", 0750));
    P(stat(".", &s)), P((long)s.st_mode), P(chown(".", -1, -1)), P(utimensat(AT_FDCWD, ".", t, 0)), P(stat(".", &s));
    P((long)s.st_mtime), P(setxattr(".", "user.w", "12", 2, 0)), P(getxattr(".", "user.w", bytes, 100));
    P((o = open(".", O_RDONLY)) < 0), P(fstat(o, &s)), P((long)s.st_mode), P(fchmod(o, 0700)), P(stat(".", &s));
    P((long)s.st_mode), P(close(o)), P((o = open("./", O_PATH)) < 0), P(close(o)), P((o = open("../f", O_RDONLY)) < 0);
    P(close(o)), P(chdir(".")), P(mkdir("x", 0755)), P(rmdir(".")), P((long)getcwd(bytes, 100)), P(chdir(".."));
    P(stat("f", &s)), fchdir(back), close(back);
}

static int same(int a, int pid, int b) { return syscall(SYS_kcmp, getpid(), pid, 0, a, b); }

static void descriptors(void) {
    int a = file("a"), b = file("b"), c = dup(a), again = file("a"), ends[2];
    (void)!pipe(ends);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]), (void)!read(ends[0], &byte, 1), _exit(0);
    }
    printf("one file: %d%d%d, ", !same(a, getpid(), c), !same(a, getpid(), b), !same(a, getpid(), again));
    printf("a child's: %d%d%d\n", !same(a, child, a), !same(a, child, b), !same(a, child, again));
    int pidfd = syscall(SYS_pidfd_open, child, 0), got = syscall(SYS_pidfd_getfd, pidfd, b, 0);
    (void)!write(b, "by the parent", 13);
    printf("taken from a child: %d at %ld\n", got >= 0, (long)lseek(got, 0, SEEK_CUR));
    close(ends[1]), wait(0), close(pidfd), close(got);
    P(fcntl(a, 1028)), P(fcntl(again, 1028));  // F_CREATED_QUERY
    int no_way = open("a", 3);
    P(read(no_way, &c, 1)), P(write(no_way, &c, 1)), P(ftruncate(no_way, 0));
    close(a), close(b), close(c), close(again), close(no_way);
    struct sockaddr_un to = {AF_UNIX, "sock"};
    int inet = socket(AF_INET, SOCK_STREAM, 0), f = file("f");
    P(bind(inet, (void *)&to, sizeof to)), P(bind(f, (void *)&to, sizeof to)), P(access("sock", 0));
    P(listen(f, 1)), P(accept(f, 0, 0)), P(connect(f, (void *)&to, sizeof to));
    close(inet), close(f);
}

static void times(void) {
    struct stat before, after;
    struct timespec moment = {0, 20000000};
    stat("f", &before), nanosleep(&moment, 0);
    P(chown("f", -1, -1)), stat("f", &after);
    printf("another change time: %d\n", memcmp(&before.st_ctim, &after.st_ctim, sizeof after.st_ctim) != 0);
    fflush(stdout);
    chmod("f", 0666);
    if (geteuid() != 0) {  // what root sees as another user
        puts("open(\"f\", O_RDONLY | O_NOATIME): -1 EPERM");
    } else if (fork() == 0) {
        // The directories above needn't let others in.
        (void)!setresuid(-1, 12345, -1);
        P(open("f", O_RDONLY | O_NOATIME));
        fflush(stdout), _exit(0);
    }
    while (wait(0) > 0);
}


static void memory(void) {
    int f = file("mapped");
    (void)!ftruncate(f, 8192);
    char *at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    P(mlock(at, 4096)), P(madvise(at, 4096, MADV_REMOVE)), P(munlock(at, 4096));
    P(madvise(at, 4096, MADV_REMOVE));
    char *none = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    P(syscall(SYS_clone3, none, 88)), P(syscall(SYS_clone3, 8, 88));
    // As much as there is of a buffer is read and written.
    char *two = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(two + 4096, 4096);
    P(pwrite(f, two + 4090, 100, 0)), P(pread(f, two + 4090, 100, 0));
    munmap(at, 8192), close(f);
}

int main(int n, char **a) {
    (void)n;
    setvbuf(stdout, 0, _IOLBF, 0);
    names(a[1]), locks(), removed(), removed_in_use(), descriptors(), times(), memory();
    return 0;
}
