"""Shared mappings of files that lie on other nodes."""
import os
import shutil
import subprocess
import sys

from harness import case
from .nodes import POOL, PREAMBLE, node, on, ranks, tidy, up

# On top of the ranks' preamble.
MAPS = r'''
import ctypes, mmap, signal
libc = ctypes.CDLL(None, use_errno=True)
def mapped(path, length=0, offset=0):
    fd = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(fd, length, offset=offset)
    finally:
        os.close(fd)
def msync(m, flags):
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    if libc.msync(ctypes.c_void_p(at), ctypes.c_size_t(len(m)), flags):
        raise OSError(ctypes.get_errno(), "msync")
ASYNC, INVALIDATE, SYNC = 1, 2, 4
def child(f):
    """What f comes to in a child that ends without further ado: its exit code, or minus a signal."""
    pid = os.fork()
    if pid == 0:
        f()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
'''


@case(90)
def mapped_by_all(t):
    """All nodes store through mappings of one file, of one node or striped: every byte arrives, those of one page too;
    they take turns by locks; processes of one node see each other's stores at once."""
    up(t)
    t.fb("set", "--pool", POOL, "--distribution", "striped", "/s")
    ranks(t, MAPS + r'''
SIZE = (3 << 20) + 1234
for path in top + "/one", top + "/s/striped":
    if rank == 1:
        written(path, content(1, SIZE))
    barrier()
    m = mapped(path)
    assert m[SIZE - 100:] == content(1, SIZE)[-100:]
    barrier()
    # Interleaved bytes of all pages.
    mine = content(2 + rank, SIZE)
    m[rank::ranks] = mine[rank::ranks]
    assert os.pread(os.open(path, os.O_RDONLY), 1, rank + 4 * ranks) == mine[rank + 4 * ranks:][:1]
    msync(m, rank % 2 and ASYNC or SYNC)
    barrier()
    wanted = bytearray(SIZE)
    for r in range(ranks):
        wanted[r::ranks] = content(2 + r, SIZE)[r::ranks]
    same(whole(path), wanted, "read")
    msync(m, INVALIDATE)
    same(m[:], wanted, "invalidated")
    same(mapped(path)[:], wanted, "mapped anew")
    barrier()
    # Halves, in words at random offsets; at the end nobody writes.
    if rank < 2:
        half, dice = rank * SIZE // 2, random.Random(rank)
        for n in range(3000):
            at = half + dice.randrange(SIZE // 2 - 8)
            m[at:at + 8] = struct.pack("q", n)
        if child(lambda: m.__setitem__(half + 5, 77)) != 0:
            sys.exit("the child")
        assert m[half + 5] == 77
    pages = m[:]
    m.close()
    barrier()
    for r in range(2):
        half, dice = r * SIZE // 2, random.Random(r)
        for n in range(3000):
            at = half + dice.randrange(SIZE // 2 - 8)
            wanted[at:at + 8] = struct.pack("q", n)
        wanted[half + 5] = 77
    same(whole(path), wanted, "halves of " + path)
    if rank < 2:
        same(pages[rank * SIZE // 2:][:SIZE // 2], wanted[rank * SIZE // 2:][:SIZE // 2], "own half")
    barrier()
    # Turns by locks: fcntl's and flock's.
    fd = os.open(path, os.O_RDWR)
    m = mapped(path, 4096)
    if rank == 0:
        m[:4096] = bytes(4096)
        m.flush()
    barrier()
    for n in range(20):
        if n % 2:
            fcntl.lockf(fd, fcntl.LOCK_EX, 1, 7)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX)
        at = 8 * (n % 2)
        m[at:at + 8] = struct.pack("q", 1 + struct.unpack("q", m[at:at + 8])[0])
        if n % 2:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, 7)
        else:
            fcntl.flock(fd, fcntl.LOCK_UN)
    barrier()
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert struct.unpack("qq", m[:16]) == (10 * ranks, 10 * ranks), struct.unpack("qq", m[:16])
    fcntl.flock(fd, fcntl.LOCK_UN)
    barrier()
    # Ranks 0 and 4 are on one node.
    if rank == 0:
        m[2000] = 200
    barrier()
    if rank == 4:
        assert m[2000] == 200, m[2000]
    os.close(fd)
    barrier()
''', n=5)
    t.ok(not any(os.listdir(d) for d, _, _ in os.walk(t.home) if d.endswith("/copies")), "copies are left")
    tidy(t)


