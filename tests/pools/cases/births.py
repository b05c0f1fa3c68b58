"""More processes than any table of a pool has places, and what they leave behind: nothing."""
import ctypes
import fcntl
import glob
import os
import resource
import shutil
import struct
import subprocess
import time

from harness import Skipped, case, kill, wait_until

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "soak", "births.c")
# Reader slots of a record file, and how many of them programs may take.
READERS, FOR_PROGRAMS = 8192, 8192 - 256


def births(t):
    """The program that makes processes, compiled."""
    if not shutil.which("gcc"):
        raise Skipped("it needs gcc")
    program = t.work + "/births"
    t.command(["gcc", "-O1", "-pthread", "-o", program, SOURCE], timeout=60)
    return program


def taken(t, pool):
    return t.fb("status", "--pool", pool, "--json", "--all").json()["taken"]


def nothing_taken(t, pool, besides=()):
    """Waits until programs have nothing of any table; `besides` may have reader slots."""
    last = {}

    def is_so():
        now = taken(t, pool)
        tables = [now[name]["used"] for name in
                  ("process_slots", "live_entries", "descriptions", "locks")]
        readers = [r["process"] for r in now["reader_slots"]["processes"]]
        last["said"] = now
        return (not any(tables) and not now["sections"] and not now["unsettled"]
                and not set(readers) - set(besides))
    try:
        wait_until(is_so, 15, "everything is back")
    except Exception as e:
        raise type(e)("%s: %s" % (e, last.get("said")))


@case(limit=90)
def five_thousand_programs(t):
    """Each program has its reader slots back when it ends, whichever way it was started."""
    program = births(t)
    t.up("many", media=("memory:64M",))
    t.bash("many", "seq 1000 > /fb/f")
    t.exec("many", program, "spawn", "/fb", "4300", "80", "1", timeout=85)
    t.exec("many", "cat", "/fb/f").quiet()
    nothing_taken(t, "many", [t.keeper("many")])
    t.fb("status", "--pool", "many").prints(r"^records +\d")
    t.fb("fsck", "--pool", "many")
    t.fb("stage", "out", "--pool", "many", "/f", t.work + "/f")
    with open(t.work + "/f") as f:
        t.ok(len(f.readlines()) == 1000, "what was staged out differs")


@case(limit=60)
def killed_programs_without_a_keeper(t):
    """Without a keeper, a process that needs a slot frees those of the dead."""
    program = births(t)
    t.up("alone", media=("memory:64M",))
    t.bash("alone", "seq 1000 > /fb/f")
    keeper = t.keeper("alone")
    kill(keeper)
    wait_until(lambda: t.fb("status", "--pool", "alone", "--json").json()["keeper"] is None, 5,
               "the keeper's death")
    # Reader slots of processes that don't exist fill the tables of all shards.
    fill_readers(t, "alone", READERS, 1 << 23)
    t.exec("alone", "cat", "/fb/f")
    t.exec("alone", program, "kill,fork,spawn,threads", "/fb", "600", "30", "2", timeout=40)
    t.exec("alone", "cat", "/fb/f")
    t.fb("status", "--pool", "alone").prints(r"^records +\d")
    t.fb("up", "--reopen", "--pool", "alone")
    nothing_taken(t, "alone", [t.keeper("alone")])


def reader_tables(t, pool):
    """The process ids in the reader slots of each shard, read from LMDB's lock files."""
    tables = []
    for path in glob.glob(os.path.join(t.pool_dir(pool), "records", "*-lock")):
        with open(path, "rb") as f:
            table = f.read()
        used, = struct.unpack_from("<I", table, 16)
        tables.append([struct.unpack_from("<I", table, 128 + 64 * i + 8)[0] for i in range(used)])
    return tables


def fill_readers(t, pool, end, pid, first=64):
    """Gives reader slots to `pid`, which must not be looking at the pool's records.

    LMDB's lock file: the number of slots at 16; slots of 64 bytes from 128 on; the process at 8."""
    slot = struct.pack("<QI52x", 0xffffffffffffffff, pid)
    for path in glob.glob(os.path.join(t.pool_dir(pool), "records", "*-lock")):
        with open(path, "r+b") as f:
            magic, = struct.unpack("<I", f.read(4))
            t.ok(magic == 0xBEEFC0DE, "another kind of lock file")
            f.seek(128 + 64 * first)
            f.write(slot * (end - first))
            f.seek(16)
            f.write(struct.pack("<I", end))


