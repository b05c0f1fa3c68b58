/* Byte-range locks over dup, fork and exec; their owners. */
#include "call.h"

static int lock(int fd, int cmd, int type, long start, long len) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    return fcntl(fd, cmd, &l);
}
/* Who is in the way, seen by another process (OFD: -1). */
static void seen(const char *what) {
    fflush(stdout);
    if (fork() == 0) {
        int fd = open("f", O_RDWR);
        struct flock l = {.l_type = F_WRLCK};
        fcntl(fd, F_GETLK, &l);
        SAY("%s: %s %d..%d by %s", what, l.l_type == F_UNLCK ? "free" : l.l_type == F_RDLCK ? "read" : "write", (int)l.l_start, (int)l.l_len, l.l_type == F_UNLCK ? "-" : l.l_pid == getppid() ? "parent" : l.l_pid == -1 ? "description" : "other");
        _exit(0);
    }
    wait(NULL);
}

int main(int argc, char **argv) {
    char a[12]; int st;
    if (argc == 3) {
        int fd = atoi(argv[2]);
        SAY("-- new program"); seen("after exec");
        if (argv[1][0] == 'o') { P(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 20)); seen("grown"); P(lock(fd, F_OFD_SETLK, F_UNLCK, 0, 0)); }
        else if (argv[1][0] == 'p') { P(close(open("f", O_RDONLY))); }
        seen("then"); return 0;
    }
    int fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0644), ce;
    sprintf(a, "%d", fd);
    P(lock(fd, F_SETLK, F_WRLCK, 0, 10)); seen("process"); fflush(stdout);
    SAY("-- forked child has none"); if (fork() == 0) { P(lock(fd, F_SETLK, F_WRLCK, 0, 10)); P(lock(fd, F_SETLK, F_WRLCK, 10, 10)); _exit(0); } wait(&st); seen("still");
    SAY("-- a child that executes has none"); fflush(stdout); if (vfork() == 0) { execl(argv[0], argv[0], "v", a, NULL); _exit(1); } wait(&st); seen("still");
    P(lock(fd, F_SETLK, F_UNLCK, 0, 0));
    SAY("-- the process's own exec"); fflush(stdout); if (fork() == 0) { int g = open("f", O_RDWR); P(lock(g, F_SETLK, F_RDLCK, 100, 10)); sprintf(a, "%d", g); execl(argv[0], argv[0], "p", a, NULL); _exit(1); } wait(&st);
    SAY("-- exec closes one"); fflush(stdout); if (fork() == 0) { lock(fd, F_SETLK, F_WRLCK, 50, 5); ce = open("f", O_RDONLY | O_CLOEXEC); sprintf(a, "%d", fd); execl(argv[0], argv[0], "x", a, NULL); _exit(1); } wait(&st);
    P(lock(fd, F_SETLK, F_WRLCK, 0, 10)); P(close(open("f", O_RDONLY))); seen("after any close");
    SAY("-- description"); P(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 5)); seen("description"); int d = dup(fd), e = open("f", O_RDWR);
    P(lock(d, F_OFD_SETLK, F_WRLCK, 0, 10)); P(lock(e, F_OFD_SETLK, F_RDLCK, 0, 5)); P(lock(e, F_SETLK, F_RDLCK, 0, 5)); P(close(d)); seen("dup closed"); P(close(e)); seen("other closed");
    fflush(stdout); if (fork() == 0) { P(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 15)); _exit(0); } wait(&st); seen("grown by child");
    fflush(stdout); if (fork() == 0) { close(fd); sleep(0); _exit(0); } wait(&st); seen("child closed");
    SAY("-- given to a program"); fflush(stdout); sprintf(a, "%d", fd); if (vfork() == 0) { execl(argv[0], argv[0], "o", a, NULL); _exit(1); } wait(&st); seen("unlocked there");
    P(lock(fd, F_OFD_SETLK, F_RDLCK, 1, 1)); int p[2]; pipe(p); fflush(stdout);
    if (fork() == 0) { close(p[1]); char c; read(p[0], &c, 1); _exit(0); } close(p[0]); P(close(fd)); seen("kept by the child"); close(p[1]); wait(&st); seen("gone with it");
    fd = open("f", O_RDWR | O_CLOEXEC); P(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 1)); fflush(stdout); if (fork() == 0) { sprintf(a, "%d", fd); close(fd); execl(argv[0], argv[0], "x", "0", NULL); _exit(1); } wait(&st); P(close(fd)); seen("end");
    P(lock(fd, F_SETLK, F_RDLCK, 0, 1)); fd = open("f", O_RDONLY); P(lock(fd, F_SETLK, F_WRLCK, 0, 1)); P(lock(fd, F_OFD_SETLK, F_RDLCK, 0, 1)); P(lock(fd, F_SETLK, 77, 0, 1)); P(lock(fd, F_SETLK, F_RDLCK, -1, 1)); P(lock(fd, F_SETLK, F_RDLCK, 5, -3));
    struct flock bad = {.l_type = F_RDLCK, .l_pid = 7}; P(fcntl(fd, F_OFD_SETLK, &bad)); P(unlink("f"));
    return 0;
}
