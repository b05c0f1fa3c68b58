"""Pools of several nodes on one host: their programs, and daemons that die, stop and come back."""
import os
import shutil
import time

from harness import Lines, alive, case, kill, wait_until

WRITE = r'''
import os, sys
d, count = sys.argv[1], int(sys.argv[2])
os.makedirs(d, exist_ok=True)
for n in range(count):
    with open("%s/%d" % (d, n), "wb") as f:
        f.write(b"%d of %s;" % (n, d.encode()) * (n * 53 % 900))
print("written", flush=True)
'''

CHECK = r'''
import os, sys
d, count = sys.argv[1], int(sys.argv[2])
assert sorted(map(int, os.listdir(d))) == list(range(count)), os.listdir(d)
for n in range(count):
    got = open("%s/%d" % (d, n), "rb").read()
    wanted = b"%d of %s;" % (n, d.encode()) * (n * 53 % 900)
    assert got == wanted, (n, len(got), len(wanted))
    assert os.stat("%s/%d" % (d, n)).st_size == len(wanted), n
'''

# Opens every file once; says how many could be read, how many couldn't and with which errors, and
# the longest time for one.
TRY = r'''
import errno, sys, time
d, count = sys.argv[1], int(sys.argv[2])
good, bad, longest = 0, set(), 0
for n in range(count):
    began = time.monotonic()
    try:
        open("%s/%d" % (d, n), "rb").read()
        good += 1
    except OSError as e:
        bad.add(errno.errorcode[e.errno])
    longest = max(longest, time.monotonic() - began)
print(good, sorted(bad), round(longest, 1))
'''


def up(t, nodes, *more):
    return t.up("p", "--nodes", str(nodes), "--request-timeout", "2", *more)


def on(t, node, script, *arguments, **more):
    return t.command([t.forebay, "exec", "--pool", "p", "--node", str(node), "--", "python3", "-c",
                      script, *arguments], **more)


def states(t):
    return [n["state"] for n in t.fb("status", "--pool", "p", "--json").json()["nodes"]]


@case(30)
def nodes_show_the_same(t):
    r = up(t, 4)
    r.prints(r"pool 'p' is up: 4 nodes, each with memory:64M \(256\.0 MiB\); programs see it under /fb; .*s$")
    for node in range(4):
        on(t, node, WRITE, "/fb/d%d" % node, "40")
    for node in range(4):
        for other in range(4):
            on(t, node, CHECK, "/fb/d%d" % other, "40")
    t.fb("df", "--pool", "p", "--json")
    t.ok(states(t) == ["up"] * 4, "states: %s" % states(t))
    # A program and its children stay on their node.
    t.command([t.forebay, "exec", "--pool", "p", "--node", "3", "--", "bash", "-c",
               "basename $FOREBAY_DIR; %s exec -- sh -c 'basename $FOREBAY_DIR'" % t.forebay]
              ).prints(r"\Anode-3\nnode-3\n\Z")
    t.fb("down", "--pool", "p").quiet()
    t.nothing_left("down")


@case(30)
def a_node_dies_and_comes_back(t):
    up(t, 3)
    on(t, 0, WRITE, "/fb/d", "60")
    t.fb("node", "kill", "2", "--pool", "p").quiet()
    t.ok(states(t) == ["up", "up", "dead"], "states: %s" % states(t))
    t.fb("status", "--pool", "p").prints("^node 2: its daemon is dead.*forebay node restart 2")
    # Files elsewhere stay usable; those of the node fail soon.
    good, rest = on(t, 0, TRY, "/fb/d", "60").out.split(" ", 1)
    t.ok(0 < int(good) < 60 and rest.startswith("['EHOSTDOWN'] "), "%s good, %s" % (good, rest))
    t.ok(float(rest.split()[1]) < 4, "one took %s s" % rest.split()[1])
    # A listing ends with an error, and doesn't begin again.
    r = t.bash("p", "ls /fb/d", rc=(1, 2), timeout=15)
    names = r.out.split()
    t.ok(len(names) == len(set(names)) < 60, "listed: %s" % names)
    t.fb("node", "restart", "2", "--pool", "p").quiet()
    for node in range(3):
        wait_until(lambda: on(t, node, TRY, "/fb/d", "60").out.startswith("60 []"), 10,
                   "all files to be there again on node %d" % node)
        on(t, node, CHECK, "/fb/d", "60")
    t.ok(states(t) == ["up"] * 3, "states: %s" % states(t))