@case(limit=40)
def exec_chains(t):
    """A process that executes one program after the other has the slots of the last one only."""
    program = births(t)
    t.up("chain", media=("memory:64M",))
    t.bash("chain", "seq 1000 > /fb/f")
    # The last one waits, so that what all of them have left can be looked at.
    ready = t.work + "/ready"
    script = """
        if [ "$1" -gt 0 ]; then cat /fb/f > /dev/null; : < /fb/f; exec bash "$0" $(($1 - 1)) "$2"; fi
        : < /fb/f; touch "$2"; read -r _"""
    with open(t.work + "/chain.sh", "w") as f:
        f.write(script)
    process = t.start([t.forebay, "exec", "--pool", "chain", "--", "bash", t.work + "/chain.sh",
                       "30", ready], stdin=subprocess.PIPE)
    wait_until(lambda: os.path.exists(ready), 20, "the end of the chain")
    tables = reader_tables(t, "chain")
    slots = sum(pids.count(process.pid) for pids in tables)
    t.ok(slots <= len(tables), "30 programs in a row have left %d reader slots in %d shards" % (
        slots, len(tables)))
    t.finish(process, feed=b"\n")
    # Threads are in the middle of reading when another one executes.
    t.exec("chain", program, "threads,chain", "/fb", "600", "15", "3", timeout=30)
    nothing_taken(t, "chain", [t.keeper("chain")])


