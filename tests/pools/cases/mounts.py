"""The FUSE face: mounts beside programs under `exec`, on the same files at the same time."""
import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from harness import Failed, Skipped, alive, case, kill, wait_until

# The same operations by hand, as the case's own process does them on the mount.
STATIC = r'''
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int n, char **v) {
    int fd = open(v[1], O_RDWR | O_CREAT | O_APPEND, 0644);
    return fd < 0 || write(fd, "static\n", 7) != 7 || close(fd);
}
'''


@contextlib.contextmanager
def mounted(t, pool, *options, name="mnt", rc=0):
    if not os.path.exists("/dev/fuse"):
        raise Skipped("there is no /dev/fuse")
    at = os.path.join(t.disk, name)
    os.makedirs(at, exist_ok=True)
    os.chmod(t.disk, 0o711)
    try:
        t.fb("mount", "--pool", pool, *options, at, rc=rc)
        yield at
    finally:
        # However it went: nothing may be left mounted below what is removed.
        subprocess.run(["umount", "-l", at] if os.getuid() == 0 else ["fusermount3", "-uz", at],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)


def servers(t, pool):
    """The processes that serve the mounts of a pool."""
    found = []
    for where, _, names in os.walk(t.pool_dir(pool)):
        if os.path.basename(where) == "mounts":
            found += [int(n) for n in names if n.isdigit()]
    return found


def the_server(t, pool):
    """The process that serves the only mount of a pool. Of one taken away before, it ends a moment later."""
    found = []

    def is_alone():
        found[:] = [s for s in servers(t, pool) if alive(s)]
        return len(found) == 1

    wait_until(is_alone, 10, "the end of the others that served mounts")
    return found[0]


@case(60)
def mount_beside_programs(t):
    t.up("p", media=("memory:256M",))
    with mounted(t, "p") as at:
        # Each face sees the other's changes at once.
        t.bash("p", "mkdir /fb/d; echo one > /fb/d/f; ln -s f /fb/d/s; setfattr -n user.k -v v /fb/d/f")
        f = os.path.join(at, "d", "f")
        with open(f) as opened:
            t.ok(opened.read() == "one\n", "what a program wrote isn't there")
            t.bash("p", "echo two >> /fb/d/f")
            t.ok(opened.read() == "two\n", "what a program appended isn't there")
            t.bash("p", "rm /fb/d/f")
            opened.seek(0)
            t.ok(opened.read() == "one\ntwo\n" and os.fstat(opened.fileno()).st_nlink == 0,
                 "a file that was removed while it was open is gone")
        t.ok(os.listdir(os.path.join(at, "d")) == ["s"], "the name is there still")
        with open(os.path.join(at, "new"), "w") as out:
            out.write("from the mount")
            out.flush()
            t.bash("p", "cat /fb/new").prints("^from the mount$")
        os.setxattr(os.path.join(at, "new"), "user.key", b"value")
        t.bash("p", "getfattr --only-values -n user.key /fb/new").prints("^value$")
        os.rename(os.path.join(at, "new"), os.path.join(at, "d", "moved"))
        t.bash("p", "ls /fb/d; stat -c '%s %h' /fb/d/moved").prints("^moved$", "^14 1$")
        os.truncate(os.path.join(at, "d", "moved"), 4)
        t.bash("p", "cat /fb/d/moved").prints("^from$")
        same = t.bash("p", "stat -c '%i %Y %Z %a' /fb/d /fb/d/moved").out
        seen = t.command(["stat", "-c", "%i %Y %Z %a", at + "/d", at + "/d/moved"]).out
        t.ok(same == seen, "stat differs: %s and %s" % (same, seen))
        # A static program, which nothing can be preloaded into.
        source = t.file(os.path.join(t.work, "s.c"), 0)
        with open(source, "w") as c:
            c.write(STATIC)
        t.command(["gcc", "-O1", "-static", "-o", at + "/static", source], timeout=30)
        t.command([at + "/static", at + "/by-static"])
        t.bash("p", "cat /fb/by-static; exec /fb/static /fb/by-static; true", rc=None)
        t.ok(open(at + "/by-static").read() == "static\n", "the static program's file differs")
        t.command(["df", at]).prints("forebay:p")
        server = the_server(t, "p")
        t.fb("status", "--pool", "p").prints("^mount +%s, served by process %d$" % (at, server))
        told = json.loads(t.fb("status", "--pool", "p", "--json").out)
        t.ok(told["mounts"] == [{"dir": at, "process": server}], told)
        # In use: reported, and not unmounted.
        with open(at + "/static"):
            t.fb("umount", at, rc=1).says("in use", "--lazy").one_line()
            t.fb("down", "--pool", "p", rc=1).says("mounted at", "busy|use").one_line()
        t.fb("mount", "--pool", "p", at, rc=1).says("mounted there", "forebay umount").one_line()
        t.fb("umount", at)
        t.fb("umount", at, rc=1).says("no pool is mounted there").one_line()
        t.ok(os.listdir(at) == [], "something is mounted still")
        t.fb("fsck", "--pool", "p")
        # One for reading only sees what changes, and changes nothing.
        t.fb("mount", "--pool", "p", "--read-only", at)
        t.bash("p", "echo changed > /fb/by-static")
        t.ok(open(at + "/by-static").read() == "changed\n", "a read-only mount shows what was")
        for change in (lambda: open(at + "/by-static", "r+"), lambda: os.mkdir(at + "/not-made"),
                       lambda: os.unlink(at + "/by-static"), lambda: os.utime(at)):
            try:
                change()
                t.ok(False, "a read-only mount lets something be changed")
            except OSError as e:
                t.ok(e.errno == errno.EROFS, "a read-only mount says %s" % e)
        t.fb("umount", at)
        # `down` unmounts unused mounts.
        t.fb("mount", "--pool", "p", at)
        t.fb("down", "--pool", "p")
        t.ok(os.listdir(at) == [], "the mount outlived its pool")
    t.nothing_left("after down")


