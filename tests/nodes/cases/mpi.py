"""Jobs of four ranks under MPICH and Open MPI, spread over the nodes by their ranks."""
import os
import shutil

from harness import Skipped, case
from .namespaces import COUNT, Networks
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


def up_by_ranks(t, kind, *options):
    """Each rank is a node; then programs, and the end."""
    missing = [c for c in ("mpiexec." + kind,) if not shutil.which(c)]
    if missing:
        raise Skipped("not installed: " + " ".join(missing))
    env = {"FOREBAY_POOL": POOL}

    def launch(*words, rc=0):
        return t.command(["mpiexec." + kind, *options, "-n", "4", t.forebay, *words], env=env, rc=rc, timeout=40)
    start = ["up", "--mpi", "--media", "memory:64M"]
    r = launch(*start).prints("^pool 'p' is up: 4 nodes")
    t.ok(r.out.count("\n") == 1, "more than a line: " + r.told())
    nodes = t.fb("status", "--json", env=env).json()["nodes"]
    t.ok([n["state"] for n in nodes] == ["up"] * 4, str(nodes))
    # The key of the start is nowhere.
    for n in nodes:
        with open(n["dir"] + "/plan.json") as f:
            plan = f.read()
        t.ok("ranks" not in plan.split('"how"')[1][:20].lower() and "reach" not in plan, plan)
    launch("exec", "--", "bash", "-c", "echo $FOREBAY_NODE > /fb/on$FOREBAY_NODE")
    r = launch("exec", "--", "bash", "-c", "echo all: $(cat /fb/on*)")
    t.ok(r.out.splitlines() == ["all: 0 1 2 3"] * 4, r.told())
    # The existing pool is left alone, and all ranks end.
    r = launch(*start, rc=None)
    # MPICH kills the ranks as soon as one has failed, and may lose their output.
    t.ok(r.rc != 0 and (kind == "mpich" or "exists already" in r.err), r.told())
    t.exec(POOL, "cat", "/fb/on3").prints("^3$")
    t.fb("node", "restart", "2", env=env, rc=None)
    t.fb("node", "kill", "2", env=env)
    t.fb("node", "restart", "2", env=env)
    t.fb("fsck", env=env)
    t.fb("down", env=env)
    t.nothing_left("down")
    if kind == "mpich":
        # A rank that says nothing: no waiting for ever, and nothing is left.
        r = t.command(["mpiexec.mpich", "-n", "3", t.forebay, *start, "--within", "2", ":", "-n", "1", "sleep", "30"],
                      env=env, rc=None, timeout=20)
        # The output of the first rank to give up may be lost when the others end.
        t.ok(r.rc != 0 and r.seconds < 10, r.told())
        t.nothing_left("a start without a rank")


@case(90)
def mpich_up(t):
    up_by_ranks(t, "mpich")


@case(90)
def openmpi_up(t):
    up_by_ranks(t, "openmpi", "--allow-run-as-root", "--oversubscribe")


@case(90)
def mpich_networks(t):
    """Ranks on networks of their own: only the launcher has a shell there."""
    if not shutil.which("mpiexec.mpich"):
        raise Skipped("not installed: mpiexec.mpich")
    nets = Networks(t)
    try:
        nets.make()
        nets.ip("addr", "add", nets.net + ".254/24", "dev", nets.bridge)
        launcher = ["mpiexec.mpich", "-launcher", "ssh", "-launcher-exec", nets.shell(), "-iface", nets.bridge,
                    "-hosts", ",".join(nets.names), "-ppn", "1", "-n", str(COUNT)]
        # They have one host name, so a test must make clear that not all are on one host.
        t.command([*launcher, t.forebay, "up", "--mpi", "--pool", POOL, "--media", "memory:64M", "--listen",
                   nets.net + ".0/24", "--rsh", "false"], timeout=40).prints("is up: %d nodes" % COUNT)

        def on(n, script):
            return t.command(nets.inside(n, t.forebay, "exec", "--pool", POOL, "--node", str(n), "--", "bash", "-c",
                                         script), timeout=30)
        for n in range(COUNT):
            on(n, "echo %d > /fb/f%d" % (n, n))
        for n in range(COUNT):
            on(n, "cat /fb/f*").prints("^" + "\n".join(map(str, range(COUNT))) + "$")
        t.command(nets.inside(0, t.forebay, "down", "--pool", POOL), timeout=30)
        t.nothing_left("down")
    finally:
        nets.remove()


@case(20)
def mpi_without(t):
    t.fb("up", "--mpi", rc=2).says("wasn't started by an MPI launcher", "--hosts").one_line()
    r = t.fb("up", "--mpi", rc=2, env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    r.says("several hosts", "--hosts").one_line()
