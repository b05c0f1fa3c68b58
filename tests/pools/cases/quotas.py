"""Quotas of campaigns: enforced by their pools, on all nodes and faces."""
import os
import signal
import time

from harness import alive, case, wait_until
from cases.campaigns import Site, tree
from cases.mounts import mounted

# Programs on several nodes use the same directory until nothing more goes; says what was accepted.
FILL = r'''
import errno, os, sys
top, me, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
made = held = 0
why = None
try:
    for number in range(100000):
        path = "%s/%s-%d" % (top, me, number)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        made += 1
        done = 0
        while done < size:
            n = os.write(fd, b"x" * min(65536, size - done))
            done += n
            held += n
        os.close(fd)
except OSError as e:
    why = errno.errorcode[e.errno]
print(made, held, why)
'''

# What statfs(2) tells: bytes, free ones, files, free ones.
STATFS = "import os, sys; s = os.statvfs(sys.argv[1]); print(s.f_blocks << 12, s.f_bavail << 12, s.f_files, s.f_favail)"

# Each kind of growth that is to be refused, and one that isn't. Arguments: a directory with a file
# `full`; whether bytes or files are used up.
REFUSED = r'''
import errno, os, sys
top, what = sys.argv[1], sys.argv[2]
def refused(name, f):
    try:
        f()
    except OSError as e:
        assert e.errno == errno.EDQUOT, (name, e)
    else:
        raise AssertionError(name + " was let through")
at = top + "/full"
fd = os.open(at, os.O_RDWR)
size = os.fstat(fd).st_size
if what == "bytes":
    refused("pwrite", lambda: os.pwrite(fd, b"1", size))
    refused("append", lambda: os.write(os.open(at, os.O_WRONLY | os.O_APPEND), b"1"))
    refused("writev", lambda: os.pwritev(fd, [b"1", b"2"], size))
    refused("truncate", lambda: os.truncate(at, size + 1))
    refused("ftruncate", lambda: os.ftruncate(fd, size + 4096))
    refused("fallocate", lambda: os.posix_fallocate(fd, 0, size + 1))
    refused("hole", lambda: os.pwrite(fd, b"1", size + (1 << 30)))
    assert os.fstat(fd).st_size == size
    assert os.pwrite(fd, b"new", 0) == 3
    os.close(os.open(top + "/empty", os.O_CREAT | os.O_WRONLY))
    os.unlink(top + "/empty")
else:
    refused("open", lambda: os.open(top + "/o", os.O_CREAT | os.O_WRONLY))
    refused("mkdir", lambda: os.mkdir(top + "/newdir"))
    refused("symlink", lambda: os.symlink("x", top + "/s"))
    refused("mkfifo", lambda: os.mkfifo(top + "/p"))
    assert os.pwrite(fd, b"more", size) == 4
    os.ftruncate(fd, size)
    os.rename(at, top + "/renamed")
    os.rename(top + "/renamed", at)
print("as it should be")
'''


def status(t, pool="case"):
    return t.fb("origin", "status", "--json", "--pool", pool).json()["quota"]


def used(t, pool="case"):
    found = status(t, pool)
    return found["used_bytes"], found["used_files"]


