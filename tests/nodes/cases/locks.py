"""Locks between nodes: counters, owners that die, deadlocks, databases."""
import signal
import subprocess
import sys
import time

from harness import Failed, Lines, case, kill, wait_until
from .nodes import NODES, POOL, PREAMBLE, node, on, ranks, tidy, up

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
    """A waiter for the lock of a killed process gets it soon, whatever their nodes."""
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


CIRCLE = r'''
def circle(members, name):
    # Each member has one file and wants the next one's. Returns the result.
    if rank not in members:
        return
    at = members.index(rank)
    fds = [os.open("%s/%s%d" % (top, name, k), os.O_RDWR | os.O_CREAT, 0o644) for k in range(len(members))]
    fcntl.lockf(fds[at], fcntl.LOCK_EX)
    meeting(members, name)
    began = time.monotonic()
    try:
        fcntl.lockf(fds[(at + 1) % len(members)], fcntl.LOCK_EX)
        said = "got it"
    except OSError as e:
        assert e.errno == errno.EDEADLK, e
        said = "told"
    print("%s %s %.2f" % (name, said, time.monotonic() - began), flush=True)
    for fd in fds:
        os.close(fd)
def meeting(members, name):
    open("%s/%s%d" % (meet, name, rank), "w").close()
    until = time.monotonic() + 30
    while not all(os.path.exists("%s/%s%d" % (meet, name, r)) for r in members):
        assert time.monotonic() < until
        time.sleep(0.002)
'''


@case(120)
def deadlock(t):
    """Processes that wait for each other in a circle over nodes: one gets EDEADLK, the others go on."""
    up(t)
    # Ranks 0 to 3 are on nodes 0 to 3, 4 and 5 on 0 and 1 again.
    circles = [[0, 1], [0, 4], [0, 1, 2], [3, 2, 1, 0], [0, 4, 1], [0, 1, 4, 5], [0, 1, 2, 3, 4, 5]]
    outs = ranks(t, LOCKS + CIRCLE + r'''
import signal
signal.alarm(40)
for k, members in enumerate(%r):
    for again in range(3):
        circle(members, "circle%%d-%%d-" %% (k, again))
        barrier()
''' % circles, n=6, timeout=80)
    said = {}
    for line in "".join(outs).splitlines():
        name, what = line.split(" ", 1)
        what, took = what.rsplit(" ", 1)
        said.setdefault(name, []).append(what)
        t.ok(float(took) < 8, "%s took %s s" % (name, took))
    for name, what in said.items():
        members = circles[int(name.split("-")[0][6:])]
        t.ok(len(what) == len(members) and what.count("told") == 1, "%s: they said %s" % (name, what))
    tidy(t)


@case(180)
def no_deadlock(t):
    """Many processes that take locks on bytes of two files in one order, or on some of them shared, never are in a circle:
    none is told EDEADLK, and all come to an end."""
    up(t)
    ranks(t, LOCKS + r'''
import signal
signal.alarm(80)
fds = [os.open("%s/ordered%d" % (top, k), os.O_RDWR | os.O_CREAT, 0o644) for k in range(3)]
barrier()
r = random.Random(rank)
until = time.monotonic() + 12
rounds = 0
while time.monotonic() < until:
    wanted = sorted((f, b) for f in range(3) for b in range(4) if r.random() < 0.3)
    for f, b in wanted:
        how = fcntl.LOCK_EX if r.random() < 0.6 else fcntl.LOCK_SH
        fcntl.lockf(fds[f], how, 1, b)
        if r.random() < 0.05:
            time.sleep(0.03)
    r.shuffle(wanted)
    for f, b in wanted:
        fcntl.lockf(fds[f], fcntl.LOCK_UN, 1, b)
    rounds += 1
assert rounds > 10, rounds
''', n=10, timeout=120)
    tidy(t)


