"""Programs on all nodes work on the same files and directories."""
import os
import sys

from harness import Failed, case, wait_until
from .nodes import POOL, daemon, on, ranks, tidy, up


@case(90)
def files_read_elsewhere(t):
    """File-per-process and one shared file, strided; each rank reads what another wrote, byte by byte."""
    up(t)
    ranks(t, r'''
sizes = [0, 1, 1000, 4096, 70000, 1 << 20, (3 << 20) + 17]
if rank == 0:
    os.mkdir(top + "/own")
barrier()
os.mkdir("%s/own/%d" % (top, rank))
for n, size in enumerate(sizes):
    written("%s/own/%d/f%d" % (top, rank, n), content(rank * 100 + n, size))
barrier()
other = (rank + 1) % ranks
assert sorted(os.listdir("%s/own/%d" % (top, other))) == ["f%d" % n for n in range(len(sizes))]
for n, size in enumerate(sizes):
    path = "%s/own/%d/f%d" % (top, other, n)
    assert os.stat(path).st_size == size, (path, os.stat(path).st_size, size)
    same(whole(path), content(other * 100 + n, size), path)
BLOCK = 50000
def block(n):
    return content(5000 + n, BLOCK)
fd = os.open(top + "/shared", os.O_RDWR | os.O_CREAT, 0o644)
for n in range(rank, 60, ranks):
    assert os.pwrite(fd, block(n), n * BLOCK) == BLOCK
barrier()
assert os.fstat(fd).st_size == 60 * BLOCK
for n in range(60):
    same(os.pread(fd, BLOCK, n * BLOCK), block(n), "block %d" % n)
barrier()
# Over each other: the last write is seen, as a whole.
for turn in range(8):
    if turn % ranks == rank:
        os.pwrite(fd, content(9000 + turn, 200000), 12345)
    barrier()
    same(os.pread(fd, 200000, 12345), content(9000 + turn, 200000), "turn %d" % turn)
    barrier()
''')
    tidy(t)


@case(120)
def striped(t):
    """Large files whose chunks lie on all nodes: written in pieces by all ranks, read as a whole by all; cut while others
    append; a daemon that is killed meanwhile loses nothing."""
    up(t)
    t.fb("set", "--pool", POOL, "--distribution", "striped", "--chunk-size", "2M", "/s")
    ranks(t, r'''
os.chdir(top + "/s")
BLOCK = 700000
def block(n):
    return content(5000 + n, BLOCK)
fd = os.open("shared", os.O_RDWR | os.O_CREAT, 0o644)
for n in range(rank, 40, ranks):
    assert os.pwrite(fd, block(n), n * BLOCK) == BLOCK
barrier()
assert os.fstat(fd).st_size == 40 * BLOCK
same(whole("shared"), b"".join(block(n) for n in range(40)), "shared")
barrier()
if rank == 0:
    os.truncate("shared", 3 * BLOCK)
    os.truncate("shared", 30 * BLOCK)
barrier()
same(whole("shared"), b"".join(block(n) for n in range(3)) + bytes(27 * BLOCK), "cut")
assert os.fstat(fd).st_size == 30 * BLOCK and os.stat("shared").st_mtime > time.time() - 60
barrier()
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
line = (b"%d" % rank) * 99999 + b"\n"
for n in range(30):
    assert os.write(log, line) == len(line)
os.fsync(log)
barrier()
lines = whole("log").split(b"\n")
assert lines.pop() == b"" and len(lines) == 30 * ranks, len(lines)
for l in lines:
    assert len(l) == 99999 and not l.strip(l[:1]), (len(l), l[:1])
barrier()
# While one cuts, what others append isn't lost, nor shown twice.
if rank == 0:
    for n in range(10):
        os.truncate("log", 0)
        time.sleep(0.02)
else:
    for n in range(20):
        os.write(log, line)
barrier()
for l in whole("log").split(b"\n")[:-1]:
    assert len(l) == 99999 and not l.strip(l[:1]), (len(l), l[:1])
os.posix_fallocate(fd, 0, 32 << 20)
assert os.fstat(fd).st_size == 32 << 20
barrier()
if rank == 1:
    os.unlink("shared")
barrier()
same(os.pread(fd, BLOCK, 2 * BLOCK), block(2), "removed")
''')
    t.fb("fsck", "--pool", POOL)
    tidy(t)


