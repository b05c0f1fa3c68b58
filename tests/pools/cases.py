"""The cases. Each gets a harness.T and raises Failed when something isn't as it should be."""
import os
import random
import re
import shutil
import signal
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
    if os.path.exists(mount + "/enough"):
        break
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
    t.check("exec inside exec", lambda: t.exec(
        "a", t.forebay, "exec", "--pool", "b", "--", "cat", "/fbb/name").prints("^from b$"))
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
    t.check("exec inside exec", lambda: t.exec(
        "a", t.forebay, "exec", "--pool", "b", "--", "cat", "/fb/name").prints("^from b$"))
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


def end_keeper(t, pool):
    """Tell the keeper to end, and wait until it has."""
    pid = t.keeper(pool)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not alive(pid), 10, "the keeper to end")


@case(40)
def killed_and_rebooted(t):
    t.up("p", media=["files:%s:2G" % t.disk])
    tree = fill(t, "p")
    t.bash("p", "sync -f /fb/tree").quiet()
    appenders = start_appenders(t, "p")
    # Without a word to anyone: as if the power had gone.
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
        # What was not synced may be missing or zero, as on any file system.
        done = len(lines.all())
        if path == "/fb/synced":
            t.check("synced", check_appended, t, "p", path, size, done)
        else:
            text = t.bash("p", "cat " + path).out
            size = size // 20 * 20
            for n in range(len(text) // size):
                wanted = ("%019d\n" % (n + 1)) * (size // 20)
                t.ok(all(c in (w, "\0") for c, w in zip(text[n * size:], wanted)),
                     "%s: write %d is wrong" % (path, n + 1))
    names = sorted(t.fb("ls", "--pool", "p").out.split())
    t.ok(set(names) >= {"synced", "tree"} and set(names) <= {"blocks", "lines", "synced", "tree"},
         "in the pool: %s" % names)
    works(t, "p")
    t.same(tree, t.walk("/fb/tree", "p"), "the tree after new work")
    # Again, named by the medium's own directory; now as at an orderly shutdown.
    end_keeper(t, "p")
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
    keeper = t.keeper("p")
    kill(keeper)
    wait_until(lambda: not alive(keeper), 5, "the killed keeper to be gone")
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


# ---- interrupted staging

def make_source(t, big=4):
    top = t.work + "/source"
    os.makedirs(top + "/many/deep")
    for n in range(300):
        t.file("%s/many/%sf%d" % (top, "deep/" if n % 4 == 0 else "", n), n * 37 % 9000, n)
    for n in range(10):
        t.file("%s/mib%d" % (top, n), (1 << 20) + n * 1000, n)
    for n in range(big):
        t.file("%s/big%d" % (top, n), (40 << 20) + n, n)
    with open(top + "/sparse", "wb") as f:
        f.truncate(5 << 20)
    os.symlink("many/deep", top + "/link")
    os.link(top + "/mib1", top + "/mib1-again")
    os.chmod(top + "/mib2", 0o700)
    os.chmod(top + "/many/deep", 0o755)
    return top


def interrupted(t, argv, seconds, number):
    """Starts a command and sends it a signal after a while. Its end, None if it was done first."""
    p = t.start(argv)
    try:
        p.wait(seconds)
    except Exception:
        p.send_signal(number)
    r = t.finish(p, rc=None)
    return None if r.rc == 0 else r


def interrupt_until(t, argv, number, least=2):
    """Interrupts a command at several moments; at least twice it has to be unfinished."""
    got = []
    for delay in (0.03, 0.012, 0.06, 0.1, 0.02, 0.15, 0.008):
        r = interrupted(t, argv, delay, number)
        if r is None:
            break
        t.ok(r.rc in (-number, 128 + number, 120), "after signal %d:\n%s" % (number, r.told()))
        got.append(r)
    t.ok(len(got) >= least, "interrupted only %d times; the source is too small" % len(got))
    return got


@case(50)
def staging_interrupted(t):
    source = make_source(t)
    wanted = t.walk(source)
    t.up("p", media=["memory:1G"])
    into = [t.forebay, "stage", "in", source, "/case", "--pool", "p"]
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        t.bash("p", "rm -rf /fb/case").quiet()
        interrupt_until(t, into, number)
        t.command(into).says("staged in")
        t.same(wanted, t.walk("/fb/case", "p"), "what was staged in after signal %d" % number)
    # A repetition moves nothing.
    r = t.fb("stage", "in", source, "/case", "--pool", "p", "--json").json()
    t.ok(r["moved_bytes"] == 0 and r["moved_files"] == 0, "a repetition moved: %s" % r)
    t.bash("p", "cd /fb/case; ls -A . many | grep forebay-part", rc=1)
    dest = t.work + "/dest"
    out = [t.forebay, "stage", "out", "/case", dest, "--pool", "p"]
    for number in (signal.SIGKILL, signal.SIGINT):
        shutil.rmtree(dest, ignore_errors=True)
        interrupt_until(t, out, number)
        t.command(out).says("staged out")
        t.same(wanted, t.walk(dest), "what was staged out after signal %d" % number)
    # Complete files had their names already, half of one never has: also right after a kill.
    shutil.rmtree(dest)
    interrupted(t, out, 0.06, signal.SIGKILL)
    for name, what in (t.walk(dest) if os.path.isdir(dest) else {}).items():
        if what[0] == "f" and ".forebay-part-" not in name:
            t.ok(what[2] == wanted[name][2] and what[4] == wanted[name][4],
                 "%s has its name, but not all of its content" % name)
    t.fb("down", "--pool", "p").quiet()
    t.nothing_left("down")


def started(path):
    wait_until(lambda: os.path.exists(path), 10, "the program to start")


@case(40)
def run_interrupted(t):
    dest, flag = t.work + "/dest", t.work + "/flag"
    run = [t.forebay, "run", "--media", "memory:512M"]
    body = 'mkdir /fb/r; head -c 3000000 /dev/zero > /fb/r/x; : > "$0"; '
    def ended_by(number):
        """The program is ended by it; what it made is staged out."""
        p = t.start(run + ["--out", "/r:" + dest, "--", "bash", "-c", body + "exec sleep 60", flag])
        try:
            started(flag)
            p.send_signal(number)
            r = t.finish(p, rc=128 + number, timeout=5)
            r.says("killed by signal %d" % number, "staged out /r")
            t.ok(os.path.getsize(dest + "/x") == 3000000, "x is not all there")
            t.nothing_left("run after signal %d" % number)
        finally:
            start_anew()

    def start_anew():
        t.kill_everything()
        for left in [dest] + [os.path.join(t.home, n) for n in os.listdir(t.home)]:
            shutil.rmtree(left, ignore_errors=True)
        if os.path.exists(flag):
            os.unlink(flag)

    def trapped():
        """A program that takes the signal decides about the exit code."""
        p = t.start(run + ["--out", "/r:" + dest, "--", "bash", "-c",
                           "trap 'echo caught > /fb/r/t; exit 7' TERM; " + body +
                           "while :; do sleep 0.05; done", flag])
        try:
            started(flag)
            p.send_signal(signal.SIGTERM)
            t.finish(p, rc=7, timeout=5)
            with open(dest + "/t") as f:
                t.ok(f.read() == "caught\n", "what the trap wrote is not there")
            t.nothing_left("run after a caught signal")
        finally:
            start_anew()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        t.check("signal %d" % number, ended_by, number)
    t.check("a caught signal", trapped)
    # During stage-in: nothing is run, nothing is left.
    source = make_source(t, 6)
    for number in (signal.SIGTERM, signal.SIGINT):
        p = t.start(run + ["--in", source + ":/case", "--", "touch", flag])
        time.sleep(0.08)
        p.send_signal(number)
        r = t.finish(p, rc=121).says("interrupted; nothing was run, and the pool is removed")
        t.ok(not os.path.exists(flag), "the program was run")
        t.nothing_left("run ended in stage-in")
    # During stage-out: the pool stays, and what is said is enough to get everything.
    wanted = t.walk(source)
    p = t.start(run + ["--pool", "keep-me", "--in", source + ":/case",
                       "--out", "/case:" + dest, "--", "touch", flag])
    started(flag)
    wait_until(lambda: os.path.isdir(dest), 10, "stage-out to begin")
    time.sleep(0.02)
    p.send_signal(signal.SIGTERM)
    r = t.finish(p, rc=120).says("stage-out is incomplete", "the pool 'keep-me' stays")
    fetch_the_rest(t, r, wanted, dest)
    # kill -9 of `run` itself: the pool is seen and removed with one command.
    os.unlink(flag)
    p = t.start(run + ["--pool", "lost", "--", "bash", "-c",
                       "mkdir /fb/r; exec 3> /fb/r/open; " + body[len("mkdir /fb/r; "):] +
                       "exec sleep 60", flag])
    started(flag)
    kill(p.pid)
    p.wait()
    t.fb("pools").prints("^lost +(running|stale)")
    t.fb("down", "--pool", "lost", rc=1).says("in use by", "forebay down --force --pool lost")
    t.fb("down", "--pool", "lost", "--force")
    t.nothing_left("down --force after kill -9 of run")


def printed_command(r, pattern):
    """A command that a message names, as arguments."""
    import shlex
    m = re.search(r"forebay (%s[^\n;]*)" % pattern, r.err)
    if not m:
        raise Failed("no command 'forebay %s' is named\n%s" % (pattern, r.told()))
    return shlex.split(m.group(1))


def fetch_the_rest(t, r, wanted, dest):
    r.says("fetch it with: forebay stage out")
    t.fb(*printed_command(r, "stage out"))
    t.same(wanted, t.walk(dest), "what was fetched")
    t.fb(*printed_command(r, "down --pool"))
    t.nothing_left("down")


# ---- unreachable, foreign, damaged

@case(30)
def pool_removed_under_programs(t):
    script = '''read -r x; /bin/echo a > /fb/x; echo "rc $?"; touch /fb/x; echo "touch $?"
        ls /fb; echo "ls $?"; cat /fb/there 2>/dev/null; echo "cat $?"; cd /fb; echo "cd $?"
        ls / > /dev/null; echo "still here $?"'''
    t.up("p")
    t.bash("p", "echo x > /fb/there")
    p = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c", script],
                stdin=-1)
    time.sleep(0.2)
    t.fb("down", "--pool", "p", "--force")
    r = t.finish(p, rc=0, feed=b"go\n")
    r.prints("^rc 1$", "^touch 1$", "^ls [12]$", "^cat 1$", "^cd 1$", "^still here 0$")
    # One line says what has happened and what to do; the programs' own errors follow.
    own = [x for x in r.err.splitlines() if x.startswith("forebay: ")]
    t.ok(own, "forebay says nothing\n" + r.told())
    one = own[0]
    t.check("the line", lambda: t.ok(
        "/fb" in one and re.search("gone|removed|no pool|no longer", one)
        and re.search("forebay (up|pools)", one),
        "it doesn't say that the pool is gone and what to do: %s\n%s" % (one, r.told())))
    # Each program says it once.
    env = {"FOREBAY_DIR": t.home + "/never-was", "FOREBAY_MOUNT": "/fb", "LD_PRELOAD": t.preload}
    r = t.command([sys.executable, "-c", '''
import os
for n in range(3):
    try:
        open("/fb/x", "w")
        print("opened")
    except OSError as e:
        print(e.errno)
print(os.path.exists("/fb/y"), os.path.isdir("/"))
'''], env=env)
    import errno
    r.prints("^%d$" % errno.ENOTCONN, "^False True$").one_line()
    t.check("a pool that never was", r.says, "/fb", "gone|removed|no pool|no longer")
    # Settings that lead nowhere don't harm who doesn't touch the pool.
    t.command(["bash", "-c", "echo ok; ls / > /dev/null"], env=env).prints("^ok$").quiet()
    # A program that has the pool open: rm -rf of its directory by somebody.
    t.up("q")
    p = t.start([t.forebay, "exec", "--pool", "q", "--", "bash", "-c", '''
        exec 3> /fb/open; echo ready; read -r x; echo more >&3; echo y > /fb/new; cat /fb/new
        ls /fb > /dev/null; (echo sub > /fb/sub); echo "end"'''], stdin=-1)
    p_out = p.stdout.readline()
    t.ok(p_out == b"ready\n", "the program did not start: %r" % p_out)
    shutil.rmtree(t.pool_dir("q"))
    r = t.finish(p, rc=0, feed=b"go\n")
    r.prints("^end$")
    t.fb("pools").says("no pools")
    wait_until(lambda: not t.ours(), 5, "the keeper of a removed pool to end")


@case(30)
def pool_of_another_user(t):
    if os.geteuid() != 0:
        return  # nobody else's directory can be made
    nobody = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    where = t.work + "/bin"
    os.mkdir(where)
    own = shutil.copy(t.forebay, where)
    shutil.copy(t.preload, where)
    t.up("p")
    t.bash("p", "echo secret > /fb/x")

    def other(*argv, rc=None, **env):
        return t.command(list(argv), rc, env=env, **nobody)
    for words in (["status"], ["df"], ["ls"], ["cat", "/x"], ["exec", "--", "cat", "/fb/x"],
                  ["down"], ["down", "--force"], ["up", "--reopen"],
                  ["stage", "out", "/x", "/tmp/never-made"]):
        r = other(own, words[0], "--pool", "p", *words[1:])
        t.check("as another user, " + " ".join(words), lambda: (
            t.ok(r.rc == 3, "exit code %s, not 3\n%s" % (r.rc, r.told())),
            r.one_line().says("belongs to another user|another user's", "FOREBAY_HOME")))
    r = other(own, "pools", rc=0)
    t.ok("secret" not in r.out, "pools shows too much")
    t.check("up", lambda: other(own, "up", "--pool", "n", "--media", "memory:16M").one_line().says(
        "belongs to another user", "FOREBAY_HOME"))
    r = other("bash", "-c", "cat /fb/x; echo y > /fb/y; echo $?", LD_PRELOAD=t.preload if
              os.access(t.preload, os.R_OK) else where + "/libforebay_preload.so",
              FOREBAY_DIR=t.pool_dir("p"), FOREBAY_MOUNT="/fb")
    r.prints("^1$").says("forebay: /fb: .*another user")
    t.ok("secret" not in r.out, "another user reads the pool\n" + r.told())
    t.bash("p", "cat /fb/x; ls /fb").prints("^secret$", "^x$")
    # Their own pool, in a home of their own; root can look at it.
    theirs = t.work + "/theirs"
    os.mkdir(theirs, 0o700)
    os.chown(theirs, 65534, 65534)
    env = {"FOREBAY_HOME": theirs}
    other(own, "up", "--pool", "n", "--media", "memory:16M", rc=0, **env)
    other(own, "exec", "--pool", "n", "--", "bash", "-c",
          "echo x > /fb/x; test -O /fb/x && test -O /fb", rc=0, **env).quiet()
    t.fb("status", "--pool", "n", env=env)
    other(own, "down", "--pool", "n", rc=0, **env)
    # A directory that anybody may write to is nobody's to trust, not even root's.
    os.chown(t.pool_dir("p"), 65534, 65534)
    os.chmod(t.pool_dir("p"), 0o777)
    for words in (["status"], ["exec", "--", "true"], ["down", "--force"]):
        t.fb(words[0], "--pool", "p", *words[1:], rc=3).one_line().says("another user")
    t.fb("pools").prints("^p +damaged")
    os.chown(t.pool_dir("p"), 0, 0)
    os.chmod(t.pool_dir("p"), 0o700)
    t.bash("p", "cat /fb/x").prints("^secret$")
    t.fb("down", "--pool", "p")


def damage(path, how):
    size = os.path.getsize(path)
    if how == "missing":
        os.unlink(path)
        return
    with open(path, "r+b") as f:
        if how == "empty":
            f.truncate(0)
        elif how == "short":
            f.truncate(min(size // 2, 8192))
        elif how == "garbage":
            f.write(noise(min(size, 1 << 20), 5))
        elif how == "zeros":
            f.write(bytes(min(size, 1 << 20)))


@case(50)
def damaged(t):
    config = r'"version": 3'
    ways = [("pool.json", h) for h in ("empty", "short", "garbage", "missing", "zeros")]
    ways += [("control", h) for h in ("empty", "short", "garbage", "missing", "zeros")]
    ways += [("medium-0/segment", h) for h in ("empty", "short", "missing")]
    ways += [("map-0", h) for h in ("empty", "short", "missing", "garbage")]
    ways += [("records/00", h) for h in ("empty", "missing", "garbage", "zeros")]
    ways += [("records", "gone"), ("medium-0", "gone")]
    ways += [("pool.json", w) for w in (
        (config, '"version": 99'), ('"shards": ', '"shards": 4000'),
        ('"mount": "/fb"', '"mount": "fb"'), ('"uuid": "', '"uuid": "../'))]
    for alive_keeper in (False, True):
        for file, how in ways if not alive_keeper else ways[::5]:
            what = "%s %s%s" % (file, how, ", keeper alive" if alive_keeper else "")
            t.check(what, damaged_one, t, file, how, alive_keeper)
            # Whatever came of it, the next one starts anew.
            t.kill_everything()
            shutil.rmtree(t.pool_dir("p"), ignore_errors=True)


def damaged_one(t, file, how, alive_keeper):
    t.up("p", media=["memory:16M"])
    t.bash("p", "echo hello > /fb/x; head -c 500000 /dev/urandom > /fb/y; sha256sum < /fb/y")
    if not alive_keeper:
        pid = t.keeper("p")
        kill(pid)
        wait_until(lambda: not alive(pid), 5, "the keeper's death")
    path = os.path.join(t.pool_dir("p"), file)
    if how == "gone":
        shutil.rmtree(path)
    elif isinstance(how, tuple):
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace(*how))
        t.ok(how[0] in text, "pool.json has no " + how[0])
    else:
        damage(path, how)
    bad = []
    # Records may be damaged where nobody looks at once; all else is noticed by everybody.
    records = file.startswith("records/") or how == "garbage" and file.startswith("medium")
    for words in (["status"], ["df"], ["exec", "--", "sha256sum", "/fb/x", "/fb/y"], ["ls", "-l"],
                  ["up", "--reopen"], ["up", "--media", "memory:16M"], ["pools"], ["down"]):
        began = time.monotonic()
        r = t.fb(words[0], "--pool", "p", *words[1:], rc=None, timeout=10)
        name = " ".join(words)
        if r.rc < 0 or r.rc > 128:
            bad.append("'%s' was killed by a signal\n%s" % (name, r.told()))
        if time.monotonic() - began > 5:
            bad.append("'%s' took %.1f s" % (name, r.seconds))
        if name == "pools":
            if r.rc != 0:
                bad.append("pools fails\n" + r.told())
            elif not records and "damaged" not in r.out:
                if not re.search("can't be used|forebay down --force", r.out):
                    bad.append("pools doesn't tell\n" + r.told())
        elif name.startswith("up --media"):
            if r.rc == 0 or r.err.count("forebay") == 0:
                bad.append("'%s' should not succeed\n%s" % (name, r.told()))
        elif not records:
            if r.rc != 3 or not re.search("the pool 'p' can't be used .*forebay down --force "
                                          "--pool p", r.err) or r.err.count("\n") != 1:
                bad.append("'%s' has exit code %s, not 3, or is unclear\n%s" % (
                    name, r.rc, r.told()))
        if name == "down" and r.rc == 0:
            break
    t.fb("down", "--pool", "p", "--force")
    t.nothing_left("down --force")
    if bad:
        raise Failed("\n".join(bad))
    t.up("p", media=["memory:16M"])
    t.fb("down", "--pool", "p").quiet()


def offset_of(path, what):
    with open(path, "rb") as f:
        at = f.read().find(what)
    if at < 0:
        raise Failed("%s has no %r" % (path, what))
    return at


@case(50)
def checked_and_repaired(t):
    """forebay fsck: what it finds, what it mends, and its exit codes."""
    t.fb("fsck", rc=8).one_line().says("there is no pool 'default'")

    def make():
        t.up("p", media=["memory:32M"])
        t.bash("p", "mkdir -p /fb/d/e; echo hello > /fb/d/e/x; seq 200000 > /fb/d/y; "
               "ln /fb/d/y /fb/z; ln -s d /fb/l; for i in $(seq 100); do echo $i > /fb/d/$i; done")
    make()
    t.fb("fsck", "--pool", "p").quiet().prints("^pool 'p': 10[0-9] objects, 10[0-9] names .* clean$")
    r = t.fb("fsck", "--pool", "p", "--json").json()
    t.ok(r["clean"] and r["findings"] == [] and not r["online"], "json: %s" % r)
    t.fb("fsck", "--repair", "--pool", "p").prints("clean$")
    t.ok(t.state("p") == "running", "the keeper didn't come back")
    # Under work, again and again; a repair has to wait.
    busy = t.start_python("p", WRITE_AND_CHECK, "/fb", "abc", "1000000", "1")
    for _ in range(20):
        t.fb("fsck", "--pool", "p").quiet().prints("clean$")
    r = t.fb("fsck", "--pool", "p", "--json").json()
    t.ok(r["clean"] and r["online"], "json: %s" % r)
    t.fb("fsck", "--repair", "--pool", "p", rc=8).one_line().says("in use by [0-9]+ .python")
    t.bash("p", "touch /fb/enough")
    t.finish(busy)
    t.bash("p", "rm /fb/enough")
    # Of everything, something; each time it is told, mended, and told no more.
    for file, how, words in (("control", "garbage", "control region .* can't be used"),
                             ("control", "zeros", "control region .* can't be used"),
                             ("control", "short", "control region .* can't be used"),
                             ("control", "missing", "control region .* can't be used"),
                             ("map-0", "garbage", "its map .* can't be used"),
                             ("map-0", "zeros", "its map .* can't be used"),
                             ("map-0", "missing", "its map .* can't be used")):
        what = "%s %s" % (file, how)
        kill(t.keeper("p"))
        damage(os.path.join(t.pool_dir("p"), file), how)
        t.fb("fsck", "--pool", "p", rc=8).one_line().says("can't be used")
        t.fb("fsck", "--repair", "--pool", "p", rc=1).prints(words + ".*repaired")
        t.fb("fsck", "--pool", "p").quiet().prints("clean$")
        t.ok(t.state("p") == "running", what + ": no keeper")
        t.bash("p", "test $(cat /fb/d/e/x) = hello; seq 200000 | cmp - /fb/z; cmp /fb/d/y /fb/z; "
               "test $(ls /fb/l/ | wc -l) = 102; for i in $(seq 100); do test $(cat /fb/d/$i) = $i; done; "
               "echo more > /fb/more; rm /fb/more").quiet()
    # A word here and there in the records and in the map.
    for n, (file, at) in enumerate([("records/%02d" % s, 8192 + 4096 * p + 100)
                                    for s in range(2) for p in range(4)]
                                   + [("map-0", 4096 + 128 + 64 * c) for c in range(6)]):
        wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 5, "a whole pool")
        keeper = t.keeper("p")
        kill(keeper)
        wait_until(lambda: not alive(keeper), 5, "the keeper's death")
        with open(os.path.join(t.pool_dir("p"), file), "r+b") as f:
            f.seek(at)
            f.write(noise(64, n))
        r = t.fb("fsck", "--pool", "p", rc=(0, 4))
        if r.rc == 4:
            t.fb("fsck", "--repair", "--pool", "p", rc=1).prints("repaired: ")
        t.fb("up", "--pool", "p", "--reopen")
        t.fb("fsck", "--pool", "p").quiet().prints("clean$")
        t.bash("p", "find /fb | wc -l; find /fb -type f -exec cat {} + > /dev/null").quiet()
        if r.rc == 4:
            t.fb("down", "--pool", "p")
            make()
    # What can't be repaired is said to be so.
    kill(t.keeper("p"))
    damage(os.path.join(t.pool_dir("p"), "records/01"), "zeros")
    t.fb("fsck", "--pool", "p", rc=4).prints("meta pages").says("forebay fsck --repair")
    t.fb("fsck", "--repair", "--pool", "p", rc=4).says("stage out what you need")
    damage(os.path.join(t.pool_dir("p"), "pool.json"), "garbage")
    for option in ([], ["--repair"], ["--json"]):
        t.fb("fsck", "--pool", "p", *option, rc=8).one_line().says("can't be used", "pool.json")
    t.damaged = True


HOLD_AND_STOP = r'''
import os, signal, sys
# Stops itself in the middle of a write: the kernel stops it at the page that isn't there yet.
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
pid = os.fork()
if pid == 0:
    import time
    time.sleep(0.05)
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(0)
while True:
    os.pwrite(fd, bytes(64 << 20), 0)
'''


@case(40)
def stopped_while_it_holds_a_lock(t):
    """Who waits for a stopped process says for whom, and goes on when it does."""
    t.up("p", media=["memory:256M"])

    def state(pid):
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    for attempt in range(20):
        holder = t.start_python("p", HOLD_AND_STOP, "/fb/f")
        wait_until(lambda: state(holder.pid) == "T", 10, "the holder's stop")
        waiter = t.start([t.forebay, "exec", "--pool", "p", "--", sys.executable, "-c",
                          "import os, sys, time; fd = os.open('/fb/f', os.O_WRONLY)\n"
                          "b = time.time(); os.write(fd, b'y'); os.write(fd, b'z'); print(time.time() - b)"])
        time.sleep(1.8)
        if waiter.poll() is None:
            break
        t.finish(waiter)
        # It was stopped just between two writes.
        kill(holder.pid, signal.SIGKILL)
        holder.wait()
    else:
        raise Failed("never stopped while it held the lock")
    stuck = t.fb("status", "--pool", "p").prints(
        r"^stuck +process %d \(python.*\) waits for process %d \(python.*\), which is stopped; "
        r"kill -CONT %d lets it go on$" % (waiter.pid, holder.pid, holder.pid))
    listed = t.fb("status", "--pool", "p", "--json").json()["stuck"]
    t.ok(listed == [{"process": waiter.pid, "waits_for": holder.pid}], "json: %s" % listed)
    # Others are not kept: neither other files nor the check of the pool as a whole.
    t.bash("p", "echo other > /fb/g; cat /fb/g").quiet().prints("^other$")
    r = t.fb("fsck", "--pool", "p", rc=4)
    r.prints("not looked at: .*process %d .*stopped" % holder.pid)
    kill(holder.pid, signal.SIGCONT)
    r = t.finish(waiter)
    t.ok(r.err == "forebay: waiting for a lock held by process %d (%s), which is stopped; kill -CONT %d "
         "lets it go on\n" % (holder.pid, name_of(holder.pid), holder.pid), "stderr:\n" + r.told())
    kill(holder.pid, signal.SIGKILL)
    holder.wait()


def name_of(pid):
    with open("/proc/%d/comm" % pid) as f:
        return f.read().strip()


@case(20)
def damaged_with_files(t):
    """What lies in the directory of `files` media isn't left there silently."""
    for how in ("garbage", "missing"):
        t.up("p", media=["files:%s:64M" % t.disk])
        t.bash("p", "head -c 5000000 /dev/zero > /fb/y")
        damage(t.pool_dir("p") + "/pool.json", how)
        r = t.fb("down", "--pool", "p", "--force")
        t.nothing_left("down --force")
        left = os.listdir(t.disk)
        t.check(how, t.ok, not left or re.search("files", r.err),
                "%s of 64 MiB stays in the medium's directory, and nothing says so\n%s" % (
                    left, r.told()))
        if left:
            # It can be had back from there, and then removed.
            t.fb("up", "--reopen", "--pool", "p", "--from", t.disk)
            t.bash("p", "test $(stat -c %s /fb/y) = 5000000").quiet()
            t.fb("down", "--pool", "p")
            t.ok(os.listdir(t.disk) == [], "left in the medium")


# ---- full media

@case(30)
def full_medium(t):
    t.up("p", media=["memory:8M"])
    t.bash("p", "head -c 1500000 /dev/urandom > /fb/keep; cd /fb; sha256sum keep > sum")
    r = t.bash("p", "dd if=/dev/zero of=/fb/big bs=1M count=20", rc=1)
    r.says("No space left on device")
    size = int(t.bash("p", "stat -c %s /fb/big").out)
    t.ok(5 << 20 <= size < 7 << 20, "the short file has %d bytes" % size)
    said = re.search(r"^(\d+) bytes", r.err, re.M)
    t.ok(said and int(said.group(1)) == size, "dd says that it wrote %s, the size is %d" % (
        said and said.group(1), size))
    t.ok(int(t.bash("p", "cat /fb/big | tr -d '\\0' | wc -c").out) == 0, "not all zeros")
    t.file(t.work + "/source", 4 << 20)
    t.exec("p", "cp", t.work + "/source", "/fb/copy", rc=1).says("No space left on device")
    t.bash("p", "cd /fb && sha256sum -c --quiet sum").quiet()
    t.fb("df", "--pool", "p").prints("^memory:8M +8.0 MiB +[78].* (9[0-9]|100)% ")
    t.python("p", r'''
import errno, os
fd = os.open("/fb/short", os.O_RDWR | os.O_CREAT)
total = 0
while True:
    try:
        n = os.write(fd, b"s" * 300000)
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
        break
    assert 0 < n <= 300000
    total += n
assert os.fstat(fd).st_size == total
assert os.pread(fd, total + 10, 0) == b"s" * total
# What needs no room goes on.
keep = os.open("/fb/keep", os.O_RDWR)
old = os.pread(keep, 100, 70000)
assert os.pwrite(keep, b"o" * 100, 70000) == 100
assert os.pread(keep, 100, 70000) == b"o" * 100
os.pwrite(keep, old, 70000)
os.rename("/fb/short", "/fb/renamed")
os.mkdir("/fb/dir")
os.symlink("x", "/fb/dir/l")
with open("/fb/dir/small", "w") as f:
    f.write("small")
assert open("/fb/dir/small").read() == "small"
try:
    os.posix_fallocate(fd, 0, 30 << 20)
    assert False, "fallocate of 30 MiB in 8"
except OSError as e:
    assert e.errno == errno.ENOSPC, e
assert os.fstat(fd).st_size == total
os.ftruncate(fd, 10)
assert os.read(keep, 5)
''').quiet()
    t.bash("p", "cd /fb && sha256sum -c --quiet sum && rm -r big renamed copy dir").quiet()
    # There is room again, for another file and for the next one.
    for _ in range(2):
        wait_until(lambda: t.used("p") < 2 << 20, 5, "room after rm")
        t.bash("p", "dd if=/dev/urandom of=/fb/again bs=1M count=6 && test $(stat -c %s "
                    "/fb/again) = 6291456 && rm /fb/again")
    t.bash("p", "cd /fb && sha256sum -c --quiet sum").quiet()
    t.fb("stage", "in", t.work + "/source", "/fits", "--pool", "p")
    t.file(t.work + "/too-large", 9 << 20)
    r = t.fb("stage", "in", t.work + "/too-large", "/large", "--pool", "p", rc=120)
    r.says("No space left|full", "forebay stage in")
    t.bash("p", "test ! -e /fb/large && cd /fb && sha256sum -c --quiet sum").quiet()
    t.fb("down", "--pool", "p")


@case(30)
def overflow(t):
    t.up("p", media=["memory:8M", "files:%s:64M" % t.disk])
    t.bash("p", '''set -e; cd /fb; for n in 1 2 3 4 5 6; do head -c $((n * 1777777)) /dev/urandom > f$n
        done; (for n in 1 2 3 4; do head -c 1000000 /dev/urandom; done) > g
        sha256sum f? g > sums; sha256sum -c --quiet sums''').quiet()
    media = t.fb("df", "--pool", "p", "--json").json()["media"]
    t.ok(media[0]["used"] > 6 << 20, "the first medium isn't full: %s" % media)
    t.ok(media[1]["used"] > 25 << 20, "the second medium isn't used: %s" % media)
    t.fb("cat", "/f6", "--pool", "p")
    t.bash("p", "cd /fb; dd if=/dev/zero of=big bs=1M count=100", rc=1).says("No space left")
    size = int(t.bash("p", "stat -c %s /fb/big").out)
    t.ok(size >= 28 << 20, "only %d MiB of about 31 fit" % (size >> 20))
    t.bash("p", "cd /fb; sha256sum -c --quiet sums").quiet()
    # From another process, after another program, and staged out.
    t.fb("stage", "out", "/", t.work + "/out", "--pool", "p")
    t.command(["sha256sum", "-c", "--quiet", "sums"], cwd=t.work + "/out").quiet()
    all_gives_room_back(t, "p")
    t.fb("down", "--pool", "p")
    t.ok(os.listdir(t.disk) == [], "left in the medium: %s" % os.listdir(t.disk))


@case(20)
def overflow_from_a_medium_in_pieces(t):
    """Free space in many small pieces is not a full medium."""
    t.up("p", media=["memory:8M", "files:%s:256M" % t.disk])
    t.bash("p", '''mkdir /fb/s; cd /fb/s; for i in $(seq 1 900); do head -c 8192 /dev/zero > f$i
        done; rm f*[13579]''').quiet()
    t.check("overflow", t.bash, "p", "head -c 30000000 /dev/urandom > /fb/big")
    t.check("all of the first medium", t.bash, "p",
            "dd if=/dev/zero of=/fb/many bs=4k count=40000")
    t.up("q", media=["memory:8M"])
    t.bash("q", '''mkdir /fb/s; cd /fb/s; for i in $(seq 1 900); do head -c 8192 /dev/zero > f$i
        done; rm f*[13579]''').quiet()
    t.check("3 MB in pieces", t.bash, "q", "head -c 3000000 /dev/urandom > /fb/big; wc -c < /fb/big; "
            "test $(stat -c %s /fb/big) = 3000000")


@case(30)
def run_with_too_little_room(t):
    t.file(t.work + "/large", 20 << 20)
    flag = t.work + "/flag"
    r = t.fb("run", "--media", "memory:8M", "--in", t.work + "/large:/x", "--", "touch", flag,
             rc=121)
    r.says("stage-in failed", "No space left|full", "nothing was run, and the pool is removed")
    t.check("a hint", r.says, "--media")
    t.ok(not os.path.exists(flag), "the program was run")
    t.nothing_left("run")
    r = t.fb("run", "--in", t.work + "/no-such:/x", "--", "touch", flag, rc=121)
    r.says("no-such", "nothing was run")
    t.nothing_left("run")
    # The program meets the full medium; what it made is staged out all the same.
    r = t.fb("run", "--media", "memory:8M", "--out", "/r:%s/r" % t.work, "--", "bash", "-c",
             "mkdir /fb/r; echo a > /fb/r/a; dd if=/dev/zero of=/fb/r/b bs=1M count=20", rc=1)
    r.says("No space left", "staged out /r", "exit code 1")
    t.ok(os.path.getsize(t.work + "/r/a") == 2, "a is not there")
    t.nothing_left("run")


@case(30)
def stage_out_impossible(t):
    make = "mkdir -p /fb/r/d; for n in 1 2 3; do head -c ${n}00000 /dev/urandom > /fb/r/f$n; done; " \
           "echo x > /fb/r/d/x; cd /fb/r; sha256sum f? d/x > sums"
    # A file where the directory should be.
    dest = t.work + "/dest"
    t.file(dest, 10)
    r = t.fb("run", "--out", "/r:%s/below" % dest, "--", "bash", "-c", make, rc=120)
    r.says("stage-out is incomplete, so the pool 'run-\\d+' stays", "program: exit code 0")
    os.unlink(dest)
    t.fb(*printed_command(r, "stage out"))
    t.command(["sha256sum", "-c", "--quiet", "sums"], cwd=dest + "/below").quiet()
    t.fb(*printed_command(r, "down --pool"))
    t.nothing_left("down")
    # One of the files can't be written; the others arrive.
    os.makedirs(t.work + "/two/f2/in-the-way")
    r = t.fb("run", "--pool", "two", "--out", "/r:%s/two" % t.work, "--", "bash", "-c", make,
             rc=120).says("f2", "the pool 'two' stays")
    t.ok(os.path.getsize(t.work + "/two/f3") == 300000, "f3 has not arrived")
    t.fb("stage", "out", "/r", t.work + "/two", "--pool", "two", rc=120).says("f2")
    os.rmdir(t.work + "/two/f2/in-the-way")
    os.rmdir(t.work + "/two/f2")
    t.fb(*printed_command(r, "stage out"))
    t.command(["sha256sum", "-c", "--quiet", "sums"], cwd=t.work + "/two").quiet()
    t.fb(*printed_command(r, "down --pool"))
    t.nothing_left("down")
    # The program's success without its results is none; its failure without them is its own.
    r = t.fb("run", "--pool", "three", "--out", "/none:%s/three" % t.work, "--", "true", rc=120)
    r.says("/none", "stays")
    t.fb("down", "--pool", "three")
    r = t.fb("run", "--out", "/none:%s/four" % t.work, "--", "bash", "-c", "exit 9", rc=9)
    r.says("nothing staged out of /none")
    # A full file system, where one can be made.
    small = t.work + "/small"
    os.mkdir(small)
    made = os.geteuid() == 0 and shutil.which("mount") and t.command(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small], rc=None).rc == 0
    if made:
        try:
            r = t.fb("run", "--out", "/r:%s/r" % small, "--", "bash", "-c", make, rc=120)
            r.says("No space left", "fetch it with: forebay stage out")
            for where, _, names in os.walk(small):
                for name in names:
                    if name in ("f1", "f2", "f3"):
                        t.ok(os.path.getsize(where + "/" + name) == int(name[1]) * 100000,
                             "%s is short and has its name" % name)
            t.command(["mount", "-o", "remount,size=10M", small])
            t.fb(*printed_command(r, "stage out"))
            t.command(["sha256sum", "-c", "--quiet", "sums"], cwd=small + "/r").quiet()
            t.fb(*printed_command(r, "down --pool"))
        finally:
            t.command(["umount", "-l", small], rc=None)
    t.nothing_left("the end")


