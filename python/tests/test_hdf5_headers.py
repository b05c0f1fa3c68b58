"""forebay/hdf5.h and hdf5.hpp, compiled with the headers of an HDF5 of 1.14 or later.

HDF5 is found by pkg-config, or below $HDF5_ROOT (include/, lib/). Debian's HDF5 is too old.
"""

import os
import shlex
import shutil
import subprocess

import pytest

import forebay.hdf5

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "include")
LIMIT = 100


def flags():
    """Returns the compiler's arguments for HDF5, or None if there is no HDF5 that is new enough."""
    root = os.environ.get("HDF5_ROOT")
    if root:
        library = os.path.join(root, "lib")
        return ["-I" + os.path.join(root, "include"), "-L" + library, "-Wl,-rpath," + library, "-lhdf5"]
    if not shutil.which("pkg-config"):
        return None
    for name in ("hdf5", "hdf5-serial"):
        found = subprocess.run(["pkg-config", "--atleast-version=1.14", "--cflags", "--libs", name], text=True,
                               capture_output=True, timeout=LIMIT)
        if found.returncode == 0:
            return shlex.split(found.stdout)
    return None


def test_cpp_driver(pool, tmp_path):
    options = flags()
    if options is None:
        pytest.skip("no headers of HDF5 1.14 or later: neither $HDF5_ROOT nor pkg-config has them")
    program = str(tmp_path / "driver")
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I" + INCLUDE, "-o",
                    program, os.path.join(HERE, "hdf5_driver.cpp"), *options], check=True, timeout=LIMIT)
    environment = {**os.environ, "HDF5_PLUGIN_PATH": forebay.hdf5.plugin_directory()}

    def run(pool_name, controls, plugins=environment["HDF5_PLUGIN_PATH"]):
        done = subprocess.run([program, "forebay://tests/a.h5", pool_name, controls], text=True, timeout=LIMIT,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**environment, "HDF5_PLUGIN_PATH": plugins})
        return done.returncode, done.stdout

    assert run("tests", "temporality=once") == (0, "same\n")
    assert pool.declared("/a.h5") == "temporality=once"
    code, said = run("tests", "", plugins=str(tmp_path))
    assert code != 0 and "libforebay_vfd.so in a directory of $HDF5_PLUGIN_PATH" in said
    code, said = run("tests", "colour=red")
    assert code != 0 and "colour" in said