# Two processes, one at each face, take turns on one file: each does something at random and says what it
# did; the other has to see it.
TURNS = '''
import hashlib, mmap, os, random, sys
path, seed, turns, me = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
r, model = random.Random(seed), bytearray()
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
def seen():
    size = os.fstat(fd).st_size
    data = os.pread(fd, size + 10, 0)
    assert len(data) == size, (len(data), size)
    return data
for turn in range(turns):
    op, at, n, byte = r.randrange(6), r.randrange(300000), r.randrange(1, 50000), r.randrange(1, 256)
    data = bytes([byte]) * n
    if turn % 2 == me:
        if op < 3: os.pwrite(fd, data, at)
        elif op == 3: os.ftruncate(fd, at)
        elif op == 4:
            f = os.open(path, os.O_WRONLY | os.O_APPEND); os.write(f, data); os.close(f)
        else: os.posix_fallocate(fd, at, n)
        print("done", turn, flush=True)
    if op < 3:
        if at > len(model): model.extend(bytes(at - len(model)))
        model[at:at + n] = data
    elif op == 3:
        model = model[:at] + bytes(max(0, at - len(model)))
    elif op == 4: model += data
    else: model += bytes(max(0, at + n - len(model)))
    if turn % 2 != me:
        assert sys.stdin.readline() == "done %d\\n" % turn
        got = seen()
        assert got == bytes(model), (turn, op, at, n, len(got), len(model))
# Not to the other one, which may have ended.
print("ok", hashlib.sha256(model).hexdigest(), file=sys.stderr)
'''


@case(60)
def mount_in_turns(t):
    t.up("p", media=("memory:256M",))
    with mounted(t, "p") as at:
        for seed in range(3):
            argv = [sys.executable, "-c", TURNS]
            words = [str(seed), "300"]
            to_mount, from_mount = os.pipe(), os.pipe()
            a = t.start([*argv, at + "/turns", *words, "0"], stdin=to_mount[0], stdout=from_mount[1])
            b = t.start([t.forebay, "exec", "--pool", "p", "--", *argv, "/fb/turns", *words, "1"],
                        stdin=from_mount[0], stdout=to_mount[1])
            for fd in (*to_mount, *from_mount):
                os.close(fd)
            for p in (a, b):
                t.ok(p.wait(30) == 0, "seed %d: %s" % (seed, p.stderr.read().decode()[-2000:]))
            os.unlink(at + "/turns")
        t.fb("fsck", "--pool", "p")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


