"""Copies of files that lie on any node, by programs on any other; while daemons are killed."""
import sys

from harness import Lines, case
from .nodes import NODES, POOL, PREAMBLE, node, on, ranks, tidy, up

# Copies a file over another, again and again, reports each acknowledged copy, then checks.
COPIER = r'''
LOST = (errno.EIO, errno.EHOSTDOWN, errno.ESTALE)
data = whole(top + "/from")
source, target = os.open(top + "/from", os.O_RDONLY), os.open(top + "/to", os.O_RDWR)
failed = 0
for n in range(1000):
    try:
        os.ftruncate(target, 0)
        done = 0
        while done < len(data):
            n = os.copy_file_range(source, target, len(data) - done, done, done)
            assert n > 0, done
            done += n
        same(os.pread(target, len(data) + 1, 0), data, "a copy")
        print("copied", flush=True)
    except OSError as e:
        assert e.errno in LOST, e
        failed += 1
        print("failed", flush=True)
        time.sleep(0.05)
'''


@case(90)
def copies_between_nodes(t):
    """Each rank copies what another made over what a third one made, by all ways there are."""
    up(t)
    t.fb("set", "--pool", POOL, "--distribution", "local-all", "/own")
    t.fb("set", "--pool", POOL, "--distribution", "striped", "--chunk-size", "1M", "/s")
    ranks(t, r'''
import shutil, subprocess
size = (9 << 20) + 17
def path(kind, of, name):
    return "%s/%s/%d/%s" % (top, kind, of % ranks, name)
def by_range(source, target):
    i, o = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_TRUNC)
    while os.copy_file_range(i, o, 1 << 30):
        pass
def by_sending(source, target):
    i, o = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_TRUNC)
    while os.sendfile(o, i, None, 1 << 30):
        pass
def by_cp(source, target):
    subprocess.run(["cp", source, target], check=True)
ways = [by_range, by_sending, by_cp, shutil.copyfile]
for kind in ("own", "s"):
    os.mkdir("%s/%s/%d" % (top, kind, rank))
    written(path(kind, rank, "from"), content(rank, size))
    written(path(kind, rank, "to"), b"x" * (3 << 20))
barrier()
for n, (a, b) in enumerate([("own", "own"), ("own", "s"), ("s", "own"), ("s", "s")]):
    ways[(n + rank) % 4](path(a, rank + 1, "from"), path(b, rank + 2, "to"))
    barrier()
    same(whole(path(b, rank, "to")), content((rank - 1) % ranks, size), b)
    barrier()
''')
    tidy(t)


@case(90)
def copies_and_deaths(t):
    """The daemons of the copying nodes are killed and started again: acknowledged copies are there, and
    copying goes on."""
    if NODES == 1:
        return
    up(t, "--request-timeout", "3")
    t.fb("set", "--pool", POOL, "--distribution", "local-all", "/own")
    for number, name in ((1, "from"), (2, "to")):
        t.command(on(t, number, sys.executable, "-c", "import os, sys; os.makedirs('/fb/own', exist_ok=True); "
                     "open('/fb/own/%s', 'wb').write(os.urandom(20 << 20))" % name))
    copier = t.start(on(t, 0, sys.executable, "-c", PREAMBLE + COPIER, "0", "1", "/fb/own", "-"))
    lines = Lines(copier)
    lines.wait_for(3)
    for number in (1, 2, 2, 1):
        before = len(lines.lines)
        node(t, "kill", number)
        node(t, "restart", number)
        # It goes on, with no more than some failures.
        lines.wait_for(before + 8, 30)
    copier.kill()
    copier.communicate(timeout=10)
    copied = lines.lines.count("copied")
    t.ok(copied > len(lines.lines) // 3, "%d of %d copied" % (copied, len(lines.lines)))
    tidy(t)
