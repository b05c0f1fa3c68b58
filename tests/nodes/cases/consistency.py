"""forebay-check: random operations of several processes, and whether a single POSIX file system could have done this."""
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time

from harness import Failed, Skipped, case
from .nodes import NODES, POOL, node, on, tidy, up

SECONDS = int(os.environ.get("FOREBAY_CHECK_SECONDS", "8"))


def check(t, top, *options, with_=(), seconds=SECONDS, rc=0, bound=20, env=None):
    seed = ["--seed", os.environ["FOREBAY_SEED"]] if "FOREBAY_SEED" in os.environ else []
    program = os.path.join(os.path.dirname(t.forebay), "forebay-check")
    words = [program, "--top", top, "--seconds", str(seconds), "--bound", str(bound), *seed, *options]
    if with_:
        words += ["--", *with_]
    r = t.command(words, rc=None, timeout=seconds + 3 * bound + 20, env=env)
    if r.rc != rc:
        raise Failed("exit code %s, not %s\n%s%s" % (r.rc, rc, r.out[-6000:], r.err[-1500:]))
    return r.out.strip().split("\n")[-1]


def in_pool(t, *options, prepare=True, nodes=NODES, **more):
    if prepare:
        t.command(on(t, 0, "mkdir", "/fb/x", nodes=nodes))
    words = on(t, 0, nodes=nodes)
    if nodes > 1:
        words[words.index("--node") + 1] = "{}"
    told = check(t, "/fb/x", "--nodes", str(nodes), *options, with_=words, **more)
    print(told)


@case(120)
def checker_finds_what_is_wrong(t):
    """Each of the weaker file systems is found out; tmpfs itself isn't."""
    top = tempfile.mkdtemp(prefix="check-", dir=t.base)
    check(t, top, "--by-cells", "--mixed-locks", seconds=3)
    check(t, top, "--by-cells", "--operations", "7", "--cell", "4096", seconds=2)
    check(t, top, "--by-cells", "--kill", "300", "--faults", seconds=2)
    for weak in ("cached-size", "cached-names", "append-by-size", "create-by-looking", "rename-in-two", "exchange-in-two",
                 "own-locks"):
        told = check(t, top, "--by-cells", "--weak", weak, seconds=15, rc=1)
        t.ok(told.startswith("seed "), told)


