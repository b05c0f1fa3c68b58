"""Suites of others: mpi4py's tests of MPI-IO, h5py's and netCDF4's own, with their temporary files in the pool.

Packages come from PyPI into target/mpi-io, once for each version."""
import fcntl
import os
import re
import shutil
import sys
import tarfile

from harness import case

from .faces import LAUNCHERS, RANKS, face, job, needs

SUITES = bool(os.environ.get("FOREBAY_TEST_SUITES"))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PLACE = os.path.join(ROOT, "target", "mpi-io")
MPI4PY = "4.1.2"


def environment(t, name, packages, sources=()):
    """A directory with a virtual environment (venv) of these packages and the unpacked sources of others."""
    top = os.path.join(PLACE, name)
    os.makedirs(top, exist_ok=True)
    with open(os.path.join(top, ".lock"), "w") as lock:
        # One at a time: another run may be at the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = os.path.join(top, "done")
        if os.path.exists(done):
            return top
        venv = os.path.join(top, "venv")
        shutil.rmtree(venv, ignore_errors=True)
        t.command([sys.executable, "-m", "venv", venv], timeout=60)
        pip = [venv + "/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        t.command([*pip, "install", "--only-binary", ":all:", *packages], timeout=300)
        for source in sources:
            t.command([*pip, "download", "--no-deps", "--no-binary", source.split("=")[0], "--dest", top, source],
                      timeout=300)
        for archive in os.listdir(top):
            if archive.endswith(".tar.gz"):
                with tarfile.open(os.path.join(top, archive)) as tar:
                    tar.extractall(top, filter="data")
        open(done, "w").close()
    return top


def mpi4py(t, kind, *options):
    needs(LAUNCHERS[kind][0])
    top = environment(t, "mpi4py-" + MPI4PY, ["mpi4py==" + MPI4PY], ["mpi4py==" + MPI4PY])
    # The wheel is made for any MPICH by the name that it gives its library; Debian's has another.
    names = os.path.join(t.work, "names")
    os.mkdir(names)
    os.symlink("/usr/lib/x86_64-linux-gnu/libmpich.so.12", names + "/libmpi.so.12")
    f = face(t)
    env = {"MPI4PY_MPIABI": kind, "LD_LIBRARY_PATH": names, "PYTHONDONTWRITEBYTECODE": "1"}
    for ranks in (1, RANKS):
        directory = f.directory("tmp%d" % ranks)
        # Not for the launcher, which is no program of the pool.
        r = job(t, f, kind, "env", "TMPDIR=" + directory, top + "/venv/bin/python", top + "/mpi4py-%s/test/main.py" % MPI4PY, "-f", "-q", "-i",
                "test_io", "-i", "test_file", ranks=ranks, options=options, timeout=150,
                env=env)
        ran = re.findall(r"^Ran (\d+) tests", r.err, re.M)
        # Where ranks speak at once, their lines may be mixed; how they ended is the exit code.
        t.ok(ran and all(int(n) >= 80 for n in ran), r.told())
        left = f.outside("ls", directory).out
        t.ok(not left, "left behind: " + left)
        print("%d rank(s): %s tests, %s" % (ranks, ran[0], " ".join(sorted(set(re.findall(r"OK \(.*?\)|OK$", r.err, re.M))))))
    f.down()


if SUITES:
    @case(400)
    def mpi4py_mpich(t):
        mpi4py(t, "mpich")

    @case(400)
    def mpi4py_ompio(t):
        mpi4py(t, "openmpi", "--mca", "io", "ompio")

    # Not ROMIO of Open MPI: it has no nonblocking collective calls, and jumps to address 0 instead.
