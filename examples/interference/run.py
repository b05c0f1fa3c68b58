#!/usr/bin/env python3
"""What a neighbour costs: the same job beside one that saturates the slow file system, directly on it and through Forebay.

The job reads its inputs ten times and writes a result after each time. The neighbour reads and writes in bursts of random length
(--seed). The file system is tools/slowfs: a rate that all share, and a latency; the kernel caches nothing of it. Runs take turns;
each begins with an empty pool. `make bench ONLY=interference`. The table is Markdown: seconds.
"""
import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "pools"))

import pools  # noqa: E402 (found by the path set above)
from slowfs import MiB, SlowFs  # noqa: E402 (found by the path set above)

INPUTS, SIZE, ROUNDS, RESULT = 4, 4 * MiB, 10, 1 * MiB
ORIGIN = {"rate": 200 * MiB, "latency_ms": 1}
# Threads of the neighbour, and how long its bursts and pauses are. Seconds.
THREADS, BURST, PAUSE = 16, (1.0, 8.0), (1.0, 8.0)
POOL = ["--media", "memory:256M", "--origin-lag", "0.5"]

JOB = """import sys
top = sys.argv[1]
for n in range(%d):
    total = 0
    for i in range(%d):
        with open("%%s/in/%%d" %% (top, i), "rb", 0) as f:
            while piece := f.read(1 << 20): total += piece[0]
    with open("%%s/out/%%d" %% (top, n), "wb") as f: f.write(b"%%d" %% total + bytes(%d))
""" % (ROUNDS, INPUTS, RESULT)


class Neighbour:
    """Reads and writes its own files on the slow file system, in bursts."""

    def __init__(self, top, seed):
        self.top, self.draw, self.is_over, self.is_busy = top, random.Random(seed), False, threading.Event()
        os.makedirs(top)
        self.threads = [threading.Thread(target=self.work, args=(n,), daemon=True) for n in range(THREADS)]
        self.threads.append(threading.Thread(target=self.switch, daemon=True))
        for thread in self.threads:
            thread.start()

    def switch(self):
        while not self.is_over:
            self.is_busy.set()
            time.sleep(self.draw.uniform(*BURST))
            self.is_busy.clear()
            time.sleep(self.draw.uniform(*PAUSE))
        self.is_busy.set()

    def work(self, n):
        with open(os.path.join(self.top, str(n)), "w+b", 0) as f:
            while not self.is_over:
                self.is_busy.wait()
                f.seek(0)
                f.write(bytes(MiB)) if n % 2 else (f.truncate(MiB), f.read(MiB))

    def end(self):
        self.is_over = True
        for thread in self.threads:
            thread.join(20)


def timed(words, **more):
    began = time.monotonic()
    pools.run(words, **more)
    return time.monotonic() - began


def clear(top):
    shutil.rmtree(os.path.join(top, "out"), ignore_errors=True)
    os.mkdir(os.path.join(top, "out"))


def through_forebay(top, environment):
    """Seconds of the job, and of the job with the write-back of its results."""
    def forebay(*words):
        pools.run([pools.FOREBAY, *words], env=environment)
    forebay("up", "--pool", "i", "--origin", top, *POOL)
    try:
        began = time.monotonic()
        pools.run([pools.FOREBAY, "exec", "--pool", "i", "--", sys.executable, "-c", JOB, top], env=environment)
        job = time.monotonic() - began
        forebay("origin", "sync", "--pool", "i")
        return job, time.monotonic() - began
    finally:
        forebay("down", "--force", "--pool", "i")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    base = tempfile.mkdtemp(prefix="forebay-interference-", dir="/dev/shm")
    environment = {**pools.environment(), "FOREBAY_HOME": os.path.join(base, "home")}
    os.mkdir(environment["FOREBAY_HOME"])
    program = os.path.join(pools.TARGET, "forebay-slowfs")
    slow, neighbour = [], None
    seconds = {name: [] for name in ("directly, alone", "directly", "through Forebay, alone", "through Forebay",
                                     "through Forebay, until all is at the origin")}
    try:
        slow.append(SlowFs(program, os.path.join(base, "source"), os.path.join(base, "origin"),
                           os.path.join(base, "control"), seed=options.seed, **ORIGIN))
        top = slow[0].at
        os.mkdir(os.path.join(slow[0].source, "in"))
        for i in range(INPUTS):
            with open(os.path.join(slow[0].source, "in", str(i)), "wb") as f:
                f.write(random.Random(i).randbytes(SIZE))
        direct = [sys.executable, "-c", JOB, top]
        for _ in range(3):
            clear(slow[0].source)
            seconds["directly, alone"].append(timed(direct))
            clear(slow[0].source)
            seconds["through Forebay, alone"].append(through_forebay(top, environment)[0])
        neighbour = Neighbour(os.path.join(top, "neighbour"), options.seed)
        for _ in range(options.runs):
            clear(slow[0].source)
            seconds["directly"].append(timed(direct))
            clear(slow[0].source)
            job, whole = through_forebay(top, environment)
            seconds["through Forebay"].append(job)
            seconds["through Forebay, until all is at the origin"].append(whole)
    finally:
        if neighbour:
            neighbour.end()
        for one in slow:
            one.close()
        shutil.rmtree(base, ignore_errors=True)
    print("%d inputs of %d MiB, read %d times; %d results of %d MiB; origin of %d MiB/s, %g ms; neighbour of %d threads; %d CPUs\n" % (
        INPUTS, SIZE // MiB, ROUNDS, ROUNDS, RESULT // MiB, ORIGIN["rate"] // MiB, ORIGIN["latency_ms"],
        THREADS, os.cpu_count()))
    print("| | runs | min | median | max | max / min |\n|---|---|---|---|---|---|")
    for name, all_of_it in seconds.items():
        least, most = min(all_of_it), max(all_of_it)
        print("| %s | %d | %.2f | %.2f | %.2f | %.2f |" % (
            name, len(all_of_it), least, statistics.median(all_of_it), most, most / least))
    return 0


if __name__ == "__main__":
    sys.exit(main())