@case(90)
def appends(t):
    """Records that all append to one file: each is there once, whole, and in its writer's order."""
    up(t)
    ranks(t, r'''
fd = os.open(top + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
barrier()
for n in range(250):
    line = ("%d %d " % (rank, n)).encode()
    line += b"." * (random.Random(n).randrange(20, 3000) - len(line)) + b"\n"
    assert os.write(fd, line) == len(line)
os.close(fd)
barrier()
lines = whole(top + "/log").split(b"\n")
assert lines.pop() == b""
seen = {r: [] for r in range(ranks)}
for line in lines:
    who, n, dots = line.split(b" ")
    assert not dots.strip(b"."), line[:60]
    assert len(line) == random.Random(int(n)).randrange(20, 3000), line[:60]
    seen[int(who)].append(int(n))
for who, numbers in seen.items():
    assert numbers == list(range(250)), (who, len(numbers), numbers[:20])
''')
    tidy(t)


@case(90)
def one_winner(t):
    """O_EXCL, mkdir, link and rename of one name, and renames to one free name: of several at once, one succeeds."""
    up(t)
    outs = ranks(t, r'''
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def rename_new(old, new):
    RENAME_NOREPLACE = 1
    if libc.renameat2(-100, old.encode(), -100, new.encode(), RENAME_NOREPLACE) != 0:
        raise OSError(ctypes.get_errno(), new)
if rank == 0:
    for n in range(150):
        written("%s/source%d" % (top, n), b"x")
        written("%s/l%d-source" % (top, n), b"x")
barrier()
def won(f, *a):
    try:
        f(*a)
        return True
    except OSError as e:
        assert e.errno in (errno.EEXIST, errno.ENOENT), (f, a, e)
        return False
for n in range(150):
    if won(lambda: os.close(os.open("%s/x%d" % (top, n), os.O_CREAT | os.O_EXCL | os.O_WRONLY))):
        print("x", n)
    if won(os.mkdir, "%s/d%d" % (top, n)):
        print("d", n)
    if won(os.link, "%s/l%d-source" % (top, n), "%s/l%d" % (top, n)):
        print("l", n)
    if won(os.rename, "%s/source%d" % (top, n), "%s/target%d-%d" % (top, n, rank)):
        print("r", n)
    own = "%s/own%d-%d" % (top, n, rank)
    written(own, b"%d" % rank)
    try:
        rename_new(own, "%s/free%d" % (top, n))
        print("n", n)
        same(whole("%s/free%d" % (top, n)), b"%d" % rank, "free")
    except OSError as e:
        assert e.errno == errno.EEXIST and os.path.exists(own), (n, e)
''')
    wins = "".join(outs).split("\n")[:-1]
    wanted = sorted("%s %d" % (k, n) for k in "xdlrn" for n in range(150))
    if sorted(wins) != wanted:
        twice = sorted({w for w in wins if wins.count(w) > 1})
        raise Failed("won by several: %s; by nobody: %s" % (
            twice[:10], sorted(set(wanted) - set(wins))[:10]))
    tidy(t)


@case(90)
def rename_storm(t):
    """A name that is replaced all the time is always there, and always whole."""
    up(t)
    ranks(t, r'''
NAMES = ["one", "two"]
if rank == 0:
    for name in NAMES:
        written("%s/%s" % (top, name), b"0 " * 6000)
barrier()
until = time.monotonic() + 4
n = 0
while time.monotonic() < until:
    n += 1
    name = NAMES[n % 2]
    if rank % 2:
        part = "%s/part%d" % (top, rank)
        written(part, ("%d " % (n * ranks + rank)).encode() * random.randrange(1, 9000))
        os.rename(part, "%s/%s" % (top, name))
    else:
        words = set(whole("%s/%s" % (top, name)).split(b" ")[:-1])
        assert len(words) == 1, (name, sorted(words)[:5])
        assert os.stat("%s/%s" % (top, name)).st_nlink in (0, 1)
barrier()
assert sorted(os.listdir(top)) == NAMES, os.listdir(top)
''')
    tidy(t)


