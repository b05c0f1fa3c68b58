"""The cases. Each gets a harness.T and raises Failed when something isn't as it should be."""
import os
import random
import re
import shutil
import signal
import socket
import stat
import sys
import time

from harness import Failed, Lines, alive, case, kill, noise, wait_until

# ---- two pools at once

WRITE_AND_CHECK = r'''
import os, sys
mount, word, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
d = mount + "/d" + sys.argv[4]
os.makedirs(d)
for r in range(rounds):
    for n in range(60):
        size = (n * 997 + r * 31) % 40000
        with open("%s/%d" % (d, n), "wb") as f:
            f.write((word * (size // len(word) + 1)).encode()[:size])
    for n in range(60):
        data = open("%s/%d" % (d, n), "rb").read().decode()
        assert set(data) <= set(word), (n, data[:40])
        assert len(data) == (n * 997 + r * 31) % 40000
    assert sorted(map(int, os.listdir(d))) == list(range(60))
'''


def both_at_work(t, mounts):
    # Two in each pool, with the same names in both.
    programs = [t.start_python(p, WRITE_AND_CHECK, mounts[p], word, "4", n)
                for p, word, n in (("a", "aaa", "1"), ("b", "bbb", "1"),
                                   ("a", "xyz", "2"), ("b", "uvw", "2"))]
    for p in programs:
        t.finish(p)


@case(20)
def two_pools(t):
    t.up("a", mount="/fba").prints(r"pool 'a' is up: memory:64M .*mounted on /fba")
    t.up("b", mount="/fbb")
    both_at_work(t, {"a": "/fba", "b": "/fbb"})
    t.bash("a", "echo from a > /fba/name; test ! -e /fbb && test ! -e /fb").quiet()
    t.bash("b", "echo from b > /fbb/name; test ! -e /fba").quiet()
    t.bash("a", "cat /fba/name").prints(r"^from a$")
    t.bash("b", "cat /fbb/name").prints(r"^from b$")
    t.fb("pools").prints(r"^a +running +memory:64M +/fba$", r"^b +running +memory:64M +/fbb$")
    listed = t.fb("pools", "--json").json()
    t.ok([(p["name"], p["state"]) for p in listed] == [("a", "running"), ("b", "running")],
         "pools --json: %s" % listed)
    # Which pool: --pool, else FOREBAY_POOL, else default.
    chosen = {"FOREBAY_POOL": "b"}
    t.fb("cat", "/name", env=chosen).prints("^from b$")
    t.fb("cat", "--pool", "a", "/name", env=chosen).prints("^from a$")
    t.fb("cat", "/fba/name", "--pool", "a").prints("^from a$")
    r = t.fb("cat", "/name", rc=3).one_line()
    r.says("there is no pool 'default'", "forebay up --pool default", "forebay pools")
    # Inside a pool that one is meant; another can be named.
    t.exec("a", t.forebay, "cat", "/name").prints("^from a$")
    t.exec("a", t.forebay, "exec", "--pool", "b", "--", "cat", "/fbb/name").prints("^from b$")
    t.up("a", rc=1).one_line().says("'a' exists already", "forebay down --pool a")
    t.fb("down", "--pool", "a").quiet()
    t.fb("pools").prints(r"^b +running")
    t.bash("b", "cat /fbb/name; ls /fbb/d1 | wc -l").prints("^from b$", "^60$")
    t.fb("status", "--pool", "a", rc=3).one_line().says("there is no pool 'a'")
    t.fb("down", "--pool", "a", rc=3).one_line().says("there is no pool 'a'")
    t.fb("down", "--pool", "a", "--force").says("nothing to remove")
    t.fb("down", env=chosen).quiet()
    t.fb("pools").says("no pools", "forebay up")
    t.nothing_left("down")


@case(20)
def two_pools_same_mount(t):
    t.up("a")
    t.up("b", media=["files:%s:256M" % t.disk])
    both_at_work(t, {"a": "/fb", "b": "/fb"})
    for p in "ab":
        t.bash(p, "echo from $1 > /fb/name; mkdir /fb/only-$1", p).quiet()
    for p in "ab":
        t.bash(p, "cat /fb/name; ls -d /fb/only-*").prints("^from %s$" % p, "^/fb/only-%s$" % p)
    t.exec("a", t.forebay, "exec", "--pool", "b", "--", "cat", "/fb/name").prints("^from b$")
    # A removed pool doesn't come back with its name.
    t.fb("down", "--pool", "a")
    t.up("a")
    t.ok(t.fb("ls", "-a", "--pool", "a").out.strip() in ("", ".\n.."), "a new pool is not empty")
    t.bash("b", "cat /fb/name").prints("^from b$")
    for p in "ab":
        t.fb("down", "--pool", p).quiet()
    t.nothing_left("down")
    t.ok(os.listdir(t.disk) == [], "left in the medium: %s" % os.listdir(t.disk))


