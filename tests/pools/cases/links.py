"""Directories that another user replaces by links while files are saved: nothing outside is written."""
import os
import pwd
import shutil
import sys
import time

from harness import Skipped, case

DIRECTORIES, FILES = 4, 40

# As another user: swaps each directory with a link, again and again, and puts links in the place of unfinished files.
HOSTILE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
top, victim = sys.argv[1], sys.argv[2]
names = [os.path.join(top, "d%d" % n).encode() for n in range(int(sys.argv[3]))]
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    for name in names:
        libc.renameat2(-100, name, -100, name + b".link", 2)
    if turn % 20 == 0:
        for name in names:
            try:
                for part in os.listdir(name):
                    if part.startswith(b".forebay-part-"):
                        path = os.path.join(name, part)
                        os.unlink(path)
                        os.symlink(os.path.join(victim, "d0", "f0"), path)
                        break
            except OSError:
                pass
"""


class Victim:
    """A directory of root that another user can't look into, with a link to each of its parts in `top`."""

    def __init__(self, t, top):
        if os.getuid() != 0 or not shutil.which("setpriv"):
            raise Skipped("only root can act as another user")
        self.t, self.top, self.at = t, top, os.path.join(t.disk, "victim")
        self.user = pwd.getpwnam("nobody")
        os.makedirs(top)
        os.chmod(t.disk, 0o755)
        for n in range(DIRECTORIES):
            os.makedirs("%s/d%d" % (self.at, n))
            for f in range(FILES):
                path = "%s/d%d/f%d" % (self.at, n, f)
                with open(path, "w") as out:
                    out.write("secret %d %d\n" % (n, f))
                os.chmod(path, 0o600)
                os.utime(path, (1000000000, 1000000000))
        os.chmod(self.at, 0o700)
        self.before = self.look()
        for n in range(DIRECTORIES):
            os.mkdir("%s/d%d" % (top, n))
            os.symlink("%s/d%d" % (self.at, n), "%s/d%d.link" % (top, n))
        self.own()

    def own(self):
        for path in [self.top] + ["%s/d%d" % (self.top, n) for n in range(DIRECTORIES)]:
            os.lchown(path, self.user.pw_uid, self.user.pw_gid)
            if not os.path.islink(path):
                os.chmod(path, 0o777)

    def look(self):
        found = {}
        for where, _, files in os.walk(self.at):
            for path in [where] + [os.path.join(where, f) for f in files]:
                st = os.lstat(path)
                text = open(path).read() if os.path.isfile(path) else sorted(os.listdir(path))
                found[path] = (st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, text)
        return found

    def swap(self, n):
        """As the hostile process does, once."""
        name = "%s/d%d" % (self.top, n)
        os.rename(name, name + ".aside")
        os.rename(name + ".link", name)
        os.rename(name + ".aside", name + ".link")

    def repair(self):
        for n in range(DIRECTORIES):
            if os.path.islink("%s/d%d" % (self.top, n)):
                self.swap(n)
            for name in os.listdir("%s/d%d" % (self.top, n)):
                path = "%s/d%d/%s" % (self.top, n, name)
                if os.path.islink(path):
                    os.unlink(path)
        self.own()

    def hostile(self):
        process = self.t.start(["setpriv", "--reuid", str(self.user.pw_uid), "--regid", str(self.user.pw_gid), "--clear-groups",
                                sys.executable, "-c", HOSTILE, self.top, self.at, str(DIRECTORIES)])
        self.t.ok(process.stdout.readline() == b"ready\n", "the other user's process doesn't start")
        return process

    def is_untouched(self):
        self.t.same(self.before, self.look(), "what lies outside the destination")

    def missing(self, wanted):
        """Files that aren't as they should be in the directories themselves."""
        return [(n, f) for n in range(DIRECTORIES) for f in range(FILES) if not self.has(n, f, wanted)]

    def has(self, n, f, wanted):
        path = "%s/d%d/f%d" % (self.top, n, f)
        return os.path.isfile(path) and not os.path.islink(path) and open(path).read() == wanted(n, f)