@case(90)
def directories_come_and_go(t):
    """rmdir never takes a directory that has an entry; an entry never lies in a directory that is gone."""
    up(t)
    ranks(t, r'''
until = time.monotonic() + 5
mine = 0
made = []
while time.monotonic() < until:
    d = "%s/d%d" % (top, random.randrange(3))
    what = random.randrange(5)
    try:
        if what == 0:
            os.mkdir(d)
        elif what == 1:
            os.rmdir(d)
        elif what == 2:
            mine += 1
            path = "%s/f%d-%d" % (d, rank, mine)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            # Only this process removes the file, so its directory stays, and so does the file.
            for _ in range(3):
                assert os.stat(path).st_size == 0
            fails(errno.ENOTEMPTY, os.rmdir, d)
            os.unlink(path)
            fails(errno.ENOENT, os.stat, path)
        elif what == 3:
            for name in os.listdir(d):
                assert name.startswith("f") or name == "sub", name
        else:
            os.mkdir(d + "/sub")
            os.rmdir(d + "/sub")
    except OSError as e:
        assert e.errno in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY), (what, e)
barrier()
if rank == 0:
    for d in os.listdir(top):
        assert os.listdir(top + "/" + d) in ([], ["sub"]), (d, os.listdir(top + "/" + d))
        if os.listdir(top + "/" + d):
            os.rmdir(top + "/" + d + "/sub")
        os.rmdir(top + "/" + d)
    assert os.stat(top).st_nlink == 2, os.stat(top).st_nlink
''')
    tidy(t)


@case(90)
def renamed_directories(t):
    """Directories are renamed into each other at once: never a loop, never one lost, files stay in reach."""
    up(t)
    ranks(t, r'''
N = 4
if rank == 0:
    for n in range(N):
        os.mkdir("%s/d%d" % (top, n))
        written("%s/d%d/mark" % (top, n), b"%d" % n)
barrier()
held = os.open("%s/d%d/mark" % (top, rank % N), os.O_RDONLY)
barrier()
def places():
    found, todo = {}, [top]
    while todo:
        d = todo.pop()
        try:
            names = os.listdir(d)
        except OSError as e:
            assert e.errno == errno.ENOENT, e
            continue
        for name in names:
            if name == "mark":
                continue
            found.setdefault(name, d)
            todo.append(d + "/" + name)
    return found
until = time.monotonic() + 5
while time.monotonic() < until:
    found = places()
    a, b = random.sample(range(N), 2)
    a, b = "d%d" % a, "d%d" % b
    if a in found and b in found:
        to = random.choice([found[b] + "/" + b + "/" + a, top + "/" + a])
        try:
            os.rename(found[a] + "/" + a, to)
        except OSError as e:
            assert e.errno in (errno.ENOENT, errno.EINVAL, errno.ENOTEMPTY, errno.EBUSY), e
    assert os.pread(held, 10, 0) == b"%d" % (rank % N)
barrier()
found = places()
assert sorted(found) == ["d%d" % n for n in range(N)], found
for n in range(N):
    assert whole("%s/d%d/mark" % (found["d%d" % n], n)) == b"%d" % n
''')
    tidy(t)


@case(90)
def listing_what_changes(t):
    """Names that stay are listed exactly once, whatever comes and goes at other nodes meanwhile."""
    up(t)
    ranks(t, r'''
d = top + "/many"
if rank == 0:
    os.mkdir(d)
barrier()
for n in range(rank, 900, ranks):
    os.close(os.open("%s/stays%03d" % (d, n), os.O_CREAT | os.O_WRONLY))
barrier()
until = time.monotonic() + 4
n = 0
stays = ["stays%03d" % n for n in range(900)]
while time.monotonic() < until:
    if rank % 2:
        path = "%s/goes%d-%d" % (d, rank, n % 50)
        if n // 50 % 2 == 0:
            written(path, b"")
        else:
            os.unlink(path)
        n += 1
    else:
        names = sorted(name for name in os.listdir(d) if name.startswith("stays"))
        assert names == stays, (len(names), sorted(set(stays) ^ set(names))[:5],
                                [x for x in names if names.count(x) > 1][:5])
''')
    tidy(t)


