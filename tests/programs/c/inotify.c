/* inotify: every event, in order, for one process and several. With an argument: reads events of that descriptor. */
#include "call.h"
#include <sys/inotify.h>
#include <pthread.h>

static const char *NAMES[] = {"ACCESS", "MODIFY", "ATTRIB", "CLOSE_WRITE", "CLOSE_NOWRITE", "OPEN", "MOVED_FROM", "MOVED_TO", "CREATE", "DELETE", "DELETE_SELF", "MOVE_SELF", 0, "UNMOUNT", "Q_OVERFLOW", "IGNORED"};
static uint32_t cookies[64]; static int known;
/* Cookies by the order in which they come. */
static int cookie(uint32_t c) { for (int k = 0; k < known; k++) if (cookies[k] == c) return k + 1; cookies[known++] = c; return known; }

static int print(const char *b, int n) {
    int count = 0;
    for (const char *p = b; p < b + n; count++) {
        const struct inotify_event *e = (const void *)p;
        printf(" [%d", e->wd);
        for (int k = 0; k < 16; k++) if (e->mask >> k & 1) printf(" %s", NAMES[k]);
        if (e->mask & IN_ISDIR) printf(" ISDIR");
        if (e->cookie) printf(" #%d", cookie(e->cookie));
        if (e->len) { int l = strlen(e->name); printf(" %.*s", l > 20 ? 5 : l, e->name); if (l > 20) printf("(%d)", l); printf("/%u", e->len); }
        printf("]"); p += sizeof *e + e->len;
    }
    return count;
}
static char buffer[1 << 16] __attribute__((aligned(8)));
static int I;
/* All that there is to read. */
static void show_of(int fd, const char *what) {
    int n; struct pollfd p = {fd, POLLIN, 0};
    printf("%s:", what);
    while (poll(&p, 1, 0) > 0 && (n = read(fd, buffer, sizeof buffer)) > 0) print(buffer, n);
    printf("\n"); fflush(stdout);
}
static void show(const char *what) { show_of(I, what); }
#define DO(e) do { long r_ = (long)(e); if (r_ < 0) printf("%s: ", strerrorname_np(errno)); show(#e); } while (0)
static int touch(const char *path) { return close(open(path, O_CREAT | O_WRONLY, 0644)); }
static int put(const char *path, const char *text) { int f = open(path, O_CREAT | O_WRONLY | O_APPEND, 0644); write(f, text, strlen(text)); return close(f); }

