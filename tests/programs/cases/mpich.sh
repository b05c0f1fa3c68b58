# Two ranks write one shared file through POSIX and through MPI-IO, and read each other's part.
# needs: mpicc.mpich mpiexec.mpich
# timeout: 90
set -euo pipefail
cat > shared.c <<'C'
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define BLOCK 50000
#define BLOCKS 40
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%d: line %d: ", rank, __LINE__); perror(#x); MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)
static int rank, ranks; static char block[BLOCK], got[BLOCK];
static void fill(int n) { for (int i = 0; i < BLOCK; i++) block[i] = (char)(n * 31 + i % 251); }
int main(int argc, char **argv) {
  MPI_Init(&argc, &argv); MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  /* strided: every block is somebody else's neighbour */
  int fd = open("strided", O_CREAT | O_RDWR, 0644); CHECK(fd >= 0);
  for (int n = rank; n < BLOCKS; n += ranks) { fill(n); CHECK(pwrite(fd, block, BLOCK, (off_t)n * BLOCK) == BLOCK); }
  MPI_Barrier(MPI_COMM_WORLD);
  for (int n = 0; n < BLOCKS; n++) { fill(n); CHECK(pread(fd, got, BLOCK, (off_t)n * BLOCK) == BLOCK); CHECK(!memcmp(got, block, BLOCK)); }
  CHECK(!close(fd));
  /* one file each, read by the other */
  char name[40]; sprintf(name, "rank%d", rank); FILE *f = fopen(name, "w"); CHECK(f);
  for (int i = 0; i < 1000; i++) fprintf(f, "%d of %d\n", i, rank);
  CHECK(!fclose(f)); MPI_Barrier(MPI_COMM_WORLD);
  sprintf(name, "rank%d", (rank + 1) % ranks); struct stat st; CHECK(!stat(name, &st)); if (rank == 0) printf("%ld\n", (long)st.st_size);
  /* appended by all */
  fd = open("appended", O_CREAT | O_WRONLY | O_APPEND, 0644); CHECK(fd >= 0);
  for (int i = 0; i < 200; i++) { int n = sprintf(name, "rank %d line %d\n", rank, i); CHECK(write(fd, name, n) == n); }
  CHECK(!close(fd)); MPI_Barrier(MPI_COMM_WORLD);
  /* MPI-IO: independent, collective, with a view */
  MPI_File m; MPI_Status s;
  CHECK(MPI_File_open(MPI_COMM_WORLD, "mpiio", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &m) == MPI_SUCCESS);
  fill(rank); CHECK(MPI_File_write_at_all(m, (MPI_Offset)rank * BLOCK, block, BLOCK, MPI_CHAR, &s) == MPI_SUCCESS);
  MPI_File_sync(m); MPI_Barrier(MPI_COMM_WORLD);
  fill((rank + 1) % ranks); CHECK(MPI_File_read_at(m, (MPI_Offset)((rank + 1) % ranks) * BLOCK, got, BLOCK, MPI_CHAR, &s) == MPI_SUCCESS); CHECK(!memcmp(got, block, BLOCK));
  MPI_Datatype t; MPI_Type_vector(100, 10, 10 * ranks, MPI_CHAR, &t); MPI_Type_commit(&t);
  CHECK(MPI_File_set_view(m, 200000 + rank * 10, MPI_CHAR, t, "native", MPI_INFO_NULL) == MPI_SUCCESS);
  fill(rank); CHECK(MPI_File_write_all(m, block, 1000, MPI_CHAR, &s) == MPI_SUCCESS); MPI_Offset size; MPI_File_get_size(m, &size); if (rank == 0) printf("%ld\n", (long)size);
  MPI_File_close(&m); MPI_Finalize(); return 0;
}
C
mpicc.mpich -O1 -o shared shared.c
timeout 60 mpiexec.mpich -n 2 ./shared; timeout 60 mpiexec.mpich -n 3 "$PWD/shared"
sha256sum strided mpiio; sort appended | sha256sum; rm shared appended