@case(30)
def who_waits_for_a_stopped_node_goes_on_with_it(t):
    t.up("p", "--nodes", "2", "--request-timeout", "10")
    on(t, 0, WRITE, "/fb/d", "30")
    t.fb("node", "pause", "1", "--pool", "p").quiet()
    t.ok(states(t) == ["up", "paused"], "states: %s" % states(t))
    reader = t.start([t.forebay, "exec", "--pool", "p", "--node", "0", "--", "python3", "-c",
                      CHECK, "/fb/d", "30"])
    time.sleep(1)
    t.ok(reader.poll() is None, "it doesn't wait for a node that is stopped")
    t.fb("node", "resume", "1", "--pool", "p").quiet()
    t.finish(reader)


@case(40)
def all_daemons_die_at_once(t):
    """Nothing that was written is lost, and a program that waits goes on."""
    t.up("p", "--nodes", "3", "--request-timeout", "15")
    on(t, 1, WRITE, "/fb/d", "40")
    daemons = [n["keeper"] for n in t.fb("status", "--pool", "p", "--json").json()["nodes"]]
    for pid in daemons:
        kill(pid)
    wait_until(lambda: not any(map(alive, daemons)), 5, "the daemons to be gone")
    t.ok(t.state("p") == "stale", "the pool is %s" % t.state("p"))
    reader = t.start([t.forebay, "exec", "--pool", "p", "--node", "0", "--", "python3", "-c",
                      CHECK, "/fb/d", "40"])
    time.sleep(0.5)
    t.fb("up", "--reopen", "--pool", "p").prints("restarted on this host: node 0, 1, 2")
    t.finish(reader)
    t.ok(states(t) == ["up"] * 3, "states: %s" % states(t))
    on(t, 2, CHECK, "/fb/d", "40")


@case(30)
def down_is_refused_while_a_node_is_used(t):
    up(t, 3)
    user = t.start([t.forebay, "exec", "--pool", "p", "--node", "2", "--", "bash", "-c",
                    "exec 3> /fb/f; echo in; sleep 20 >&3"])
    Lines(user).wait_for(1)
    t.fb("down", "--pool", "p", rc=1).one_line().says("in use by", "forebay down --force")
    t.fb("down", "--pool", "p", "--force").quiet()
    wait_until(lambda: user.poll() is not None, 5, "the program to be ended")
    t.nothing_left("down --force")


@case(30)
def run_with_several_nodes(t):
    os.mkdir(t.work + "/in")
    for n in range(20):
        t.file("%s/in/%d" % (t.work, n), n * 3001, n)
    wanted = t.walk(t.work + "/in")
    t.fb("run", "-q", "--nodes", "3", "--media", "memory:64M", "--in", "in:/in", "--out",
         "/out:out", "--", "bash", "-c",
         "for k in 0 1 2; do FOREBAY_NODE=$k %s exec -- ls /fb/in | wc -l; done; cp -a /fb/in /fb/out"
         % t.forebay).prints(r"\A20\n20\n20\n\Z")
    t.same(wanted, t.walk(t.work + "/out"), "what was staged out")
    t.nothing_left("run")


BIG = r'''
import os, sys
with open(sys.argv[1], "wb") as f:
    for n in range(90):
        f.write((b"%07d." % n) * (1 << 17))
    f.flush()
    os.fsync(f.fileno())
'''

BIG_CHECK = r'''
import sys
with open(sys.argv[1], "rb") as f:
    for n in range(90):
        assert f.read(1 << 20) == (b"%07d." % n) * (1 << 17), n
    assert not f.read(1)
'''

# Makes files and renames and removes them, for ever, without syncing.
CHURN = r'''
import os, sys
d = sys.argv[1]
os.makedirs(d, exist_ok=True)
print("begun", flush=True)
for n in range(1 << 40):
    name = "%s/%d" % (d, n % 50)
    with open(name, "wb") as f:
        f.write(b"x" * (n * 997 % 700000))
    os.rename(name, name + "r")
    if n % 3 == 0:
        os.unlink(name + "r")
'''