static void events(void) {
    char b[4096]; int f, n;
    mkdir("d", 0755); I = inotify_init1(IN_NONBLOCK);
    P(inotify_add_watch(I, "d", IN_ALL_EVENTS));
    DO(f = open("d/f", O_CREAT | O_RDWR, 0644));
    P(inotify_add_watch(I, "d/f", IN_ALL_EVENTS));
    DO(write(f, "x", 1)); DO(write(f, "", 0)); DO(pread(f, b, 9, 0)); DO(pread(f, b, 9, 9)); DO(close(f));
    DO(f = open("d/f", O_RDWR | O_TRUNC)); DO(ftruncate(f, 0)); DO(fallocate(f, 0, 0, 10)); DO(fchmod(f, 0600)); DO(fsetxattr(f, "user.a", "b", 1, 0)); DO(fremovexattr(f, "user.a"));
    struct iovec v[2] = {{"ab", 2}, {"cd", 2}}; DO(writev(f, v, 2)); DO(lseek(f, 0, SEEK_SET)); v[0].iov_base = b; v[1].iov_base = b + 9; DO(readv(f, v, 2)); DO(fsync(f));
    DO(rename("d/f", "d/g")); DO(write(f, "a", 1)); DO(link("d/g", "d/h")); DO(unlink("d/g")); DO(write(f, "a", 1)); DO(close(f));
    DO(f = open("d/h", O_RDONLY)); DO(unlink("d/h")); DO(pread(f, b, 1, 0)); DO(close(f));
    DO(mkdir("d/s", 0755)); P(inotify_add_watch(I, "d/s", IN_ALL_EVENTS));
    DO(f = open("d/s", O_RDONLY | O_DIRECTORY)); DO(CALL(217, f, b, sizeof b) > 0); DO(close(f));
    DO(rename("d/s", "d/t")); DO(chmod("d/t", 0700)); DO(rmdir("d/t"));
    DO(symlink("x", "d/l")); DO(unlink("d/l")); DO(mkfifo("d/fifo", 0600)); DO(unlink("d/fifo")); DO(mknod("d/n", S_IFREG | 0600, 0)); DO(unlink("d/n"));
    DO((touch("d/a"), touch("d/b"))); P(inotify_add_watch(I, "d/a", IN_ALL_EVENTS)); P(inotify_add_watch(I, "d/b", IN_ALL_EVENTS));
    DO(rename("d/a", "d/b"));
    struct timespec t[2] = {{1, 0}, {2, 0}};
    DO(utimensat(AT_FDCWD, "d/b", t, 0)); t[0].tv_nsec = UTIME_OMIT; DO(utimensat(AT_FDCWD, "d/b", t, 0)); t[0].tv_nsec = 0; t[1].tv_nsec = UTIME_OMIT; DO(utimensat(AT_FDCWD, "d/b", t, 0));
    DO(utime("d/b", 0)); DO(chown("d/b", getuid(), getgid())); DO(truncate("d/b", 3)); DO(setxattr("d/b", "user.a", "b", 1, 0)); DO(removexattr("d/b", "user.a"));
    DO(mkdir("d/x", 0755)); DO(mkdir("d/y", 0755)); P(inotify_add_watch(I, "d/x", IN_ALL_EVENTS)); P(inotify_add_watch(I, "d/y", IN_ALL_EVENTS));
    DO(CALL(316, AT_FDCWD, "d/x", AT_FDCWD, "d/y", 2)); DO(touch("d/x/in")); DO(rename("d/x/in", "d/y/out")); DO(rename("d/y/out", "d/b2")); DO(rename("d/b2", "d/x/in")); DO(unlink("d/x/in")); DO(rename("d/x", "d/y"));
    DO(f = open("d/b", O_RDONLY)); DO(n = dup(f)); DO(close(f)); DO(close(n)); DO(f = open("d/b", O_PATH)); DO(close(f));
    DO(f = open("d/b", O_RDONLY | O_EXCL | O_CREAT)); DO(open("d/none", O_RDONLY)); DO(unlink("d/none"));
    DO(stat("d/b", (struct stat *)b)); DO(access("d/b", R_OK)); DO(chmod("d", 0700));
    int o = open("other", O_CREAT | O_RDWR, 0600), i = open("d/b", O_RDWR); write(o, "12345", 5); show("two files");
    off_t zero = 0; DO(sendfile(i, o, &zero, 5)); DO(copy_file_range(i, &zero, o, 0, 3, 0)); close(o); close(i); show("closed");
    DO(rename("d/b", "outside")); DO(chmod("outside", 0600)); DO(rename("outside", "d/back")); DO(unlink("d/back"));
    DO(rmdir("d/y")); DO(rmdir("d")); unlink("other"); close(I);
}

