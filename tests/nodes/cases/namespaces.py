"""Four nodes in network namespaces of their own, with a bridge between: as four hosts, as far as one host can be."""
import os
import random
import shutil
import stat
import subprocess
import threading
import time

from harness import Skipped, case
from .consistency import SECONDS, check
from .nodes import POOL

COUNT = 4


class Networks:
    """Namespaces with a bridge; all names are this run's own."""

    def __init__(self, t):
        self.t, self.tag = t, "%04x" % random.randrange(1 << 16)
        self.bridge = "fbr" + self.tag
        self.net = "10.%d.%d" % (random.randrange(100, 250), random.randrange(250))
        self.names = ["fb%s-%d" % (self.tag, n) for n in range(COUNT)]
        if os.getuid() != 0 or not shutil.which("ip"):
            raise Skipped("network namespaces need root and ip(8)")

    def ip(self, *words, must=True):
        done = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=10)
        if must and done.returncode:
            raise Skipped("network namespaces aren't allowed here: ip %s: %s" % (
                " ".join(words), done.stdout.decode().strip()))

    def make(self):
        self.ip("link", "add", self.bridge, "type", "bridge")
        self.ip("link", "set", self.bridge, "up")
        for n, name in enumerate(self.names):
            self.ip("netns", "add", name)
            inside, outside = "fi%s%d" % (self.tag, n), "fo%s%d" % (self.tag, n)
            self.ip("link", "add", inside, "type", "veth", "peer", "name", outside)
            self.ip("link", "set", inside, "netns", name)
            self.ip("link", "set", outside, "master", self.bridge, "up")
            self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", name, "addr", "add", "%s.%d/24" % (self.net, n + 1), "dev", inside)
            self.ip("-n", name, "link", "set", inside, "up")

    def slow(self):
        """Makes all ways slow and unsteady, if the kernel can; says how."""
        for how in ("netem delay 2ms 3ms loss 1%", "tbf rate 4mbit burst 16kbit latency 300ms"):
            rcs = [subprocess.run(["tc", "qdisc", "add", "dev", "fo%s%d" % (self.tag, n), "root", *how.split()],
                                  stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10).returncode
                   for n in range(COUNT) if shutil.which("tc")]
            if rcs and not any(rcs):
                return how + ":"
        return None

    def remove(self):
        for name in self.names:
            self.ip("netns", "del", name, must=False)
        self.ip("link", "del", self.bridge, must=False)
        for n in range(COUNT):
            self.ip("link", "del", "fo%s%d" % (self.tag, n), must=False)

    def shell(self):
        """A remote shell: HOST COMMAND..., where HOST is a namespace."""
        path = os.path.join(self.t.work, "rsh")
        with open(path, "w") as f:
            f.write('''#!/bin/bash
# Like ssh: options, host, command for a shell there.
while [[ $1 == -* ]]; do shift; done
host=$1; shift
exec ip netns exec "$host" bash -c "$*"
''')
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def inside(self, n, *words):
        return ["ip", "netns", "exec", self.names[n], *words]


class Hosts:
    """A pool over the namespaces. They share a file system, so each says which node it is."""

    def __init__(self, t, *options):
        self.t, self.nets = t, Networks(t)
        self.options = options or ("--request-timeout", "3")

    def __enter__(self):
        t, nets = self.t, self.nets
        try:
            nets.make()
            t.command(nets.inside(0, t.forebay, "up", "--pool", POOL, "--hosts", ",".join(nets.names), "--rsh",
                                  nets.shell(), "--media", "memory:128M", "--listen", nets.net + ".0/24",
                                  *self.options), timeout=60)
        except BaseException:
            nets.remove()
            raise
        return self

    def __exit__(self, *_):
        t, nets = self.t, self.nets
        t.command(nets.inside(0, t.forebay, "down", "--pool", POOL, "--force"), rc=None, timeout=30)
        nets.remove()

    def on(self, n, *words):
        n %= COUNT
        return self.nets.inside(n, self.t.forebay, "exec", "--pool", POOL, "--node", str(n), "--", *words)

    def each(self):
        """The words that run a program on node {}."""
        words = self.on(0)
        words[3] = self.nets.names[0][:-1] + "{}"
        words[words.index("--node") + 1] = "{}"
        return words


@case(150)
def hosts(t):
    """Programs on four hosts see each other's files; the checker finds nothing, though the network is bad."""
    with Hosts(t) as h:
        for n in range(COUNT):
            t.command(h.on(n, "bash", "-c", "echo %d >> /fb/log; head -c 3000000 /dev/urandom > /fb/f%d; "
                           "sha256sum < /fb/f%d" % (n, n, n)))
        sums = {t.command(h.on(n, "bash", "-c", "cat /fb/log; cat /fb/f? | sha256sum")).out for n in range(COUNT)}
        t.ok(len(sums) == 1, "they don't see the same: %s" % sums)
        t.command(h.on(0, "mkdir", "/fb/x"))
        words = h.each()
        print(check(t, "/fb/x", "--nodes", str(COUNT), with_=words))
        how = h.nets.slow()
        if how:
            print(how, check(t, "/fb/x", "--nodes", str(COUNT), "--faults", with_=words, bound=40))
        t.command(h.nets.inside(0, t.forebay, "fsck", "--pool", POOL), timeout=60)


@case(150)
def cut_networks(t):
    """Hosts are cut off and come back, while the checker runs."""
    with Hosts(t) as h:
        t.command(h.on(0, "mkdir", "/fb/x"))
        words = h.each()
        over = threading.Event()

        def cut():
            r = random.Random()
            while not over.wait(r.uniform(0.2, 1)):
                n = r.randrange(COUNT)
                h.nets.ip("link", "set", "fo%s%d" % (h.nets.tag, n), "down", must=False)
                time.sleep(r.choice([0.05, 0.5, 4]))
                h.nets.ip("link", "set", "fo%s%d" % (h.nets.tag, n), "up", must=False)

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            print(check(t, "/fb/x", "--nodes", str(COUNT), "--faults", with_=words, bound=40))
        finally:
            over.set()
            thread.join(20)
        time.sleep(4)
        t.command(h.nets.inside(0, t.forebay, "fsck", "--pool", POOL), timeout=60)
