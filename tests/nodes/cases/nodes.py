"""Shared by the cases: a pool of several nodes, and programs on each of them."""
import os
import sys
import time

from harness import Failed, alive

NODES = int(os.environ.get("FOREBAY_TEST_NODES", "4"))
POOL = "p"

# The beginning of every rank's program. The ranks meet at barriers outside the pool.
PREAMBLE = r'''
import errno, fcntl, os, random, struct, sys, time
rank, ranks, top, meet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
def barrier(seconds=40, _n=[0]):
    _n[0] += 1
    open("%s/%d-%d" % (meet, _n[0], rank), "w").close()
    until = time.monotonic() + seconds
    while not all(os.path.exists("%s/%d-%d" % (meet, _n[0], r)) for r in range(ranks)):
        assert time.monotonic() < until, "the others aren't at barrier %d" % _n[0]
        time.sleep(0.002)
def content(seed, size):
    return random.Random(seed).randbytes(size)
def same(got, wanted, what):
    if got != wanted:
        at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        sys.exit("%s: %d bytes, not %d; the first other one is at %d: %r, not %r" % (
            what, len(got), len(wanted), at, got[at:at + 16], wanted[at:at + 16]))
def whole(path):
    with open(path, "rb", 0) as f:
        return f.read()
def written(path, data, flags=0):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    at = 0
    while at < len(data):
        at += os.write(fd, data[at:])
    os.close(fd)
def fails(number, f, *a):
    try:
        f(*a)
    except OSError as e:
        if e.errno == number:
            return
        raise
    sys.exit("%s%r did not fail with %s" % (f.__name__, a, errno.errorcode[number]))
'''


def up(t, *options, nodes=NODES, media="memory:192M", **more):
    words = ["--nodes", str(nodes)] if nodes > 1 else []
    t.up(POOL, *words, *options, media=[media.replace("DIR", t.disk)], timeout=40, **more)


def on(t, node, *argv, nodes=NODES):
    """The words that run a program on a node."""
    words = ["--node", str(node % nodes)] if nodes > 1 else []
    return [t.forebay, "exec", "--pool", POOL, *words, "--", *argv]


def ranks(t, script, n=4, top="/fb", timeout=60, nodes=NODES, rc=0):
    """Runs a script as rank 0 to n-1, round the nodes; gives what they print."""
    meet = os.path.join(t.work, "meet%d" % len(os.listdir(t.work)))
    os.mkdir(meet)
    running = [t.start(on(t, r, sys.executable, "-c", PREAMBLE + script, str(r), str(n), top, meet,
                          nodes=nodes))
               for r in range(n)]
    # If one fails, the others wait in vain.
    until = time.monotonic() + timeout
    while any(p.poll() is None for p in running) and time.monotonic() < until:
        if rc == 0 and any(p.poll() for p in running):
            break
        time.sleep(0.02)
    failed = [r for r, p in enumerate(running) if p.poll() is None or (rc == 0 and p.poll())]
    if failed:
        texts = []
        for r in sorted(failed, key=lambda r: running[r].poll() is None):
            ended = running[r].poll()
            if ended is None:
                running[r].kill()
            err = running[r].communicate(timeout=10)[1].decode("utf-8", "backslashreplace")
            what = "no end within %g s, or another failed" % timeout if ended is None else "exit code %d" % ended
            texts.append("rank %d: %s\n%s" % (r, what, "".join(
                "      %s\n" % line[:400] for line in err.strip().split("\n")[-12:])))
        raise Failed("".join(texts))
    return [t.finish(p, rc, timeout=5).out for p in running]


def tidy(t, settled=True):
    """The pool is intact, nothing is lost, no process is left."""
    t.fb("fsck", "--pool", POOL, timeout=60)
    if settled:
        t.fb("down", "--pool", POOL, timeout=30)
        t.nothing_left("down")


def daemon(t, node, nodes=NODES):
    """The process of a node's daemon."""
    status = t.fb("status", "--pool", POOL, "--json", timeout=40).json()
    if nodes == 1:
        return status["keeper"]
    return next(n["keeper"] for n in status["nodes"] if n["node"] == node)


def node(t, what, number, **more):
    """kill, restart, pause, resume."""
    return t.fb("node", "--pool", POOL, what, str(number), timeout=40, **more)


def is_alive(pid):
    return bool(pid) and alive(pid)
