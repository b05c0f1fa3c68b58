"""Random kills of daemons and programs under load: nothing acknowledged is lost, no process hangs."""
import errno
import os
import random
import signal
import sys
import time

from harness import Failed, Lines, Skipped, alive, case, kill
from .nodes import NODES, PREAMBLE, POOL, daemon, node, on, tidy, up

KILLS = int(os.environ.get("FOREBAY_KILLS", "25"))
# Longest time of an operation while nodes come and go: the pool's request timeout, and some.
# Seconds.
REQUEST_TIMEOUT, BOUND = 2, 12

# Makes, appends to, renames and removes its own files in shared directories. Prints each
# acknowledged operation on its standard output; before each, what it is about to do.
WORKER = r'''
LOST = (errno.EIO, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENOTCONN)
BOUND = float(sys.argv[5])
seed = int(sys.argv[6])
r = random.Random(seed)
out = os.open(meet, os.O_WRONLY | os.O_APPEND)
def say(*words):
    os.write(out, (" ".join(map(str, words)) + "\n").encode())
def timed(f, *a):
    began = time.monotonic()
    try:
        return f(*a)
    finally:
        took = time.monotonic() - began
        if took > BOUND:
            say("slow", took, getattr(f, "__name__", "?"), *a)
n = 0
mine = []
while True:
    n += 1
    name = "d%d/f%d-%d" % (r.randrange(4), seed, n)
    size = r.choice([10, 900, 5000, 70000, 1200000])
    try:
        say("make", name, size)
        fd = timed(os.open, top + "/" + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        data = content(name, size)
        at = 0
        while at < size:
            at += timed(os.write, fd, data[at:])
        timed(os.close, fd)
        say("made", name, size)
        mine.append((name, size))
        what = r.randrange(4)
        if what == 0 and len(mine) > 3:
            old, oldsize = mine.pop(r.randrange(len(mine)))
            new = "d%d/r%s" % (r.randrange(4), os.path.basename(old))
            say("move", old, new, oldsize)
            timed(os.rename, top + "/" + old, top + "/" + new)
            say("moved", old, new, oldsize)
        elif what == 1 and len(mine) > 3:
            old, oldsize = mine.pop(r.randrange(len(mine)))
            say("remove", old)
            timed(os.unlink, top + "/" + old)
            say("removed", old)
        elif what == 2 and mine:
            name, size = r.choice(mine)
            fd = timed(os.open, top + "/" + name, os.O_RDONLY)
            got = b""
            while len(got) < size:
                more = timed(os.read, fd, size - len(got))
                if not more:
                    break
                got += more
            timed(os.close, fd)
            if got != content(name, size):
                say("wrong", name, size, len(got))
    except OSError as e:
        if e.errno not in LOST:
            say("error", n, name, e)
            sys.exit(1)
        time.sleep(0.05)
'''

# What must exist, by the logs of all workers.
LOOK = r'''
wanted, maybe = {}, set()
for log in sys.argv[5:]:
    doing = None
    for line in open(log):
        words = line.split()
        if not line.endswith("\n") or not words:
            continue
        what = words[0]
        if what in ("slow", "error", "wrong"):
            print("PROBLEM", log.rsplit("/", 1)[1], line.strip())
        # An unfinished operation was done or not.
        if what == "make":
            maybe.add(words[1])
        elif what == "made":
            maybe.discard(words[1])
            wanted[words[1]] = int(words[2])
        elif what == "move":
            size = wanted.pop(words[1])
            maybe.update(words[1:3])
        elif what == "moved":
            maybe.difference_update(words[1:3])
            wanted[words[2]] = int(words[3])
        elif what == "remove":
            del wanted[words[1]]
            maybe.add(words[1])
        elif what == "removed":
            maybe.discard(words[1])
def seed(name):
    d, f = name.split("/")
    return f
original = {}
for log in sys.argv[5:]:
    for line in open(log):
        words = line.split()
        if words and words[0] == "make":
            original[words[1].split("/")[1]] = words[1]
there = set()
for d in range(4):
    for name in os.listdir("%s/d%d" % (top, d)):
        there.add("d%d/%s" % (d, name))
for name in sorted(set(wanted) - there):
    print("PROBLEM lost:", name, wanted[name])
for name in sorted(there - set(wanted) - maybe):
    print("PROBLEM nobody made it, or it was removed:", name)
for name in sorted(there & set(wanted)):
    first = original[name.split("/")[1].lstrip("r")]
    data = whole(top + "/" + name)
    if data != content(first, wanted[name]):
        print("PROBLEM content:", name, len(data), "bytes, not", wanted[name])
    if os.stat(top + "/" + name).st_size != wanted[name]:
        print("PROBLEM size:", name)
print(len(there), "files")
'''


