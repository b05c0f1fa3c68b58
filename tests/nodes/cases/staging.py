"""Stage-in and stage-out by all nodes: each moves a part, and failing nodes are named."""
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import time

from harness import Failed, Skipped, alive, case, comm, kill, wait_until
from .nodes import NODES, POOL, node, on, tidy, up

FILES, LARGE = 240, 16


def tree(top, files=FILES, large=LARGE):
    """Enough for a mover on each of four nodes."""
    chance = random.Random(7)
    for d in range(6):
        os.makedirs("%s/d%d/e" % (top, d))
    for n in range(files):
        with open("%s/d%d/e/f%d" % (top, n % 6, n), "wb") as f:
            f.write(chance.randbytes(3000 + 40 * n))
    for n in range(large):
        with open("%s/large%d" % (top, n), "wb") as f:
            f.write(chance.randbytes(9 << 20))
            # A hole at its end.
            f.truncate((9 << 20) + 100000)
    os.symlink("large0", top + "/link")
    os.link(top + "/large1", top + "/same")
    with open(os.fsencode(top) + b"/d1/Zo\xc3\xab\xff \n'x", "wb") as f:
        f.write(b"odd")
    os.chmod(top + "/d2/e/f2", 0o751)


def report(t, *words, rc=0):
    return t.fb("stage", "--pool", POOL, *words, "--json", rc=rc, timeout=100).json()


def movers(t):
    """The movers that run, by their nodes."""
    found = {}
    for pid in t.ours():
        words = comm(pid).split()
        if "mover" in words and alive(pid):
            found[int(words[words.index("--node") + 1])] = pid
    return found


@case(150)
def staging(t):
    up(t, media="memory:256M")
    top, back = t.work + "/tree", t.work + "/back"
    tree(top)
    wanted = t.walk(top)
    r = report(t, "in", top, "/case")
    t.ok(r["failed"] == 0 and r["moved_files"] == r["files"] == FILES + LARGE + 3, json.dumps(r))
    if NODES == 4:
        # Each has moved about as much, and it lies there.
        t.ok(sorted(s["node"] for s in r["nodes"]) == [0, 1, 2, 3], json.dumps(r["nodes"]))
        share = LARGE * (9 << 20) / 4
        t.ok(all(0.6 * share < s["moved_bytes"] < 1.6 * share for s in r["nodes"]), json.dumps(r["nodes"]))
        told = t.fb("status", "--pool", POOL, "--json").json()["nodes"]
        used = [n["media"][0]["used"] for n in told]
        t.ok(all(0.6 * share < u < 1.6 * share for u in used), "used: %s" % used)
    t.same(wanted, t.walk("/fb/case", POOL), "the pool")
    for way in (["in", top, "/case"], ["in", top, "/case", "--checksum"]):
        again = report(t, *way)
        t.ok((again["moved_files"], again["unchanged"]) == (0, r["files"]), json.dumps(again))
    out = report(t, "out", "/case", back)
    t.ok(out["failed"] == 0 and out["moved_files"] == out["files"], json.dumps(out))
    t.same(wanted, t.walk(back), "what came back")
    if NODES == 4:
        # Each has written what lies with it.
        by = {s["node"]: s["moved_bytes"] for s in out["nodes"]}
        t.ok(by.keys() == {0, 1, 2, 3} and all(0.5 * by[n] < share < 2 * by[n] for n in by), json.dumps(by))
    t.ok(stat.S_IMODE(os.stat(back + "/d2/e/f2").st_mode) == 0o751, "mode")
    # Nothing of the parts and probes is left.
    left = [n for _, _, names in os.walk(back) for n in names if n.startswith(".forebay")]
    t.ok(not left, "left: %s" % left)
    tidy(t)


