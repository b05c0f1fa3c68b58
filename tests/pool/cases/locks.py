"""Locks between nodes: counters, owners that die, deadlocks, databases."""
import signal
import sys
import time

from harness import Failed, Lines, case, kill
from .nodes import NODES, PREAMBLE, on, ranks, tidy, up

LOCKS = r'''
def lock(fd, kind, how=None, nonblocking=False):
    if kind == "flock":
        fcntl.flock(fd, how if how is not None else fcntl.LOCK_EX)
        return
    command = {"posix": fcntl.F_SETLKW, "ofd": 38}[kind]
    if nonblocking:
        command -= 1
    fcntl.fcntl(fd, command, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
def unlock(fd, kind):
    if kind == "flock":
        fcntl.flock(fd, fcntl.LOCK_UN)
    else:
        fcntl.fcntl(fd, {"posix": fcntl.F_SETLK, "ofd": 37}[kind], struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0))
'''


@case(120)
def counters(t):
    """A number in a file, raised under a lock by processes of all nodes: none is lost."""
    up(t)
    ranks(t, LOCKS + r'''
for kind in ("flock", "posix", "ofd"):
    path = top + "/" + kind
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    barrier()
    for n in range(120):
        lock(fd, kind)
        text = os.pread(fd, 100, 0)
        number = int(text or b"0")
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d" % (number + 1), 0)
        if n % 3 == 0:
            os.sched_yield()
        unlock(fd, kind)
    barrier()
    assert os.pread(fd, 100, 0) == b"%d" % (120 * ranks), (kind, os.pread(fd, 100, 0))
''', n=5)
    tidy(t)


@case(120)
def parts_of_a_file(t):
    """Locks of parts: neighbours don't wait for each other, overlaps do."""
    up(t)
    ranks(t, r'''
fd = os.open(top + "/parts", os.O_RDWR | os.O_CREAT, 0o644)
CELLS = 12
barrier()
r = random.Random(rank)
for n in range(120):
    first = r.randrange(CELLS)
    count = r.randrange(1, CELLS - first + 1)
    fcntl.lockf(fd, fcntl.LOCK_EX, count * 8, first * 8)
    numbers = [struct.unpack("q", os.pread(fd, 8, c * 8).ljust(8, b"\0"))[0] for c in range(first, first + count)]
    for c, number in zip(range(first, first + count), numbers):
        os.pwrite(fd, struct.pack("q", number + 1), c * 8)
    fcntl.lockf(fd, fcntl.LOCK_UN, count * 8, first * 8)
barrier()
wanted = [0] * CELLS
for k in range(ranks):
    r = random.Random(k)
    for n in range(120):
        first = r.randrange(CELLS)
        count = r.randrange(1, CELLS - first + 1)
        for c in range(first, first + count):
            wanted[c] += 1
assert list(struct.unpack("12q", os.pread(fd, 96, 0))) == wanted
''')
    tidy(t)


@case(120)
def owners_die(t):
    """Who waits for the lock of a process that is killed, on whatever node, gets it soon."""
    up(t)
    for kind in ("flock", "posix", "ofd"):
        for n, signal_number in enumerate((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)):
            path = "/fb/%s%d" % (kind, n)
            owner = t.start(on(t, n, sys.executable, "-c", PREAMBLE + LOCKS + r'''
fd = os.open(sys.argv[5], os.O_RDWR | os.O_CREAT, 0o644)
lock(fd, sys.argv[6])
print("has it", flush=True)
time.sleep(60)
''', "0", "1", "/fb", "-", path, kind))
            Lines(owner).wait_for(1)
            waiters = [t.start(on(t, n + k, sys.executable, "-c", PREAMBLE + LOCKS + r'''
fd = os.open(sys.argv[5], os.O_RDWR | os.O_CREAT, 0o644)
print("waits", flush=True)
lock(fd, sys.argv[6])
print("has it", flush=True)
unlock(fd, sys.argv[6])
os.close(fd)
''', "0", "1", "/fb", "-", path, kind)) for k in (0, 1, 2)]
            lines = [Lines(w) for w in waiters]
            for x in lines:
                x.wait_for(1)
            time.sleep(0.3)
            for k, x in enumerate(lines):
                t.ok(len(x.lines) == 1, "%s: node %d got the lock that a process of node %d has" % (kind, n + k, n))
            began = time.monotonic()
            kill(owner.pid, signal_number)
            owner.wait()
            for k, x in enumerate(lines):
                try:
                    x.wait_for(2, 6)
                except Failed:
                    raise Failed("%s: node %d doesn't get the lock of a killed process of node %d within 6 s" % (
                        kind, n + k, n))
            took = time.monotonic() - began
            t.ok(took < 6, "%s: %.1f s" % (kind, took))
            for w in waiters:
                t.ok(w.wait(5) == 0, "a waiter failed")
    tidy(t)


@case(60)
def deadlock(t):
    """Two processes of two nodes that wait for each other: one is told EDEADLK, if both files lie on the node of both.
    Else nobody is (docs/semantics.md): they wait, and can be interrupted, and then the other goes on."""
    up(t)
    outs = ranks(t, r'''
import signal
signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
fds = [os.open("%s/dead%d" % (top, k), os.O_RDWR | os.O_CREAT, 0o644) for k in range(2)]
fcntl.lockf(fds[rank], fcntl.LOCK_EX)
barrier()
if rank == 0:
    signal.alarm(3)
try:
    fcntl.lockf(fds[1 - rank], fcntl.LOCK_EX)
    print("got it")
except ZeroDivisionError:
    print("interrupted")
    fcntl.lockf(fds[rank], fcntl.LOCK_UN)
except OSError as e:
    assert e.errno == errno.EDEADLK, e
    print("told")
    fcntl.lockf(fds[rank], fcntl.LOCK_UN)
signal.alarm(0)
''', n=2, timeout=20)
    allowed = [["got it\n", "told\n"], ["told\n", "told\n"]]
    if NODES > 1:
        allowed.append(["got it\n", "interrupted\n"])
    t.ok(sorted(outs) in allowed, "they said %s" % outs)
    tidy(t)


@case(150)
def sqlite(t):
    """One database, written by processes on three nodes, one of which is killed; it stays whole."""
    up(t)
    for mode in ("delete", "truncate", "persist"):
        t.command(on(t, 0, "sqlite3", "/fb/%s.db" % mode, "pragma journal_mode=%s; create table t(who, i, n, text); "
                     "create table counter(n); insert into counter values(0);" % mode))
        outs = ranks(t, r'''
import sqlite3
c = sqlite3.connect("%s/%s.db" % (top, "MODE"), timeout=60, isolation_level=None)
c.execute("pragma journal_mode=MODE")
for i in range(40):
    c.execute("begin immediate")
    n, = c.execute("select n from counter").fetchone()
    rows, = c.execute("select count(*) from t").fetchone()
    assert rows == n, (rows, n)
    c.execute("insert into t values(?, ?, ?, ?)", (rank, i, n, "x" * (i * 37 % 900)))
    c.execute("update counter set n = ?", (n + 1,))
    c.execute("rollback" if i % 7 == 3 else "commit")
if rank == 2:
    os.kill(os.getpid(), 9)
c.close()
'''.replace("MODE", mode), n=3, timeout=90, rc=(0, -9, 137))
        r = t.command(on(t, 3, "sqlite3", "/fb/%s.db" % mode,
                         "select n, (select count(distinct n) from t) from counter; pragma integrity_check;"))
        t.ok(r.out == "102|102\nok\n", "%s: %r" % (mode, r.out))
    tidy(t)
