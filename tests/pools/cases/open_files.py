"""How many files can be open at a time: by one process, by all of a node."""
import os
import resource
import signal
import subprocess
import sys

from harness import Lines, Skipped, case, wait_until

# Opens COUNT files, others each time or one again and again, and waits.
OPENER = r'''
import errno, os, resource, sys
what, count, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
wanted = count + 200
resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
opened, failed = [], None
if what == "many":
    os.mkdir(name)
for i in range(count):
    try:
        opened.append(os.open("%s/%d" % (name, i) if what == "many" else name, flags, 0o600))
    except OSError as e:
        failed = errno.errorcode[e.errno]
        break
# Open files work, whether there is room for more or not.
for fd in opened[:: max(1, len(opened) // 50)]:
    # All write the same to the one file, in any order.
    word = b"%7d" % (fd if what == "many" else 7)
    os.pwrite(fd, word, 0)
    assert os.pread(fd, 20, 0) == word, fd
    assert os.fstat(fd).st_nlink == 1
print(len(opened), failed, flush=True)
sys.stdin.readline()
'''


def need_descriptors(count):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    script = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (%d, %d))" % (count + 200, max(hard, count + 200))
    if subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL).returncode:
        raise Skipped("it needs a limit of %d descriptors in a process" % (count + 200))


def tables(t, pool="p"):
    told = t.fb("status", "--pool", pool, "--json", timeout=60).json()["tables"]
    return {table["table"]: table for table in told}


def openers(t, processes, what, count):
    """Starts them all at once; returns each one's output: how many files it has open, and why not more."""
    started = []
    for n in range(processes):
        name = "/fb/%d" % n if what == "many" else "/fb/one"
        started.append(t.start_python("p", OPENER, what, str(count), name, stdin=-1))
    lines = [Lines(p) for p in started]
    for one in lines:
        one.wait_for(1, 90)
    said = [one.lines[0].split() for one in lines]
    return started, [int(n) for n, _ in said], [why for _, why in said]


def end(t, started):
    """Half of them end by themselves, the others are killed."""
    for n, p in enumerate(started):
        if n % 2:
            os.kill(p.pid, signal.SIGKILL)
        else:
            p.stdin.close()
        p.wait(60)
    # The keeper releases what the dead had open.
    wait_until(lambda: tables(t)["opened files"]["used"] == 0, 60, "all given back")
    t.ok(tables(t)["different open files"]["used"] == 0, "entries are left: %s" % tables(t))


@case(120)
def hundred_thousand_open_files(t):
    each = 17000
    need_descriptors(each)
    t.up("p", media=["memory:96M"])
    started, opened, why = openers(t, 6, "many", each)
    t.ok(opened == [each] * 6, "opened %s, %s" % (opened, why))
    told = tables(t)
    t.ok(told["opened files"]["used"] >= 6 * each, "status says %s" % told)
    t.ok(not any(table["refused"] for table in told.values()), "refused: %s" % told)
    t.bash("p", "echo more > /fb/more; ls /fb | wc -l").prints("^7$")
    end(t, started)
    t.fb("fsck", "--pool", "p", timeout=60)
    t.fb("down", "--pool", "p")


@case(120)
def no_room_for_another_open_file(t):
    """The limit is ENFILE, reported by status and the keeper; open files go on, and so does everything afterwards."""
    t.up("p", media=["memory:32M"])
    limit = tables(t)["opened files"]["limit"]
    if limit > 150000:
        raise Skipped("this machine has room for %d open files" % limit)
    each = limit // 7 + 1000
    need_descriptors(each)
    t.bash("p", "mkdir -p /fb/tree/a/b; touch /fb/tree/a/f /fb/tree/a/b/g")
    started, opened, why = openers(t, 7, "same", each)
    t.ok(limit - 100 <= sum(opened) <= limit, "%d opened, %d should have been" % (sum(opened), limit))
    t.ok(set(why) <= {"ENFILE", "None"} and "ENFILE" in why, "why not more: %s" % why)
    # Trees can be removed all the same.
    t.exec("p", "rm", "-r", "/fb/tree").quiet()
    r = t.fb("status", "--pool", "p", timeout=60)
    r.prints("^files open %d of %d at most$" % (sum(opened), limit), "room for %d opened files .*ENFILE" % limit)
    log = os.path.join(t.pool_dir("p"), "keeper.log")
    wait_until(lambda: "ENFILE" in open(log).read(), 30, "the keeper tells of it")
    end(t, started)
    t.bash("p", "echo again > /fb/again; cat /fb/again").prints("^again$")
    t.fb("down", "--pool", "p")