@case(180)
def circles_of_many(t):
    """Many processes that take locks in any order, on all nodes, and start again at EDEADLK: every circle
    ends soon, also if some of them are killed."""
    up(t)
    outs = ranks(t, LOCKS + r'''
import signal
signal.alarm(100)
fds = [os.open("%s/any%d" % (top, k), os.O_RDWR | os.O_CREAT, 0o644) for k in range(3)]
barrier()
r = random.Random(rank)
until = time.monotonic() + 10
rounds = told = 0
longest = 0
me, child = os.getpid(), 0
while time.monotonic() < until:
    if rank % 3 == 0 and os.getpid() == me and not child:
        # One more that is killed in the midst.
        child = os.fork()
        if not child:
            until = time.monotonic() + 60
    try:
        for f, b in r.sample([(f, b) for f in range(3) for b in range(3)], 3):
            began = time.monotonic()
            fcntl.lockf(fds[f], fcntl.LOCK_EX, 1, b)
            longest = max(longest, time.monotonic() - began)
        rounds += 1
    except OSError as e:
        assert e.errno == errno.EDEADLK, e
        told += 1
    for fd in fds:
        fcntl.lockf(fd, fcntl.LOCK_UN)
    if child and r.random() < 0.2:
        os.kill(child, 9)
        os.waitpid(child, 0)
        child = 0
if child:
    os.kill(child, 9)
    os.waitpid(child, 0)
print(rounds, told, "%.2f" % longest)
''', n=8, timeout=120)
    seen = [line.split() for line in outs]
    print("rounds, told, longest wait: %s" % seen)
    t.ok(sum(int(told) for _, told, _ in seen) > 10, "nobody was told: %s" % seen)
    t.ok(all(int(rounds) > 3 and float(longest) < 8 for rounds, _, longest in seen), "somebody waited long: %s" % seen)
    tidy(t)


