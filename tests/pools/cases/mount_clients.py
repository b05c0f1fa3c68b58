"""Mounts and the states of their clients: exec, ptrace, a core dump, a stop, their end. No thread that
answers the kernel waits for what a client may hold; a server that is stopped or killed blocks no process for
ever."""
import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time

from harness import Failed, Skipped, alive, case, kill, wait_until
from .mounts import mounted, the_server

# A process that inspects one that waits in exec hangs with it (the runner too, when it cleans up).
# So this process frees the mount after some seconds, whatever happened to the case: by the server's
# end, and by the kernel's own switch where that may be used.
FREES = '''
import os, sys, time
pid, minor, seconds = map(int, sys.argv[1:])
time.sleep(seconds)
os.kill(pid, 9)
with open("/sys/fs/fuse/connections/%d/abort" % minor, "w") as f: f.write("1")
'''


def minor_of(at):
    """The kernel's number of the connection, without a look at the mount."""
    with open("/proc/self/mountinfo") as f:
        for line in f:
            words = line.split()
            if words[4] == at:
                return int(words[2].split(":")[1])
    raise Failed("%s isn't mounted" % at)


def connections():
    """The directory where connections can be aborted, mounted if it may be; None if it can't be used."""
    where = "/sys/fs/fuse/connections"
    if os.getuid() == 0 and not os.listdir(where):
        subprocess.run(["mount", "-t", "fusectl", "fusectl", where], stderr=subprocess.DEVNULL)
    return where if os.getuid() == 0 and os.path.isdir(where) else None


