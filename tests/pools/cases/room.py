"""Memory and disks that others fill: what there isn't is ENOSPC, never a signal; and what isn't
needed any more is given back."""
import os
import re
import subprocess
import sys
import time

from harness import Skipped, case, wait_until

# Runs in its own mount namespace: sys.argv is the program, then a directory that becomes a tmpfs of
# that many MiB.
PRELUDE = r'''
import errno, json, os, random, subprocess, sys, threading, time
forebay, top, size = sys.argv[1:4]
os.makedirs(top, exist_ok=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=%sm" % size, "tmpfs", top], check=True)

def fb(*arguments, rc=0, **more):
    done = subprocess.run([forebay, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, timeout=30, universal_newlines=True, **more)
    assert rc is None or done.returncode == rc, (
        arguments[:3], done.returncode, done.stdout[-500:], done.stderr[-1000:])
    return done

def fill(path):
    """Takes all that is left of the tmpfs, to the last page."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    at, step = 0, 64 << 20
    while step >= 4096:
        try:
            os.posix_fallocate(fd, at, step)
            at += step
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
            step //= 2
    os.close(fd)
'''


def in_namespace(t, script, size, *arguments, timeout=40, home=None, **more):
    """Runs a script behind PRELUDE, with a tmpfs of `size` MiB."""
    if os.getuid() != 0:
        raise Skipped("mounting a tmpfs needs root")
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run(unshare + ["true"], stderr=subprocess.DEVNULL).returncode:
        raise Skipped("there can't be another mount namespace here")
    top = os.path.join(t.base, "small")
    return t.command(unshare + [sys.executable, "-c", PRELUDE + script, t.forebay, top, str(size),
                                *map(str, arguments)],
                     timeout=timeout, env={"FOREBAY_HOME": home or os.path.join(top, "home")}, **more)


# The actions of the programs while others take all memory. Each error must be one of lack of room.
BUSY = r'''
import errno, fcntl, mmap, os, random, resource, sys, time
me, until = sys.argv[1], time.monotonic() + float(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
random.seed(int(me))
LACK = (errno.ENOSPC, errno.ENOLCK, errno.ENOMEM, errno.EAGAIN, errno.ENFILE)
lacked = done = 0

def trying(f, *a):
    global lacked, done
    try:
        r = f(*a)
        done += 1
        return r
    except OSError as e:
        if e.errno not in LACK and not (e.errno == errno.ENOENT and f is os.unlink):
            raise
        lacked += 1

def child():
    for n in range(5):
        fd = trying(os.open, "/fb/c%s-%d" % (me, n), os.O_RDWR | os.O_CREAT, 0o600)
        if fd is not None:
            trying(os.write, fd, b"c" * 3000)

def once(n):
    fds = []
    for k in range(random.choice([3, 80])):
        fd = trying(os.open, "/fb/f%s-%d" % (me, (n + k) % 500), os.O_RDWR | os.O_CREAT, 0o600)
        if fd is not None:
            fds.append(fd)
    for fd in fds[:20]:
        trying(os.pwrite, fd, bytes([n % 255 + 1]) * random.choice([10, 5000, 150000]), 0)
        trying(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, random.randrange(1000))
    for fd in fds[:3]:
        size = os.fstat(fd).st_size
        if size:
            m = trying(mmap.mmap, fd, size)
            if m:
                m[0] = m[size - 1] = 7
                m.close()
    if fds:
        trying(fcntl.fcntl, fds[0], fcntl.F_DUPFD, random.randrange(1000, 8000))
    if n % 5 == 0:
        pid = trying(os.fork)
        if pid == 0:
            os._exit(child() or 0)
        if pid:
            status = os.waitpid(pid, 0)[1]
            assert status == 0, "the child ended with %d" % status
    os.closerange(3, 8192)
    for k in range(random.choice([0, 30])):
        trying(os.unlink, "/fb/f%s-%d" % (me, random.randrange(500)))

n = 0
while time.monotonic() < until:
    once(n)
    n += 1
print(done, lacked)
'''