@case(60)
def mapped_where_it_lies(t):
    """Of a striped file, the chunks on a process's own node are mapped directly: all nodes see stores there
    at once, and the stores outlive a killed process; truncating takes them away."""
    up(t)
    t.fb("set", "--pool", POOL, "--distribution", "striped", "/s")
    t.fb("set", "--pool", POOL, "--distribution", "striped", "--chunk-size", "2M", "/t")
    ranks(t, MAPS + r'''
MIB, CHUNKS = 1 << 20, 12
for path, each in (top + "/s/f", 1), (top + "/t/f", 2):
    if rank == 1:
        os.truncate(os.open(path, os.O_RDWR | os.O_CREAT), CHUNKS * MIB)
    barrier()
    m, fd = mapped(path), os.open(path, os.O_RDWR)
    barrier()
    def turns(at):
        """Each node's process stores to all chunks, in turn: the chunks where the others see it at once. Nobody syncs."""
        seen = {}
        for r in range(4):
            if rank == r:
                for chunk in range(CHUNKS):
                    m[chunk * MIB + at + r] = r + 1
            barrier()
            if rank % 4 == r:
                assert all(m[chunk * MIB + at + r] == r + 1 for chunk in range(CHUNKS))
            else:
                seen[r] = {c for c in range(CHUNKS) if os.pread(fd, 1, c * MIB + at + r) == bytes([r + 1])}
            barrier()
        seen[rank % 4] = set(range(CHUNKS)).difference(*seen.values())
        return seen
    owns = turns(1000)
    own = sorted(owns[rank % 4])
    assert sum(map(len, owns.values())) == CHUNKS, owns
    assert all(chunk // each * each in own for chunk in own), own
    with open("%s/own-%d-%d" % (meet, each, rank), "w") as f:
        print(sorted((r, sorted(chunks)) for r, chunks in owns.items()), file=f)
    barrier()
    assert len({open("%s/own-%d-%d" % (meet, each, r)).read() for r in range(ranks)}) == 1
    # A killed process that had seen another's writes at once.
    for chunk in own:
        if rank < 4:
            os.pwrite(fd, b"w", chunk * MIB + 2000)
            assert m[chunk * MIB + 2000] == ord("w")
            assert child(lambda: (m.__setitem__(chunk * MIB + 3000, 33), os.kill(os.getpid(), 9))) == -9
    barrier()
    for chunk in range(CHUNKS):
        assert os.pread(fd, 1, chunk * MIB + 3000) == bytes([33]), chunk
    if rank == 3:
        for chunk in range(CHUNKS):
            os.pwrite(fd, b"v", chunk * MIB + 4000)
    barrier()
    for chunk in own:
        assert m[chunk * MIB + 4000] == ord("v"), chunk
    barrier()
    # Cut within a chunk, and grown again.
    end = 3 * MIB + 5000
    if rank == 2:
        os.truncate(fd, end)
    barrier()
    for chunk in own:
        if chunk > 3:
            assert child(lambda: m[chunk * MIB]) == -signal.SIGBUS, chunk
            break
    barrier()
    if rank == 1:
        os.truncate(fd, CHUNKS * MIB)
    barrier()
    for chunk in own:
        at = max(end, chunk * MIB)
        if at < (chunk + 1) * MIB:
            assert m[at:(chunk + 1) * MIB] == bytes((chunk + 1) * MIB - at), chunk
    barrier()
    assert turns(end % MIB) == owns
    # Times follow at msync.
    before = os.stat(path).st_mtime_ns
    barrier()
    if own and rank < 4:
        time.sleep(0.05)
        m[own[0] * MIB] = 1
        m.flush()
        assert os.stat(path).st_mtime_ns > before
    m.close()
    os.close(fd)
    barrier()
''', n=5)
    t.fb("fsck", "--pool", POOL)
    tidy(t)