@contextlib.contextmanager
def freed(t, pool, *options, seconds=40):
    """A mount that is freed by force in time; gives its directory and its server."""
    with mounted(t, pool, *options) as at:
        connections()
        server = the_server(t, pool)
        guard = subprocess.Popen([sys.executable, "-c", FREES, str(server), str(minor_of(at)), str(seconds)],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield at, server
        finally:
            guard.kill()
            guard.wait()


def look_at_all(t, what, seconds=10):
    """As `ps` does: it comes through."""
    look = ("import os\nfor p in os.listdir('/proc'):\n    if p.isdigit():\n        for f in ('stat', 'cmdline', 'status'):\n"
            "            try: open('/proc/%s/%s' % (p, f), 'rb').read()\n            except OSError: pass\n")
    p = subprocess.Popen([sys.executable, "-c", look], stdin=subprocess.DEVNULL)
    try:
        p.wait(seconds)
    except subprocess.TimeoutExpired:
        p.kill()
        raise Failed(what + ": who looks at all processes hangs")


def compiled(t, name, source, *options):
    path = os.path.join(t.disk, name)
    with open(path + ".c", "w") as c:
        c.write(source)
    t.command(["gcc", "-O1", *options, "-o", path, path + ".c"], timeout=30)
    return path


# Directory, rounds: files of the mount are closed by exec.
EXECS = r'''
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static char p[4096];
static const char *name(const char *dir, int i) { snprintf(p, sizeof p, "%s/f%d", dir, i); return p; }
int main(int n, char **v) {
    struct stat s;
    for (int i = 0; i < 50; i++) {
        int fd = open(name(v[1], i), O_CREAT | O_RDWR, 0644);
        if (fd < 0 || ftruncate(fd, 8192) || close(fd)) return 2;
    }
    for (int r = atoi(v[2]); r > 0; r--) {
        for (int i = 0; i < 50; i++) if (stat(name(v[1], i), &s)) return 3;
        pid_t child = fork();
        if (!child) {
            for (int i = 0; i < 50; i++) if (stat(name(v[1], i), &s)) _exit(4);
            for (int i = 0; i < 8; i++) {
                int fd = open(name(v[1], i), O_RDWR | O_CLOEXEC);
                if (fd < 0) _exit(5);
                struct flock l = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
                if (i < 3 && fcntl(fd, F_SETLK, &l)) _exit(6);
                if (i == 4) {
                    char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                    if (m == MAP_FAILED) _exit(7);
                    m[5000] = 'x';
                }
            }
            execl("/bin/true", "true", (char *)0);
            _exit(8);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) return 10 + WEXITSTATUS(status);
    }
    return 0;
}
'''


@case(60)
def mount_exec_loop(t):
    """exec waits for replies about the files that it closes, and a process that inspects it waits, too."""
    t.up("p")
    execs = compiled(t, "execs", EXECS)
    with freed(t, "p", seconds=30) as (at, _):
        # One alone (it was followed from core to core), then several at once.
        t.finish(t.start([execs, at, "60"]), timeout=25)
        os.mkdir(at + "/a")
        os.mkdir(at + "/b")
        both = [t.start([execs, at + "/" + d, "30"]) for d in "ab"]
        for p in both:
            look_at_all(t, "programs in exec")
        for p in both:
            t.finish(p, timeout=25)
        t.ok(open(at + "/f4", "rb").read(5001)[-1:] == b"x", "what was stored before exec is lost")
        t.fb("umount", at)
    t.fb("fsck", "--pool", "p")


# A file's path: stops its child at each entry and exit of system calls, 30 of each, and waits for a line each time.
TRACES = r'''
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int n, char **v) {
    pid_t child = fork();
    if (!child) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        int fd = open(v[1], O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10 };
        if (fd < 0 || fcntl(fd, F_SETLK, &l)) _exit(5);
        raise(SIGSTOP);
        struct stat s;
        for (int i = 0; i < 3; i++) if (stat(v[1], &s) || pwrite(fd, "traced", 6, 0) != 6 || ftruncate(fd, 100)) _exit(6);
        execl("/bin/true", "true", (char *)0);
        _exit(7);
    }
    int status, stops = 0;
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        if (stops++ < 30) {
            printf("%d\n", child);
            fflush(stdout);
            if (getchar() == EOF) break;
        }
        ptrace(PTRACE_SYSCALL, child, 0, 0);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
'''


def does_all(t, at, name):
    """One of each request, by this process: it is answered, whichever other process waits."""
    path = "%s/%s" % (at, name)

    def work():
        with open(path, "w") as f:
            f.write("text")
        os.stat(path)
        os.rename(path, path + "-2")
        t.ok(open(path + "-2").read() == "text" and name + "-2" in os.listdir(at), "other content")
        os.statvfs(at)
        os.unlink(path + "-2")

    in_time(work, 15, "the mount doesn't answer others")


def in_time(f, seconds, what):
    """Has a thread do it, for which nothing waits if it hangs."""
    result = []

    def work():
        try:
            result.append((f(), None))
        except BaseException as e:  # noqa: BLE001 (handed on below)
            result.append((None, e))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not result:
        raise Failed(what)
    value, error = result[0]
    if error is not None:
        raise error
    return value


@case(60)
def mount_traced_client(t):
    """A client that a debugger stops, at the entry and the exit of each call on the mount, blocks no other process."""
    t.up("p")
    traces = compiled(t, "traces", TRACES)
    with freed(t, "p") as (at, _):
        p = t.start([traces, at + "/traced"], stdin=subprocess.PIPE)
        for n in range(30):
            line = in_time(p.stdout.readline, 20, "the traced program doesn't go on")
            if not line:
                break
            does_all(t, at, "beside%d" % n)
            if n % 10 == 5:
                open("/proc/%d/stat" % int(line)).read()
            p.stdin.write(b"\n")
            p.stdin.flush()
        t.finish(p, feed=b"", timeout=20)
        t.ok(n > 10, "only %d stops" % n)
        t.ok(os.stat(at + "/traced").st_size == 100, "another size")
        t.fb("umount", at)
    t.fb("fsck", "--pool", "p")


# Holds what it can, then says so.
HOLDS = '''
import fcntl, mmap, os, sys
at = sys.argv[1]
os.chdir(at)
fd = os.open("held", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8192)
fcntl.flock(fd, fcntl.LOCK_EX)
other = os.open("ranges", os.O_RDWR | os.O_CREAT)
fcntl.lockf(other, fcntl.LOCK_EX, 10, 0)
m = mmap.mmap(fd, 8192)
m[4096:4100] = b"dirt"
os.listdir(".")
gone = os.open("gone", os.O_RDWR | os.O_CREAT)
os.unlink("gone")
print("holds", flush=True)
sys.stdin.readline()
m.flush()
os.write(gone, b"still")
print(os.path.getsize("held"), flush=True)
'''


@case(60)
def mount_stopped_client(t):
    """A client that is stopped with locks, dirty pages and its working directory on the mount."""
    import fcntl
    t.up("p")
    with freed(t, "p") as (at, _):
        def held():
            p = t.start([sys.executable, "-c", HOLDS, at], stdin=subprocess.PIPE)
            t.ok(p.stdout.readline() == b"holds\n", "it holds nothing")
            p.send_signal(signal.SIGSTOP)
            wait_until(lambda: open("/proc/%d/stat" % p.pid).read().rsplit(") ")[1][0] == "T", 10, "its stop")
            return p

        p = held()
        does_all(t, at, "beside")
        look_at_all(t, "a stopped client")
        with open(at + "/held", "r+") as f, open(at + "/ranges", "r+") as r:
            for lock in (lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB),
                         lambda: fcntl.lockf(r, fcntl.LOCK_EX | fcntl.LOCK_NB)):
                try:
                    in_time(lock, 10, "a lock that is held isn't refused")
                    raise Failed("a lock of a stopped process is given to another")
                except BlockingIOError:
                    pass
        # The pages that it has stored to are the kernel's, which can write them back without it.
        with open(at + "/held", "r+b") as f:
            in_time(lambda: os.fsync(f.fileno()), 15, "fsync waits for a stopped process")
        t.bash("p", "tail -c +4097 /fb/held | head -c 4").prints("^dirt$")
        p.send_signal(signal.SIGCONT)
        t.ok(t.finish(p, feed=b"\n").out == "8192\n", "it has lost something")
        # A process that is killed while it is stopped releases everything.
        p = held()
        p.kill()
        p.wait(10)

        def free():
            with open(at + "/held") as f:
                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    return False
        wait_until(free, 10, "the end of a killed process's lock")
        t.fb("umount", at)
    t.fb("fsck", "--pool", "p")


