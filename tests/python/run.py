#!/usr/bin/env python3
"""The Python package as its users get it: the wheel, installed into a new virtual environment.

Runs python/tests with this Python and, if there is one, with a newer one; checks the types (mypy) and
makes the API reference. The wheel is made of what `make build` has built. Environments are kept in
target/python: what they need is downloaded once.

    --torch   the loader's tests with PyTorch, too: downloads 2.5 GB
    --suites  h5py's and netCDF4's own tests through the HDF5 driver, compared with a run outside (minutes)
    --debug   a part of the tests under valgrind, with Python's allocator off (minutes)
"""
import argparse
import glob
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
NEEDS = ["fsspec>=2024.6", "numpy", "pytest>=8", "pytest-timeout", "pytest-asyncio"]
# Programs of others that are run on a pool. With one Python: they are large.
LIBRARIES = ["pandas", "pyarrow", "polars", "xarray", "zarr>=3", "dask[array,dataframe]", "distributed", "h5py", "meshio",
             "mpi4py", "netCDF4", "snakemake>=9", "snakemake-executor-plugin-slurm>=2.8",
             "hatchling", "webdataset", "joblib", "nbclient", "nbformat", "ipykernel"]
# They look at the package, and don't run it.
CHECKERS = ["mypy>=1.15", "sphinx>=8"]
TORCH = ["torch==2.15.0", "webdataset"]
# Tests without processes of their own: what valgrind can follow.
FEW = ["test_pool.py", "test_verbs.py", "test_types.py", "test_campaign.py"]
NEWER = ["python3.14", "python3.13", "python3.12"]


def newer():
    """A Python newer than this one, on $PATH or of pyenv."""
    versions = os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions")
    for name in NEWER:
        if tuple(map(int, name.removeprefix("python").split("."))) <= sys.version_info[:2]:
            continue
        places = sorted(glob.glob(os.path.join(versions, name.removeprefix("python") + ".*", "bin")), reverse=True)
        for place in [*places, None]:
            found = shutil.which(name, path=place)
            if found and subprocess.run([found, "-c", "import venv"], capture_output=True).returncode == 0:
                return found
    return None


def run(*command, limit=900, environment=None):
    print("+", *command, flush=True)
    subprocess.run(command, check=True, timeout=limit, cwd=ROOT, env={**os.environ, **(environment or {})})


def environment(python, needs, suffix=""):
    """A virtual environment with what is needed: its Python."""
    name = subprocess.run([python, "-c", "import platform; print(platform.python_version())"],
                          check=True, capture_output=True, text=True).stdout.strip()
    place = os.path.join(TARGET, "python", name + suffix)
    inside = os.path.join(place, "bin", "python")
    if not os.path.exists(inside):
        run(python, "-m", "venv", place)
    run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *needs)
    return inside


def reference(inside):
    """The API reference, made of the docstrings of what is installed."""
    run(inside, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", os.path.join(TARGET, "python", "doctrees"),
        "python/docs", os.path.join(TARGET, "docs"))


def under_valgrind(inside):
    """Invalid reads and writes of the extension module end the run; what leaks at exit doesn't."""
    run("valgrind", "-q", "--error-exitcode=99", "--leak-check=no", "--undef-value-errors=no", "--trace-children=no",
        "--suppressions=%s" % os.path.join(HERE, "valgrind.supp"), inside, "-X", "faulthandler", "-m", "pytest", "-q",
        "-p", "no:cacheprovider", "-p", "no:faulthandler", "-o", "timeout=0", "-c", "python/pyproject.toml", "--rootdir",
        "python", "-k", "not fork and not outlives and not staging", *(os.path.join("python", "tests", name) for name in FEW),
        environment={"PYTHONMALLOC": "malloc", "PYTHONDEVMODE": "1"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-build", action="store_true", help="take the wheel that is there")
    parser.add_argument("--torch", action="store_true", help="the loader's tests with PyTorch (2.5 GB)")
    parser.add_argument("--suites", action="store_true", help="h5py's and netCDF4's own tests through the HDF5 driver")
    parser.add_argument("--debug", action="store_true", help="a part of the tests under valgrind")
    parser.add_argument("--docs", action="store_true", help="only the API reference: target/docs/index.html")
    parser.add_argument("--only", action="append", default=[], metavar="FILE", help="this file of python/tests")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        parser.error("Python 3.11 or newer is needed, and this is %s" % sys.version.split()[0])
    if not options.no_build:
        run(os.path.join(ROOT, "python", "build-wheel"))
    (wheel,) = glob.glob(os.path.join(TARGET, "wheels", "forebay-*.whl"))
    other = newer()
    if other is None:
        print("no newer Python than %s is there: only this one" % sys.version.split()[0])
    fetch = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--force-reinstall", "--no-deps", wheel]
    if options.torch:
        inside = environment(sys.executable, NEEDS + TORCH, "-torch")
        run(inside, *fetch)
        run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "python/pyproject.toml", "--rootdir", "python",
            "python/tests/test_data.py")
        return
    if options.docs:
        inside = environment(sys.executable, ["fsspec>=2024.6", "sphinx>=8"], "-docs")
        run(inside, *fetch)
        reference(inside)
        return
    if options.suites or options.debug:
        inside = environment(sys.executable, NEEDS + LIBRARIES)
        run(inside, *fetch)
        if options.debug:
            under_valgrind(inside)
        if options.suites:
            run(inside, os.path.join(HERE, "suites.py"))
        return
    for python, needs in [(sys.executable, NEEDS + LIBRARIES + CHECKERS), (other, NEEDS)]:
        if python is None:
            continue
        inside = environment(python, needs)
        run(inside, *fetch)
        suites = ["python/tests"]
        if needs is not NEEDS:
            run(inside, "-m", "mypy", "--config-file", "python/pyproject.toml", "--cache-dir",
                os.path.join(TARGET, "python", "mypy"), environment={"MYPYPATH": os.path.join(ROOT, "python", "src")})
            reference(inside)
            # Snakemake's plug-in, which needs the package.
            run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-build-isolation", "--no-deps",
                "python/snakemake", "snakemake-interface-storage-plugins>=4.2")
            suites.append("python/snakemake/tests")
        files = [os.path.join("python", "tests", name) for name in options.only]
        for suite in [files] if files else [[suite] for suite in suites]:
            # Not from python/src: what is tested is what was installed.
            run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error::pytest.PytestUnraisableExceptionWarning",
                "-c", "python/pyproject.toml", "--rootdir", "python", *suite)


if __name__ == "__main__":
    main()
