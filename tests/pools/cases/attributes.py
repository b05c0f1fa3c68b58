"""Files with many attributes, and the names of lost objects: nothing needs room that nobody reserved."""
import os
import random
import time

from harness import alive, case, kill, wait_until

# Renames, replaces, links and removes files and directories with many attributes. A file's node and
# its names' nodes differ in a pool of several nodes.
MANY = r'''
import os, sys
os.makedirs(sys.argv[1] + "/d", exist_ok=True)
os.chdir(sys.argv[1])
def tagged(path, many=1200, is_dir=False):
    os.mkdir(path) if is_dir else open(path, "w").write("data")
    for i in range(many):
        os.setxattr(path, "user.k%d" % i, b"v%d" % (i % 7))
    os.setxattr(path, "user.is", path.encode())
tagged("x")
last = "x"
for to in ("y", "d/z", "x"):
    os.rename(last, to)
    assert not os.path.exists(last)
    last = to
    assert len(os.listxattr(to)) == 1201
    by = os.listdir(sys.argv[2] + "/.by/is=x/k3=v3/k1199=v2")
    assert by == [os.path.basename(to)], by
os.link("x", "d/second")
os.unlink("x")
assert os.listdir(sys.argv[2] + "/.by/is=x") == ["second"]
tagged("target", 300)
os.rename("d/second", "target")
fd = os.open("target", os.O_RDONLY)
os.unlink("target")
assert len(os.listxattr(fd)) == 1201
os.close(fd)
tagged("dir", 500, True)
os.rename("dir", "d/dir")
assert os.listdir(sys.argv[2] + "/.by/is=dir") == ["dir"]
os.rmdir("d/dir")
assert sorted(os.listdir(".")) == ["d"] and os.listdir("d") == []
'''

# Fills the records of one shard after the other with attributes of a file, which then is renamed,
# replaced and removed.
FULL = r'''
import errno, os, sys
os.makedirs(sys.argv[1] + "/d", exist_ok=True)
os.chdir(sys.argv[1])
def fill(path, size, name, most=100000):
    for n in range(most):
        try:
            os.setxattr(path, "user.%s%d" % (name, n), os.urandom(4) + b"v" * size)
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
            return n
    return most
def full(path):
    open(path, "w").write("x")
    fill(path, 1, "first", 1000)
    assert fill(path, 60000, "large") < 1000
    for size in (2000, 300, 1):
        fill(path, size, "s%d-" % size)
full("a")
os.rename("a", "d/b")
os.unlink("d/b")
full("a")
open("other", "w").write("o")
os.rename("other", "a")
assert open("a").read() == "o"
os.unlink("a")
full("a")
fd = os.open("a", os.O_RDWR)
os.unlink("a")
assert os.getxattr(fd, "user.first7")[4:] == b"v"
os.close(fd)
assert os.listdir(".") == ["d"] and os.listdir("d") == []
'''

# Renames and removes files with many attributes until it is killed.
AT_IT = r'''
import os, sys
d = sys.argv[1]
os.makedirs(d + "/d", exist_ok=True)
n = 0
while True:
    n += 1
    for m in range(2):
        f = "%s/f%s.%d.%d" % (d, sys.argv[2], n, m)
        open(f, "w").write("data")
        for i in range(120):
            os.setxattr(f, "user.k%d" % i, b"v")
    if n == 1:
        print("at it", flush=True)
    for to in ("%s/d/g%s.%d", "%s/h%s.%d", "%s/d/i%s.%d"):
        to %= (d, sys.argv[2], n)
        os.rename(f, to)
        f = to
    os.rename("%s/f%s.%d.0" % (d, sys.argv[2], n), f)
    if n % 2:
        os.unlink(f)
'''

AGREES = r'''
import os, sys
d, mount = sys.argv[1:]
for key in ("k0=v", "k119=v", "k7=v/k80=v"):
    by = sorted(n.split("#")[0] for n in os.listdir(mount + "/.by/" + key))
    have = []
    for where in (d, d + "/d"):
        for n in os.listdir(where):
            names = os.listxattr(where + "/" + n)
            if all("user." + k.split("=")[0] in names for k in key.split("/")):
                have.append(n)
    assert by == sorted(have), (key, by, sorted(have))
'''


def clean(t):
    wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 10, "a clean pool")


def with_many_attributes(t, nodes):
    t.up("p", "--nodes", str(nodes))
    for node in range(nodes):
        on = ["--node", str(node)] if nodes > 1 else []
        t.fb("exec", "--pool", "p", *on, "--", "python3", "-c", MANY, "/fb/m%d" % node, "/fb")
        t.fb("exec", "--pool", "p", *on, "--", "python3", "-c", FULL, "/fb/f%d" % node,
             timeout=40)
    t.fb("fsck", "--pool", "p").prints("clean$")
    t.fb("down", "--pool", "p")


