#!/usr/bin/env python3
"""Losses of power of a pool with an origin: needs root, loop devices and ext4.

A pool on `files` media lies on an ext4, its origin on another one. While programs write, sync, rename, remove
and read files, and the service brings in, writes back and evicts, all processes are stopped, the pool's ext4 is
shut down without flushing, and everything is killed. Then the file system is mounted again and the pool opened
from what is left. The origin stays, as a parallel file system does when a node dies: what the service had handed
to its kernel gets there. In every second round the origin's ext4 is shut down, too: then removals and renames that
it hadn't on stable storage may be undone, but no synced bytes are lost.

    python3 tests/pools/powercut_origin.py [ROUNDS [SEED]]

The case `origin-of-a-pool-that-loses-its-power` does the same for a few rounds.
"""
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import powercut

FOREBAY = powercut.FOREBAY
# Bytes of the images of the file systems, and of the pool's media. MiB.
IMAGE, MEDIA = 160, 48
INPUTS, INPUT = 12, 1 << 20
MARK = "FOREBAY_POWERCUT"


def version(name, serial, n):
    """A file that says itself whether it is whole."""
    head = "%s %d %d\n" % (name, serial, n)
    return head.encode() + powercut.content(name, serial, n)


def is_whole(text):
    head, _, rest = text.partition(b"\n")
    words = head.decode("utf-8", "replace").split()
    return len(words) == 3 and text == version(words[0], int(words[1]), int(words[2]))


def input_of(n):
    return random.Random(n).randbytes(INPUT)


