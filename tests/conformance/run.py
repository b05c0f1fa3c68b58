#!/usr/bin/env python3
"""Other people's file system test suites, run in a pool: fsx, pjdfstest and fio, through the
preloaded library and through a mount (FUSE).

fsx does random operations on one file, mapped and not, and compares each read with
what it knows. The short form runs some ten thousand operations on each kind of
medium; --long a million from each of four seeds.

pjdfstest checks what POSIX says of names, modes, owners, times and errors. What
doesn't pass is listed, with reasons, in pjdfstest-expected.txt; the list has to be
right in both directions.

fio writes blocks with checksums, at random and in many ways, and reads them back.

fsx and pjdfstest are installed from crates.io into target/conformance, once; fio is
Debian's.
"""
import argparse
import fcntl
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "pools"))

from harness import kill, processes_with  # noqa: E402

SUITES = {"fsx": "0.3.2", "pjdfstest": "0.2.2"}
FACES = ["preload", "fuse"]
MEDIA = {
    "memory": ["memory:256M"],
    "files": ["files:@DIR@:256M"],
    # The file never fits into the first medium.
    "both": ["memory:2M", "files:@DIR@:256M"],
}


# The jobs of fio, each with what it adds to FIO.
FIO = ["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64", "--size=12m", "--randrepeat=1",
       "--group_reporting"]
JOBS = {
    "sequential": ["--rw=write", "--bs=64k"],
    "mixed": ["--rw=randrw", "--bsrange=512-128k"],
    "vectors": ["--rw=randrw", "--bs=8k", "--ioengine=pvsync2"],
    "fsync": ["--rw=randwrite", "--bs=4k", "--ioengine=sync", "--fsync=16"],
    "mapped": ["--rw=randrw", "--bs=4k", "--ioengine=mmap"],
    "mapped-sync": ["--rw=randwrite", "--bs=16k", "--ioengine=mmap", "--fsync=32"],
    "threads": ["--rw=randrw", "--bs=4k", "--numjobs=3", "--thread"],
    "processes": ["--rw=randrw", "--bs=4k", "--numjobs=3", "--fallocate=none"],
    "sync-flags": ["--rw=randwrite", "--bs=4k", "--sync=1", "--direct=1", "--size=2m"],
    "posixaio": ["--rw=randrw", "--bs=4k", "--ioengine=posixaio", "--iodepth=8"],
}


class Failed(Exception):
    pass


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def install(name, prefix):
    """The path of the program, built if it isn't there."""
    program = os.path.join(prefix, "bin", name)
    os.makedirs(prefix, exist_ok=True)
    with open(os.path.join(prefix, ".lock"), "w") as lock:
        # One at a time: another run may be building the same. cargo's time limit bounds the wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(os.path.join(prefix, ".crates.toml")) as f:
                there = '"%s %s ' % (name, SUITES[name]) in f.read()
        except OSError:
            there = False
        if not (there and os.access(program, os.X_OK)):
            say("installing %s %s" % (name, SUITES[name]))
            env = {k: v for k, v in os.environ.items() if not k.startswith("CARGO_PROFILE_")}
            env["CARGO_TARGET_DIR"] = os.path.join(prefix, "build")
            subprocess.run(
                ["cargo", "install", "--locked", "--quiet", "--root", prefix, "--version",
                 SUITES[name], name], env=env, check=True, timeout=900)
            shutil.rmtree(env["CARGO_TARGET_DIR"], ignore_errors=True)
    return program