# ---- mount prefixes, wrong usage

@case(20)
def mount_hides_a_directory(t):
    real = t.work + "/real"
    os.makedirs(real + "/sub")
    t.file(real + "/outside", 10)
    t.file(t.work + "/beside", 20)
    r = t.up("p", mount=real)
    r.says("warning: .*%s hides a directory that exists; programs in the pool won't see it" % real)
    t.ok(r.rc == 0, "up fails")
    t.bash("p", '''set -e; cd "$1"; test -z "$(ls -A)"; test ! -e outside; test ! -d sub
        ! cat outside 2>/dev/null; echo in > inside; mkdir sub; echo s > sub/s; cat "$1/inside"
        test "$(ls | tr '\\n' ' ')" = "inside sub "; test "$(pwd)" = "$1"
        cd ..; test -s beside; cd "$1/sub"; cat ../../beside > copy
        test "$(stat -c %s copy)" = 20; ls ../.. | grep -qx beside
        find "$1" -type f | wc -l''', real).prints("^in$", "^3$").quiet()
    # From the directory above it, with a relative path.
    t.check("relative path from above", lambda: t.bash(
        "p", 'cd "$1/.."; test ! -e real/outside; cat real/inside; cd real; ls', real
    ).prints("^in$", "^inside$").quiet())
    t.check("relative path from two above", lambda: t.bash(
        "p", 'cd "$1/../.."; cat work/real/inside; cd work; echo n > real/new; ls real', real
    ).prints("^in$", "^new$").quiet())
    t.check("openat from above", lambda: t.python("p", '''
import os, sys
d = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
assert os.stat("beside", dir_fd=d).st_size == 20
assert open(os.open("real/inside", os.O_RDONLY, dir_fd=d)).read() == "in\\n"
''', real).quiet())
    t.ok(sorted(os.listdir(real)) == ["outside", "sub"] and os.listdir(real + "/sub") == [],
         "the real directory was written to: %s" % os.listdir(real))
    t.fb("ls", "--pool", "p").prints("^inside$")
    t.fb("ls", "--pool", "p", real).prints("^inside$")
    # What lies under the prefix can't be staged: nobody could tell which is meant.
    t.fb("stage", "in", real + "/outside", "/x", "--pool", "p", rc=120).says("under the mount prefix")
    t.fb("down", "--pool", "p").quiet()
    t.ok(sorted(os.listdir(real)) == ["outside", "sub"], "down removed what is not the pool's")
    r = t.fb("run", "--mount", real, "--", "bash", "-c", 'test ! -e "$1/outside"', "bash", real)
    r.says("hides a directory")
    t.up("f", mount=t.work + "/beside").says("hides a file")
    t.bash("f", 'cd "$1" && echo x > y', t.work + "/beside").quiet()
    t.ok(os.path.getsize(t.work + "/beside") == 20, "the real file was changed")
    t.fb("down", "--pool", "f")
    # A long one, and one that is the beginning of a real name.
    t.up("g", mount=real + "/not/there/" + "x" * 100).quiet()
    t.bash("g", 'd="$1"; echo x > "$d/x"; cat "$d/x"; test ! -e "${d}x"; test -e "$2/outside"',
           real + "/not/there/" + "x" * 100, real).prints("^x$").quiet()


