"""Starts in bad circumstances: daemons killed right behind them, limits of file sizes, several at once."""
import os
import random
import re
import signal
import subprocess
import time

from harness import alive, case, wait_until

NODES = 4


def pid_of(t, number):
    with open(os.path.join(t.pool_dir("p"), "node-%d" % number, "keeper.pid")) as f:
        return int(f.read())


@case(90)
def daemons_killed_right_behind_the_start_can_be_started_again(t):
    """What `up` has said is up is there: no death of daemons takes a node away."""
    for round in range(12):
        t.up("p", "--nodes", str(NODES), media=("memory:8M",))
        victims = random.sample(range(NODES), random.randint(1, NODES))
        for number in victims:
            os.kill(pid_of(t, number), signal.SIGKILL)
        # The guard of a node, if it were to remove it, would do so now.
        time.sleep(0.05)
        t.fb("up", "--reopen", "--pool", "p").prints("restarted on this host: node")
        states = [n["state"] for n in t.fb("status", "--pool", "p", "--json").json()["nodes"]]
        t.ok(states == ["up"] * NODES, "round %d: %s" % (round, states))
        t.bash("p", "echo x > /fb/x; cat /fb/x").prints("^x$")
        t.fb("down", "--pool", "p")
    t.nothing_left("down")


@case(40)
def a_limit_of_file_sizes_is_an_error_and_no_death(t):
    def limited(option, *words, **more):
        script = 'ulimit %s -f 10; exec "$0" "$@"' % option
        return t.command(["bash", "-c", script, t.forebay, *words], **more)

    for nodes in ((), ("--nodes", "2")):
        r = limited("", "up", "--pool", "p", "--media", "memory:64M", *nodes, rc=1)
        r.says("[Ff]ile too large", "ulimit -f")
        t.nothing_left("a start that failed")
    # A limit that may be raised is raised.
    for nodes in ((), ("--nodes", "2")):
        limited("-S", "up", "--pool", "p", "--media", "memory:64M", *nodes)
        # A program's limit isn't for files of ours, such as what is known of its libraries.
        limited("", "exec", "--pool", "p", "--", "python3", "-c", "open('/fb/h', 'w').write('x' * 5000)")
        t.bash("p", "head -c 1M /dev/urandom > /fb/f; echo small > /fb/g")
        if not nodes:
            # But not for programs.
            r = limited("-S", "exec", "--pool", "p", "--", "bash", "-c", "ulimit -f; trap -p XFSZ")
            t.ok(r.out == "10\n", "a program's limit: %s" % r.out)
        out = os.path.join(t.work, "out%d" % len(nodes))
        limited("", "stage", "out", "/fb", out, "--pool", "p", rc=120).says("f: .*file too large.*ulimit -f")
        t.ok(sorted(os.listdir(out)) == ["g", "h"], "staged: %s" % os.listdir(out))
        t.fb("fsck", "--pool", "p")
        t.fb("stage", "out", "/fb", out, "--pool", "p")
        t.fb("down", "--pool", "p")


    # Commands write into a pool whose own files are longer than the limit; it holds for files in it.
    t.up("p", media=("files:%s:64M" % t.disk,))
    t.bash("p", "head -c 20M /dev/zero > /fb/f")
    source = os.path.join(t.work, "source")
    t.file(source, 5000)
    limited("", "stage", "in", source, "/fb/g", "--pool", "p")
    t.bash("p", 'cmp /fb/g "$1"', source)
    t.file(source, 50000)
    limited("", "stage", "in", source, "/fb/h", "--pool", "p", rc=120).says("file too large")
    t.fb("down", "--pool", "p", "--force")


@case(60)
def of_several_starts_of_one_name_one_succeeds(t):
    for nodes in ((), ("--nodes", "2")):
        for _ in range(3):
            starts = [t.start([t.forebay, "up", "--pool", "p", "--media", "memory:8M", *nodes],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
            ends = [(*start.communicate(timeout=20), start.returncode) for start in starts]
            t.ok([rc for _, _, rc in ends].count(0) == 1, str(ends))
            for _, told, rc in ends:
                t.ok("--force" not in told, "advice to remove a pool that is being made: %s" % told)
                t.ok(rc == 0 or re.search("another 'forebay up' is starting the pool|exists already; use it", told), told)
            t.bash("p", "echo x > /fb/x; cat /fb/x").prints("^x$")
            t.fb("down", "--pool", "p")
    t.nothing_left("down")


@case(60)
def few_addresses_are_enough(t):
    """For a batch system's limit of memory, which is one of addresses (`ulimit -v`). KiB."""
    for nodes in ((), ("--nodes", "2")):
        script = 'ulimit -v 1800000; exec "$0" "$@"'
        t.command(["bash", "-c", script, t.forebay, "up", "--pool", "p", "--media", "memory:64M", *nodes])
        t.command(["bash", "-c", script, t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                   "echo x > /fb/x; cat /fb/x"]).prints("^x$")
        # That of several nodes opens them all.
        if not nodes:
            t.command(["bash", "-c", script, t.forebay, "fsck", "--pool", "p"])
        t.fb("down", "--pool", "p")
    r = t.command(["bash", "-c", 'ulimit -n 20; exec "$0" "$@"', t.forebay, "up", "--pool", "p"], rc=1)
    r.says("[Tt]oo many open files.*ulimit -n")
    t.nothing_left("down")


@case(60)
def a_keeper_that_is_ended_leaves_nothing_wrong(t):
    """Also in the middle of what its other threads do: their sections aren't left in a free slot."""
    for round in range(16):
        t.up("p", media=("memory:16M",))
        keeper = t.keeper("p")
        program = t.start([t.forebay, "exec", "--pool", "p", "--", "sh", "-c",
                           "mkdir /fb/d; for i in $(seq 200); do echo $i > /fb/d/$i || exit 3; done"])
        # When the first process attaches, the keeper wakes up.
        time.sleep(0.004 + random.random() * 0.012)
        os.kill(keeper, signal.SIGTERM)
        t.ok(program.wait(timeout=20) == 0, "round %d: the program: %s" % (round, program.returncode))
        wait_until(lambda: not alive(keeper), 10, "the keeper's end")
        t.fb("up", "--reopen", "--pool", "p")
        # The new keeper releases the old one's slot within a second.
        wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 5, "a clean pool")
        t.fb("down", "--pool", "p")
    t.nothing_left("down")


@case(20)
def quiet_is_quiet(t):
    for nodes in ((), ("--nodes", "2")):
        r = t.up("p", "--quiet", *nodes).quiet()
        t.ok(r.out == "", "printed: %s" % r.out)
        t.fb("down", "--pool", "p").quiet()


@case(20)
def keepers_are_killed_last(t):
    """As far as this user may say so: killing them would free none of the pool's memory."""
    with open("/proc/self/oom_score_adj") as f:
        own = int(f.read())
    may_lower = t.command(["sh", "-c", "echo -500 > /proc/self/oom_score_adj"], rc=None).rc == 0
    wanted = min(own, -500) if may_lower else own
    for nodes in ((), ("--nodes", "2")):
        t.up("p", *nodes)
        pids = [pid_of(t, n) for n in range(2)] if nodes else [t.keeper("p")]
        for pid in pids:
            with open("/proc/%d/oom_score_adj" % pid) as f:
                t.ok(int(f.read()) == wanted, "oom_score_adj of a keeper")
        t.fb("down", "--pool", "p")
