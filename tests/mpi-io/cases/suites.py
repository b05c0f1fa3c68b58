"""Suites of others: mpi4py's tests of MPI-IO, h5py's and netCDF4's own, with their temporary files in the pool.

Packages come from PyPI into target/mpi-io, once for each version."""
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile

from harness import Lines, case

from .faces import LAUNCHERS, RANKS, SUITES, Plain, face, job, needs

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PLACE = os.path.join(ROOT, "target", "mpi-io")
MPI4PY, H5PY, NETCDF4, PYTEST = "4.1.2", "3.16.0", "1.7.5.1.post1", "9.2.0"


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
        r = job(t, f, kind, "env", "TMPDIR=" + directory, top + "/venv/bin/python",
                top + "/mpi4py-%s/test/main.py" % MPI4PY, "-f", "-q", "-i", "test_io", "-i", "test_file",
                at=directory, ranks=ranks, options=options, timeout=150, env=env)
        ran = re.findall(r"^Ran (\d+) tests", r.err, re.M)
        # Where ranks speak at once, their lines may be mixed; how they ended is the exit code.
        t.ok(ran and all(int(n) >= 80 for n in ran), r.told())
        left = f.outside("ls", directory).out
        t.ok(not left, "left behind: " + left)
        ended = sorted(set(re.findall(r"OK \(.*?\)|OK$", r.err, re.M)))
        print("%d rank(s): %s tests, %s" % (ranks, ran[0], " ".join(ended)))
    f.down()


def outcomes(r):
    """pytest's result of each test, without the reasons: these contain names of files."""
    lines = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S+|\[\d+\] \S+)", r.out, re.M)
    return sorted(" ".join(line) for line in lines)


def same_outcomes(t, top, tests, at_least, but=()):
    """Runs a suite in /dev/shm and in the pool, below directories of this name: each test ends alike."""
    told = []
    for where in (Plain(t), face(t)):
        if type(where) is Plain:
            where.up()
        directory = where.directory("suite")
        inside = os.path.isdir(tests)
        if inside:
            where.outside("cp", "-rT", tests, directory)
        pytest = [top + "/venv/bin/python", "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-p",
                  "no:warnings", *[w for b in but for w in ("--deselect", b)]]
        script = 'cd "$1"; shift; mkdir tmp; NO_NET=1 PATH=$1:$PATH TMPDIR=$PWD/tmp exec "${@:2}"'
        r = where.outside("bash", "-c", script, "-", directory, top + "/venv/bin", *pytest,
                          *(["--rootdir=.", "."] if inside else ["--pyargs", tests]),
                          rc=None, timeout=300)
        told.append(outcomes(r))
        t.ok(len([x for x in told[-1] if x.startswith("PASSED")]) >= at_least, r.told())
        where.outside("rm", "-r", directory)
        last = r.out.strip().split("\n")[-1]
        where.down()
    differ = sorted(set(told[0]) ^ set(told[1]))
    t.ok(not differ, "other than outside:\n    " + "\n    ".join(differ[:20]))
    print(last)


def packages(t):
    return environment(t, "h5py-%s-netCDF4-%s" % (H5PY, NETCDF4),
                       ["h5py==" + H5PY, "netCDF4==" + NETCDF4, "pytest==" + PYTEST, "pytest-mpi==0.6"],
                       ["netCDF4==" + NETCDF4])


WRITER = r"""
import h5py, numpy, sys, time
f = h5py.File(sys.argv[1] + "/swmr.h5", "w", libver="latest")
d = f.create_dataset("d", (0,), "i8", maxshape=(None,), chunks=(97,), compression="gzip")
f.flush()
print("locked", flush=True)
sys.stdin.readline()
f.swmr_mode = True
print("open", flush=True)
for n in range(150):
    d.resize((n + 1) * 100, 0)
    d[n * 100:] = numpy.arange(n * 100, (n + 1) * 100) ** 2
    d.flush()
    time.sleep(0.01)
f.close()
"""

READER = r"""
import h5py, numpy, sys, time
try:
    h5py.File(sys.argv[1] + "/swmr.h5", "r")
    sys.exit("it can be read before SWMR begins")
except BlockingIOError as e:
    print("locked", flush=True)
sys.stdin.readline()
f = h5py.File(sys.argv[1] + "/swmr.h5", "r", swmr=True)
d = f["d"]
seen = [0]
until = time.monotonic() + 60
while seen[-1] < 15000:
    assert time.monotonic() < until, seen
    d.refresh()
    n = len(d)
    assert n >= seen[-1] and n % 100 == 0, (n, seen)
    numpy.testing.assert_array_equal(d[:n], numpy.arange(n) ** 2)
    if n > seen[-1]:
        seen.append(n)
print(len(seen), "sizes seen")
"""


def swmr(t):
    """HDF5's single writer and multiple readers, each on another node."""
    python = packages(t) + "/venv/bin/python"
    f = face(t)
    directory = f.directory("swmr")
    running = []
    for node, script in ((0, WRITER), (1, READER), (2, READER), (0, READER)):
        p = t.start(f.on(node, python, "-c", script, directory), env=f.env, stdin=subprocess.PIPE)
        lines = Lines(p)
        lines.wait_for(1, 20)
        running.append((p, lines))
    for p, lines in running:
        p.stdin.write(b"go\n")
        p.stdin.flush()
        if p is running[0][0]:
            lines.wait_for(2)
    for p, lines in running:
        p.wait(70)
        said = lines.all()
        t.ok(p.returncode == 0, p.stderr.read().decode())
        if p is not running[0][0]:
            seen = int(said[-1].split()[0])
            t.ok(seen > 5, "only %d sizes seen" % seen)
            print(said[-1])
    f.down()


if SUITES:
    @case(400)
    def mpi4py_mpich(t):
        mpi4py(t, "mpich")

    @case(400)
    def mpi4py_ompio(t):
        mpi4py(t, "openmpi", "--mca", "io", "ompio")

    # Not ROMIO of Open MPI: it has no nonblocking collective calls, and jumps to address 0 instead.

    @case(400)
    def h5py(t):
        # One test fails for root, there and here.
        same_outcomes(t, packages(t), "h5py", 870)

    @case(500)
    def netcdf4(t):
        # It fills 4 GiB.
        top = packages(t)
        same_outcomes(t, top, top + "/netcdf4-%s/test" % NETCDF4, 150, but=["test_cdf5.py"])

    case(200)(swmr)