@case(60)
def mount_programs(t):
    """Programs that lie on the mount are executed from it, many at once, also while they are written; they may
    dump core there."""
    t.up("p", media=("memory:128M",))
    execs = compiled(t, "execs", EXECS)
    with freed(t, "p") as (at, _):
        t.command(["cp", "/bin/true", "/bin/cat", at])
        t.command(["cp", execs, at + "/execs"])
        with open(at + "/script", "w") as f:
            f.write("#!%s/cat\nline\n" % at)
        os.chmod(at + "/script", 0o755)
        t.command([at + "/script"]).prints("^line$")
        loop = "cd %s && for i in $(seq 40); do ./true || exit 1; [ \"$(./script | tail -1)\" = line ] || exit 2; done" % at
        storm = [t.start(["bash", "-c", loop]) for _ in range(4)]
        os.mkdir(at + "/d")
        storm.append(t.start([at + "/execs", at + "/d", "10"]))
        look_at_all(t, "programs of the mount")
        for p in storm:
            t.finish(p, timeout=30)
        # Many children at once, each with its own files.
        fork = ("import os, sys\nos.chdir(sys.argv[1])\nfor n in range(150):\n    if not os.fork():\n"
                "        try:\n            f = os.open('s%d' % n, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC); os.write(f, b'x')\n"
                "            os.rename('s%d' % n, 't%d' % n)\n            os.execl('./true', 'true')\n"
                "        finally: os._exit(3)\n"
                "bad = [s for s in (os.wait()[1] for _ in range(150)) if s]\nsys.exit(len(bad))\n")
        t.finish(t.start([sys.executable, "-c", fork, at]), timeout=30)
        t.ok(len([n for n in os.listdir(at) if n[0] == "t" and n[1:].isdigit()]) == 150, "files are missing")
        # A core dump with the working directory on the mount: by the kernel, in the dying process.
        dump = "import os, resource, signal, sys\nos.chdir(sys.argv[1])\n" \
               "resource.setrlimit(resource.RLIMIT_CORE, (1 << 24, 1 << 24))\nos.kill(os.getpid(), signal.SIGABRT)"
        if resource.getrlimit(resource.RLIMIT_CORE)[1] in (resource.RLIM_INFINITY, 1 << 24):
            p = t.start([sys.executable, "-c", dump, at])
            t.finish(p, rc=-signal.SIGABRT, timeout=25)
            with open("/proc/sys/kernel/core_pattern") as f:
                pattern = f.read().strip()
            if not pattern.startswith(("|", "/", "@")):
                cores = [n for n in os.listdir(at) if n.startswith(pattern.split("%")[0])]
                t.ok(cores and os.path.getsize(at + "/" + cores[0]) > 4096, "no core: %s" % os.listdir(at))
        t.fb("umount", at)
    t.fb("fsck", "--pool", "p")


