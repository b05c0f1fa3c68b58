"""A node that is full: its files grow on other nodes, and new ones are made there."""
import os
import random
import sys
import time

from harness import Lines, Skipped, case, wait_until
from .nodes import NODES, POOL, node, on, ranks, tidy, up

# MiB of each node.
SIZE = 64

# 230 of 256 MiB by one process; then what is in place is overwritten, and all is read back.
WRITE = r'''
import os, sys
path, mib = sys.argv[1], int(sys.argv[2])
def block(n):
    return (b"%07d." % n) * (1 << 17)
fd = os.open(path, os.O_RDWR | os.O_CREAT)
for n in range(mib):
    done, data = 0, block(n)
    while done < len(data):
        done += os.write(fd, data[done:])
for n in range(0, mib, 7):
    assert os.pwrite(fd, block(n + 1), n << 20) == 1 << 20, n
os.fsync(fd)
print(os.fstat(fd).st_size >> 20, flush=True)
'''

CHECK = r'''
import os, sys
path, mib = sys.argv[1], int(sys.argv[2])
def block(n):
    return (b"%07d." % n) * (1 << 17)
with open(path, "rb") as f:
    assert os.fstat(f.fileno()).st_size == mib << 20, os.fstat(f.fileno()).st_size
    for n in range(mib):
        got = f.read(1 << 20)
        wanted = block(n + 1 if n % 7 == 0 else n)
        assert got == wanted, (n, len(got), got[:16])
    assert f.read(1) == b""
print("same", flush=True)
'''


def run(t, node, script, *arguments, **more):
    """A program on a node."""
    return t.command(on(t, node, sys.executable, "-c", script, *arguments), **more)


def free(t):
    """Free bytes as a program sees them. MiB."""
    r = run(t, 0, "import os; s = os.statvfs('/fb'); print(s.f_bavail * s.f_frsize >> 20)")
    return int(r.out)


def given_back(t, before):
    wait_until(lambda: free(t) >= before, 15, "the room of what was removed to be given back")
    t.fb("fsck", "--pool", POOL).prints("clean")


@case(60)
def a_file_grows_on_other_nodes(t):
    """One process on node 0 writes 90% of the pool; other nodes read it; removal gives all back."""
    if NODES < 2:
        raise Skipped("there are no other nodes")
    up(t, media="memory:%dM" % SIZE)
    before = free(t)
    mib = NODES * SIZE * 9 // 10
    run(t, 0, WRITE, "/fb/big", str(mib), timeout=30).prints("^%d$" % mib)
    # Replies of other nodes are cached for a second.
    wait_until(lambda: free(t) <= NODES * SIZE - mib, 15, "df to follow")
    for other in range(NODES):
        run(t, other, CHECK, "/fb/big", str(mib), timeout=30).prints("same")
    # Its room on other nodes is there at once for the next file of its node.
    for _ in range(3):
        run(t, 0, "import os; os.unlink('/fb/big')\n" + WRITE, "/fb/big", str(mib), timeout=30).prints("^%d$" % mib)
    t.fb("fsck", "--pool", POOL).prints("clean")
    run(t, NODES - 1, "import os; os.unlink('/fb/big')")
    given_back(t, before)


@case(60)
def everybody_writes_on_a_full_pool(t):
    """A shared file in pieces of all ranks, appends, small files, truncation: the node of the maker is full soon."""
    if NODES < 2:
        raise Skipped("there are no other nodes")
    up(t, media="memory:%dM" % SIZE)
    before = free(t)
    # The shared file lies on node 0, and each rank writes its quarter, as IOR does.
    ranks(t, r'''
import hashlib
M = 1 << 20
if rank == 0:
    written(top + "/shared", b"")
    written(top + "/log", b"")
barrier()
def put(fd, data, at):
    while data:
        n = os.pwrite(fd, data, at)
        data, at = data[n:], at + n
def block(r, n):
    return hashlib.sha256(b"%d %d" % (r, n)).digest() * (M // 32 // 4)
fd = os.open(top + "/shared", os.O_RDWR)
for n in range(30 * 4):
    put(fd, block(rank, n), rank * 30 * M + n * M // 4)
barrier()
assert os.fstat(fd).st_size == ranks * 30 * M, os.fstat(fd).st_size
other = (rank + 1) % ranks
for n in range(30 * 4):
    same(os.pread(fd, M // 4, other * 30 * M + n * M // 4), block(other, n), "block %d" % n)
barrier()
# Node 0 is full by now. All append to one file there; each piece is there once, and whole.
log = os.open(top + "/log", os.O_RDWR | os.O_APPEND)
for n in range(30):
    piece = b"%d %02d." % (rank, n) * 4000
    assert os.write(log, piece) == len(piece)
barrier()
text = whole(top + "/log")
seen = [text[i:i + 20000] for i in range(0, len(text), 20000)]
assert len(seen) == 30 * ranks, len(seen)
assert sorted(seen) == sorted(b"%d %02d." % (r, n) * 4000 for r in range(ranks) for n in range(30))
# Small and middle-sized files of a node that is full.
for n in range(40):
    written("%s/r%d-%d" % (top, rank, n), content(rank * 100 + n, n * 4001))
barrier()
for n in range(40):
    same(whole("%s/r%d-%d" % (top, other, n)), content(other * 100 + n, n * 4001), "file %d" % n)
barrier()
# Cut in the middle of a chunk, by another than its maker; what is behind is zero when it grows again.
if rank == 2:
    os.ftruncate(fd, 50 * M + 12345)
    os.ftruncate(fd, 60 * M)
barrier()
at = 50 * M + 12345
same(os.pread(fd, 100000, at - 50000), (block(1, 80)[:0] + os.pread(fd, 50000, at - 50000)) + bytes(50000), "the cut")
same(os.pread(fd, 10000, at - 10000), block(1, 80)[2345:12345], "before the cut")
barrier()
if rank == 3:
    put(fd, b"again" * 100000, 55 * M)
barrier()
same(os.pread(fd, 500000, 55 * M), b"again" * 100000, "written again")
same(os.pread(fd, 1000, 55 * M + 500000), bytes(1000), "behind it")
os.close(fd)
os.close(log)
barrier()
for n in range(40):
    os.unlink("%s/r%d-%d" % (top, rank, n))
if rank == 1:
    os.unlink(top + "/shared")
    os.unlink(top + "/log")
''', n=4)
    given_back(t, before)
    tidy(t)


