#!/usr/bin/env python3
"""Other people's file system test suites, run in a pool: fsx, pjdfstest, fio, dbench and stress-ng, through the
preloaded library and through a mount (FUSE); on pools of one node and of several.

fsx does random operations on one file, mapped and not, and compares each read with
what it knows. The short form runs some ten thousand operations on each kind of
medium; --long a million from each of four seeds. On several nodes (--nodes) the file lies on another
node than fsx, or is striped. Through both faces: it opens the file by a link
that leads to the one and to the other in turn.

pjdfstest checks what POSIX says of names, modes, owners, times and errors. What
doesn't pass is listed, with reasons, in pjdfstest-expected.txt; the list has to be
right in both directions.

fio writes blocks with checksums, at random and in many ways, and reads them back. Through both
faces: at the same time into the same file, and each reads what the other has written.

dbench does what file servers are asked for by office programs, with several clients.

With --origin, each pool has an empty directory of a plain file system as its origin, and files are written back after
a tenth of a second. After a suite, `forebay origin sync` has to succeed, and the origin has to have the pool's tree.
What may fail then is listed in ORIGIN_EXPECTED. pjdfstest pauses for longer than files rest, so that the
origin has them before the next step. With --origin=busy, everything is written back and leaves the pool all the time.
With --origin=bucket, the origin is a bucket (moto), and another pool reads it for the comparison. With --origin-in,
the directory lies below DIR: on a network file system, say (tests/pools/networks.py).

stress-ng's file-system stressors (without --long: some of them) must not fail but where they fail on tmpfs, too.

fsx and pjdfstest are installed from crates.io into target/conformance, once; fio, dbench and
stress-ng are Debian's.
"""
import argparse
import concurrent.futures
import contextlib
import fcntl
import fnmatch
import json
import os
import re
import shutil
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

from harness import kill, processes_with  # noqa: E402 (found by the path set above)
from abilities import grain_of_times, has_attributes  # noqa: E402
from cases import buckets  # noqa: E402

SUITES = {"fsx": "0.3.2", "pjdfstest": "0.2.2"}
CASES = [*SUITES, "fio", "dbench", "stress-ng"]
FACES = ["preload", "fuse", "both"]
MEDIA = {
    "memory": ["memory:256M"],
    "files": ["files:@DIR@:256M"],
    # The file never fits into the first medium.
    "both": ["memory:2M", "files:@DIR@:256M"],
}
# Clients of dbench.
CLIENTS = 4
# stress-ng's stressors without --long, and the seconds of each.
STRESSORS = ["inotify", "binderfs", "rename", "dentry"]
STRESS_SECONDS = 3
# Its exit codes for "done" and "can't be done here".
STRESS_DONE = (0, 3, 4)

# Tests of pjdfstest that may fail in a pool with an origin, besides those in pjdfstest-expected.txt: origin, face,
# name, reason. They fail if the origin has the file already.
ORIGIN_EXPECTED = [
    ("", "preload", "rename::write_access_required_subdir",
     "processes that have changed their user can't ask the origin service: only the pool's user may"),
    ("bucket", "", "rename::changed_ctime_success::dir",
     "directories in a bucket have to be copied: EXDEV, as between file systems"),
]
# Parts of TREE's description that a bucket hasn't.
NOT_IN_A_BUCKET = ("links", "same")
# How long files rest before they are written back; the pauses of pjdfstest; those between evictions. Seconds.
ORIGIN_LAG = 0.1
ORIGIN_NAP = 0.3
EVICTS = 0.05