@case(20)
def refused_prefixes(t):
    own = t.work + "/myhome"
    os.mkdir(own)
    for mount in ("/", "//", "", "fb", "./fb", "/a/../b", "/a/./b", "/a//b", "/usr", "/usr/",
                  "/bin", "/lib", "/lib64", "/etc", "/tmp", "/dev", "/proc", "/sys", "/proc/self/x",
                  "/sys/x", own, t.work, t.home, t.base, t.disk, os.path.dirname(t.disk)):
        for words in (["up"], ["run"]):
            r = t.fb(words[0], "--mount", mount, "--media", "files:%s:16M" % t.disk,
                     *(["--", "touch", t.work + "/was-run"] if words == ["run"] else []),
                     rc=None, env={"HOME": own})
            t.check("%s --mount '%s'" % (words[0], mount), lambda: (
                t.ok(r.rc == 2, "exit code %s, not 2\n%s" % (r.rc, r.told())),
                r.one_line().says("--mount", "/fb")))
    t.fb("pools").says("no pools")
    t.ok(not os.path.exists(t.work + "/was-run"), "the program was run")
    t.ok(os.listdir(t.disk) == [], "left in the medium")
    # Refused is only what is needed.
    for mount in ("/fb/", "/a/b/c", "/tmp/below", own + "/fb", "/no-such"):
        t.up("p", mount=mount)
        t.fb("down", "--pool", "p")