@case(90)
def open_and_removed(t):
    """A file that another node removes lives until its last close anywhere; then its room is free."""
    up(t)
    before = used(t)
    ranks(t, r'''
path = "%s/gone%d" % (top, rank)
data = content(rank, 3 << 20)
written(path, data)
barrier()
other = "%s/gone%d" % (top, (rank + 1) % ranks)
fd = os.open(other, os.O_RDWR)
barrier()
os.unlink(path)
barrier()
fails(errno.ENOENT, os.stat, other)
s = os.fstat(fd)
assert (s.st_nlink, s.st_size) == (0, 3 << 20), s
wanted = content((rank + 1) % ranks, 3 << 20)
same(os.pread(fd, 4 << 20, 0), wanted, other)
assert os.pwrite(fd, b"more", 3 << 20) == 4
assert os.fstat(fd).st_size == (3 << 20) + 4
barrier()
written(path, b"another")
barrier()
same(os.pread(fd, 4 << 20, 0), wanted + b"more", other)
same(whole(other), b"another", other)
barrier()
os.unlink(path)
os.close(fd)
''')
    # Room freed for others is free soon, not at once.
    try:
        wait_until(lambda: used(t) <= before, 10, "")
    except Failed:
        raise Failed("%d bytes are in use, %d were before" % (used(t), before))
    tidy(t)


def used(t):
    return sum(m["used"] for m in t.fb("df", "--pool", POOL, "--json").json()["media"])


@case(90)
def truncated_elsewhere(t):
    """Truncation by one node: the others see the new size, zeros behind it when it grows, and no old bytes."""
    up(t)
    ranks(t, r'''
path = top + "/cut"
if rank == 0:
    written(path, b"")
barrier()
fd = os.open(path, os.O_RDWR)
for turn in range(24):
    writer, cutter = turn % ranks, (turn * 3 + 1) % ranks
    size = random.Random(turn).choice([10, 5000, 100000, (1 << 20) + 5, 3 << 20])
    less = random.Random(turn).randrange(size)
    if rank == writer:
        assert os.pwrite(fd, content(turn, size), 0) == size
    barrier()
    if rank == cutter:
        os.ftruncate(fd, less)
    barrier()
    assert os.fstat(fd).st_size == os.stat(path).st_size == less, (turn, os.fstat(fd).st_size, less)
    barrier()
    if rank == (cutter + 1) % ranks:
        os.ftruncate(fd, size + 100)
    barrier()
    got = os.pread(fd, 4 << 20, 0)
    same(got, content(turn, size)[:less] + bytes(size + 100 - less), "turn %d" % turn)
    barrier()
    if rank == writer:
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    barrier()
    assert os.fstat(fd).st_size == 0 and os.pread(fd, 10, 0) == b"", turn
    barrier()
''')
    tidy(t)


@case(90)
def true_size(t):
    """stat shows the size that a writer on another node has reached, while it writes."""
    up(t)
    ranks(t, r'''
import mmap
if rank == 0:
    with open(meet + "/count", "wb") as f:
        f.write(bytes(4096))
    written(top + "/grows", b"")
barrier()
with open(meet + "/count", "r+b") as f:
    shared = mmap.mmap(f.fileno(), 4096)
fd = os.open(top + "/grows", os.O_RDWR)
STEP = 1000
barrier()
if rank == 0:
    for n in range(1, 1500):
        assert os.write(fd, b"w" * STEP) == STEP
        shared[0:8] = struct.pack("q", n * STEP)
    shared[8] = 1
else:
    last = 0
    while not shared[8]:
        finished = struct.unpack("q", shared[0:8])[0]
        size = os.stat(top + "/grows").st_size if rank % 2 else os.fstat(fd).st_size
        assert size >= finished, (size, "less than was written", finished)
        assert size >= last and size % STEP == 0, (size, last)
        last = size
        got = os.pread(fd, STEP, max(0, finished - STEP))
        assert finished == 0 or got == b"w" * STEP, (finished, len(got), got[:10])
''')
    tidy(t)