# Prints, as JSON, {path: what it is} of all below a directory but FIFOs, sockets and devices, which no origin gets.
TREE = r"""
import errno, hashlib, json, os, stat, sys
top, found, first = os.fsencode(sys.argv[1]), {}, {}
def attributes(path):
    try:
        return os.listxattr(path)
    except OSError as e:
        if e.errno != errno.ENOTSUP:
            raise
        return []
def look(path, name):
    st = os.lstat(path)
    kind = stat.S_IFMT(st.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        return
    what = {"kind": oct(kind), "mode": oct(stat.S_IMODE(st.st_mode)), "owner": (st.st_uid, st.st_gid), "mtime": st.st_mtime_ns}
    if kind == stat.S_IFDIR:
        for n in sorted(os.listdir(path)):
            look(path + b"/" + n, name + b"/" + n if name else n)
    else:
        what.update(size=st.st_size, links=st.st_nlink, same=os.fsdecode(first.setdefault(st.st_ino, name)))
    if kind == stat.S_IFLNK:
        what["target"] = os.fsdecode(os.readlink(path))
    else:
        what["attributes"] = {n: os.getxattr(path, n).hex() for n in attributes(path) if n.startswith("user.")}
    if kind == stat.S_IFREG:
        with open(path, "rb") as f:
            what["content"] = hashlib.file_digest(f, "sha256").hexdigest()
    found[os.fsdecode(name)] = what
look(top, b"")
json.dump(found, sys.stdout)
"""

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
                ["cargo", "install", "--locked", "--quiet", "--debug", "--root", prefix, "--version",
                 SUITES[name], name], env=env, check=True, timeout=900)
            shutil.rmtree(env["CARGO_TARGET_DIR"], ignore_errors=True)
    return program


