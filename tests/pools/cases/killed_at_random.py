"""kill -9 of random programs at random moments."""
import os
import random
import signal
import time

from harness import Failed, Lines, case, kill
from .killed import all_gives_room_back, works

# Works without end on its own files and on shared ones. The name of a file gives its content once
# it is named done-*: done-SEED-SIZE.
WORKER = r'''
import errno, os, random, signal, sys, time
top, me, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
enough = []
signal.signal(signal.SIGUSR1, lambda *_: enough.append(1))
r = random.Random(seed)
own = "%s/own-%s" % (top, me)
shared = top + "/shared"
os.makedirs(own, exist_ok=True)
os.makedirs(shared, exist_ok=True)
log = os.open(top + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(1, b"ready\n")
def content(seed, size):
    return random.Random(seed).randbytes(size)
def gone(f, *a):
    try:
        f(*a)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):
            raise
n = 0
while not enough:
    n += 1
    where = r.choice([own, own, shared])
    s, size = r.randrange(1 << 40), r.choice([0, 50, 3000, 4096, 20000, 150000, 400000])
    part = "%s/part-%s" % (where, me)
    data = content(s, size)
    with open(part, "wb", 0) as f:
        at = 0
        while at < size:
            at += f.write(data[at:at + r.choice([1000, 4096, 70000, 1 << 20])])
    os.rename(part, "%s/done-%d-%d" % (where, s, size))
    line = ("%s %d " % (me, n)).encode()
    os.write(log, line + b"." * (63 - len(line)) + b"\n")
    names = os.listdir(where)
    r.shuffle(names)
    for name in names[:2]:
        if name.startswith("done-"):
            _, s, size = name.split("-")
            try:
                with open(where + "/" + name, "rb") as f:
                    data = f.read()
            except FileNotFoundError:
                continue
            assert data == content(int(s), int(size)), name
    if len(names) > 25:
        for name in names[:5]:
            if name.startswith("done-"):
                gone(os.unlink, where + "/" + name)
    c = r.randrange(8)
    if c == 0:
        gone(os.mkdir, shared + "/dir%d" % r.randrange(4))
    elif c == 1:
        gone(os.rmdir, shared + "/dir%d" % r.randrange(4))
    elif c == 2:
        gone(os.rename, shared + "/dir%d" % r.randrange(4), shared + "/dir%d" % r.randrange(4))
    elif c == 3:
        gone(os.symlink, "x", own + "/l%d" % r.randrange(9))
    elif c == 4:
        gone(os.unlink, own + "/l%d" % r.randrange(9))
    elif c == 5 and names and names[0].startswith("done-"):
        gone(os.link, where + "/" + names[0], shared + "/" + names[0])
    elif c == 6:
        fd = os.open(own + "/rw", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"z" * r.randrange(1, 50000), r.randrange(300000))
        os.ftruncate(fd, r.randrange(300000))
        os.close(fd)
    elif c == 7:
        fd = os.open(shared + "/gone-" + me, os.O_RDWR | os.O_CREAT)
        gone(os.unlink, shared + "/gone-" + me)
        os.write(fd, b"y" * 200000)
        os.close(fd)
os.write(1, b"enough\n")
time.sleep(1000)
'''

CHECK_WORK = r'''
import os, random, sys
top = sys.argv[1]
files = 0
for where, dirs, names in os.walk(top):
    for name in names:
        path = where + "/" + name
        if os.path.islink(path):
            assert os.readlink(path) == "x"
            continue
        with open(path, "rb") as f:
            data = f.read()
            assert len(data) == os.fstat(f.fileno()).st_size == os.stat(path).st_size, path
        files += 1
        if name.startswith("done-"):
            _, s, size = name.split("-")
            assert len(data) == int(size), (path, len(data))
            assert data == random.Random(int(s)).randbytes(int(size)), path
        elif name == "log":
            assert len(data) % 64 == 0, "the log has %d bytes" % len(data)
            for n, line in enumerate(data.split(b"\n")[:-1]):
                assert len(line) == 63 and line.rstrip(b".").endswith(b" "), (n, line)
        elif name.startswith("part-"):
            pass
        elif name == "rw":
            assert not data.strip(b"z\0"), path
        else:
            assert not name.startswith("gone-") or not data.strip(b"y"), path
print(files)
'''