@case(60)
def mapped_elsewhere(t):
    """One node's mapping of another's file: grown, cut, sparse, beside read and write, protected, moved; after fork, exec,
    exit and kills."""
    up(t)
    t.command(on(t, 1, sys.executable, "-c", PREAMBLE + MAPS + r'''
for name, size in ("a", 300000), ("cut", 20000), ("kill", 9000), ("exec", 9000), ("exit", 9000), ("thread", 9000):
    written(top + "/" + name, content(size, size))
written(top + "/large", b"")
os.truncate(top + "/large", 400 << 20)
''', "0", "1", "/fb", t.work))
    r = t.command(on(t, 0, sys.executable, "-c", PREAMBLE + MAPS + r'''
os.chdir(top)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
# Beside read, write and append by the same process.
m, fd = mapped("a"), os.open("a", os.O_RDWR)
m[10:15] = b"store"
assert os.pread(fd, 5, 10) == b"store"
os.pwrite(fd, b"write", 12)
assert m[10:17] == b"stwrite"
m[20] = 1
os.lseek(fd, 19, 0)
assert os.write(fd, b"xyz") == 3 and m[19:22] == b"xyz" and os.read(fd, 1) == m[22:23]
a = os.open("a", os.O_WRONLY | os.O_APPEND)
os.write(a, b"end"); os.close(a)
assert os.fstat(fd).st_size == 300003 and m.size() == 300003
m.resize(300003)
assert m[300000:] == b"end"
m[300000:] = b"END"
os.fsync(fd)
# Grown, and cut; behind the end is SIGBUS.
c, f = mapped("cut", 20000), os.open("cut", os.O_RDWR)
def touch(at):
    return child(lambda: c[at])
c[15000] = 5
os.ftruncate(f, 5000)
assert touch(4999) == 0 and touch(9000) == -signal.SIGBUS and c[6000] == 0
os.ftruncate(f, 20000)
assert touch(9000) == 0 and c[15000] == 0 and c[:5000] == content(20000, 20000)[:5000]
c[19999] = 9
assert os.pread(f, 10, 19999) == b"\x09"
os.close(os.open("cut", os.O_RDWR | os.O_TRUNC))
assert touch(0) == -signal.SIGBUS
os.ftruncate(f, 100)
assert c[:100] == bytes(100)
c[99] = 1
c.close()
assert os.pread(f, 100, 0) == bytes(99) + b"\x01"
# Only what is touched is fetched of a large one; system calls can use what has been touched.
l = mapped("large")
assert l[300 << 20] == 0
l[300 << 20] = 3
l[(400 << 20) - 1] = 4
msync(l, SYNC)
def room():
    return sum(os.stat(os.path.join(d, n)).st_blocks * 512 for d, _, names in os.walk(os.environ["FOREBAY_HOME"])
               for n in names if d.endswith("/copies"))
assert 1 << 20 < room() < 200 << 20, room()
null = os.open("/dev/null", os.O_WRONLY)
assert os.write(null, memoryview(l)[300 << 20:301 << 20]) == 1 << 20
# Protection, and moving.
at = libc.mmap(None, 8192, 1, 1, fd, 0)
assert libc.mprotect(ctypes.c_void_p(at), 4096, 3) == 0
ctypes.memset(at, 65, 100)
at = libc.mremap(ctypes.c_void_p(at), ctypes.c_size_t(8192), ctypes.c_size_t(65536), 1, None)
assert ctypes.string_at(at, 3) == b"AAA" and ctypes.string_at(at + 60000, 8) == content(300000, 300000)[60000:60008]
assert libc.mprotect(ctypes.c_void_p(at), 65536, 3) == 0
ctypes.memset(at + 60000, 66, 8)
assert libc.munmap(ctypes.c_void_p(at), 65536) == 0
# Threads.
import threading
th = mapped("thread")
def store(n):
    for i in range(n, 9000, 8):
        th[i] = i % 251
threads = [threading.Thread(target=store, args=(n,)) for n in range(8)]
for x in threads: x.start()
while any(x.is_alive() for x in threads):
    msync(th, SYNC)
for x in threads: x.join()
th.close()
# Ends of processes.
def killed():
    m = mapped("kill")
    m[0:6] = b"synced"
    m.flush()
    m[5000:5004] = b"lost"
    os.kill(os.getpid(), 9)
assert child(killed) == -9
def execs():
    m = mapped("exec")
    m[0:4] = b"exec"
    os.execv("/bin/true", ["true"])
assert child(execs) == 0
m = mapped("exit")
m[0:4] = b"exit"
print("fine")
''', "0", "1", "/fb", t.work), timeout=50)
    r.prints("^fine$")
    t.ok(r.err == "", "something is said: " + r.err)
    t.command(on(t, 2, sys.executable, "-c", PREAMBLE + MAPS + r'''
os.chdir(top)
a = bytearray(content(300000, 300000))
a[10:17] = b"stwrite"; a[19:22] = b"xyz"; a[0:100] = b"A" * 100; a[60000:60008] = b"B" * 8
same(whole("a"), a + b"END", "a")
k = bytearray(content(9000, 9000))
k[0:6] = b"synced"
same(whole("kill"), k, "kill")
for name in "exec", "exit":
    same(whole(name)[:4], name.encode(), name)
    same(whole(name)[4:], content(9000, 9000)[4:], name)
same(whole("thread"), bytes(i % 251 for i in range(9000)), "thread")
fd = os.open("large", os.O_RDONLY)
assert os.pread(fd, 1, 300 << 20) == b"\x03" and os.pread(fd, 1, (400 << 20) - 1) == b"\x04"
# After the kill, the next mapping is of the file as it is.
m = mapped("kill")
same(m[:], k, "kill, mapped")
''', "0", "1", "/fb", t.work))
    tidy(t)


