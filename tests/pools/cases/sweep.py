"""The sweep: each role under each lack. What happens is an error with a sentence, or nothing at all:
no role is ended by a signal, nothing that was acknowledged is lost, and `fsck` is clean afterwards.

The table of what was seen is in docs/internals/faults-sweep.md.
"""
import glob
import os
import shutil
import time

from harness import Skipped, case
from .room import in_namespace

# Runs behind room.PRELUDE; sys.argv[4:] is the fault and a directory on a real file system.
SWEEP = r'''
import hashlib, resource, shutil, signal, tempfile
fault, disk = sys.argv[4:6]
home = os.environ["FOREBAY_HOME"]
small = os.path.join(top, "disk")

# The program: writes files, and reports each that was written and synced.
PROGRAM = """
import hashlib, os, sys
where, first, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
failed = {}
for i in range(first, first + n):
    body = hashlib.sha256(b"%d" % i).digest() * (40 * (1 + i % 50))
    try:
        with open("%s/f%d" % (where, i), "wb", 0) as f:
            if f.write(body) != len(body):
                raise OSError(28, "short")
            os.fsync(f.fileno())
        print(i, flush=True)
    except OSError as e:
        failed[e.errno] = failed.get(e.errno, 0) + 1
print("failed", failed, file=sys.stderr)
"""

def content(i):
    return hashlib.sha256(b"%d" % i).digest() * (40 * (1 + i % 50))

def run(argv, limits=(), hidden=False, env=None, timeout=40):
    """Runs a command under the fault; it must end by itself. Its output."""
    words = list(argv)
    if limits:
        words = ["prlimit", *limits] + words
    if hidden:
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                 'mount -t tmpfs none /proc && exec "$@"', "sh"] + words
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          timeout=timeout, universal_newlines=True, env={**os.environ, **(env or {})})
    told = (words[:6], done.returncode, done.stdout[-300:], done.stderr[-800:])
    assert 0 <= done.returncode < 128, told
    assert "panicked" not in done.stderr, told
    return done

def python(script, *arguments):
    return [forebay, "exec", "--pool", "p", "--", sys.executable, "-c", script, *map(str, arguments)]

def acknowledged(done, first, n):
    got = {int(line) for line in done.stdout.split()}
    assert got <= set(range(first, first + n)), got
    return got

def keeper_pids():
    told = json.loads(fb("status", "--pool", "p", "--json").stdout)
    nodes = told.get("nodes", [told])
    return [node["keeper"] for node in nodes if node.get("keeper")]

def squeeze(pid):
    """Takes from a running process what the fault takes."""
    if fault == "descriptors":
        n = len(os.listdir("/proc/%d/fd" % pid))
        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (n, hard))
        return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
    if fault == "addresses":
        with open("/proc/%d/statm" % pid) as f:
            used = int(f.read().split()[0]) * 4096
        hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
        resource.prlimit(pid, resource.RLIMIT_AS, (used, hard))
        return lambda: resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
    return lambda: None

def under(role):
    """How a command of this role is started under the fault."""
    if fault == "descriptors":
        return {"limits": ["--nofile=24:24"]}
    if fault == "addresses":
        return {"limits": ["--as=400000000:400000000"]}
    if fault == "proc":
        return {"hidden": True}
    if fault == "clock":
        # Three days ahead in the process itself, the others go by the real time.
        return {"env": {"LD_PRELOAD": FAKE + ":" + os.environ.get("LD_PRELOAD", ""), "FAKETIME": "+3d"}}
    return {}

FAKE = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

def full():
    """Fills what the fault fills; what gives it back."""
    where = {"memory": os.path.join(top, "filler"), "disk": os.path.join(small, "filler")}.get(fault)
    if not where:
        return lambda: None
    fill(where)
    return lambda: os.unlink(where)

def one(role):
    nodes = ["--nodes", "2"] if role == "daemon" else []
    if fault == "disk":
        os.makedirs(small, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=%dm" % (200 * (1 + len(nodes) // 2)), "tmpfs", small], check=True)
        media = "files:%s:24M" % small
    else:
        media = "memory:24M"
    fb("up", "--pool", "p", "--media", media, *nodes)
    before = run(python(PROGRAM, "/fb", 0, 30))
    safe = acknowledged(before, 0, 30)
    assert len(safe) == 30, before.stderr
    mount = os.path.join(disk, "mnt-" + role)
    staged = os.path.join(disk, "in-" + role)
    os.makedirs(mount, exist_ok=True)
    os.makedirs(staged, exist_ok=True)
    for i in range(100, 130):
        with open("%s/f%d" % (staged, i), "wb") as f:
            f.write(content(i))
    if role == "mount":
        fb("mount", "--pool", "p", mount)
    undo = [full()]
    if role in ("keeper", "daemon"):
        undo += [squeeze(pid) for pid in keeper_pids()]
    if role == "mount":
        served = [int(n) for w, _, names in os.walk(home) if os.path.basename(w) == "mounts" for n in names if n.isdigit()]
        assert served, "no process serves the mount"
        undo += [squeeze(pid) for pid in served]
    told = ""
    try:
        if role in ("program", "keeper", "daemon"):
            done = run(python(PROGRAM, "/fb", 30, 60), **(under(role) if role == "program" else {}))
            if done.returncode == 0:
                safe |= acknowledged(done, 30, 60)
            told = done.stderr
            if role != "program" and fault == "descriptors":
                # Programs need nothing of it.
                assert len(safe) >= 60, told
        elif role == "mount":
            # 107 and 103 are ENOTCONN and ECONNABORTED: no process serves it.
            done = run([sys.executable, "-c", PROGRAM, mount, "30", "60"])
            safe |= acknowledged(done, 30, 60)
            told = done.stderr
            with open(os.path.join(home, "p", "mounts", "log")) as f:
                told += f.read()[-2000:]
            wrong = [w for w in ("107:", "103:", "5:", "11:") if w in told.replace("{", " ").replace(",", " ").split()]
            assert not wrong, told
            assert all(os.path.exists("/proc/%d" % pid) for pid in served), "the mount's server has ended: " + told
        elif role == "staging":
            done = run([forebay, "stage", "in", "--pool", "p", staged, "/in"], **under(role))
            if done.returncode == 0:
                for i in range(100, 130):
                    safe.add(i)
            told = done.stderr
            out = os.path.join(disk, "out-" + role)
            done = run([forebay, "stage", "out", "--pool", "p", "/", out], **under(role))
            if done.returncode == 0:
                for i in range(30):
                    with open("%s/f%d" % (out, i), "rb") as f:
                        assert f.read() == content(i), i
        elif role == "verbs":
            run([forebay, "workspace", "create", "--pool", "p", "w"], **under(role))
            for i in range(100, 108):
                path = "%s/f%d" % (staged, i)
                run([forebay, "collection", "create", "--pool", "p", "w", "f%d" % i], **under(role))
                done = run([forebay, "collection", "put", "--pool", "p", "w", "f%d" % i, path], **under(role))
                if done.returncode == 0:
                    safe.add(i)
            told = done.stderr
    finally:
        for back in undo:
            back()
    # All is given back: everything that was acknowledged is there.
    if role == "mount":
        # The same process serves it, which has all it needs again.
        done = run([sys.executable, "-c", PROGRAM, mount, "90", "10"])
        assert len(acknowledged(done, 90, 10)) == 10, done.stderr
        assert all(os.path.exists("/proc/%d" % pid) for pid in served), "the mount's server has ended"
        safe |= set(range(90, 100))
        fb("umount", mount)
    where = {"staging": "/fb/in", "verbs": "/fb/w"}.get(role, "/fb")
    check = """
import hashlib, os, sys
for i in map(int, sys.argv[2].split(",")):
    path = "%s/f%d" % (sys.argv[1] if i >= 100 else "/fb", i)
    body = hashlib.sha256(b"%d" % i).digest() * (40 * (1 + i % 50))
    with open(path, "rb") as f:
        got = f.read()
    assert got == body, (path, len(got), len(body))
"""
    done = run(python(check, where, ",".join(map(str, sorted(safe)))))
    assert done.returncode == 0, done.stderr
    # The pool works as before, and is whole.
    after = run(python(PROGRAM, "/fb", 200, 20))
    assert len(acknowledged(after, 200, 20)) == 20, after.stderr
    until = time.monotonic() + 15
    while True:
        checked = fb("fsck", "--pool", "p", rc=None)
        if checked.returncode == 0 or time.monotonic() > until:
            break
        time.sleep(0.3)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    fb("down", "--pool", "p")
    if fault == "disk":
        subprocess.run(["umount", small], check=True)
    print("%-8s %-12s %3d acknowledged; %s" % (role, fault, len(safe), told.strip().replace("\n", " | ")[:200]), flush=True)

for role in ("program", "keeper", "daemon", "mount", "staging", "verbs"):
    if role == "mount" and not os.path.exists("/dev/fuse"):
        continue
    try:
        one(role)
    except BaseException:
        print("role", role, "fault", fault, file=sys.stderr)
        raise
'''