class Bench:
    """A pool and its own directory to run programs in, which see it by a face, or by both."""

    # Without an origin "", with one "plain", "busy" or "bucket": of all pools (--origin). Where its directories lie.
    # The server of the buckets.
    with_origin = ""
    origin_in = "/var/tmp"
    server = None

    def __init__(self, forebay, media, face, nodes=1):
        self.forebay = forebay
        self.origin = ""
        self.text = ""
        self.evictions = None
        self.face = face
        self.nodes = nodes
        self.home = tempfile.mkdtemp(prefix="fbc-", dir="/dev/shm")
        self.dir = tempfile.mkdtemp(prefix="forebay-conformance-", dir="/tmp")
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith("FOREBAY_") and k != "LD_PRELOAD"}
        self.env.update(FOREBAY_HOME=self.home, RUST_BACKTRACE="0", NO_COLOR="1")
        self.media = []
        for spec in media:
            self.media += ["--media", spec.replace("@DIR@", self.dir)]
        if self.with_origin == "bucket":
            self.origin = "s3://%s/%s" % (buckets.BUCKET, os.path.basename(self.dir))
            self.env.update(buckets.at(self.server.port))
        elif self.with_origin:
            self.origin = tempfile.mkdtemp(prefix="forebay-conformance-", dir=self.origin_in)
            # Tests switch users.
            os.chmod(self.origin, 0o755)
        if self.with_origin:
            self.media += ["--origin", self.origin + "=/", "--mount", "/fb", "--origin-lag", str(ORIGIN_LAG)]
        # Where programs see it; by both faces at once, the preloaded library's path is the first.
        self.mount = os.path.join(self.dir, "mnt")
        self.path = self.mount if face == "fuse" else "/fb"
        # Programs run on the last node, and what `elsewhere` does on the first.
        self.here = ["--node", str(nodes - 1)] if nodes > 1 else []
        self.there = ["--node", "0"] if nodes > 1 else []

    def __enter__(self):
        try:
            several = ["--nodes", str(self.nodes)] if self.nodes > 1 else []
            self.forebay_does(["up"] + several + self.media, check=True)
            if self.face != "preload":
                os.mkdir(self.mount)
                # Tests switch users.
                os.chmod(self.dir, 0o711)
                everybody = ["--allow-other"] if os.getuid() == 0 else []
                self.forebay_does(["mount", *self.here, *everybody, self.mount], check=True)
        except BaseException:
            self.__exit__()
            raise
        if self.with_origin == "busy":
            self.evictions = Evictions(self)
        return self

    def forebay_does(self, args, check):
        subprocess.run([self.forebay] + args, env=self.env, check=check, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)

    def run(self, command, seconds, face=None):
        """Exit code and output of a command in the pool."""
        inside = [] if (face or self.face) == "fuse" else [self.forebay, "exec", *self.here, "--"]
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

    def result(self, text):
        """The text of a suite that has passed."""
        return text + self.text

    def elsewhere(self, *command):
        """Runs a command on the first node."""
        self.forebay_does(["exec", *self.there, "--", *command], check=True)

    def output(self, what, *command):
        done = subprocess.run(command, env=self.env, timeout=120, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise Failed("%s: exit code %d\n%s" % (what, done.returncode, tail(done.stdout + done.stderr)))
        return done.stdout

    def fsck(self):
        """The pool is consistent, and so is its origin with it."""
        self.output("forebay fsck", self.forebay, "fsck")
        if self.origin:
            self.check_origin()
            self.output("forebay fsck after origin sync", self.forebay, "fsck")

    def check_origin(self):
        """The origin has all that the pool has, and nothing else."""
        if self.evictions:
            self.evictions.end()
        self.output("forebay origin sync", self.forebay, "origin", "sync")
        status = json.loads(self.output("forebay origin status", self.forebay, "origin", "status", "--json"))
        pool = json.loads(self.output("the pool's tree", self.forebay, "exec", *self.here, "--", sys.executable, "-c",
                                      TREE, "/fb"))
        if self.with_origin == "bucket":
            there, lacking = self.in_the_bucket(), NOT_IN_A_BUCKET
        else:
            there = json.loads(self.output("the origin's tree", sys.executable, "-c", TREE, self.origin))
            lacking = () if has_attributes(self.origin) else ("attributes",)
        grain = 1 if self.with_origin == "bucket" else grain_of_times(self.origin)
        for what in [*pool.values(), *there.values()]:
            what["mtime"] -= what["mtime"] % grain
            for name in lacking:
                what.pop(name, None)
        wrong = ["%s: %s" % (n, status[n]) for n in ("problems", "conflicts") if status[n]]
        if status["dirty_files"]:
            wrong.append("%d dirty files after a sync" % status["dirty_files"])
        for path in sorted(set(pool) | set(there)):
            one, other = pool.get(path, {}), there.get(path, {})
            wrong += ["%s: %s is %s in the pool, %s at the origin" % (path or "/", k, one.get(k), other.get(k))
                      for k in sorted(set(one) | set(other)) if one.get(k) != other.get(k)]
            if "forebay" in os.path.basename(path):
                wrong.append("%s is left at the origin" % path)
        self.text = "; at the origin: %d objects, %d files written" % (len(there), status["written_files"])
        if wrong:
            raise Failed("the origin is not as the pool is\n" + tail("\n".join(wrong)))

    def in_the_bucket(self):
        """The tree of the bucket, as a pool sees it that has never had it."""
        self.output("a second pool", self.forebay, "up", "--pool", "second", "--media", "memory:64M", "--origin",
                    self.origin + "=/", "--mount", "/second")
        tree = self.output("the bucket's tree", self.forebay, "exec", "--pool", "second", "--", sys.executable, "-c",
                           TREE, "/second")
        self.output("its end", self.forebay, "down", "--pool", "second")
        return json.loads(tree)

    def __exit__(self, *_):
        if self.evictions:
            self.evictions.end()
        self.forebay_does(["down", "--force"], check=False)
        for pid in processes_with("FOREBAY_HOME=%s" % self.home):
            kill(pid)
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.dir, ignore_errors=True)
        if self.origin and self.with_origin != "bucket":
            shutil.rmtree(self.origin, ignore_errors=True)

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w") as f:
            f.write(text)
        return path


def tail(text, lines=30):
    return "\n".join("    " + line[:300] for line in text.rstrip().split("\n")[-lines:])


class Evictions:
    """All files are written back and leave the pool, again and again, until `end`."""

    def __init__(self, bench):
        self.bench = bench
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        while not self.over.wait(EVICTS):
            # Files that keep changing fail the sync; other failures show in what the suite finds.
            self.bench.forebay_does(["origin", "sync"], check=False)
            self.bench.forebay_does(["origin", "evict"], check=False)

    def end(self):
        self.over.set()
        self.thread.join()


