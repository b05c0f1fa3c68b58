#!/usr/bin/env python3
"""What an origin costs and spares: IOR's patterns, and two jobs that share their input, on a slow file system.

Beside a pool with an origin: the origin alone, its files copied by hand to local storage (shared memory), a cache per
node (the kernel's, over the same file system), and a pool without an origin. The file system is tools/slowfs: a
rate that all share, and a latency of each operation. All ways take turns, --runs times. `make bench ONLY=origins`.

IOR's patterns, by processes that begin together: each file is written, then read ten times in pieces of 1 MiB; one
file for all, of which each process has its part, and a file for each process. The two jobs are like those of Nek5000:
each reads the same input, then writes ten outputs; the figure is the run time of the one that ends last.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "pools"))

import pools  # noqa: E402 (found by the path set above)
from slowfs import MiB, SlowFs  # noqa: E402 (found by the path set above)

PROCESSES, PART, WRITTEN, TIMES = 2, 48 * MiB, 80 * MiB, 10
INPUT, OUTPUTS, OUTPUT, STEP = 16 * MiB, 10, 4 * MiB, 0.05
ORIGIN = {"rate": 200 * MiB, "latency_ms": 1}
MEDIA = "memory:512M"

# Processes that begin together, again for each repetition; prints the seconds of each.
IOR = """import os, sys, time
top, what, shape, processes, part, times = sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:])
piece = 1 << 20
block = os.urandom(piece)
def once(p):
    name = top + ("/shared" if shape == "shared" else "/own%d" % p)
    at = p * part if shape == "shared" else 0
    fd = os.open(name, os.O_RDONLY if what == "read" else os.O_WRONLY | os.O_CREAT, 0o644)
    buffer = bytearray(piece)
    for offset in range(at, at + part, piece):
        n = os.preadv(fd, [buffer], offset) if what == "read" else os.pwrite(fd, block, offset)
        assert n == piece, n
    os.close(fd)
for n in range(times):
    go, ready = os.pipe(), os.pipe()
    pids = []
    for p in range(processes):
        pid = os.fork()
        if pid == 0:
            os.close(go[1])
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            once(p)
            os._exit(0)
        pids.append(pid)
    while sum(len(os.read(ready[0], 1)) for _ in pids) < processes: pass
    began = time.monotonic()
    os.close(go[1]); os.close(go[0])
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
    print(time.monotonic() - began, flush=True)
    os.close(ready[0]); os.close(ready[1])
"""

JOB = """import sys, time
top, job, outputs, output, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
with open(top + "/input", "rb", 0) as f:
    while f.read(1 << 20): pass
for n in range(outputs):
    time.sleep(step)
    with open("%s/out-%s-%d" % (top, job, n), "wb", 0) as f:
        for _ in range(output >> 20): f.write(bytes(1 << 20))
