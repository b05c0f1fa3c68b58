#!/usr/bin/env python3
"""Instructions of each operation in a pool, counted by Valgrind; --against another build's.

Instructions don't depend on what else the machine does, so differences of one percent show. Time
depends on more, caches above all: forebay-bench measures that. Counted are the instructions of the
program under `forebay exec`: two runs of different length, their difference by the operations
between them. The keeper's and the daemons' aren't counted.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
OPERATIONS = ["stat", "open-close", "fstat", "list", "write-4k", "read-4k", "write-100", "create-unlink", "rename",
              "mkdir-rmdir"]
SHORT, LONG = 400, 2400
LIMIT = 120


def count(forebay, ops, operation, times, work):
    """Instructions of the whole program with so many operations, in a pool of its own."""
    home = tempfile.mkdtemp(prefix="home-", dir=work)
    env = {**os.environ, "FOREBAY_HOME": home}

    def run(*command):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode != 0:
            sys.exit("%s: exit code %d\n%s%s" % (" ".join(command), done.returncode, done.stdout, done.stderr))
        return done.stderr

    run(forebay, "up", "--pool", "count", "--media", "memory:256M")
    try:
        said = run(forebay, "exec", "--pool", "count", "--", "valgrind", "--tool=callgrind",
                   "--callgrind-out-file=/dev/null", ops, "/fb/d", operation, str(times))
    finally:
        run(forebay, "down", "--pool", "count")
    return int(re.search(r"Collected : (\d+)", said).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="DIR", help="directory with another build's forebay, such as OTHER/target/release")
    parser.add_argument("--only", help="these operations, separated by commas: " + ", ".join(OPERATIONS))
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else OPERATIONS
    unknown = [name for name in chosen if name not in OPERATIONS]
    if unknown:
        parser.error("no operation '%s'; there are: %s" % (unknown[0], ", ".join(OPERATIONS)))
    if not shutil.which("valgrind"):
        sys.exit("valgrind is needed and isn't installed")
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    builds = [os.path.join(target, "release", "forebay")]
    if options.against:
        builds.insert(0, os.path.join(os.path.abspath(options.against), "forebay"))
    with tempfile.TemporaryDirectory(prefix="forebay-instructions-", dir="/dev/shm") as work:
        ops = os.path.join(work, "ops")
        subprocess.run(["cc", "-O2", "-o", ops, os.path.join(HERE, "ops.c")], check=True, timeout=LIMIT)
        heads = ["before", "now", "ratio"] if options.against else ["now"]
        print("%-14s" % "instructions", *["%10s" % head for head in heads])
        for operation in chosen:
            each = [(count(b, ops, operation, LONG, work) - count(b, ops, operation, SHORT, work)) / (LONG - SHORT)
                    for b in builds]
            ratio = ["%10.3f" % (each[1] / each[0])] if options.against else []
            print("%-14s" % operation, *["%10.0f" % n for n in each], *ratio, flush=True)


if __name__ == "__main__":
    main()
