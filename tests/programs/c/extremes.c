/* Offsets at and beyond the largest ones, and flags that tmpfs doesn't support. */
#include "call.h"

int main(void) {
    char b[10] = "";
    struct iovec v = {b, 5};
    struct stat s;
    int f = open("f", O_CREAT | O_RDWR | O_TRUNC, 0644), w = open("f", O_WRONLY), e = open("e", O_CREAT | O_RDWR, 0644);
    P(write(f, "hello", 5)); P(preadv2(f, &v, 1, 0, RWF_NOWAIT)); P(pwritev2(f, &v, 1, 0, RWF_NOWAIT)); P(preadv2(f, &v, 1, -1, RWF_NOWAIT));
    P(pwritev2(f, &v, 1, -1, RWF_NOWAIT | RWF_DSYNC)); P(preadv2(f, &v, 0, 0, RWF_NOWAIT)); P(preadv2(f, &v, 1, -5, RWF_NOWAIT)); P(preadv2(w, &v, 1, 0, RWF_NOWAIT));
    P(preadv2(f, &v, 1, 0, RWF_HIPRI)); P(fstat(f, &s)); P(s.st_size);
    P(lseek(f, INT64_MAX, SEEK_SET)); P(lseek(f, INT64_MAX - 1, SEEK_SET)); P(lseek(f, 1, SEEK_CUR)); P(lseek(f, 1, SEEK_CUR)); P(lseek(f, INT64_MAX, SEEK_CUR));
    P(read(f, b, 1)); P(write(f, b, 1)); P(read(f, b, 0)); P(write(f, b, 0)); P(readv(f, &v, 1)); P(writev(f, &v, 1)); P(lseek(f, 0, SEEK_CUR));
    P(lseek(f, INT64_MAX - 5, SEEK_SET)); P(read(f, b, 5)); P(read(f, b, 6)); P(write(f, b, 6)); P(pread(f, b, 1, INT64_MAX)); P(pwrite(f, b, 1, INT64_MAX));
    P(lseek(f, INT64_MIN, SEEK_SET)); P(lseek(f, INT64_MAX, SEEK_END)); P(lseek(f, INT64_MAX - 5, SEEK_END)); P(lseek(f, INT64_MAX - 4, SEEK_END));
    P(lseek(f, -5, SEEK_END)); P(lseek(f, -6, SEEK_END)); P(lseek(f, INT64_MIN, SEEK_END)); P(lseek(f, 3, SEEK_SET)); P(lseek(f, -4, SEEK_CUR));
    P(lseek(f, INT64_MAX, SEEK_CUR)); P(lseek(f, INT64_MAX - 3, SEEK_CUR)); P(lseek(f, INT64_MIN, SEEK_CUR));
    P(lseek(f, 4, SEEK_DATA)); P(lseek(f, 5, SEEK_DATA)); P(lseek(f, 6, SEEK_DATA)); P(lseek(f, 4, SEEK_HOLE)); P(lseek(f, 5, SEEK_HOLE)); P(lseek(f, 6, SEEK_HOLE));
    P(lseek(f, INT64_MAX, SEEK_HOLE)); P(lseek(f, INT64_MAX, SEEK_DATA)); P(lseek(f, -1, SEEK_HOLE)); P(lseek(f, INT64_MIN, SEEK_DATA)); P(lseek(f, 0, SEEK_CUR));
    P(lseek(e, 0, SEEK_DATA)); P(lseek(e, 0, SEEK_HOLE)); P(lseek(e, 1, SEEK_HOLE)); P(lseek(f, 0, 5)); P(lseek(f, 0, -1));
    P(unlink("f")); P(unlink("e"));
    return 0;
}