@case(60)
def mount_stopped_server(t):
    """Clients of a server that is stopped wait, and go on with it; when it is killed, they get an error at once."""
    t.up("p")
    with freed(t, "p", seconds=50) as (at, server):
        # A directory that isn't below the mount.
        os.mkdir(at + "/sub")
        with open(at + "/sub/f", "w") as f:
            f.write("before")

        def stop():
            os.kill(server, signal.SIGSTOP)
            wait_until(lambda: open("/proc/%d/stat" % server).read().rsplit(") ")[1][0] == "T", 10, "its stop")

        def clients():
            each = ["cat f", "echo x >> g", "stat f", "mkdir d$$", "flock f true"]
            return [t.start(["bash", "-c", "cd %s/sub && %s" % (at, c)]) for c in each]

        stop()
        waiting = clients()
        time.sleep(0.3)
        t.ok([p for p in waiting if p.poll() is None] == waiting, "somebody is answered by nobody")
        look_at_all(t, "clients of a stopped server")
        os.kill(server, signal.SIGCONT)
        for p in waiting:
            t.finish(p)
        stop()
        waiting = clients()
        time.sleep(0.3)
        # As an ordinary user may do it, too.
        t.fb("umount", "--force", at)
        for p in waiting:
            t.ok(t.finish(p, rc=None).rc != 0, "it can't have been answered")
        look_at_all(t, "clients of a killed server")
        t.ok(not alive(server) and os.listdir(at) == [], "it is mounted still")
        t.bash("p", "cat /fb/sub/f").prints("^before$")
        wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 10, "a clean pool")
        # Killed, with clients in the middle and files open.
        t.fb("mount", "--pool", "p", at)
        server = the_server(t, "p")
        # (Not by this process: each program that it starts would close the file in exec, and wait.)
        read = "import os, sys\nf = os.open(sys.argv[1], os.O_RDONLY)\nprint('open', flush=True)\nsys.stdin.readline()\n" \
               "try: print(os.read(f, 9))\nexcept OSError as e: print(e.errno)"
        reader = t.start([sys.executable, "-c", read, at + "/sub/f"], stdin=subprocess.PIPE)
        t.ok(reader.stdout.readline() == b"open\n", "a file can't be opened")
        stop()
        waiting = clients()
        kill(server)
        for p in waiting:
            t.ok(t.finish(p, rc=None).rc != 0, "it can't have been answered")
        said = t.finish(reader, feed=b"\n").out.strip()
        t.ok(said in map(str, (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)), "a read says " + said)
        look_at_all(t, "clients of a killed server")
        t.fb("umount", "--force", at)
        wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 10, "a clean pool")


# Has files open in all ways, and a lock that another one waits for; then waits.
OPENS = '''
import fcntl, mmap, os, sys
os.chdir(sys.argv[1])
fds = [os.open("f%d" % n, os.O_RDWR | os.O_CREAT) for n in range(20)]
for fd in fds: os.write(fd, b"kept")
os.unlink("f0")
d = os.open(".", os.O_RDONLY)
os.listdir(d)
m = mmap.mmap(fds[3], 4)
fcntl.flock(fds[1], fcntl.LOCK_EX)
fcntl.lockf(fds[2], fcntl.LOCK_EX)
if not os.fork():
    os.close(fds[1])
    other = os.open("f1", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    os._exit(0)
print("open", flush=True)
sys.stdin.readline()
'''


@case(60)
def mount_aborted(t):
    """However a mount ends while it is used, no table counts users that are gone."""
    ways = ["term", "lazy", "kill"]
    t.up("p")
    with freed(t, "p", seconds=50) as (at, _):
        t.fb("umount", at)
        if connections():
            ways.insert(0, "abort")
        for way in ways:
            t.fb("mount", "--pool", "p", at)
            server = the_server(t, "p")
            p = t.start([sys.executable, "-c", OPENS, at], stdin=subprocess.PIPE)
            t.ok(p.stdout.readline() == b"open\n", way + ": it can't open its files: " + str(p.poll()))
            time.sleep(0.1)
            if way == "abort":
                with open("%s/%d/abort" % (connections(), minor_of(at)), "w") as f:
                    f.write("1")
            elif way == "term":
                kill(server, signal.SIGTERM)
            elif way == "lazy":
                t.fb("umount", "--lazy", at)
                p.kill()
            else:
                kill(server)
            wait_until(lambda: not alive(server), 10, "%s: the end of the server" % way)
            p.kill()
            p.wait(5)
            t.fb("umount", "--force", at, rc=None)
            wanted = "its traces are gone"
            if way == "kill":
                # That needs a process that cleans up behind the dead.
                wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 10, "%s: %s" % (way, wanted))
            t.check(way, t.fb, "fsck", "--pool", "p")
            t.bash("p", "cat /fb/f1; ls /fb/f0 2> /dev/null || echo removed").prints("^kept", "removed$")
            t.bash("p", "rm /fb/f*")
    t.fb("down", "--pool", "p")