# Mappings show the writes of the other face, and the other way round.
MAPPED = '''
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 8192)
print(m[0:1].decode(), flush=True)
for line in sys.stdin:
    want = line.strip().encode()
    end = time.monotonic() + 5
    while m[4096:4096 + len(want)] != want and time.monotonic() < end: time.sleep(0.001)
    print("sees" if m[4096:4096 + len(want)] == want else "misses", flush=True)
    m[0:len(want)] = want
    m.flush()
    print("wrote", flush=True)
'''


@case(60)
def mount_mapped(t):
    t.up("p", media=("memory:256M",))
    with mounted(t, "p") as at:
        path = at + "/mapped"
        t.bash("p", "printf 'x%.0s' $(seq 8192) > /fb/mapped")
        p = t.start([sys.executable, "-c", MAPPED, path], stdin=subprocess.PIPE)
        t.ok(p.stdout.readline() == b"x\n", "the mapping shows something else")
        for n in range(20):
            word = "turn%04d" % n
            t.bash("p", "printf %s | dd of=/fb/mapped bs=1 seek=4096 conv=notrunc status=none" % word)
            p.stdin.write(word.encode() + b"\n")
            p.stdin.flush()
            t.ok(p.stdout.readline() == b"sees\n", "turn %d: the mapping doesn't show it" % n)
            t.ok(p.stdout.readline() == b"wrote\n", "it didn't write")
            # After msync, everybody sees it.
            t.bash("p", "head -c 8 /fb/mapped").prints("^%s$" % word)
        t.finish(p, feed=b"")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


# One file, mapped through the mount, changed beside it and looked at through it at once: the kernel takes no size of
# before for the file's, nor does it write back what a cut has taken away.
SIZES = '''
import mmap, os, random, sys, time
beside, through, seed = sys.argv[1:4]
random.seed(int(seed))
p = os.open(beside, os.O_RDWR | os.O_CREAT)
os.truncate(p, 1 << 16)
fd = os.open(through, os.O_RDWR)
m = mmap.mmap(fd, 1 << 16)
began = time.monotonic()
end, n = began + 10, 0
while n < 3000 and time.monotonic() < end:
    n += 1
    m[0]                                    # There are pages to be told of.
    size = random.randrange(1, 1 << 20)
    os.truncate(p, size)
    if n % 3 == 0:
        time.sleep(random.random() / 300)
    while True:
        by_stat = os.fstat(fd).st_size if n % 2 else size
        by_seek = os.lseek(fd, 0, os.SEEK_END)
        held_up, began = time.monotonic() - began, time.monotonic()
        # The kernel may be forgetting pages by now; the next look has to be right.
        if by_stat == by_seek == size or held_up < 0.2: break
    assert by_stat == by_seek == size, "round %d: %d bytes, %d by stat, %d by seek" % (n, size, by_stat, by_seek)
m.close()

os.truncate(p, 32768)
m = mmap.mmap(fd, 32768)
m[20000] = 65
os.truncate(p, 5000)
end = time.monotonic() + 0.5                # The kernel is told meanwhile.
while time.monotonic() < end:
    assert os.fstat(p).st_size == 5000, "what was stored behind the cut has made it longer"
    time.sleep(0.01)
os.fsync(fd)
assert os.fstat(p).st_size == 5000, "fsync has made it longer"
'''


@case(60)
def mount_mapped_and_resized(t):
    t.up("p", media=("memory:64M",))
    with mounted(t, "p") as at:
        for seed in ("1", "2"):
            t.fb("exec", "--pool", "p", "--", sys.executable, "-c", SIZES, "/fb/f", at + "/f", seed, timeout=40)
        t.fb("fsck", "--pool", "p")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