def sync_directory(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def again(action, *arguments):
    """In a pool whose other files are being written back, a rename may have to be repeated."""
    for attempt in range(20):
        try:
            return action(*arguments)
        except OSError as e:
            if e.errno != 16 or attempt == 19:
                raise
            time.sleep(0.05)


def work(top, who, log, seed):
    """Random operations. Writes to `log` what begins, and what is promised from then on."""
    log = open(log, "a", buffering=1)
    r = random.Random(seed)
    here = "%s/w%s" % (top, who)
    os.makedirs(here, exist_ok=True)
    for serial in range(1, 1 << 30):
        name, other = "w%s/f%d" % (who, r.randrange(25)), "w%s/f%d" % (who, r.randrange(25))
        path = top + "/" + name
        n = r.choice([0, 10, 900, 3000, 5000, 70000, 700000])
        what = r.randrange(16)
        if what < 6:
            log.write("begin %s %d %d\n" % (name, serial, n))
            with open(path + ".tmp", "wb") as f:
                f.write(version(name, serial, n))
                f.flush()
                os.fsync(f.fileno())
            again(os.rename, path + ".tmp", path)
            sync_directory(here)
            log.write("end %s %d %d\n" % (name, serial, n))
        elif what < 8:
            # Without a sync: any version that it has had may be there, or zeros.
            with open("%s/u%d" % (here, r.randrange(20)), "wb") as f:
                f.write(version("u", serial, n))
        elif what < 10 and os.path.exists(path):
            # Changed in place: the file grows by a record at a time.
            log.write("begin %s/log %d 0\n" % (here[len(top) + 1:], serial))
            with open(here + "/log", "ab") as f:
                f.write(b"%d\n" % serial)
                f.flush()
                os.fsync(f.fileno())
            log.write("end %s/log %d 0\n" % (here[len(top) + 1:], serial))
        elif what < 12 and os.path.exists(path):
            log.write("begin %s -1 0\n" % name)
            again(os.unlink, path)
            sync_directory(here)
            log.write("end %s -1 0\n" % name)
        elif what < 14 and os.path.exists(path) and name != other:
            with open(path, "rb") as f:
                head = f.readline().decode()
            log.write("move %s %s %s" % (name, other, head))
            again(os.rename, path, top + "/" + other)
            sync_directory(here)
            log.write("moved %s %s %s" % (name, other, head))
        else:
            i = r.randrange(INPUTS)
            with open("%s/in/%d" % (top, i), "rb") as f:
                if f.read() != input_of(i):
                    log.write("wrong input %d\n" % i)
        log.flush()


def verify(top, names, logs):
    """Compares with what was promised. Below `top` lie the pool, or the origin after a sync. `names` "undone": the origin
    has lost its power, too."""
    wrong, compared = [], 0
    for log in logs:
        allowed, records, begun = {}, 0, 0
        there = set()
        for at, _, files in os.walk("%s/w%s" % (top, log[-1])):
            for name in files:
                with open(at + "/" + name, "rb") as f:
                    there.add(f.read())
        for line in open(log):
            words = line.split()
            if not line.endswith("\n"):
                continue
            if words[0] == "wrong":
                wrong.append(line.strip())
            elif words[0] in ("begin", "end") and words[1].endswith("/log"):
                if words[0] == "end":
                    records = int(words[2])
                begun = int(words[2])
            elif words[0] in ("begin", "end"):
                one = None if words[2] == "-1" else (words[1], int(words[2]), int(words[3]))
                if words[0] == "begin":
                    allowed.setdefault(words[1], [None]).append(one)
                else:
                    allowed[words[1]] = [one]
            elif words[0] in ("move", "moved") and len(words) == 6:
                one = (words[3], int(words[4]), int(words[5]))
                if words[0] == "move":
                    allowed.setdefault(words[1], [None]).append(None)
                    allowed.setdefault(words[2], [None]).append(one)
                else:
                    allowed[words[1]], allowed[words[2]] = [None], [one]
        for name, ways in allowed.items():
            try:
                with open(top + "/" + name, "rb") as f:
                    got = f.read()
            except FileNotFoundError:
                got = None
            compared += 1
            if names == "undone" and (None in ways or any(version(*way) in there for way in ways)):
                if got is not None and not is_whole(got):
                    wrong.append("%s isn't whole" % name)
            elif not any(got is None if way is None else got == version(*way) for way in ways):
                wrong.append("%s: not one of %s, but %s" % (name, ways, got and (len(got), got[:40])))
        who = "w" + log[-1]
        try:
            lines = open("%s/%s/log" % (top, who), "rb").read().split(b"\n")
        except FileNotFoundError:
            lines = [b""]
        numbers = [int(x) for x in lines[:-1] if x.isdigit()]
        if len(numbers) != len(lines) - 1 or lines[-1] != b"" or not records <= (numbers or [0])[-1] <= max(begun, records):
            wrong.append("%s/log: up to %s of %d lines, not %d to %d" % (who, (numbers or [0])[-1], len(lines), records, begun))
    for line in wrong[:20]:
        print("  " + line)
    print("%d files compared, %d wrong" % (compared, len(wrong)))
    return not wrong


def ours(mark):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open("/proc/%s/environ" % entry, "rb") as f:
                    if ("%s=%s" % (MARK, mark)).encode() in f.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                pass
    return found


def signal_all(mark, number):
    for _ in range(2):
        for pid in ours(mark):
            try:
                os.kill(pid, number)
            except OSError:
                pass


def shut_down(mount):
    fd = os.open(mount, os.O_RDONLY)
    fcntl.ioctl(fd, 0x8004587d, struct.pack("I", 2))
    os.close(fd)


def unmount(mount):
    for _ in range(100):
        if subprocess.run(["umount", mount], stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.05)
    raise OSError("%s can't be unmounted" % mount)


def tree(top):
    """Path -> kind, mode, content below a directory."""
    found = {}
    for where, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(where, name)
            st = os.lstat(path)
            kind = oct(st.st_mode)
            text = ""
            if name in files:
                with open(path, "rb") as f:
                    text = hashlib.sha256(f.read()).hexdigest()
            found[os.path.relpath(path, top)] = [kind, text]
    return found


class Rounds:
    """Two file systems on loop devices, and pools on them that lose their power."""

    def __init__(self, base, forebay=None, seconds=(0.3, 3.0), seed=None):
        self.base, self.forebay, self.seconds = base, forebay or FOREBAY, seconds
        self.seed = random.getrandbits(32) if seed is None else seed
        self.draw = random.Random(self.seed)
        self.loops, self.problems = {}, []
        powercut.apart()
        self.home, self.mark = base + "/home", os.path.basename(base)
        self.env = {**os.environ, "FOREBAY_HOME": self.home, MARK: self.mark}
        for name in ("pool", "origin"):
            os.mkdir(base + "/" + name)
            with open(base + "/" + name + ".image", "wb") as f:
                f.truncate(IMAGE << 20)
            made = subprocess.run(["losetup", "-f", "--show", base + "/" + name + ".image"], check=True,
                                  stdout=subprocess.PIPE, text=True)
            self.loops[name] = made.stdout.strip()
        self.top = base + "/origin/case"

    def close(self):
        for name, loop in self.loops.items():
            subprocess.run(["umount", self.base + "/" + name], stderr=subprocess.DEVNULL)
            subprocess.run(["losetup", "-d", loop])

    def mount(self, name):
        subprocess.run(["mount", "-o", "noatime", self.loops[name], self.base + "/" + name], check=True)

    def fb(self, *words, rc=0, limit=60):
        done = subprocess.run([self.forebay, *words], timeout=limit, text=True, env=self.env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if rc is not None and done.returncode != rc:
            self.problems.append("forebay %s: exit code %d: %s" % (" ".join(words)[:60], done.returncode, done.stdout[-1500:]))
        return done

    def python(self, *words):
        """This file's functions, in the pool."""
        return [self.forebay, "exec", "--", sys.executable, os.path.abspath(__file__), *words]

    def status(self):
        return json.loads(self.fb("origin", "status", "--json").stdout)

    def check(self, is_good, what):
        if not is_good:
            self.problems.append(what)

    def round(self, number):
        """One cut. True if all promises were kept."""
        self.problems = []
        cuts_origin = number % 2 == 1
        moved = {"fetched_files": 0, "written_files": 0, "evicted_files": 0}
        for name in self.loops:
            subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", self.loops[name]], check=True)
            self.mount(name)
        os.makedirs(self.top + "/in")
        for n in range(INPUTS):
            with open("%s/in/%d" % (self.top, n), "wb") as f:
                f.write(input_of(n))
        os.sync()
        os.mkdir(self.home, 0o700)
        logs = ["%s/log%d" % (self.base, w) for w in (1, 2)]
        programs = []
        for log in logs:
            # A program may die before its first word.
            open(log, "w").close()
        try:
            self.fb("up", "--media", "files:%s/pool:%dM" % (self.base, MEDIA), "--origin", self.top, "--origin-lag",
                    str(self.draw.choice([0.05, 0.3])))
            for w, log in enumerate(logs):
                job = ["work", self.top, str(w + 1), log, str(self.draw.getrandbits(30))]
                programs.append(subprocess.Popen(self.python(*job), env=self.env, stderr=open(log + ".err", "w")))
            until = time.monotonic() + self.draw.uniform(*self.seconds)
            while time.monotonic() < until:
                time.sleep(self.draw.uniform(0.02, 0.4))
                said = self.draw.random()
                if said < 0.3:
                    self.fb("origin", "evict", rc=None)
                elif said < 0.4:
                    self.fb("origin", "sync", rc=None)
            for p, log in zip(programs, logs):
                self.check(p.poll() is None, "a program ended: %s" % open(log + ".err").read()[-600:])
            moved = self.status()
            if self.draw.random() < 0.5:
                programs.append(subprocess.Popen([self.forebay, "origin", "sync"], env=self.env,
                                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                time.sleep(self.draw.uniform(0, 0.05))
            signal_all(self.mark, signal.SIGSTOP)
            shut_down(self.base + "/pool")
            if cuts_origin:
                shut_down(self.base + "/origin")
            signal_all(self.mark, signal.SIGKILL)
            for p in programs:
                p.wait()
            until = time.monotonic() + 10
            while ours(self.mark) and time.monotonic() < until:
                time.sleep(0.01)
            shutil.rmtree(self.home + "/default")
            for name in ("pool", "origin") if cuts_origin else ("pool",):
                unmount(self.base + "/" + name)
                self.mount(name)
            self.look_at_halves()
            before = tree(self.top)
            self.fb("up", "--reopen", "--from", self.base + "/pool")
            self.check(self.fb("fsck").returncode == 0, "fsck after the cut")
            what = ["verify", self.top, "undone" if cuts_origin else "kept", *logs]
            outside = [sys.executable, os.path.abspath(__file__), *what]
            for where, words in (("the pool", self.python(*what)), ("the origin", outside)):
                if where == "the origin":
                    self.fb("origin", "sync")
                got = subprocess.run(words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
                self.check(got.returncode == 0, "%s: %s" % (where, got.stdout))
            self.are_equal()
            status = self.status()
            # An origin that has lost a rename has another version than the pool knows: that is a conflict if the pool's
            # has changed since, and both are kept.
            told = [] if cuts_origin else status["conflicts"]
            self.check(not told and not status["problems"], "status: %s" % status)
            odd = [n for n in tree(self.top) if "forebay" in n and not (cuts_origin and ".forebay-conflict-" in n)]
            self.check(not odd, "left at the origin: %s" % odd)
            self.check(self.fb("fsck").returncode == 0, "fsck at the end")
            if not self.problems:
                self.fb("down")
            else:
                with open("%s/before-%d" % (self.base, number), "w") as f:
                    json.dump(before, f, indent=1)
        finally:
            signal_all(self.mark, signal.SIGKILL)
            for p in programs:
                p.wait()
            self.fb("down", "--force", rc=None)
            shutil.rmtree(self.home, ignore_errors=True)
            for name in self.loops:
                unmount(self.base + "/" + name)
        print("round %d%s: %s (%d fetched, %d written, %d evicted)" % (
            number, ", the origin's power, too" if cuts_origin else "", "FAILED" if self.problems else "passed",
            moved["fetched_files"], moved["written_files"], moved["evicted_files"]))
        for problem in self.problems:
            print("  - " + problem)
        if self.problems and os.environ.get("KEEP"):
            for log in logs:
                shutil.copy(log, "%s-%d" % (os.environ["KEEP"] + os.path.basename(log), number))
        sys.stdout.flush()
        for log in logs:
            if os.path.exists(log):
                os.unlink(log)
        return not self.problems

    def look_at_halves(self):
        """Files that get their name when they are whole are so at the origin."""
        for name, (_, text) in tree(self.top).items():
            if "/f" in name and not name.endswith(".tmp") and "forebay" not in name:
                with open(self.top + "/" + name, "rb") as f:
                    self.check(is_whole(f.read()), "half of %s is at the origin" % name)

    def are_equal(self):
        """The pool and its origin, at the latest after some looks at the origin."""
        until = time.monotonic() + 30
        while True:
            self.fb("origin", "sync", rc=None)
            got = subprocess.run(self.python("tree", self.top), env=self.env, stdout=subprocess.PIPE, text=True, timeout=60)
            inside, outside = json.loads(got.stdout or "{}"), tree(self.top)
            differ = [n for n in sorted(set(inside) | set(outside)) if inside.get(n) != outside.get(n)]
            if not differ:
                return
            if time.monotonic() > until:
                lines = ["%s: pool %s, origin %s" % (n, inside.get(n), outside.get(n)) for n in differ[:3]]
                self.problems.append("both sides differ: %s" % "; ".join(lines))
                return
            time.sleep(0.5)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "work":
        return work(*sys.argv[2:])
    if len(sys.argv) > 1 and sys.argv[1] == "verify":
        return 0 if verify(sys.argv[2], sys.argv[3], sys.argv[4:]) else 1
    if len(sys.argv) > 1 and sys.argv[1] == "tree":
        print(json.dumps(tree(sys.argv[2])))
        return 0
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    base = tempfile.mkdtemp(prefix="forebay-powercut-", dir="/var/tmp")
    all_rounds = None
    try:
        all_rounds = Rounds(base, seed=int(sys.argv[2]) if len(sys.argv) > 2 else None)
        print("seed %d" % all_rounds.seed)
        passed = [all_rounds.round(n) for n in range(rounds)]
        print("%d of %d rounds passed" % (sum(passed), rounds))
        return 0 if all(passed) else 1
    finally:
        if all_rounds:
            all_rounds.close()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