def write(t, to, round):
    t.bash("p", 'for n in $(seq 0 $2); do mkdir -p $1/d$n; for f in $(seq 0 $3); do echo "result $n $f $4" > $1/d$n/f$f; done; done',
           to, str(DIRECTORIES - 1), str(FILES - 1), str(round))
    return lambda n, f: "result %d %d %s\n" % (n, f, round)


@case(90)
def links_while_staged_out(t):
    victim = Victim(t, os.path.join(t.disk, "shared", "out"))
    t.up("p")
    failed = 0
    until = time.monotonic() + 20
    for round in range(8):
        wanted = write(t, "/fb/case", round)
        hostile = victim.hostile()
        try:
            r = t.fb("stage", "out", "/case", victim.top, "--pool", "p", "--json", rc=None, timeout=40)
        finally:
            hostile.kill()
            hostile.wait()
        victim.is_untouched()
        report = r.json()
        t.ok((r.rc == 0) == (report["failed"] == 0), r.told())
        victim.repair()
        missing = victim.missing(wanted)
        # A file that its own directory's owner has replaced after it was saved isn't counted.
        t.ok(not missing or report["failed"] > 0, "%d files are missing, and nothing was said\n%s" % (len(missing), r.told()))
        failed += report["failed"]
        if failed and time.monotonic() > until:
            break
    t.ok(failed, "no directory was a link at any step")
    # A link that stays: each file is named, or counted.
    wanted = write(t, "/fb/case", "last")
    victim.swap(0)
    r = t.fb("stage", "out", "/case", victim.top, "--pool", "p", rc=None)
    t.ok(r.rc != 0, "a link was followed\n" + r.told())
    r.says("d0: is in the way of a directory")
    victim.is_untouched()
    victim.repair()
    t.fb("stage", "out", "/case", victim.top, "--pool", "p", timeout=40)
    t.ok(not victim.missing(wanted), victim.missing(wanted))
    # The path that the user gives may lead through links.
    os.symlink("shared", t.disk + "/way")
    t.fb("stage", "out", "/case", t.disk + "/way/new", "--pool", "p")
    t.ok(os.path.isfile(t.disk + "/shared/new/d3/f0"), "the user's own link wasn't followed")
    t.fb("down", "--pool", "p", "--force")


@case(90)
def links_while_written_back(t):
    victim = Victim(t, os.path.join(t.disk, "shared", "origin"))
    t.fb("up", "--pool", "p", "--media", "memory:64M", "--origin", victim.top, "--origin-lag", "60")
    # No race: a directory has been replaced.
    wanted = write(t, victim.top, "first")
    victim.swap(0)
    r = t.fb("origin", "sync", "--pool", "p", rc=None, timeout=40)
    t.ok(r.rc != 0, "all changes are at the origin, which has a link\n" + r.told())
    r.says("symbolic link")
    t.fb("down", "--pool", "p", rc=None, timeout=40).says("symbolic link")
    t.ok(t.state("p") == "running", "the pool has ended with changes that aren't at the origin")
    victim.is_untouched()
    t.ok(all(n == 0 for n, _ in victim.missing(wanted)), victim.missing(wanted))
    victim.repair()
    t.fb("origin", "sync", "--pool", "p", timeout=40)
    t.ok(not victim.missing(wanted), victim.missing(wanted))
    for round in range(4):
        wanted = write(t, victim.top, round)
        hostile = victim.hostile()
        try:
            for _ in range(3):
                t.fb("origin", "sync", "--pool", "p", rc=None, timeout=40)
        finally:
            hostile.kill()
            hostile.wait()
        victim.is_untouched()
        victim.repair()
    t.fb("down", "--pool", "p", "--force", timeout=40)
    victim.is_untouched()