@case(limit=60)
def quotas_of_one_node(t):
    """Bytes and files: refused at the quota, by the library and a mount; removing, a larger quota help."""
    site = Site(t)
    site.fb("create", "case", "2M,20files,scratch,1d")
    top = site.path("case")
    with open(top + "/old", "wb") as f:
        f.write(b"o" * 500000)
    os.mkdir(top + "/sub")
    with open(top + "/sub/other", "wb") as f:
        f.write(b"o" * 100000)
    site.fb("show", "case", "--count")
    site.fb("up", "case", "--media", "memory:64M")
    t.ok(used(t) == (600000, 3), used(t))
    left = (2 << 20) - 600000
    t.bash("case", "head -c %d /dev/zero > %s/full" % (left, top))
    t.ok(used(t) == (2 << 20, 4), used(t))
    t.python("case", REFUSED, top, "bytes").prints("as it should be")
    with mounted(t, "case") as at:
        t.command(["python3", "-c", REFUSED, at, "bytes"]).prints("as it should be")
    # Through a mount, and by the origin service: what the origin has comes in, and leaves again.
    t.bash("case", "cat %s/old > /dev/null; forebay=1; "
                   "cmp %s/old <(head -c 500000 /dev/zero | tr '\\0' o)" % (top, top))
    t.fb("origin", "sync", "--pool", "case")
    t.fb("origin", "evict", "--pool", "case")
    t.ok(used(t) == (2 << 20, 4), "after evicting: %s" % (used(t),))
    t.python("case", REFUSED, top, "bytes").prints("as it should be")
    # A released file that is cut, one that is removed; in a directory that wasn't listed before, too.
    t.fb("origin", "sync", "--pool", "case")
    t.fb("origin", "evict", "--pool", "case")
    t.bash("case", ": > %s/old; rm -r %s/sub" % (top, top))
    t.ok(used(t) == (left, 2), "after removing: %s" % (used(t),))
    t.bash("case", "head -c 600000 /dev/zero > %s/again" % top)
    # An open file counts until it is closed.
    t.bash("case", "exec 3<> {0}/again; rm {0}/again; ! head -c 600000 /dev/zero > {0}/x".format(top))
    t.bash("case", "rm -f {0}/x; head -c 600000 /dev/zero > {0}/x; rm {0}/x".format(top))
    t.ok(used(t) == (left, 2), "after closing: %s" % (used(t),))
    # Files.
    t.bash("case", "cd %s; mkdir d; for n in {1..17}; do : > d/$n; done; "
                   "! : > d/more; ls d | wc -l" % top).prints("^17$")
    t.python("case", REFUSED, top, "files").prints("as it should be")
    with mounted(t, "case") as at:
        t.command(["python3", "-c", REFUSED, at, "files"]).prints("as it should be")
        t.bash("case", "rm %s/d/1" % top)
        t.command(["python3", "-c", "open('%s/d/new', 'w')" % at])
    # A rename onto another file, and a link, take no more.
    t.bash("case", "cd %s/d; ln 2 3 2>/dev/null; mv 4 5; : > 4; ! : > more" % top)
    # More.
    site.fb("quota", "case", "--files", "30", "--size", "3M").says("quota of 'case' is 3.0 MiB, 30 files")
    counted = used(t)
    room = "^%d %d 30 %d$" % (3 << 20, (3 << 20) - counted[0] >> 12 << 12, 30 - counted[1])
    t.python("case", STATFS, top).prints(room)
    with mounted(t, "case") as at:
        t.command(["python3", "-c", STATFS, at]).prints(room)
    t.bash("case", "cd %s; : > d/more; head -c 1000000 /dev/zero > d/large" % top)
    site.fb("quota", "case", "--size", "1M")
    t.bash("case", "cd %s; ! head -c 10 /dev/zero > d/y; rm d/y" % top)
    words = "quota .*2.4 MiB of 1.0 MiB, 22 of 30 files"
    for told in (("origin", "status"), ("df",), ("status",)):
        t.fb(*told, "--pool", "case").prints(words)
    site.fb("show", "case").prints("in its pool +2.4 MiB of 1.0 MiB, 22 of 30 files")
    counted = used(t)
    site.fb("down", "case")
    usage = site.show("case")["usage"]
    t.ok((usage["bytes"], usage["files"]) == counted, "the pool counted %s, the place has %s" % (counted, usage))
    # The keeper is killed: what it knew isn't lost.
    site.fb("quota", "case", "--size", "10M", "--files", "none")
    site.fb("up", "case", "--media", "memory:64M")
    t.bash("case", "head -c 1000000 /dev/zero > %s/kept" % top)
    before = used(t)
    keeper = t.keeper("case")
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not alive(keeper), 5, "the keeper's death")
    t.fb("up", "--reopen", "--pool", "case")
    t.ok(used(t) == before, used(t))
    site.fb("down", "case")