"""


class Way:
    """One way to the files."""

    def __init__(self, base, environment):
        # Sockets and mount points of its own.
        self.base = tempfile.mkdtemp(dir=base)
        base, self.environment, self.slow = self.base, environment, []
        self.source = os.path.join(base, "source")
        os.mkdir(self.source)

    def mount(self, name, cache=False):
        self.slow.append(SlowFs(os.path.join(pools.TARGET, "forebay-slowfs"), self.source, os.path.join(self.base, name),
                                os.path.join(self.base, name + ".control"), cache=cache, **ORIGIN))
        return self.slow[-1].at

    def origin_bytes(self):
        files = [f for slow in self.slow for f in slow.stats()["files"].values()]
        return sum(f["bytes_read"] for f in files), sum(f["bytes_written"] for f in files)

    def prefix(self, node):
        """The words before a program on a node."""
        return []

    def top(self, node):
        return self.tops[node]

    def before(self):
        """Done by hand before a program."""

    def after(self):
        """Until the origin has what programs have written."""

    def close(self):
        for slow in self.slow:
            slow.close()
        shutil.rmtree(self.base, ignore_errors=True)


class Alone(Way):
    def open(self):
        self.tops = [self.mount("origin")] * 2


class PerNode(Way):
    """Each node has its own client of the origin, whose pages the kernel keeps."""

    def open(self):
        self.tops = [self.mount("origin%d" % node, cache=True) for node in range(2)]


class ByHand(Way):
    """Each node has local storage; files are copied there and back."""

    def open(self):
        self.at = self.mount("origin")
        self.tops = [os.path.join(self.base, "local%d" % node) for node in range(2)]

    def before(self):
        for top in self.tops[:1] if self.is_one else self.tops:
            os.makedirs(top, exist_ok=True)
            self.had = os.listdir(self.at)
            for name in self.had:
                shutil.copyfile(os.path.join(self.at, name), os.path.join(top, name))

    def after(self):
        for top in self.tops:
            for name in os.listdir(top) if os.path.isdir(top) else []:
                if name not in self.had:
                    shutil.copyfile(os.path.join(top, name), os.path.join(self.at, name))

    def close(self):
        for top in self.tops:
            shutil.rmtree(top, ignore_errors=True)
        super().close()


class Forebay(Way):
    origin = True

    def forebay(self, *words):
        return pools.run([pools.FOREBAY, *words], env=self.environment)

    def open(self):
        options = ["--nodes", "2"] if not self.is_one else []
        if self.origin:
            at = self.mount("origin")
            options += ["--origin", at, "--origin-lag", "0.5"]
        else:
            at = "/fb"
        self.tops = [at] * 2
        self.forebay("up", "--pool", "o", "--media", MEDIA, *options)

    def prefix(self, node):
        return [pools.FOREBAY, "exec", "--pool", "o", *([] if self.is_one else ["--node", str(node)]), "--"]

    def after(self):
        if self.origin:
            self.forebay("origin", "sync", "--pool", "o")

    def close(self):
        subprocess.run([pools.FOREBAY, "down", "--force", "--pool", "o"], env=self.environment, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        super().close()


class WithoutOrigin(Forebay):
    origin = False


WAYS = [("origin alone", Alone), ("copied by hand", ByHand), ("cache per node", PerNode),
        ("pool with origin", Forebay), ("pool without origin", WithoutOrigin)]


def ior(way, what, shape, part, times):
    words = [sys.executable, "-c", IOR, way.top(0), what, shape, *map(str, (PROCESSES, part, times))]
    return [float(x) for x in pools.run(way.prefix(0) + words, env=way.environment).split()]


def fill(directory, sizes):
    for name, size in sizes.items():
        with open(os.path.join(directory, name), "wb") as f:
            f.write(random.Random(size).randbytes(MiB) * (size // MiB))


def measure_ior(kind, base, environment, shape, note):
    names = {"shared": PROCESSES * PART} if shape == "shared" else {"own%d" % p: PART for p in range(PROCESSES)}
    rate = lambda seconds, part=PART: PROCESSES * part / MiB / seconds  # noqa: E731 (short)
    way = kind(base, environment)
    way.is_one = True
    # Reading: the files are at the origin.
    fill(way.source, names)
    try:
        way.open()
        if kind is WithoutOrigin:
            ior(way, "write", shape, PART, 1)
        began = time.monotonic()
        way.before()
        copied = time.monotonic() - began
        seconds = ior(way, "read", shape, PART, TIMES)
        note("first read", rate(seconds[0] + copied))
        note("later reads", rate(statistics.median(seconds[1:])))
        note("ten reads", rate((sum(seconds) + copied) / TIMES))
        note("MiB read at the origin", way.origin_bytes()[0] / MiB)
    finally:
        way.close()
    way = kind(base, environment)
    way.is_one = True
    try:
        way.open()
        way.before()
        began = time.monotonic()
        seconds = ior(way, "write", shape, WRITTEN, 1)[0]
        note("write", rate(seconds, WRITTEN))
        wait = time.monotonic()
        way.after()
        note("write, until the origin has it", rate(seconds + time.monotonic() - wait, WRITTEN))
    finally:
        way.close()


def measure_jobs(kind, base, environment, note):
    way = kind(base, environment)
    way.is_one = False
    fill(way.source, {"input": INPUT})
    try:
        way.open()
        if kind is WithoutOrigin:
            words = [sys.executable, "-c", "open('/fb/input', 'wb').write(bytes(%d))" % INPUT]
            pools.run(way.prefix(0) + words, env=environment)
        began = time.monotonic()
        way.before()
        jobs = []
        for job in range(2):
            words = [sys.executable, "-c", JOB, way.top(job), str(job), str(OUTPUTS), str(OUTPUT), str(STEP)]
            jobs.append((way.prefix(job) + words, environment))
        pools.run_together("two jobs", jobs)
        note("slower job, seconds", time.monotonic() - began)
        way.after()
        note("both, until the origin has all, seconds", time.monotonic() - began)
        note("MiB read at the origin", way.origin_bytes()[0] / MiB)
    finally:
        way.close()


def table(title, results):
    print("\n%s\n" % title)
    rows = list(dict.fromkeys(row for figures in results.values() for row in figures))
    print("| | %s |\n|---|%s" % (" | ".join(results), "---|" * len(results)))
    for row in rows:
        cells = []
        for figures in results.values():
            all_of_it = figures.get(row)
            digits = "%.2f" if "seconds" in row else "%.0f"
            shape = "%s (%s to %s)" % (digits, digits, digits)
            cells.append(shape % (statistics.median(all_of_it), min(all_of_it), max(all_of_it)) if all_of_it else "")
        print("| %s | %s |" % (row, " | ".join(cells)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write all figures there, too")
    options = parser.parse_args()
    base = tempfile.mkdtemp(prefix="forebay-origins-", dir="/dev/shm")
    environment = {**pools.environment(), "FOREBAY_HOME": os.path.join(base, "home")}
    os.mkdir(environment["FOREBAY_HOME"], 0o700)
    patterns = ["one file", "a file per process", "two jobs"]
    results = {pattern: {name: {} for name, _ in WAYS} for pattern in patterns}
    try:
        for _ in range(options.runs):
            for pattern in patterns:
                for name, kind in WAYS:
                    def note(what, value, figures=results[pattern][name]):
                        figures.setdefault(what, []).append(value)
                    if pattern == "two jobs":
                        measure_jobs(kind, base, environment, note)
                    else:
                        measure_ior(kind, base, environment, "shared" if pattern == "one file" else "own", note)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print("%d runs; origin of %d MiB/s, %g ms; %d CPUs. Medians, in parentheses least and most" % (
        options.runs, ORIGIN["rate"] // MiB, ORIGIN["latency_ms"], os.cpu_count()))
    sizes = (PROCESSES, PART // MiB, WRITTEN // MiB)
    table("One file of %d processes; each reads %d MiB and writes %d MiB. MiB/s" % sizes, results["one file"])
    table("A file for each of %d processes; each reads %d MiB and writes %d MiB. MiB/s" % sizes, results["a file per process"])
    table("Two jobs on two nodes: an input of %d MiB for both, %d outputs of %d MiB each" % (
        INPUT // MiB, OUTPUTS, OUTPUT // MiB), results["two jobs"])
    if options.json:
        with open(options.json, "w") as f:
            json.dump(results, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
