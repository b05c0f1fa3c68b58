/* A program that ends while its threads store to a mapped file: exit_mapped FILE
 *
 * Its exit code is that of exit, whatever the threads do. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 1 << 20, THREADS = 3 };
static volatile char *mapped;

static void *store(void *unused)
{
    (void)unused;
    for (unsigned i = 0;; i++)
        mapped[i * 4097u % LENGTH]++;
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, LENGTH))
        return 3;
    mapped = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return 4;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread, NULL, store, NULL))
            return 5;
    usleep(3000);
    exit(7);
}