SYNCED = r'''
import os, sys
d, count = sys.argv[1], int(sys.argv[2])
for n in range(count):
    with open("%s/%d" % (d, n), "rb") as f:
        os.fsync(f.fileno())
'''


@case(60)
def a_pool_on_files_comes_back_from_its_media(t):
    """Everything is killed, and shared memory is lost: what was synced is there, on all nodes."""
    t.up("p", "--nodes", "4", "--request-timeout", "5", media=["files:%s:64M" % t.disk])
    for node in range(4):
        on(t, node, WRITE, "/fb/d%d" % node, "30")
    on(t, 2, "import os; os.mkdir('/fb/s')")
    t.fb("set", "--pool", "p", "--distribution", "striped", "--chunk-size", "1M", "/fb/s").quiet()
    on(t, 1, WRITE, "/fb/s/x", "30")
    for node in range(4):
        on(t, node, SYNCED, "/fb/d%d" % node, "30")
    on(t, 0, SYNCED, "/fb/s/x", "30")
    # A file that is longer than its node has room for.
    on(t, 0, BIG, "/fb/big")
    churns = [t.start([t.forebay, "exec", "--pool", "p", "--node", str(n), "--", "python3", "-c",
                       CHURN, "/fb/churn"]) for n in (0, 3)]
    for churn in churns:
        Lines(churn).wait_for(1)
    time.sleep(1)
    t.kill_everything()
    for churn in churns:
        churn.wait()
    shutil.rmtree(t.pool_dir("p"))
    # All nodes have to be there.
    node = [n for n in os.listdir(t.disk) if n.endswith("-n2-0")][0]
    aside = t.disk + "/aside"
    os.mkdir(aside)
    os.rename(t.disk + "/" + node, aside + "/" + node)
    r = t.fb("up", "--reopen", "--pool", "p", "--from", t.disk, rc=3).one_line()
    r.says("has 4 nodes; .* has nothing of node 2 ", "nothing was started")
    t.ok(not os.path.exists(t.pool_dir("p")), "something was made for a pool that lacks a node")
    os.rename(aside + "/" + node, t.disk + "/" + node)
    os.rmdir(aside)
    key = os.stat("%s/%s/key" % (t.disk, node))
    t.ok(key.st_mode & 0o777 == 0o600, "the key has mode %o" % key.st_mode)
    t.fb("up", "--reopen", "--pool", "p", "--from", t.disk).prints("reopened 4 nodes").quiet()
    t.fb("up", "--reopen", "--pool", "p", "--from", t.disk, rc=1).says("exists|runs")
    t.ok(states(t) == ["up"] * 4, "states: %s" % states(t))
    for node in range(4):
        on(t, node, CHECK, "/fb/d%d" % (3 - node), "30")
    on(t, 3, CHECK, "/fb/s/x", "30")
    on(t, 2, BIG_CHECK, "/fb/big")
    # Every name that is left leads to a file, from every node.
    for node in range(4):
        on(t, node, "import os\nif os.path.isdir('/fb/churn'):\n"
           " for n in os.listdir('/fb/churn'): open('/fb/churn/' + n, 'rb').read()")
    # A rename over nodes that nobody synced may be half there (docs/explanation/semantics.md): both names, counted once.
    found = t.fb("fsck", "--pool", "p", rc=None)
    if found.rc != 0:
        t.ok(all("link count 1, but it should be 2" in line for line in found.out.splitlines()), found.out)
        print("repaired: " + found.out.strip())
        t.fb("fsck", "--repair", "--pool", "p", rc=None)
    t.fb("fsck", "--pool", "p").prints("clean")
    on(t, 1, WRITE, "/fb/new", "20")
    on(t, 2, CHECK, "/fb/new", "20")
    t.fb("down", "--pool", "p").quiet()
    t.ok(os.listdir(t.disk) == [], "left on the disk: %s" % os.listdir(t.disk))
    t.nothing_left("down")
