#!/usr/bin/env python3
"""Whole-system tests: everyday programs run on a plain directory and in a pool.

Each case in cases/*.sh is a bash script that works in the directory it starts
in ($WORK). It is run twice, once on the plain file system and once under
`forebay exec`, with $WORK inside the pool; with --face fuse, without `exec` and with $WORK
below a mount. The exit code, what was written to standard output and the tree of
files left behind have to be the same.

A case may say in comments at its beginning:

    # needs: COMMAND ...   commands which have to be installed
    # media: memory        skipped in pools of anything else: it tells nothing new there
    # needs-xattr          skipped where the plain directory has no user.* attributes
    # timeout: SECONDS     another limit than the usual one, for each of the two runs
    # ignore: GLOB ...     paths below $WORK which are not compared

The environment of a case: WORK, its empty directory; OUTER, an empty directory
on the plain file system in both runs, compared as well; CASES, the directory of
the scripts; CASE_UID, the user's number; ORIGIN, not empty with an origin. The paths have the same length and the
same depth in both runs.
"""
import argparse
import concurrent.futures
import difflib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "pools"))

from abilities import grain_of_times, has_attributes, has_times_of_links  # noqa: E402 (found by the path set above)
from cases import buckets  # noqa: E402
from slowfs import SlowFs  # noqa: E402

CASES = os.path.join(HERE, "cases")
MANIFEST = os.path.join(HERE, "manifest.py")
ROOT = os.path.dirname(os.path.dirname(HERE))
SHOWN_LINES = 60
# Differences through a mount, with reasons. Most come from how the kernel handles FUSE, or two file
# systems.
NOT_THROUGH_FUSE = {
    "c-data": "RWF_NOAPPEND isn't passed on to a FUSE server",
    "c-descriptors": "epoll takes files of FUSE",
    "c-answers": "FUSE's own: kcmp, locks, what is left of a removed directory",
    "c-odd": "the kernel looks at arguments first, and says what it says of FUSE",
    "c-range-locks": "F_GETLK gives a process for a lock of a description",
    "links-into": "rename to another file system is EXDEV before it is looked what is there",
    "move-to-outside": "it goes up as many levels as there are above a directory in /tmp",
    "perf": "it writes from memory of the kernel's, which a mount can't read: EFAULT, as with O_DIRECT",
    "signals": "a handler that opens and writes files every 100 us leaves no time for anything else",
}
# Cases that tell nothing with an origin, with reasons.
NOT_WITH_AN_ORIGIN = {
    "c-odd": "files at an origin aren't those of tmpfs",
    "move-to-outside": NOT_THROUGH_FUSE["move-to-outside"],
}
# The same with several nodes.
NOT_ON_SEVERAL_NODES = {
    "leases": "refused: other nodes wouldn't know them",
}
# The same where the origin's files are never in the pool: the kernel serves them.
NOT_OFF = {
    "c-refused": "the kernel mounts on the origin's directories",
    "mmap-calls": "it prints when a pool changes times of mapped files",
    "unreached": "statically linked programs see these files, too",
}
# The same of buckets.
NOT_IN_A_BUCKET = {
    "small-files": "mv copies a directory that the bucket has (EXDEV), and links to its files are lost",
}
# moto and network file systems take some milliseconds for each file. Seconds.
SYNC_LIMIT = 300
# Settings of a slow origin: latency of each operation, and a load of others that adds to it.
SLOW = {"latency_ms": 0.5, "contention_ms": 3, "rate": 200 << 20}
START = 'mkdir -p "$WORK" && cd "$WORK" && umask 022 && exec bash "$0"'


class Bound:
    """A new directory below `within`, shown at `at`."""

    def __init__(self, within, at):
        self.source, self.at = tempfile.mkdtemp(dir=within), at
        subprocess.run(["mount", "--bind", self.source, at], check=True, timeout=20)

    def close(self):
        subprocess.run(["umount", "-l", self.at], timeout=20)


class Case:
    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path)[:-len(".sh")]
        self.needs, self.ignore, self.timeout, self.xattr, self.media = ["bash"], [], None, False, ""
        with open(path) as f:
            for line in f:
                if not line.startswith("#"):
                    break
                key, _, rest = line[1:].strip().partition(":")
                if key == "needs":
                    self.needs += rest.split()
                elif key == "ignore":
                    self.ignore += rest.split()
                elif key == "timeout":
                    self.timeout = float(rest)
                elif key == "media":
                    self.media = rest.strip()
                elif key == "needs-xattr":
                    self.xattr = True