@case(60)
def high_descriptor(t):
    """A descriptor number above 65,535 can stand for a file of the pool."""
    need_descriptors(100000)
    t.up("p")
    t.python("p", r'''
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100200, max(100200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
fd = os.open("/fb/f", os.O_RDWR | os.O_CREAT)
os.dup2(fd, 100000)
os.close(fd)
assert os.write(100000, b"far") == 3
if os.fork() == 0:
    os._exit(os.pread(100000, 3, 0) != b"far")
assert os.wait()[1] == 0
assert os.fstat(100000).st_size == 3
''')
    t.fb("down", "--pool", "p")


@case(30)
def names_and_sizes_that_are_too_much(t):
    """The rows of docs/reference/limits.md about files, names and attributes."""
    t.up("p")
    t.python("p", r'''
import errno, os
def fails(e, f, *a):
    try:
        f(*a)
    except OSError as got:
        assert got.errno == e, (f, got)
    else:
        assert False, (f, "isn't refused")
fd = os.open("/fb/f", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 55)
assert os.fstat(fd).st_size == 1 << 55
fails(errno.EFBIG, os.ftruncate, fd, (1 << 55) + 1)
fails(errno.EFBIG, os.pwrite, fd, b"x", 1 << 55)
assert os.pwrite(fd, b"x", (1 << 55) - 1) == 1
os.ftruncate(fd, 0)
open("/fb/" + "n" * 255, "w").close()
fails(errno.ENAMETOOLONG, open, "/fb/" + "n" * 256, "w")
os.symlink("t" * 4095, "/fb/link")
assert len(os.readlink("/fb/link")) == 4095
fails(errno.ENAMETOOLONG, os.symlink, "t" * 4096, "/fb/longer")
os.setxattr(fd, "user." + "k" * 250, b"v" * 65536)
fails(errno.ERANGE, os.setxattr, fd, "user." + "k" * 251, b"v")
fails(errno.E2BIG, os.setxattr, fd, "user.v", b"v" * 65537)
for n in range(41):
    os.symlink("l%d" % (n - 1) if n else "f", "/fb/l%d" % n)
os.stat("/fb/l39")
fails(errno.ELOOP, os.stat, "/fb/l40")
''').quiet()
    t.fb("down", "--pool", "p")


# COUNT files are open. LACKS: what the process lacks when it forks, `user` (it has become another one) or
# `descriptors` (none is left). Its child closes one and writes to another; if COUNT is large, it opens one in place of it.
CHILD = r'''
import errno, os, resource, sys
count, lacks = int(sys.argv[1]), sys.argv[2]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2000), min(hard, 2000)))
opened = [os.open("/fb/d/%d" % n, os.O_RDWR | os.O_CREAT) for n in range(count)]
# What writing needs is open before nothing more can be.
assert os.pwrite(opened[-1], b"parent" * 1000, 0) == 6000
if lacks == "user":
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
else:
    try:
        while True:
            os.open("/dev/null", os.O_RDONLY)
    except OSError as e:
        assert e.errno == errno.EMFILE, e
child = os.fork()
if child == 0:
    os.close(opened[0])
    assert os.write(opened[-1], b"child") == 5
    # So many files have opened all records.
    if lacks == "descriptors" and count > 1000:
        os.close(os.open("/fb/d/0", os.O_RDWR))
    os._exit(0)
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert os.pread(opened[-1], 9, 0) == b"childtpar"
print("as it should be")
'''


@case(60)
def children_of_those_that_lack_something(t):
    """A process without a descriptor left, or that has become another user, forks: the child has what is open.
    So do those whose area, or whose table of descriptors, has no memory yet."""
    t.up("p")
    t.bash("p", "mkdir -m 777 /fb/d")
    lacks = ["descriptors"] + (["user"] if os.getuid() == 0 else [])
    for lack in lacks:
        for count in (2, 1500):
            t.python("p", CHILD, str(count), lack).prints("^as it should be$")
    # The areas of 64 slots have memory from the beginning.
    waits = "import os\nos.listdir('/fb')\nprint('in', flush=True)\nos.read(0, 1)"
    others = [t.start_python("p", waits, stdin=subprocess.PIPE) for _ in range(70)]
    for other in others:
        t.ok(other.stdout.readline() == b"in\n", "not attached")
    for lack in lacks:
        t.python("p", CHILD, "2", lack).prints("^as it should be$")
    for other in others:
        t.finish(other, feed=b"\n")
    t.fb("down", "--pool", "p")
