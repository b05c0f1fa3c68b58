// One operation on files of a directory, N times: what run.py counts instructions of.
// Usage: ops DIRECTORY OPERATION N. The directory and FILES files are made first.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 200

static char path[256], other[256], block[4096];
static const char *dir;

static void need(int ok)
{
    if (!ok) {
        perror(path);
        exit(1);
    }
}

static const char *name(const char *kind, int i)
{
    snprintf(path, sizeof path, "%s/%s%d", dir, kind, i);
    return path;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: ops DIRECTORY OPERATION N\n");
        return 2;
    }
    dir = argv[1];
    const char *op = argv[2];
    int n = atoi(argv[3]);
    struct stat st;
    need(mkdir(dir, 0755) == 0);
    for (int i = 0; i < FILES; i++)
        need(close(open(name("f", i), O_CREAT | O_EXCL | O_WRONLY, 0644)) == 0);
    int file = open(name("f", 0), O_RDWR);
    need(file >= 0);
    for (int i = 0; i < 16; i++)
        need(pwrite(file, block, sizeof block, i * 4096L) == 4096);

    for (int i = 0; i < n; i++) {
        if (!strcmp(op, "stat")) {
            need(stat(name("f", i % FILES), &st) == 0);
        } else if (!strcmp(op, "open-close")) {
            need(close(open(name("f", i % FILES), O_RDONLY)) == 0);
        } else if (!strcmp(op, "fstat")) {
            need(fstat(file, &st) == 0);
        } else if (!strcmp(op, "list")) {
            // Per entry: every FILES-th turn lists all.
            if (i % FILES == 0) {
                DIR *d = opendir(dir);
                need(d != NULL);
                while (readdir(d))
                    ;
                closedir(d);
            }
        } else if (!strcmp(op, "write-4k")) {
            need(pwrite(file, block, 4096, i % 16 * 4096L) == 4096);
        } else if (!strcmp(op, "read-4k")) {
            need(pread(file, block, 4096, i % 16 * 4096L) == 4096);
        } else if (!strcmp(op, "write-100")) {
            need(pwrite(file, block, 100, i % 16 * 4096L) == 100);
        } else if (!strcmp(op, "create-unlink")) {
            need(close(open(name("g", i), O_CREAT | O_EXCL | O_WRONLY, 0644)) == 0);
            need(unlink(path) == 0);
        } else if (!strcmp(op, "rename")) {
            strcpy(other, name(i % 2 ? "h" : "f", 1));
            need(rename(other, name(i % 2 ? "f" : "h", 1)) == 0);
        } else if (!strcmp(op, "mkdir-rmdir")) {
            need(mkdir(name("d", i), 0755) == 0 && rmdir(path) == 0);
        } else {
            fprintf(stderr, "ops: no operation '%s'\n", op);
            return 2;
        }
    }
    return 0;
}