def sweep(t, fault):
    print(in_namespace(t, SWEEP, 640, fault, t.disk, timeout=110).out)


@case(120)
def sweep_descriptors(t):
    """Each role at its limit of descriptors."""
    sweep(t, "descriptors")


@case(120)
def sweep_addresses(t):
    """Each role at its limit of memory (RLIMIT_AS); a memory cgroup's limit is `memory-limit`."""
    sweep(t, "addresses")


@case(120)
def sweep_memory(t):
    """The tmpfs of the pool is full to the last page, with other files."""
    sweep(t, "memory")


@case(120)
def sweep_disk(t):
    """The disk of `files` media is full, with other files."""
    sweep(t, "disk")


@case(120)
def sweep_proc(t):
    """Each role's commands without /proc."""
    sweep(t, "proc")


@case(120)
def sweep_clock(t):
    """Each role's commands with the clock three days ahead of the others'."""
    if not os.path.exists("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1") or not shutil.which("prlimit"):
        raise Skipped("libfaketime isn't installed")
    begun = time.time()
    try:
        sweep(t, "clock")
    finally:
        forget_faked_clocks(begun)


def forget_faked_clocks(since):
    """libfaketime leaves what processes share that were killed: `..._PID` in /dev/shm."""
    for path in glob.glob("/dev/shm/*faketime_s*"):
        pid = path.rpartition("_")[2]
        try:
            if os.stat(path).st_mtime >= since and not os.path.exists("/proc/" + pid):
                os.unlink(path)
        except FileNotFoundError:
            pass