# Takes a write lease on a file, says so, and gives it up some time after it is told to.
LEASES = """
import fcntl, os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for keeps in sys.argv[2:]:
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("has it", flush=True)
    assert signal.sigtimedwait([signal.SIGIO], 20), "nobody wants it"
    time.sleep(float(keeps))
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    print("gave it up", flush=True)
    sys.stdin.readline()
"""
OPENS = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDONLY))"


@case(60)
def mount_waits_for_leases(t):
    """An open through a mount waits for the owner of a lease under exec, unless told or killed."""
    t.up("p")
    with mounted(t, "p") as at:
        holder = t.start_python("p", LEASES, "/fb/f", "1", "3", stdin=subprocess.PIPE)
        t.ok(holder.stdout.readline() == b"has it\n", "no lease")
        try:
            os.close(os.open(at + "/f", os.O_RDONLY | os.O_NONBLOCK))
            raise Failed("it didn't have to wait")
        except OSError as e:
            t.ok(e.errno == errno.EAGAIN, "without a wait: %s" % e)
        began = time.monotonic()
        t.command([sys.executable, "-c", OPENS, at + "/f"])
        t.ok(time.monotonic() - began > 0.3, "it didn't wait")
        t.ok(holder.stdout.readline() == b"gave it up\n", "it was taken away")
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        t.ok(holder.stdout.readline() == b"has it\n", "no lease")
        # Killed while it waits, it goes at once.
        waits = t.start([sys.executable, "-c", OPENS, at + "/f"])
        time.sleep(0.7)
        t.ok(waits.poll() is None, "it doesn't wait")
        began = time.monotonic()
        waits.kill()
        waits.communicate(timeout=10)
        t.ok(time.monotonic() - began < 1.5, "it goes when the lease does")
        t.finish(holder, feed=b"\n")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


# A process that holds a lock, or wants one: on which file, of which kind, whether it waits.
LOCK = '''
import errno, fcntl, os, signal, struct, sys
path, kind, wait = sys.argv[1:4]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
class Alarm(Exception): pass
def alarm(*_): raise Alarm
signal.signal(signal.SIGALRM, alarm)
try:
    if wait == "wait": print("waits", flush=True)
    how = fcntl.LOCK_EX | (0 if wait == "wait" else fcntl.LOCK_NB)
    if kind == "flock": fcntl.flock(fd, how)
    elif kind == "posix": fcntl.lockf(fd, how, 10, 5)
    else:
        command = 38 if wait == "wait" else 37
        fcntl.fcntl(fd, command, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 5, 10, 0))
    print("has it", flush=True)
except BlockingIOError: print("in use", flush=True)
except Alarm: print("interrupted", flush=True)
if len(sys.argv) > 4: sys.stdin.readline()
'''


@case(90)
def mount_locks(t):
    t.up("p", media=("memory:64M",))
    with mounted(t, "p") as at:
        def start(face, kind, wait, *more, name="f"):
            inside = [t.forebay, "exec", "--pool", "p", "--"] if face == "exec" else []
            path = ("/fb" if face == "exec" else at) + "/" + name
            return t.start([*inside, sys.executable, "-c", LOCK, path, kind, wait, *more],
                           stdin=subprocess.PIPE)

        def start_waiting(face, kind, what):
            """It sleeps: behind the line that it prints, there is nothing else that it could wait for."""
            waiting = start(face, kind, "wait")
            t.ok(waiting.stdout.readline() == b"waits\n", what + ": it doesn't start")
            look = "/proc/%d/stat" % waiting.pid
            wait_until(lambda: all(open(look).read().rsplit(") ")[1][0] == "S" for _ in range(5)), 10, what + ": its sleep")
            return waiting

        for kind in ("flock", "posix", "ofd"):
            for holder in ("exec", "mount"):
                for other in ("exec", "mount"):
                    what = "%s, held by %s, wanted by %s" % (kind, holder, other)
                    h = start(holder, kind, "now", "hold")
                    t.ok(h.stdout.readline() == b"has it\n", what + ": it can't be had")
                    o = t.finish(start(other, kind, "now"))
                    t.ok(o.out == "in use\n", "%s: %s" % (what, o.out))
                    w = start_waiting(other, kind, what)
                    t.ok(w.poll() is None, what + ": it doesn't wait")
                    if other == "mount" and holder == "exec":
                        # Ctrl-C reaches a waiting process.
                        i = start_waiting(other, kind, what)
                        i.send_signal(signal.SIGALRM)
                        t.ok(t.finish(i).out == "interrupted\n", what + ": it can't be interrupted")
                        k = start_waiting(other, kind, what)
                        k.kill()
                        k.wait(5)
                    if kind == "ofd":
                        h.kill()
                    else:
                        h.stdin.write(b"\n")
                        h.stdin.flush()
                    t.ok(t.finish(w).out == "has it\n", what + ": who waits never gets it")
                    h.wait(5)
                    # The lock of a process that has ended is gone (a close reaches the mount's
                    # server a moment later).
                    def free():
                        return t.finish(start(holder, kind, "now")).out == "has it\n"
                    wait_until(free, 10, what + ": the end of the lock")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


