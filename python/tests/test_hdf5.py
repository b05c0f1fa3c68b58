"""HDF5's virtual file driver, in the HDF5 libraries of the h5py and netCDF4 wheels."""

import os
import random
import shutil
import subprocess
import sys
import textwrap

import numpy
import pytest

import forebay

h5py = pytest.importorskip("h5py")

import forebay.hdf5  # noqa: E402 (behind the check for h5py)
from forebay._command import program  # noqa: E402 (as above)

LIMIT = 100


def outside(code, *arguments, **environment):
    """Runs a separate program in which HDF5 uses the driver for all files."""
    set_up = "import forebay.hdf5; forebay.hdf5.enable('tests')\n"
    done = subprocess.run([sys.executable, "-c", set_up + textwrap.dedent(code), *arguments], text=True, timeout=LIMIT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_open(pool):
    values = numpy.arange(10000.0).reshape(100, 100)
    pool.mkdir("/case")
    with forebay.hdf5.open("/case/a.h5", "w", pool=pool, controls="temporality=once") as f:
        f.create_dataset("x", data=values, chunks=(10, 10), compression="gzip")
        f.attrs["step"] = 3
    assert pool.declared("/case/a.h5") == "temporality=once"
    with forebay.hdf5.open("forebay://tests/case/a.h5") as f:
        assert (f["x"][:] == values).all() and f.attrs["step"] == 3
    with forebay.hdf5.open("/case/a.h5", "r+", pool="tests") as f:
        f["x"][5, 5] = -1
    with forebay.hdf5.open("/case/a.h5", "a", pool="tests") as f:
        assert f["x"][5, 5] == -1
    for mode, error in [("x", FileExistsError), ("w-", FileExistsError), ("z", ValueError)]:
        with pytest.raises((error, OSError)):
            forebay.hdf5.open("/case/a.h5", mode, pool="tests")
    with pytest.raises(FileNotFoundError, match="No such file"):
        forebay.hdf5.open("/absent.h5", pool="tests")
    with pytest.raises(OSError, match="colour"):
        forebay.hdf5.open("/b.h5", "w", pool="tests", controls="colour=red")
    with pytest.raises(OSError, match="absent"):
        forebay.hdf5.open("/b.h5", "w", pool="absent")
    # The file is valid outside of the pool: another HDF5 reads a copy of it.
    (there := pool.read("/case/a.h5"))
    assert there[:8] == b"\x89HDF\r\n\x1a\n"


def test_two_libraries_in_one_process(pool):
    pytest.importorskip("netCDF4")
    print(outside("""
        import h5py, netCDF4, numpy
        assert h5py.version.hdf5_version != netCDF4.__hdf5libversion__, "the wheels have different ones"
        with h5py.File("/fb/a.h5", "w") as f:
            f["x"] = numpy.arange(1000)
        data = netCDF4.Dataset("/fb/b.nc", "w")
        data.createDimension("t", None)
        t = data.createVariable("t", "f8", ("t",), zlib=True)
        t[:] = numpy.arange(1000)
        data.close()
        with h5py.File("/fb/b.nc") as f, h5py.File("/fb/a.h5") as g:
            assert (f["t"][:] == g["x"][:]).all()
    """))
    assert pool.listdir("/") == ["a.h5", "b.nc"]


def test_netcdf_under_exec(pool):
    """netCDF itself reads the first bytes of a file, so it must see the pool."""
    pytest.importorskip("netCDF4")

    code = """
        import forebay.hdf5; forebay.hdf5.enable("tests")
        import netCDF4, numpy
        with netCDF4.Dataset("/fb/c.nc", "w") as data:
            data.createDimension("t", 100)
            data.createVariable("t", "f8", ("t",))[:] = numpy.arange(100)
        with netCDF4.Dataset("/fb/c.nc") as data:
            assert data["t"][:].sum() == 4950
    """
    done = subprocess.run([program(), "exec", "--pool", "tests", "--", sys.executable, "-c", textwrap.dedent(code)],
                          text=True, timeout=LIMIT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


def test_filters_of_netcdf4_are_found(pool, monkeypatch):
    """netCDF4 adds the directory of its filters only if no plug-in path is set."""
    pytest.importorskip("netCDF4")
    monkeypatch.delenv("HDF5_PLUGIN_PATH", raising=False)
    outside("""
        import netCDF4, numpy
        with netCDF4.Dataset("/fb/d.nc", "w") as data:
            data.createDimension("n", 100000)
            data.createVariable("n", "i8", ("n",), compression="zstd")[:] = numpy.arange(100000)
    """)
    assert 0 < pool.stat("/d.nc").size < 400000


def test_files_outside_of_the_pool(pool, tmp_path):
    outside("""
        import h5py, sys
        with h5py.File(sys.argv[1], "w") as f:
            f["x"] = [1, 2, 3]
        with h5py.File(sys.argv[1]) as f:
            assert f["x"][:].tolist() == [1, 2, 3]
    """, str(tmp_path / "a.h5"))
    assert (tmp_path / "a.h5").exists() and pool.listdir("/") == []


def test_locks(pool):
    """As with sec2: a writer excludes all others."""
    outside("""
        import h5py, subprocess, sys
        f = h5py.File("/fb/a.h5", "w"); f["x"] = 1; f.flush()
        other = [sys.executable, "-c", "import h5py; h5py.File('/fb/a.h5', 'r')"]
        failed = subprocess.run(other, capture_output=True, text=True, timeout=60)
        assert failed.returncode and "another process" in failed.stderr, failed.stderr
        f.close()
        subprocess.run(other, check=True, timeout=60)
    """)


def test_one_writer_and_many_readers(pool):
    """SWMR: readers see what the writer has flushed, in the order of writing."""
    outside("""
        import h5py, numpy, subprocess, sys
        w = h5py.File("/fb/a.h5", "w", libver="latest")
        x = w.create_dataset("x", (0,), maxshape=(None,), chunks=(100,), dtype="i8")
        w.swmr_mode = True
        r = h5py.File("forebay://tests/a.h5", "r", libver="latest", swmr=True)
        for n in range(1, 20):
            x.resize((n * 50,)); x[-50:] = n; x.flush()
            r["x"].refresh()
            assert len(r["x"]) == n * 50 and r["x"][-1] == n
    """)


def a_program(rng, h5, path):
    """Makes a file with random content, which depends only on `rng`."""
    with h5(path, "w") as f:
        groups, data = [f], []
        for i in range(rng.randrange(4, 15)):
            g = rng.choice(groups)
            kind = rng.choice(["group", "plain", "chunked", "gzip", "shuffle", "strings", "ragged", "compound", "attrs",
                               "reference", "external", "soft", "hard", "resize", "delete", "scalar", "enum"])
            name = "%s-%d" % (kind, i)
            shape = tuple(rng.randrange(1, 40) for _ in range(rng.randrange(1, 4)))
            values = numpy.array([rng.randrange(1000) for _ in range(int(numpy.prod(shape)))], "i8").reshape(shape)
            if kind == "group":
                groups.append(g.create_group(name))
            elif kind == "plain":
                data.append(g.create_dataset(name, data=values.astype(rng.choice(["i4", "f8", "u2", ">f4"]))))
            elif kind in ("chunked", "gzip", "shuffle"):
                chunks = tuple(rng.randrange(1, n + 1) for n in shape)
                options = {"gzip": {"compression": "gzip"}, "shuffle": {"shuffle": True, "fletcher32": True}}
                data.append(g.create_dataset(name, data=values, chunks=chunks, **options.get(kind, {})))
            elif kind == "strings":
                g.create_dataset(name, data=["x" * rng.randrange(50) for _ in range(10)], dtype=h5py.string_dtype())
            elif kind == "ragged":
                d = g.create_dataset(name, (5,), dtype=h5py.vlen_dtype("i4"))
                for k in range(5):
                    d[k] = numpy.arange(rng.randrange(30))
            elif kind == "compound":
                g.create_dataset(name, data=numpy.zeros(7, dtype=[("a", "i4"), ("b", "f8", (3,)), ("c", "S5")]))
            elif kind == "attrs":
                g.attrs[name] = values.ravel()[:100]
            elif kind == "reference" and data:
                g.create_dataset(name, data=rng.choice(data).ref, dtype=h5py.ref_dtype)
            elif kind == "external":
                g[name] = h5py.ExternalLink("other.h5", "/x")
            elif kind == "soft":
                g[name] = h5py.SoftLink("/somewhere/else")
            elif kind == "hard" and data:
                g[name] = rng.choice(data)
            elif kind == "resize":
                d = g.create_dataset(name, data=values, maxshape=(None,) * len(shape), chunks=True)
                d.resize(tuple(n + rng.randrange(20) for n in shape))
                data.append(d)
            elif kind == "delete" and len(data) > 2:
                del g[data.pop().name]
            elif kind == "scalar":
                g[name] = rng.random()
            elif kind == "enum":
                g.create_dataset(name, data=values.ravel() % 2, dtype=h5py.enum_dtype({"NO": 0, "YES": 1}, "i8"))


@pytest.mark.skipif(shutil.which("h5diff") is None, reason="h5diff isn't there (package hdf5-tools)")
def test_random_programs_make_the_same_files(pool, tmp_path):
    """100 random programs make the same files in a pool as with sec2."""
    for seed in range(100):
        plain, ours = tmp_path / "plain.h5", tmp_path / "ours.h5"
        a_program(random.Random(seed), h5py.File, plain)
        a_program(random.Random(seed), lambda path, mode: forebay.hdf5.open(path, mode, pool="tests"), "/a.h5")
        ours.write_bytes(pool.read("/a.h5"))
        done = subprocess.run(["h5diff", "-v0", plain, ours], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, (seed, done.stdout, done.stderr)
        # Both files are also read and compared through the driver.
        with forebay.hdf5.open("/a.h5", pool="tests") as f, h5py.File(plain) as g:
            names = []
            g.visit(names.append)
            for name in names:
                assert type(f[name]) is type(g[name])
                if isinstance(g[name], h5py.Dataset) and g[name].dtype.kind in "iuf":
                    assert (f[name][()] == g[name][()]).all(), (seed, name)


@pytest.mark.parametrize("tool", ["h5dump", "h5ls", "h5stat"])
def test_tools_of_others_read_what_was_made(pool, tmp_path, tool):
    if shutil.which(tool) is None:
        pytest.skip("%s isn't there (package hdf5-tools)" % tool)
    a_program(random.Random(7), lambda path, mode: forebay.hdf5.open(path, mode, pool="tests"), "/a.h5")
    pool.stage_out("/a.h5", tmp_path / "a.h5")
    done = subprocess.run([tool, tmp_path / "a.h5"], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr


def test_a_forked_child(pool):
    outside("""
        import h5py, os
        f = h5py.File("/fb/a.h5", "w"); f["x"] = 1; f.flush()
        if (pid := os.fork()) == 0:
            try:
                f["y"] = 2; f.flush()
            except Exception:
                pass
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        f["z"] = 3
        f.close()
        with h5py.File("/fb/a.h5") as f:
            assert f["x"][()] == 1 and f["z"][()] == 3
    """)


def test_a_full_pool(pool):
    outside("""
        import forebay
        forebay.Pool.start("tiny", media="memory:8M", force=True).close()
    """)
    tiny = forebay.Pool("tiny")
    try:
        with pytest.raises(OSError, match="(?i)no space|no room|write"), \
                forebay.hdf5.open("/a.h5", "w", pool="tiny") as f:
            f["x"] = numpy.ones(4 << 20)
    finally:
        tiny.stop()


def under_exec(code, **environment):
    """Runs a program under `forebay exec` whose HDF5 uses the driver."""
    environment = {"HDF5_PLUGIN_PATH": forebay.hdf5.plugin_directory(), "HDF5_DRIVER": "forebay",
                   "HDF5_DRIVER_CONFIG": "pool=tests", **environment}
    done = subprocess.run([program(), "exec", "--pool", "tests", "--", sys.executable, "-c", textwrap.dedent(code)],
                          text=True, timeout=LIMIT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_files_opened_again_and_again_beside_exec_lose_no_descriptors(pool):
    counts = under_exec("""
        import h5py, os
        held = open("/fb/held", "w")       # the preloaded library stays attached
        for i in range(8):
            h5py.File("/fb/a.h5", "w").close()
            print(len(os.listdir("/proc/self/fd")))
    """).split()
    assert len(counts) == 8 and len(set(counts)) == 1, counts


def test_a_directory_of_plug_ins_may_have_the_interceptor(pool, tmp_path):
    """HDF5 loads all libraries of a directory, to find out which are plug-ins."""
    beside = os.path.dirname(os.path.realpath(program()))
    for name in ("libforebay_preload.so", "libforebay_audit.so"):
        shutil.copy(os.path.join(beside, name), tmp_path)
    shutil.copy(os.path.join(forebay.hdf5.plugin_directory(), "libforebay_vfd.so"), tmp_path)
    for _ in range(2):
        assert under_exec("""
            import h5py, os
            h5py.File("/fb/a.h5", "w").close()
            print(os.listdir("/fb"))
        """, HDF5_PLUGIN_PATH=str(tmp_path)) == "['a.h5']\n"