@case(60 + 2 * SECONDS)
def consistent(t):
    """Four processes, one per node; cells small enough for the record, and larger than a page."""
    up(t)
    in_pool(t)
    in_pool(t, "--cell", "8192", "--operations", "6", "--mixed-locks", prepare=False, seconds=max(1, SECONDS // 2))
    tidy(t)


@case(60 + 2 * SECONDS)
def consistent_two_per_node(t):
    """Eight processes, two on each node."""
    up(t)
    in_pool(t, "--workers", "8", "--operations", "2")
    tidy(t)


@case(60 + 2 * SECONDS)
def consistent_where_made(t):
    """Entries lie with their creator (distribution local-all)."""
    if NODES == 1:
        raise Skipped("one node")
    up(t)
    t.command(on(t, 0, "mkdir", "/fb/x"))
    t.fb("set", "--pool", POOL, "/x", "--distribution", "local-all")
    in_pool(t, prepare=False)
    tidy(t)


@case(90 + 2 * SECONDS)
def consistent_striped(t):
    """Chunks of files lie on all nodes: cells of half a chunk, so that files reach into several, and writes go in pieces;
    then the same while processes are killed."""
    if NODES == 1:
        raise Skipped("one node")
    up(t)
    t.fb("set", "--pool", POOL, "/x", "--distribution", "striped")
    large = ["--cell", str(512 << 10), "--operations", "4", "--by-cells", "--pieces"]
    in_pool(t, *large, prepare=False)
    in_pool(t, "--operations", "4", prepare=False, seconds=max(1, SECONDS // 2))
    in_pool(t, *large, "--kill", "40", "--faults", prepare=False)
    tidy(t)


@case(90 + 4 * SECONDS)
def consistent_as_was_said(t):
    """Files with weaker consistency: reads see committed writes and the process's own, and nothing else; also
    when processes are killed. The checker detects a process that doesn't commit as it claims."""
    if NODES == 1:
        raise Skipped("one node")
    up(t)
    t.command(on(t, 0, "mkdir", "/fb/x"))
    for said in ("commit", "session", "eventual(30ms)"):
        t.fb("set", "--pool", POOL, "/x", "consistency=" + said)
        for more in ((), ("--kill", "100", "--cell", "4096")):
            in_pool(t, "--consistency", said, "--workers", "6", *more, prepare=False, seconds=max(1, SECONDS // 3))
    t.fb("set", "--pool", POOL, "/x", "consistency=commit")
    in_pool(t, "--consistency", "commit", "--weak", "no-commit", prepare=False, seconds=2, rc=1)
    tidy(t)


@case(60 + 2 * SECONDS)
def consistent_on_one_node(t):
    up(t, nodes=1)
    in_pool(t, nodes=1)
    tidy(t)


@case(80 + 2 * SECONDS)
def consistent_though_processes_are_killed(t):
    up(t)
    in_pool(t, "--kill", "40", "--faults")
    tidy(t)


def while_it_runs(t, disturb, *options, seconds=SECONDS, **more):
    """Runs the checker while `disturb` is called again and again."""
    problems = []
    over = threading.Event()

    def run():
        r = random.Random()
        try:
            while not over.wait(r.uniform(0.05, 0.6)):
                disturb(r)
        except Failed as e:
            problems.append(str(e))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        in_pool(t, "--faults", *options, seconds=seconds, bound=30, **more)
    finally:
        over.set()
        thread.join(30)
    if problems:
        raise Failed("disturbing failed: " + problems[0])


@case(150 + 2 * SECONDS)
def consistent_though_daemons_are_killed(t):
    """Daemons are killed and restarted; what lies in memory is there again, locks included."""
    if NODES == 1:
        raise Skipped("one node")
    up(t, "--request-timeout", "3")

    def disturb(r):
        k = r.randrange(NODES)
        node(t, "kill", k)
        time.sleep(r.choice([0, 0.05, 0.3]))
        node(t, "restart", k)

    while_it_runs(t, disturb, "--mixed-locks")
    # Committed data survive whatever happens to daemons.
    for said in ("commit", "session"):
        t.fb("set", "--pool", POOL, "/x", "consistency=" + said)
        while_it_runs(t, disturb, "--consistency", said, "--kill", "50", prepare=False, seconds=max(2, SECONDS // 3))
    tidy(t)


@case(150 + 2 * SECONDS)
def consistent_though_daemons_stand_still(t):
    """Daemons are stopped and go on, so that answers come late, or too late."""
    if NODES == 1:
        raise Skipped("one node")
    up(t, "--request-timeout", "2")

    def disturb(r):
        k = r.randrange(NODES)
        node(t, "pause", k)
        time.sleep(r.choice([0.05, 0.3, 0.3, 2.5]))
        node(t, "resume", k)

    while_it_runs(t, disturb)
    tidy(t)


@case(150 + 2 * SECONDS)
def consistent_though_connections_are_cut(t):
    """The kernel aborts the daemons' connections, again and again."""
    if NODES == 1 or os.getuid() != 0 or not shutil.which("ss"):
        raise Skipped("needs several nodes, root and ss(8)")
    up(t, "--request-timeout", "3")
    nodes = t.fb("status", "--pool", POOL, "--json").json()["nodes"]
    ports = [n["addresses"][0].rsplit(":", 1)[1] for n in nodes]
    aborted = [0]

    def disturb(r):
        for port in r.sample(ports, r.choice([1, 1, len(ports)])):
            done = subprocess.run(["ss", "-K", "-H", "-t", "( sport = :%s or dport = :%s )" % (port, port)],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, timeout=10)
            aborted[0] += len(done.stdout.splitlines())

    while_it_runs(t, disturb)
    if not aborted[0]:
        raise Skipped("the kernel can't abort connections")
    print("%d ends of connections were cut" % aborted[0])
    tidy(t)