@case(60)
def mount_killed(t):
    t.up("p", media=("memory:64M",))
    with mounted(t, "p") as at:
        opened = [open(os.path.join(at, "f%d" % n), "w") for n in range(20)]
        for f in opened:
            f.write("kept")
            f.flush()
        os.unlink(at + "/f0")
        server = the_server(t, "p")
        kill(server)
        wait_until(lambda: not alive(server), 5, "the server's death")
        t.fb("status", "--pool", "p").prints("^used by +nobody$", "^mount +%s, whose process is dead; .*umount --lazy" % at)
        try:
            os.stat(at + "/f1")
            raise Failed("a mount without a server answers")
        except OSError:
            pass
        for f in opened:
            with contextlib.suppress(OSError):
                f.close()
        # Others don't notice; what only it had open is given back.
        t.bash("p", "cat /fb/f1").prints("^kept$")
        t.fb("mount", "--pool", "p", at).says("dead")
        t.ok(open(at + "/f19").read() == "kept", "it isn't the same pool")
        wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 10, "a clean pool")
        t.ok(sorted(os.listdir(at)) == sorted("f%d" % n for n in range(1, 20)), "other names")
        # The pool goes with its users.
        user = open(at + "/f3")
        t.fb("down", "--pool", "p", "--force")
        with contextlib.suppress(OSError):
            user.close()
        t.ok(os.listdir(at) == [], "the mount outlived its pool")
    t.nothing_left("after down")


