/* For the C programs of the cases c-*.sh: P prints a call and what came of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define P(e) do { errno = 0; long r_ = (long)(e); \
    printf("%s = %s%s%.0ld\n", #e, r_ < 0 ? strerrorname_np(errno) : "", r_ == 0 ? "0" : "", r_ < 0 ? 0 : r_); \
    fflush(stdout); } while (0)
#define SAY(...) do { printf(__VA_ARGS__); printf("\n"); fflush(stdout); } while (0)

/* Whether it runs in a pool. */
static inline int in_pool(void) { return getenv("FOREBAY_MOUNT") != NULL; }
/* A call with this number, which libc may not know. */
#define CALL(nr, ...) syscall(nr, ##__VA_ARGS__)