@case(150)
def restarts(t):
    """Locks of all kinds outlive the daemons of the file's node and of the process's node. Those of processes
    that died meanwhile don't."""
    up(t)
    hold = PREAMBLE + LOCKS + r'''
fd = os.open(sys.argv[5], os.O_RDWR | os.O_CREAT, 0o644)
lock(fd, sys.argv[6])
print("has it", flush=True)
sys.stdin.readline()
unlock(fd, sys.argv[6])
print("gave it up", flush=True)
time.sleep(60)
'''
    look = PREAMBLE + LOCKS + r'''
import signal
signal.alarm(25)
fd = os.open(sys.argv[5], os.O_RDWR)
try:
    if sys.argv[6] == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        lock(fd, sys.argv[6], nonblocking=True)
    print("free")
except OSError as e:
    assert e.errno in (errno.EAGAIN, errno.EACCES), e
    print("locked")
'''
    def looks(node_number, path, kind):
        r = t.command(on(t, node_number, sys.executable, "-c", look, "0", "1", "/fb", "-", path, kind), timeout=30)
        return r.out.strip()
    # The file lies with its creator, on node 1; one owner is there, one on node 2.
    for round_number, hurt in enumerate(((1,), (2,), (1, 2))):
        owners = {}
        for kind in ("flock", "posix", "ofd"):
            for home in (1, 2):
                for fate in ("lives", "dies"):
                    path = "/fb/r%d-%s-%d-%s" % (round_number, kind, home, fate)
                    t.command(on(t, 1, sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", path))
                    o = t.start(on(t, home, sys.executable, "-c", hold, "0", "1", "/fb", "-", path, kind),
                                stdin=subprocess.PIPE)
                    owners[path] = (o, Lines(o), kind, fate)
        for o, lines, _, _ in owners.values():
            lines.wait_for(1)
        for number in hurt:
            node(t, "kill", number)
        for o, _, _, fate in owners.values():
            if fate == "dies":
                kill(o.pid, signal.SIGKILL)
                o.wait()
        for number in hurt:
            node(t, "restart", number)
        # All at once: none gets what another holds.
        for n, (path, (o, _, kind, fate)) in enumerate(owners.items()):
            if fate == "lives":
                got = looks(n % NODES, path, kind)
                t.ok(got == "locked", "%s: it is %s right after the restart" % (path, got))
        until = time.monotonic() + 15
        for n, (path, (o, _, kind, fate)) in enumerate(owners.items()):
            while fate == "dies" and looks((n + 1) % NODES, path, kind) != "free":
                t.ok(time.monotonic() < until, "%s: its owner is dead, but it is locked" % path)
                time.sleep(0.3)
            if fate == "lives":
                got = looks((n + 2) % NODES, path, kind)
                t.ok(got == "locked", "%s: it is %s" % (path, got))
        # What its owner releases afterwards is free.
        for n, (path, (o, lines, kind, fate)) in enumerate(owners.items()):
            if fate == "lives":
                o.stdin.write(b"\n")
                o.stdin.flush()
                lines.wait_for(2, 15)
                got = looks((n + 1) % NODES, path, kind)
                t.ok(got == "free", "%s: it is %s after it was given up" % (path, got))
        for o, _, _, _ in owners.values():
            kill(o.pid, signal.SIGKILL)
            o.wait()
    tidy(t)


@case(60)
def interrupted(t):
    """A signal interrupts a wait for a lock, here or on another node; after one with SA_RESTART the wait goes
    on. A process that leaves a handler by an exception doesn't wait any more: no deadlock is detected
    then."""
    up(t)
    ranks(t, LOCKS + r'''
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
def raw(fd, kind):
    # Python's own call would call again after EINTR.
    fl = ctypes.create_string_buffer(struct.pack("hhqqi4x", kind, 0, 0, 0, 0))
    return ctypes.get_errno() if libc.fcntl(fd, fcntl.F_SETLKW, fl) else 0
seen = []
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(seen.append)
class Sigaction(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_byte * 128), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]
def handle(flags):
    action = Sigaction(ctypes.cast(handler, ctypes.c_void_p), flags=flags)
    assert libc.sigaction(signal.SIGALRM, ctypes.byref(action), None) == 0
SA_RESTART = 0x10000000
# Rank 0 made the file, on node 0. Rank 1 is on another node, 4 on the same one.
path = top + "/interrupted"
if rank == 0:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
barrier()
for waiter in 1, 4:
    if rank == 0:
        lock(fd, "posix")
    barrier()
    if rank == waiter:
        fd = os.open(path, os.O_RDWR)
        handle(0)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        began = time.monotonic()
        assert raw(fd, fcntl.F_WRLCK) == errno.EINTR
        assert 0.15 < time.monotonic() - began < 5, time.monotonic() - began
        assert len(seen) == 1
        handle(SA_RESTART)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    barrier()
    if rank == 0:
        time.sleep(1)
        unlock(fd, "posix")
    if rank == waiter:
        assert raw(fd, fcntl.F_WRLCK) == 0
        assert len(seen) == 2, seen
        assert time.monotonic() - began > 1
        os.close(fd)
        seen.clear()
    barrier()
# Out of a handler, to other things: 1 has what 0 wants, but 1 doesn't wait any more for what 0 has.
if rank in (0, 1):
    other = os.open(path + "2", os.O_RDWR | os.O_CREAT, 0o644)
    fd = os.open(path, os.O_RDWR)
    lock((fd, other)[rank], "posix")
barrier()
if rank == 1:
    class Stop(Exception):
        pass
    def stop(*_):
        raise Stop
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        lock(fd, "posix")
        sys.exit("it got the lock")
    except Stop:
        pass
barrier()
if rank == 0:
    lock(other, "posix")
if rank == 1:
    time.sleep(1.5)
    unlock(other, "posix")
''', n=5, timeout=50)
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


PARTS = PREAMBLE + LOCKS + r'''
MIB, CHUNKS = 1 << 20, 24
def each(f):
    """What f comes to in each chunk."""
    said = []
    for chunk in range(CHUNKS):
        try:
            f(chunk * MIB)
            said.append("done")
        except OSError as e:
            said.append(errno.errorcode[e.errno])
    return " ".join(sorted(set(said)))
def line(text):
    print(text, flush=True)
    sys.stdin.readline()
fd = os.open(sys.argv[5], os.O_RDWR)
'''


@case(100)
def lost_locks_of_parts(t):
    """A striped file, locked by a program of a node that is out of reach for longer than the lease: it gets EIO for all chunks, those
    on its own node too while its daemon stands still, before another one gets the lock; and when it is back, for those on
    third nodes."""
    up(t, "--request-timeout", "1", "--lease", "2", nodes=3)
    t.fb("set", "--pool", POOL, "--distribution", "striped", "--chunk-size", "1M", "/s")
    # Each node has some of 24 chunks (but once in 6000 runs).
    t.command(on(t, 0, "bash", "-c", "truncate -s 24M /fb/s/f", nodes=3))
    owner = t.start(on(t, 1, sys.executable, "-c", PARTS + r'''
lock(fd, "posix")
assert each(lambda at: os.pwrite(fd, b"mine!", at)) == "done"
line("has it")
line(each(lambda at: os.pwrite(fd, b"mine?", at)))
line(each(lambda at: os.pread(fd, 5, at)))
line(each(lambda at: os.pwrite(fd, b"mine?", at)))
os.close(fd)
fd = os.open(sys.argv[5], os.O_RDWR)
lock(fd, "posix")
line(each(lambda at: os.pwrite(fd, b"again", at)))
''', "0", "1", "/fb", "-", "/fb/s/f", nodes=3), stdin=subprocess.PIPE)
    waits = t.start(on(t, 2, sys.executable, "-c", PARTS + r'''
line("waits")
lock(fd, "posix")
line("has it")
# Node 1 can't be reached now.
each(lambda at: os.pwrite(fd, b"yours", at))
line("wrote")
''', "0", "1", "/fb", "-", "/fb/s/f", nodes=3), stdin=subprocess.PIPE)
    mine, other = Lines(owner), Lines(waits)

    def go_on(program):
        program.stdin.write(b"\n")
        program.stdin.flush()

    mine.wait_for(1, 20)
    other.wait_for(1, 20)
    node(t, "pause", 1)
    go_on(waits)
    other.wait_for(2, 40)
    for n, what in (2, "writes"), (3, "reads"):
        go_on(owner)
        mine.wait_for(n, 60)
        t.ok(mine.lines[-1] == "EIO", "another one has the lock, and it %s: %s" % (what, mine.lines[-1]))
    go_on(waits)
    other.wait_for(3, 60)
    node(t, "resume", 1)
    go_on(waits)
    t.ok(waits.wait(20) == 0, "the other one failed")
    go_on(owner)
    mine.wait_for(4, 60)
    t.ok(mine.lines[-1] == "EIO", "it is back, and writes: %s" % mine.lines[-1])
    read = on(t, 0, sys.executable, "-c", PARTS + "print(sorted({os.pread(fd, 5, c * MIB) for c in range(CHUNKS)}))",
              "0", "1", "/fb", "-", "/fb/s/f", nodes=3)
    wait_until(lambda: t.command(read, rc=None).rc == 0, 15, "all of the file can be read")
    out = t.command(read).out.strip()
    t.ok(out == "[b'mine!', b'yours']", "the file has %s" % out)
    # Closed and opened again, it behaves as for others.
    go_on(owner)
    mine.wait_for(5, 40)
    t.ok(mine.lines[-1] == "done", "opened anew: %s" % mine.lines[-1])
    go_on(owner)
    err = t.finish(owner, timeout=20).err
    t.ok("has released its file locks" in err, "it isn't told why: %r" % err)
    tidy(t)
