"""Large files of an origin that come in as they are read: blocks of 8 MiB, and what follows a sequential reader."""
import hashlib
import os
import subprocess
import sys
import time

from cases.mounts import mounted
from cases.origins import digest, status, up
from cases.origins_slow import slow_origin
from harness import Failed, case, kill, wait_until
from slowfs import MiB

BLOCK = 8 * MiB
SMALL = ("--origin-ranges", "16M")

# Reads pieces, "OFFSET LENGTH" a line on standard input, by one descriptor; prints a digest of each, or the error.
READER = """import hashlib, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("open", flush=True)
for line in sys.stdin:
    at, length = map(int, line.split())
    try:
        got = b""
        while len(got) < length:
            piece = os.pread(fd, length - len(got), at + len(got))
            if not piece: break
            got += piece
        print(len(got), hashlib.sha256(got).hexdigest(), flush=True)
    except OSError as e:
        print("error", e.errno, flush=True)
"""


class Reader:
    """A program that has a file open."""

    def __init__(self, t, path, pool="p", *options):
        self.t = t
        argv = [t.forebay, "exec", "--pool", pool, *options, "--", sys.executable, "-c", READER, path]
        self.process = t.start(argv, stdin=subprocess.PIPE)
        if self.process.stdout.readline() != b"open\n":
            raise Failed("%s can't be opened: %s" % (path, t.finish(self.process, rc=None).told()))

    def read(self, at, length):
        self.process.stdin.write(b"%d %d\n" % (at, length))
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().strip()

    def close(self):
        return self.t.finish(self.process)


def piece(path, at, length):
    """What a reader says of these bytes."""
    with open(path, "rb") as f:
        f.seek(at)
        got = f.read(length)
    return "%d %s" % (len(got), hashlib.sha256(got).hexdigest())


def large(t, top, name, size=40 * MiB, seed=1):
    os.makedirs(top, exist_ok=True)
    path = os.path.join(top, name)
    t.file(path, size, seed)
    return path