@case(60)
def by_node(t):
    """A program is on the node that was chosen, and sees what the others do."""
    up(t)
    for n in range(4):
        t.command(on(t, n, "bash", "-c", "echo from %d >> /fb/log; mkdir -p /fb/a/b; cd /fb/a/b; touch n%d" % (n, n)))
    for n in range(4):
        t.command(on(t, n, "cat", "/fb/log")).prints(*["^from %d$" % k for k in range(4)])
        t.command(on(t, n, "ls", "/fb/a/b")).prints(*["^n%d$" % k for k in range(4)])
    t.ok(not os.path.exists("/fb/log"), "/fb is outside")
    tidy(t)


SIZES = [100, 5000, 1 << 20, (4 << 20) + 99]


@case(90)
def laminated_files_are_copied(t):
    """A process has read a laminated file: the next one on its node can read it while the file's home doesn't
    answer. The copy is removed with the file, even if a daemon was killed meanwhile."""
    up(t, nodes=2)
    t.command(on(t, 0, "mkdir", "/fb/ckpt", nodes=2))
    t.fb("set", "--pool", POOL, "/ckpt", "mutability=immutable")
    write = "import os\nfor n, size in enumerate(%r): open('/fb/ckpt/%%d' %% n, 'wb').write(os.urandom(size))" % SIZES
    t.command(on(t, 0, sys.executable, "-c", write, nodes=2))
    read = r'''
import hashlib, os, signal, sys
home, count = map(int, sys.argv[1:])
files = [os.open("/fb/ckpt/%d" % n, os.O_RDONLY) for n in range(count)]
if home:
    os.kill(home, signal.SIGSTOP)
try:
    print(" ".join(hashlib.sha256(os.read(f, 8 << 20)).hexdigest() for f in files))
finally:
    if home:
        os.kill(home, signal.SIGCONT)
'''

    def sums(node, home=0):
        words = [sys.executable, "-c", read, str(home), str(len(SIZES))]
        return t.command(on(t, node, *words, nodes=2)).out

    def copied(node):
        status = t.fb("status", "--pool", POOL, "--json", timeout=40).json()
        return next(n["copied"] for n in status["nodes"] if n["node"] == node)

    right = sums(0)
    t.ok(sums(1) == right, "other bytes from the home")
    t.ok(sums(1, daemon(t, 0, nodes=2)) == right, "other bytes from the copy")
    t.ok(copied(0) == 0 and copied(1) >= sum(SIZES) - 2000, "copied are %d and %d" % (copied(0), copied(1)))
    t.fb("node", "--pool", POOL, "kill", "1")
    t.fb("node", "--pool", POOL, "restart", "1")
    t.command(on(t, 0, "bash", "-c", "rm /fb/ckpt/*", nodes=2))
    wait_until(lambda: copied(1) == 0, 40, "the copies go")
    tidy(t)


@case(90)
def long_reads_of_another_node(t):
    """Reads of more than a request carries: what they return is the file's, up to its end, also while it grows; and errors."""
    up(t)
    ranks(t, r'''
import random
SIZE = (5 << 20) + 777
path = top + "/long"
if rank == 1:
    written(path, content(1, SIZE))
barrier()
if rank == 0:
    fd = os.open(path, os.O_RDONLY)
    first = content(1, SIZE)
    same(os.pread(fd, 64 << 20, 0), first, "more than there is")
    choose = random.Random(5)
    for n in range(100):
        at, length = choose.randrange(SIZE + 1000), choose.randrange(1, 9 << 20)
        same(os.pread(fd, length, at), first[at:at + length], "%d at %d" % (length, at))
barrier()
# It grows by whole megabytes; a reader gets a part that begins with what was there before.
if rank == 1:
    with open(path, "ab", buffering=0) as f:
        for n in range(20):
            f.write(content(10 + n, 1 << 20))
if rank == 0:
    grown = first + b"".join(content(10 + n, 1 << 20) for n in range(20))
    least = SIZE
    while least < len(grown):
        got = os.pread(fd, 64 << 20, 0)
        assert len(got) >= least, (len(got), least)
        same(got, grown[:len(got)], "while it grows")
        least = len(got)
barrier()
''')
    tidy(t)