@case(60)
def mount_of_nodes(t):
    t.up("p", "--nodes", "3", media=("memory:64M",))
    with mounted(t, "p", "--node", "0", name="m0") as a, \
            mounted(t, "p", "--node", "2", name="m2") as b:
        t.fb("status", "--pool", "p").prints("^node 0: mounted at %s, served by process" % a,
                                             "^node 2: mounted at %s, served by process" % b)
        os.mkdir(a + "/d")
        for n in range(40):
            with open("%s/d/%d" % (a if n % 2 else b, n), "w") as f:
                f.write("file %d" % n)
        t.ok(sorted(os.listdir(a + "/d"), key=int) == [str(n) for n in range(40)], "names are missing")
        for n in range(40):
            for at in (a, b):
                t.ok(open("%s/d/%d" % (at, n)).read() == "file %d" % n, "file %d differs" % n)
        with open(a + "/log", "a") as x, open(b + "/log", "a") as y:
            for n in range(50):
                for f in (x, y):
                    f.write("line %d\n" % n)
                    f.flush()
        lines = open(b + "/log").read().splitlines()
        t.ok(lines == ["line %d" % (n // 2) for n in range(100)], "appends over each other: %s" % lines)
        for n in range(40):
            os.unlink("%s/d/%d" % (b, n))
        os.rmdir(a + "/d")
        t.ok(not os.path.exists(b + "/d"), "a removed directory is there")
        t.fb("fsck", "--pool", "p")
        t.fb("umount", a)
        t.fb("umount", b)
    t.fb("down", "--pool", "p")


# Executes commands on a mapping: "AT BYTE" stores, "sync" writes back, "AT" prints the byte.
STORES = '''
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 8192)
for line in sys.stdin:
    words = line.split()
    if words == ["sync"]:
        m.flush()
    elif len(words) == 2:
        m[int(words[0])] = int(words[1])
    print(m[int(words[0])] if words[0] != "sync" else "synced", flush=True)
'''


@case(60)
def mount_pages_of_two_nodes(t):
    """Two nodes store to one page through mounts: no store undoes another, and the same bytes are reported with both nodes."""
    t.up("p", "--nodes", "3", media=("memory:64M",))

    def store(process, what):
        process.stdin.write(what.encode() + b"\n")
        process.stdin.flush()
        return process.stdout.readline().strip().decode()

    def there(name, at):
        out = t.fb("exec", "--pool", "p", "--node", "0", "--", "od", "-An", "-tu1", "-v", "-j%d" % at, "-N1",
                   "/fb/" + name).out
        return int(out)

    with mounted(t, "p", "--node", "1", name="m1") as a, mounted(t, "p", "--node", "2", name="m2") as b:
        # The file of a third node, and that of one of both.
        for name, maker in (("third", "0"), ("own", "2")):
            t.fb("exec", "--pool", "p", "--node", maker, "--", "bash", "-c", "head -c 8192 /dev/zero > /fb/" + name)
            one, two = (t.start([sys.executable, "-c", STORES, "%s/%s" % (at, name)], stdin=subprocess.PIPE)
                        for at in (a, b))
            for process in (one, two):
                t.ok(store(process, "100") == "0" and store(process, "5000") == "0", "it isn't zero")
            for n in range(1, 6):
                # Both have the old page, and store to it before they are notified.
                store(one, "%d %d" % (100 + n, n))
                store(two, "%d %d" % (200 + n, n))
                store(two, "%d %d" % (5000 + n, n))
                for process in (one, two) if n % 2 else (two, one):
                    t.ok(store(process, "sync") == "synced", "msync failed")
                for at in (100 + n, 200 + n, 5000 + n):
                    t.ok(there(name, at) == n, "%s: what was stored at %d is lost" % (name, at))
            listed = t.fb("violations", "--pool", "p", "--json").json()
            t.ok(not [v for v in listed if v["path"] == "/" + name], "different bytes are reported: %s" % listed)
            # Each sees what the other stored.
            wait_until(lambda: store(one, "203") == "3" and store(two, "103") == "3", 5, "the other's stores are seen")
            # The same byte.
            store(two, "300 2")
            store(one, "300 1")
            store(one, "sync")
            store(two, "sync")
            t.ok(there(name, 300) == 2, "%s: the later store isn't there" % name)
            said = "the same bytes (300 to 301) were stored through a mapping on node 2 and changed on node 1"
            listed = t.fb("violations", "--pool", "p", "--json").json()
            found = [v for v in listed if v["path"] == "/" + name]
            t.ok(len(found) == 1 and found[0]["what"] == said and not found[0]["refused"], "reported: %s" % listed)
            logs = [open(os.path.join(where, "log")).read() for where, _, names in os.walk(t.pool_dir("p"))
                    if where.endswith("mounts") and "log" in names]
            t.ok(any("/fb/%s: %s" % (name, said) in log for log in logs), "no log has it: %s" % logs)
            for process in (one, two):
                t.finish(process, feed=b"")
        t.fb("fsck", "--pool", "p")
        t.fb("umount", a)
        t.fb("umount", b)
    t.fb("down", "--pool", "p")


@case(120)
def mount_large_directory(t):
    """A listing that is longer than any buffer, whole and without a stall of others."""
    t.up("p", media=("memory:1G",))
    n = 100000
    t.python("p", "import os\nos.mkdir('/fb/d')\n"
             "for n in range(%d): os.close(os.open('/fb/d/%%d' %% n, os.O_CREAT | os.O_WRONLY))" % n,
             timeout=60)
    with mounted(t, "p") as at:
        lister = t.start([sys.executable, "-c",
                          "import os, sys; print(len(set(os.listdir(sys.argv[1]))))", at + "/d"])
        slowest = 0
        while lister.poll() is None:
            began = time.monotonic()
            os.stat(at + "/d/77")
            slowest = max(slowest, time.monotonic() - began)
        r = t.finish(lister)
        t.ok(r.out == "%d\n" % n, "it has %s entries" % r.out)
        t.ok(slowest < 2, "others waited %.1f s" % slowest)
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


@case(60)
def mount_of_ordinary_user(t):
    if os.getuid() != 0:
        raise Skipped("everything here is done as an ordinary user")
    if not shutil.which("fusermount3"):
        raise Failed("fusermount3 is not installed (tests/install-packages installs it)")
    # A copy of the program where that user may start it.
    own = os.path.join(t.disk, "own")
    for d in (own, own + "/home", own + "/mnt"):
        os.mkdir(d)
        os.chown(d, 65534, 65534)
    for path in (t.forebay, t.preload):
        shutil.copy(path, own)
    os.chmod(t.disk, 0o711)
    # In its own mount namespace: here, /dev/fuse may be for root alone.
    r = t.command(["unshare", "--mount", "bash", "-c", ORDINARY, "bash", own], timeout=40,
                  env={"FOREBAY_HOME": own + "/home"})
    r.prints("^--suid and --dev are for root", "^mine$", "^owner 65534$", "^root is kept out$", "^mounted again$", "^gone$")


ORDINARY = r'''
set -e; cd "$1"
mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
does() { timeout 20 setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
does ./forebay up --media memory:64M
trap 'umount -l mnt 2> /dev/null || true; does ./forebay down --force 2> /dev/null || true' EXIT
does ./forebay mount --suid mnt 2>&1 | sed 's/.*: --/--/'
does ./forebay mount mnt
does bash -c 'cd mnt; echo mine > f; cat f; stat -c "owner %u" f'
ls mnt 2> /dev/null || echo "root is kept out"
does ./forebay umount mnt
does ./forebay mount --read-only mnt; does cat mnt/f; does touch mnt/f 2> /dev/null || echo "mounted again"
does ./forebay down
[ -z "$(ls mnt)" ] && echo gone
'''


@case(60)
def mount_copied_into_another_namespace(t):
    """A process with its own mount namespace, as a container has it, holds up nobody unless it uses the pool."""
    if os.getuid() != 0 or not shutil.which("unshare"):
        raise Skipped("mount namespaces need root and unshare(1)")
    apart = ["unshare", "--mount", "--propagation", "private", "bash", "-c"]
    for use, named in (("true", None), ("exec 9< {at}/f", "bash"), ("cd {at}", "bash")):
        t.up("p")
        t.bash("p", "echo x > /fb/f")
        with mounted(t, "p") as at:
            other = t.start([*apart, use.format(at=at) + "; echo; read"], stdin=subprocess.PIPE)
            other.stdout.readline()
            t.fb("umount", at)
            if named:
                t.fb("down", "--pool", "p", rc=1).says("another mount namespace", r"in use by %d .bash." % other.pid)
                t.finish(other, feed=b"\n", rc=None)
        began = time.monotonic()
        t.fb("down", "--pool", "p")
        t.ok(time.monotonic() - began < 4, "down took %.1f s" % (time.monotonic() - began))
        if not named:
            t.finish(other, feed=b"\n")


@case(30)
def mount_refused(t):
    t.up("p")
    t.fb("mount", "--pool", "p", os.path.join(t.disk, "nowhere"), rc=1).says(
        "nowhere", "No such file").one_line()
    plain = t.file(os.path.join(t.disk, "plain"), 10)
    r = t.fb("mount", "--pool", "p", plain, rc=1).says("plain: it is a link, or no directory; give an empty").one_line()
    t.ok("FOREBAY_HOME" not in r.err, r.told())
    t.fb("mount", "--pool", "other", t.disk, rc=None).says("other", "forebay up|no pool").one_line()
    t.fb("down", "--pool", "p")