static void masks(void) {
    int f; I = inotify_init1(IN_NONBLOCK); mkdir("m", 0755); touch("m/f"); symlink("f", "m/l");
    P(inotify_add_watch(I, "m", IN_CREATE)); DO(touch("m/1")); P(inotify_add_watch(I, "m", IN_DELETE | IN_MASK_ADD)); DO(touch("m/2")); DO(unlink("m/2")); P(inotify_add_watch(I, "m", IN_DELETE)); DO(touch("m/3")); DO(unlink("m/3"));
    P(inotify_add_watch(I, "m", IN_DELETE | IN_MASK_CREATE)); P(inotify_add_watch(I, "m", IN_MASK_ADD | IN_MASK_CREATE | IN_OPEN)); P(inotify_add_watch(I, "m/f", IN_ONLYDIR | IN_OPEN)); P(inotify_add_watch(I, "m", IN_ONLYDIR | IN_DELETE));
    P(inotify_add_watch(I, "m/none", IN_OPEN)); P(inotify_add_watch(I, "m", 0)); P(inotify_add_watch(-1, "m", IN_OPEN)); P(inotify_add_watch(0, "m", IN_OPEN)); P(inotify_add_watch(I, "m/f/g", IN_OPEN)); P(inotify_add_watch(I, (char *)8, IN_OPEN)); P(inotify_add_watch(I, "", IN_OPEN));
    P(inotify_add_watch(I, "m/l", IN_ALL_EVENTS | IN_DONT_FOLLOW)); DO(unlink("m/l")); symlink("f", "m/l"); P(inotify_add_watch(I, "m/l", IN_OPEN)); DO(close(open("m/f", O_RDONLY)));
    P(inotify_rm_watch(I, 2)); P(inotify_rm_watch(I, 3)); P(inotify_rm_watch(I, 99)); P(inotify_rm_watch(0, 1)); P(inotify_rm_watch(-1, 1)); DO(close(open("m/f", O_RDONLY)));
    P(inotify_add_watch(I, "m/f", IN_ONESHOT | IN_MODIFY)); DO(close(open("m/f", O_RDONLY))); DO(put("m/f", "1")); DO(put("m/f", "2"));
    P(inotify_add_watch(I, "m", IN_MODIFY | IN_CLOSE | IN_EXCL_UNLINK)); f = open("m/f", O_RDWR); unlink("m/f"); show("unlinked"); DO(write(f, "a", 1)); DO(close(f));
    P(inotify_add_watch(I, "m", IN_MODIFY | IN_CLOSE)); f = open("m/f", O_RDWR | O_CREAT, 0600); unlink("m/f"); DO(write(f, "a", 1)); DO(close(f));
    P(inotify_rm_watch(I, 1)); DO(touch("m/1")); P(inotify_add_watch(I, "m", IN_ALL_EVENTS)); DO(put("m/1", "a"));
    /* Two who watch the same. */
    int J = inotify_init1(IN_NONBLOCK), K = inotify_init1(IN_NONBLOCK); P(inotify_add_watch(J, "m", IN_CREATE)); P(inotify_add_watch(K, "m/1", IN_CLOSE_WRITE)); put("m/1", "b"); touch("m/4");
    show("first"); show_of(J, "second"); show_of(K, "third"); close(J); DO(unlink("m/4")); close(K);
    /* Watched along with what is not of the pool. */
    char *outer = getenv("OUTER"), path[PATH_MAX]; snprintf(path, sizeof path, "%s/beside", outer);
    P(inotify_add_watch(I, outer, IN_CREATE | IN_DELETE | IN_MOVE)); show("outside"); touch(path); touch("m/5"); unlink(path); show("both"); DO(unlink("m/5"));
    close(I); DO(touch("m/5")); P(system("rm -r m"));
}

