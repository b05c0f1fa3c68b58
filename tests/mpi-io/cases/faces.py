"""How the ranks come to the pool, and how their job is launched."""
import os
import shutil

from harness import Failed, Skipped

NODES, RANKS, POOL = 3, 4, "p"
LONG = bool(os.environ.get("FOREBAY_TEST_LONG"))
SUITES = bool(os.environ.get("FOREBAY_TEST_SUITES"))
SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "c")

# Launchers by the kind of MPI that a program is compiled for. The options of Open MPI are for small machines and root;
# they have nothing to do with pools.
LAUNCHERS = {
    "mpich": ["mpiexec.mpich"],
    "openmpi": ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader,tcp"],
}


class Plain:
    """A directory of /dev/shm, without a pool: whether a failure is Forebay's."""

    # The beginning of a rank's command.
    words = ()

    def __init__(self, t, nodes=NODES):
        self.t, self.nodes = t, nodes
        self.top = os.path.join(t.work, "plain%d" % len(os.listdir(t.work)))
        self.env = {}

    def up(self):
        os.mkdir(self.top)

    def directory(self, name, striped=False):
        path = os.path.join(self.top, name)
        self.outside("mkdir", "-p", path)
        return path

    def on(self, node, *argv):
        """The words that run a program on a node."""
        return list(argv)

    def outside(self, *argv, **more):
        """A command that sees the directory, and is no rank."""
        return self.t.command(self.on(0, *argv), env=self.env, **more)

    def spread(self, r):
        """The ranks were where they should be."""

    def down(self):
        shutil.rmtree(self.top)


class Preload(Plain):
    """A pool of several nodes, through the preload library."""

    def __init__(self, t, nodes=NODES):
        self.t, self.nodes, self.top, self.env = t, nodes, "/fb", {"FOREBAY_POOL": POOL}
        self.words = (t.forebay, "exec", "--")

    def up(self):
        self.t.up(POOL, "--nodes", str(self.nodes), media=["memory:%s" % ("1G" if LONG or SUITES else "256M")], timeout=40)

    def directory(self, name, striped=False):
        path = super().directory(name)
        if striped:
            self.t.fb("set", "--pool", POOL, "--distribution", "striped", "--chunk-size", "1M", "/" + name)
        return path

    def on(self, node, *argv):
        return [self.t.forebay, "exec", "--node", str(node), "--", *argv]

    def spread(self, r):
        r.prints(*["^rank %d on node %d$" % (k, k % self.nodes) for k in range(RANKS)])

    def down(self):
        self.t.fb("fsck", "--pool", POOL, timeout=60)
        self.t.fb("down", "--pool", POOL, timeout=30)
        self.t.nothing_left("down")


# Each rank sees its node's mount in the same place. What others have mounted would stay in use here.
IN_MOUNT = r"""
node=${NODE:-$((${PMI_RANK:-$OMPI_COMM_WORLD_RANK} % $1))}
mountpoint -q "$2/mount$node"
while read -r _ at type _; do
  case $type:$at in fuse*:"$2"/*) ;; fuse*) umount -l "$at" || : ;; esac
done <<< "$(cat /proc/mounts)"
mount --bind "$2/mount$node" "$2/fb"
shift 2
FOREBAY_NODE=$node exec "$@"
"""


class Fuse(Preload):
    """A pool of several nodes, each mounted."""

    def __init__(self, t, nodes=NODES):
        super().__init__(t, nodes)
        if os.getuid() != 0 or not os.path.exists("/dev/fuse"):
            raise Skipped("needs root and /dev/fuse, to show each rank its node's mount")
        self.top = os.path.join(t.work, "fb")
        self.words = ("unshare", "--mount", "--propagation", "private", "bash", "-ec", IN_MOUNT, "-", str(nodes),
                      t.work)

    def up(self):
        super().up()
        os.mkdir(self.top)
        for node in range(self.nodes):
            os.mkdir(os.path.join(self.t.work, "mount%d" % node))
            self.t.fb("mount", "--pool", POOL, "--node", str(node), os.path.join(self.t.work, "mount%d" % node))

    def on(self, node, *argv):
        return ["env", "NODE=%d" % node, *self.words, *argv]


FACES = {"preload": Preload, "fuse": Fuse, "plain": Plain}


def face(t, nodes=NODES):
    """The face that was chosen, started."""
    f = FACES[os.environ.get("FOREBAY_TEST_FACE", "preload")](t, nodes)
    f.up()
    return f


def needs(*commands):
    missing = [c for c in commands if not shutil.which(c)]
    if missing:
        raise Skipped("not installed: " + " ".join(missing))


def compiled(t, kind, name, compiler=None):
    compiler = compiler or "mpicc." + kind
    needs(compiler, LAUNCHERS[kind][0])
    program = os.path.join(t.work, name)
    t.command([compiler, "-O1", "-o", program, os.path.join(SOURCES, name + ".c")], timeout=60)
    return program


def job(t, f, kind, *words, at, ranks=RANKS, options=(), timeout=60, env=None):
    """Runs a program as ranks of one job, spread over the nodes; its files are below `at`."""
    argv = [*LAUNCHERS[kind], *options, "-n", str(ranks), *f.words, *words]
    r = t.command(argv, env={**f.env, **(env or {})}, rc=None, timeout=timeout)
    # On a busy machine Open MPI 4.1's launcher reported twice in some eighty jobs, all through
    # FUSE, that a rank had ended without MPI_Finalize; one of these ranks had printed its result.
    # Not explained. A rank that fails prints why, or ends with another code.
    if r.rc == 1 and "exiting improperly" in r.err and "MPI_ABORT" not in r.err:
        print("tried again: Open MPI's launcher took a rank's end for a failure")
        f.outside("bash", "-c", 'rm -rf "$1"/*', "-", at)
        r = t.command(argv, env={**f.env, **(env or {})}, rc=None, timeout=timeout)
    if r.rc != 0:
        # The first failure counts; launchers print much after it.
        lines = [x for x in r.err.split("\n") if ", line " in x]
        raise Failed("%s\n%s" % ("\n    ".join(lines[:8]), r.told()))
    return r
