"""Requests between nodes that are slow, repeated or late: behind a stopped process, on a slow disk, over a restarted daemon,
of a node that has lost its locks, to a node that hardly runs."""
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from harness import Lines, Skipped, case, kill, wait_until
from .namespaces import Hosts
from .nodes import POOL, PREAMBLE, daemon, node, on, tidy, up

REQUESTS = 5500


@case(100)
def one_slow_request(t):
    """A write waits behind a stopped process that is writing the same file; thousands of other requests of its node are
    carried out meanwhile, none fails."""
    up(t, nodes=2)
    t.command(on(t, 0, "bash", "-c", "echo x > /fb/other; echo x > /fb/big", nodes=2))
    # It copies into the file nearly all the time, holding its lock.
    busy = t.start(on(t, 0, sys.executable, "-c", r'''
import os
fd = os.open("/fb/big", os.O_RDWR)
data = bytes(48 << 20)
os.pwrite(fd, data, 0)
print("begins", flush=True)
while True:
    os.pwrite(fd, data, 0)
''', nodes=2))
    Lines(busy).wait_for(1, 30)
    asks = t.start(on(t, 1, sys.executable, "-c", r'''
import os, sys, threading, time
def write():
    fd = os.open("/fb/big", os.O_RDWR)
    print("writes", flush=True)
    assert os.pwrite(fd, b"y", 5) == 1
    done.append(1)
done = []
for line in sys.stdin:
    thread = threading.Thread(target=write)
    thread.start()
    thread.join(1.5)
    if thread.is_alive():
        break
    print("done", flush=True)
print("waits", flush=True)
for n in range(%d):
    os.stat("/fb/other")
print("asked", flush=True)
thread.join()
assert done
print("written", flush=True)
''' % REQUESTS, nodes=2), stdin=subprocess.PIPE)
    lines = Lines(asks)
    # The process itself, not the shell of its launch: exec has replaced that.
    for _ in range(40):
        time.sleep(0.05)
        os.kill(busy.pid, signal.SIGSTOP)
        asks.stdin.write(b"\n")
        asks.stdin.flush()
        before = len(lines.lines)
        wait_until(lambda: lines.lines[before:] and lines.lines[-1] in ("done", "waits", "asked"), 20, "the write")
        if lines.lines[-1] != "done":
            break
        os.kill(busy.pid, signal.SIGCONT)
    else:
        raise Skipped("the process was never stopped while it held the file's lock")
    try:
        wait_until(lambda: "asked" in lines.lines or asks.poll() is not None, 25, "the others are asked")
    finally:
        os.kill(busy.pid, signal.SIGCONT)
    asks.stdin.close()
    t.ok(asks.wait(20) == 0, "it failed: %s" % asks.stderr.read().decode()[-300:])
    t.ok("written" in lines.all(), "%s" % lines.lines)
    kill(busy.pid)
    busy.wait()
    tidy(t)


@case(100)
def slow_disk(t):
    """fsync and syncfs of a file on another node whose disk takes several times the patience return 0; once that node's daemon is
    killed meanwhile, they fail soon."""
    if not shutil.which("strace"):
        raise Skipped("there is no strace to slow the disk down with")
    up(t, "--request-timeout", "0.6", nodes=2, media="files:DIR:128M")
    t.command(on(t, 0, "bash", "-c", "echo x > /fb/f", nodes=2))
    slow = t.start(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync,sync_file_range,syncfs,msync", "-e",
                    "inject=fsync,fdatasync,sync_file_range,syncfs,msync:delay_enter=1500000",
                    "-p", str(daemon(t, 0, nodes=2))])
    time.sleep(1)
    if slow.poll() is not None:
        raise Skipped("strace may not trace here: %s" % slow.stderr.read().decode()[:200])
    syncs = r'''
import errno, os, sys, time
fd = os.open("/fb/f", os.O_RDWR)
os.pwrite(fd, bytes(300000), 0)
print("syncs", flush=True)
began = time.monotonic()
try:
    os.fsync(fd)
    print("synced %.2f" % (time.monotonic() - began), flush=True)
except OSError as e:
    print("failed", errno.errorcode[e.errno], flush=True)
'''
    program = t.start(on(t, 1, sys.executable, "-c", syncs, nodes=2))
    lines = Lines(program)
    lines.wait_for(2, 40)
    t.ok(lines.lines[1].startswith("synced"), "%s" % lines.lines)
    t.ok(float(lines.lines[1].split()[1]) > 1.2, "it wasn't slow: %s" % lines.lines)
    program.wait(10)
    program = t.start(on(t, 1, sys.executable, "-c", syncs, nodes=2))
    lines = Lines(program)
    lines.wait_for(1, 20)
    time.sleep(1)
    node(t, "kill", 0)
    slow.kill()
    slow.wait()
    lines.wait_for(2, 20)
    t.ok(lines.lines[1] == "failed EHOSTDOWN", "%s" % lines.lines)
    program.wait(10)
    node(t, "restart", 0)
    tidy(t)