class Bench:
    """A pool and a directory of its own to run programs in, which see it by a face."""

    def __init__(self, forebay, media, face):
        self.forebay = forebay
        self.face = face
        self.home = tempfile.mkdtemp(prefix="fbc-", dir="/dev/shm")
        self.dir = tempfile.mkdtemp(prefix="forebay-conformance-", dir="/tmp")
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith("FOREBAY_") and k != "LD_PRELOAD"}
        self.env.update(FOREBAY_HOME=self.home, RUST_BACKTRACE="0", NO_COLOR="1")
        self.media = []
        for spec in media:
            self.media += ["--media", spec.replace("@DIR@", self.dir)]
        # Where programs see it.
        self.path = "/fb" if face == "preload" else os.path.join(self.dir, "mnt")

    def __enter__(self):
        try:
            self.forebay_does(["up"] + self.media, check=True)
            if self.face == "fuse":
                os.mkdir(self.path)
                # Tests switch users.
                os.chmod(self.dir, 0o711)
                everybody = ["--allow-other"] if os.getuid() == 0 else []
                self.forebay_does(["mount", *everybody, self.path], check=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def forebay_does(self, args, check):
        subprocess.run([self.forebay] + args, env=self.env, check=check, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)

    def run(self, command, seconds):
        """Exit code and output of a command in the pool."""
        inside = [self.forebay, "exec", "--"] if self.face == "preload" else []
        # To a file: what a test leaves running holds on to it.
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            try:
                rc = subprocess.run(
                    inside + command, env=self.env, cwd=self.dir,
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=seconds).returncode
            except subprocess.TimeoutExpired:
                raise Failed("it took more than %g s" % seconds)
            out.seek(0)
            return rc, out.read()

    def fsck(self):
        done = subprocess.run([self.forebay, "fsck"], env=self.env, timeout=60, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise Failed("forebay fsck: exit code %d\n%s" % (done.returncode, tail(done.stdout)))

    def __exit__(self, *_):
        self.forebay_does(["down", "--force"], check=False)
        for pid in processes_with("FOREBAY_HOME=%s" % self.home):
            kill(pid)
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w") as f:
            f.write(text)
        return path


def tail(text, lines=30):
    return "\n".join("    " + line[:300] for line in text.rstrip().split("\n")[-lines:])


def fsx(program, forebay, face, media, runs, operations, seed, mapread):
    """`runs` runs of so many operations, with consecutive seeds, on one file after another."""
    with open(os.path.join(HERE, "fsx.toml")) as f:
        settings = f.read().replace("@MAPREAD@", "%g" % mapread)
    with Bench(forebay, MEDIA[media], face) as bench:
        config = bench.file("fsx.toml", settings)
        for s in range(seed, seed + runs):
            command = [program, "-f", config, "-N", str(operations), "-S", str(s), "-P", bench.dir,
                       os.path.join(bench.path, "file")]
            rc, out = bench.run(command, 60 + operations / 200)
            if rc != 0 or "A-OK" not in out:
                raise Failed("seed %d: exit code %d\n%s" % (s, rc, tail(out)))
        bench.fsck()
    return "%d operations" % (runs * operations)


def fio(forebay, face, media, seed):
    with Bench(forebay, MEDIA[media], face) as bench:
        for name, job in JOBS.items():
            # Later settings win.
            command = ["fio", "--name=" + name, "--ioengine=psync", "--randseed=%d" % seed]
            rc, out = bench.run(command + FIO + job + ["--directory=" + bench.path], 60)
            if rc != 0 or "err= 0" not in out:
                raise Failed("%s: exit code %d\n%s" % (name, rc, tail(out)))
        bench.fsck()
    return "%d jobs" % len(JOBS)


def expected(face):
    """(result, pattern) for each line of the list that is about this face."""
    with open(os.path.join(HERE, "pjdfstest-expected.txt")) as f:
        lines = [line.split(None, 3) for line in f if line.strip() and not line.startswith("#")]
    for line in lines:
        if len(line) != 4 or line[0] not in ("fail", "skip") or line[1] not in ("preload", "fuse", "both"):
            raise Failed("pjdfstest-expected.txt: not a result, a face, a name and a reason: %s" % line)
    return [(result, name) for result, faces, name, _ in lines if faces in ("both", face)]


RESULT = re.compile(r"^(\S+)\s+(ok|FAILED|skipped|failed as expected|PASSED UNEXPECTEDLY)$", re.M)
MEANS = {"ok": "ok", "PASSED UNEXPECTEDLY": "ok", "skipped": "skip", "FAILED": "fail",
         "failed as expected": "fail"}


def pjdfstest(program, forebay, face):
    wanted = expected(face)
    names = ", ".join('"%s"' % name for result, name in wanted if result == "fail")
    with open(os.path.join(HERE, "pjdfstest.toml")) as f:
        settings = f.read().replace("@EXPECTED@", names)
    with Bench(forebay, MEDIA["memory"], face) as bench:
        config = bench.file("pjdfstest.toml", settings)
        rc, out = bench.run([program, "-c", config, "-p", bench.path, "-s", bench.dir], 120)
        bench.fsck()
    root = os.getuid() == 0
    results = {name: MEANS[result] for name, result in RESULT.findall(out)}
    wrong = []
    for name, result in sorted(results.items()):
        listed = next((r for r, pattern in wanted if fnmatch.fnmatchcase(name, pattern)), "ok")
        # Without root many tests are skipped.
        if result != listed and not (result == "skip" and not root):
            wrong.append("%s: %s, not %s" % (name, result, listed))
    for _, pattern in wanted:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in results):
            wrong.append("%s: no such test" % pattern)
    if wrong or rc != 0 or len(results) < 398:
        raise Failed("exit code %d, %d results\n%s\n%s"
                     % (rc, len(results), tail("\n".join(wrong)), tail(out)))
    count = list(results.values()).count
    return "%d ok, %d as listed" % (count("ok"), count("fail") + count("skip"))


def main():
    parser = argparse.ArgumentParser(description="Run fsx, pjdfstest and fio in pools.")
    parser.add_argument("--forebay", metavar="PATH",
                        default=os.path.join(ROOT, "target", "release", "forebay"))
    parser.add_argument("--long", action="store_true",
                        help="a million operations of fsx from each seed (several minutes)")
    parser.add_argument("--seed", type=int, action="append", metavar="N",
                        help="the seeds of fsx and fio (default 1 2 3 4)")
    parser.add_argument("--only", action="append", choices=["fio", *SUITES], metavar="SUITE",
                        help="this suite only: fsx, pjdfstest or fio")
    parser.add_argument("--face", action="append", choices=FACES,
                        help="through this face only")
    parser.add_argument("--prefix", metavar="DIR", help="where the suites are installed",
                        default=os.path.join(ROOT, "target", "conformance"))
    options = parser.parse_args()
    # So that pools are removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit("ended by %s" % signal.Signals(number).name))
    forebay = os.path.abspath(options.forebay)
    if not os.access(forebay, os.X_OK):
        parser.error("%s is not there: build it, or name it with --forebay" % forebay)
    suites = options.only or ["fio", *SUITES]
    programs = {name: install(name, os.path.abspath(options.prefix))
                for name in suites if name in SUITES}
    seeds = options.seed or [1, 2, 3, 4]

    todo = []
    for face in options.face or FACES:
        if "fsx" in suites:
            for i, seed in enumerate(seeds):
                media = ["memory", "files", "both", "memory"][i % 4]
                # fsync and msync take their time where there is a disk.
                operations = 1000000 if options.long else 20000 if media == "memory" else 5000
                if face == "fuse" and not options.long:
                    operations //= 4
                todo.append(("fsx, %s, seed %d, %s" % (face, seed, media), fsx,
                             (programs["fsx"], forebay, face, media, 1, operations, seed,
                              0.03 if options.long else 0.1)))
                # Mapped reads in plenty, in many short runs.
                if face == "preload":
                    todo.append(("fsx, seed %d, %s, mapped" % (seed, media), fsx,
                                 (programs["fsx"], forebay, face, media,
                                  50 if options.long else 2, 6000, 1000 * seed, 20)))
        if "pjdfstest" in suites:
            todo.append(("pjdfstest, " + face, pjdfstest,
                         (programs["pjdfstest"], forebay, face)))
        if "fio" in suites:
            if not shutil.which("fio"):
                parser.error("fio is not installed (tests/install-packages installs it)")
            for media in ["memory", "both"]:
                todo.append(("fio, %s, %s" % (face, media), fio,
                             (forebay, face, media, seeds[0])))
    failed = 0
    for name, function, args in todo:
        started = time.monotonic()
        try:
            result, text = "passed", function(*args)
        except Failed as e:
            result, text = "failed", str(e)
            failed += 1
        say("%-7s %-30s %6.2f s  %s" % (result, name, time.monotonic() - started, text))
    say("%d passed, %d failed" % (len(todo) - failed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