static void sizes(void) {
    char name[256], path[300]; struct pollfd p = {0, POLLIN, 0}; int n, rest;
    I = inotify_init1(IN_NONBLOCK); p.fd = I; mkdir("z", 0755); touch("z/f"); inotify_add_watch(I, "z", IN_CREATE | IN_DELETE | IN_MOVE); inotify_add_watch(I, "z/f", IN_MODIFY | IN_ATTRIB);
    P(read(I, buffer, 4096)); put("z/f", "a"); P(read(I, buffer, 15)); P(read(I, buffer, 0)); P(read(I, buffer, 16)); P(read(I, buffer, 16));
    touch("z/abc"); P(read(I, buffer, 16)); P(read(I, buffer, 31)); P(read(I, (char *)8, 32) < 0); touch("z/def"); P((n = read(I, buffer, 32)) > 0 && n == 32 && print(buffer, n)); 
    /* Several, as many as fit. */
    for (int k = 0; k < 9; k++) { snprintf(path, sizeof path, "z/n%d", k); touch(path); }
    while (poll(&p, 1, 0) > 0 && (n = read(I, buffer, 100)) > 0) { print(buffer, n); if (ioctl(I, FIONREAD, &rest) < 0 || (rest > 0) != (poll(&p, 1, 0) > 0)) SAY("FIONREAD: %d", rest); } SAY("");
    for (int l = 1; l < 256; l += l < 232 && l > 16 ? 33 : 1) {
        memset(name, 'a' + l % 26, l); name[l] = 0; snprintf(path, sizeof path, "z/%s", name); touch(path); rename(path, "z/short"); unlink("z/short");
        int room = 16 + (l + 16) / 16 * 16; printf("%d %d:", l, room); n = read(I, buffer, room); if (n < 0) printf(" %s", strerrorname_np(errno)); else print(buffer, n);
        show("");
    }
    struct iovec v[3] = {{buffer, 16}, {buffer + 16, 16}, {buffer + 32, 16}}; put("z/f", "b"); chmod("z/f", 0600); P((n = readv(I, v, 3)) < 0 ? -1 : print(buffer, n)); show("rest");
    /* Equal ones in a row are one. */
    for (int k = 0; k < 5; k++) put("z/f", "x"); show("same"); for (int k = 0; k < 3; k++) { put("z/f", "x"); chmod("z/f", 0600 + k % 2); } show("in turn");
    /* More than are kept. */
    FILE *limit = fopen("/proc/sys/fs/inotify/max_queued_events", "r"); int most = 0, all = 0, over = 0; fscanf(limit, "%d", &most); fclose(limit);
    if (most <= 20000) for (int k = 0; k < most / 2 + 100; k++) { truncate("z/f", k); chmod("z/f", 0600); }
    while ((n = read(I, buffer, sizeof buffer)) > 0) for (char *q = buffer; q < buffer + n; all++) { struct inotify_event *e = (void *)q; if (e->mask & IN_Q_OVERFLOW) { over++; if (e->wd != -1 || q + sizeof *e != buffer + n) SAY("overflow in the midst"); } q += sizeof *e + e->len; }
    if (most > 20000) { all = most; over = 1; }
    SAY("%d more than kept, %d overflow", all - most, over); put("z/f", "after"); show("after");
    close(I); P(system("rm -r z"));
}

static int told[2]; static void on_alarm(int s) { write(told[1], "", 1); }
static void *blocked(void *at) { int n = read(I, buffer, sizeof buffer); printf("thread:"); print(buffer, n); SAY(""); return 0; }