@case(150)
def staging_deaths(t):
    """A mover that is killed, or can't start, is reported; the rest arrives, and a repetition completes it."""
    if NODES == 1:
        return
    up(t, media="memory:300M")
    top = t.work + "/tree"
    tree(top, files=1200, large=24)
    staging = t.start([t.forebay, "stage", "--pool", POOL, "in", top, "/case", "--json", "--threads", "1"])
    until = time.monotonic() + 30
    victim = None
    while victim is None and staging.poll() is None and time.monotonic() < until:
        victim = movers(t).get(2)
        time.sleep(0.002)
    if victim is None:
        raise Failed("no mover was seen on node 2: %s" % (staging.communicate(timeout=10),))
    time.sleep(0.05)
    kill(victim)
    r = t.finish(staging, rc=None, timeout=60)
    told = r.json()
    if told["failed"]:
        t.ok(r.rc == 120, "exit code %d" % r.rc)
        t.ok(any("node 2" in f["path"] and "ended too early" in f["what"] for f in told["failures"]), r.told())
    else:
        # It was killed before it had been given anything.
        t.ok(any("node 2" in w["path"] for w in told["warnings"]), r.told())
    again = report(t, "in", top, "/case")
    t.ok(again["failed"] == 0, json.dumps(again))
    t.same(t.walk(top), t.walk("/fb/case", POOL), "the pool")
    # The leading process is killed: the movers end by themselves.
    t.exec(POOL, "rm", "-r", "/fb/case")
    leader = t.start([t.forebay, "stage", "--pool", POOL, "in", top, "/case", "--threads", "1"])
    until = time.monotonic() + 30
    while len(movers(t)) < 3 and leader.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    running = list(movers(t).values())
    leader.kill()
    leader.communicate(timeout=10)
    until = time.monotonic() + 10
    while any(alive(p) for p in running):
        t.ok(time.monotonic() < until, "movers outlive who leads them")
        time.sleep(0.02)
    # A node whose daemon is dead takes no part.
    node(t, "kill", 3)
    r = t.fb("stage", "--pool", POOL, "in", top, "/other", rc=None, timeout=100)
    t.ok("node 3" in r.err and "takes no part" in r.err, r.told())
    node(t, "restart", 3)
    # The others find it again within a moment.
    wait_until(lambda: t.fb("stage", "--pool", POOL, "in", top, "/other", rc=None, timeout=60).rc == 0, 20,
               "staging after the restart")
    t.same(t.walk(top), t.walk("/fb/other", POOL), "the pool")
    tidy(t)


