/* RLIMIT_FSIZE: short writes, then SIGXFSZ and EFBIG; inherited over exec. */
#include "call.h"
static int signals;
static void count(int s) { (void)s; signals++; }
int main(int argc, char **argv) {
    struct rlimit l = {10, RLIM_INFINITY};
    char b[32] = "0123456789abcdefghijklmnopqrstu";
    int fd = open("f", O_RDWR | O_CREAT, 0644), ap = open("f", O_RDWR | O_APPEND);
    signal(SIGXFSZ, count);
    if (argc == 1) P(setrlimit(RLIMIT_FSIZE, &l));
    P(ftruncate(fd, 8)); P(pwrite(fd, b, 20, 5)); P(signals); P(pwrite(fd, b, 1, 10)); P(signals); P(write(ap, b, 3)); P(signals);
    P(ftruncate(fd, 9)); P(write(ap, b, 3)); P(signals); P(ftruncate(fd, 11)); P(signals); P(truncate("f", 11)); P(signals); P(fallocate(fd, 0, 0, 11)); P(signals); P(fallocate(fd, 0, 0, 10));
    P(lseek(fd, 0, SEEK_SET)); P(write(fd, b, 30)); P(write(fd, b, 30)); P(signals); P(write(fd, b, 0)); P(signals);
    if (argc == 1) { if (fork() == 0) { execl(argv[0], argv[0], "again", NULL); _exit(1); } wait(NULL); }
    l.rlim_cur = RLIM_INFINITY; P(prlimit(0, RLIMIT_FSIZE, &l, NULL)); P(pwrite(fd, b, 20, 5)); P(ftruncate(fd, 0));
    l.rlim_cur = 5; P(prlimit(0, RLIMIT_FSIZE, &l, NULL)); signal(SIGXFSZ, SIG_DFL); fflush(stdout);
    if (argc == 1) { int s; if (fork() == 0) { pwrite(fd, b, 1, 5); _exit(1); } wait(&s); P(WIFSIGNALED(s) && WTERMSIG(s) == SIGXFSZ); }
    return 0;
}