@case(60)
def many_files_of_a_full_node(t):
    """One process on node 0 makes files of 1 MiB, 90% of the pool in all."""
    if NODES < 2:
        raise Skipped("there are no other nodes")
    up(t, media="memory:%dM" % SIZE)
    before = free(t)
    count = NODES * SIZE * 9 // 10
    run(t, 0, r'''
import os, sys
os.mkdir("/fb/d")
for n in range(int(sys.argv[1])):
    with open("/fb/d/%d" % n, "wb", 0) as f:
        assert f.write((b"%07d." % n) * (1 << 17)) == 1 << 20, n
''', str(count), timeout=30)
    run(t, NODES - 1, r'''
import os, sys
for n in range(int(sys.argv[1])):
    assert open("/fb/d/%d" % n, "rb").read() == (b"%07d." % n) * (1 << 17), n
    os.unlink("/fb/d/%d" % n)
''', str(count), timeout=30)
    given_back(t, before)
    tidy(t)


# Appends blocks to a file for ever, or until the pool is full; then cuts it in the middle of a chunk.
APPENDER = r'''
import errno, os, sys, time
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
size = os.fstat(fd).st_size
print("begun", flush=True)
LOST = (errno.EIO, errno.EHOSTDOWN, errno.ESTALE)
while True:
    try:
        n = size // 100000
        data = (b"%09d." % n) * 10000
        size += os.pwrite(fd, data[size % 100000:], size)
    except OSError as e:
        if e.errno == errno.ENOSPC:
            os.ftruncate(fd, 65 * 1000003)
            size = 65 * 1000003
        else:
            assert e.errno in LOST, e
            time.sleep(0.02)
'''

LOOK = r'''
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
size, at = os.fstat(fd).st_size, 0
while at < size:
    got = os.pread(fd, 100000, at)
    wanted = ((b"%09d." % (at // 100000)) * 10000)[:size - at]
    assert got == wanted, (at, size, got[:12], len(got), len(wanted))
    at += len(got)
print("whole", flush=True)
'''


@case(90)
def kills_while_a_file_grows_on_other_nodes(t):
    """Writers and daemons die in the middle: what is within the size is right, and nothing is lost for good."""
    if NODES < 2:
        raise Skipped("there are no other nodes")
    up(t, "--request-timeout", "5", media="memory:%dM" % SIZE)
    before = free(t)
    run(t, 0, "import os; os.ftruncate(os.open('/fb/f', os.O_CREAT | os.O_RDWR), 0)")
    seed = int(os.environ.get("FOREBAY_SEED", "0")) or random.randrange(1 << 30)
    print("seed %d" % seed)
    r = random.Random(seed)
    for n in range(3):
        writer = t.start(on(t, r.choice((0, 1)), sys.executable, "-c", APPENDER, "/fb/f"))
        Lines(writer).wait_for(1)
        time.sleep(r.uniform(0.1, 0.8))
        if n in (1, 2):
            # Node 0 has the file, node 2 some of its chunks.
            which = 2 if n == 1 else 0
            node(t, "kill", which)
            time.sleep(0.1)
            node(t, "restart", which)
            time.sleep(r.uniform(0.1, 0.5))
        t.ok(writer.poll() is None, "the writer ended by itself")
        writer.kill()
        writer.wait()
        for other in (0, 3):
            run(t, other, LOOK, "/fb/f", timeout=30).prints("whole")
    t.fb("fsck", "--pool", POOL, timeout=30).prints("clean")
    run(t, 1, "import os; os.unlink('/fb/f')")
    given_back(t, before)
    tidy(t)