@case(20)
def wrong_usage(t):
    def wrong(words, *patterns, rc=2):
        r = t.fb(*words, rc=None)
        t.check(" ".join(words), lambda: (
            t.ok(r.rc == rc, "exit code %s, not %s\n%s" % (r.rc, rc, r.told())),
            t.ok(r.out == "", "something on standard output\n" + r.told()),
            r.says(*patterns)))
    wrong(["up", "--meida", "memory:1G"], "--meida", "--media", "--help")
    wrong(["down", "--forse"], "--forse", "--force")
    wrong(["frobnicate"], "frobnicate", "--help")
    wrong(["stauts"], "stauts", "status")
    wrong([], "Usage", "Commands")
    wrong(["stage"], "Usage")
    wrong(["stage", "in", "x"], "DST", "Usage")
    wrong(["stage", "sideways", "a", "b"], "sideways")
    wrong(["run"], "CMD", "Usage")
    wrong(["exec", "--"], "CMD", "Usage")
    wrong(["ls", "--bogus"], "--bogus", "--help")
    wrong(["df", "--jsno"], "--jsno", "--json")
    wrong(["up", "--media", "memory:lots"], "'lots' is not a size", "4G")
    wrong(["up", "--media", "memory"], "memory:", "SIZE|4G")
    wrong(["up", "--media", "tape:4G"], "tape", "memory|files")
    wrong(["up", "--media", "memory:0"], "memory:0|size")
    wrong(["up", "--media", "memory:-1G"], "-1G")
    wrong(["up", "--media", "files:relative:1G"], "absolute")
    wrong(["up", "--media", "files:/x"], "files:DIRECTORY:SIZE|files:/local/ssd")
    wrong(["up", "--pool", "../x"], "../x", "letters")
    wrong(["up", "--pool", ""], "pool")
    wrong(["status", "--pool", "a/b"], "a/b", "letters")
    wrong(["run", "--in", "nothing", "--", "true"], "SRC:/DST")
    wrong(["run", "--out", "/r", "--", "true"], "/SRC:DST")
    wrong(["run", "--threads", "x", "--", "true"], "--threads")
    wrong(["up", "--media", "files:%s/none:16M" % t.work], "none", rc=1)
    wrong(["up", "--reopen", "--pool", "x", "--from", t.work + "/none"], "none", rc=1)
    t.fb("pools").says("no pools")
    t.ok(os.listdir(t.home) == [], "made: %s" % os.listdir(t.home))
    # Help is no error, and every command's has an example.
    t.fb("--help").prints("Usage", "120").quiet()
    t.fb("--version").prints(r"^forebay \d")
    for c in (["up"], ["down"], ["run"], ["exec"], ["stage"], ["stage", "in"], ["stage", "out"],
              ["ls"], ["cat"], ["df"], ["status"], ["pools"]):
        t.fb(*c, "--help").prints("^Example", "^  forebay " + " ".join(c)).quiet()
    # A pool that isn't there: the same message and code of all.
    for c in (["exec", "--", "true"], ["ls"], ["cat", "/x"], ["df"], ["status"], ["down"],
              ["stage", "in", t.work, "/x"], ["up", "--reopen"]):
        r = t.fb(c[0], "--pool", "none", *c[1:], rc=3)
        r.one_line().says("there is no pool 'none'", "forebay up --pool none", "forebay pools")


