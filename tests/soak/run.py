#!/usr/bin/env python3
"""The soak test: processes of all kinds start and end, and nothing of them is left.

Processes use a pool through the preloaded library, a FUSE mount, the verbs and the command line, on each
node of the pool, all at the same time, round after round. At the end the pool's complete accounting
(`forebay status --json --all`) equals that of the beginning, create, open, stat and read take no more
processor time than in a new pool, and `forebay fsck` finds nothing.

    run.py --seconds 80                  80 seconds for all pools together (part of `make test`)
    run.py --processes 200000            number of processes in each pool (`make soak`)
    run.py --nodes 1 --nodes 4           numbers of nodes of the pools, one after the other (the default)
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "pools"))

import harness  # noqa: E402 (found by the path set above)
from harness import Failed, Skipped, wait_until  # noqa: E402

# How long the keeper and the daemons may take until everything of the dead is back, in seconds.
SETTLED_WITHIN = 40
# The operations per second of processor time may fall to this part of what a new pool has.
RATE = 1 / 5
# How much a keeper or daemon may grow, in bytes of anonymous memory; and descriptors and threads.
GROWS = 24 << 20
MORE = 8
# Record files keep pages that were freed, and room reserved ahead (8 MiB in each of 16 shards); shared
# memory those that a process slot once used.
RECORDS_GROW = 192 << 20
FILES_GROW = 256 << 20

# Kinds of births: see births.c.
KINDS = ["fork", "spawn", "vfork", "chain", "daemon", "threads", "kill", "zombie", "pipeline"]



class Soak:
    def __init__(self, t, nodes, births, verbs, seed):
        self.t, self.nodes, self.births, self.verbs = t, nodes, births, verbs
        self.seed = seed
        self.born = 0
        self.mount = None
        self.new_pool("soak")
        if os.access("/dev/fuse", os.R_OK | os.W_OK):
            self.mount = os.path.join(t.base, "mnt")
            os.mkdir(self.mount)
            t.fb("mount", "--pool", "soak", self.mount)
        # One command at a time takes its whole time; the rest run on.
        self.end_of_cli = 0

    def new_pool(self, name):
        words = ["--nodes", str(self.nodes)] if self.nodes > 1 else []
        self.t.up(name, *words, media=("memory:256M",), timeout=60)
        self.t.bash(name, "seq 1000 > /fb/f; mkdir /fb/cli; echo x > /fb/cli/x")
        for node in range(self.nodes):
            self.t.bash(name, "mkdir /fb/n%d /fb/m%d; seq 1000 | tee /fb/n%d/f > /fb/m%d/f" % (
                (node,) * 4))

    def on(self, node, *argv, pool="soak"):
        words = ["--node", str(node)] if self.nodes > 1 else []
        return [self.t.forebay, "exec", "--pool", pool, *words, "--", *argv]

    # One round

    def round(self, seconds, crowd):
        """Runs all faces at once for `seconds`."""
        t, running = self.t, []

        def start(argv, **more):
            running.append(t.start([str(a) for a in argv], **more))

        def seed():
            self.seed += 1
            return self.seed
        for node in range(self.nodes):
            kinds = ",".join(KINDS + ["crowd=%d" % (crowd // self.nodes)] * bool(crowd))
            start(self.on(node, self.births, kinds, "/fb/n%d" % node, "0", str(seconds),
                          str(seed())))
        if self.mount:
            start([self.births, ",".join(KINDS), self.mount + "/m0", 0, seconds, seed()])
        start([self.verbs, "pool:soak", 0, seconds, seed()])
        try:
            self.command_line(seconds)
        finally:
            deadline = time.monotonic() + 60 + seconds
            for process in running:
                left = max(1, deadline - time.monotonic())
                said = t.finish(process, timeout=left).out
                self.born += int(said.split("total ", 1)[1].split()[0])

    def command_line(self, seconds):
        """Commands, one after the other, some of them killed in the middle."""
        t, r = self.t, random.Random(self.seed)
        until = time.monotonic() + seconds
        out = os.path.join(t.work, "out")
        commands = [["ls", "/"], ["find", "/f"], ["status"], ["df"], ["set", "/cli"],
                    ["stage", "in", os.path.join(HERE, "births.c"), "/cli/in"],
                    ["stage", "out", "/cli", out]]
        while time.monotonic() < until:
            words = r.choice(commands)
            shutil.rmtree(out, ignore_errors=True)
            process = t.start([t.forebay, words[0], *([words[1]] if words[0] == "stage" else []),
                               "--pool", "soak", *words[2 if words[0] == "stage" else 1:]])
            self.born += 1
            if r.random() < 0.3:
                time.sleep(r.random() * 0.02)
                process.kill()
                t.finish(process, rc=None)
            else:
                # 1: a staging that was killed has left something there.
                t.finish(process, rc=(0, 1) if words[0] == "stage" else 0)

    # Looking

    def taken(self):
        """The entries in use of each node's tables."""
        told = self.t.fb("status", "--pool", "soak", "--json", "--all").json()
        nodes = told.get("nodes", [told])
        servers = {m["process"] for n in nodes for m in n.get("mounts", [])}
        taken = [n["taken"] for n in nodes]
        for node in taken:
            if "error" in node:
                raise Failed("the accounting can't be had: %s" % node["error"])
            if not node["keeper"]:
                raise Failed("a node has no keeper any more")
            node["servers"] = servers | {node["keeper"]["process"]}
        return taken

    @staticmethod
    def differences(base, taken):
        found = []

        def equal(what, then, now):
            if then != now:
                found.append("%s: %s, not %s" % (what, now, then))

        def at_most(what, bound, now):
            if now > bound:
                found.append("%s: %s, more than %s" % (what, now, bound))
        for k, (then, now) in enumerate(zip(base, taken)):
            on = "node %d, " % k
            for table in ("process_slots", "live_entries", "descriptions", "locks"):
                equal(on + table, then[table]["used"], now[table]["used"])
            equal(on + "slots of processes that have ended", 0, now["process_slots"]["ended"])
            for count in ("lock_notes", "sections", "unsettled", "watches", "files"):
                equal(on + count, then[count], now[count])
            if then["request_cells"]:
                equal(on + "request cells", then["request_cells"]["used"],
                      now["request_cells"]["used"])
            equal(on + "bytes in media", [m["used"] for m in then["media"]],
                  [m["used"] for m in now["media"]])
            shards = len(now["reader_slots"]["used"])
            for reader in now["reader_slots"]["processes"]:
                if reader["process"] not in now["servers"]:
                    found.append("%sreader slots of process %d: %d" % (
                        on, reader["process"], reader["slots"]))
                at_most(on + "reader slots of a server", shards * 16, reader["slots"])
            was, keeper = then["keeper"], now["keeper"]
            equal(on + "keeper's process", was["process"], keeper["process"])
            at_most(on + "keeper's descriptors", was["descriptors"] + MORE, keeper["descriptors"])
            at_most(on + "keeper's threads", was["threads"] + MORE, keeper["threads"])
            at_most(on + "keeper's memory", was["rss_anonymous"] + GROWS, keeper["rss_anonymous"])
            at_most(on + "bytes of records", then["record_bytes"] + RECORDS_GROW,
                    now["record_bytes"])
            at_most(on + "bytes below the home", then["file_bytes"] + FILES_GROW,
                    now["file_bytes"])
        return found

    def settled(self, base):
        """Waits until everything is as it was."""
        until = time.monotonic() + SETTLED_WITHIN
        while True:
            differs = self.differences(base, self.taken())
            if not differs:
                return
            if time.monotonic() > until:
                raise Failed("%d s after %d processes have ended, the accounting differs:\n      %s"
                             % (SETTLED_WITHIN, self.born, "\n      ".join(differs[:30])))
            time.sleep(0.3)

    def base(self):
        """The accounting, once it doesn't change any more."""
        until = time.monotonic() + SETTLED_WITHIN
        before = self.taken()
        while True:
            time.sleep(2.2)
            now = self.taken()
            quiet = all(not n["process_slots"]["ended"] and not n["unsettled"] and
                        not any(n[t]["used"] for t in ("live_entries", "descriptions", "locks")) and
                        {r["process"] for r in n["reader_slots"]["processes"]} <= n["servers"]
                        for n in now)
            if quiet and not self.differences(before, now):
                return now
            if time.monotonic() > until:
                raise Failed("the accounting doesn't come to rest: %s" % now)
            before = now

    def rates(self, pool):
        """Operations per second of processor time, of the program and of the pool's keepers."""
        status = self.t.fb("status", "--pool", pool, "--json", "--all").json()
        keepers = [str(n["taken"]["keeper"]["process"]) for n in status.get("nodes", [status])]
        said = self.t.command(self.on(0, self.births, "rates", "/fb/n0", *keepers, pool=pool),
                              timeout=60).out
        return {name: float(n) for name, n in (line.split() for line in said.splitlines())}

    def compare_with_new(self):
        """Returns the best rates of a new pool and of this one.

        They are taken in turns: whether a request finds its server awake, which is most of its cost over
        several nodes, depends on what else the machine does.
        """
        self.new_pool("new")
        new, soaked = {}, {}
        for turn in range(8):
            for best, pool in ((new, "new"), (soaked, "soak")):
                for name, rate in self.rates(pool).items():
                    best[name] = max(rate, best.get(name, 0))
            slow = {n: (new[n], r) for n, r in soaked.items() if r < new[n] * RATE}
            if not slow:
                break
            time.sleep(turn)
        else:
            raise Failed("operations per second of processor time, new and soaked: %s" % slow)
        self.t.fb("down", "--pool", "new", timeout=30)
        return new, soaked

    def run(self, seconds, processes, crowd):
        t = self.t
        begun = time.monotonic()
        self.round(2, 60)
        t.bash("soak", "rm -rf /fb/cli/in*")
        base = self.base()
        until = begun + seconds - 10 if seconds else float("inf")
        rounds = 0
        while rounds == 0 or (time.monotonic() < until
                              and (not processes or self.born < processes)):
            left = until - time.monotonic()
            self.round(max(2, min(15, left)), crowd if rounds % 4 == 0 else 0)
            rounds += 1
        t.bash("soak", "rm -rf /fb/cli/in*")
        self.settled(base)
        # Nothing is half made.
        t.bash("soak", "find /fb -ls > /dev/null && test ! -e /fb/soak").quiet()
        new, soaked = self.compare_with_new()
        if self.mount:
            t.fb("umount", self.mount)
        t.fb("fsck", "--pool", "soak", timeout=60)
        t.fb("down", "--pool", "soak", timeout=30)
        t.nothing_left("after the soak", processes=False)
        print("passed  %d node%s  %d processes in %.0f s; per second of processor time, new and soaked: %s" % (
            self.nodes, "s" * (self.nodes > 1), self.born, time.monotonic() - begun,
            ", ".join("%s %.0f %.0f" % (n, new[n], soaked[n]) for n in new)))


