#!/usr/bin/env python3
"""What tracepoints cost: the experiments of Vef's dissertation, 3.4.2 and 3.6, on Forebay.

Two processes make empty files in one directory, with nothing on, one tracepoint, four by a profile,
the coarse profile, and everything; in both modes (`keep`: the newest events stay in memory; `record`:
all go to a file), with and without a neighbour that goes through 32 MiB of memory on the same cores.
The ways take turns, some rounds; each is compared with nothing on in the same round. Also: how long
one event takes.
"""
import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
FOUR = 'description = "four"\npoints = ["STORE_CREATE_*", "TRANSACTION_COMMIT_*"]\n'
NEIGHBOUR = r"""
a = bytearray(32 << 20)
while True:
    a[::64] = bytes(len(a) // 64)
"""
LIMIT = 300


class Way:
    def __init__(self, name, points, recorded=False):
        self.name, self.points, self.recorded = name, points, recorded
        self.rates = []
        self.shares = []


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **more)
    if done.returncode != 0:
        sys.exit("%s: exit code %d\n%s%s" % (" ".join(command), done.returncode, done.stdout, done.stderr))
    return done.stdout


def creates(forebay, program, work, way, files):
    """Files made in a second, by two processes together, in a pool of its own."""
    home = tempfile.mkdtemp(prefix="home-", dir=work)
    env = {**os.environ, "FOREBAY_HOME": home}
    run(forebay, "up", "--pool", "t", "--media", "memory:256M", env=env)
    recorder = None
    try:
        run(forebay, "exec", "--pool", "t", "--", "mkdir", "/fb/d", env=env)
        if way.points:
            run(forebay, "trace", "on", *way.points, "--pool", "t", env=env)
        if way.recorded:
            record = [forebay, "trace", "record", "--to", os.path.join(home, "events"), "--pool", "t"]
            recorder = subprocess.Popen(record, env=env, stderr=subprocess.DEVNULL)
        both = [subprocess.Popen([forebay, "exec", "--pool", "t", "--", program, "/fb/d", name, str(files // 2)],
                                 env=env, stdout=subprocess.PIPE, text=True) for name in "ab"]
        times = [float(p.communicate(timeout=LIMIT)[0]) for p in both]
        if recorder:
            recorder.send_signal(signal.SIGINT)
            recorder.wait(LIMIT)
    finally:
        if recorder and recorder.poll() is None:
            recorder.kill()
        subprocess.run([forebay, "down", "--force", "--quiet", "--pool", "t"], env=env, capture_output=True,
                       check=False)
        shutil.rmtree(home, ignore_errors=True)
    return files / max(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=200_000, help="in each run (the dissertation: 2,000,000)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    forebay = os.path.join(target, "release", "forebay")
    with tempfile.TemporaryDirectory(prefix="forebay-tracing-", dir="/dev/shm") as work:
        program = os.path.join(work, "create")
        run("cc", "-O2", "-o", program, os.path.join(HERE, "create.c"))
        four = os.path.join(work, "four.toml")
        with open(four, "w") as f:
            f.write(FOUR)
        for noisy in (False, True):
            neighbours = []
            try:
                if noisy:
                    neighbours = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(2)]
                ways = [Way("nothing", []), Way("nothing, again", []), Way("one point", ["STORE_CREATE_ENTER"]),
                        Way("four points", [four]), Way("coarse profile", ["coarse"]), Way("everything", ["*"]),
                        Way("four points, recorded", [four], True), Way("coarse profile, recorded", ["coarse"], True),
                        Way("everything, recorded", ["*"], True)]
                for r in range(options.rounds):
                    turn = ways if r % 2 == 0 else ways[::-1]
                    for way in turn:
                        way.rates.append(creates(forebay, program, work, way, options.files))
                    for way in ways:
                        way.shares.append(way.rates[-1] / ways[0].rates[-1])
            finally:
                for p in neighbours:
                    p.kill()
                    p.wait()
            print("\n%d files, %s" % (options.files, "with a neighbour" if noisy else "alone"))
            print("%-26s %12s %10s %10s" % ("on", "files/s", "share", "spread"))
            for way in ways:
                print("%-26s %12.0f %10.3f %10.3f" % (
                    way.name, statistics.median(way.rates), statistics.median(way.shares),
                    statistics.pstdev(way.shares)), flush=True)


if __name__ == "__main__":
    main()
