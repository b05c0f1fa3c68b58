/* An MPI program: the ranks share the files of a directory among them, and write one file together (MPI-IO) that has
 * a line for each: size, checksum (CRC-32), name.
 *
 *     mpicc -o sums sums.c
 *     sums /fb/input /fb/output/sums */
#include <dirent.h>
#include <errno.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 320 };

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* The line of one file, which ends at the same column for all files. */
static void sum(const char *dir, const char *name, char line[LINE])
{
    static unsigned char block[1 << 20];
    char path[4096], text[LINE + 1];
    uint32_t crc = UINT32_MAX;
    unsigned long long size = 0;
    size_t got;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail("open", path);
    while ((got = fread(block, 1, sizeof block, file)) > 0) {
        size += got;
        for (size_t n = 0; n < got; n++) {
            crc ^= block[n];
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
        }
    }
    if (ferror(file))
        fail("read", path);
    fclose(file);
    snprintf(text, sizeof text, "%20llu %08x %-289.289s\n", size, ~crc, name);
    memcpy(line, text, LINE);
}

int main(int count, char **words)
{
    int rank, ranks;
    struct dirent **names;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 3) {
        fprintf(stderr, "sums DIRECTORY RESULT\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int files = scandir(words[1], &names, is_visible, alphasort);
    if (files < 0)
        fail("list", words[1]);
    int first = (int)((long)files * rank / ranks), end = (int)((long)files * (rank + 1) / ranks);
    char *lines = malloc((size_t)(end - first) * LINE + 1);
    for (int n = first; n < end; n++)
        sum(words[1], names[n]->d_name, lines + (size_t)(n - first) * LINE);
    MPI_File file;
    if (MPI_File_open(MPI_COMM_WORLD, words[2], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file))
        fail("create", words[2]);
    MPI_Offset at = (MPI_Offset)first * LINE;
    if (MPI_File_write_at_all(file, at, lines, (end - first) * LINE, MPI_CHAR, MPI_STATUS_IGNORE))
        fail("write", words[2]);
    MPI_File_close(&file);
    printf("rank %d of %d: %d files\n", rank, ranks, end - first);
    MPI_Finalize();
    return 0;
}