class Turning:
    """A link that leads to each of some paths in turn, for as long as this is entered."""

    def __init__(self, link, paths):
        self.link, self.paths = link, paths
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.turn, daemon=True)
        self.set(0)

    def set(self, at):
        os.symlink(self.paths[at % len(self.paths)], self.link + ".new")
        os.rename(self.link + ".new", self.link)

    def turn(self):
        at = 0
        while not self.over.wait(0.003):
            at += 1
            self.set(at)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def fsx(program, forebay, face, media, runs, operations, seed, mapread, nodes=1, striped=False):
    """`runs` runs of `operations` operations, with consecutive seeds, on one file after another."""
    with open(os.path.join(HERE, "fsx.toml")) as f:
        settings = f.read()
    values = {"MAPREAD": mapread, "MAPWRITE": 8, "INVALIDATE": 1,
              "REOPEN": 5 if face == "both" else 1}
    for name, value in values.items():
        settings = settings.replace("@%s@" % name, "%g" % value)
    with Bench(forebay, MEDIA[media], face, nodes) as bench:
        config = bench.file("fsx.toml", settings)
        name = "file"
        if nodes > 1:
            bench.elsewhere("mkdir", "/fb/there")
            name = "there/file"
        if striped:
            bench.forebay_does(["set", "--distribution", "striped", "--chunk-size", "1M", "/there"],
                               check=True)
        for s in range(seed, seed + runs):
            if nodes > 1:
                # It lies where it was made.
                bench.elsewhere("bash", "-c", "rm -f /fb/there/file; touch /fb/there/file")
            file = os.path.join(bench.path, name)
            turning = contextlib.nullcontext()
            if face == "both":
                paths = [file, os.path.join(bench.mount, name)]
                file = os.path.join(bench.dir, "file")
                turning = Turning(file, paths)
            command = [program, "-f", config, "-N", str(operations), "-S", str(s), "-P", bench.dir,
                       file]
            with turning:
                rc, out = bench.run(command, 60 + operations / (200 if nodes == 1 else 50))
            if rc != 0 or "A-OK" not in out:
                # The error comes first, then the operations before it.
                first = "\n".join(out.split("\n")[:8])
                raise Failed("seed %d: exit code %d\n%s\n    ...\n%s" % (s, rc, tail(first), tail(out)))
        bench.fsck()
    return bench.result("%d operations" % (runs * operations))


def fio_job(bench, name, job, directory, seed, face=None):
    # Later settings win.
    command = ["fio", "--name=" + name, "--ioengine=psync", "--randseed=%d" % seed]
    rc, out = bench.run(command + FIO + job + ["--directory=" + directory], 120, face)
    if rc != 0 or "err= 0" not in out:
        # fio says what failed before its long report.
        first = "\n".join(line for line in out.split("\n") if re.search("error|err=", line))
        raise Failed("%s: exit code %d\n%s\n    ...\n%s" % (name, rc, tail(first, 8), tail(out)))


def fio(forebay, face, media, seed, nodes=1):
    with Bench(forebay, MEDIA[media], face, nodes) as bench:
        if face == "both":
            return fio_beside(bench, seed)
        jobs = dict(JOBS)
        directory = bench.path
        if nodes > 1:
            # Files of another node: made there, before they are filled from here.
            bench.elsewhere("bash", "-c", "mkdir /fb/there; cd /fb/there; for job in %s; do "
                            "for n in 0 1 2; do touch $job.$n.0; done; done" % " ".join(jobs))
            directory += "/there"
            if face == "preload":
                # Refused: writable mappings of another node's files.
                jobs = {name: job for name, job in jobs.items() if "--ioengine=mmap" not in job}
        for name, job in jobs.items():
            fio_job(bench, name, job, directory, seed)
        bench.fsck()
    return bench.result("%d jobs" % len(jobs))


