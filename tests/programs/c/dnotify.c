/* dnotify: signals when something changes in a directory. */
#include "call.h"

static volatile int count, number; static int expected;
static void on_signal(int s, siginfo_t *i, void *u) { count++; number = i->si_fd; }
/* Signals come before a call returns that causes them. */
#define DO(e) do { count = 0; number = -1; long r_ = (long)(e); int k; for (k = 0; k < 200 && count == 0 && r_ == -99; k++) usleep(1000); \
    SAY("%s: %s%s", #e, count ? "told" : "nothing", count && number != expected ? ", wrong descriptor" : ""); } while (0)
static int touch(const char *path) { return close(open(path, O_CREAT | O_WRONLY, 0644)); }

int main(void) {
    int f, d, pid; char b[99];
    struct sigaction sa = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART}; sigaction(SIGRTMIN + 1, &sa, 0); sigaction(SIGIO, &sa, 0); sigaction(SIGUSR1, &sa, 0);
    mkdir("d", 0755); mkdir("e", 0755); f = open("d/f", O_CREAT | O_RDWR, 0644); write(f, "abc", 3);
    P(fcntl(f, F_NOTIFY, DN_MODIFY)); expected = d = open("d", O_RDONLY);
    P(fcntl(d, F_GETSIG)); P(fcntl(d, F_SETSIG, SIGRTMIN + 1)); P(fcntl(d, F_GETSIG) == SIGRTMIN + 1); DO(touch("d/a"));
    P(fcntl(d, F_NOTIFY, DN_CREATE | DN_MULTISHOT)); P(fcntl(d, F_GETOWN) == getpid());
    DO(touch("d/b")); DO(touch("d/c")); DO(mkdir("d/s", 0755)); DO(unlink("d/c")); DO(rename("d/b", "d/c")); DO(rename("d/c", "e/c")); DO(rename("e/c", "d/c")); DO(link("d/c", "d/l")); DO(symlink("d/c", "d/y"));
    P(fcntl(d, F_NOTIFY, DN_DELETE | DN_MULTISHOT)); DO(touch("d/n")); DO(unlink("d/n")); DO(rmdir("d/s")); DO(write(f, "a", 1));
    P(fcntl(d, F_NOTIFY, 0)); DO(touch("d/n")); DO(unlink("d/n"));
    /* Told once. */
    P(fcntl(d, F_NOTIFY, DN_MODIFY)); DO(write(f, "a", 1)); DO(write(f, "a", 1)); P(fcntl(d, F_NOTIFY, DN_MODIFY)); DO(truncate("d/f", 9)); DO(truncate("d/f", 9));
    P(fcntl(d, F_NOTIFY, DN_ATTRIB)); DO(chmod("d/f", 0600)); P(fcntl(d, F_NOTIFY, DN_ATTRIB)); DO(chmod("d", 0700)); P(fcntl(d, F_NOTIFY, DN_ACCESS)); DO(pread(f, b, 1, 0)); P(fcntl(d, F_NOTIFY, DN_RENAME)); DO(rename("d/a", "d/b"));
    /* It is a directory as before. */
    struct stat s, t; P(fstat(d, &s)); P(stat("d", &t)); P(s.st_ino == t.st_ino && s.st_mode == t.st_mode); P(openat(d, "f", O_RDONLY) >= 0); P(CALL(217, d, b, sizeof b) > 0); P(fchdir(d)); P(access("f", F_OK)); P(chdir("..")); P(fcntl(d, F_GETFL) & O_ACCMODE);
    P(fcntl(d, F_SETSIG, 0)); P(fcntl(d, F_NOTIFY, DN_CREATE | DN_MULTISHOT)); DO(touch("d/io"));
    /* By another process; to one that asked to be told. */
    P(fcntl(d, F_SETSIG, SIGUSR1)); DO(({ if ((pid = fork()) == 0) _exit(touch("d/child")); wait(0); -99; })); DO(({ system("touch d/program"); -99; }));
    /* What a child does with its copy doesn't concern the parent. */
    DO(({ if ((pid = fork()) == 0) { close(d); _exit(0); } wait(0); 0; })); DO(touch("d/still"));
    int e = dup(d); DO(touch("d/dup")); close(e); P(close(d)); DO(touch("d/closed"));
    expected = d = open("d", O_RDONLY); P(fcntl(d, F_NOTIFY, DN_CREATE | DN_MULTISHOT)); DO(touch("d/again")); close(d); d = open("d/f", O_RDONLY); DO(touch("d/other")); P(pread(d, b, 1, 0));
    P(system("rm -r d e"));
    return 0;
}
