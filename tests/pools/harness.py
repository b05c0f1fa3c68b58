"""The tools of the cases: running forebay, checking its output."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback

CASES = {}
ROOT_OF_TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# The exit code of a case that can't be run here.
SKIPPED = 77


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def case(limit=20):
    """Registers a case, with its time limit in seconds."""
    def register(function):
        function.limit = limit
        CASES[function.__name__.replace("_", "-")] = function
        return function
    return register


def processes_with(setting):
    """The ids of the processes whose environment has this NAME=VALUE."""
    wanted = setting.encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open("/proc/%s/environ" % entry, "rb") as f:
                    if wanted in f.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                pass
    return found


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except OSError:
        pass


def stacks(pid):
    """Where the threads of a process are, as well as it can be found out."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            what = f.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    text = "  --- process %d: %s\n" % (pid, what[:200])
    if shutil.which("gdb"):
        try:
            done = subprocess.run(
                ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off",
                 "-ex", "thread apply all bt 25"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=15, env={**os.environ, "DEBUGINFOD_URLS": ""})
            lines = done.stdout.decode("utf-8", "replace").splitlines()
            text += "".join("  %s\n" % line[:300] for line in lines
                            if line.startswith(("#", "Thread ")))
        except (OSError, subprocess.SubprocessError):
            pass
    try:
        for name in ("wchan", "syscall"):
            with open("/proc/%d/%s" % (pid, name)) as f:
                text += "  %s: %s\n" % (name, f.read().strip())
    except OSError:
        pass
    return text


def wait_until(condition, seconds, what):
    """`what`: a text, or a function that returns it once the time is over."""
    until = time.monotonic() + seconds
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > until:
            raise Failed("not within %g s: %s" % (seconds, what() if callable(what) else what))
        time.sleep(0.02)


# Prints {path: [kind, mode, size, nlink, content]} of a tree as JSON; reads all of every file.
WALK = r'''
import hashlib, json, os, stat, sys
top = sys.argv[1]
found = {}
bad = []
def look(path, name):
    s = os.lstat(path)
    if stat.S_ISLNK(s.st_mode):
        found[name] = ["l", 0, 0, s.st_nlink, os.readlink(path)]
    elif stat.S_ISDIR(s.st_mode):
        found[name] = ["d", stat.S_IMODE(s.st_mode), 0, 0, ""]
        for n in sorted(os.listdir(path)):
            look(path + "/" + n, name + "/" + n)
    else:
        h = hashlib.sha256()
        got = 0
        with open(path, "rb", 0) as f:
            while True:
                b = f.read(1 << 20)
                if not b:
                    break
                got += len(b)
                h.update(b)
            end = f.seek(0, 2)
        if not got == s.st_size == end:
            bad.append("%s: read %d bytes, stat says %d, seek %d" % (path, got, s.st_size, end))
        found[name] = ["f", stat.S_IMODE(s.st_mode), s.st_size, s.st_nlink, h.hexdigest()]
look(top, "")
json.dump([found, bad], sys.stdout)
'''


class Result:
    def __init__(self, argv, rc, out, err, seconds):
        self.argv, self.rc, self.out, self.err, self.seconds = argv, rc, out, err, seconds

    def told(self):
        def shown(title, text):
            lines = text.rstrip("\n").split("\n")
            if lines == [""]:
                return ""
            more = ["... %d lines more" % (len(lines) - 25)] if len(lines) > 25 else []
            return "".join("      %s %s\n" % (title, x[:500]) for x in lines[:25] + more)
        words = " ".join(a if len(a) < 300 else a[:300] + "..." for a in self.argv)
        return "    $ %s\n      exit code %s after %.2f s\n%s%s" % (
            words, self.rc, self.seconds, shown("out:", self.out), shown("err:", self.err))

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise Failed("no JSON on standard output\n" + self.told())

    def says(self, *patterns):
        """All of these are on standard error."""
        for p in patterns:
            if not re.search(p, self.err, re.I | re.S):
                raise Failed("standard error does not say /%s/\n%s" % (p, self.told()))
        return self

    def prints(self, *patterns):
        for p in patterns:
            if not re.search(p, self.out, re.M):
                raise Failed("standard output does not have /%s/\n%s" % (p, self.told()))
        return self

    def quiet(self):
        """Nothing on standard error, but for the summary with which `down` ends."""
        if re.sub("^forebay: .* (in the pool: .* written|stayed on their node; .* in them)\n", "", self.err, flags=re.M):
            raise Failed("standard error is not empty\n" + self.told())
        return self

    def one_line(self):
        """An error is one line, from forebay."""
        if self.err.count("\n") != 1 or not self.err.startswith("forebay: "):
            raise Failed("standard error is not one line from forebay\n" + self.told())
        return self