@case(60)
def all_ways_to_a_file_on_several_nodes(t):
    """Mappings, copies, reservations and holes of files that have grown on other nodes."""
    if NODES < 2:
        raise Skipped("there are no other nodes")
    up(t, media="memory:%dM" % SIZE)
    before = free(t)
    run(t, 0, r'''
import mmap, os, shutil, subprocess
M = 1 << 20
mapped = os.open("/fb/m", os.O_CREAT | os.O_RDWR)
os.pwrite(mapped, b"m" * 900, 0)
m2 = mmap.mmap(mapped, 900)
os.posix_fallocate(os.open("/fb/fill", os.O_CREAT | os.O_RDWR), 0, 60 * M)
data = b"".join((b"%07d." % n) * (M // 8) for n in range(20))
with open("/fb/a", "wb") as f:
    f.write(data)
assert open("/fb/a", "rb").read() == data
# By a mapping, of chunks wherever they lie.
with open("/fb/a", "r+b") as f:
    m = mmap.mmap(f.fileno(), len(data))
    assert m[:] == data
    for n in range(20):
        m[n * M + 5:n * M + 10] = b"MAPPD"
    m.flush()
    for n in range(20):
        assert os.pread(f.fileno(), 16, n * M)[5:10] == b"MAPPD", n
    m.close()
subprocess.run(["cp", "/fb/a", "/fb/b"], check=True)
subprocess.run(["cmp", "/fb/a", "/fb/b"], check=True)
fd = os.open("/fb/b", os.O_RDWR)
libc = __import__("ctypes").CDLL(None, use_errno=True)
assert libc.fallocate(fd, 3, __import__("ctypes").c_long(3 * M + 7), __import__("ctypes").c_long(9 * M)) == 0
assert os.pread(fd, 9 * M, 3 * M + 7) == bytes(9 * M)
assert os.pread(fd, 3 * M, 0) == open("/fb/a", "rb").read(3 * M)
os.posix_fallocate(fd, 0, 30 * M)
assert os.fstat(fd).st_size == 30 * M
assert os.pread(fd, 10 * M, 20 * M) == bytes(10 * M)
# Sparse, from the end to the beginning.
s = os.open("/fb/s", os.O_RDWR | os.O_CREAT)
for n in range(10, -1, -1):
    assert os.pwrite(s, b"%05d" % n, n * 3 * M) == 5
for n in range(11):
    assert os.pread(s, 6, n * 3 * M) == b"%05d" % n + (b"\0" if n < 10 else b""), n
assert os.fstat(s).st_blocks * 512 < 40 * M
# A small file whose record has no room for more, on a node without a page.
with open("/fb/fill2", "wb", 0) as f:
    try:
        os.posix_fallocate(f.fileno(), 0, 300 * M)
    except OSError:
        pass
os.truncate("/fb/fill2", 0)
# A file that is mapped here has only what room is here.
try:
    n = os.pwrite(mapped, bytes(70 * M), 0)
except OSError as e:
    assert e.errno == 28, e
    n = 0
assert n < 8 * M and m2[:] == (b"m" * 900 if n == 0 else bytes(900)), n
m2.close()
os.close(mapped)
os.unlink("/fb/m")
os.rename("/fb/a", "/fb/c")
os.sync()
os.fsync(fd)
''', timeout=40)
    run(t, 1, r'''
import os, shutil
assert os.path.getsize("/fb/c") == 20 << 20
shutil.copyfile("/fb/c", "/fb/d")
assert open("/fb/c", "rb").read() == open("/fb/d", "rb").read()
for n in ("b", "c", "d", "s", "fill", "fill2"):
    os.unlink("/fb/" + n)
''', timeout=40)
    given_back(t, before)
    tidy(t)


@case(60)
def sessions_on_a_full_node(t):
    """Weaker consistency: what is kept back and then written together finds room on other nodes, too."""
    if NODES < 3:
        raise Skipped("there are not enough nodes")
    up(t, media="memory:%dM" % SIZE)
    before = free(t)
    run(t, 0, "import os; os.mkdir('/fb/c')")
    t.fb("set", "--pool", POOL, "/c", "consistency=session")
    run(t, 0, "import os; [os.close(os.open('/fb/c/%d' % n, os.O_CREAT)) for n in range(2)]")
    block = "(b'%08d' % n) * 1250"
    for n in range(2):
        # From the file's own node, and from another one.
        run(t, n, "import os\nwith open('/fb/c/%d', 'wb', 0) as f:\n for n in range(9000):\n"
            "  assert f.write(%s) == 10000" % (n, block) if n else
            "import os\nwith open('/fb/c/0', 'wb') as f: f.write(bytes(90 << 20))", timeout=40)
    run(t, 2, "f = open('/fb/c/1', 'rb')\nfor n in range(9000):\n got = f.read(10000)\n"
        " assert got == %s, (n, len(got))\nassert not f.read(1)\n"
        "assert open('/fb/c/0', 'rb').read() == bytes(90 << 20)" % block, timeout=40)
    run(t, 2, "import os; os.unlink('/fb/c/0'); os.unlink('/fb/c/1')")
    given_back(t, before)
    tidy(t)