# ---- programs

@case(30)
def programs_that_do_not_touch_the_pool(t):
    t.up("p")
    r = t.bash("p", "ls / >/dev/null; echo ok").quiet()
    t.ok(r.out == "ok\n", "printed: %r" % r.out)
    r = t.python("p", "print('ok')").quiet()
    t.ok(r.out == "ok\n", "printed: %r" % r.out)
    t.bash("p", "ls -la / /usr/bin /proc/self/ > /dev/null; cat /etc/passwd | sort > /dev/null; "
                "cd /usr; cd ..; pwd; find /etc -name passwd > /dev/null 2>&1; sleep 0").quiet()
    # fifty at once
    many = [t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                     "echo $1 > /fb/many-$1; cat /fb/many-$1", "bash", str(n)]) for n in range(50)]
    for n, p in enumerate(many):
        r = t.finish(p, timeout=15).quiet()
        t.ok(r.out == "%d\n" % n, "process %d printed %r" % (n, r.out))
    t.bash("p", '''for n in $(seq 50); do (echo $n > /fb/sub-$n) & done; wait
        for n in $(seq 30); do /bin/true & done; wait; cat /fb/sub-* | sort -n | tail -1
        ls /fb/sub-* /fb/many-* | wc -l''').prints("^50$", "^100$").quiet()
    wait_until(lambda: t.fb("status", "--pool", "p", "--json").json()["processes"] == [], 3,
               "status to show no process")


