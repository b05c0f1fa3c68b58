"""Origins that are slow, dead, failing or full: a file system that a test drives (tools/slowfs) lies behind."""
import contextlib
import errno
import hashlib
import json
import os
import random
import threading
import time

from cases.origins import digest, status, up
from harness import Failed, Skipped, case, kill, wait_until
from slowfs import MiB, SlowFs

# The timeout of requests in these cases, and what a loaded machine may add. Seconds.
TIMEOUT, MORE = 2, 3
# Longest time of what doesn't need the origin, start of a program included. Seconds.
SOON = 3


@contextlib.contextmanager
def slow_origin(t, name="origin", **settings):
    if not os.path.exists("/dev/fuse"):
        raise Skipped("there is no /dev/fuse")
    program = os.path.join(os.path.dirname(t.forebay), "forebay-slowfs")
    if not os.access(program, os.X_OK):
        raise Skipped("%s isn't built" % program)
    slow = SlowFs(program, os.path.join(t.disk, name + "-source"), os.path.join(t.disk, name),
                  os.path.join(t.base, name + ".control"), **settings)
    try:
        yield slow
    finally:
        slow.close()


def seconds_of(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def soon(t, what, action, limit=SOON):
    took = seconds_of(action)
    t.ok(took <= limit, "%s took %.1f s, not %g" % (what, took, limit))


def same_at_last(t, slow, seconds=30, conflicts=False):
    """The pool and its origin are the same, at the latest after some looks at the origin; nothing else is left there."""
    last = []

    def is_same():
        try:
            t.same(t.walk(slow.source), t.walk(slow.at, "p"), "the pool and its origin")
        except Failed as e:
            last[:] = [e]
            return False
        return True

    try:
        wait_until(is_same, seconds, "")
    except Failed:
        raise last[0]
    odd = [n for _, _, files in os.walk(slow.source) for n in files if "forebay" in n]
    kept = [n for n in odd if conflicts and ".forebay-conflict-" in n]
    if kept:
        print("both versions were kept, though only the pool has changed them: %s" % kept)
    t.ok(odd == kept, "left at the origin: %s" % odd)


@case(60)
def slow_origin_is_read_once_in_large_pieces(t):
    size = 24 * MiB
    with slow_origin(t) as slow:
        names = ["timed0", "timed1", "timed2", "shared", "here", "later"]
        for i, name in enumerate(names):
            t.file(os.path.join(slow.source, name), 2 * MiB if name == "here" else size, i)
        up(t, slow.at)
        t.bash("p", "cat %s/here > /dev/null" % slow.at)
        slow.set(rate=24 * MiB, latency_ms=2)

        def plainly():
            with open(os.path.join(slow.at, "timed0"), "rb", 0) as f:
                while f.read(MiB):
                    pass

        own = seconds_of(plainly)
        ratios = []
        # A loaded machine may spoil one; a pool that is faster than its origin has cheated.
        for name in names[:3]:
            slow.reset()
            got = t.python("p", """import hashlib, sys, time
began = time.monotonic()
with open(sys.argv[1], "rb", 0) as f:
    first = f.read(4096)
    took = time.monotonic() - began
    rest = f.read()
print(took, hashlib.sha256(first + rest).hexdigest())""", os.path.join(slow.at, name)).out.split()
            t.ok(got[1] == digest(os.path.join(slow.source, name)), "%s is something else in the pool" % name)
            ratios.append(float(got[0]) / own)
            t.ok(ratios[-1] > 0.9, "%s: %.2f of the origin's own time" % (name, ratios[-1]))
            if ratios[-1] < 1.3:
                break
        t.ok(ratios[-1] < 1.3, "a first read takes %s of the origin's own time" % ratios)
        # Eight programs read the same file at once, 4 KiB at a time.
        slow.reset()
        reader = """import hashlib, sys
h = hashlib.sha256()
with open(sys.argv[1], "rb", 0) as f:
    for piece in iter(lambda: f.read(4096), b""): h.update(piece)
print(h.hexdigest())"""
        readers = [t.start_python("p", reader, os.path.join(slow.at, "shared")) for _ in range(8)]
        wanted = digest(os.path.join(slow.source, "shared"))
        for r in readers:
            t.ok(t.finish(r, timeout=30).out.strip() == wanted, "a reader got something else")
        f = slow.file("shared")
        t.ok(f["bytes_read"] == size and f["read_opens"] == 1, "the origin was read more than once: %s" % f)
        t.ok(f["bytes_read"] / f["reads"] >= 128 << 10, "the origin was read in small pieces: %s" % f)
        t.ok(f["jumps"] <= size // (16 * MiB) + 1, "the origin wasn't read in sequence: %s" % f)
        # What is in the pool is as fast as ever while the origin is busy.
        work = """import os, sys, time
began = time.monotonic()
top = sys.argv[1]
for n in range(100):
    with open(top + "/here", "rb") as f: f.read()
    with open(top + "/new-%s-%d" % (sys.argv[2], n), "wb") as f: f.write(b"x" * 100000)
    os.stat(top + "/later")
print(time.monotonic() - began)"""
        idle = float(t.python("p", work, slow.at, "idle").out)
        slow.set(rate=4 * MiB, latency_ms=20)
        slow.reset()
        fetching = t.start([t.forebay, "origin", "prefetch", "--pool", "p", os.path.join(slow.at, "later")])
        wait_until(lambda: slow.file("later")["reads"], 10, "the fetch of a file")
        busy = float(t.python("p", work, slow.at, "busy").out)
        t.ok(fetching.poll() is None, "the origin wasn't busy at all")
        t.ok(busy < max(3 * idle, idle + 1), "%.2f s while the origin is busy, %.2f s before" % (busy, idle))
        t.ok(slow.file("here")["reads"] == 0, "a file of the pool was read at the origin")
        slow.heal()
        t.finish(fetching, timeout=30)
        print("first read: %.2f of the origin's time; beside a fetch: %.2f s, alone %.2f s" % (ratios[-1], busy, idle))
        t.fb("down", "--pool", "p")
        t.same(t.walk(slow.source), t.walk(slow.at), "the origin and its directory")


@case(60)
def changes_right_after_files_came_are_written_back(t):
    """Within the same tick of the clock of files as well."""
    top = os.path.join(t.disk, "origin")
    os.mkdir(top)
    for n in range(200):
        with open(os.path.join(top, "f%d" % n), "w") as f:
            f.write("first\n")
    up(t, top, "--origin-lag", "1000")
    t.bash("p", "cd %s; for n in {0..199}; do echo more >> f$n; done" % top)
    t.ok(status(t)["dirty_files"] == 200, status(t))
    t.fb("origin", "sync", "--pool", "p")
    lost = [n for n in os.listdir(top) if open(os.path.join(top, n)).read() != "first\nmore\n"]
    t.ok(not lost, "%d changes are lost" % len(lost))
    # The same after their bytes have left the pool.
    t.fb("origin", "evict", "--pool", "p").says("evicted 200 file")
    t.bash("p", "cd %s; for n in {0..199}; do chmod 600 f$n; echo last >> f$n; done" % top)
    t.fb("origin", "sync", "--pool", "p")
    lost = [n for n in os.listdir(top) if open(os.path.join(top, n)).read() != "first\nmore\nlast\n"
            or os.stat(os.path.join(top, n)).st_mode & 0o777 != 0o600]
    t.ok(not lost, "%d changes are lost after an eviction" % len(lost))
    t.fb("down", "--pool", "p")


@case(60)
def dead_origin_stops_only_what_needs_it(t):
    with slow_origin(t) as slow:
        for i, name in enumerate(["here", "cold", "other"]):
            t.file(os.path.join(slow.source, name), MiB, i)
        os.mkdir(os.path.join(slow.source, "unlisted"))
        up(t, slow.at, "--origin-lag", "0.2", "--origin-timeout", str(TIMEOUT))
        at = lambda name: os.path.join(slow.at, name)  # noqa: E731 (short)
        t.bash("p", "cat %s > /dev/null; ls %s" % (at("here"), slow.at)).prints("^cold$")
        t.fb("origin", "sync", "--pool", "p")
        slow.die()
        # All that the pool has is read and written on time, and looked at.
        soon(t, "work in the pool", lambda: t.python("p", """import os, sys
top = sys.argv[1]
assert len(open(top + "/here", "rb").read()) == 1 << 20
with open(top + "/here", "ab") as f: f.write(b"more"); f.flush(); os.fsync(f.fileno())
os.mkdir(top + "/made")
for n in range(50):
    with open(top + "/made/tmp", "w") as f: f.write("%d" % n)
    os.rename(top + "/made/tmp", top + "/made/f%d" % n)
os.unlink(top + "/made/f49")
assert sorted(os.listdir(top)) == ["cold", "here", "made", "other", "unlisted"]
assert os.stat(top + "/cold").st_size == 1 << 20""", slow.at))
        wait_until(lambda: slow.stats()["stalled"], 10, "the dead origin")
        soon(t, "the status", lambda: t.ok(status(t)["dirty_files"] == 50, status(t)))
        # What needs the origin fails, not before its time and not much later.
        reader = """import errno, sys, time
began = time.monotonic()
try: open(sys.argv[1]) if sys.argv[2] == "open" else __import__("os").listdir(sys.argv[1])
except OSError as e: print(errno.errorcode[e.errno], time.monotonic() - began)"""
        waiting = [t.start_python("p", reader, at(name), what)
                   for name, what in (("cold", "open"), ("cold", "open"), ("unlisted", "list"))]
        for w in waiting:
            ended = t.finish(w, timeout=15)
            name, took = ended.out.split() or ["no error", 0]
            t.ok(name == "ETIMEDOUT" and TIMEOUT <= float(took) < TIMEOUT + MORE, ended.told())
            ended.says("made no progress for %d s" % TIMEOUT)
        bound = TIMEOUT + MORE
        soon(t, "sync", lambda: t.fb("origin", "sync", "--pool", "p", rc=120).says("made no progress", "origin sync"), bound)
        soon(t, "down", lambda: t.fb("down", "--pool", "p", rc=120).says(
            "made no progress", "nothing was removed", "down --force"), bound)
        t.ok(t.state("p") == "running", "the pool is %s" % t.state("p"))
        soon(t, "work in the pool", lambda: t.bash("p", "tail -c 4 %s; cat %s" % (at("here"), at("made/f7"))).prints("more7"))
        slow.heal()
        t.bash("p", "cmp %s %s/cold" % (at("cold"), slow.source))
        t.fb("origin", "sync", "--pool", "p")
        t.ok(open(slow.source + "/here", "rb").read().endswith(b"more"), "a change is lost")
        t.ok(len(os.listdir(slow.source + "/made")) == 49, "files are lost")
        same_at_last(t, slow)
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")


# Files that say themselves whether they are whole: written beside, and renamed.
WRITER = r"""
import hashlib, os, random, sys
top, seed = sys.argv[1], int(sys.argv[2])
draw = random.Random(seed)
def again(action, *arguments):
    # The origin's errors are told to the programs that need it.
    for _ in range(60):
        try: return action(*arguments)
        except FileNotFoundError: return None
        except OSError as e: last = e
    raise last
def write(name):
    body = draw.randbytes(draw.randrange(200000))
    tmp = "%s/tmp-%d" % (top, seed)
    def once():
        with open(tmp, "wb") as f: f.write(hashlib.sha256(body).hexdigest().encode() + body)
    again(once)
    again(os.rename, tmp, name)
for n in range(int(sys.argv[3])):
    name = "%s/out/%d-%d" % (top, seed, draw.randrange(12))
    what = draw.random()
    if what < 0.6: write(name)
    elif what < 0.75: again(os.unlink, name)
    elif what < 0.9: again(os.rename, name, "%s/out/%d-%d" % (top, seed, draw.randrange(12)))
    else:
        n = draw.randrange(10)
        assert again(lambda: open("%s/in/%d" % (top, n), "rb").read()) == random.Random(n).randbytes(50000)
"""


class Watcher(threading.Thread):
    """Reads the files in a directory again and again: each is whole."""

    def __init__(self, top):
        super().__init__(daemon=True)
        self.top, self.bad, self.looks, self.is_over = top, [], 0, False
        self.start()

    def run(self):
        while not self.is_over:
            for name in os.listdir(self.top):
                if name.startswith(".forebay"):
                    continue
                try:
                    with open(os.path.join(self.top, name), "rb") as f:
                        text = f.read()
                except FileNotFoundError:
                    continue
                self.looks += 1
                if hashlib.sha256(text[64:]).hexdigest().encode() != text[:64]:
                    self.bad.append("%s with %d bytes" % (name, len(text)))
            time.sleep(0.002)

    def end(self):
        self.is_over = True
        self.join(10)
        return sorted(set(self.bad))[:5]


def an_input(t, slow):
    os.makedirs(os.path.join(slow.source, "in"))
    os.makedirs(os.path.join(slow.source, "out"))
    for n in range(10):
        t.file(os.path.join(slow.source, "in", str(n)), 50000, n)


def a_seed():
    seed = int(os.environ.get("FOREBAY_SEED", random.getrandbits(32)))
    print("seed %d" % seed)
    return seed


@case(150)
def failing_origin_gets_all_in_the_end(t):
    seed = a_seed()
    with slow_origin(t) as slow:
        an_input(t, slow)
        up(t, slow.at, "--origin-lag", "0.5", "--origin-timeout", "10")
        t.bash("p", "ls %s/in %s/out" % (slow.at, slow.at))
        slow.fail(errno.EIO, share=0.05, seed=seed)
        watcher = Watcher(os.path.join(slow.source, "out"))
        writers = [t.start_python("p", WRITER, slow.at, str(n), "60") for n in range(2)]
        for w in writers:
            t.finish(w, timeout=60)
        # Each attempt writes more of it back.
        for attempt in range(200):
            if t.fb("origin", "sync", "--pool", "p", rc=(0, 120), timeout=40).rc == 0:
                break
        else:
            raise Failed("200 attempts haven't written all back: %s" % status(t)["problems"][:3])
        failed = sum(slow.stats()["failed"].values())
        bad = watcher.end()
        t.ok(not bad, "half written at the origin: %s" % bad)
        t.ok(failed > 20 and watcher.looks > 50, "%d errors, %d looks" % (failed, watcher.looks))
        slow.heal()
        t.fb("origin", "sync", "--pool", "p")
        same_at_last(t, slow)
        t.ok(not status(t)["problems"], "solved problems are told still: %s" % status(t)["problems"])
        t.ok(not status(t)["conflicts"], status(t))
        print("%d errors, %d attempts" % (failed, attempt + 1))
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")


@case(60)
def full_read_only_and_forbidden_origins_lose_nothing(t):
    changes = ["create", "mkdir", "symlink", "link", "unlink", "rename", "setattr"]
    troubles = [("full", dict(full=True), "no space left|full"), ("read-only", dict(read_only=True), "read-only"),
                ("forbidden", dict(faults=[{"kinds": changes, "errno": errno.EACCES}]), "permission denied|not permitted")]
    with slow_origin(t) as slow:
        t.file(os.path.join(slow.source, "old"), 100000, 1)
        up(t, slow.at, "--origin-lag", "0.1", "--origin-timeout", str(TIMEOUT))
        for name, settings, words in troubles:
            slow.set(**settings)
            t.bash("p", "cd %s; mkdir %s; head -c 3M /dev/urandom > %s/large; echo %s >> old; ln -s large %s/link"
                   % (slow.at, name, name, name, name))
            t.fb("origin", "sync", "--pool", "p", rc=120).says(words, "forebay origin sync")
            s = status(t)
            t.ok(s["dirty_files"] >= 2 and s["problems"], "%s: %s" % (name, s))
            said = " ".join(p["what"] for p in s["problems"])
            t.ok(any(w in said.lower() for w in words.split("|")), "%s: %s" % (name, said))
            t.fb("down", "--pool", "p", rc=120).says(words, "nothing was removed")
            t.bash("p", "cd %s; cat old %s/large > /dev/null; tail -c %d old"
                   % (slow.at, name, len(name) + 1)).prints("^%s$" % name)
            slow.heal()
            t.fb("origin", "sync", "--pool", "p")
            s = status(t)
            t.ok(not s["problems"] and not s["dirty_files"], "%s, after it was mended: %s" % (name, s))
            same_at_last(t, slow)
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")
        t.ok(open(slow.source + "/old", "rb").read().endswith(b"full\nread-only\nforbidden\n"), "a change is lost")


@case(60)
def service_that_dies_late_in_a_long_request_is_waited_for(t):
    """Programs wait for the next service from its death on, not from when they asked."""
    with slow_origin(t, rate=MiB) as slow:
        t.file(os.path.join(slow.source, "large"), 14 * MiB, 1)
        up(t, slow.at)
        reader = t.start([t.forebay, "exec", "--pool", "p", "--", "cmp", os.path.join(slow.at, "large"),
                          os.path.join(slow.source, "large")])
        wait_until(lambda: slow.file("large")["reads"], 10, "the fetch of a file")
        time.sleep(11)
        t.ok(reader.poll() is None, "the fetch wasn't long at all")
        kill(t.keeper("p"))
        t.fb("up", "--reopen", "--pool", "p")
        slow.heal()
        t.finish(reader, timeout=30)
        t.fb("down", "--pool", "p")


@case(90)
def killed_while_the_origin_is_slow(t):
    """The keeper dies within fetches and write-backs, which take long here."""
    seed = a_seed()
    draw = random.Random(seed)
    with slow_origin(t, rate=6 * MiB, latency_ms=1, contention_ms=5, seed=seed & 0xffff) as slow:
        an_input(t, slow)
        for n in range(4):
            t.file(os.path.join(slow.source, "in", "large%d" % n), 3 * MiB, 100 + n)
        # Files are written within it: one that is renamed while an older half of it is at the origin shows that half.
        up(t, slow.at, "--origin-lag", "0.5")
        watcher = Watcher(os.path.join(slow.source, "out"))
        reader = """import hashlib, sys
for n in sys.argv[2:]:
    f = open("%s/in/large%s" % (sys.argv[1], n), "rb"); print(hashlib.sha256(f.read()).hexdigest())"""
        order = list("0123")
        draw.shuffle(order)
        running = [t.start_python("p", reader, slow.at, *order)]
        running += [t.start_python("p", WRITER, slow.at, str(n), "50") for n in range(2)]
        deaths = 0
        until = time.monotonic() + float(os.environ.get("FOREBAY_CHECK_SECONDS", 8))
        while time.monotonic() < until:
            time.sleep(draw.uniform(0.05, 0.9))
            kill(t.keeper("p"))
            time.sleep(draw.uniform(0, 0.2))
            t.fb("up", "--reopen", "--pool", "p")
            deaths += 1
            if draw.random() < 0.4:
                t.fb("origin", "evict", "--pool", "p")
        got = t.finish(running[0], timeout=40).out.split()
        t.ok(got == [digest(slow.source + "/in/large" + n) for n in order], "a reader got something else")
        for writer in running[1:]:
            t.finish(writer, timeout=40)
        slow.heal()
        t.fb("origin", "sync", "--pool", "p", timeout=40)
        bad = watcher.end()
        t.ok(not bad, "half written at the origin: %s" % bad)
        # A service that died within a write-back may take its own version for one of others: not lost, but kept twice.
        same_at_last(t, slow, conflicts=True)
        t.ok(deaths >= 4, "only %d deaths" % deaths)
        print("%d deaths, %s" % (deaths, json.dumps({k: v for k, v in status(t).items() if k.endswith("_files")})))
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")