# ---- kill -9 of everything

MAKE_TREE = r'''
import os, random, sys
top, seed = sys.argv[1], int(sys.argv[2])
r = random.Random(seed)
os.makedirs(top + "/small/deep/er", exist_ok=True)
for n in range(150):
    with open("%s/small/%s%d" % (top, "" if n % 3 else "deep/er/", n), "wb") as f:
        f.write(r.randbytes(r.choice([0, 1, 100, 3000, 4096, 5000])))
for n in range(8):
    with open("%s/mib%d" % (top, n), "wb") as f:
        f.write(r.randbytes((1 << 20) + r.randrange(-5000, 5000)))
with open(top + "/big", "wb") as f:
    for _ in range(40):
        f.write(r.randbytes(1 << 20))
with open(top + "/sparse", "wb") as f:
    f.seek(3 << 20)
    f.write(b"end")
os.chmod(top + "/mib0", 0o640)
os.chmod(top + "/small/deep", 0o2750)
os.symlink("small/deep/er", top + "/dirlink")
os.symlink("/no/such/place", top + "/dangling")
os.link(top + "/mib1", top + "/mib1-again")
os.link(top + "/small/1", top + "/small/deep/1-again")
os.rename(top + "/mib2", top + "/small/deep/moved")
os.unlink(top + "/mib3")
'''

# Writes without end; says after each write how many there were.
APPEND = r'''
import os, sys, time
path, size, sync = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "sync"
fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
n = 0
while True:
    n += 1
    assert os.write(fd, (b"%019d\n" % n) * (size // 20)) == size // 20 * 20
    if sync:
        os.fsync(fd)
    os.write(1, b"%d\n" % n)
    time.sleep(0.0005)
'''

OPEN_UNLINKED = r'''
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.unlink(sys.argv[1])
for _ in range(30):
    os.write(fd, b"x" * (1 << 20))
os.write(1, b"ready\n")
time.sleep(1000)
'''