class Failure(Exception):
    pass


class Skip(Exception):
    pass


class Ran:
    """The result of one command."""

    def __init__(self):
        self.rc = None
        self.seconds = 0.0
        self.timed_out = False
        self.dump = ""
        self.out = ""
        self.err = ""


def processes_with(setting):
    """The ids of the processes whose environment has this NAME=VALUE."""
    wanted = setting.encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % entry, "rb") as f:
                if wanted in f.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            pass
    return found


def read_text(path, limit=None):
    try:
        with open(path, "rb") as f:
            data = f.read() if limit is None else f.read(limit)
        return data.decode("utf-8", "backslashreplace")
    except OSError as e:
        return "(%s)\n" % e


def stacks(pid):
    """Where the threads of a process are, as well as it can be found out."""
    title = "--- process %d: %s\n" % (
        pid, read_text("/proc/%d/cmdline" % pid).replace("\0", " ").strip())
    if shutil.which("gdb"):
        try:
            done = subprocess.run(
                ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off",
                 "-ex", "thread apply all bt 30"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=15, env={**os.environ, "DEBUGINFOD_URLS": ""})
            text = done.stdout.decode("utf-8", "replace")
            if "#0" in text:
                kept = [line for line in text.splitlines()
                        if line.startswith(("#", "Thread ")) or line == ""]
                return title + "\n".join(kept[:150]) + "\n"
        except (OSError, subprocess.SubprocessError):
            pass
    parts = [title]
    for task in sorted(os.listdir("/proc/%d/task" % pid)) if os.path.isdir("/proc/%d/task" % pid) else []:
        for what in ("wchan", "syscall", "stack"):
            parts.append("%s %s: %s\n" % (
                task, what, read_text("/proc/%d/task/%s/%s" % (pid, task, what)).strip()))
    status = read_text("/proc/%d/status" % pid).splitlines()
    parts.append("\n".join(line for line in status if line.startswith(
        ("Name", "State", "Pid", "PPid", "Threads", "Sig"))) + "\n")
    return "".join(parts)


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def difference(title, outside, inside):
    if outside == inside:
        return ""
    lines = list(difflib.unified_diff(
        outside.splitlines(), inside.splitlines(), "outside", "inside", "", "", 2, ""))
    more = len(lines) - SHOWN_LINES
    text = "\n".join("      " + line[:400] for line in lines[:SHOWN_LINES])
    if more > 0:
        text += "\n      ... and %d lines more" % more
    if not lines:
        text = "      (only the end of the last line differs)"
    return "    %s:\n%s\n" % (title, text)


def indented(title, text, lines=40):
    text = text.rstrip("\n")
    if not text:
        return ""
    tail = text.split("\n")[-lines:]
    return "    %s:\n%s\n" % (title, "\n".join("      " + line[:400] for line in tail))