def fio_beside(bench, seed):
    """Both faces at the same time on one file: each writes a part of it, and reads the other's. The
    parts meet within a page."""
    parts = {"preload": (bench.path, ["--offset=0", "--size=3000000"]),
             "fuse": (bench.mount, ["--offset=3000000", "--size=3000000"])}
    count = 0
    for i, (kind, options) in enumerate({"random": ["--rw=randwrite"], "fsync": ["--rw=randwrite", "--fsync=64"],
                                         "sequential": ["--rw=write"]}.items()):
        job = [ "--bs=1000", "--filename=shared-" + kind, "--fallocate=none",
               "--loops=%d" % (3 if kind == "random" else 1), *options]
        bench.elsewhere("touch", "/fb/shared-" + kind)
        wrong = []

        def work(face):
            try:
                where, part = parts[face]
                fio_job(bench, face, job + part, where, seed + i, face)
            except Failed as e:
                wrong.append(str(e))
        threads = [threading.Thread(target=work, args=(face,)) for face in parts]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if wrong:
            raise Failed("%s: %s" % (kind, "\n".join(wrong)))
        # The writes of one, as the other sees it.
        for face, other in ("preload", "fuse"), ("fuse", "preload"):
            fio_job(bench, face, job + parts[face][1] + ["--verify_only", "--loops=1"], parts[other][0], seed + i, other)
        count += 4
    bench.fsck()
    return bench.result("%d jobs" % count)


def spend_semaphore_zero():
    """dbench takes 0, which the first System V semaphore of a machine has for its identifier, for a failure."""
    made = subprocess.run(["ipcmk", "-S", "1"], check=True, capture_output=True, text=True, timeout=10)
    number = re.search(r"(\d+)\s*$", made.stdout)[1]
    subprocess.run(["ipcrm", "-s", number], check=True, timeout=10)


def dbench(forebay, face, media, seconds, nodes=1):
    spend_semaphore_zero()
    with Bench(forebay, MEDIA[media], face, nodes) as bench:
        command = ["dbench", "-c", "/usr/share/dbench/client.txt", "-t", str(seconds), "-D", bench.path,
                   "--xattr", "--stat-check", str(CLIENTS)]
        rc, out = bench.run(command, 60 + 3 * seconds)
        rate = re.search(r"^Throughput ([\d.]+) MB/sec", out, re.M)
        # It goes on after errors.
        wrong = [line for line in out.split("\n") if re.search("failed|ERROR|Bad file", line)]
        if rc != 0 or not rate or wrong:
            raise Failed("exit code %d\n%s\n    ...\n%s" % (rc, tail("\n".join(wrong[:8])), tail(out)))
        bench.fsck()
    return bench.result("%s MB/s" % rate[1])


def stress_ng(forebay, face, media, stressors, seconds):
    def command(stressor, path):
        return ["stress-ng", "--" + stressor, "1", "-t", str(seconds), "--temp-path", path]

    plain = tempfile.mkdtemp(prefix="fbc-", dir="/dev/shm")
    failed, as_there = [], []
    try:
        with Bench(forebay, MEDIA[media], face) as bench:
            bench.elsewhere("chmod", "777", "/fb")
            for stressor in stressors:
                try:
                    # Some remove for minutes what they have made in one.
                    rc, out = bench.run(command(stressor, bench.path), 60 + 10 * seconds)
                except Failed as e:
                    failed.append("%s: %s" % (stressor, e))
                    continue
                if rc in STRESS_DONE:
                    continue
                there = subprocess.run(command(stressor, plain), cwd=plain, timeout=60 + 10 * seconds,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL).returncode
                if there in STRESS_DONE:
                    failed.append("%s: exit code %d\n%s" % (stressor, rc, tail(out)))
                else:
                    as_there.append(stressor)
            bench.fsck()
    finally:
        shutil.rmtree(plain, ignore_errors=True)
    if failed:
        raise Failed("\n".join(failed))
    also = "; fail on tmpfs, too: " + " ".join(as_there) if as_there else ""
    return bench.result("%d stressors%s" % (len(stressors), also))