@case(100)
def truncated_once(t):
    """A file's home cuts it for another node and is killed before its answer arrives. What a program there has written since
    stays when the cut comes again."""
    with Hosts(t, "--request-timeout", "20") as h:
        t.command(h.on(0, "bash", "-c", "echo 0123456789 > /fb/f"))
        cuts = t.start(h.on(1, sys.executable, "-c", r'''
import os, sys
fd = os.open("/fb/f", os.O_RDWR)
print("has it", flush=True)
sys.stdin.readline()
os.ftruncate(fd, 4)
print("cut", flush=True)
'''), stdin=subprocess.PIPE)
        lines = Lines(cuts)
        lines.wait_for(1)
        # Its name may lie with any node: it is open before.
        appends = t.start(h.on(0, sys.executable, "-c", r'''
import os, sys
fd = os.open("/fb/f", os.O_RDWR | os.O_APPEND)
print("has it", flush=True)
for line in sys.stdin:
    size = os.fstat(fd).st_size
    if line == "append\n":
        os.write(fd, b"acknowledged")
        os.fsync(fd)
    print(size, flush=True)
'''), stdin=subprocess.PIPE)
        there = Lines(appends)

        def asks(word):
            before = len(there.lines)
            appends.stdin.write(word)
            appends.stdin.flush()
            there.wait_for(before + 1)
            return there.lines[-1]

        there.wait_for(1)
        # From now on what node 0 sends doesn't reach node 1; what node 1 sends arrives.
        far = "%s.2/32" % h.nets.net
        h.nets.ip("-n", h.nets.names[0], "route", "add", "unreachable", far)
        cuts.stdin.write(b"\n")
        cuts.stdin.flush()
        wait_until(lambda: asks(b"size\n") == "4", 12, "it is cut")
        time.sleep(0.3)
        t.ok(cuts.poll() is None, "it has its answer")
        command = h.nets.inside(0, t.forebay, "node", "--pool", POOL)
        t.command(command + ["kill", "0"])
        t.ok(asks(b"append\n") == "4", "it isn't cut any more")
        h.nets.ip("-n", h.nets.names[0], "route", "del", "unreachable", far)
        t.command(command + ["restart", "0"], timeout=30)
        lines.wait_for(2, 40)
        t.ok(cuts.wait(10) == 0, "it failed")
        r = t.command(h.on(2, "cat", "/fb/f"))
        t.ok(r.out == "0123acknowledged", "it is %r" % r.out)
        appends.stdin.close()
        appends.wait(10)
        t.command(h.nets.inside(0, t.forebay, "fsck", "--pool", POOL), timeout=60)


LOCKED = PREAMBLE + r'''
how = sys.argv[6]
def lock(fd):
    if how == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX)
    else:
        fcntl.lockf(fd, fcntl.LOCK_EX)
def says(f, *a):
    try:
        f(*a)
        return "done"
    except OSError as e:
        return errno.errorcode[e.errno]
path = sys.argv[5]
fd = os.open(path, os.O_RDWR)
other = os.open(path, os.O_RDWR)
lock(fd)
os.pwrite(fd, b"mine!", 0)
print("has it", flush=True)
sys.stdin.readline()
until = time.monotonic() + 20
while (told := says(os.pwrite, fd, b"mine?", 0)) == "EHOSTDOWN" and time.monotonic() < until:
    time.sleep(0.1)
print(told, says(os.pwrite, other, b"mine?", 0), says(os.ftruncate, fd, 0), says(os.pread, fd, 5, 0),
      says(lock, fd), flush=True)
# Another descriptor of the same node beside them doesn't help.
third = os.open(path, os.O_RDWR)
print(says(os.pwrite, third, b"mine?", 0), flush=True)
for f in (fd, other, third):
    os.close(f)
fd = os.open(path, os.O_RDWR)
lock(fd)
print(os.pread(fd, 5, 0).decode(), says(os.pwrite, fd, b"again", 0), flush=True)
'''


