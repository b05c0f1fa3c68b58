"""Parallel HDF5 files through the driver "forebay" (libforebay_vfd.so), without preload library or mount.

The driver needs parallel HDF5 1.14 or later, which Debian 12 doesn't have: $HDF5_PARALLEL_ROOT names an installation
(include/, lib/libhdf5.so), for MPICH or Open MPI. Without it the cases are skipped, with --suites, too."""
import os

from harness import Skipped, case

from .faces import LAUNCHERS, RANKS, SOURCES, job, needs

INCLUDE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(SOURCES))), "include")


class Driver:
    """A pool whose files programs reach by the driver only."""

    words = ()

    def __init__(self, t, nodes):
        self.t, self.nodes, self.pool = t, nodes, "p%d" % nodes
        self.env = {"FOREBAY_POOL": self.pool, "HDF5_PLUGIN_PATH": os.path.dirname(t.forebay)}

    def up(self):
        self.t.up(self.pool, "--nodes", str(self.nodes), media=["memory:64M"], timeout=40)

    def outside(self, *argv, **more):
        return self.t.command([self.t.forebay, "exec", "--", *argv], env=self.env, **more)

    def down(self):
        self.t.fb("fsck", "--pool", self.pool, timeout=60)
        self.t.fb("down", "--pool", self.pool, timeout=30)
        self.t.nothing_left("down")


def compiled(t):
    """The program, and the kind of MPI that it is for."""
    root = os.environ.get("HDF5_PARALLEL_ROOT")
    if not root:
        raise Skipped("no parallel HDF5 1.14 or later: $HDF5_PARALLEL_ROOT isn't set")
    library = os.path.join(root, "lib")
    linked = t.command(["ldd", os.path.join(library, "libhdf5.so")]).out
    if "libmpi" not in linked:
        raise Skipped("the HDF5 in %s is a serial one" % root)
    kind = "mpich" if "libmpich" in linked else "openmpi"
    needs("mpicc." + kind, LAUNCHERS[kind][0])
    program = os.path.join(t.work, "hdf5_driver")
    t.command(["mpicc." + kind, "-O1", "-Wall", "-Wextra", "-Werror", "-I" + INCLUDE, "-I" + os.path.join(root, "include"),
               "-o", program, os.path.join(SOURCES, "hdf5_driver.c"), "-L" + library, "-Wl,-rpath," + library, "-lhdf5"],
              timeout=60)
    return program, kind


def parallel(t, nodes):
    program, kind = compiled(t)
    f = Driver(t, nodes)
    f.up()

    def run(word, path, *arguments, ranks=RANKS, driver="forebay"):
        r = job(t, f, kind, program, word, driver, path, *arguments, at="/fb", ranks=ranks, timeout=100)
        r.prints("^%s: %d ranks, same$" % (word, ranks))
        return r

    for name, controls in (("plain", ()), ("commit", ("consistency=commit",))):
        path = "/fb/%s.h5" % name
        run("write", path, *controls)
        run("check", path, ranks=3)
        run("change", path, ranks=2)
        run("check", path)
        # Copied out, it is a file as HDF5's own driver reads it.
        copy = os.path.join(t.work, name + ".h5")
        f.outside("cp", path, copy)
        run("check", copy, driver="mpio", ranks=2)
        run("check", copy, ranks=1)
    # A failure on one rank is one on all; what a failed H5Fcreate has made is gone.
    r = run("absent", "/fb/absent.h5")
    t.ok("rank %d: there is no pool 'absent'" % (RANKS - 1) in r.err, r.told())
    run("missing", "/fb/missing.h5")
    r = run("write", "forebay:///url.h5", ranks=1)
    t.ok(f.outside("ls", "/fb").out.split() == ["commit.h5", "plain.h5", "url.h5"], "other files are left")
    t.up("tiny", media=["memory:16M"])
    r = run("full", "forebay://tiny/full.h5")
    t.ok("No space left on device" in r.err, r.told())
    t.fb("down", "--pool", "tiny", timeout=30)
    f.down()


@case(400)
def hdf5_driver(t):
    parallel(t, 1)


@case(400)
def hdf5_driver_nodes(t):
    parallel(t, 3)