def check_appended(t, pool, path, size, done):
    """Every write that was completed is there, and nothing else but perhaps the next one."""
    r = t.bash(pool, "cat " + path)
    size = size // 20 * 20
    whole = len(r.out) // size
    t.ok(whole >= done, "%s: %d writes were completed, %d (%d bytes) are there" % (
        path, done, whole, len(r.out)))
    t.ok(len(r.out) <= (done + 1) * size + size, "%s is too long: %d bytes after %d writes" % (
        path, len(r.out), done))
    for n in range(whole):
        wanted = "%019d\n" % (n + 1)
        part = r.out[n * size:(n + 1) * size]
        if part != wanted * (size // 20):
            raise Failed("%s: write %d is wrong: %r..." % (path, n + 1, part[:60]))
    rest = r.out[whole * size:]
    t.ok((("%019d\n" % (whole + 1)) * (size // 20)).startswith(rest),
         "%s ends with what nobody wrote: %r" % (path, rest[:60]))


def works(t, pool, mount="/fb"):
    """New work of all sizes is possible."""
    t.bash(pool, '''set -e; cd $1; mkdir new; cd new
        for n in 1 2 3 4 5 6 7 8; do head -c $((n * n * 90000)) /dev/urandom > f$n; done
        sha256sum f? > sums; sync; mv f1 ../f1-moved; mv ../f1-moved f1; sha256sum -c --quiet sums
        echo more >> f2; ln f3 f3b; rm f3; ln -s f4 l; cat l > /dev/null; cd ..; rm -r new''',
           mount).quiet()


def fill(t, pool):
    t.python(pool, MAKE_TREE, "/fb/tree", "7").quiet()
    return t.walk("/fb/tree", pool)


def start_appenders(t, pool, *more):
    specs = [("/fb/lines", 100), ("/fb/blocks", 65536), ("/fb/synced", 2000)] + list(more)
    started = []
    for path, size in specs:
        p = t.start_python(pool, APPEND, path, str(size), "sync" if "sync" in path else "no")
        started.append((path, size, Lines(p)))
    hidden = t.start_python(pool, OPEN_UNLINKED, "/fb/unlinked")
    Lines(hidden).wait_for(1)
    for _, _, lines in started:
        lines.wait_for(150)
    return started


def after_the_kill(t, pool, tree, appenders):
    t.same(tree, t.walk("/fb/tree", pool), "the tree")
    for path, size, lines in appenders:
        t.check("appending", check_appended, t, pool, path, size, len(lines.all()))
    names = sorted(t.fb("ls", "--pool", pool).out.split())
    t.ok(names == ["blocks", "lines", "synced", "tree"], "in the pool: %s" % names)
    works(t, pool)
    t.same(tree, t.walk("/fb/tree", pool), "the tree after new work")


def all_gives_room_back(t, pool):
    t.bash(pool, "rm -rf /fb/* && test -z \"$(ls -A /fb)\"").quiet()
    wait_until(lambda: t.used(pool) <= 1 << 20, 6,
               "the used bytes to return to nearly 0; they are %d" % t.used(pool))


def killed(t, media):
    t.up("p", media=media)
    tree = fill(t, "p")
    appenders = start_appenders(t, "p")
    t.kill_everything()
    t.ok(t.state("p") == "stale", "the pool is %s, not stale" % t.state("p"))
    t.fb("pools").prints(r"^p +stale")
    t.fb("status", "--pool", "p").prints(r"keeper +dead; .*forebay up --reopen --pool p")
    t.up("p", rc=1).one_line().says("keeper is dead", "forebay up --reopen --pool p",
                                    "forebay down --force --pool p")
    t.bash("p", "true").says("keeper .* is dead", "forebay up --reopen --pool p")
    t.fb("up", "--reopen", "--pool", "p").prints("pool 'p' is up").quiet()
    t.ok(t.state("p") == "running", "the pool is %s, not running" % t.state("p"))
    after_the_kill(t, "p", tree, appenders)
    # A second time, and with nothing in between.
    t.kill_everything()
    t.fb("up", "--reopen", "--pool", "p").quiet()
    t.same(tree, t.walk("/fb/tree", "p"), "the tree after a second kill")
    t.fb("up", "--reopen", "--pool", "p").prints("already")
    t.check("room", all_gives_room_back, t, "p")
    # One that is dead can be removed as well.
    t.kill_everything()
    t.fb("down", "--pool", "p").says("dead already")
    t.nothing_left("down")
    t.ok(os.listdir(t.disk) == [], "left in the medium: %s" % os.listdir(t.disk))


@case(40)
def killed_files(t):
    killed(t, ["files:%s:2G" % t.disk])


@case(40)
def killed_memory(t):
    killed(t, ["memory:512M"])


@case(40)
def killed_and_rebooted(t):
    t.up("p", media=["files:%s:2G" % t.disk])
    tree = fill(t, "p")
    appenders = start_appenders(t, "p")
    t.kill_everything()
    shutil.rmtree(t.pool_dir("p"))
    t.fb("exec", "--pool", "p", "--", "true", rc=3).one_line().says("there is no pool 'p'")
    r = t.fb("up", "--reopen", "--pool", "p", rc=3).one_line()
    r.says("there is no pool 'p'", "forebay up --reopen --from DIR")
    r = t.fb("up", "--reopen", "--pool", "q", "--from", t.disk, rc=3).one_line()
    r.says("nothing of a pool 'q' in " + t.disk)
    t.fb("up", "--reopen", "--pool", "p", "--from", t.disk).prints("reopened from").quiet()
    t.same(tree, t.walk("/fb/tree", "p"), "the tree")
    for path, size, lines in appenders:
        # What was not synced may be missing at the end, as on any file system.
        done = len(lines.all())
        if path == "/fb/synced":
            t.check("synced", check_appended, t, "p", path, size, done)
        else:
            text = t.bash("p", "cat " + path).out
            size = size // 20 * 20
            for n in range(len(text) // size):
                t.ok(text[n * size:(n + 1) * size] == ("%019d\n" % (n + 1)) * (size // 20),
                     "%s: write %d is wrong" % (path, n + 1))
    names = sorted(t.fb("ls", "--pool", "p").out.split())
    t.ok(set(names) >= {"synced", "tree"} and set(names) <= {"blocks", "lines", "synced", "tree"},
         "in the pool: %s" % names)
    works(t, "p")
    t.same(tree, t.walk("/fb/tree", "p"), "the tree after new work")
    # Again, named by the medium's own directory.
    t.kill_everything()
    shutil.rmtree(t.pool_dir("p"))
    own = [os.path.join(t.disk, n) for n in os.listdir(t.disk)]
    t.ok(len(own) == 1, "in the medium: %s" % own)
    t.fb("up", "--reopen", "--pool", "p", "--from", own[0]).quiet()
    t.same(tree, t.walk("/fb/tree", "p"), "the tree after a second time")
    t.fb("up", "--reopen", "--pool", "p", "--from", t.disk, rc=(0, 1))
    t.check("room", all_gives_room_back, t, "p")
    t.fb("down", "--pool", "p").quiet()
    t.nothing_left("down")
    t.ok(os.listdir(t.disk) == [], "left in the medium: %s" % os.listdir(t.disk))
    # With memory among the media nothing can be had back, and that is said.
    t.up("m", media=["memory:16M", "files:%s:64M" % t.disk])
    t.kill_everything()
    shutil.rmtree(t.pool_dir("m"))
    r = t.fb("up", "--reopen", "--pool", "m", "--from", t.disk, rc=3).one_line()
    r.says("memory", "gone")


@case(30)
def killed_keeper(t):
    """Without its keeper a pool goes on; a new keeper takes over under its programs."""
    t.up("p", media=["memory:256M"])
    p = t.start_python("p", APPEND, "/fb/log", "100", "no")
    lines = Lines(p)
    lines.wait_for(50)
    kill(t.keeper("p"))
    lines.wait_for(len(lines.lines) + 300)
    t.bash("p", "echo x > /fb/x; cat /fb/x").prints("^x$").says("keeper .* is dead")
    t.fb("status", "--pool", "p").prints("used by +%d" % p.pid, "keeper +dead")
    t.fb("up", "--reopen", "--pool", "p").prints("reopened under 1 process").quiet()
    lines.wait_for(len(lines.lines) + 300)
    t.bash("p", "cat /fb/x").prints("^x$").quiet()
    r = t.fb("down", "--pool", "p", rc=1).one_line()
    r.says("in use by %d" % p.pid, "forebay down --force --pool p")
    kill(p.pid)
    done = len(lines.all())
    check_appended(t, "p", "/fb/log", 100, done)
    # The keeper releases what a dead program had open, without anybody asking.
    hidden = t.start_python("p", OPEN_UNLINKED, "/fb/unlinked")
    Lines(hidden).wait_for(1)
    t.ok(t.used("p") >= 30 << 20, "30 MiB were written, %d are used" % t.used("p"))
    kill(hidden.pid)
    hidden.wait()
    wait_until(lambda: t.used("p") < 2 << 20, 6, "an unlinked file to go with its dead program")
    # Two at the same time: one keeper, not two.
    kill(t.keeper("p"))
    both = [t.start([t.forebay, "up", "--reopen", "--pool", "p"]) for _ in range(4)]
    for b in both:
        t.finish(b, rc=(0, 1))
    keepers = [q for q in t.ours() if alive(q) and b"keeper" in open("/proc/%d/cmdline" % q, "rb").read()]
    t.ok(len(keepers) == 1, "%d keepers" % len(keepers))
    t.fb("down", "--pool", "p")
    t.nothing_left("down")


# ---- kill -9 of random programs

# Works without end on files of its own and on shared ones. A file's name says what has
# to be in it once it is called done-*: done-SEED-SIZE.
WORKER = r'''
import errno, os, random, sys
top, me, seed, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
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
while rounds == 0 or n < rounds:
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
    survivor = t.start_python("p", WORKER, "/fb/w", "survivor", "1", "0",
                              stderr=open(t.work + "/survivor", "wb"))
    Lines(survivor).wait_for(1)

    def worker(n, place):
        p = t.start_python("p", WORKER, "/fb/w", str(place), str(seed + n),
                           "0", stderr=open(t.work + "/err%d" % n, "wb"))
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
    kill(survivor.pid, signal.SIGSTOP)
    for p, _, _ in workers:
        kill(p.pid)
        p.wait()
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
        workers = [t.start_python("p", WORKER, "/fb/w", str(n), str(turn * 10 + n), "0")
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
    works(t, "p")
    all_gives_room_back(t, "p")
    t.fb("down", "--pool", "p").quiet()
    t.ok(os.listdir(t.disk) == [], "left in the medium: %s" % os.listdir(t.disk))