@case(120)
def staging_with_a_dead_node(t):
    """What living nodes have is saved; what is missing is named, and comes when the node is back."""
    if NODES == 1:
        return
    origin = t.work + "/origin"
    os.mkdir(origin)
    up(t, "--request-timeout", "2", "--origin", origin + "=/origin")
    t.fb("origin", "hold", "--pool", POOL)
    made = {"%d-%d" % (rank, n) for rank in range(NODES) for n in range(20)}
    dead = NODES - 2

    def make(top):
        """Directories whose record is on a living node: the first that can be looked at without the dead one."""
        t.exec(POOL, "mkdir", *("%s/out%d" % (top, n) for n in range(8)))
        node(t, "kill", dead)
        r = t.exec(POOL, "sh", "-c", "for d in %s/out*; do test -d $d && basename $d; done" % top, rc=None)
        node(t, "restart", dead)
        wait_until(lambda: t.exec(POOL, "ls", top, rc=None).rc == 0, 20, "the node")
        found = "%s/%s" % (top, r.out.split()[0])
        for rank in range(NODES):
            t.command(on(t, rank, "sh", "-c", "for n in $(seq 0 19); do echo %d-$n > %s/%d-$n; done" % (
                rank, found, rank)))
        return found
    out, written = make("/fb"), make("/fb/origin")
    node(t, "kill", dead)

    # A program gets the others' names, and then an error: it can't take them for all.
    r = t.command(on(t, 0, "ls", out), rc=2)
    seen = set(r.out.split())
    r.says("reading directory.*Host is down")
    t.ok(seen < made and len(seen) > len(made) // 3, "%d names" % len(seen))
    t.ok(set(t.fb("ls", "--pool", POOL, out, rc=1).out.split()) <= seen, "forebay ls")
    # A file is saved if its bytes are on a living node, which knows its name.
    expected = {name for name in made if not name.startswith("%d-" % dead)}

    def holds(top, names):
        t.ok(set(os.listdir(top)) == names, "%s has %s, not %s" % (top, sorted(os.listdir(top)), sorted(names)))
        for name in names:
            with open("%s/%s" % (top, name)) as f:
                t.ok(f.read() == name + "\n", name)
    began = time.monotonic()
    told = report(t, "out", out, t.work + "/saved", rc=120)
    t.ok(time.monotonic() - began < 20, "%.1f s" % (time.monotonic() - began))
    holds(t.work + "/saved", expected)
    failed = {f["path"].rpartition("/")[2]: f["what"] for f in told["failures"]}
    top = os.path.basename(out)
    t.ok(set(failed) == {top} | seen - expected, json.dumps(told))
    t.ok("node %d doesn't answer" % dead in failed[top], failed[top])

    # The same of an origin.
    t.fb("origin", "resume", "--pool", POOL)
    r = t.fb("origin", "sync", "--pool", POOL, rc=None, timeout=60)
    t.ok(r.rc != 0 and "node %d doesn't answer" % dead in r.told(), r.told())
    there_at = origin + "/" + os.path.basename(written)
    t.ok(os.path.isdir(there_at), "the origin has %s: %s" % (os.listdir(origin), r.told()))
    there = set(os.listdir(there_at))
    t.ok(there == expected, "the origin has %s: %s" % (sorted(there), r.told()))
    holds(there_at, there)

    node(t, "restart", dead)
    wait_until(lambda: report(t, "out", out, t.work + "/saved", rc=None)["failed"] == 0, 20, "the second time")
    holds(t.work + "/saved", made)
    t.fb("origin", "sync", "--pool", POOL, timeout=60)
    holds(there_at, made)
    tidy(t)


@case(120)
def staging_of_striped_files(t):
    """What one node has made, on all nodes, is staged out by all."""
    if NODES == 1:
        return
    up(t, media="memory:256M")
    top, back = t.work + "/tree", t.work + "/back"
    tree(top)
    t.fb("set", "--pool", POOL, "--distribution", "striped", "/case")
    t.exec(POOL, "cp", "-rT", top, "/fb/case", timeout=40)
    r = report(t, "out", "/case", back)
    t.ok(r["failed"] == 0 and len(r["nodes"]) == NODES, json.dumps(r))
    t.ok(all(s["moved_bytes"] > 16 << 20 for s in r["nodes"]), json.dumps(r["nodes"]))
    t.same({k: v[4] for k, v in t.walk(top).items()}, {k: v[4] for k, v in t.walk(back).items()}, "what came back")
    report(t, "in", top, "/case/again")
    t.same(t.walk(top), t.walk("/fb/case/again", POOL), "the pool")
    tidy(t)


@case(90)
def staging_by_run(t):
    """forebay run: in by all nodes, work, out by all nodes; a signal meanwhile ends it and them, and nothing is left."""
    if NODES == 1:
        return
    top, out = t.work + "/tree", t.work + "/out"
    tree(top)
    words = [t.forebay, "run", "--nodes", str(NODES), "--media", "memory:400M", "--in", top + ":/in", "--out"]
    r = t.command([*words, "/out:" + out, "--", "cp", "-r", "/fb/in", "/fb/out"], timeout=60)
    # The files made by `cp` lie on the first node, so this node writes them.
    r.says(r"staged in .* by %d nodes" % NODES, r"staged out ")
    t.same({k: v[4] for k, v in t.walk(top).items()}, {k: v[4] for k, v in t.walk(out).items()}, "what came back")
    t.nothing_left("run")
    running = t.start([*words, "/out:" + out, "--threads", "1", "--", "true"])
    wait_until(lambda: len(movers(t)) == NODES - 1 or running.poll() is not None, 20, "movers")
    running.send_signal(signal.SIGINT)
    r = t.finish(running, rc=121, timeout=30)
    r.says("interrupted")
    t.nothing_left("an interrupted run")


HOSTS = ["n1", "n2", "n3"]
# Like ssh: options, host, command for a shell there. Each host has its own pools, and the last one
# another directory in the place of the tree.
RSH = r'''#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
mkdir -p "BASE/$host"
export COMMAND="$*" host
exec unshare --mount --propagation private bash -c '
mount --bind "BASE/$host" "$FOREBAY_HOME"
if [[ $host == n3 && -e WORK/hide ]]; then mount --bind WORK/hide WORK/tree; fi
exec bash -c "$COMMAND"'
'''


@case(150)
def staging_hosts(t):
    """By a remote shell, to hosts with file systems of their own."""
    probe = ["unshare", "--mount", "--propagation", "private", "true"]
    if os.getuid() != 0 or not shutil.which("unshare") or subprocess.run(probe, stderr=subprocess.DEVNULL).returncode:
        raise Skipped("mount namespaces need root and unshare(1)")
    rsh = t.work + "/rsh"
    with open(rsh, "w") as f:
        f.write(RSH.replace("BASE", t.base + "/hosts").replace("WORK", t.work))
    os.chmod(rsh, 0o755)
    # The directories of the hosts' pools are in memory, as they should be.
    top, back = t.work + "/tree", t.work + "/back"
    tree(top)

    def at(host, *words, **more):
        return t.command([rsh, host, " ".join([t.forebay, *words, "--pool", POOL])], timeout=60, **more)
    at("n1", "up", "--hosts", ",".join(HOSTS), "--rsh", rsh, "--media", "memory:200M", "--listen", "127.0.0.1")
    try:
        r = at("n1", "stage", "in", top, "/case", "--json").json()
        t.ok(r["failed"] == 0 and [s["node"] for s in r["nodes"]] == [0, 1, 2], json.dumps(r))
        t.ok(all(s["moved_bytes"] > 20 << 20 for s in r["nodes"]), json.dumps(r["nodes"]))
        r = at("n1", "stage", "out", "/case", back, "--json").json()
        t.ok(r["failed"] == 0 and [s["node"] for s in r["nodes"]] == [0, 1, 2], json.dumps(r))
        t.same(t.walk(top), t.walk(back), "what came back")
        # A node that doesn't see the source, but a directory of the same name, takes no part, and
        # is named.
        os.mkdir(t.work + "/hide")
        r = at("n1", "stage", "in", top, "/again", "--json").json()
        t.ok(r["failed"] == 0 and [s["node"] for s in r["nodes"]] == [0, 1], json.dumps(r))
        t.ok(any("node 2 on n3" in w["path"] and "another one" in w["path"] for w in r["warnings"]), json.dumps(r))
    finally:
        at("n1", "down", "--force", rc=None)
    t.ok(not any(os.listdir(t.base + "/hosts/" + h) for h in HOSTS), "something is left")
