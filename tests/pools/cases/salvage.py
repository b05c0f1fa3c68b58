"""Nodes that are dead while results are saved: everything whose bytes lie on living nodes comes out."""
import os
import shutil

from harness import case, wait_until

NODES = 4

# Files of several sizes in directories of two levels, all made on one node: bytes lie there, names
# and records of directories on all nodes.
MAKE = r'''
import os, sys
top, files = sys.argv[1], int(sys.argv[2])
for a in range(4):
    for b in range(4):
        d = "%s/d%d/e%d" % (top, a, b)
        os.makedirs(d, exist_ok=True)
        for n in range(files):
            with open("%s/f%d" % (d, n), "w") as f:
                f.write("%s %d %d %d\n" % (os.path.basename(top), a, b, n) * (n * 400 + 1))
    os.symlink("e0/f0", "%s/d%d/link" % (top, a))
'''


def wanted(files, top, above=None):
    """What MAKE has made in a directory of this name, by path; `above` the paths, if that isn't the name."""
    above = top + "/" if above is None else above
    return {"%sd%d/e%d/f%d" % (above, a, b, n): "%s %d %d %d\n" % (top, a, b, n) * (n * 400 + 1)
            for a in range(4) for b in range(4) for n in range(files)}


def found(top):
    """Content of the regular files below a directory, by path."""
    files = {}
    for at, _, names in os.walk(top):
        for name in names:
            path = os.path.join(at, name)
            below = os.path.relpath(path, top)
            if not os.path.islink(path) and below != "lost+found/LIST":
                with open(path) as f:
                    files[below] = f.read()
    return files


def all_is_there(t, top, files, what, is_shared=False):
    """Every file once, with its content: by its path, or in lost+found below as much of the path as is known.
    `is_shared`: lost+found has files of others, too."""
    there, left = found(top), dict(files)
    for path, got in sorted(there.items()):
        true = path
        if path.startswith("lost+found/"):
            # lost+found/node-N/#ID/rest: `rest` is the end of the path.
            node, lost, rest = path.split("/", 3)[1:]
            t.ok(node.startswith("node-") and lost.startswith("#"), "%s: %s" % (what, path))
            true = next((p for p, c in left.items() if c == got and ("/" + p).endswith("/" + rest)), None)
            if true is None and is_shared:
                continue
        t.ok(true in left and left[true] == got, "%s: %s has another content" % (what, path))
        del left[true]
    t.ok(not left, "%s: %d of %d files weren't saved, %s is the first" % (
        what, len(left), len(files), min(left, default=None)))
    lost = [p for p in there if p.startswith("lost+found/")]
    if lost:
        with open(os.path.join(top, "lost+found", "LIST")) as f:
            text = f.read()
        t.ok(text.startswith("Forebay saved this when node"), text)
        t.ok(" didn't answer. " in text.splitlines()[0], text)
        t.ok(all("/".join(p.split("/")[1:3]) in text for p in lost), "%s: the list has %s" % (what, text))


def node(t, verb, number):
    t.fb("node", verb, str(number), "--pool", "p").quiet()


def up(t, *more):
    t.up("p", "--nodes", str(NODES), "--request-timeout", "2", *more)


def make(t, number, top, files):
    t.command([t.forebay, "exec", "--pool", "p", "--node", str(number), "--", "python3", "-c", MAKE, top, str(files)],
              timeout=60)


