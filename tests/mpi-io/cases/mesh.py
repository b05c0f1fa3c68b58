"""Meshes by forebay.mesh (py/mesh.py) and mesh.hpp (c/mesh.cpp): written by four ranks, read by others.

Python's packages (mpi4py, h5py, the wheel of this package) are those that tests/python/run.py has installed."""
import os
import platform
import shlex

from harness import Skipped, case

from .faces import LAUNCHERS, RANKS, SOURCES, Plain, face, job, needs

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
PROGRAM = os.path.join(os.path.dirname(SOURCES), "py", "mesh.py")


def python(t, kind):
    """A Python with the packages, and the environment in which its mpi4py takes this MPI."""
    needs(LAUNCHERS[kind][0])
    inside = os.path.join(TARGET, "python", platform.python_version(), "bin", "python")
    tried = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ['forebay.mesh', 'mpi4py', 'h5py'])))"
    if not os.path.exists(inside) or t.command([inside, "-c", tried], rc=None, timeout=30).rc != 0:
        raise Skipped("no environment with forebay, mpi4py and h5py: python3 tests/python/run.py makes it")
    # The wheel of mpi4py is made for any MPICH by the name that it gives its library; Debian's has another.
    names = os.path.join(t.work, "names")
    os.makedirs(names, exist_ok=True)
    if not os.path.lexists(names + "/libmpi.so.12"):
        os.symlink("/usr/lib/x86_64-linux-gnu/libmpich.so.12", names + "/libmpi.so.12")
    return inside, {"MPI4PY_MPIABI": kind, "LD_LIBRARY_PATH": names, "PYTHONDONTWRITEBYTECODE": "1"}


def by_python(t, kind, nodes, backs):
    inside, env = python(t, kind)
    f = face(t, nodes)
    backs = [b for b in backs if b != "iov" or type(f) is not Plain]
    for i, back in enumerate(backs):
        directory = f.directory("mesh%d" % i, striped=i == 1)
        # Forebay's own path names files of the pool, wherever it is mounted.
        place = "/mesh%d" % i if back == "iov" else directory
        r = job(t, f, kind, inside, PROGRAM, back, place, at=directory, env=env)
        t.ok(r.out.count("rank ") + r.out.count("done") == RANKS, r.told())
        left = sorted(f.outside("ls", directory).out.split())
        t.ok(left == sorted(back + end for end in (".h5", ".xdmf", ".h5-again.h5", ".h5-again.xdmf")), str(left))
    f.down()


@case(100)
def mesh_openmpi(t):
    by_python(t, "openmpi", 3, ["iov", "iov", "mpio"])


@case(100)
def mesh_mpich(t):
    by_python(t, "mpich", 1, ["iov", "mpio"])


def mesh_cpp(t, kind):
    """C++ writes, Python reads, and the other way round."""
    needs("mpicxx." + kind, "pkg-config")
    flags = t.command(["pkg-config", "--cflags", "--libs", "hdf5-serial"], rc=None)
    if flags.rc != 0:
        raise Skipped("not installed: libhdf5-dev")
    flags = [w.replace("-I", "-isystem", 1) if w.startswith("-I") else w for w in shlex.split(flags.out)]
    program, release = os.path.join(t.work, "mesh"), os.path.dirname(os.path.realpath(t.forebay))
    t.command(["mpicxx." + kind, "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-DOMPI_SKIP_MPICXX",
               "-I", os.path.join(ROOT, "include"),
               "-o", program, os.path.join(SOURCES, "mesh.cpp"), "-L", release, "-lforebay_iov", "-Wl,-rpath," + release,
               *flags], timeout=150)
    f = face(t)
    directory = f.directory("case")
    for back in ["mpio"] if type(f) is Plain else ["iov", "mpio"]:
        path = "case/iov.h5" if back == "iov" else directory + "/mpio.h5"
        for what, ranks in (("fail", RANKS), ("write", RANKS), ("read", 3), ("read", 1)):
            r = job(t, f, kind, program, what, back, path, at=directory, ranks=ranks)
            t.ok(r.out.count("done " + what) == ranks, r.told())
    left = f.outside("ls", directory).out
    t.ok("partial" not in left and "iov.xdmf" in left or type(f) is Plain, left)
    if type(f) is not Plain:
        inside, _ = python(t, kind)
        t.command([inside, "-c", """if 1:
            import sys
            import forebay
            from forebay import mesh
            try:
                forebay.Pool("p").open("/case/iov.h5", "r+b")
            except PermissionError:
                pass
            else:
                sys.exit("the file isn't immutable")
            read = mesh.read(mesh.Mesh(), "forebay://p/case/iov.h5")
            assert len(read.cells["hexahedron"]) == 24**3 and read.marker_names == {"wall": 1, "inlet": 2}
            mesh.write(read, "forebay://p/case/python.h5")
        """], env=f.env, timeout=60)
        r = job(t, f, kind, program, "read", "iov", "case/python.h5", at=directory, ranks=3)
        t.ok(r.out.count("done read") == 3, r.told())
    f.down()


@case(200)
def mesh_cpp_openmpi(t):
    mesh_cpp(t, "openmpi")
