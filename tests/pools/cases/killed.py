"""kill -9 of everything that uses a pool, and of its keeper."""
import os
import shutil
import signal

from harness import Failed, Lines, alive, case, kill, wait_until

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
    # A dead pool can be removed as well.
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
    # With memory among the media nothing can be recovered, and the error says so.
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


@case(limit=30)
def medium_that_is_in_use(t):
    """A medium that a keeper with another home has isn't opened; once that is dead, it is, and its old home stays out."""
    home = t.base + "/other"
    os.mkdir(home, 0o700)
    other = {"FOREBAY_HOME": home}
    t.up("p", media=("files:%s:64M" % t.disk,))
    t.bash("p", "echo here > /fb/f; sync /fb/f")
    reopen = ("up", "--reopen", "--pool", "p", "--from", t.disk)
    t.fb(*reopen, env=other, rc=1).says("is in use: a keeper of the pool 'p' runs, with another FOREBAY_HOME")
    t.bash("p", "cat /fb/f").prints("^here$")
    kill(t.keeper("p"))
    t.fb(*reopen, env=other).prints("reopened from")
    try:
        t.exec("p", "cat", "/fb/f", env=other).prints("^here$")
        t.fb("up", "--reopen", "--pool", "p", rc=1).says("is in use")
    finally:
        t.fb("down", "--pool", "p", "--force", env=other)
    t.fb("down", "--pool", "p", "--force", rc=None)
