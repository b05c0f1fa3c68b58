/* Descriptors over a Unix socket: to a child, to another program, several at once, peeked, never received. */
#include "call.h"

static int send_fds(int s, int n, const int *fds, const char *text) {
    char control[256] = ""; struct iovec v = {(char *)text, strlen(text) + 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_RIGHTS; c->cmsg_len = CMSG_LEN(n * sizeof(int)); memcpy(CMSG_DATA(c), fds, n * sizeof(int));
    return sendmsg(s, &m, 0);
}

static int receive(int s, int *fds, int room, int flags) {
    char control[256], text[64]; struct iovec v = {text, sizeof text};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(room * sizeof(int))};
    int r = recvmsg(s, &m, flags), n = 0;
    if (r < 0) { perror("recvmsg"); return -1; }
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_type == SCM_RIGHTS) { n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); memcpy(fds, CMSG_DATA(c), n * sizeof(int)); }
    SAY("received [%s] with %d, flags %x", text, n, m.msg_flags);
    return n;
}

static void use(int fd) {
    char b[64] = ""; struct stat s;
    P(read(fd, b, 5)); SAY("[%s]", b); P(lseek(fd, 0, SEEK_CUR)); P(fstat(fd, &s)); P(s.st_size); P(fcntl(fd, F_GETFL)); P(fcntl(fd, F_GETFD)); P(write(fd, "W", 1)); P(lseek(fd, 0, SEEK_CUR));
}

int main(int argc, char **argv) {
    int s[2], got[8], n, st;
    if (argc == 2) { n = receive(atoi(argv[1]), got, 4, MSG_CMSG_CLOEXEC); if (n == 1) use(got[0]); return 0; }
    socketpair(AF_UNIX, SOCK_STREAM, 0, s);
    int fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0644), dir = open(".", O_RDONLY), path = open("f", O_PATH), null = open("/dev/null", O_RDWR);
    write(fd, "0123456789abcdefghij", 20); lseek(fd, 0, SEEK_SET);
    SAY("to itself"); P(send_fds(s[0], 1, &fd, "one")); n = receive(s[1], got, 4, 0); SAY("%d", got[0]); use(got[0]); P(lseek(fd, 0, SEEK_CUR)); P(close(got[0])); P(lseek(fd, 0, SEEK_CUR));
    SAY("several"); P(send_fds(s[0], 4, (int[]){dir, null, fd, path}, "four")); n = receive(s[1], got, 4, MSG_CMSG_CLOEXEC);
    for (int i = 0; i < n; i++) { struct stat t; fstat(got[i], &t); SAY("%d %o %d", got[i], t.st_mode & S_IFMT, fcntl(got[i], F_GETFD)); }
    P(openat(got[0], "f", O_RDONLY) >= 0); P(read(got[3], &n, 1)); for (int i = 0; i < 4; i++) close(got[i]);
    SAY("peeked"); P(send_fds(s[0], 1, &fd, "peek")); receive(s[1], got, 4, MSG_PEEK); use(got[0]); close(got[0]); receive(s[1], got, 4, 0); use(got[0]); close(got[0]);
    SAY("to a child, closed by the sender meanwhile"); lseek(fd, 2, SEEK_SET); int d = dup(fd); P(send_fds(s[0], 1, &d, "child")); close(d); fflush(stdout);
    if (fork() == 0) { receive(s[1], got, 4, 0); use(got[0]); _exit(0); } wait(&st); P(lseek(fd, 0, SEEK_CUR));
    SAY("from a child that has ended"); fflush(stdout);
    if (fork() == 0) { int g = open("g", O_RDWR | O_CREAT, 0644); write(g, "from the child", 14); lseek(g, 5, SEEK_SET); send_fds(s[0], 1, &g, "dead"); _exit(0); } wait(&st); receive(s[1], got, 4, 0); use(got[0]); close(got[0]);
    SAY("to another program"); lseek(fd, 1, SEEK_SET); P(send_fds(s[0], 1, &fd, "exec")); fflush(stdout);
    if (fork() == 0) { char a[12]; sprintf(a, "%d", s[1]); execl(argv[0], argv[0], a, NULL); _exit(1); } wait(&st); P(lseek(fd, 0, SEEK_CUR));
    SAY("too little room"); P(send_fds(s[0], 2, (int[]){fd, fd}, "two")); n = receive(s[1], got, 1, 0); for (int i = 0; i < n; i++) close(got[i]);
    SAY("unlinked, then never received"); int u = open("u", O_RDWR | O_CREAT, 0644); unlink("u"); P(send_fds(s[0], 1, &u, "unlinked")); close(u); P(send_fds(s[0], 1, (int[]){99}, "bad")); receive(s[1], got, 4, 0); P(write(got[0], "x", 1)); P(close(got[0]));
    SAY("many at once"); struct mmsghdr mm[3]; char control[3][64]; struct iovec v = {"m", 2}; memset(mm, 0, sizeof mm); memset(control, 0, sizeof control);
    for (int i = 0; i < 3; i++) { struct msghdr *m = &mm[i].msg_hdr; m->msg_iov = &v; m->msg_iovlen = 1; m->msg_control = control[i]; m->msg_controllen = CMSG_SPACE(4); struct cmsghdr *c = CMSG_FIRSTHDR(m); c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_RIGHTS; c->cmsg_len = CMSG_LEN(4); memcpy(CMSG_DATA(c), &fd, 4); }
    P(sendmmsg(s[0], mm, 3, 0)); for (int i = 0; i < 3; i++) { receive(s[1], got, 4, 0); P(lseek(got[0], i, SEEK_SET)); close(got[0]); } P(lseek(fd, 0, SEEK_CUR));
    SAY("in vain"); P(close(s[1])); signal(SIGPIPE, SIG_IGN); P(send_fds(s[0], 1, &fd, "none"));
    for (int i = 0; i < 3000; i++) { int p[2]; socketpair(AF_UNIX, SOCK_DGRAM, 0, p); if (send_fds(p[0], 1, &fd, "x") < 0) { SAY("%d %s", i, strerrorname_np(errno)); break; } receive_quiet: { char c[64], b[4]; struct iovec w = {b, 4}; struct msghdr m = {.msg_iov = &w, .msg_iovlen = 1, .msg_control = c, .msg_controllen = 64}; if (recvmsg(p[1], &m, 0) < 0) SAY("failed"); else close(*(int *)CMSG_DATA(CMSG_FIRSTHDR(&m))); } close(p[0]); close(p[1]); }
    P(close(fd)); P(rename("f", "h"));
    return 0;
}