def file_system_stressors():
    """All that stress-ng has."""
    said = subprocess.run(["stress-ng", "--class", "filesystem?"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=20).stdout
    return said.split(":", 1)[1].split()


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


def pjdfstest(program, forebay, face, nodes=1):
    wanted = expected(face)
    names = ", ".join('"%s"' % name for result, name in wanted if result == "fail")
    with open(os.path.join(HERE, "pjdfstest.toml")) as f:
        settings = f.read().replace("@EXPECTED@", names)
        settings = settings.replace("@NAP@", str(ORIGIN_NAP if Bench.with_origin else 0.02))
    root = os.getuid() == 0
    with Bench(forebay, MEDIA["memory"], face, nodes) as bench:
        def test(*tests):
            config = bench.file("pjdfstest.toml", settings.replace("@REMOUNT@", str(bool(tests)).lower()))
            rc, out = bench.run([program, "-c", config, "-p", bench.path, "-s", bench.dir, *tests], 240)
            return rc, out, {name: MEANS[result] for name, result in RESULT.findall(out)}

        rc, out, results = test()
        if face == "fuse" and root:
            # Tests that remount run alone: other tests leave files open, for which a mount is busy
            # (also on tmpfs). With fuse3 installed, mount(8) would leave the remount to a program
            # that starts `forebay`, without -i.
            os.mkdir(os.path.join(bench.dir, "bin"))
            mount = bench.file("bin/mount", '#!/bin/sh\nexec %s -i "$@"\n' % shutil.which("mount"))
            os.chmod(mount, 0o755)
            bench.env["PATH"] = os.path.dirname(mount) + ":" + os.environ["PATH"]
            for name in results:
                if "::erofs" in name:
                    one_rc, one_out, one = test(name)
                    results[name] = one.get(name, "fail")
                    if one_rc != 0:
                        rc, out = one_rc, one_out
        bench.fsck()
    wrong = []
    may_fail = [name for origin, only, name, _ in ORIGIN_EXPECTED if origin in ("", Bench.with_origin)
                and only in ("", face) and results.get(name) == "fail"]
    if Bench.with_origin and may_fail:
        # The exit code is for these; all results are looked at below.
        rc = 0
        results.update((name, "ok") for name in may_fail)
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
    return bench.result("%d ok, %d as listed" % (count("ok"), count("fail") + count("skip")))


def one_node(suites, programs, forebay, face, seeds, long, _nodes):
    """(name, function, arguments) of what runs on one node."""
    todo = []
    if "fsx" in suites:
        for i, seed in enumerate(seeds[:None if long or face != "both" else 2]):
            media = ["memory", "files", "both", "memory"][i % 4]
            # fsync and msync take their time where there is a disk.
            operations = 1000000 if long else 20000 if media == "memory" else 5000
            if face != "preload" and not long:
                operations //= 4
            todo.append(("fsx, %s, seed %d, %s" % (face, seed, media), fsx,
                         (programs["fsx"], forebay, face, media, 1, operations, seed,
                          0.3 if long else 4)))
            # Mapped reads in plenty, in many short runs.
            if face == "preload":
                todo.append(("fsx, seed %d, %s, mapped" % (seed, media), fsx,
                             (programs["fsx"], forebay, face, media, 50 if long else 2, 12000,
                              1000 * seed, 20)))
    if "pjdfstest" in suites and face != "both":
        todo.append(("pjdfstest, " + face, pjdfstest, (programs["pjdfstest"], forebay, face)))
    if "fio" in suites:
        for media in ["memory", "both"] if long or face != "both" else ["memory"]:
            todo.append(("fio, %s, %s" % (face, media), fio, (forebay, face, media, seeds[0])))
    if "dbench" in suites and face != "both":
        todo.append(("dbench, " + face, dbench, (forebay, face, "memory", 60 if long else 3)))
    if "stress-ng" in suites and (face == "preload" or face == "fuse" and long):
        stressors = file_system_stressors() if long else STRESSORS
        seconds = 60 if long else STRESS_SECONDS
        todo.append(("stress-ng, " + face, stress_ng, (forebay, face, "memory", stressors, seconds)))
    return todo


def several_nodes(suites, programs, forebay, face, seeds, long, nodes):
    """The same of what runs on several."""
    todo = []
    where = "%s, %d nodes" % (face, nodes)
    if "fsx" in suites:
        for striped in (False, True) if long or face != "both" else (True,):
            name = "fsx, %s, %s" % (where, "striped" if striped else "away")
            todo.append((name, fsx, (programs["fsx"], forebay, face, "memory", 1,
                                     200000 if long else 2000, seeds[0], 0.1, nodes, striped)))
    if "pjdfstest" in suites and face != "both":
        todo.append(("pjdfstest, " + where, pjdfstest, (programs["pjdfstest"], forebay, face, nodes)))
    if "fio" in suites and long:
        todo.append(("fio, " + where, fio, (forebay, face, "memory", seeds[0], nodes)))
    if "dbench" in suites and face != "both" and long:
        todo.append(("dbench, " + where, dbench, (forebay, face, "memory", 60, nodes)))
    return todo


def main():
    parser = argparse.ArgumentParser(description="Run suites of others in pools.")
    parser.add_argument("--forebay", metavar="PATH",
                        default=os.path.join(ROOT, "target", "release", "forebay"))
    parser.add_argument("--long", action="store_true",
                        help="a million operations of fsx from each seed; 200,000 over several nodes "
                             "(an hour and a half)")
    parser.add_argument("--seed", type=int, action="append", metavar="N",
                        help="the seeds of fsx and fio (default 1 2 3 4)")
    parser.add_argument("--only", action="append", choices=CASES, metavar="SUITE",
                        help="this suite only: fsx, pjdfstest, fio, dbench or stress-ng")
    parser.add_argument("--nodes", type=int, metavar="N", help="only on pools of N nodes (default: 1 and 3)")
    parser.add_argument("--face", action="append", choices=FACES,
                        help="through this face only")
    parser.add_argument("--origin", nargs="?", const="plain", default="", choices=["plain", "busy", "bucket"],
                        help="with an origin behind each pool, which is compared at the end; busy: files are written back "
                             "and leave the pool all the time; bucket: it is one (moto)")
    parser.add_argument("--origin-in", metavar="DIR", default=Bench.origin_in,
                        help="where the origins' directories lie")
    parser.add_argument("--prefix", metavar="DIR", help="where the suites are installed",
                        default=os.path.join(ROOT, "target", "conformance"))
    parser.add_argument("-j", "--jobs", type=int, default=1, help="tests at a time (default 1)")
    parser.add_argument("--install", action="store_true", help="install fsx and pjdfstest, and run nothing")
    options = parser.parse_args()
    # So that pools are removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit("ended by %s" % signal.Signals(number).name))
    Bench.with_origin, Bench.origin_in = options.origin, options.origin_in
    suites = options.only or CASES
    programs = {name: install(name, os.path.abspath(options.prefix))
                for name in suites if name in SUITES}
    if options.install:
        return 0
    forebay = os.path.abspath(options.forebay)
    if not os.access(forebay, os.X_OK):
        parser.error("%s is not there: build it, or name it with --forebay" % forebay)
    for name in set(suites) - set(SUITES):
        if not shutil.which(name):
            parser.error("%s is not installed (tests/install-packages installs it)" % name)
    logs = tempfile.TemporaryDirectory(prefix="forebay-conformance-")
    if options.origin == "bucket":
        Bench.server = buckets.Server(buckets.ServerPlace(logs.name))
    seeds = options.seed or [1, 2, 3, 4]
    faces = options.face or FACES
    todo = []
    for nodes in [options.nodes] if options.nodes else [1, 3]:
        for face in faces:
            cases = one_node if nodes == 1 else several_nodes
            todo += cases(suites, programs, forebay, face, seeds, options.long, nodes)
    failed = []

    def one(test):
        name, function, args = test
        started = time.monotonic()
        try:
            result, text = "passed", function(*args)
        except Failed as e:
            result, text = "failed", str(e)
            failed.append(name)
        say("%-7s %-34s %6.2f s  %s" % (result, name, time.monotonic() - started, text))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, todo))
    say("%d passed, %d failed" % (len(todo) - len(failed), len(failed))
        + (": " + ", ".join(failed) if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