@case(limit=60)
def exec_beside_first_uses(t):
    """Threads use the pool for the first time while another one executes a program: it has one slot,
    and nothing of its former self is in its way."""
    if not shutil.which("gcc"):
        raise Skipped("it needs gcc")
    program = t.work + "/births_exec"
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "births_exec.c")
    t.command(["gcc", "-O1", "-pthread", "-o", program, source], timeout=60)
    t.up("threads", media=("memory:64M",))
    t.bash("threads", "seq 1000 > /fb/f")
    for _ in range(3):
        process = t.start([t.forebay, "exec", "--pool", "threads", "--", program, "/fb/f", "100"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        t.ok(process.stdout.readline() == b"ready\n", "not all of them could open the file")
        slots = taken(t, "threads")["process_slots"]["used"]
        t.finish(process, feed=b"")
        t.ok(slots <= 101, "101 processes have %d slots" % slots)
    nothing_taken(t, "threads", [t.keeper("threads")])


@case(limit=60)
def used_up(t):
    """Whatever programs have used up, the pool can be looked at, checked and saved."""
    t.up("full", media=("memory:64M",))
    t.bash("full", "seq 1000 > /fb/f; mkdir /fb/d; seq 2000 > /fb/d/g")
    # Reader slots: this very process counts as their owner, and it lives.
    held = []
    for path in glob.glob(os.path.join(t.pool_dir("full"), "records", "*-lock")):
        f = open(path, "r+b")
        held.append(f)
        fcntl.lockf(f, fcntl.LOCK_EX, 1, os.getpid())
    slot = struct.pack("<QI52x", 0xffffffffffffffff, os.getpid())
    for f in held:
        f.seek(128 + 64 * 64)
        f.write(slot * (FOR_PROGRAMS - 64))
        # The slots in front are the keeper's, or free: all of them are taken, too.
        for i in range(64):
            f.seek(128 + 64 * i + 8)
            if f.read(4) == b"\0\0\0\0":
                f.seek(128 + 64 * i)
                f.write(slot)
        f.seek(16)
        f.write(struct.pack("<I", FOR_PROGRAMS))
        f.flush()
    r = t.exec("full", "cat", "/fb/f", rc=1)
    t.ok("temporarily unavailable" in r.err, "with no reader slots left cat says: %s" % r.err)
    works_all_the_same(t, "full")
    for f in held:
        for i in range(FOR_PROGRAMS):
            f.seek(128 + 64 * i + 8)
            if f.read(4) == struct.pack("<I", os.getpid()):
                f.seek(128 + 64 * i + 8)
                f.write(b"\0\0\0\0")
        f.flush()
        f.close()
    t.exec("full", "cat", "/fb/f").quiet()
    # Live entries and descriptions.
    limit = taken(t, "full")["descriptions"]["limit"]
    if limit > 200000:
        return
    each = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20000) - 200
    hold = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
try:
    for n in range(%d):
        os.open("/fb/f", os.O_RDONLY)
except OSError as e:
    print(e.errno, flush=True)
else:
    print("all", flush=True)
sys.stdin.read()
""" % each
    holders = []
    for _ in range(limit // each + 1):
        p = t.start_python("full", hold, stdin=subprocess.PIPE)
        holders.append(p)
        word = p.stdout.readline().strip()
    t.ok(word == b"23", "the last one to open files got %r, not ENFILE (23)" % word)
    works_all_the_same(t, "full")
    for p in holders:
        p.stdin.close()
        p.wait(20)
    nothing_taken(t, "full", [t.keeper("full")])


def works_all_the_same(t, pool):
    t.fb("status", "--pool", pool).prints(r"^records +\d")
    t.fb("status", "--pool", pool, "--all").prints(r"^reader slots +\d")
    t.fb("df", "--pool", pool)
    t.fb("fsck", "--pool", pool)
    out = os.path.join(t.work, "out")
    t.fb("stage", "out", "--pool", pool, "/", out)
    with open(out + "/d/g") as f:
        t.ok(len(f.readlines()) == 2000, "what was staged out differs")
    shutil.rmtree(out)


ORPHAN = """
import os, sys
os.chdir('/fb')
held = open('held', 'w')
print(os.getpid(), flush=True)
sys.stdin.readline()
if os.fork() == 0:
    held.write('kept')
    held.close()
    with open('made', 'w') as made:
        made.write(os.getcwd())
os._exit(0)
"""
# See ptrace(2).
PTRACE_CONT, PTRACE_DETACH, PTRACE_GETEVENTMSG, PTRACE_SEIZE = 7, 17, 0x4201, 0x4206
PTRACE_O_TRACEFORKS = 2 | 4 | 8
PTRACE_EVENT_STOP = 128
WALL = 0x40000000


def ptrace(request, pid, data=0):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(request, pid, None, ctypes.c_void_p(data)) < 0:
        raise OSError(ctypes.get_errno(), "ptrace %#x of %d" % (request, pid))


def child_held_at_birth(pid):
    """Lets the traced process run to its end; the child that it has made by then is stopped before
    its first instruction."""
    child = None
    while True:
        _, status = os.waitpid(pid, WALL)
        if not os.WIFSTOPPED(status):
            return child
        event = status >> 16
        if event and event != PTRACE_EVENT_STOP:
            message = ctypes.c_ulong()
            ptrace(PTRACE_GETEVENTMSG, pid, ctypes.addressof(message))
            child = message.value
        ptrace(PTRACE_CONT, pid, 0 if event else os.WSTOPSIG(status))


@case(limit=60)
def parent_that_ends_before_its_child_runs(t):
    """The child has its working directory and its open files, however late it runs."""
    for media in ("memory:64M", "files:%s:64M" % t.disk):
        pool = media.split(":")[0]
        t.up(pool, media=(media,))
        program = t.start_python(pool, ORPHAN, stdin=subprocess.PIPE, text=True)
        pid = int(program.stdout.readline())
        try:
            ptrace(PTRACE_SEIZE, pid, PTRACE_O_TRACEFORKS)
        except PermissionError:
            kill(pid)
            raise Skipped("this process may not trace others")
        program.stdin.write("\n")
        program.stdin.flush()
        child = child_held_at_birth(pid)
        # Whoever looks for the dead meets the parent.
        end = time.monotonic() + 1
        while time.monotonic() < end:
            t.exec(pool, "ls", "/fb")
        t.fb("fsck", "--pool", pool)
        os.waitpid(child, WALL)
        ptrace(PTRACE_DETACH, child)
        program.communicate(timeout=10)
        t.bash(pool, "cat /fb/made /fb/held").prints(r"^/fbkept$")
        nothing_taken(t, pool, [t.keeper(pool)])