@case(60)
def mapped_and_reported(t):
    """Both nodes store to the same byte: one line says so. The file's node is killed: msync is EIO, what is lost at munmap
    and exit is said, naming file and node; after its return all goes on. What needs one memory is refused."""
    up(t, "--request-timeout", "1")
    t.command(on(t, 1, "bash", "-c", "head -c 9000 /dev/zero | tee /fb/f /fb/g > /fb/h; touch /fb/x-shm"))
    script = PREAMBLE + MAPS + r'''
import subprocess
m = mapped("/fb/f")
m[100] = 1
subprocess.run(sys.argv[5:], check=True)
m.flush()
m[101] = 2
m.flush()
'''
    other = on(t, 2, sys.executable, "-c", PREAMBLE + MAPS + "m = mapped('/fb/f'); m[100] = 9; m[200] = 8",
               "0", "1", "/fb", t.work)
    r = t.command(on(t, 0, sys.executable, "-c", script, "0", "1", "/fb", t.work, *other))
    said = [line for line in r.err.split("\n") if line]
    both = "the same bytes (100 to 101) were stored through a mapping on node 0 and changed on node 2"
    t.ok(len(said) == 1 and said[0].startswith("forebay: /fb/f: %s;" % both), "said: %s" % r.err)
    listed = t.fb("violations", "--pool", POOL, "--json").json()
    t.ok([(v["path"], v["what"]) for v in listed] == [("/f", both)], "listed: %s" % listed)
    r = t.command(on(t, 3, "od", "-An", "-tu1", "-j100", "-N2", "/fb/f"))
    t.ok(r.out.split() == ["1", "2"], r.out)

    r = t.command(on(t, 0, sys.executable, "-c", PREAMBLE + MAPS + r'''
fd = os.open("/fb/x-shm", os.O_RDWR)
os.ftruncate(fd, 4096)
fails(errno.ENODEV, mmap.mmap, fd, 4096)
''', "0", "1", "/fb", t.work))
    t.ok("x-shm can't be mapped here" in r.err, r.err)

    p = t.start(on(t, 0, sys.executable, "-c", PREAMBLE + MAPS + r'''
f, g, h = mapped("/fb/f"), mapped("/fb/g"), mapped("/fb/h")
print("ready", flush=True)
sys.stdin.readline()
f[0] = g[0] = h[0] = 1
begun = time.monotonic()
fails(errno.EIO, f.flush)
assert time.monotonic() - begun < 5
g.close()
print("dead", flush=True)
sys.stdin.readline()
for n in range(50):
    try:
        f.flush()
        break
    except OSError as e:
        assert e.errno == errno.EIO and n < 49
        time.sleep(0.1)
print("back", flush=True)
sys.stdin.readline()
f[1] = 7
''', "0", "1", "/fb", t.work), stdin=subprocess.PIPE)
    for do in "kill", "restart", "kill":
        if not p.stdout.readline():
            break
        node(t, do, 1)
        p.stdin.write(b"\n")
        p.stdin.flush()
    r = t.finish(p, 0, timeout=20)
    said = [line for line in r.err.split("\n") if line]
    lost = [line for line in said if "couldn't be written back to node 1" in line]
    t.ok([line.split(": ")[1] for line in lost][:1] == ["g"] and
         sorted(line.split(": ")[1] for line in lost[1:]) == ["f", "h"], "said: %s" % r.err)
    node(t, "restart", 1)
    tidy(t)


