"""Losses of power of a pool with an origin, on file systems of loop devices that are shut down."""
import os
import shutil
import subprocess

from harness import Skipped, case, kill, noise
from powercut_origin import Rounds


@case(90)
def origin_of_a_pool_that_loses_its_power(t):
    """The short form of tests/pools/powercut_origin.py."""
    if os.getuid() != 0 or not shutil.which("mkfs.ext4") or not os.path.exists("/dev/loop-control"):
        raise Skipped("only root can have file systems on loop devices, with mkfs.ext4")
    if subprocess.run(["losetup", "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise Skipped("there is no loop device")
    seed = os.environ.get("FOREBAY_SEED")
    rounds = Rounds(t.disk, t.forebay, seconds=(0.3, 1.0), seed=int(seed) if seed else None)
    print("seed %d" % rounds.seed)
    try:
        for number in range(2):
            t.ok(rounds.round(number), "round %d" % number)
    finally:
        rounds.close()


# Opens a file, and changes it when it is told to, without syncing it.
CHANGE = """
import ctypes, mmap, os, sys, time
path, kind = sys.argv[1:]
fd = os.open(path, os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
MIB = 1 << 20
def mapped(prot):
    return libc.mmap(None, ctypes.c_size_t(MIB), prot, mmap.MAP_SHARED, fd, ctypes.c_long(0))
if kind == "mapped before": at = mapped(mmap.PROT_READ | mmap.PROT_WRITE)
elif kind == "mapped later": at = mapped(mmap.PROT_READ)
print("open", flush=True)
sys.stdin.readline()
if kind == "cut": os.ftruncate(fd, 300000)
elif kind == "append": os.lseek(fd, 0, os.SEEK_END); os.write(fd, b"x" * 5000)
elif kind == "inside": os.pwrite(fd, b"other bytes", 100000)
else:
    if kind == "mapped": at = mapped(mmap.PROT_READ | mmap.PROT_WRITE)
    elif kind == "mapped later":
        assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(MIB), mmap.PROT_READ | mmap.PROT_WRITE) == 0
    ctypes.memmove(at + 100000, b"other bytes", 11)
print("changed", flush=True)
time.sleep(60)
"""


@case(60)
def origin_gets_what_a_loss_of_power_left_half_changed(t):
    """A change that nobody synced, but others' syncs did, leaves no clean file after a loss of shared memory."""
    top = os.path.join(t.disk, "origin")
    os.mkdir(top)
    os.mkdir(os.path.join(t.disk, "pool"))
    kinds = ("cut", "append", "inside", "mapped", "mapped later", "mapped before")
    for kind in kinds:
        with open("%s/%s" % (top, kind), "wb") as f:
            f.write(noise(1 << 20, 3))
    t.fb("up", "--pool", "p", "--media", "files:%s/pool:64M" % t.disk, "--origin", top, "--origin-lag", "60")
    t.bash("p", "cat %s/* > /dev/null" % top)
    changers = [t.start_python("p", CHANGE, "%s/%s" % (top, kind), kind, stdin=subprocess.PIPE) for kind in kinds]
    for changer in changers:
        t.ok(changer.stdout.readline() == b"open\n", "a file isn't open")
    # The origin gets what was mapped for writing; what is stored from then on leaves no change time.
    t.fb("origin", "sync", "--pool", "p")
    t.ok(t.fb("origin", "status", "--pool", "p", "--json").json()["dirty_files"] == 0, "a mapped file isn't clean")
    for changer in changers:
        changer.stdin.write(b"\n")
        changer.stdin.flush()
        t.ok(changer.stdout.readline() == b"changed\n", "a file isn't changed")
    # Commits what the others have changed, too, and syncs the medium.
    t.bash("p", "echo more > {0}/other; sync {0}/other".format(top))
    keeper = t.keeper("p")
    for pid in [keeper, *(c.pid for c in changers)]:
        kill(pid)
    for changer in changers:
        changer.wait()
    shutil.rmtree(os.path.join(t.home, "p"))
    t.fb("up", "--reopen", "--pool", "p", "--from", os.path.join(t.disk, "pool"))
    t.fb("origin", "sync", "--pool", "p")
    t.same(t.walk(top), t.walk(top, "p"), "the pool and its origin")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")
