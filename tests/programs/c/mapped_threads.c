/* Stores to a mapping of a file of another node, while other threads of the same process write to the same page by calls and
 * bring it up to date: no store may go. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <time.h>
static volatile int over; static int fd; static volatile unsigned long *m;
static void *other(void *a) { char b[8] = "12345678"; long n = 0; while (!over) { pwrite(fd, b, 8, 2048 + 8 * (n++ % 100)); pread(fd, b, 8, 0); msync((void *)m, 4096, MS_SYNC | MS_INVALIDATE); } printf("other %ld\n", n); return 0; }
int main(int c, char **v) {
  fd = open(v[1], O_RDWR); m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); if (m == MAP_FAILED) { perror("mmap"); return 1; }
  pthread_t t[2]; for (int i = 0; i < 2; i++) pthread_create(t + i, 0, other, 0);
  long bad = 0, n = 0; time_t end = time(0) + 4;
  while (time(0) < end) { n++; for (int k = 0; k < 100; k++) { m[k] = n * 1000 + k; } for (int r = 0; r < 200; r++) for (int k = 0; k < 100; k++) if (m[k] != n * 1000 + k) { bad++; m[k] = n * 1000 + k; } }
  over = 1; for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  printf("%ld rounds, %ld stores reverted\n", n, bad); return bad != 0; }
