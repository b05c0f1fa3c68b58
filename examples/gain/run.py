#!/usr/bin/env python3
"""What a pool gains for a small job on a slow directory, beside copies to tmpfs by hand. `make demo-gain`.

The job has four tasks. Each reads its part of many small files, several times, and writes a small result for each and
a line of a log for each reading. Then all tasks write one shared file in turns of 8 KiB, and each reads back what
another task has written.

Everything is on this host. The slow directory is emulated by tools/slowfs: a latency of each operation and a rate
that all share, over FUSE, without a cache. "Two nodes" are two daemons here; their network is loopback. So look at
what takes how many times as long, not at seconds. The results of all ways are compared byte for byte.
"""
import argparse
import hashlib
import os
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

TASKS = 4
# Small files: their bytes, and how often each is read.
SIZE, PASSES = 8192, 8
# Bytes that a task writes to the shared file at once.
BYTES_PER_TURN = 8192
# The slow directory: bytes per second, milliseconds of each operation.
ORIGIN = {"rate": 200 * MiB, "latency_ms": 1}
# Processes of the parallel copy by hand, and threads of staging.
COPIERS = 8
MEDIA = "memory:256M"

# One task. It knows nothing of Forebay. Prints how long its two parts have taken.
TASK = """import hashlib, os, sys, time
source, target, task, tasks, passes, turns, turn = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
began = time.monotonic()
names = sorted(os.listdir(source))[task::tasks]
os.makedirs(target, exist_ok=True)
digests = {name: hashlib.sha256() for name in names}
with open("%s/log-%d" % (target, task), "wb", 0) as log:
    for n in range(passes):
        for name in names:
            with open(source + "/" + name, "rb") as f:
                digests[name].update(f.read())
            log.write(b"pass %d: %s\\n" % (n, name.encode()))
for name in names:
    with open(target + "/" + name + ".sum", "w") as f:
        f.write(digests[name].hexdigest())
small = time.monotonic() - began
shared = target + "/shared"
def block(task, n):
    return hashlib.sha256(b"%d %d" % (task, n)).digest() * (turn // 32)
fd = os.open(shared, os.O_RDWR | os.O_CREAT, 0o644)
for n in range(turns):
    os.pwrite(fd, block(task, n), (n * tasks + task) * turn)
open(target + "/done-%d" % task, "w").close()
other = (task + 1) % tasks
until = time.monotonic() + 60
while not os.path.exists(target + "/done-%d" % other):
    if time.monotonic() > until: sys.exit("task %d isn't done" % other)
    time.sleep(0.005)
for n in range(turns):
    assert os.pread(fd, turn, (n * tasks + other) * turn) == block(other, n), "other bytes in the shared file"
print(small, time.monotonic() - began - small)
"""


class Job:
    """Its size: small files, and turns of each task in the shared file."""
    files, turns = 300, 1024


def job(source, target, prefix, environment):
    """Runs the tasks together: seconds of their small files and of the shared file, by the slowest task."""
    numbers = [str(number) for number in (TASKS, PASSES, Job.turns, BYTES_PER_TURN)]
    words = [(prefix(task) + [sys.executable, "-c", TASK, source, target, str(task), *numbers], environment)
             for task in range(TASKS)]
    times = [tuple(map(float, line.split())) for line in pools.run_together("the job", words).strip().split("\n")]
    return max(t[0] for t in times), max(t[1] for t in times)


def plain(_task):
    return []


def in_place(slow, base, environment):
    """The tasks work in the slow directory."""
    small, shared = job(slow + "/in", slow + "/out", plain, environment)
    return [0, small, shared, 0]


def timed(function, *arguments):
    began = time.monotonic()
    function(*arguments)
    return time.monotonic() - began


def copy(source, target):
    pools.run(["cp", "-a", source, target])


def copy_in_parallel(source, target):
    os.mkdir(target)
    pools.run(["sh", "-c", 'cd "$1" && ls | xargs -P %d -n 25 cp -a -t "$2"' % COPIERS, "sh", source, target])


def by_hand(slow, base, environment, cp=copy):
    """Copies to tmpfs, works there, copies back."""
    local = tempfile.mkdtemp(dir=base)
    copied = timed(cp, slow + "/in", local + "/in")
    small, shared = job(local + "/in", local + "/out", plain, environment)
    back = timed(cp, local + "/out", slow + "/out")
    shutil.rmtree(local)
    return [copied, small, shared, back]


def by_hand_in_parallel(slow, base, environment):
    return by_hand(slow, base, environment, copy_in_parallel)


