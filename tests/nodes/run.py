#!/usr/bin/env python3
"""Tests across the nodes of a pool: consistency, spread programs, locks, deaths, MPI, separate networks.

Each case is a function in cases/, run as those of tests/pools are: in a process of its own, with a
FOREBAY_HOME and a time limit of its own, and nothing left behind. Environment:

    FOREBAY_TEST_NODES=N       nodes of the pools (default 4; 1 is a pool without others)
    FOREBAY_CHECK_SECONDS=N    how long the consistency checker runs each time (default 8)
    FOREBAY_KILLS=N            how many kills the case `kills` makes (default 25)
"""
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
POOLS = os.path.join(os.path.dirname(HERE), "pools")
sys.dont_write_bytecode = True
sys.path[:0] = [HERE, POOLS]

import cases  # noqa: E402,F401 (found by the path set above; importing registers them)

spec = importlib.util.spec_from_file_location("pools_run", os.path.join(POOLS, "run.py"))
pools_run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pools_run)

if __name__ == "__main__":
    sys.exit(pools_run.main())
