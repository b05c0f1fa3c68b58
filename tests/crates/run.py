#!/usr/bin/env python3
"""The tests in crates/: builds them and runs their programs, some beside each other.

`cargo test` runs one test program after the other. Most of them wait most of the time. This runs as
many at a time as -j says, each in its own session, with a time limit: where its threads are is
printed before it is killed. Examples in documentation are run by `cargo test --doc`.

    run.py                      all
    run.py --only kills         test programs whose name is kills or that belong to the crate kills
    run.py --build              builds, and runs nothing
"""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "pools"))

from harness import kill, processes_with, stacks  # noqa: E402 (found by the path set above)

CARGO = ["cargo", "test", "--profile", "checks", "--workspace"]
# How long one test program may take. Seconds.
LIMIT = 600
# The FOREBAY_TEST_MARK of each program that runs.
MARKS = set()
# Those that take longest are started first, so that none of them runs alone at the end.
LONG = ["cross_node", "kills", "etcd", "between", "etcd_login", "nodes", "daemon_faults", "etcd_cache", "faults",
        "cli", "whole"]


class Program:
    """A test program: its name, the crate it is of, and the directory cargo would run it in."""

    def __init__(self, message):
        target = message["target"]
        self.path = message["executable"]
        self.directory = os.path.dirname(message["manifest_path"])
        self.crate = os.path.basename(self.directory)
        self.name = target["name"] if target["kind"] == ["test"] else self.crate + " (in src)"


def build():
    """Builds all tests; returns the programs."""
    done = subprocess.run([*CARGO, "--no-run", "--message-format=json-render-diagnostics"], cwd=ROOT,
                          stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit("cargo could not build the tests")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return [Program(m) for m in messages
            if m["reason"] == "compiler-artifact" and m["profile"]["test"] and m["executable"]]


def end(mark):
    """Kills a test program and what it has started."""
    for pid in processes_with(mark):
        kill(pid)


def run(program):
    """Runs a test program: (passed, seconds, output)."""
    mark = "FOREBAY_TEST_MARK=crates-%d-%s" % (os.getpid(), os.path.basename(program.path))
    env = {**os.environ, **dict([mark.split("=", 1)]), "CARGO_MANIFEST_DIR": program.directory}
    began = time.monotonic()
    MARKS.add(mark)
    # To a file: what a test leaves running holds on to it.
    with tempfile.TemporaryFile("w+", errors="backslashreplace") as out:
        process = subprocess.Popen([program.path], cwd=program.directory, env=env, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        more = ""
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            more = "took more than its %d s\n" % LIMIT
            more += "".join(stacks(pid) for pid in sorted(processes_with(mark))[:16])
            end(mark)
            process.wait()
        MARKS.discard(mark)
        out.seek(0)
        return process.returncode == 0 and not more, time.monotonic() - began, out.read() + more


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", action="store_true", help="build, and run nothing")
    parser.add_argument("--only", action="append", metavar="NAME", help="this test program, or those of this crate")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="test programs at a time (default 2)")
    options = parser.parse_args()
    programs = build()
    if options.build:
        return 0
    if options.only:
        programs = [p for p in programs if p.name in options.only or p.crate in options.only]
    if not programs:
        parser.error("there is no such test program")
    order = {name: i for i, name in enumerate(LONG)}
    programs.sort(key=lambda p: (order.get(p.name, len(LONG)), p.crate, p.name))
    failed, tests = [], 0
    lock = threading.Lock()

    def one(program):
        nonlocal tests
        passed, seconds, output = run(program)
        count = sum(map(int, re.findall(r"^test result: \w+\. (\d+) passed", output, re.M)))
        with lock:
            tests += count
            if not passed:
                failed.append(program.name)
                print(output)
            print("%-7s %-12s %-24s %6.2f s  %4d tests" % (
                "passed" if passed else "FAILED", program.crate, program.name, seconds, count), flush=True)

    def ended(*_):
        # The programs are in sessions of their own.
        for mark in list(MARKS):
            end(mark)
        os._exit(1)
    signal.signal(signal.SIGTERM, ended)
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        list(pool.map(one, programs))
    if not options.only and subprocess.run([*CARGO, "--doc", "--quiet"], cwd=ROOT, timeout=LIMIT).returncode != 0:
        failed.append("examples in documentation")
    print("%d programs, %d tests, %d failed%s" % (
        len(programs), tests, len(failed), ": " + ", ".join(failed) if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