class Forebay:
    """Commands on a pool of this run."""

    def __init__(self, base, environment, nodes):
        self.nodes = nodes
        self.environment = {**environment, "FOREBAY_HOME": base + "/home"}
        os.makedirs(base + "/home", 0o700, exist_ok=True)

    def __call__(self, *words):
        return pools.run([pools.FOREBAY, "--pool", "gain", *words], env=self.environment)

    def up(self, *more):
        self("up", "--media", MEDIA, *(["--nodes", str(self.nodes)] if self.nodes > 1 else []), *more)

    def on(self, task):
        node = ["--node", str(task % self.nodes)] if self.nodes > 1 else []
        return [pools.FOREBAY, "exec", "--pool", "gain", *node, "--"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run([pools.FOREBAY, "down", "--force", "--pool", "gain"], env=self.environment, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def pool(slow, base, environment, nodes=1):
    """up, stage in, exec, stage out, down. Start and removal count as parts of the copies."""
    with Forebay(base, environment, nodes) as forebay:
        def start():
            forebay.up()
            forebay("stage", "in", "--threads", str(COPIERS), slow + "/in", "/in")
            forebay("exec", "--", "mkdir", "/fb/out")
            if nodes > 1:
                forebay("set", "--distribution", "striped", "/out")

        def end():
            forebay("stage", "out", "--threads", str(COPIERS), "/out", slow + "/out")
            forebay("down")

        copied = timed(start)
        small, shared = job("/fb/in", "/fb/out", forebay.on, forebay.environment)
        return [copied, small, shared, timed(end)]


def pool_of_two(slow, base, environment):
    return pool(slow, base, environment, 2)


def origin(slow, base, environment):
    """A pool with the slow directory as its origin: the tasks use the directory's own paths, and nothing is staged."""
    with Forebay(base, environment, 1) as forebay:
        def end():
            forebay("origin", "sync")
            forebay("down")

        copied = timed(forebay.up, "--origin", slow)
        small, shared = job(slow + "/in", slow + "/out", forebay.on, forebay.environment)
        return [copied, small, shared, timed(end)]


WAYS = [("in the slow directory", in_place), ("cp -a to tmpfs and back", by_hand),
        ("cp by %d processes to tmpfs and back" % COPIERS, by_hand_in_parallel), ("pool, one node", pool),
        ("pool, two nodes", pool_of_two), ("pool with the directory as origin", origin)]


def digest(directory):
    """Of all names and bytes below it."""
    whole = hashlib.sha256()
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), "rb") as f:
            whole.update(b"%s %s\n" % (name.encode(), hashlib.sha256(f.read()).hexdigest().encode()))
    return whole.hexdigest(), len(os.listdir(directory))


def once(way, base, environment):
    """One run of a way, in a slow directory of its own: its times, and what it has left there."""
    here = tempfile.mkdtemp(dir=base)
    source = os.path.join(here, "source")
    os.makedirs(source + "/in")
    for n in range(Job.files):
        with open("%s/in/%04d" % (source, n), "wb") as f:
            f.write(hashlib.sha256(b"%d" % n).digest() * (SIZE // 32))
    slow = SlowFs(os.path.join(pools.TARGET, "forebay-slowfs"), source, os.path.join(here, "slow"),
                  os.path.join(here, "control"), **ORIGIN)
    try:
        times = way(slow.at, here, environment)
    finally:
        slow.close()
    left = digest(source + "/out")
    shutil.rmtree(here)
    return times, left


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=1, help="runs of each way, in turns; medians are shown (1)")
    parser.add_argument("--small", action="store_true", help="a tenth of the job: for tests")
    options = parser.parse_args()
    if options.small:
        Job.files, Job.turns = Job.files // 10, Job.turns // 10
    if not os.path.exists("/dev/fuse"):
        print("skipped: the slow directory is emulated by FUSE, and there is no /dev/fuse here")
        return 0
    base = tempfile.mkdtemp(prefix="forebay-gain-", dir="/dev/shm")
    results, left = {}, {}
    try:
        for _ in range(options.runs):
            for name, way in WAYS:
                times, found = once(way, base, pools.environment())
                results.setdefault(name, []).append([*times, sum(times)])
                left[name] = found
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print("%d tasks: %d files of %d KiB, each read %d times, with a line of a log each time and a result;"
          " one shared file\nof %.0f MiB in turns of %d KiB. Slow directory (emulated): %g ms each operation, %d MiB/s;"
          " %d cores. Seconds, %s\n" % (TASKS, Job.files, SIZE >> 10, PASSES, TASKS * Job.turns * BYTES_PER_TURN / MiB,
                              BYTES_PER_TURN >> 10, ORIGIN["latency_ms"], ORIGIN["rate"] // MiB, os.cpu_count(),
                              "one run" if options.runs == 1 else "medians of %d runs" % options.runs))
    titles = ("copy in", "small files", "shared file", "copy out", "all")
    print("%-38s %s" % ("", " ".join("%11s" % title for title in titles)))
    for name, times in results.items():
        print("%-38s %s" % (name, " ".join("%11.2f" % statistics.median(t) for t in zip(*times))))
    print("\nA pool's start, its removal and the verification of each copy are parts of \"copy in\" and \"copy out\"."
          "\ntmpfs has one node's memory, and no other node sees it; to work in, it is as fast as a pool on one node.")
    if len(set(left.values())) != 1:
        print("FAILED: the ways have left different results: %s" % left)
        return 1
    print("OK: %d files in the slow directory, the same bytes by all ways" % next(iter(left.values()))[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