FULL_SHM = r'''
busy = sys.argv[4]
fb("up", "--pool", "p", "--media", "memory:48M", "--reserve", "2M")
over = threading.Event()
def neighbour():
    random.seed(1)
    while not over.is_set():
        fill(top + "/neighbour")
        time.sleep(random.choice([0.001, 0.02, 0.1]))
        os.unlink(top + "/neighbour")
        time.sleep(random.choice([0, 0.001, 0.01]))
thread = threading.Thread(target=neighbour)
thread.start()
# New programs come all the time: each has a new place in the tables.
lacked = done = 0
until = time.monotonic() + 4
serial = 0
try:
    while time.monotonic() < until:
        all = []
        for _ in range(3):
            serial += 1
            all.append(subprocess.Popen(
                [forebay, "exec", "--pool", "p", "--", sys.executable, "-c", busy, str(serial), "0.4"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True))
        for p in all:
            out, err = p.communicate(timeout=30)
            assert p.returncode == 0, "a program ended with %d: %s" % (p.returncode, err[-1500:])
            done, lacked = done + int(out.split()[0]), lacked + int(out.split()[1])
finally:
    over.set()
    thread.join()
assert done > 100 and lacked > 20, (done, lacked)
assert json.loads(fb("status", "--pool", "p", "--json").stdout)["keeper"], "the keeper died"
# As if nothing had happened.
fb("fsck", "--pool", "p")
fb("exec", "--pool", "p", "--", "bash", "-c", "cd /fb; rm -f *; head -c 20000000 /dev/zero > z; cmp -n 20000000 z /dev/zero")
fb("fsck", "--pool", "p")
fb("down", "--pool", "p")
'''


@case(60)
def full_shared_memory(t):
    """Another process fills /dev/shm again and again: programs get ENOSPC, none gets SIGBUS."""
    in_namespace(t, FULL_SHM, 96, BUSY)


# A disk is filled when a pool of `files` media has something in it. Names that come and go need
# more than one generation of the journal; then all is removed.
FULL_DISK = r'''
os.mkdir(top + "/disk")
fb("up", "--pool", "p", "--media", "files:%s/disk:64M" % top)
fb("exec", "--pool", "p", "--", "bash", "-c",
   "cd /fb; head -c 30000000 /dev/urandom > big; head -c 3000000 /dev/urandom > cut; sha256sum cut > sum; mkdir d; for i in $(seq 300); do echo $i > d/$i; done")
fill(top + "/neighbour")
churn = """
import errno, os
for n in range(12000):
    try:
        os.close(os.open("/fb/d/x" + "y" * 200, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
        continue
    name = "/fb/d/x" + "y" * 200
    try:
        os.rename(name, "/fb/d/z" + "y" * 200)
        name = "/fb/d/z" + "y" * 200
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
    os.unlink(name)
os.truncate("/fb/cut", 1000000)
os.truncate("/fb/cut", 10)
os.unlink("/fb/big")
for n in range(1, 290):
    os.unlink("/fb/d/%d" % n)
"""
fb("exec", "--pool", "p", "--", sys.executable, "-c", churn)
# What the pool doesn't need any more is free on the disk again.
until = time.monotonic() + 20
def free():
    s = os.statvfs(top)
    return s.f_bavail * s.f_frsize
while free() < 20 << 20:
    assert time.monotonic() < until, "only %d bytes of the disk are free again" % free()
    time.sleep(0.1)
fill(top + "/neighbour2")
fb("exec", "--pool", "p", "--", "bash", "-c", "cd /fb; rm -r d/29*; sync; test $(stat -c %s cut) = 10; ls d | wc -l | grep -qx 1")
def leave():
    os.unlink(top + "/neighbour")
    os.unlink(top + "/neighbour2")
if sys.argv[4] == "shared":
    leave()
fb("fsck", "--pool", "p")
# From what is on the disk, without memory.
status = json.loads(fb("status", "--pool", "p", "--json").stdout)
os.kill(status["keeper"], 9)
time.sleep(0.2)
subprocess.run(["rm", "-rf", status["dir"]], check=True)
fb("up", "--pool", "p", "--reopen", "--from", top + "/disk")
fb("exec", "--pool", "p", "--", "bash", "-c", "cd /fb; test $(stat -c %s cut) = 10; test ! -e big; ls d | wc -l | grep -qx 1; rm cut")
fb("fsck", "--pool", "p")
if sys.argv[4] == "apart":
    leave()
    fb("exec", "--pool", "p", "--", "bash", "-c", "cd /fb; for i in $(seq 300); do echo $i > d/$i; done; head -c 20000000 /dev/zero > z")
fb("down", "--pool", "p")
'''


@case(60)
def full_disk(t):
    """A full disk under a pool of `files` media: removals work, and what is removed is given back."""
    in_namespace(t, FULL_DISK, 180, "apart", home=os.path.join(t.home, "apart"))


@case(60)
def full_disk_and_shared_memory(t):
    """The same where shared memory is full, too: it is in the same file system."""
    in_namespace(t, FULL_DISK, 180, "shared")


def group(t, limit):
    """A control group of version 1 with a limit of memory in bytes; Skipped if there can't be one."""
    root = "/sys/fs/cgroup/memory"
    if not os.path.exists(root + "/memory.limit_in_bytes"):
        raise Skipped("there is no control group for memory (version 1)")
    with open("/proc/self/cgroup") as f:
        own = [x.split(":", 2)[2].strip() for x in f if ":memory:" in x]
    above = root + (own[0] if own and os.path.isdir(root + own[0]) else "")
    path = "%s/forebay-test-%d" % (above, os.getpid())
    try:
        os.mkdir(path)
        with open(path + "/memory.limit_in_bytes", "w") as f:
            f.write(str(limit))
    except OSError as e:
        raise Skipped("no control group can be made: %s" % e)
    return path