@case(limit=60)
def quota_below_a_directory(t):
    """A pool that isn't a campaign's; collections, staging, files that others make at the origin."""
    top = os.path.join(t.disk, "origin")
    os.mkdir(top)
    with open(top + "/old", "wb") as f:
        f.write(b"o" * 1000)
    t.fb("up", "--pool", "p", "--quota-bytes", "1M", rc=2).says("--origin")
    t.up("p", "--origin", top + "=/data", "--quota-bytes", "1M", "--quota-files", "12", "--origin-lag", "0.1")
    t.ok(used(t, "p") == (1000, 1), used(t, "p"))
    # What is beside the origin counts, too.
    t.bash("p", "cd /fb; mkdir other; head -c 500000 /dev/zero > other/x; head -c 500000 /dev/zero > data/y; "
           "! head -c 100000 /dev/zero > other/z; rm other/z")
    t.ok(used(t, "p") == (1001000, 4), used(t, "p"))
    os.mkdir(t.work + "/tree")
    for name in "abc":
        t.file("%s/tree/%s" % (t.work, name), 20000)
    t.fb("stage", "in", "--pool", "p", t.work + "/tree", "/data/tree", rc=None).says("quota")
    t.bash("p", "rm -r /fb/data/tree /fb/other")
    t.ok(used(t, "p") == (501000, 2), used(t, "p"))
    t.fb("stage", "in", "--pool", "p", t.work + "/tree", "/data/tree")
    # Others change the origin: that counts, and is never refused.
    t.fb("origin", "sync", "--pool", "p")
    for n in range(7):
        with open("%s/by-others-%d" % (top, n), "wb") as f:
            f.write(b"b" * 100)
    with open(top + "/old", "wb") as f:
        f.write(b"n" * 3000)
    os.unlink(top + "/y")
    wanted = (3000 + 60000 + 700, 12)
    wait_until(lambda: used(t, "p") == wanted, 20, lambda: "what others did: %s" % (used(t, "p"),))
    t.bash("p", "cd /fb/data; ! : > new; cat by-others-3 > /dev/null; rm by-others-*; : > new")
    t.ok(used(t, "p") == (63000, 6), used(t, "p"))
    # Files that are removed by their last closing, by a process that is killed, too.
    t.bash("p", "cd /fb/data; exec 3> gone; rm gone; head -c 100000 /dev/zero >&3; kill -9 $$", rc=None)
    wait_until(lambda: used(t, "p") == (63000, 6), 15, lambda: "a killed process: %s" % (used(t, "p"),))
    # Collections: files each, by the verbs.
    t.fb("workspace", "create", "w", "--pool", "p", rc=None)
    t.fb("down", "--pool", "p")
    t.ok(sorted(os.listdir(top)) == ["new", "old", "tree"], os.listdir(top))


def on_nodes(t, script, words):
    """Starts a Python script on each of the three nodes; `words(node)` are its arguments."""
    return [t.start([t.forebay, "exec", "--pool", "case", "--node", str(n), "--", "python3", "-c", script, *words(n)])
            for n in range(3)]