static void several(const char *self) {
    int pid, n, status, e, to[2]; char b[99];
    mkdir("p", 0755); I = inotify_init(); inotify_add_watch(I, "p", IN_CLOSE_WRITE | IN_DELETE); 
    struct pollfd p = {I, POLLIN, 0}; P(poll(&p, 1, 0));
    /* Who waits is woken. */
    if ((pid = fork()) == 0) { put("p/by-child", "x"); _exit(0); } n = read(I, buffer, sizeof buffer); printf("read:"); print(buffer, n); SAY(""); wait(0);
    if ((pid = fork()) == 0) { put("p/by-child", "x"); _exit(0); } P(poll(&p, 1, 20000)); show("poll"); wait(0);
    e = epoll_create1(0); struct epoll_event ev = {EPOLLIN | EPOLLET, {0}}; P(epoll_ctl(e, EPOLL_CTL_ADD, I, &ev));
    if ((pid = fork()) == 0) { put("p/by-child", "x"); _exit(0); } P(epoll_wait(e, &ev, 1, 20000)); show("epoll"); wait(0); P(epoll_wait(e, &ev, 1, 0));
    if ((pid = fork()) == 0) { put("p/by-child", "x"); _exit(0); } fd_set s; FD_ZERO(&s); FD_SET(I, &s); struct timeval tv = {20, 0}; P(select(I + 1, &s, 0, 0, &tv)); show("select"); wait(0);
    /* Programs of others. */
    P(system("echo 1 > p/shell; rm p/shell")); show("shell"); P(system("cp p/by-child p/copy && mv p/copy p/moved && rm p/moved")); show("coreutils");
    /* Children that inherit it, also by exec. */
    pipe(to); fflush(stdout);
    if ((pid = fork()) == 0) { read(to[0], b, 1); show("in the child"); exit(0); } put("p/by-parent", "x"); write(to[1], "", 1); waitpid(pid, &status, 0); SAY("%d", status);
    if ((pid = fork()) == 0) { sprintf(b, "%d", I); execl(self, self, b, NULL); _exit(1); } put("p/for-exec", "x"); waitpid(pid, &status, 0); SAY("%d", status);
    if ((pid = fork()) == 0) { inotify_add_watch(I, "p", IN_CREATE | IN_MASK_ADD); close(I); _exit(0); } waitpid(pid, &status, 0); DO(touch("p/of-both"));
    n = dup(I); close(I); I = n; DO(touch("p/by-dup")); P(dup2(I, 77)); close(I); I = p.fd = 77; DO(touch("p/by-dup2"));
    if ((pid = fork()) == 0) { close(I); _exit(0); } waitpid(pid, &status, 0); DO(touch("p/closed-in-child"));
    /* Signals. */
    pipe(told); struct sigaction sa = {.sa_handler = on_alarm}; sigaction(SIGALRM, &sa, 0); struct itimerval it = {{0, 20000}, {0, 20000}}, off = {{0, 0}, {0, 0}}; setitimer(ITIMER_REAL, &it, 0); P(read(I, buffer, sizeof buffer)); setitimer(ITIMER_REAL, &off, 0);
    fcntl(told[0], F_SETFL, O_NONBLOCK); while (read(told[0], b, 1) > 0); fcntl(told[0], F_SETFL, 0);
    /* Made when a handler has run on top of the waiting read. */
    sa.sa_flags = SA_RESTART; sigaction(SIGALRM, &sa, 0); if ((pid = fork()) == 0) { read(told[0], b, 1); mkdir("p/late", 0755); rmdir("p/late"); _exit(0); }
    setitimer(ITIMER_REAL, &it, 0); n = read(I, buffer, sizeof buffer); setitimer(ITIMER_REAL, &off, 0); printf("restarted: %d\n", n > 0); waitpid(pid, &status, 0); while (poll(&p, 1, 0) > 0) read(I, buffer, sizeof buffer); SAY("%d", status);
    pthread_t t; inotify_add_watch(I, "p", IN_DELETE); touch("p/late"); pthread_create(&t, 0, blocked, 0); unlink("p/late"); pthread_join(t, 0); inotify_add_watch(I, "p", IN_CREATE | IN_DELETE | IN_CLOSE_WRITE);
    /* Many processes: nothing is lost, and each one's are in order. */
    for (int k = 0; k < 4; k++) if (fork() == 0) { for (int j = 0; j < 100; j++) { sprintf(b, "p/%d.%d", k, j); touch(b); unlink(b); } _exit(0); } while (wait(0) > 0);
    int next[4] = {0}, wrong = 0, count = 0; fcntl(I, F_SETFL, O_NONBLOCK);
    while ((n = read(I, buffer, sizeof buffer)) > 0) for (char *q = buffer; q < buffer + n; count++) { struct inotify_event *v = (void *)q; int k, j; if (sscanf(v->name, "%d.%d", &k, &j) == 2) { if (v->mask == IN_CREATE) wrong += j != next[k]; if (v->mask == IN_DELETE) wrong += j != next[k]++; } q += sizeof *v + v->len; }
    SAY("%d events, %d wrong", count, wrong);
    for (int k = 0; k < 100; k++) { sprintf(b, "p/dir%d", k); mkdir(b, 0755); if (inotify_add_watch(I, b, IN_CREATE) < 0) SAY("%d: %s", k, strerrorname_np(errno)); } show_of(I, "directories") ; 
    for (int k = 0; k < 100; k += 9) { sprintf(b, "p/dir%d/in", k); touch(b); } show("in directories");
    close(I); P(system("rm -r p"));
}

int main(int argc, char **argv) {
    signal(SIGALRM, SIG_DFL);
    if (argc > 1) { I = atoi(argv[1]); struct pollfd p = {I, POLLIN, 0}; poll(&p, 1, 20000); show("after exec"); return 0; }
    char self[PATH_MAX]; self[readlink("/proc/self/exe", self, sizeof self - 1)] = 0; setvbuf(stdout, 0, _IOLBF, 0);
    SAY("== events"); events(); SAY("== masks"); masks(); SAY("== sizes"); sizes(); SAY("== several"); several(self);
    return 0;
}