@case(90)
def mapped_storm(t):
    """Random operations of several processes of one node on files that lie elsewhere, mapped and not: all is as in a
    plain directory."""
    if shutil.which("gcc") is None:
        return
    up(t)
    t.fb("set", "--pool", POOL, "--distribution", "striped", "/s")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../programs/cases/mmap-storm.c")
    program, plain = os.path.join(t.work, "storm"), os.path.join(t.work, "plain")
    t.command(["gcc", "-O1", "-w", "-o", program, source], timeout=60)
    os.mkdir(plain)
    outside = t.command([program, "shared", "1", "1500"], cwd=plain, timeout=40).out
    inside = t.command(on(t, 1, "bash", "-c", 'mkdir /fb/s/d && cd /fb/s/d && exec "$0" shared 1 1500', program),
                       timeout=60).out
    pairs = [(a, b) for a, b in zip(outside.split("\n"), inside.split("\n")) if "forked" not in a]
    t.ok(len(pairs) > 1000 and outside.count("\n") == inside.count("\n"), "too few lines")
    other = next((pair for pair in pairs if pair[0] != pair[1]), None)
    t.ok(other is None, "outside %s, inside %s" % (other or ("", "")))
    tidy(t)


@case(60)
def mapped_by_threads(t):
    """A thread's stores stay, whatever other threads of its process do to the file meanwhile."""
    program = os.path.join(t.work, "threads")
    source = os.path.join(os.path.dirname(__file__), "..", "..", "programs", "c", "mapped_threads.c")
    t.command(["gcc", "-O1", "-w", "-pthread", "-o", program, source])
    up(t)
    t.command(on(t, 0, "bash", "-c", "head -c 8192 /dev/zero > /fb/f"))
    t.command(on(t, 1, program, "/fb/f"), timeout=40).quiet().prints("^[1-9][0-9]* rounds, 0 stores reverted$")
    tidy(t)