class T:
    """One case's surroundings."""

    def __init__(self, forebay, base, disk):
        self.forebay = forebay
        self.preload = os.path.join(os.path.dirname(forebay), "libforebay_preload.so")
        self.base, self.disk = base, disk
        self.home = os.path.join(base, "home")
        self.work = os.path.join(base, "work")
        os.mkdir(self.home, 0o755)
        os.mkdir(self.work, 0o755)
        self.mark = os.environ["FOREBAY_TEST_MARK"]
        self.problems = []
        # Pools that a case leaves damaged on purpose.
        self.damaged = False

    # Running things

    def start(self, argv, env=None, stdin=None, **more):
        return subprocess.Popen(
            argv, env={**os.environ, **(env or {})}, cwd=more.pop("cwd", self.work),
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            stdout=more.pop("stdout", subprocess.PIPE), stderr=more.pop("stderr", subprocess.PIPE),
            **more)

    def finish(self, process, rc=0, feed=None, timeout=20, began=None):
        """Waits for a process's end; rc is what it has to be, None for anything."""
        began = began or time.monotonic()
        try:
            out, err = process.communicate(feed, timeout)
        except subprocess.TimeoutExpired:
            raise Failed("no end within %g s: %s" % (timeout, " ".join(process.args)[:300]))
        r = Result(process.args, process.returncode, out.decode("utf-8", "backslashreplace"),
                   err.decode("utf-8", "backslashreplace"), time.monotonic() - began)
        if "panicked" in r.err or "RUST_BACKTRACE" in r.err:
            raise Failed("it panicked\n" + r.told())
        allowed = rc if isinstance(rc, tuple) else (rc,)
        if rc is not None and r.rc not in allowed:
            raise Failed("exit code %s, not %s\n%s" % (
                r.rc, " or ".join(map(str, allowed)), r.told()))
        return r

    def command(self, argv, rc=0, env=None, feed=None, timeout=20, **more):
        began = time.monotonic()
        stdin = subprocess.PIPE if feed is not None else None
        return self.finish(self.start(argv, env, stdin, **more), rc, feed, timeout, began)

    def fb(self, *arguments, rc=0, **more):
        return self.command([self.forebay, *arguments], rc, **more)

    def up(self, pool, *arguments, media=("memory:64M",), mount="/fb", rc=0, **more):
        words = [w for m in media for w in ("--media", m)]
        return self.fb("up", "--pool", pool, "--mount", mount, *words, *arguments, rc=rc, **more)

    def exec(self, pool, *argv, rc=0, **more):
        return self.fb("exec", "--pool", pool, "--", *argv, rc=rc, **more)

    def bash(self, pool, script, *arguments, rc=0, **more):
        return self.exec(pool, "bash", "-c", script, "bash", *arguments, rc=rc, **more)

    def python(self, pool, script, *arguments, rc=0, **more):
        return self.exec(pool, sys.executable, "-c", script, *arguments, rc=rc, **more)

    def start_python(self, pool, script, *arguments, **more):
        return self.start([self.forebay, "exec", "--pool", pool, "--", sys.executable, "-c",
                           script, *arguments], **more)

    # Looking at things

    def walk(self, path, pool=None, timeout=30):
        """{name: what it is} of a tree, in a pool or outside; all of it can be read."""
        argv = [sys.executable, "-c", WALK, path]
        if pool is not None:
            argv = [self.forebay, "exec", "--pool", pool, "--"] + argv
        found, bad = self.command(argv, timeout=timeout).json()
        if bad:
            raise Failed("sizes differ:\n    " + "\n    ".join(bad[:20]))
        return found

    def same(self, wanted, got, what):
        if wanted == got:
            return
        lines = []
        for name in sorted(set(wanted) | set(got)):
            if wanted.get(name) != got.get(name):
                lines.append("    %s: %s, not %s" % (
                    name or "/", got.get(name, "missing"), wanted.get(name, "missing")))
        more = ["    ... %d more" % (len(lines) - 15)] if len(lines) > 15 else []
        raise Failed("%s differs:\n%s" % (what, "\n".join(lines[:15] + more)))

    def ok(self, condition, what):
        if not condition:
            raise Failed(what)

    def check(self, what, function, *arguments, **more):
        """Notes a failure and goes on."""
        try:
            return function(*arguments, **more)
        except Failed as e:
            self.problems.append("%s: %s" % (what, e))
        return None

    def used(self, pool):
        return sum(m["used"] for m in self.fb("df", "--pool", pool, "--json").json()["media"])

    def state(self, pool):
        for p in self.fb("pools", "--json").json():
            if p["name"] == pool:
                return p["state"]
        return "absent"

    def keeper(self, pool):
        pid = self.fb("status", "--pool", pool, "--json").json()["keeper"]
        self.ok(isinstance(pid, int), "the pool %s has no keeper" % pool)
        return pid

    def ours(self):
        """All processes of this case but the one that runs it."""
        return processes_with("FOREBAY_TEST_MARK=" + self.mark)

    def kill_everything(self, pool=None):
        """kill -9 of the keeper and every program, all of them stopped first."""
        pids = set()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for _ in range(2):
                for pid in self.ours():
                    pids.add(pid)
                    kill(pid, number)
        # By number: one that is dying has lost its environment before it lets go of its locks.
        wait_until(lambda: not any(map(alive, pids)), 5, "the death of all processes")

    def pool_dir(self, pool):
        return os.path.join(self.home, pool)

    def nothing_left(self, what, processes=True):
        """No pool, no process, no medium."""
        left = [n for n in os.listdir(self.home) if os.path.isdir(os.path.join(self.home, n))]
        self.ok(not left, "%s: left in FOREBAY_HOME: %s" % (what, left))
        if processes:
            try:
                wait_until(lambda: not [p for p in self.ours() if alive(p)], 2, "")
            except Failed:
                raise Failed("%s: processes are left: %s" % (what, ", ".join(
                    "%d (%s)" % (p, comm(p)) for p in self.ours())))

    def file(self, path, size, seed=0):
        """A file of random bytes outside the pool."""
        with open(path, "wb") as f:
            f.write(noise(size, seed))
        return path


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            if f.read().rsplit(")", 1)[1].split()[0] not in "ZX":
                return True
        # Its first thread is gone; others may still hold its files, and so its locks.
        return len(os.listdir("/proc/%d/task" % pid)) > 1
    except OSError:
        return False


