"""Jobs of four ranks under MPICH and Open MPI, spread over the nodes by their ranks."""
import os
import shutil

from harness import Skipped, case
from .nodes import NODES, POOL, tidy, up

PROGRAM = r'''
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define BLOCK 60000
#define BLOCKS 48
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "rank %d, line %d: ", rank, __LINE__); perror(#x); MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)
static int rank, ranks;
static unsigned char block[BLOCK], got[BLOCK];
static void fill(int n) {
  unsigned x = n * 2654435761u + 1;
  for (int i = 0; i < BLOCK; i++) { x = x * 1664525u + 1013904223u; block[i] = x >> 24; }
}
static void write_all(int fd, int n, off_t at) { fill(n); CHECK(pwrite(fd, block, BLOCK, at) == BLOCK); }
static void read_all(int fd, int n, off_t at) {
  fill(n); memset(got, 0, BLOCK);
  CHECK(pread(fd, got, BLOCK, at) == BLOCK);
  for (int i = 0; i < BLOCK; i++) if (got[i] != block[i]) {
    fprintf(stderr, "rank %d: block %d, byte %d: %d, not %d\n", rank, n, i, got[i], block[i]); MPI_Abort(MPI_COMM_WORLD, 1);
  }
}
int main(int argc, char **argv) {
  MPI_Init(&argc, &argv); MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  CHECK(ranks == 4); CHECK(!chdir(argv[1]));
  printf("rank %d on node %s\n", rank, getenv("FOREBAY_NODE") ? getenv("FOREBAY_NODE") : "?");
  char name[40];
  /* a file each, read by all others in turn */
  sprintf(name, "own%d", rank);
  int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644); CHECK(fd >= 0);
  for (int n = 0; n < 20; n++) write_all(fd, rank * 1000 + n, (off_t)n * BLOCK);
  CHECK(!close(fd)); MPI_Barrier(MPI_COMM_WORLD);
  for (int k = 1; k < ranks; k++) {
    int other = (rank + k) % ranks; struct stat st;
    sprintf(name, "own%d", other); CHECK(!stat(name, &st)); CHECK(st.st_size == 20L * BLOCK);
    fd = open(name, O_RDONLY); CHECK(fd >= 0);
    for (int n = 0; n < 20; n++) read_all(fd, other * 1000 + n, (off_t)n * BLOCK);
    CHECK(!close(fd));
  }
  /* one file, strided: every block is somebody else's neighbour; each reads all */
  fd = open("shared", O_CREAT | O_RDWR, 0644); CHECK(fd >= 0);
  for (int n = rank; n < BLOCKS; n += ranks) write_all(fd, 7000 + n, (off_t)n * BLOCK);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int n = 0; n < BLOCKS; n++) read_all(fd, 7000 + n, (off_t)n * BLOCK);
  MPI_Barrier(MPI_COMM_WORLD);
  /* segments, and over what others wrote */
  for (int n = 0; n < BLOCKS / ranks; n++) write_all(fd, 9000 + rank * 100 + n, (off_t)(rank * (BLOCKS / ranks) + n) * BLOCK);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int r = 0; r < ranks; r++) for (int n = 0; n < BLOCKS / ranks; n++) read_all(fd, 9000 + r * 100 + n, (off_t)(r * (BLOCKS / ranks) + n) * BLOCK);
  CHECK(!close(fd));
  /* records appended by all */
  fd = open("log", O_CREAT | O_WRONLY | O_APPEND, 0644); CHECK(fd >= 0);
  for (int n = 0; n < 100; n++) { char line[64]; int k = sprintf(line, "rank %d record %3d\n", rank, n); CHECK(write(fd, line, k) == k); }
  CHECK(!close(fd)); MPI_Barrier(MPI_COMM_WORLD);
  struct stat st; CHECK(!stat("log", &st)); CHECK(st.st_size == 400L * 18);
  MPI_Finalize(); return 0;
}
'''


def job(t, kind, *options):
    missing = [c for c in ("mpicc." + kind, "mpiexec." + kind) if not shutil.which(c)]
    if missing:
        raise Skipped("not installed: " + " ".join(missing))
    source = os.path.join(t.work, "job.c")
    with open(source, "w") as f:
        f.write(PROGRAM)
    program = os.path.join(t.work, "job")
    t.command(["mpicc." + kind, "-O1", "-o", program, source], timeout=60)
    up(t)
    env = {"FOREBAY_POOL": POOL}
    launcher = ["mpiexec." + kind, *options, "-n", "4"]
    for turn in range(2):
        t.exec(POOL, "mkdir", "/fb/turn%d" % turn)
        r = t.command([*launcher, t.forebay, "exec", "--", program, "/fb/turn%d" % turn], env=env, timeout=60)
        if NODES == 4:
            r.prints(*["rank %d on node %d" % (k, k) for k in range(4)])
    t.exec(POOL, "bash", "-c", "sort /fb/turn0/log | uniq | wc -l").prints("^400$")
    tidy(t)


@case(120)
def mpich(t):
    job(t, "mpich")


@case(120)
def openmpi(t):
    # The options are for small machines and root; they have nothing to do with pools.
    job(t, "openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader,tcp")
