#!/usr/bin/env python3
"""Suites of others through the HDF5 driver: h5py's own tests, and netCDF4's.

Each suite runs twice: outside (no driver, files in a temporary directory), and under `forebay exec` in the
environment that `forebay.hdf5.enable` sets, with its files in a pool. Every test has to end the same way, but for those that
suites.txt beside this file names with a reason. `tests/python/run.py --suites` runs it in the environment
that it has made.
"""
import fnmatch
import glob
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tempfile

import forebay
import forebay.hdf5
from forebay._command import program

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 840  # Seconds, each suite.


def expected(suite):
    """Patterns of tests that end otherwise, and the reasons."""
    found = {}
    with open(os.path.join(HERE, "suites.txt")) as f:
        for line in f:
            words = line.split("#")[0].split(None, 2)
            if words and words[0] == suite:
                found[words[1]] = words[2].strip()
    return found


def outcomes(command, directory, root, **options):
    """Test to outcome, of pytest -rA in a directory. Names begin at `root`, not at the directory."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, **options)
    found = {}
    for line in done.stdout.splitlines():
        match = re.match(r"(PASSED|FAILED|ERROR|XFAIL|XPASS) ([^\s:]+)(\S*)", line)
        if match:
            found[os.path.relpath(os.path.join(directory, match[2]), root) + match[3]] = match[1]
    print(done.stdout.strip().splitlines()[-1], flush=True)
    return found, done.stdout


def compare(suite, root, at_least, ignore=()):
    """Whether the suite whose tests lie below `root` ends alike outside and in a pool."""
    # -s: pytest's own files for output would lie in the pool.
    pytest = [sys.executable, "-m", "pytest", "-q", "-s", "-rA", "--tb=line", "-p", "no:cacheprovider", "-p", "no:asyncio",
              "-p", "no:warnings", "-o", "addopts=", "--rootdir", root,
              *["--ignore=" + os.path.join(root, name) for name in ignore], root]
    for name in [name for name in os.environ if name.startswith("HDF5_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as place:
        os.mkdir(place + "/tmp")
        plain, _ = outcomes(pytest, place, root, cwd=place, env={**os.environ, "TMPDIR": place + "/tmp", "NO_NET": "1"})
    with forebay.run(media="memory:2G") as pool:
        pool.makedirs("/suite/tmp")
        forebay.hdf5.enable(pool)
        inside = [program(), "exec", "--pool", pool.name, "--", "sh", "-c", 'cd /fb/suite && exec "$@"', "-", *pytest]
        ours, text = outcomes(inside, "/fb/suite", root, env={**os.environ, "TMPDIR": "/fb/suite/tmp", "NO_NET": "1"})
    assert sum(outcome == "PASSED" for outcome in plain.values()) >= at_least, "too few tests ran outside"
    known = expected(suite)
    differ = [name for name in sorted({*plain, *ours}) if plain.get(name) != ours.get(name)]
    wrong = [name for name in differ if not any(fnmatch.fnmatchcase(name, pattern) for pattern in known)]
    print("%s: %d tests, %d pass; %d end otherwise than outside, %d of them expected" % (
        suite, len(ours), sum(o == "PASSED" for o in ours.values()), len(differ), len(differ) - len(wrong)), flush=True)
    for name in wrong:
        print("  %s: outside %s, in the pool %s" % (name, plain.get(name), ours.get(name)))
    if wrong:
        print(text[-6000:])
    return not wrong


def h5py_tests():
    """The tests that h5py's package has."""
    (package,) = importlib.util.find_spec("h5py").submodule_search_locations
    return os.path.join(package, "tests")


def netcdf4_tests(place):
    """The tests of the version that is installed: they come with its source only."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary",
                    ":all:", "-d", place, "netCDF4==" + importlib.metadata.version("netCDF4")], check=True, timeout=600)
    (packed,) = glob.glob(place + "/*.tar.gz")
    with tarfile.open(packed) as tar:
        tar.extractall(place, filter="data")
    (tests,) = glob.glob(place + "/*/test")
    return tests


def main():
    good = compare("h5py", h5py_tests(), 800)
    with tempfile.TemporaryDirectory() as place:
        # test_cdf5 fills 4 GiB: the tests behind it would find the pool full.
        good &= compare("netCDF4", netcdf4_tests(place), 140, ignore=["test_cdf5.py"])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