def compile_all(t, forebay):
    if not shutil.which("gcc"):
        raise Skipped("it needs gcc")
    target = os.path.dirname(forebay)
    births, verbs = t.work + "/births", t.work + "/verbs"
    t.command(["gcc", "-O1", "-pthread", "-o", births, os.path.join(HERE, "births.c")], timeout=60)
    t.command(["gcc", "-O1", "-o", verbs, os.path.join(HERE, "verbs.c"), "-I",
               os.path.join(ROOT, "include"), "-L", target, "-lforebay_iov",
               "-Wl,-rpath," + target], timeout=60)
    return births, verbs


def show_what_is_left(forebay):
    """Prints what the pool has in the workspace of the verbs, and what fsck says of it."""
    for words in (["ls", "-l", "--pool", "soak", "/soak"], ["fsck", "--pool", "soak"]):
        try:
            done = subprocess.run([forebay, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=60, check=False, text=True)
            print("  $ forebay %s\n%s" % (" ".join(words), "\n".join(done.stdout.split("\n")[:20])))
        except subprocess.TimeoutExpired:
            print("  $ forebay %s: no end within 60 s" % " ".join(words))


def one(options, nodes, seconds):
    """A soak of a pool of `nodes` nodes, in its own home; returns whether it passed."""
    base = tempfile.mkdtemp(prefix="fbs-", dir="/dev/shm")
    os.chmod(base, 0o755)
    mark = "soak-%d-%d" % (os.getpid(), random.getrandbits(32))
    for name in list(os.environ):
        if name.startswith("FOREBAY_") or name == "LD_PRELOAD":
            del os.environ[name]
    os.environ.update(LC_ALL="C", FOREBAY_HOME=os.path.join(base, "home"), FOREBAY_TEST_MARK=mark)
    soak = None

    def too_long(*_):
        raise Failed("it takes too long")
    signal.signal(signal.SIGALRM, too_long)
    if seconds:
        signal.alarm(int(seconds * 2 + 120))
    try:
        t = harness.T(options.forebay, base, None)
        soak = Soak(t, nodes, *compile_all(t, options.forebay), options.seed)
        soak.run(seconds, options.processes, options.crowd)
        return True
    except Skipped as e:
        print("skipped %d nodes: %s" % (nodes, e))
        return True
    except Failed as e:
        print("FAILED  %d nodes (seed %d): %s" % (nodes, options.seed, e))
        show_what_is_left(options.forebay)
        return False
    finally:
        signal.alarm(0)
        sys.stdout.flush()
        if options.keep:
            print("kept: FOREBAY_HOME=%s" % os.environ["FOREBAY_HOME"])
            return False
        if soak and soak.mount:
            subprocess.run(["umount", "-l", soak.mount] if os.getuid() == 0 else
                           ["fusermount3", "-uz", soak.mount], stderr=subprocess.DEVNULL)
        subprocess.run([options.forebay, "down", "--force", "--pool", "soak"], timeout=30,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        for _ in range(100):
            ours = harness.processes_with("FOREBAY_TEST_MARK=" + mark)
            for pid in ours:
                harness.kill(pid)
            if not ours:
                break
            time.sleep(0.05)
        shutil.rmtree(base, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description="Births and deaths of processes of all kinds.")
    parser.add_argument("--seconds", type=float, default=0, metavar="N",
                        help="how long it may take, all pools together (default: no bound)")
    parser.add_argument("--processes", type=int, default=0, metavar="N",
                        help="so many processes in each pool (default: as many as there is time for)")
    parser.add_argument("--nodes", type=int, action="append", metavar="N",
                        help="a pool of so many nodes (may be given more than once; default 1 and 4)")
    parser.add_argument("--crowd", type=int, metavar="N",
                        help="so many processes at once (default 1000; 300 with --seconds)")
    parser.add_argument("--seed", type=int, default=random.getrandbits(20))
    parser.add_argument("--keep", action="store_true", help="keep the pool of a failed run")
    parser.add_argument("--forebay", metavar="PATH",
                        default=os.path.join(ROOT, "target", "release", "forebay"))
    options = parser.parse_args()
    options.forebay = os.path.abspath(options.forebay)
    if not options.seconds and not options.processes:
        parser.error("say how long (--seconds) or how many (--processes)")
    if options.crowd is None:
        options.crowd = 300 if options.seconds else 1000
    if not os.access(options.forebay, os.X_OK):
        parser.error("%s is not there: build it (cargo build --release)" % options.forebay)

    def interrupted(*_):
        raise SystemExit(1)
    signal.signal(signal.SIGTERM, interrupted)
    nodes = options.nodes or [1, 4]
    passed = [one(options, n, options.seconds / len(nodes)) for n in nodes]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