@case(60)
def only_what_is_read_of_a_large_file_comes(t):
    with slow_origin(t) as slow:
        there = large(t, slow.source, "large", 80 * MiB)
        os.utime(there, (1e9, 1e9))
        up(t, slow.at, *SMALL)
        path = os.path.join(slow.at, "large")
        slow.set(rate=100 * MiB)
        began = time.monotonic()
        reader = Reader(t, path)
        t.ok(slow.file("large")["bytes_read"] == 0, "opening has read it")
        t.ok(reader.read(41 * MiB, MiB) == piece(there, 41 * MiB, MiB), "a piece is another one")
        took = time.monotonic() - began
        t.ok(slow.file("large")["bytes_read"] == BLOCK, "more than a block was read: %s" % slow.file("large"))
        t.ok(reader.read(46 * MiB, 1000) == piece(there, 46 * MiB, 1000), "a piece of the same block is another one")
        t.ok(slow.file("large")["bytes_read"] == BLOCK, "a block was read twice")
        t.ok(reader.read(80 * MiB - 5, 100) == piece(there, 80 * MiB - 5, 100), "the end is another one")
        t.ok(reader.read(200 * MiB, 100) == piece(there, 200 * MiB, 100), "there is something behind the end")
        # The times stay, and the file is clean.
        t.bash("p", "stat -c '%%s %%Y %%b' %s" % path).prints("^%d 1000000000 %d$" % (80 * MiB, 80 * MiB // 512))
        s = status(t)
        t.ok((s["partial_files"], s["partial_bytes"], s["released_files"], s["dirty_files"], s["fetched_bytes"])
             == (1, 2 * BLOCK, 1, 0, 2 * BLOCK), s)
        t.fb("origin", "evict", "--pool", "p")
        t.ok(status(t)["partial_bytes"] == 2 * BLOCK, "bytes of an open file were evicted")
        reader.close().quiet()
        # Sequential readers, all at once: what comes is read ahead, and once.
        slow.set()
        t.fb("origin", "evict", "--pool", "p")
        t.ok(status(t)["partial_files"] == 0 and t.used("p") < 4 * MiB, "bytes of a closed file weren't evicted")
        slow.reset()
        readers = [t.start([t.forebay, "exec", "--pool", "p", "--", "sha256sum", path]) for _ in range(4)]
        for r in readers:
            t.finish(r).prints(digest(there))
        f = slow.file("large")
        t.ok(f["bytes_read"] == 80 * MiB, "the origin was read more than once: %s" % f)
        wait_until(lambda: status(t)["archived_files"] == 1, 5, "the file to be whole")
        s = status(t)
        t.ok((s["partial_files"], s["released_files"], s["dirty_files"]) == (0, 0, 0), s)
        t.bash("p", "stat -c %%Y %s" % path).prints("^1000000000$")
        # Small files, and those that are opened for writing, come whole.
        large(t, slow.source, "small", 12 * MiB, 2)
        there = large(t, slow.source, "written", 20 * MiB, 3)
        wait_until(lambda: "written" in t.bash("p", "ls %s" % slow.at).out, 15, "new files")
        slow.reset()
        t.bash("p", "head -c 1 %s/small > /dev/null" % slow.at)
        t.ok(slow.file("small")["bytes_read"] == 12 * MiB, "a small file didn't come whole")
        reader = Reader(t, os.path.join(slow.at, "written"))
        reader.read(17 * MiB, 1)
        t.python("p", "import os, sys; os.pwrite(os.open(sys.argv[1], os.O_RDWR), b'new', 5)", slow.at + "/written")
        t.ok(slow.file("written")["bytes_read"] == 20 * MiB, "what was there was read again")
        with open(there, "rb") as f:
            wanted = bytearray(f.read())
        wanted[5:8] = b"new"
        wanted = "%d %s" % (len(wanted), hashlib.sha256(wanted).hexdigest())
        t.ok(reader.read(0, 20 * MiB) == wanted, "a reader doesn't see what was written")
        reader.close().quiet()
        t.fb("origin", "sync", "--pool", "p")
        t.ok(piece(there, 0, 20 * MiB) == wanted, "the origin has something else")
        print("1 MiB in the middle: %.2f s" % took)
        t.fb("down", "--pool", "p")


@case(60)
def every_way_of_reading_gets_what_it_needs(t):
    top = os.path.join(t.disk, "origin")
    there = large(t, top, "large", 17 * MiB + 777)
    with open(os.path.join(top, "holes"), "wb") as f:
        f.write(b"begin")
        f.seek(30 * MiB)
        f.write(b"end")
    os.mkdir(os.path.join(t.disk, "medium"))
    up(t, top, "--origin-ranges", "9M", media=("memory:128M", "files:%s:64M" % os.path.join(t.disk, "medium")))
    wanted = digest(there)
    path = os.path.join(top, "large")
    t.bash("p", "ls %s" % top).prints("^holes$", "^large$")
    ways = {
        "read": "f = open(p, 'rb', 0); out = b''.join(iter(lambda: f.read(100001), b''))",
        "one read": "out = os.read(os.open(p, os.O_RDONLY), 1 << 30)",
        "readv": "fd = os.open(p, os.O_RDONLY); b = [bytearray(9 << 20) for _ in range(2)]; n = os.readv(fd, b);"
                 " out = b''.join(b)[:n]",
        "preadv": "fd = os.open(p, os.O_RDONLY); b = bytearray(1 << 25); n = os.preadv(fd, [b], 0); out = bytes(b[:n])",
        "sendfile": "fd, to = os.open(p, os.O_RDONLY), os.memfd_create('to')\n"
                    "while os.sendfile(to, fd, None, 1 << 22): pass\n"
                    "out = os.pread(to, 1 << 30, 0)",
        "copy_file_range": "fd, to = os.open(p, os.O_RDONLY), os.open(p + '.copy', os.O_RDWR | os.O_CREAT)\n"
                           "while os.copy_file_range(fd, to, 1 << 24): pass\n"
                           "out = os.pread(to, 1 << 30, 0); os.unlink(p + '.copy')",
        "splice": "fd, (r, w) = os.open(p, os.O_RDONLY), os.pipe()\n"
                  "out = b''\n"
                  "while n := os.splice(fd, w, 65536): out += os.read(r, n)",
        "mmap": "import mmap; f = open(p, 'rb'); out = bytes(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ))",
        "mmap at last": "import mmap; f = open(p, 'rb'); f.seek(10 << 20); f.read(5);"
                        " out = bytes(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ))",
        "fork": "f = open(p, 'rb', 0); f.seek(9 << 20); r, w = os.pipe()\n"
                "if os.fork() == 0:\n"
                "    rest = f.readall(); os.write(w, hashlib.sha256(rest).digest()); os._exit(0)\n"
                "os.wait(); theirs = os.read(r, 32); out = os.pread(f.fileno(), 1 << 30, 0)\n"
                "assert hashlib.sha256(out[9 << 20:]).digest() == theirs",
        "a shared offset": "import subprocess; f = open(p, 'rb', 0); a = f.read(10 << 20)\n"
                           "b = subprocess.run(['cat'], stdin=f, capture_output=True).stdout; out = a + b",
        "dup": "fd = os.dup(os.open(p, os.O_RDONLY)); os.dup2(fd, 300); out = os.read(300, 1 << 30)",
        "proc": "fd = os.open(p, os.O_RDONLY); out = open('/proc/self/fd/%d' % fd, 'rb').read()",
        "threads": "import threading; fd = os.open(p, os.O_RDONLY); parts = {}\n"
                   "def one(i): parts[i] = os.pread(fd, 3 << 20, i * (3 << 20))\n"
                   "ts = [threading.Thread(target=one, args=(i,)) for i in range(6)]\n"
                   "[x.start() for x in ts]; [x.join() for x in ts]; out = b''.join(parts[i] for i in range(6))",
    }
    head = "import hashlib, os, sys\np = sys.argv[1]\n"
    for way, script in ways.items():
        t.fb("origin", "evict", "--pool", "p")
        t.ok(status(t)["released_files"] == 2, "%s: the file isn't released: %s" % (way, status(t)))
        got = t.python("p", head + script + "\nprint(hashlib.sha256(out).hexdigest())", path)
        t.ok(got.out.strip() == wanted, "%s got something else" % way)
    t.fb("origin", "evict", "--pool", "p")
    t.bash("p", "cp %s %s/copied; cmp %s %s/copied; tar -C %s -cf - large | tar -xOf - | sha256sum; rm %s/copied"
           % (path, top, path, top, top, top)).prints(wanted)
    holes = os.path.join(top, "holes")
    got = t.python("p", head + "fd = os.open(p, os.O_RDONLY); os.read(fd, 3)\n"
                               "print(os.lseek(fd, 5000, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE))", holes).out.split()
    t.ok(int(got[0]) > 29 * MiB and int(got[1]) < MiB, "holes aren't where they were: %s" % got)
    # A program that lies there, larger than what comes whole.
    program = os.path.join(top, "program")
    with open("/bin/true", "rb") as f, open(program + ".new", "wb") as to:
        to.write(f.read() + bytes(10 * MiB))
    os.chmod(program + ".new", 0o755)
    os.rename(program + ".new", program)
    wait_until(lambda: "program" in t.bash("p", "ls %s" % top).out.split(), 15, "a new file")
    t.bash("p", "%s && echo ran" % program).prints("^ran$")
    if os.path.exists("/dev/fuse"):
        t.fb("origin", "evict", "--pool", "p")
        with mounted(t, "p") as at:
            for script in (ways["read"], ways["mmap"], ways["threads"]):
                name = os.path.join(at, "large")
                t.command(["python3", "-c", head + script + "\nprint(hashlib.sha256(out).hexdigest())", name]).prints(wanted)
                t.fb("origin", "evict", "--pool", "p")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def nobody_reads_a_mixture_of_two_versions(t):
    top = os.path.join(t.disk, "origin")
    there = large(t, top, "large")
    for name in ("other", "removed"):
        large(t, top, name)
    up(t, top, *SMALL)
    for seed, how in enumerate(("in place", "renamed", "truncated", "removed"), 10):
        old = Reader(t, there)
        known, wanted = piece(there, 3 * MiB, MiB), None
        t.ok(old.read(3 * MiB, MiB) == known, "%s: a piece is another one" % how)
        if how == "removed":
            os.unlink(there)
        elif how == "truncated":
            os.truncate(there, 35 * MiB)
        elif how == "renamed":
            os.rename(large(t, t.disk, "new", 40 * MiB, seed), there)
        else:
            large(t, top, "large", 40 * MiB, seed)
        got = old.read(30 * MiB, MiB)
        t.ok(got == "error 116", "%s: a reader got something of the new version: %s, %s" % (how, got, status(t)))
        t.ok(old.read(3 * MiB, MiB) == known, "%s: what was read is lost" % how)
        if how != "removed":
            wanted = digest(there)
            # While the old one is still open.
            t.bash("p", "sha256sum %s; stat -c %%s %s" % (there, there)).prints(
                wanted, "^%d$" % os.path.getsize(there))
            t.ok(old.read(3 * MiB, MiB) == known, "%s: the reader's version has changed" % how)
        t.ok(old.read(20 * MiB, MiB) == "error 116", "%s: a reader got something of the new version" % how)
        said = old.close()
        t.ok("at the origin while it was open" in said.err, "%s: no sentence: %s" % (how, said.err))
        t.fb("origin", "evict", "--pool", "p")
    # A change between two openings; one that the service hasn't seen because it was restarted.
    there = os.path.join(top, "other")
    t.bash("p", "head -c 10 %s > /dev/null" % there)
    t.ok(status(t)["partial_files"] == 1, status(t))
    large(t, top, "other", 40 * MiB, 21)
    t.bash("p", "sha256sum %s" % there).prints(digest(there))
    t.fb("origin", "evict", "--pool", "p")
    old = Reader(t, there)
    old.read(0, 1)
    kill(t.keeper("p"))
    large(t, top, "other", 40 * MiB, 22)
    t.fb("up", "--reopen", "--pool", "p")
    t.ok(old.read(30 * MiB, MiB) == "error 116", "a reader got something of the new version")
    t.bash("p", "sha256sum %s" % there).prints(digest(there))
    old.close()
    # What is removed in the pool can be read to its end by whoever has it open; its attributes may change.
    there = os.path.join(top, "removed")
    old, wanted = Reader(t, there), piece(there, 0, 40 * MiB)
    old.read(9 * MiB, 1)
    t.bash("p", "touch -d @5 %s; chmod 600 %s" % (there, there))
    t.fb("origin", "sync", "--pool", "p")
    t.ok(int(os.stat(there).st_mtime) == 5, "the origin didn't get the new time")
    old.read(17 * MiB, 1)
    t.bash("p", "mv %s %s/moved; rm %s/moved" % (there, top, top))
    t.ok(not os.path.exists(os.path.join(top, "moved")), "it is still at the origin")
    t.ok(old.read(0, 40 * MiB) == wanted, "a removed file can't be read by who has it open")
    old.close().quiet()
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def a_failing_origin_stops_only_reads_of_what_is_missing(t):
    with slow_origin(t) as slow:
        there = large(t, slow.source, "large")
        up(t, slow.at, *SMALL, "--origin-timeout", "2")
        path = os.path.join(slow.at, "large")
        reader = Reader(t, path)
        first, second = piece(there, 0, MiB), piece(there, 20 * MiB, MiB)
        t.ok(reader.read(0, MiB) == first, "a piece is another one")
        wait_until(lambda: slow.file("large")["bytes_read"] >= 2 * BLOCK, 5, "the block ahead")
        slow.fail(5, kinds=["read"])
        t.ok(reader.read(20 * MiB, MiB) == "error 5", "a failing origin was read")
        t.ok(reader.read(0, MiB) == first, "what is there can't be read")
        slow.heal()
        t.ok(reader.read(20 * MiB, MiB) == second, "it fails for ever")
        slow.die()
        began = time.monotonic()
        t.ok(reader.read(33 * MiB, MiB) == "error 110", "a dead origin was read")
        t.ok(1.5 < time.monotonic() - began < 6, "that took %.1f s" % (time.monotonic() - began))
        t.ok(reader.read(20 * MiB, MiB) == second, "what is there can't be read")
        slow.heal()
        t.ok(reader.read(33 * MiB, MiB) == piece(there, 33 * MiB, MiB), "it is dead for ever")
        said = reader.close().err
        t.ok("can't be read: input/output error" in said and "no progress for 2 s" in said, said)
        # The keeper dies while a program reads.
        t.fb("origin", "evict", "--pool", "p")
        slow.set(rate=40 * MiB)
        reading = t.start([t.forebay, "exec", "--pool", "p", "--", "sha256sum", path])
        wait_until(lambda: status(t)["partial_bytes"] > 0, 10, "the first bytes")
        kill(t.keeper("p"))
        t.fb("up", "--reopen", "--pool", "p")
        t.finish(reading, timeout=30).prints(digest(there))
        # What an earlier service has brought in can leave, too.
        t.fb("origin", "evict", "--pool", "p")
        slow.heal()
        reader = Reader(t, path)
        reader.read(0, 1)
        reader.close()
        kill(t.keeper("p"))
        t.fb("up", "--reopen", "--pool", "p")
        wait_until(lambda: status(t)["partial_files"] == 1, 5, "the partial file")
        t.fb("origin", "evict", "--pool", "p")
        t.ok(status(t)["partial_files"] == 0 and t.used("p") < 4 * MiB, status(t))
        t.bash("p", "sha256sum %s" % path).prints(digest(there))
        t.fb("down", "--pool", "p")


@case(60)
def ranges_in_a_full_pool(t):
    top = os.path.join(t.disk, "origin")
    paths = [large(t, top, "large%d" % i, 40 * MiB, i) for i in range(4)]
    up(t, top, *SMALL, media=("memory:48M",))
    # More than there is room for, a piece of each.
    for at in (0, 20):
        for path in paths:
            reader = Reader(t, path)
            t.ok(reader.read(at * MiB, MiB) == piece(path, at * MiB, MiB), "a piece of %s is another one" % path)
            reader.close().quiet()
    # While all are open, nothing can leave.
    readers = [Reader(t, path) for path in paths]
    got = [r.read(at * MiB, MiB) for at in (0, 20) for r in readers]
    t.ok("error 28" in got, "nobody was told that the pool is full")
    good = [piece(path, at * MiB, MiB) for at in (0, 20) for path in paths]
    t.ok(all(a in (b, "error 28") for a, b in zip(got, good)), "a piece is another one")
    t.ok(got[0] == good[0], "the first piece can't be read")
    for r in readers[1:]:
        r.close()
    t.ok(readers[0].read(20 * MiB, MiB) == good[4], "it stays full")
    readers[0].close()
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def ranges_on_several_nodes(t):
    top = os.path.join(t.disk, "origin")
    there = large(t, top, "large", 40 * MiB)
    up(t, top, "--nodes", "2", *SMALL, media=("memory:128M",))
    for node, at in (("1", 20), ("0", 22)):
        reader = Reader(t, there, "p", "--node", node)
        t.ok(reader.read(at * MiB, MiB) == piece(there, at * MiB, MiB), "node %s: a piece is another one" % node)
        s = status(t)
        t.ok((s["fetched_bytes"], s["partial_files"], s["dirty_files"]) == (BLOCK, 1, 0), "node %s: %s" % (node, s))
        reader.close().quiet()
    # All at once, and while the service is away.
    readers = [t.start([t.forebay, "exec", "--pool", "p", "--node", node, "--", "sha256sum", there]) for node in "0101"]
    for r in readers:
        t.finish(r).prints(digest(there))
    wait_until(lambda: status(t)["archived_files"] == 1, 5, "the file to be whole")
    t.ok(status(t)["fetched_bytes"] == 40 * MiB, status(t))
    t.fb("origin", "evict", "--pool", "p")
    reader = Reader(t, there, "p", "--node", "1")
    reader.read(0, 1)
    large(t, top, "large", 40 * MiB, 2)
    t.ok(reader.read(30 * MiB, MiB) == "error 116", "a reader got something of the new version")
    t.command([t.forebay, "exec", "--pool", "p", "--node", "1", "--", "sha256sum", there]).prints(digest(there))
    reader.close()
    t.fb("down", "--pool", "p")
