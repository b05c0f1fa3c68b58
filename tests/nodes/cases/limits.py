"""The resources of daemons: none while idle, and no more than --cpus, --memory and --bandwidth allow."""
import os
import sys
import threading
import time

from harness import Skipped, case
from .nodes import NODES, POOL, daemon, on, ranks, tidy, up

TICK = os.sysconf("SC_CLK_TCK")


def spent(pid):
    """Processor time of a process, in ticks."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def field(path, name):
    with open(path) as f:
        return next(line.split(None, 1)[1].strip() for line in f if line.startswith(name))


def daemons(t):
    return [daemon(t, n) for n in range(NODES)]


def several():
    if NODES < 3:
        raise Skipped("for several nodes")


@case(60)
def idle(t):
    up(t)
    # Everybody has talked to everybody, and held something.
    ranks(t, r'''
written("%s/f%d" % (top, rank), content(rank, 3000000))
barrier()
for r in range(ranks):
    same(whole("%s/f%d" % (top, r)), content(r, 3000000), "f%d" % r)
''')
    pids = daemons(t)
    # The room ahead is made ready again, and the cleaning up is over.
    time.sleep(3)
    before = [spent(p) for p in pids]
    time.sleep(3)
    after = [spent(p) - b for p, b in zip(pids, before)]
    t.ok(all(a <= 1 for a in after), "ticks of %d per second in 3 idle seconds: %s" % (TICK, after))
    tidy(t)


@case(60)
def cpus(t):
    several()
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise Skipped("there is only one core")

    def cores(pid):
        tasks = "/proc/%d/task" % pid
        return {field("%s/%s/status" % (tasks, task), "Cpus_allowed_list:") for task in os.listdir(tasks)}
    up(t, "--cpus", "1")
    load = r'''
for i in range(30):
    written("%s/f%d" % (top, rank), content(rank, 300000))
    barrier()
    for r in range(ranks):
        same(whole("%s/f%d" % (top, r)), content(r, 300000), "f%d" % r)
    barrier()
'''
    ranks(t, load, n=8)
    for k, pid in enumerate(daemons(t)):
        # Threads that have come under load, too; each daemon its own core, from the last one on.
        wanted = allowed[-1 - k % len(allowed)]
        t.ok(cores(pid) == {str(wanted)}, "node %d: %s, not %d" % (k, cores(pid), wanted))
        names = [field("/proc/%d/task/%s/status" % (pid, x), "Name:") for x in os.listdir("/proc/%d/task" % pid)]
        t.ok(names.count("fb-leaf") <= 8 and names.count("fb-entry") <= 8, str(names))
    # Programs aren't bound.
    out = t.command(on(t, 1, sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))")).out
    t.ok(out.strip() == str(allowed), out)
    t.fb("node", "--pool", POOL, "kill", "1")
    t.fb("node", "--pool", POOL, "restart", "1")
    t.ok(cores(daemon(t, 1)) == {str(allowed[-2])}, "after a restart: %s" % cores(daemon(t, 1)))
    tidy(t)
    t.up("other", "--nodes", "2", "--cpus", "%d," % allowed[0], media=["memory:64M"])
    status = t.fb("status", "--pool", "other", "--json").json()
    for n in status["nodes"]:
        t.ok(cores(n["keeper"]) == {str(allowed[0])}, str(cores(n["keeper"])))
    t.fb("down", "--pool", "other")
    r = t.up("other", "--nodes", "2", "--cpus", "4000,", media=["memory:64M"], rc=1)
    r.says("no core 4000")
    t.nothing_left("a start without cores")


BLOCKS = r'''
# Every rank reads what another node has and writes over it, a MiB at a time.
import threading
name = "%s/f%d" % (top, rank % 4)
if rank < 4:
    written(name, content(rank, 1 << 20) * 24)
barrier()
other = os.open("%s/f%d" % (top, (rank + 1) % 4), os.O_RDWR)
piece = content((rank + 1) % 4, 1 << 20)
until = time.monotonic() + 6
done = 0
def work(seed):
    global done
    chance = random.Random(seed)
    while time.monotonic() < until:
        at = chance.randrange(24) << 20
        if chance.random() < 0.5:
            got = os.pread(other, 1 << 20, at)
            assert got == piece, "read at %d" % at
        else:
            assert os.pwrite(other, piece, at) == 1 << 20
        done += 1
threads = [threading.Thread(target=work, args=(rank * 10 + i,)) for i in range(4)]
[x.start() for x in threads]
[x.join() for x in threads]
print(done)
'''


@case(120)
def memory(t):
    several()
    # Far less than these 64 threads have in progress without a limit.
    limit = 32 << 20
    up(t, "--memory", "32M")
    pids = daemons(t)
    most, over = {p: 0 for p in pids}, threading.Event()

    def watch():
        while not over.wait(0.005):
            for p in pids:
                most[p] = max(most[p], int(field("/proc/%d/status" % p, "RssAnon:").split()[0]) << 10)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        done = ranks(t, BLOCKS, n=16, timeout=60)
    finally:
        over.set()
        watcher.join()
    shown = "RssAnon at most, in MiB: %s" % [round(m / (1 << 20), 1) for m in most.values()]
    t.ok(all(m <= limit for m in most.values()), shown)
    # It was a load.
    t.ok(sum(int(d) for d in done) > 500, "only %s pieces" % done)
    print("    " + shown)
    tidy(t)
    t.up("other", "--nodes", "2", "--memory", "10M", rc=2).says("at least 32 MiB")


@case(120)
def bandwidth(t):
    several()
    rate = 64 << 20
    up(t, "--bandwidth", "64M/s")
    size = 40 << 20
    # Ranks 1 to 3 read a file of node 0; then they write such ones, which lie there. Another one asks
    # small things meanwhile.
    out = ranks(t, r'''
size = %d
if rank == 0:
    for r in range(4):
        written("%%s/f%%d" %% (top, r), b"x" * size)
barrier()
def timed(what):
    began = time.monotonic()
    what()
    return time.monotonic() - began
def reads():
    fd = os.open("%%s/f%%d" %% (top, rank), os.O_RDONLY)
    for at in range(0, size, 1 << 20):
        assert len(os.pread(fd, 1 << 20, at)) == 1 << 20
def writes():
    fd = os.open("%%s/f%%d" %% (top, rank), os.O_WRONLY)
    for at in range(0, size, 1 << 20):
        assert os.pwrite(fd, b"y" * (1 << 20), at) == 1 << 20
if 0 < rank < 4:
    spent = [timed(reads)]
    barrier()
    spent.append(timed(writes))
    print(*spent)
elif rank == 5:
    each = []
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        each.append(timed(lambda: os.stat("%%s/f%%d" %% (top, random.randrange(4)))))
        time.sleep(0.002)
    barrier()
    each.sort()
    print(each[len(each) // 2], each[len(each) * 95 // 100])
else:
    barrier()
''' % size, n=6, timeout=60)
    times = [[float(x) for x in out[r].split()] for r in (1, 2, 3)]
    for what, all_of in zip(("sent", "received"), zip(*times)):
        got = 3 * size / max(all_of)
        shown = "node 0 %s %.1f MiB/s, limit %d" % (what, got / (1 << 20), rate >> 20)
        print("    " + shown)
        # The end of it comes out of buffers; a busy machine may be much slower.
        t.ok(0.1 * rate < got < 1.15 * rate, shown)
    half, most = [float(x) for x in out[5].split()]
    print("    stat meanwhile: median %.2f ms, 95%% %.2f ms" % (half * 1e3, most * 1e3))
    # Behind bulk they would take as long as that: a second and more.
    t.ok(half < 0.1 and most < 0.5, "small requests wait for bulk: %s" % out[5])
    tidy(t)
    t.up("other", "--nodes", "2", "--bandwidth", "1M", rc=2).says("at least 26M")


@case(60)
def capacity(t):
    """statfs reports the whole pool, also while a node is dead."""
    several()
    up(t, media="memory:128M")
    script = r'''
import os, sys, time
began = time.monotonic()
s = os.statvfs("/fb")
print(s.f_blocks * s.f_frsize >> 20, (s.f_blocks - s.f_bfree) * s.f_frsize >> 20, time.monotonic() - began)
'''

    def look(node):
        return [float(x) for x in t.command(on(t, node, sys.executable, "-c", script), timeout=30).out.split()]
    for n in range(NODES):
        t.command(on(t, n, "dd", "if=/dev/zero", "of=/fb/f%d" % n, "bs=1M", "count=20", "status=none"))
    # The reply may be one second old.
    time.sleep(1.1)
    for n in range(NODES):
        size, used, _ = look(n)
        t.ok(size == 128 * NODES, "node %d: %d MiB" % (n, size))
        t.ok(20 * NODES <= used < 22 * NODES, "node %d: %d MiB are used" % (n, used))
    t.command(on(t, 2, "df", "/fb"))
    t.fb("node", "--pool", POOL, "kill", "1")
    for turn in range(3):
        size, used, took = look(0)
        t.ok(size == 128 * NODES and took < 5, "with a dead node: %d MiB, %.2f s" % (size, took))
    t.fb("node", "--pool", POOL, "restart", "1")
    tidy(t)


@case(60)
def capacity_for_many(t):
    """Many ask at the same time, before any reply is cached: all get a reply at once."""
    several()
    for _ in range(3):
        up(t)
        out = ranks(t, r'''
barrier()
began = time.monotonic()
s = os.statvfs("/fb")
print(s.f_blocks * s.f_frsize >> 20, time.monotonic() - began)
''', n=4 * NODES)
        for line in out:
            size, took = line.split()
            t.ok(int(size) == 192 * NODES and float(took) < 5, "%s MiB after %s s" % (size, took))
        tidy(t)
