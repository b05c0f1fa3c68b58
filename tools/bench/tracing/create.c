// Makes N empty files in a directory, as mdtest does: create DIRECTORY PREFIX N.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char path[256];
    struct timespec begin, end;
    if (argc != 4 || chdir(argv[1]) != 0) {
        fprintf(stderr, "usage: create DIRECTORY PREFIX N\n");
        return 2;
    }
    int n = atoi(argv[3]);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s%d", argv[2], i);
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0 || close(fd) != 0) {
            perror(path);
            return 1;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.9f\n", (end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec) / 1e9);
    return 0;
}