@case(30)
def pipes_and_exit_codes(t):
    t.up("p")
    data = noise(8 << 20, 3)
    p = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                 "tee /fb/copy | cat | tee /fb/second"], stdin=-1)
    out, err = p.communicate(data, 20)
    t.ok(p.returncode == 0 and err == b"" and out == data, "8 MiB through pipes are not the same")
    t.bash("p", "cmp /fb/copy /fb/second && stat -c %s /fb/copy").prints("^8388608$").quiet()
    out = t.start([t.forebay, "cat", "/copy", "--pool", "p"]).communicate(timeout=20)[0]
    t.ok(out == data, "forebay cat prints something else")
    p = t.start(["bash", "-c", '"$0" cat /copy --pool p | head -c 10 | wc -c; echo ${PIPESTATUS[0]}',
                 t.forebay])
    t.finish(p).prints("^10$").quiet()
    odd = ["a b", "", "x\ny", "*", "$HOME", "-n", "--", "ä", "'"]
    r = t.exec("p", sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd)
    t.ok(r.out == repr(odd) + "\n", "arguments: " + r.out)
    t.python("p", "import os; print('EXTRA' in os.environ, os.getcwd())",
             env={"EXTRA": "1"}, cwd="/usr").prints("^True /usr$")

    def both(words, code, killed=None, *patterns):
        r = t.exec("p", *words, rc=None)
        t.check("exec " + words[-1], lambda: (
            t.ok(r.rc == (code if killed is None else -killed), r.told()), r.says(*patterns)))
        r = t.fb("run", "-q", "--media", "memory:16M", "--", *words, rc=None)
        t.check("run " + words[-1], lambda: (t.ok(r.rc == code, r.told()), r.says(*patterns)))
    both(["true"], 0)
    both(["false"], 1)
    both(["bash", "-c", "exit 3"], 3)
    both(["bash", "-c", "exit 120"], 120)
    both(["bash", "-c", "exit 255"], 255)
    both(["bash", "-c", "kill -9 $$"], 137, 9)
    both(["bash", "-c", "kill -15 $$"], 143, 15)
    both(["bash", "-c", "kill -SEGV $$"], 139, 11)
    both(["bash", "-c", "echo x > /fb/x; kill -9 $$"], 137, 9)
    both(["no-such-program"], 127, None, "no-such-program", "no such program")
    both(["/no/such/program"], 127, None, "no such program")
    both(["/etc/passwd"], 126, None, "/etc/passwd", "can't be executed", "chmod")
    both(["/etc"], 126, None, "/etc")
    t.exec("p", "bash", "-c", "(exit 4); echo $?; bash -c 'kill -9 $$'; echo $?").prints("^4$", "^137$")
    r = t.command(["bash", "-c", '"$0" exec --pool p -- bash -c "kill -9 \\$\\$"; echo $?',
                   t.forebay])
    r.prints("^137$")
    # Signals of a program are the usual ones, neither blocked nor ignored.
    for words in (["exec", "--pool", "p"], ["run", "-q", "--media", "memory:16M"]):
        r = t.fb(*words, "--", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
        masks = {a: int(b, 16) for a, b in re.findall(r"Sig(...):\s+([0-9a-f]+)", r.out)}
        usual = sum(1 << (s - 1) for s in (1, 2, 3, 10, 11, 13, 14, 15, 17))
        t.check("signals under " + words[0], lambda: t.ok(
            masks["Blk"] & usual == 0 and masks["Ign"] & usual & ~(1 << 12) == 0, r.out))
        p = t.start([t.forebay, *words, "--", "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"])
        t.check("SIGPIPE under " + words[0], lambda: t.finish(p).prints("^y$", "^141$"))
    r = t.fb("run", "-q", "--media", "memory:16M", "--", "cat", feed=b"from stdin\n")
    t.ok(r.out == "from stdin\n" and r.err == "", r.told())
    # A program in the pool.
    t.bash("p", "printf '#!/bin/sh\\necho \"script $1\"; exit 6\\n' > /fb/s; chmod +x /fb/s")
    t.exec("p", "/fb/s", "arg", rc=6).prints("^script arg$").quiet()
    t.exec("p", "cp", "/bin/echo", "/fb/echo").quiet()
    t.exec("p", "/fb/echo", "binary").prints("^binary$").quiet()


@case(20)
def run_without_media(t):
    times = []
    for _ in range(3):
        r = t.fb("run", "--", "true")
        times.append(r.seconds)
        r.says("pool 'run-\\d+' with memory:", "exit code 0")
        t.ok(r.out == "", "something on standard output\n" + r.told())
        t.nothing_left("run")
    t.ok(min(times) < 1, "run -- true takes %s s" % times)
    r = t.fb("run", "-q", "--", "bash", "-c", "echo x > /fb/x; cat /fb/x").quiet()
    t.ok(r.out == "x\n", r.told())
    t.fb("run", "--", "false", rc=1)
    t.fb("run", "--", "no-such-program", rc=127)
    t.nothing_left("run")
    # FOREBAY_POOL is not for run; a pool of that name stays untouched.
    r = t.fb("up", "--pool", "mine").prints(r"pool 'mine' is up: memory:\S+ .*available", "/fb; ")
    t.fb("run", "--", "touch", "/fb/x", env={"FOREBAY_POOL": "mine"}).says("pool 'run-")
    t.bash("mine", "test ! -e /fb/x; echo $?").prints("^0$")
    t.fb("run", "--pool", "mine", "--", "true", rc=1).says("'mine' exists already")
    t.fb("down", "--pool", "mine").quiet()
    # Several at the same time.
    many = [t.start([t.forebay, "run", "-q", "--media", "memory:16M", "--", "bash", "-c",
                     "echo $1 > /fb/x; cat /fb/x", "bash", str(n)]) for n in range(8)]
    for n, p in enumerate(many):
        t.ok(t.finish(p).out == "%d\n" % n, "run %d prints something else" % n)
    t.nothing_left("run")
    # What the program leaves running is ended, and that is said.
    r = t.fb("run", "--media", "memory:16M", "--", "bash", "-c",
             "(exec 3> /fb/x; exec sleep 100) > /dev/null 2>&1 & sleep 0.1")
    r.says("warning: ended what the program had left running: \\d+ \\(sleep\\)")
    t.nothing_left("run")
    r = t.fb("run", "--keep", "--pool", "kept", "--", "bash", "-c", "echo k > /fb/k")
    r.says("the pool 'kept' stays", "forebay down --pool kept")
    t.fb("cat", "/k", "--pool", "kept").prints("^k$")
    t.fb("down", "--pool", "kept").quiet()
    t.nothing_left("down")


@case(30)
def forks_and_redirections(t):
    t.up("p", media=["memory:128M"])
    t.bash("p", '''for n in $(seq 200); do ( echo "line $n of many" >> /fb/log ) & done; wait
        for n in $(seq 201 260); do ( for m in 1 2 3; do echo "line $n of many"; done >> /fb/log; ) &
        done; wait''').quiet()
    lines = sorted(t.bash("p", "cat /fb/log").out.splitlines())
    wanted = sorted(["line %d of many" % n for n in range(1, 201)]
                    + ["line %d of many" % n for n in range(201, 261)] * 3)
    t.ok(lines == wanted, "%d lines, not %d; wrong: %s" % (
        len(lines), len(wanted), sorted(set(lines) ^ set(wanted))[:5]))
    t.bash("p", '''set -e; mkdir /fb/jobs; cd /fb/jobs
        for n in $(seq 20); do seq $n > out$n 2> err$n & done; wait
        for n in $(seq 20); do test "$(tail -1 out$n)" = $n; test ! -s err$n; done
        ls none > o 2> e || true; test -s e; test ! -s o
        ls none > both 2>&1 || true; test -s both
        exec 3>>/fb/log2; bash -c 'echo x >&3'; bash -c 'exec bash -c "echo y >&3"'; (echo z >&3)
        exec 3>&-; test "$(tr '\\n' ' ' < /fb/log2)" = "x y z "; ! bash -c 'echo no >&3' 2> /dev/null
        exec 4<out20; read a <&4; b=$(head -c 2 <&4 | tr -d '\\n'); bash -c 'read c <&4; echo $c' > c
        exec 4<&-; test "$a" = 1; test "$b" = 2
        exec 5<>rw; echo one >&5; bash -c 'echo two >&5'; exec 5>&-; test "$(cat rw | wc -l)" = 2
        { echo a; bash -c 'echo b'; (echo c); } > group; test "$(tr -d '\\n' < group)" = abc
        cat > here <<END\nhere $((1 + 1))\nEND
        test "$(cat here)" = "here 2"; cat <<< word > word; grep -qx word word
        test "$(cat < here | tee t1 t2 | wc -c)" = 7; cmp t1 t2; sort < out20 | uniq | wc -l > n
        test "$(cat n)" = 20; diff <(seq 20) out20; while read -r x; do echo "$x"; done < out20 > o20
        cmp o20 out20; set -o noclobber; ! { echo x > o20; } 2> /dev/null; cmp o20 out20''').quiet()
    t.bash("p", '''set -e; mkdir -p /fb/dir/sub; cd /fb/dir; bash -c 'test "$(pwd)" = /fb/dir; echo x > y'
        test -s /fb/dir/y; /bin/pwd | grep -qx /fb/dir; (cd sub; touch z; exec ls) | grep -qx z
        env -C /fb/dir/sub ls | grep -qx z; python3 -c 'import os; assert os.getcwd() == "/fb/dir"'
        cd sub; cd ..; test "$(pwd -P)" = /fb/dir; cd /usr; test -e bin; cd - > /dev/null; test -e y
        ls -l /proc/self/cwd > /dev/null; perl -e 'exit !-e "y"' 2> /dev/null || test ! -x /usr/bin/perl
        cd sub; rmdir ../none 2> /dev/null || true; mv ../sub ../renamed; touch here
        test -e /fb/dir/renamed/here; test "$(/bin/pwd)" = /fb/dir/renamed''').quiet()
    t.bash("p", '''set -e; cd /fb; for m in 022 077 000 027; do umask $m; touch f$m; mkdir d$m
        bash -c "umask; touch g$m; (touch h$m)" > /dev/null; python3 -c "open('i$m', 'w')"; done
        stat -c '%n %a' [dfghi]0*''').prints(
            "^f022 644$", "^d022 755$", "^g022 644$", "^f077 600$", "^d077 700$", "^h077 600$",
            "^i077 600$", "^f000 666$", "^d000 777$", "^g000 666$", "^f027 640$", "^d027 750$",
            "^i027 640$").quiet()
    # fork, spawn, threads; a shared offset; close-on-exec; wait for all of it
    t.python("p", r'''
import os, subprocess, sys, threading
fd = os.open("/fb/shared", os.O_RDWR | os.O_CREAT)
for n in range(40):
    if os.fork() == 0:
        os.write(fd, b"%03d\n" % n)
        os._exit(0)
for n in range(40):
    assert os.wait()[1] == 0
assert sorted(os.pread(fd, 1000, 0).split()) == [b"%03d" % n for n in range(40)]
assert os.lseek(fd, 0, 1) == 160
r = subprocess.run(["bash", "-c", "echo x >&%d" % fd], stderr=subprocess.DEVNULL)
assert r.returncode != 0, "close-on-exec is not respected"
subprocess.run(["bash", "-c", "echo end >&%d" % fd], pass_fds=[fd], check=True)
assert os.pread(fd, 10, 160) == b"end\n"
with open("/fb/out", "w") as f:
    subprocess.run(["echo", "to a file"], stdout=f, check=True)
with open("/fb/out") as f:
    assert subprocess.run(["cat"], stdin=f, stdout=subprocess.PIPE).stdout == b"to a file\n"
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "echo $0; pwd", "spawned"], os.environ, file_actions=[
    (os.POSIX_SPAWN_OPEN, 1, "/fb/spawned", os.O_WRONLY | os.O_CREAT, 0o600)])
assert os.waitpid(pid, 0)[1] == 0
assert open("/fb/spawned").read().startswith("spawned\n")
def work(n):
    for m in range(20):
        with open("/fb/thread-%d" % n, "a") as f:
            f.write("%d\n" % m)
        if m % 10 == 0:
            subprocess.run(["bash", "-c", "echo s >> /fb/thread-%d" % n], check=True)
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[x.start() for x in threads]
[x.join() for x in threads]
for n in range(6):
    assert len(open("/fb/thread-%d" % n).readlines()) == 22
p = [subprocess.Popen(["sort", "-n"], stdin=subprocess.PIPE, stdout=open("/fb/sorted%d" % n, "wb"))
     for n in range(10)]
for q in p:
    q.stdin.write(b"".join(b"%d\n" % m for m in range(2000, 0, -1)))
    q.stdin.close()
assert [q.wait() for q in p] == [0] * 10
for n in range(10):
    assert open("/fb/sorted%d" % n).read().split() == [str(m) for m in range(1, 2001)]
''').quiet()
    t.fb("down", "--pool", "p").quiet()
    t.nothing_left("down")


THREADS_AND_FORKS = r'''
import os, subprocess, sys, threading
how = sys.argv[1]
wrong = []
os.makedirs("/fb/t-" + how)
def work(n):
    path = "/fb/t-%s/%d" % (how, n)
    lines = 0
    for m in range(40):
        try:
            with open(path, "a") as f:
                f.write("%d\n" % m)
            lines += 1
            if m % 5:
                continue
            if how == "vfork":
                subprocess.run(["true"], check=True)
            elif how == "fork":
                subprocess.run(["true"], check=True, preexec_fn=lambda: None)
            elif how == "spawn":
                pid = os.posix_spawn("/bin/true", ["true"], os.environ)
                assert os.waitpid(pid, 0)[1] == 0
            elif how == "child-in-pool":
                subprocess.run(["bash", "-c", "echo s >> " + path], check=True)
                lines += 1
            else:
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
        except Exception as e:
            wrong.append("thread %d, round %d: %r" % (n, m, e))
    with open(path) as f:
        got = len(f.readlines())
    if got != lines:
        wrong.append("%s has %d lines, not %d" % (path, got, lines))
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[x.start() for x in threads]
[x.join() for x in threads]
for w in wrong[:10]:
    print(w, file=sys.stderr)
sys.exit(1 if wrong else 0)
'''


@case(40)
def threads_that_start_programs(t):
    t.up("p", media=["memory:128M"])
    for how in ("vfork", "fork", "spawn", "child-in-pool", "plain-fork"):
        for turn in range(3):
            t.check(how, lambda: t.python("p", THREADS_AND_FORKS, how).quiet())
            t.bash("p", "rm -rf /fb/t-*")


@case(20)
def no_room_for_addresses(t):
    """Under a tight `ulimit -v` the pool is out of reach: what is relative to a working directory
    in it fails, rather than be done where the kernel believes the process to be."""
    t.up("p")
    before = sorted(os.listdir(t.disk))
    script = """
        cd %s; cd /fb; echo inside > file
        ( ulimit -v 150000; cat file; bash -c 'echo wrong > made; mkdir made-too; pwd'; true ) 2>&1
        cat file; ls
        ( ulimit -v 150000; bash -c 'cd /; pwd; ls -d .' ) 2> /dev/null
    """ % t.disk
    r = t.bash("p", script)
    r.prints("^cat: file: Transport endpoint is not connected$", "^inside$", "^file$", "^/$", r"^\.$")
    t.ok(r.out.count("not connected") >= 3 and "\nmade" not in r.out, "not refused: %s" % r.out)
    t.ok(sorted(os.listdir(t.disk)) == before, "something was written outside the pool")


# ---- idle

def stat_fields(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()


def anonymous_and_code(pid):
    """Memory of a process that is its own: what it maps of the pool is the pool's."""
    with open("/proc/%d/status" % pid) as f:
        fields = dict(line.split(":", 1) for line in f)
    return sum(int(fields[k].split()[0]) << 10 for k in ("RssAnon", "RssFile"))


def tree_blocks(top):
    return sum(os.lstat(os.path.join(d, n)).st_blocks * 512
               for d, _, names in os.walk(top) for n in names)


@case(60)
def idle(t):
    """A pool that nobody uses costs no CPU, and little memory beyond its data and reserve."""
    t.up("p", "--reserve", "64M", media=["memory:2G"])
    t.bash("p", "mkdir /fb/d; for i in $(seq 2000); do echo $i > /fb/d/$i; done; "
           "head -c 100000000 /dev/urandom > /fb/big; rm /fb/d/1*")
    keeper = t.keeper("p")

    def ticks():
        f = stat_fields(keeper)
        return int(f[11]) + int(f[12])
    time.sleep(3)
    before = ticks()
    time.sleep(12)
    t.ok(ticks() == before, "the keeper of an idle pool used %d ticks in 12 s" % (ticks() - before))
    m = t.fb("df", "--pool", "p", "--json").json()["media"][0]
    t.ok(m["reserve"] == 64 << 20 and m["reserved"] - m["used"] <= (64 << 20) + (8 << 20),
         "the reserve isn't what was asked for: %s" % m)
    t.fb("status", "--pool", "p").prints(r"kept ready \(at most 64\.0 MiB\)")
    beyond = tree_blocks(t.pool_dir("p")) - m["reserved"] + anonymous_and_code(keeper)
    t.ok(beyond < 30e6, "%.1f MB beyond data and reserve, %.1f of it the keeper" % (
        beyond / 1e6, anonymous_and_code(keeper) / 1e6))
    t.fb("up", "--pool", "none", "--reserve", "0", "--media", "memory:256M")
    m = t.fb("df", "--pool", "none", "--json").json()["media"][0]
    t.ok(m["reserve"] == 0 and m["reserved"] <= 8 << 20, "without a reserve: %s" % m)
    t.fb("up", "--pool", "x", "--reserve", "much", rc=2)