def comm(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            return f.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:100]
    except OSError:
        return "?"


def noise(size, seed=0):
    import random
    return random.Random(seed).randbytes(size)


class Lines:
    """The lines that a process prints, read by a thread."""

    def __init__(self, process):
        self.process, self.lines = process, []
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            # A line without its end was being written when the process died.
            if line.endswith(b"\n"):
                self.lines.append(line[:-1].decode())

    def wait_for(self, n, seconds=10):
        def there():
            if len(self.lines) >= n:
                return True
            if self.process.poll() is not None and not self.thread.is_alive():
                pipe = self.process.stderr
                err = pipe.read().decode("utf-8", "replace") if pipe else ""
                raise Failed("a program ended early (%s): %s" % (self.process.returncode, err))
            return False
        wait_until(there, seconds, "%d lines of output" % n)

    def all(self):
        self.process.wait(5)
        self.thread.join(5)
        return self.lines


def run_one(name, forebay, base, disk):
    t = T(forebay, base, disk)
    problems = t.problems
    try:
        CASES[name](t)
    except Failed as e:
        problems.append(str(e))
    except Skipped as e:
        print("  - " + str(e))
        return SKIPPED
    except Exception:
        problems.append(traceback.format_exc())
    for pool in [] if t.damaged else os.listdir(t.home):
        if any(os.path.exists(os.path.join(t.home, pool, node, "pool.json"))
               for node in ("", "node-0")):
            r = subprocess.run([forebay, "fsck", "--pool", pool], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
            if r.returncode:
                problems.append("forebay fsck of pool %s, exit code %d:\n%s" % (
                    pool, r.returncode, r.stdout.decode("utf-8", "replace")))
    for p in problems:
        print("  - " + p.rstrip("\n"))
    sys.stdout.flush()
    for pool in os.listdir(t.home):
        if os.path.isdir(os.path.join(t.home, pool)):
            try:
                subprocess.run([forebay, "down", "--force", "--pool", pool],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, timeout=10)
            except (OSError, subprocess.SubprocessError):
                pass
    return 1 if problems else 0