WAITS = PREAMBLE + r'''
fd = os.open(sys.argv[5], os.O_RDWR)
print("waits", flush=True)
sys.stdin.readline()
(fcntl.flock if sys.argv[6] == "flock" else fcntl.lockf)(fd, fcntl.LOCK_EX)
assert os.pread(fd, 5, 0) == b"mine!"
os.pwrite(fd, b"yours", 0)
'''


@case(100)
def lost_locks(t):
    """A node is out of reach for longer than the lease: others get the locks of its programs, which get EIO from then on for
    the files that they had locked, by whatever descriptor, until they have closed them."""
    up(t, "--request-timeout", "1", "--lease", "2", nodes=3)
    ways = {}
    for how in ("flock", "posix"):
        path = "/fb/" + how
        t.command(on(t, 0, "bash", "-c", "echo ..... > " + path, nodes=3))
        owner = t.start(on(t, 1, sys.executable, "-c", LOCKED, "0", "1", "/fb", "-", path, how, nodes=3),
                        stdin=subprocess.PIPE)
        lines = Lines(owner)
        lines.wait_for(1)
        waits = t.start(on(t, 2, sys.executable, "-c", WAITS, "0", "1", "/fb", "-", path, how, nodes=3),
                        stdin=subprocess.PIPE)
        Lines(waits).wait_for(1)
        ways[path] = owner, lines, waits
    # Programs of all nodes run on; nodes 0 and 1 don't hear of each other.
    node(t, "pause", 1)
    for _, _, waits in ways.values():
        waits.stdin.write(b"\n")
        waits.stdin.flush()
    for _, _, waits in ways.values():
        t.ok(waits.wait(40) == 0, "it doesn't get the lock: %s" % waits.stderr.read().decode()[-300:])
    node(t, "resume", 1)
    for path, (owner, lines, _) in ways.items():
        owner.stdin.write(b"\n")
        owner.stdin.flush()
        lines.wait_for(4, 40)
        t.ok(lines.lines[1:] == ["EIO EIO EIO EIO EIO", "EIO", "yours done"], "it was told: %s" % lines.lines)
        err = t.finish(owner, timeout=20).err
        t.ok("has released its file locks" in err, "it isn't told why: %r" % err)
        # The name may lie with node 1, to which node 0 has to find the way again.
        cat = on(t, 0, "cat", path, nodes=3)
        wait_until(lambda: t.command(cat, rc=None).rc == 0, 15, "the file is there")
        t.ok(t.command(cat).out == "again\n", "something else is there")
    tidy(t)


@case(100)
def a_node_that_hardly_runs(t):
    """One node's daemon gets 2% of its time. Programs of the others go on with what doesn't lie there as fast as ever; what lies
    there is slow, and right: nothing fails, no lock is lost."""
    up(t, "--lease", "3", nodes=3)
    t.command(on(t, 0, "bash", "-c", "echo 0 > /fb/slow", nodes=3))
    t.command(on(t, 2, "bash", "-c", "echo 0 > /fb/fast", nodes=3))
    pid = daemon(t, 0, nodes=3)
    over = threading.Event()

    def hold_up():
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.245)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.005)

    thread = threading.Thread(target=hold_up)
    thread.start()
    count = r'''
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
until, rounds = time.monotonic() + 6, 0
while time.monotonic() < until:
    fcntl.flock(fd, fcntl.LOCK_EX)
    n = int(os.pread(fd, 20, 0))
    os.pwrite(fd, b"%d\n" % (n + 1), 0)
    fcntl.flock(fd, fcntl.LOCK_UN)
    rounds += 1
print(rounds)
'''
    try:
        running = [t.start(on(t, n, sys.executable, "-c", count, path, nodes=3))
                   for path in ("/fb/slow", "/fb/fast") for n in (1, 2)]
        rounds = [int(t.finish(p, timeout=60).out) for p in running]
    finally:
        over.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)
    slow = t.command(on(t, 1, "cat", "/fb/slow", nodes=3)).out
    fast = t.command(on(t, 1, "cat", "/fb/fast", nodes=3)).out
    print("on the slow node %s rounds, on another one %s" % (rounds[:2], rounds[2:]))
    t.ok(int(slow) == sum(rounds[:2]) > 0, "%s, not %s" % (slow, rounds[:2]))
    t.ok(int(fast) == sum(rounds[2:]), "%s, not %s" % (fast, rounds[2:]))
    t.ok(sum(rounds[2:]) > sum(rounds[:2]), "the other node is as slow: %s" % rounds)
    tidy(t)