@case(40)
def memory_limit(t):
    """Under a limit of memory, a pool that is too large is refused; one that is full is ENOSPC, and
    nobody is killed."""
    path = group(t, 160 << 20)

    def inside(*argv, rc=0):
        script = 'echo $$ > "$0/tasks" && exec "$@"'
        return t.command(["sh", "-c", script, path, t.forebay, *argv], rc=rc)
    try:
        r = inside("up", "--pool", "p", "--media", "memory:400M", rc=1).one_line()
        r.says(r"may take 400\.0 MiB", "control group .*limit 160", "left for pools", "--force", "--media")
        t.ok(t.state("p") == "absent", "something is left of it")
        inside("up", "--pool", "p", "--media", "memory:400M", "--force").says("warning: .*400")
        m = t.fb("df", "--pool", "p", "--json").json()["media"][0]
        for _ in range(2):
            r = inside("exec", "--pool", "p", "--", "dd", "if=/dev/zero", "of=/fb/big", "bs=1M",
                       "count=300", rc=1)
            r.says("No space left on device")
            size = int(t.bash("p", "stat -c %s /fb/big").out)
            t.ok(40 << 20 < size < 160 << 20, "%d MiB were written" % (size >> 20))
            # Operations that need no room go on; and then there is room again.
            inside("exec", "--pool", "p", "--", "bash", "-c", "cd /fb; echo a > a; cat a; rm a big")
        with open(path + "/memory.oom_control") as f:
            t.ok(re.search(r"oom_kill 0\b", f.read() + "oom_kill 0"), "somebody was killed")
        t.ok(t.state("p") == "running", "the keeper is dead")
        shown = int(inside("exec", "--pool", "p", "--", "stat", "-f", "-c", "%b", "/fb").out) * 4096
        t.ok(shown < 170 << 20, "df shows %d MiB under a limit of 160" % (shown >> 20))
        t.ok(m["capacity"] == 400 << 20, m)
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")
    finally:
        subprocess.run([t.forebay, "down", "--force", "--pool", "p"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        gone = lambda: not os.path.isdir(path) or subprocess.run(
            ["rmdir", path], stderr=subprocess.DEVNULL).returncode == 0
        wait_until(gone, 5, "the end of the control group")


@case(30)
def promises(t):
    """Media that a host can't hold are refused, with both figures: also together with what others were promised."""
    r = t.up("p", media=["memory:900T"], rc=1).one_line()
    r.says(r"900\.0 TiB of memory", r"[KMG]iB left for pools", "--force")
    r = t.fb("up", "--pool", "p", "--nodes", "1000", "--media", "memory:1T", rc=1).one_line()
    r.says("1000 nodes with 1.0 TiB each", r"[KMG]iB left for pools")
    r = t.up("p", media=["files:%s:900T" % t.disk], rc=1).one_line()
    r.says(r"900\.0 TiB of %s, and .* are free" % re.escape(t.disk), "--force")
    t.nothing_left("refused")
    with open("/proc/meminfo") as f:
        fields = dict(line.split(":", 1) for line in f)
    s = os.statvfs(t.home)
    mib = min(int(fields["MemAvailable"].split()[0]) >> 10, s.f_bavail * s.f_frsize >> 20)
    most = "memory:%dM" % (mib * 6 // 10)
    t.up("p", "--reserve", "0", media=[most])
    r = t.up("q", "--reserve", "0", media=[most], rc=1).one_line()
    r.says("other pools have been promised", "--force")
    r = t.fb("run", "--media", most, "--", "true", rc=1)
    r.says("other pools have been promised")
    t.up("q", "--reserve", "0", "--force", media=[most]).says("warning: .*other pools have been promised")
    # Together they don't show more than there is.
    shown = sum(int(t.exec(p, "stat", "-f", "-c", "%a", "/fb").out) * 4096 >> 20 for p in "pq")
    t.ok(shown < mib * 11 // 10, "df shows %d MiB, but there are %d" % (shown, mib))
    listed = sum(t.fb("df", "--pool", p, "--json").json()["media"][0]["available"] >> 20 for p in "pq")
    t.ok(listed < mib * 11 // 10, "forebay df shows %d MiB, but there are %d" % (listed, mib))
    t.fb("down", "--pool", "p")
    t.fb("down", "--pool", "q")


def blocks(t, pool, node=""):
    return os.stat(os.path.join(t.pool_dir(pool), node, "medium-0", "segment")).st_blocks * 512


@case(50)
def given_back(t):
    """Memory that was written and removed is the host's again, but for what is kept ready."""
    t.up("p", "--reserve", "32M", media=["memory:1G"])
    t.up("small", media=["memory:64M"])
    t.bash("p", "head -c 300000000 /dev/zero > /fb/big")
    t.ok(blocks(t, "p") >= 300e6, "there is no room for what was written")
    t.bash("p", "head -c 5000000 /dev/urandom > /fb/stays; sha256sum /fb/stays > /fb/sum; rm /fb/big")
    t.bash("small", "head -c 50000000 /dev/zero > /fb/x; rm /fb/x")
    wait_until(lambda: blocks(t, "p") <= (32 << 20) + 6e6, 25, "the end of 300 MB in shared memory")
    wait_until(lambda: blocks(t, "small") <= 8 << 20, 25, "the end of 50 MB in shared memory")
    for pool in ("p", "small"):
        r = t.fb("status", "--pool", pool)
        ready, most = re.search(r"([\d.]+) (?:[KM]i)?B kept ready \(at most ([\d.]+) MiB", r.out).groups()
        t.ok(float(ready) <= float(most) + 0.05, "%s: %s" % (pool, r.out))
        t.fb("fsck", "--pool", pool)
    # It can be had again.
    t.bash("p", "sha256sum -c --quiet /fb/sum; head -c 300000000 /dev/zero > /fb/big; cmp -n 300000000 "
                "/fb/big /dev/zero; sha256sum -c --quiet /fb/sum")
    t.fb("down", "--pool", "small")
    t.fb("down", "--pool", "p")


@case(40)
def ready_on_one_host(t):
    """The room kept ready is bounded for the host, not for each node."""
    with open("/proc/meminfo") as f:
        fields = dict(line.split(":", 1) for line in f)
    most = (int(fields["MemTotal"].split()[0]) << 10) // 16
    each = most // 8
    t.fb("up", "--pool", "p", "--nodes", "8", "--reserve", "4G", "--force", "--media",
         "memory:%dM" % (each * 16 >> 20))
    time.sleep(3)
    taken = sum(blocks(t, "p", "node-%d" % n) for n in range(8))
    t.ok(taken <= most + (8 << 20), "%d MiB are kept ready on this host" % (taken >> 20))
    t.fb("down", "--pool", "p")


STAGE_OUT = r'''
source = sys.argv[4]
os.mkdir(top + "/out")
fb("up", "--pool", "p", "--media", "memory:64M")
fb("stage", "in", source, "/d", "--pool", "p")
fill(top + "/neighbour")
r = fb("stage", "out", "/d", top + "/out/d", "--pool", "p", rc=120)
assert "needs 20.0 MiB" in r.stderr and " free" in r.stderr and "--force" in r.stderr, r.stderr
assert os.listdir(top + "/out") == [], os.listdir(top + "/out")
os.unlink(top + "/neighbour")
fb("stage", "out", "/d", top + "/out/d", "--pool", "p")
fb("down", "--pool", "p")
'''


@case(40)
def sizes_before_staging(t):
    """A staging that doesn't fit isn't begun: both sizes are reported, and nothing is left."""
    source = t.work + "/source"
    os.makedirs(source + "/below/empty")
    t.file(source + "/a", 15 << 20)
    t.file(source + "/below/b", 5 << 20)
    os.link(source + "/a", source + "/below/same")
    t.up("p", media=["memory:16M"])
    r = t.fb("stage", "in", source, "/d", "--pool", "p", rc=120).one_line()
    r.says(r"needs 20\.0 MiB", r"pool 'p' \(memory:16M\) has 16\.0 MiB free", "--force")
    t.ok(t.bash("p", "ls -A /fb").out == "", "something is left of it")
    # With --force, what fits is staged.
    t.fb("stage", "in", source, "/d", "--force", "--pool", "p", rc=120).says("No space left|full")
    t.bash("p", "rm -r /fb/d")
    # Holes take no room, nor does what is there already.
    with open(t.work + "/sparse", "wb") as f:
        f.truncate(1 << 30)
        f.seek(1 << 20)
        f.write(b"x" * 100000)
    t.fb("stage", "in", t.work + "/sparse", "/sparse", "--pool", "p")
    t.bash("p", "rm /fb/sparse")
    t.fb("stage", "in", source + "/a", "/a", "--pool", "p")
    t.fb("stage", "in", source + "/a", "/a", "--pool", "p")
    flag = t.work + "/flag"
    r = t.fb("run", "--media", "memory:16M", "--in", source + ":/d", "--", "touch", flag, rc=121)
    r.says(r"needs 20\.0 MiB", r"has 16\.0 MiB free", "nothing was run, and the pool is removed", "--media")
    t.ok(not os.path.exists(flag), "the program was run")
    t.fb("down", "--pool", "p")
    in_namespace(t, STAGE_OUT, 120, source)