@case(90)
def results_are_saved_whichever_other_node_is_dead(t):
    files = 5
    up(t)
    for number in range(NODES):
        make(t, number, "/fb/out%d" % number, files)
    # Of renamed directories, entry and record lie on different nodes.
    renamed = {}
    for number in range(NODES):
        for n in range(4):
            name = "renamed%d.%d" % (number, n)
            t.command([t.forebay, "exec", "--pool", "p", "--node", str(number), "--", "bash", "-c",
                       "mkdir /fb/new && mv /fb/new /fb/$1 && echo $1 > /fb/$1/f", "bash", name])
            renamed[name + "/f"] = number, name + "\n"
    target = os.path.join(t.work, "saved")
    for dead in range(NODES):
        node(t, "kill", dead)
        maker = (dead + 1) % NODES

        def stage(source, rc=120):
            return t.fb("stage", "out", source, target, "--pool", "p", rc=rc, timeout=60,
                        env={"FOREBAY_NODE": str(maker)})
        # One directory, whose files one living node has made.
        r = stage("/fb/out%d" % maker)
        r.says("node %d doesn't answer .*; all else that could be read was saved" % dead)
        # The directory itself is recognized by its path, so that much has its own.
        t.ok(any(name.startswith("d") for name in os.listdir(target)), "all is in lost+found")
        # Unnamed directories of other trees are there, too.
        all_is_there(t, target, wanted(files, "out%d" % maker, ""), "out%d without node %d" % (maker, dead), True)
        shutil.rmtree(target)
        # All of the pool, but for what the dead node has.
        stage("/").says("node %d doesn't answer" % dead)
        living = {}
        for number in range(NODES):
            if number != dead:
                living.update(wanted(files, "out%d" % number))
        living.update({path: text for path, (number, text) in renamed.items() if number != dead})
        all_is_there(t, target, living, "/ without node %d" % dead)
        # Nobody else may look into directories whose mode isn't known.
        t.ok(all(os.stat(at).st_mode & 0o077 == 0 for at, _, _ in os.walk(target)
                 if os.path.basename(at).startswith("#")), "modes in lost+found")
        shutil.rmtree(target)
        node(t, "restart", dead)
        wait_until(lambda: stage("/", rc=None).rc == 0, 20, "a staging without loss")
        shutil.rmtree(target)


@case(90)
def changes_get_to_the_origin_whichever_other_node_is_dead(t):
    files = 10
    for dead in range(1, NODES):
        origin = os.path.join(t.work, "origin%d" % dead)
        os.mkdir(origin)
        up(t, "--origin", origin + "=/o")
        t.fb("origin", "hold", "--pool", "p")
        make(t, 0, "/fb/o/out", files)
        node(t, "kill", dead)
        r = t.fb("origin", "sync", "--pool", "p", rc=None, timeout=60)
        t.ok(r.rc != 0, "all is said to be at the origin")
        r.says("node %d doesn't answer .*; all else that could be read was saved" % dead)
        all_is_there(t, origin, wanted(files, "out"), "the origin without node %d" % dead)
        # `down` doesn't remove what isn't saved.
        t.fb("down", "--pool", "p", rc=None, timeout=60).says("nothing was removed")
        node(t, "restart", dead)
        wait_until(lambda: t.fb("origin", "sync", "--pool", "p", rc=None, timeout=60).rc == 0, 20, "a whole sync")
        whole = {p: c for p, c in found(origin).items() if not p.startswith("lost+found/")}
        missing = sorted(set(wanted(files, "out")) - set(whole))
        t.ok(whole == wanted(files, "out"), "the origin with all nodes has %d files, not %s" % (len(whole), missing))
        t.fb("down", "--pool", "p", timeout=60)


@case(90)
def results_are_saved_when_the_daemon_of_the_own_node_is_dead(t):
    files = 5
    up(t)
    for number in range(NODES):
        make(t, number, "/fb/out%d" % number, files)
    node(t, "kill", 0)
    target = os.path.join(t.work, "saved")
    # Programs of this host use node 0 unless told otherwise.
    r = t.fb("stage", "out", "/", target, "--pool", "p", rc=120, timeout=60)
    r.says("the daemon of node 0 of pool 'p' is dead.*, so node 1 does this in its place; "
           "start it again with: forebay node restart 0 --pool p")
    r.says("node 0 doesn't answer .*; all else that could be read was saved")
    t.ok("node 1 doesn't" not in r.err and "nodes " not in r.err, "healthy nodes are blamed: " + r.err)
    living = {}
    for number in range(1, NODES):
        living.update(wanted(files, "out%d" % number))
    all_is_there(t, target, living, "/ without the own daemon")
    shutil.rmtree(target)
    # Where no daemon runs, one sentence says so, and nothing is taken for lost.
    for number in range(1, NODES):
        node(t, "kill", number)
    r = t.fb("stage", "out", "/", target, "--pool", "p", rc=1, timeout=60, env={"FOREBAY_NODE": "2"})
    r.says("the daemon of node 2 of pool 'p' is dead.*, so this host can't reach the other nodes, and nothing was "
           "done; start it again with: forebay node restart 2 --pool p")
    t.ok(len(r.err.splitlines()) == 1 and not os.path.exists(target), r.err)
    for number in range(NODES):
        node(t, "restart", number)
    everything = {}
    for number in range(NODES):
        everything.update(wanted(files, "out%d" % number))
    wait_until(lambda: t.fb("stage", "out", "/", target, "--pool", "p", rc=None, timeout=60).rc == 0, 20, "all daemons")
    all_is_there(t, target, everything, "/ with all daemons")