# Uses a mount in all ways while its server has no more addresses (RLIMIT_AS) than it uses, and some KiB. Every
# error is one of lack of memory; what is lacked is given back at the end.
LACKS = """
import errno, fcntl, mmap, os, resource, sys, threading
at, server, more = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LACK = (errno.ENOMEM, errno.ENOLCK)
hard = resource.prlimit(server, resource.RLIMIT_AS)[1]
held = [os.open("%s/old%d" % (at, n), os.O_RDWR) for n in range(10)]
mapped = mmap.mmap(held[0], 5000)
big = os.open(at + "/big", os.O_RDWR | os.O_CREAT)
os.ftruncate(big, 4 << 20)
whole = mmap.mmap(big, 4 << 20)
assert whole[:] == bytes(4 << 20)
with open("/proc/%d/statm" % server) as f:
    used = int(f.read().split()[0]) * 4096
resource.prlimit(server, resource.RLIMIT_AS, (used + more * 1024, hard))
done, lacked, wrong, kept = [0], [0], [], []
# Written back in large pieces, which are compared with what was there: copies of them.
whole[:] = b"w" * (4 << 20)
whole.flush()

def trying(f, *a):
    try:
        r = f(*a)
        done[0] += 1
        return r
    except OSError as e:
        lacked[0] += 1
        # What couldn't be made doesn't exist.
        if e.errno not in LACK and not (e.errno == errno.ENOENT and f in (os.unlink, os.rmdir)):
            wrong.append((f.__name__, e.errno))

def use(t):
    for i in range(12):
        name = "%s/n%d-%d" % (at, t, i)
        body = bytes([t * 12 + i + 1]) * (1 << 20)
        fd = trying(os.open, name, os.O_RDWR | os.O_CREAT)
        if fd is not None:
            n = trying(os.write, fd, body)
            trying(os.fsync, fd)
            got = trying(os.pread, fd, 1 << 20, 0)
            if got is not None and got != body[:n or 0]:
                wrong.append(("pread", len(got), n))
            trying(fcntl.flock, fd, fcntl.LOCK_EX)
            trying(fcntl.lockf, fd, fcntl.LOCK_EX, 10)
            trying(os.close, fd)
            if i == 0 and n == len(body):
                kept.append((name, body))
        names = trying(os.listdir, at)
        if names is not None and not {"old%d" % n for n in range(40)} <= set(names):
            wrong.append(("listdir", len(names)))
        trying(os.stat, "%s/old%d" % (at, i))
        if i:
            trying(os.unlink, name)
        for h in held:
            trying(os.pread, h, 5000, 0)
        trying(os.mkdir, name + "d")
        trying(os.rmdir, name + "d")
        trying(os.setxattr, "%s/old1" % at, "user.a%d" % i, b"x" * 3000)
        trying(os.listxattr, "%s/old1" % at)
        trying(os.statvfs, at)

def lock():
    # All for the same file: they wait for each other.
    fd = trying(os.open, at + "/old5", os.O_RDWR)
    for _ in range(5 if fd is not None else 0):
        if trying(fcntl.flock, fd, fcntl.LOCK_EX) is None:
            trying(os.stat, at + "/old6")
        trying(fcntl.flock, fd, fcntl.LOCK_UN)

threads = [threading.Thread(target=use, args=(t,)) for t in range(12)]
threads += [threading.Thread(target=lock) for _ in range(12)]
for t in threads: t.start()
for t in threads: t.join()
assert os.path.exists("/proc/%d" % server), "the server has ended"
resource.prlimit(server, resource.RLIMIT_AS, (hard, hard))
assert not wrong, wrong[:20]
# With memory all goes on, and what was acknowledged is there.
mapped[0] = 65
mapped.flush()
for name, body in kept:
    with open(name, "rb") as f:
        assert f.read() == body, name
assert os.pread(big, 4 << 20, 0) == b"w" * (4 << 20)
with open(at + "/after", "w") as f: f.write("it goes on")
print(done[0], "done,", lacked[0], "lacked,", len(kept), "kept")
"""