@case(60)
def killed_at_random(t):
    t.up("p", media=["memory:256M"])
    r = random.Random(int.from_bytes(os.urandom(4), "little"))
    seed = r.randrange(1 << 30)
    # This one is never killed and notices if others' deaths do it any harm.
    survivor = t.start_python("p", WORKER, "/fb/w", "survivor", "1",
                              stderr=open(t.work + "/survivor", "wb"))
    survivor_says = Lines(survivor)
    survivor_says.wait_for(1)

    def worker(n, place):
        p = t.start_python("p", WORKER, "/fb/w", str(place), str(seed + n),
                           stderr=open(t.work + "/err%d" % n, "wb"))
        return p, Lines(p), n

    def died_itself(p, n):
        if p.poll() is not None:
            with open(t.work + "/err%s" % n) as f:
                raise Failed("a worker ended by itself (%d; seed %d):\n%s" % (
                    p.returncode, seed, f.read()))

    workers = [worker(n, n) for n in range(3)]
    for n in range(3, 33):
        place = r.randrange(3)
        p, lines, number = workers[place]
        lines.wait_for(1)
        time.sleep(r.uniform(0.01, 0.12))
        died_itself(p, number)
        kill(p.pid)
        p.wait()
        workers[place] = worker(n, place)
        if n % 10 == 0:
            t.fb("status", "--pool", "p").quiet()
            t.fb("df", "--pool", "p").quiet()
    if survivor.poll() is not None:
        with open(t.work + "/survivor") as f:
            raise Failed("the survivor ended (%d; seed %d):\n%s" % (
                survivor.returncode, seed, f.read()))
    for p, lines, number in workers:
        lines.wait_for(1)
        died_itself(p, number)
    # While it is in use, and after everyone is dead.
    for p, _, _ in workers:
        kill(p.pid)
        p.wait()
    survivor.send_signal(signal.SIGUSR1)
    try:
        survivor_says.wait_for(2, 10)
    except Failed as e:
        with open(t.work + "/survivor") as f:
            raise Failed("the survivor goes on no more (seed %d): %s\n%s" % (seed, e, f.read()))
    t.check("with one left", t.python, "p", CHECK_WORK, "/fb/w")
    kill(survivor.pid)
    survivor.wait()
    t.check("with none left", t.python, "p", CHECK_WORK, "/fb/w")
    t.walk("/fb", "p")
    t.fb("status", "--pool", "p").prints("pool +p, running", "used by +nobody").quiet()
    t.fb("df", "--pool", "p").prints("^memory:256M").quiet()
    works(t, "p")
    all_gives_room_back(t, "p")
    t.fb("down", "--pool", "p").quiet()
    t.nothing_left("down")


@case(60)
def killed_again_and_again(t):
    """All at once, in the middle of their work, and reopened, several times."""
    t.up("p", media=["memory:16M", "files:%s:512M" % t.disk])
    r = random.Random(int.from_bytes(os.urandom(4), "little"))
    for turn in range(6):
        workers = [t.start_python("p", WORKER, "/fb/w", str(n), str(turn * 10 + n))
                   for n in range(3)]
        for w in workers:
            Lines(w).wait_for(1)
        time.sleep(r.uniform(0.05, 0.4))
        for w in workers:
            if w.poll() is not None:
                raise Failed("a worker ended by itself (%d): %s" % (
                    w.returncode, w.stderr.read().decode()))
        t.kill_everything()
        t.fb("up", "--reopen", "--pool", "p").quiet()
        t.check("turn %d" % turn, t.python, "p", CHECK_WORK, "/fb/w")
        t.walk("/fb", "p")
    t.check("new work", works, t, "p")
    all_gives_room_back(t, "p")
    t.fb("down", "--pool", "p").quiet()
    t.ok(os.listdir(t.disk) == [], "left in the medium: %s" % os.listdir(t.disk))