class Runner:
    def __init__(self, options):
        self.options = options
        self.forebay = os.path.abspath(options.forebay)
        self.tag = "%d" % os.getpid()
        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.home = tempfile.mkdtemp(prefix="fbt-", dir=base)
        self.logs = tempfile.mkdtemp(prefix="forebay-programs-", dir="/tmp")
        self.lock = threading.Lock()
        self.live = {}
        self.server = None
        self.pools = set()
        self.directories = set()
        self.stopping = False
        self.keep_logs = options.keep
        self.has_xattr = self.probe_xattr()

    def probe_xattr(self):
        try:
            os.setxattr(self.logs, "user.probe", b"1")
            os.removexattr(self.logs, "user.probe")
            return True
        except OSError:
            return False

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith(("FOREBAY_", "GIT_", "PYTHON", "LC_", "TAR_", "GREP_"))}
        for name in ("CDPATH", "BASH_ENV", "ENV", "LD_PRELOAD", "TMPDIR", "POSIXLY_CORRECT",
                     "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "LS_COLORS", "BLOCK_SIZE", "GZIP",
                     "XZ_OPT", "PERL5OPT", "CC", "CFLAGS", "AWKPATH", "QUOTING_STYLE"):
            env.pop(name, None)
        # The interpreter that runs this is the python3 that the cases find.
        own = os.path.dirname(os.path.realpath(sys.executable))
        env["PATH"] = own + os.pathsep + env.get("PATH", os.defpath)
        env.update(LANG="C", LC_ALL="C", TZ="UTC", FOREBAY_HOME=self.home,
                   GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_NOSYSTEM="1",
                   CASES=CASES, CASE_UID=str(os.getuid()))
        env.update(more)
        return env

    def command(self, argv, env, limit, log, pools_too=False):
        """Run a command to its end or its limit; its output goes to files."""
        ran = Ran()
        mark = "FOREBAY_TEST_MARK=%s-%s" % (self.tag, os.path.basename(log))
        env = dict(env, **dict([mark.split("=", 1)]))
        started = time.monotonic()
        with open(log + ".out", "wb") as out, open(log + ".err", "wb") as err:
            with self.lock:
                if self.stopping:
                    raise Failure("interrupted")
                process = subprocess.Popen(
                    argv, env=env, cwd="/tmp", stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    start_new_session=True)
                self.live[process.pid] = process
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                ran.timed_out = True
                pids = processes_with(mark)
                if process.pid not in pids:
                    pids.insert(0, process.pid)
                if pools_too:
                    # The pool's own processes may be what everything waits for.
                    pool = "FOREBAY_TEST_POOL=%s" % env.get("FOREBAY_POOL")
                    pids += [p for p in processes_with(pool) if p not in pids]
                ran.dump = "".join(stacks(pid) for pid in pids[:20])
                kill_group(process.pid)
                for pid in processes_with(mark):
                    kill(pid)
                process.wait()
            finally:
                with self.lock:
                    self.live.pop(process.pid, None)
        ran.rc = process.returncode
        ran.seconds = time.monotonic() - started
        ran.out, ran.err = read_text(log + ".out"), read_text(log + ".err")
        return ran

    def check(self, what, ran):
        if ran.timed_out:
            raise Failure("%s took more than its time\n" % what
                          + indented("standard error", ran.err)
                          + indented("where its processes were", ran.dump, 200))
        if ran.rc != 0:
            raise Failure("%s: exit code %s\n" % (what, ran.rc)
                          + indented("standard output", ran.out)
                          + indented("standard error", ran.err))

    def manifest(self, prefix, env, directory, ignore, log):
        ran = self.command(prefix + [sys.executable, MANIFEST, directory] + ignore, env,
                           60, log, True)
        self.check("the list of the files left in %s" % directory, ran)
        return ran.out

    def fsck(self, pool, log):
        """Whatever the case did, the pool is whole."""
        ran = self.command([self.forebay, "fsck", "--pool", pool], self.environment(), 60,
                           log + "-fsck")
        self.check("forebay fsck", ran)

    def down(self, pool):
        env = self.environment()
        try:
            with open(os.path.join(self.logs, pool + ".down"), "wb") as log:
                rc = subprocess.run([self.forebay, "down", "--pool", pool, "--force"], env=env,
                                    cwd="/tmp", stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=subprocess.STDOUT, timeout=30).returncode
            text = read_text(os.path.join(self.logs, pool + ".down"))
            return "" if rc == 0 else "forebay down --force: exit code %d\n%s" % (
                rc, indented("its output", text))
        except subprocess.TimeoutExpired:
            return "forebay down --force took more than 30 seconds\n"
        except OSError as e:
            return "forebay down --force: %s\n" % e

    def case(self, number, case):
        """Returns the seconds inside and outside; raises Failure or Skip."""
        missing = [c for c in case.needs if not shutil.which(c)]
        if missing:
            raise Failure("not installed: %s (tests/install-packages installs it)"
                          % " ".join(missing))
        if case.xattr and not self.has_xattr:
            raise Skip("no user.* attributes on the plain file system")
        if not self.options.media.startswith(case.media):
            raise Skip("only in pools of %s media" % case.media)
        nodes = self.options.nodes
        if self.options.face == "fuse" and case.name in NOT_THROUGH_FUSE:
            raise Skip("through a mount: " + NOT_THROUGH_FUSE[case.name])
        if self.options.origin and case.name in NOT_WITH_AN_ORIGIN:
            raise Skip("with an origin: " + NOT_WITH_AN_ORIGIN[case.name])
        if self.options.origin == "bucket" and case.name in NOT_IN_A_BUCKET:
            raise Skip("with a bucket: " + NOT_IN_A_BUCKET[case.name])
        if nodes > 1 and case.name in NOT_ON_SEVERAL_NODES:
            raise Skip("several nodes: " + NOT_ON_SEVERAL_NODES[case.name])
        if self.options.origin == "off" and case.name in NOT_OFF:
            raise Skip("off: " + NOT_OFF[case.name])
        limit = case.timeout or self.options.timeout
        pool = "t%s-%d" % (self.tag, number)
        log = os.path.join(self.logs, case.name)
        fuse = self.options.face == "fuse"
        bucket = self.bucket() if self.options.origin == "bucket" else None
        address = "s3://%s/%s-%d" % (buckets.BUCKET, case.name, number)
        keys = buckets.at(bucket.port) if bucket else {}
        origin = self.directory(20) if self.options.origin and not bucket else None
        slow = None
        # Where the case sees the pool, and where another node sees it.
        seen = [self.directory(20), self.directory(20)] if fuse else [origin or self.options.mount] * 2
        inside_work = "%s/case-%s" % (seen[0], case.name)
        # Paths of the same length and depth: programs store them, and their sizes.
        if fuse or origin:
            plain = "%s/case-%s" % (self.directory(20), case.name)
        else:
            plain = self.directory(len(inside_work))
        outers = [self.directory(20), self.directory(20)]
        medium = self.directory(20)
        bash = [shutil.which("bash"), "-c", START, case.path]
        seconds = []
        sides = []
        failed = True
        try:
            if self.options.origin == "slow":
                slow = self.slow_origin(origin, log)
            if origin and self.options.origin_in:
                slow = Bound(self.options.origin_in, origin)
            for side in (0, 1):
                work = (plain, inside_work)[side]
                label = ("outside", "inside")[side]
                env = self.environment(WORK=work, OUTER=outers[side], HOME=outers[side],
                                       ORIGIN="1" if origin or bucket else "")
                prefix = []
                if side == 1:
                    with self.lock:
                        self.pools.add(pool)
                    up = self.command(
                        [self.forebay, "up", "--pool", pool, "--media",
                         self.options.media.replace("DIR", medium)]
                        + (["--origin", origin] if origin else ["--mount", self.options.mount])
                        + (["--origin-mode", "off"] if self.options.origin == "off" else [])
                        + (["--origin", address] if bucket else [])
                        + (["--nodes", str(nodes)] if nodes > 1 else []),
                        self.environment(FOREBAY_TEST_POOL=pool, **keys), 60, log + "-up")
                    self.check("forebay up", up)
                    if self.options.set:
                        self.check("forebay set", self.command(
                            [self.forebay, "set", "--pool", pool, "/case-" + case.name, *self.options.set.split()],
                            self.environment(FOREBAY_TEST_POOL=pool), 60, log + "-set"))
                    # Root's threads may take other ids for a while.
                    others = ["--allow-other"] if os.getuid() == 0 else []
                    for k in (0, 1) if fuse else ():
                        node = ["--node", str((number + k) % nodes)] if nodes > 1 else []
                        self.check("forebay mount", self.command(
                            [self.forebay, "mount", "--pool", pool, *node, *others, seen[k]],
                            self.environment(FOREBAY_TEST_POOL=pool), 60, log + "-mount"))
                    env["FOREBAY_POOL"] = pool
                    prefix = self.inside(pool, number)
                ran = self.command(prefix + bash, env, limit, "%s-%s" % (log, label), side == 1)
                seconds.append(ran.seconds)
                if ran.timed_out:
                    self.check("%s, the case (limit %g s)" % (label, limit), ran)
                if side == 0:
                    self.check("outside, where nothing of forebay is in use, the case", ran)
                if ran.rc != 0:
                    out = ran.out.replace(work, "@WORK@").replace(outers[side], "@OUTER@")
                    raise Failure(
                        "inside, the case: exit code %s\n" % ran.rc
                        + indented("standard error", ran.err)
                        + difference("standard output", sides[0][0], out))
                out = ran.out.replace(work, "@WORK@").replace(outers[side], "@OUTER@")
                if side == 1:
                    # Another node has to see the same.
                    prefix = self.inside(pool, number + 1)
                    work = "%s/case-%s" % (seen[1], case.name)
                tree = self.manifest(prefix, env, work, case.ignore, "%s-%s-tree" % (log, label))
                plain_env = {k: v for k, v in env.items() if k != "FOREBAY_POOL"}
                outer = self.manifest([], plain_env, outers[side], [],
                                      "%s-%s-outer" % (log, label))
                sides.append((out, tree, outer, ran.err))
                if side == 1:
                    self.fsck(pool, log)
                if side == 1 and bucket:
                    self.sync(pool, log)
                    copy = self.directory(20)
                    try:
                        self.bring_bucket(bucket, address, copy)
                        self.check_bucket(sides[0][1], copy, (inside_work, outers[1]), case, log)
                    finally:
                        self.remove(copy)
                elif side == 1 and origin:
                    self.sync(pool, log)
                    self.check_origin(sides[0][1], (origin, inside_work, outers[1]), case, log)
                elif side == 1 and not fuse and os.path.lexists(inside_work):
                    raise Failure("%s is on the plain file system: the pool was not used"
                                  % inside_work)
            problems = (difference("standard output", sides[0][0], sides[1][0])
                        + difference("files left in $WORK", sides[0][1], sides[1][1])
                        + difference("files left in $OUTER", sides[0][2], sides[1][2]))
            if problems:
                raise Failure("not the same inside as outside\n" + problems
                              + indented("standard error inside", sides[1][3]))
            failed = False
            return seconds[1], seconds[0]
        finally:
            if self.options.keep and pool in self.pools:
                self.rescue(pool, inside_work, case)
            problem = ""
            if pool in self.pools:
                problem = self.down(pool)
                with self.lock:
                    self.pools.discard(pool)
            if slow:
                slow.close()
                self.remove(slow.source)
            if not self.options.keep:
                plains = [os.path.dirname(plain), *seen] if fuse or origin else [plain]
                plains += [origin] if origin else []
                for directory in plains + [medium] + outers:
                    self.remove(directory)
            if problem and not failed:
                raise Failure(problem)

    def slow_origin(self, at, log):
        """A slow file system at this directory."""
        program = os.path.join(os.path.dirname(self.forebay), "forebay-slowfs")
        if not os.access(program, os.X_OK) or not os.path.exists("/dev/fuse"):
            raise Skip("no slow origins without %s and /dev/fuse" % program)
        return SlowFs(program, self.directory(20), at, log + ".control", **SLOW)

    def bucket(self):
        """The server of all cases' buckets."""
        with self.lock:
            if self.server is None:
                self.server = buckets.Server(buckets.ServerPlace(self.logs))
            return self.server

    def bring_bucket(self, server, address, to):
        """What is below an address becomes files of a directory, with links and modes."""
        prefix = address.split("/", 3)[3] + "/"
        directories = []
        query = "?list-type=2&encoding-type=url&prefix=" + urllib.parse.quote(prefix, "")
        keys, more = [], ""
        while more is not None:
            page = server.ask("GET", "", query + more)[2].decode()
            keys += [urllib.parse.unquote_plus(key) for key in re.findall("<Key>(.*?)</Key>", page)]
            token = re.search("<NextContinuationToken>(.*?)</", page)
            more = "&continuation-token=" + urllib.parse.quote(token.group(1), "") if token else None
        for key in keys:
            if key == prefix:
                continue
            path = os.path.join(to, key[len(prefix):])
            headers = server.ask("HEAD", key)[1]
            mode = int(headers.get("x-amz-meta-mode", "0"))
            seconds, _, rest = headers.get("x-amz-meta-mtime", "0").partition(".")
            time_ns = int(seconds) * 10**9 + int(rest or 0)
            if key.endswith("/"):
                os.makedirs(path, exist_ok=True)
                own(path, headers)
                directories.append((path, mode & 0o7777, time_ns))
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            body = server.ask("GET", key)[2]
            if mode & 0o170000 == 0o120000:
                os.symlink(body, path)
                own(path, headers)
            else:
                with open(path, "wb") as f:
                    f.write(body)
                own(path, headers)
                os.chmod(path, mode & 0o7777)
            os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)
        for path, mode, time_ns in reversed(directories):
            os.chmod(path, mode)
            os.utime(path, ns=(time_ns, time_ns))

    def sync(self, pool, log):
        env = self.environment(FOREBAY_TEST_POOL=pool)
        self.check("forebay origin sync", self.command(
            [self.forebay, "origin", "sync", "--pool", pool], env, SYNC_LIMIT, log + "-sync"))

    def check_bucket(self, tree, copy, places, case, log):
        """The same of a bucket, whose objects are in a directory: they have one name each, and text for attributes."""
        inside_work, outer = places
        work = os.path.join(copy, os.path.basename(inside_work))
        env = self.environment(WORK=inside_work, OUTER=outer)
        left = self.manifest([], env, work, case.ignore, log + "-bucket-tree")
        plain = [re.sub(r" links=\d+ |\[user\..*\]$", " ", comparable(t), flags=re.M) for t in (tree, left)]
        problems = difference("files in the bucket", *(re.sub(" +$", "", t, flags=re.M) for t in plain))
        if problems:
            raise Failure("the bucket isn't as a plain directory is\n" + problems)

    def check_origin(self, tree, places, case, log):
        """Everything is at the origin, as a run on a plain directory leaves it."""
        origin, inside_work, outer = places
        env = self.environment(WORK=inside_work, OUTER=outer)
        there = inside_work if os.path.lexists(inside_work) else origin
        left = self.manifest([], env, there, case.ignore, log + "-origin-tree")
        problems = difference("files at the origin", *(kept(comparable(t), origin) for t in (tree, left)))
        if problems:
            raise Failure("the origin isn't as a plain directory is\n" + problems)

    def inside(self, pool, node):
        """The words that run a program in the pool."""
        if self.options.face == "fuse":
            return []
        nodes = self.options.nodes
        which = ["--node", str(node % nodes)] if nodes > 1 else []
        return [self.forebay, "exec", "--pool", pool, *which, "--"]

    def rescue(self, pool, inside_work, case):
        """Copy what the case left in the pool to where it can be looked at."""
        to = os.path.join(self.logs, "inside-" + case.name)
        try:
            subprocess.run([*self.inside(pool, 0), "cp", "-a", inside_work, to],
                           env=self.environment(), stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
        except (OSError, subprocess.SubprocessError):
            pass

    def directory(self, length):
        """A new directory in /tmp whose path has this many characters."""
        while True:
            name = "/tmp/fbt" + "".join(random.choices("abcdefghijkmnpqrstuvwxyz", k=length - 8))
            try:
                os.mkdir(name)
            except FileExistsError:
                continue
            with self.lock:
                self.directories.add(name)
            return name

    def remove(self, directory):
        shutil.rmtree(directory, ignore_errors=True)
        with self.lock:
            self.directories.discard(directory)

    def leftovers(self):
        """Processes of the pools that are still there after `down`."""
        setting = "FOREBAY_HOME=%s" % self.home
        deadline = time.monotonic() + 5
        pids = processes_with(setting)
        while pids and time.monotonic() < deadline:
            time.sleep(0.1)
            pids = processes_with(setting)
        if not pids:
            return ""
        text = "".join("      %d %s\n" % (
            pid, read_text("/proc/%d/cmdline" % pid).replace("\0", " ").strip()) for pid in pids)
        for pid in pids:
            kill(pid)
        return text

    def clean_up(self):
        with self.lock:
            self.stopping = True
            live = list(self.live)
            pools = list(self.pools)
        for pid in live:
            kill_group(pid)
        for pool in pools:
            self.down(pool)
        left = self.leftovers()
        shutil.rmtree(self.home, ignore_errors=True)
        if not self.options.keep:
            for directory in list(self.directories):
                self.remove(directory)
        if not self.keep_logs:
            shutil.rmtree(self.logs, ignore_errors=True)
        return left


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def own(path, headers):
    """Gives a path the owner that the metadata of an object have."""
    if os.getuid() == 0:
        os.chown(path, int(headers.get("x-amz-meta-uid", 0)), int(headers.get("x-amz-meta-gid", 0)), follow_symlinks=False)


def comparable(tree):
    """The lines of a tree but those of FIFOs, sockets and devices, which no origin gets."""
    return "".join(line for line in tree.splitlines(True) if " other(" not in line)


def kept(tree, directory):
    """The lines of a tree without what the file system of this directory doesn't keep."""
    if not has_attributes(directory):
        tree = re.sub(r"\[user\..*\]$", "", tree, flags=re.M)
    if not has_times_of_links(directory):
        tree = re.sub(r"( link .*) mtime=\S+$", r"\1", tree, flags=re.M)
    digits = 9 - len(str(grain_of_times(directory))) + 1
    return re.sub(r"(mtime=\d+\.\d{%d})\d*" % digits, r"\1", tree)


def interrupted(number, _frame):
    raise SystemExit("ended by %s" % signal.Signals(number).name)


def main():
    parser = argparse.ArgumentParser(
        description="Run everyday programs on a plain directory and in a pool; compare.")
    parser.add_argument("--only", action="append", metavar="NAME",
                        help="this case only (may be given more than once)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--keep", action="store_true",
                        help="keep the logs and what the cases left behind")
    parser.add_argument("--forebay", metavar="PATH",
                        default=os.path.join(ROOT, "target", "release", "forebay"))
    parser.add_argument("--mount", default="/fb", help="where the pool is seen (default /fb)")
    parser.add_argument("--media", default="memory:1G", help="what the pools are made of; DIR stands for a new directory")
    parser.add_argument("--face", choices=["preload", "fuse"], default="preload",
                        help="how the cases see the pool (default preload)")
    parser.add_argument("--origin", nargs="?", const="plain", default="", choices=["plain", "slow", "off", "bucket"],
                        help="with an origin behind each pool, which is compared as well: a plain directory, one on a "
                        "slow file system (tools/slowfs), one whose files are never in the pool, or a bucket (moto)")
    parser.add_argument("--origin-in", metavar="DIR", help="the origins lie in this directory, of whatever file system "
                         "(root: they are mounted at their paths)")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the pools; the cases go round them, and "
                        "another node looks at what they have left (default 1)")
    parser.add_argument("--set", default="", metavar="WORDS", help="what is said of a case's directory before it: "
                        "\"--distribution striped consistency=session\" has programs keep writes back, and nothing may differ")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--timeout", type=float, default=60,
                        help="seconds that a run of a case may take (default 60)")
    parser.add_argument("--limit", type=float, default=1500,
                        help="seconds that everything may take (default 1500)")
    options = parser.parse_args()

    cases = [Case(os.path.join(CASES, f)) for f in sorted(os.listdir(CASES)) if f.endswith(".sh")]
    if options.only:
        unknown = sorted(set(options.only) - {c.name for c in cases})
        if unknown:
            parser.error("no case named %s" % ", ".join(unknown))
        cases = [c for c in cases if c.name in options.only]
    if options.list:
        for case in cases:
            say(case.name)
        return 0
    if not os.access(options.forebay, os.X_OK):
        parser.error("%s is not there: build it (cargo build --release) or name it with --forebay"
                     % options.forebay)

    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failed = []
    print_lock = threading.Lock()
    runner = Runner(options)
    width = max(len(c.name) for c in cases)

    def one(number, case):
        detail = ""
        try:
            inside, outside = runner.case(number, case)
            result, text = "passed", "inside %6.2f s  outside %6.2f s" % (inside, outside)
        except Skip as e:
            result, text = "skipped", str(e)
        except Failure as e:
            result = "failed"
            text, _, detail = str(e).partition("\n")
        except Exception:
            result, text, detail = "failed", "the runner itself failed", traceback.format_exc()
        if runner.stopping:
            return  # killed by the runner itself
        with print_lock:
            counts[result] += 1
            if result == "failed":
                failed.append(case.name)
            say("%-7s %-*s  %s" % (result, width, case.name, text))
            if detail.strip():
                say(detail.rstrip("\n"))

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, interrupted)
    signal.setitimer(signal.ITIMER_REAL, options.limit)
    ended = ""
    pool = concurrent.futures.ThreadPoolExecutor(max(1, options.jobs))
    try:
        for future in [pool.submit(one, i, c) for i, c in enumerate(cases)]:
            future.result()
    except SystemExit as e:
        ended = str(e)
        pool.shutdown(wait=False, cancel_futures=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        left = runner.clean_up()
        pool.shutdown(wait=True, cancel_futures=True)
    if ended:
        say("failed  the run was %s; cases not finished count as failed" % ended)
        counts["failed"] = len(cases) - counts["passed"] - counts["skipped"]
    if left:
        say("failed  processes were left after forebay down:\n" + left.rstrip("\n"))
        counts["failed"] += 1
    if options.keep:
        say("kept: %s %s" % (runner.logs, " ".join(sorted(runner.directories))))
    summary = "%d passed, %d failed" % (counts["passed"], counts["failed"])
    if counts["skipped"]:
        summary += ", %d skipped" % counts["skipped"]
    say(summary + (": " + " ".join(failed) if failed else ""))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
