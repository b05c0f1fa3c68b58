#!/usr/bin/env python3
"""MPI-IO and parallel HDF5 in a pool of three nodes, four ranks, under MPICH and Open MPI.

Each case is a function in cases/, run as those of tests/pools are: in a process of its own, with a FOREBAY_HOME and a
time limit of its own, and nothing left behind. The programs are in c/. Options beside those of tests/pools:

    --face FACE    how programs come to the pool: preload (default), fuse; plain is a directory of /dev/shm without
                   any pool
    --long         larger BT-IO, whose rates mean something (minutes)
    --suites       suites of others, too: mpi4py's, h5py's, netCDF4's and NumPy's own, downloaded into target/mpi-io; SWMR,
                   Zarr, memmap and safetensors over the nodes; OpenFOAM, where it is installed
    --torch        PyTorch's DataLoader, too: downloads 2.5 GB
"""
import argparse
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
POOLS = os.path.join(os.path.dirname(HERE), "pools")
sys.dont_write_bytecode = True
sys.path[:0] = [HERE, POOLS]

if __name__ == "__main__":
    ours = argparse.ArgumentParser(add_help=False)
    ours.add_argument("--face", choices=["preload", "fuse", "plain"])
    ours.add_argument("--long", action="store_true")
    ours.add_argument("--suites", action="store_true")
    ours.add_argument("--torch", action="store_true")
    options, rest = ours.parse_known_args()
    # Options for the cases, which are separate processes; set before they are imported.
    for name, value in (("FACE", options.face), ("LONG", options.long), ("SUITES", options.suites),
                        ("TORCH", options.torch)):
        if value:
            os.environ["FOREBAY_TEST_" + name] = value if name == "FACE" else "1"
    sys.argv[1:] = rest
    import cases  # noqa: F401 (importing registers them)
    spec = importlib.util.spec_from_file_location("pools_run", os.path.join(POOLS, "run.py"))
    pools_run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pools_run)
    pools_run.PASSED_VARIABLES += ("FOREBAY_TEST_FACE", "FOREBAY_TEST_LONG", "FOREBAY_TEST_SUITES", "FOREBAY_TEST_TORCH")
    sys.exit(pools_run.main())
