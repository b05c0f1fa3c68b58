"""inotify on paths of a pool: watchers and those they watch are killed, and programs beside a mount."""
import os
import signal
import subprocess

from harness import Lines, alive, case, kill, wait_until

from .mounts import mounted

# Prints mask and name of each event; with `fork`, a child holds the descriptor, too.
WATCH = r'''
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(0)
for path in sys.argv[2:]:
    if libc.inotify_add_watch(fd, path.encode(), 0xfce) < 0: sys.exit(os.strerror(ctypes.get_errno()))
if sys.argv[1] == "fork" and os.fork() == 0:
    print("ready", flush=True); os.read(os.pipe()[0], 1)
print("ready", flush=True)
while True:
    data = os.read(fd, 65536)
    while data:
        _, mask, _, size = struct.unpack("iIII", data[:16])
        print("%x %s" % (mask, data[16:16 + size].rstrip(b"\0").decode()), flush=True)
        data = data[16 + size:]
'''


def shadows(t, pool):
    """The resources of watches."""
    found = []
    for top, dirs, files in os.walk(t.pool_dir(pool)):
        if "/watches" in top:
            found += [os.path.join(top, name) for name in dirs + files]
    return [f for f in found if os.path.basename(f) not in ("watches", "names", "by-inode")]


def swept(t, pool):
    wait_until(lambda: not shadows(t, pool), 10, "the end of watches that nobody has: %s" % shadows(t, pool))
    t.fb("fsck", "--pool", pool)


@case(60)
def watchers_killed(t):
    t.up("p")
    t.bash("p", "mkdir /fb/d; touch /fb/d/f")
    # What inotify replaced isn't there, as in a kernel without it.
    t.python("p", "import fcntl, os\nd = os.open('/fb/d', os.O_RDONLY)\n"
             "fcntl.fcntl(d, fcntl.F_NOTIFY, fcntl.DN_CREATE)", rc=1).says("Errno 22")
    # One has it alone; of the other, a child has it when it is killed.
    alone = t.start_python("p", WATCH, "alone", "/fb/d", "/fb/d/f", stdout=subprocess.PIPE)
    lines = Lines(alone)
    lines.wait_for(1)
    forked = t.start_python("p", WATCH, "fork", "/fb/d", stdout=subprocess.PIPE)
    Lines(forked).wait_for(2)
    t.ok(len(shadows(t, "p")) >= 3, "what is watched isn't there: %s" % shadows(t, "p"))
    # Notifying processes are killed at any moment: the others are notified all the same.
    for n in range(20):
        teller = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                          "cd /fb/d; echo; while :; do : > x; mv x y; rm y; done"], stdout=subprocess.PIPE)
        teller.stdout.readline()
        before = len(lines.lines)
        wait_until(lambda: len(lines.lines) > before + 7 * n, 10, "events")
        for pid in [teller.pid]:
            kill(pid)
        teller.wait(5)
    t.bash("p", "touch /fb/d/last")
    wait_until(lambda: "8 last" in lines.lines, 10, "the last event")
    t.fb("fsck", "--pool", "p")
    kill(alone.pid)
    kill(forked.pid)
    alone.wait(5)
    forked.wait(5)
    for pid in t.ours():
        if alive(pid) and pid != t.keeper("p"):
            with open("/proc/%d/cmdline" % pid, "rb") as f:
                if b"import ctypes" in f.read():
                    kill(pid, signal.SIGKILL)
    swept(t, "p")


@case(60)
def mount_watched(t):
    t.up("p")
    t.bash("p", "mkdir /fb/d; touch /fb/d/f")
    with mounted(t, "p") as at:
        watcher = t.start_python("p", WATCH, "alone", "/fb/d", "/fb/d/f", stdout=subprocess.PIPE)
        lines = Lines(watcher)
        lines.wait_for(1)
        d = os.path.join(at, "d")
        with open(os.path.join(d, "new"), "w") as f:
            f.write("x")
        os.rename(os.path.join(d, "new"), os.path.join(d, "moved"))
        os.chmod(os.path.join(d, "moved"), 0o600)
        os.mkdir(os.path.join(d, "dir"))
        os.rmdir(os.path.join(d, "dir"))
        with open(os.path.join(d, "f"), "w") as f:
            f.write("x")
        os.unlink(os.path.join(d, "moved"))
        wanted = ["100 new", "2 new", "8 new", "40 new", "80 moved", "4 moved", "40000100 dir",
                  "40000200 dir", "2 f", "2 ", "8 f", "8 ", "200 moved"]
        # The kernel reports the last close at any later time.
        wait_until(lambda: not [w for w in wanted if w not in lines.lines], 10,
                   "%s of %s" % ([w for w in wanted if w not in lines.lines], lines.lines))
        kill(watcher.pid)
        watcher.wait(5)
    swept(t, "p")