@case(60)
def many_attributes(t):
    """A file with 1,200 attributes, and one that fills its shard's records, go as others do."""
    with_many_attributes(t, 1)


@case(80)
def many_attributes_on_two_nodes(t):
    with_many_attributes(t, 2)


def killed_with_many_attributes(t, nodes):
    t.up("p", "--nodes", str(nodes))
    r = random.Random(os.urandom(8))
    for n in range(12):
        on = ["--node", str(n % nodes)] if nodes > 1 else []
        p = t.start([t.forebay, "exec", "-q", "--pool", "p", *on, "--", "python3", "-c", AT_IT,
                     "/fb/w", str(n)])
        p.stdout.readline()
        time.sleep(r.uniform(0, 0.06))
        kill(p.pid)
        p.wait()
    clean(t)
    t.python("p", AGREES, "/fb/w", "/fb").quiet()
    t.bash("p", "rm -r /fb/w && test -z \"$(ls /fb)\"").quiet()
    clean(t)
    t.fb("down", "--pool", "p")


@case(60)
def killed_while_attributes_move(t):
    """The keeper completes what a killed process has left of a rename or a removal."""
    killed_with_many_attributes(t, 1)


@case(80)
def killed_while_attributes_move_between_nodes(t):
    killed_with_many_attributes(t, 2)


def records_of(t, node):
    folder = os.path.join(t.pool_dir("p"), "node-%d" % node, "records")
    return [os.path.join(folder, f) for f in sorted(os.listdir(folder)) if "-" not in f]


def lose_name(t, node, name):
    """Makes the entry's record on the node one that can't be read. Whether it is there."""
    for path in records_of(t, node):
        with open(path, "r+b") as f:
            content = f.read(2 << 20)
            at, done = -1, False
            while (at := content.find(b"D", at + 1)) >= 0:
                if content[at + 9:at + 9 + len(name)] == name:
                    # Behind the key: the id, then the kind.
                    f.seek(at + 9 + len(name) + 8)
                    f.write(b"\x7f")
                    done = True
            if done:
                return True
    return False


@case(60)
def lost_objects_of_several_nodes(t):
    """Each node keeps lost objects where all nodes find them; fsck compares the nodes."""
    t.up("p", "--nodes", "2", "--request-timeout", "2")
    names = ["lost-%02d-of-some-length" % n for n in range(12)]
    # The objects of half of them on each node.
    for node in range(2):
        t.fb("exec", "-q", "--pool", "p", "--node", str(node), "--", "bash", "-c",
             "cd /fb; for n in %s; do echo $n > $n; done" % " ".join(names[node::2]))
    t.fb("fsck", "--pool", "p").prints("clean$")
    keepers = [n["keeper"] for n in t.fb("status", "--pool", "p", "--json").json()["nodes"]]
    for keeper in keepers:
        kill(keeper)
        wait_until(lambda k=keeper: not alive(k), 5, "the daemon's death")
    of = [sum(lose_name(t, node, n.encode()) for n in names) for node in range(2)]
    t.ok(min(of) > 0, "all names are on one node: %s" % of)
    t.fb("fsck", "--repair", "--pool", "p", rc=1).prints("it is removed; its object is put into")
    t.fb("up", "--pool", "p", "--reopen")
    # Some of the names were those of the other node's files.
    t.fb("fsck", "--pool", "p", rc=4).prints("it counts the name .*, which isn't on node")
    t.fb("fsck", "--repair", "--pool", "p", rc=1).prints("it gets the name back")
    listed = None
    for node in range(2):
        seen = t.fb("exec", "-q", "--pool", "p", "--node", str(node), "--", "bash", "-c",
                    "cd /fb; ls -d lost+found*; cat lost+found*/* lost-* | sort; "
                    "if mkdir lost+found 2>/dev/null; then echo made a second one; fi").out
        listed = listed or seen
        t.ok(seen == listed, "the nodes differ: %s, %s" % (listed, seen))
    t.ok("a second" not in listed, listed)
    kept = [line for line in listed.splitlines() if line in names]
    t.ok(kept == names, "%s lost, of %s: %s" % (of, names, listed))
    t.fb("fsck", "--pool", "p").prints("clean$")
    t.bash("p", "rm -r /fb/lost+found* && rm -f /fb/lost-*").quiet()
    t.fb("fsck", "--pool", "p").prints("clean$")
    t.fb("down", "--pool", "p")