@case(90)
def run_and_down_save_when_the_daemon_of_the_own_node_is_dead(t):
    out = os.path.join(t.work, "out")
    kill = "echo mine > /fb/f; %s node kill 1 --pool p" % t.forebay
    r = t.fb("run", "--pool", "p", "--nodes", "2", "--patience", "2", "--out", "/f:" + out, "--", "sh", "-c",
             kill, rc=None, timeout=80, env={"FOREBAY_NODE": "1"})
    r.says("the daemon of node 1 of pool 'p' is dead.*, so node 0 does this in its place")
    t.ok("node 0 doesn't" not in r.err, "a healthy node is blamed: " + r.err)
    t.fb("node", "restart", "1", "--pool", "p")
    t.fb("stage", "out", "/f", out, "--pool", "p")
    with open(out) as f:
        t.ok(f.read() == "mine\n", "what was staged out")
    t.fb("down", "--pool", "p", timeout=60)
    # Node 1 has no part of the changed files' names and bytes.
    origin = os.path.join(t.work, "origin")
    os.mkdir(origin)
    up(t, "--origin", origin + "=/o")
    t.fb("origin", "hold", "--pool", "p")
    make(t, 0, "/fb/o/out", 3)
    node(t, "kill", 1)
    r = t.fb("down", "--pool", "p", rc=None, timeout=60, env={"FOREBAY_NODE": "1"})
    t.ok("node 0" not in r.err, "a healthy node is blamed: " + r.err)
    r = t.fb("origin", "sync", "--pool", "p", rc=None, timeout=60, env={"FOREBAY_NODE": "1"})
    r.says("the daemon of node 1 of pool 'p' is dead.*, so node 0 does this in its place")
    all_is_there(t, origin, wanted(3, "out"), "the origin without the daemon of node 1")
    node(t, "restart", 1)
    wait_until(lambda: t.fb("down", "--pool", "p", rc=None, timeout=60).rc == 0, 20, "a whole write back")


@case(60)
def find_lists_what_the_living_nodes_keep(t):
    up(t)
    make(t, 1, "/fb/out", 3)
    t.bash("p", "mkdir /fb/many; cd /fb/many; touch $(seq 100)")
    whole = set(t.fb("find", "--pool", "p").out.splitlines())
    node(t, "kill", 2)
    r = t.fb("find", "--pool", "p", rc=1)
    listed = set(r.out.splitlines())
    r.says(r"forebay: node 2 .*doesn't answer: what lies there is out of reach",
           r"forebay: \d+ director(y|ies) couldn't be listed completely, because a node doesn't answer; the first is /")
    t.ok(r.err.count("\n") == 2 and r.err.count("node 2") == 1, r.err)
    t.ok(listed < whole, "more than there is: %s" % sorted(listed - whole)[:5])
    # An entry is listed if the nodes of its name and of the directories above live: 3 of 4 for each of them.
    t.ok(len([n for n in listed if n.count("/") == 1]) >= 1, r.out)
    r = t.fb("find", "--pool", "p", "--json", rc=1)
    t.ok({f["path"] for f in r.json()} == listed, "as JSON")
    many = len([n for n in t.fb("find", "--pool", "p", "/many", rc=1).out.splitlines() if n.startswith("/many/")])
    t.ok(many == len([n for n in listed if n.startswith("/many/")]), "from another start: %d" % many)
    node(t, "restart", 2)
    wait_until(lambda: t.fb("find", "--pool", "p", rc=None).rc == 0, 20, "the node")
    t.ok(set(t.fb("find", "--pool", "p").out.splitlines()) == whole, "with all nodes again")