@case(90 + KILLS * 2)
def kills(t):
    up(t, *(["--request-timeout", str(REQUEST_TIMEOUT)] if NODES > 1 else []), media="memory:512M")
    t.command(on(t, 0, "mkdir", "/fb/d0", "/fb/d1", "/fb/d2", "/fb/d3"))
    seed = int(os.environ.get("FOREBAY_SEED", time.time_ns() % 1000000))
    print("seed %d" % seed)
    r = random.Random(seed)
    logs = []
    count = [0]

    def worker(place):
        count[0] += 1
        log = os.path.join(t.work, "log%d" % count[0])
        open(log, "w").close()
        logs.append(log)
        p = t.start(on(t, place, "python3", "-c", PREAMBLE + WORKER, "0", "1", "/fb", log, str(BOUND),
                       str(seed * 1000 + count[0])), stderr=open(log + ".err", "wb"))
        p.log, p.began = log, time.monotonic()
        return p

    def goes_on(p):
        if p.poll() is not None:
            with open(p.log + ".err") as f:
                raise Failed("a worker ended by itself (%d), seed %d:\n%s%s" % (
                    p.returncode, seed, f.read()[-1500:], tail(p.log)))
        quiet = time.time() - os.stat(p.log).st_mtime
        if quiet > BOUND + 8 and time.monotonic() - p.began > BOUND + 8:
            raise Failed("a worker has done nothing for %.0f s, seed %d:\n%s" % (quiet, seed, tail(p.log)))

    def tail(log):
        with open(log) as f:
            return "".join("      " + line for line in f.readlines()[-4:])

    workers = [worker(n) for n in range(4)]
    down = {}
    for n in range(KILLS):
        time.sleep(r.uniform(0.05, 0.5))
        place = r.randrange(4)
        if NODES > 1 and r.randrange(2):
            k = place % NODES
            if k not in down:
                pid = daemon(t, k)
                kill(pid)
                down[k] = time.monotonic() + r.choice([0, 0, 0.3, 1])
        else:
            kill(workers[place].pid)
            workers[place].wait()
            workers[place] = worker(place)
        for k, when in list(down.items()):
            if time.monotonic() >= when:
                node(t, "restart", k)
                del down[k]
        for p in workers:
            goes_on(p)
        # Not more than there is room for.
        if n % 20 == 19:
            for place, p in enumerate(workers):
                kill(p.pid)
                p.wait()
            for k in list(down):
                node(t, "restart", k)
                del down[k]
            look(t, logs, seed)
            t.command(on(t, 0, "bash", "-c", "rm -f /fb/d?/*"), timeout=60)
            logs.clear()
            workers = [worker(n) for n in range(4)]
    for k in down:
        node(t, "restart", k)
    time.sleep(1)
    for p in workers:
        goes_on(p)
        kill(p.pid)
        p.wait()
    look(t, logs, seed)
    tidy(t)


def look(t, logs, seed):
    for place in (0, 1):
        r = t.command(on(t, place, "python3", "-c", PREAMBLE + LOOK, "0", "1", "/fb", "-", *logs),
                      timeout=60)
        if "PROBLEM" in r.out:
            raise Failed("seed %d, from node %d:\n%s" % (seed, place, r.out[:4000]))


TWICE = r'''
import sys
for path in ("/fb/one", "/fb/one"):
    try:
        open(path)
    except OSError as e:
        print(e.errno)
'''


@case(60)
def whoever_is_out_of_reach_is_named(t):
    """An errno can't name the node that is down: the program's user gets one line about it."""
    if NODES == 1:
        raise Skipped("for several nodes")
    up(t, "--request-timeout", "2")
    t.command(on(t, 1, "touch", "/fb/one"))
    node(t, "kill", 1)
    r = t.command(on(t, 0, sys.executable, "-c", TWICE))
    t.ok(r.out.split() == [str(errno.EHOSTDOWN)] * 2, r.out)
    r.says("^forebay: node 1 \\(.*\\) doesn't answer: .*status").one_line()
    dead = t.fb("status", "--pool", POOL, "--json").json()["nodes"][1]
    t.ok((dead["state"], dead.get("processes")) == ("dead", 0), dead)
    # There, it is the daemon between a program and the other nodes.
    r = t.command(on(t, 1, "stat", "/fb/two"), rc=1)
    r.says("the daemon of node 1 of pool '%s' is dead.*node restart 1" % POOL, "the daemon of this node is dead")
    t.fb("ls", "--pool", POOL, "/", rc=1).says("node 1 ")
    node(t, "restart", 1)
    t.ok(t.command(on(t, 0, "cat", "/fb/one")).err == "", "something is told still")
    tidy(t)