@case(limit=90)
def quotas_of_several_nodes(t):
    """Programs of three nodes use up one quota: all of it, and never more; nothing accepted is lost."""
    site = Site(t)
    site.fb("create", "case", "8M,60files,scratch,1d")
    top = site.path("case")
    site.fb("up", "case", "--nodes", "3", "--media", "memory:64M")

    def fill(size):
        running = on_nodes(t, FILL, lambda n: (top, "n%d" % n, str(size)))
        made = held = 0
        for p in running:
            out, err = p.communicate(timeout=40)
            words = out.decode().split()
            t.ok(p.returncode == 0 and words[2] == "EDQUOT", "%s %s" % (out, err))
            made, held = made + int(words[0]), held + int(words[1])
        return made, held

    # Bytes end first: each of the three may have been refused the rest of its file.
    made, held = fill(300000)
    bytes_used, files_used = used(t)
    t.ok(files_used == made and bytes_used <= 8 << 20, "%s, but %d files" % (used(t), made))
    t.ok(bytes_used >= (8 << 20) - 3 * 65536, "only %d bytes were granted" % bytes_used)
    t.ok(held <= bytes_used, "more was accepted than counts: %d of %d" % (held, bytes_used))
    t.fb("exec", "--pool", "case", "--node", "1", "--", "bash", "-c",
         "rm {0}/n0-0 {0}/n2-*; head -c 250000 /dev/zero > {0}/again".format(top))
    # Files end first; a node other than theirs removes them.
    t.fb("exec", "--pool", "case", "--node", "2", "--", "bash", "-c", "rm %s/*" % top)
    t.ok(used(t) == (0, 0), used(t))
    made, _ = fill(10)
    t.ok(made == 60 and used(t) == (600, 60), "%d files, %s" % (made, used(t)))
    t.fb("exec", "--pool", "case", "--node", "0", "--", "bash", "-c",
         "rm {0}/n1-0; : > {0}/again; ! : > {0}/more".format(top))
    site.fb("quota", "case", "--files", "61")
    t.fb("exec", "--pool", "case", "--node", "2", "--", "bash", "-c", "mkdir {0}/d; ! mkdir {0}/e".format(top))
    site.fb("down", "case")
    found = tree(top)
    t.ok(len(found) == 60 and all(len(v) in (10, 0) for v in found.values()), sorted(found))
    site.fb("show", "case").prints("61 of 61 files")


# Makes, extends, cuts and removes files until it is killed.
CHURN = r'''
import os, random, sys
top, me = sys.argv[1], sys.argv[2]
draw = random.Random(me)
print("begun", flush=True)
while True:
    path = "%s/%s-%d" % (top, me, draw.randrange(20))
    try:
        kind = draw.randrange(5)
        if kind < 3:
            with open(path, "ab") as f:
                f.write(b"x" * draw.randrange(60000))
        elif kind == 3:
            os.truncate(path, draw.randrange(100000))
        else:
            os.unlink(path)
    except OSError:
        pass
'''


@case(limit=60)
def quota_while_programs_are_killed(t):
    """Charges of killed programs may be left, a part of a file each; never is more let through than the quota."""
    site = Site(t)
    site.fb("create", "case", "3M,100files,scratch,1d")
    top = site.path("case")
    site.fb("up", "case", "--nodes", "3", "--media", "memory:64M")
    kills, running = 0, []
    try:
        for turn in range(4):
            running = on_nodes(t, CHURN, lambda n: (top, "%d.%d" % (n, turn)))
            for p in running:
                t.ok(p.stdout.readline() == b"begun\n", "it didn't begin")
            time.sleep(0.4)
            for p in running:
                p.kill()
                p.wait()
                p.stdout.close()
                p.stderr.close()
                kills += 1
    finally:
        for p in running:
            p.kill()
            p.wait()
    t.fb("origin", "sync", "--pool", "case")
    there = tree(top)
    size = sum(map(len, there.values()))
    t.ok(size <= 3 << 20 and len(there) <= 100, "%d bytes in %d files were let through: %s; %s count" % (
        size, len(there), sorted((name, len(text)) for name, text in there.items()), used(t)))

    def is_counted():
        # What the dead had open is released by the keepers a moment later.
        found = used(t)
        return 0 <= found[0] - size <= kills * 60000 and 0 <= found[1] - len(there) <= kills

    wait_until(is_counted, 15, lambda: "%d bytes in %d files are there, %s count" % (size, len(there), used(t)))
    site.fb("down", "case")
    usage = site.show("case")["usage"]
    t.ok((usage["bytes"], usage["files"]) == (size, len(there)), usage)