@case(60)
def mount_without_memory(t):
    """A mount's server that gets no memory refuses what it can't serve, and goes on."""
    if resource.getpagesize() != 4096:
        raise Skipped("sizes are counted in pages of 4096 bytes")
    t.up("p", media=("memory:150M",))
    # How much it takes until something fails differs with the moment: nothing, a stack, a stack and half a buffer, ...
    for more in (0, 700, 1000, 1800, 4000):
        with mounted(t, "p", name="m%d" % more) as at:
            server = the_server(t, "p")
            for n in range(40):
                with open("%s/old%d" % (at, n), "wb") as f:
                    f.write(b"x" * 5000)
            print(more, t.command([sys.executable, "-c", LACKS, at, str(server), str(more)], timeout=30).out.strip())
            t.ok(alive(server), "the server has ended with %d KiB more" % more)
            t.ok(open(at + "/after").read() == "it goes on", "the mount doesn't go on")
            t.fb("umount", at)
        t.bash("p", "cat /fb/after; head -c 1 /fb/old0; rm -f /fb/*").prints("^it goes onA$")
    wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 10, "a clean pool")


# Writes what the kernel shares with each process (its clock), which no other may pin: perf's buffer is such memory.
KERNELS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
with open("/proc/self/maps") as f:
    (where, *_) = [line.split("-")[0] for line in f if "[vvar" in line] + [None]
if where is None:
    print("none")
    sys.exit()
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    n = libc.write(fd, ctypes.c_void_p(int(where, 16)), ctypes.c_size_t(512))
    error = ctypes.get_errno() if n < 0 else 0
    # After that it takes what it is given, as before.
    os.write(fd, b"more")
    print(n, error, os.fstat(fd).st_size)
"""


@case(30)
def mount_writes_from_kernel_memory(t):
    """As documented in docs/reference/limits.md: EFAULT by a mount, with nothing written; it works under `exec`."""
    outside = t.command([sys.executable, "-c", KERNELS, os.path.join(t.disk, "x")]).out.strip()
    if outside != "512 0 516":
        raise Skipped("there is no such memory here: " + outside)
    t.up("p")
    t.command([t.forebay, "exec", "--pool", "p", "--", sys.executable, "-c", KERNELS, "/fb/x"]).prints("^512 0 516$")
    with mounted(t, "p") as at:
        t.command([sys.executable, "-c", KERNELS, at + "/y"]).prints("^-1 %d 4$" % errno.EFAULT)
        t.fb("umount", at)


def wait_until_kept(t, server, paths):
    """Long enough that the kernel keeps these names (from Linux 6.2 on)."""
    def look():
        for path in paths:
            with contextlib.suppress(OSError):
                os.stat(path)

    # The number of requests proves nothing while attributes are read each time.
    until = time.monotonic() + 1
    while time.monotonic() < until:
        look()


# Does each line of its input, says that it has.
DOES = '''
import os, sys
os.chdir("/fb")
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
'''


@case(60)
def mount_keeps_names(t):
    """While the mount alone uses the pool, the kernel caches names and attributes; changes of others are seen
    when they are done."""
    t.up("p")
    with freed(t, "p", seconds=50) as (at, server):
        def path(name):
            return os.path.join(at, name)

        def size(name):
            return os.stat(path(name)).st_size

        os.makedirs(path("d/e"))
        for name in ("f", "g", "d/e/f"):
            with open(path(name), "w") as f:
                f.write("one")
        os.symlink("f", path("s"))
        held = os.open(path("g"), os.O_RDONLY)
        names = ["f", "g", "d", "d/e", "d/e/f", "none", "d/none"]
        changes = (
            # The first of each is the first operation of a program.
            [("open('none', 'w').write('xx')", lambda: size("none") == 2),
             ("os.unlink('f')", lambda: not os.path.exists(path("f")) and not os.path.exists(path("s"))),
             ("open('f', 'w').write('four')", lambda: size("f") == size("s") == 4),
             ("os.chmod('g', 0o600)", lambda: os.fstat(held).st_mode & 0o777 == 0o600),
             ("os.link('g', 'd/none')", lambda: os.fstat(held).st_nlink == 2 and size("d/none") == 3)],
            [("open('g', 'a').write('more')", lambda: os.fstat(held).st_size == size("g") == 7),
             ("os.rename('d/e', 'd/x')", lambda: size("d/x/f") == 3 and not os.path.exists(path("d/e"))),
             ("os.mkdir('d/e')", lambda: os.listdir(path("d/e")) == [] and os.stat(path("d")).st_nlink == 4)],
            [("os.rename('d', 'z')", lambda: not os.path.exists(path("d/x/f")) and size("z/x/f") == 3),
             ("os.truncate('g', 1)", lambda: os.fstat(held).st_size == 1),
             ("os.replace('f', 'g')", lambda: size("g") == 4 and os.fstat(held).st_nlink == 1)],
        )
        for program in changes:
            wait_until_kept(t, server, [path(n) for n in names])
            os.fstat(held)
            p = t.start([t.forebay, "exec", "--pool", "p", "--", sys.executable, "-c", DOES], stdin=subprocess.PIPE)
            for change, is_seen in program:
                for name in names:
                    with contextlib.suppress(OSError):
                        os.stat(path(name))
                p.stdin.write(change.encode() + b"\n")
                p.stdin.flush()
                t.ok(p.stdout.readline() == b"done\n", "it isn't done: " + change)
                t.ok(is_seen(), "the mount doesn't show it: " + change)
            t.finish(p, feed=b"")
        # Others have a mount, too.
        wait_until_kept(t, server, [path("g")])
        with mounted(t, "p", name="second") as second:
            with open(second + "/g", "a") as f:
                f.write("12345")
            t.ok(size("g") == 9, "a mount doesn't show what was done through another one")
            os.unlink(path("g"))
            t.ok(not os.path.exists(second + "/g"), "a mount shows what was removed through another one")
            t.fb("umount", second)
        os.close(held)
        t.fb("umount", at)
    t.fb("fsck", "--pool", "p")


# One changes a directory and a file and looks at once; others look all the time.
CHANGES = '''
import os, sys, threading
at, seconds = sys.argv[1], float(sys.argv[2])
os.chdir(at)
os.mkdir("dir"); open("file", "w").write("x")
over = False
def look():
    while not over:
        for name in ("dir", "file", "moved"):
            try: os.stat(name)
            except FileNotFoundError: pass
others = [threading.Thread(target=look) for _ in range(3)]
for o in others: o.start()
import time
end, n, ctime = time.monotonic() + seconds, 0, 0
def check(what, is_so): assert is_so, "round %d: %s" % (n, what)
try:
    while time.monotonic() < end:
        n += 1
        os.mkdir("dir/%d" % n)
        check("mkdir", os.stat("dir").st_nlink == 3)
        os.rmdir("dir/%d" % n)
        check("rmdir", os.stat("dir").st_nlink == 2)
        os.link("file", "link%d" % n)
        check("link", os.stat("file").st_nlink == 2)
        os.unlink("link%d" % n)
        check("unlink", os.stat("file").st_nlink == 1)
        os.chmod("file", 0o600 + n % 64)
        check("chmod", os.stat("file").st_mode & 0o777 == 0o600 + n % 64)
        os.truncate("file", n % 1000)
        check("truncate", os.stat("file").st_size == n % 1000)
        with open("file", "r+b", 0) as f:
            f.write(bytes(1000 + n % 100))
            check("write", os.stat("file").st_size == 1000 + n % 100)
        os.utime("file", (n, n))
        check("utime", os.stat("file").st_mtime == n)
        os.rename("file", "moved")
        check("rename", not os.path.exists("file") and os.path.exists("moved"))
        os.rename("moved", "file")
        for _ in range(n % 4): os.stat("file"), os.stat("dir")
finally:
    over = True
for o in others: o.join()
print(n)
'''


@case(60)
def mount_keeps_nothing_old(t):
    """Changes through a mount while others look: no old reply stays cached."""
    t.up("p")
    with freed(t, "p") as (at, server):
        wait_until_kept(t, server, [at + "/none"])
        t.finish(t.start([sys.executable, "-c", CHANGES, at, "3"]), timeout=30)
        t.fb("umount", at)
    t.fb("fsck", "--pool", "p")
