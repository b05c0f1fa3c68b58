"""Which processes count as dead: only those that the kernel reports as such. A process that can't find out
takes nothing from the living."""
import os
import resource
import signal
import subprocess
import sys
import time

from harness import Failed, Skipped, alive, case, kill, wait_until

# Takes all descriptors that the process may have, then says so.
FULL = r'''
import os, resource, sys, fcntl, errno, time
def fill(hard=64):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as e:
        assert e.errno == errno.EMFILE, e
    return taken
'''

HOLD = r'''
import fcntl, sys, time
f = open("/fb/f", "r+")
fcntl.lockf(f, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
f.write("held")
f.close()
'''

ASK = FULL + r'''
f = open("/fb/f", "r+")
fill()
try:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("granted")
except OSError as e:
    print("refused", errno.errorcode[e.errno])
'''


def line_of(process):
    line = process.stdout.readline().decode().strip()
    if not line:
        raise Failed("it ended early: " + process.stderr.read().decode())
    return line


@case(40)
def a_lock_is_not_granted_by_who_cant_look(t):
    """F_SETLK by a process at its limit of descriptors, while a living one holds the lock."""
    t.up("p")
    t.bash("p", "echo > /fb/f")
    holder = t.start_python("p", HOLD, stdin=subprocess.PIPE)
    t.ok(line_of(holder) == "locked", "no lock")
    t.python("p", ASK).prints("^refused EAGAIN$")
    # The dead are still found, without a descriptor for that.
    holder.kill()
    holder.wait()
    t.python("p", ASK).prints("^granted$")
    t.fb("down", "--pool", "p")


FORKS = FULL + r'''
f = open("/fb/f", "w+")
# The usual setting: the hard limit is higher, and the pool's own files find room there.
taken = fill(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
# Its start time can't be read by opening a file as usual: it must be known all the same.
child = os.fork()
if child == 0:
    f.write("child")
    f.flush()
    print("child", flush=True)
    os.read(0, 1)
    f.seek(0)
    assert f.read() == "child"
    os._exit(0)
os.waitpid(child, 0)
f.seek(0)
print("parent read", f.read(), flush=True)
'''


@case(60)
def a_process_without_descriptors_is_alive(t):
    """A process, and its child, that have no descriptor left live on while others reap the dead."""
    t.up("p", media=["memory:16M"])
    full = t.start_python("p", FORKS, stdin=subprocess.PIPE)
    t.ok(line_of(full) == "child", "no child")
    # Others die, and a full pool looks for what the dead held.
    for _ in range(3):
        p = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c", "exec 3> /fb/x; sleep 30"])
        wait_until(lambda: os.path.exists("/proc/%d" % p.pid), 5, "a program")
        p.kill()
        p.wait()
    t.bash("p", "head -c 64M /dev/zero > /fb/much; rm /fb/much", rc=None)
    time.sleep(1.5)
    slots = t.fb("status", "--pool", "p", "--json").json()["processes"]
    t.ok(len(slots) == 2, "the parent and its child are attached, not %s" % slots)
    full.stdin.write(b"\n")
    full.stdin.flush()
    out, err = full.communicate(timeout=15)
    t.ok(out.decode().strip() == "parent read child", "%r %r" % (out, err))
    t.fb("down", "--pool", "p")


@case(40)
def a_keeper_that_cant_give_room_back_sleeps(t):
    """Each unit of room has a file's bytes, most of it none: nothing can be given back, and nothing is to be done."""
    t.up("p", media=["memory:16M"])
    t.bash("p", 'for n in $(seq 12); do head -c 1M /dev/zero | tr "\\0" x > /fb/$n; done; truncate -s 4096 /fb/*')
    keeper = t.fb("status", "--pool", "p", "--json").json()["keeper"]

    def seconds():
        with open("/proc/%d/stat" % keeper) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # Room that was used in the last two periods of 5 s is kept.
    time.sleep(11)
    before = seconds()
    time.sleep(2)
    used = seconds() - before
    t.ok(used < 0.2, "the keeper of an idle pool used the processor for %.2f of 2 s" % used)
    t.fb("down", "--pool", "p").quiet()


@case(60)
def a_keeper_without_descriptors_reaps_nobody(t):
    """A keeper, or daemon, that can't open a file takes nothing from the programs of its node."""
    for nodes in ((), ("--nodes", "2")):
        without_descriptors(t, nodes)


def without_descriptors(t, nodes):
    t.up("p", *nodes)
    holder = t.start_python("p", "import sys\nf = open('/fb/f', 'w+')\nf.write('x')\nf.flush()\n"
                            "print('open', flush=True)\nsys.stdin.readline()\nf.seek(0)\nprint(f.read())",
                            stdin=subprocess.PIPE)
    t.ok(line_of(holder) == "open", "not open")
    said = t.fb("status", "--pool", "p", "--json").json()
    # The lowest node is the one that programs here use.
    keeper = said["nodes"][0]["keeper"] if nodes else said["keeper"]
    now = resource.prlimit(keeper, resource.RLIMIT_NOFILE)
    t.ok(now[0] == now[1], "the keeper's limit isn't raised to the hard one: %s" % (now,))
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, (0, now[1]))
    # Something for it to look at.
    p = t.start([t.forebay, "exec", "--pool", "p", "--", "sleep", "30"])
    time.sleep(0.2)
    p.kill()
    p.wait()
    time.sleep(3)
    said = t.fb("status", "--pool", "p", "--json").json()
    users = said["nodes"][0]["process_ids"] if nodes else said["processes"]
    t.ok(holder.pid in users, "process %d was reaped: %s" % (holder.pid, users))
    holder.stdin.write(b"\n")
    holder.stdin.flush()
    out, err = holder.communicate(timeout=10)
    t.ok(out.decode().strip() == "x", "its descriptors were taken: %r %r" % (out, err))
    t.ok(alive(keeper), "the keeper has ended")
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, now)
    t.fb("down", "--pool", "p")


@case(60)
def a_hidden_proc_is_an_error_at_attach(t):
    """Without /proc no process can attach, and no attached one is taken for dead."""
    apart = ["unshare", "-m"]
    if os.geteuid() or subprocess.run(apart + ["true"], stderr=subprocess.DEVNULL).returncode:
        raise Skipped("a /proc can only be hidden by root with unshare(1)")
    t.up("p")
    t.bash("p", "echo > /fb/f")
    holder = t.start_python("p", HOLD, stdin=subprocess.PIPE)
    t.ok(line_of(holder) == "locked", "no lock")
    hide = 'mount -t tmpfs -o size=64k none /proc && exec "$@"'
    hidden = apart + ["bash", "-c", hide, "bash"]
    began = time.monotonic()
    r = t.command(hidden + [t.forebay, "ls", "--pool", "p", "/"], rc=None)
    t.ok(r.rc != 0 and time.monotonic() - began < 15, "it was let in: " + r.told())
    r.says("/proc")
    # A program whose /proc goes away while it runs: it sees the lock of the living, not of the dead.
    script = FULL + r'''
import subprocess
f = open("/fb/f", "r+")
subprocess.check_call(["mount", "-t", "tmpfs", "-o", "size=64k", "none", "/proc"])
try:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("granted")
except OSError as e:
    print("refused", errno.errorcode[e.errno])
'''
    t.command(apart + [t.forebay, "exec", "--pool", "p", "--", sys.executable, "-c", script]).prints("^refused EAGAIN$")
    t.ok(alive(holder.pid), "the holder is gone")
    holder.stdin.write(b"\n")
    holder.stdin.flush()
    t.finish(holder)
    t.exec("p", "cat", "/fb/f").prints("^held")
    t.fb("down", "--pool", "p")


@case(40)
def a_keeper_that_cant_be_looked_for_may_run(t):
    """At the limit of descriptors a command doesn't take a running pool for a stale one."""
    t.up("p")
    t.fb("up", "--pool", "nodes", "--nodes", "2", "--media", "memory:16M")
    keeper = t.keeper("p")
    for n in range(3, 12):
        argv = ["bash", "-c", 'ulimit -n %d; exec "$@"' % n, "bash", t.forebay]
        r = t.command(argv + ["up", "--reopen", "--pool", "p"], rc=None)
        t.ok("panicked" not in r.err, r.told())
        r = t.command(argv + ["pools", "--clean"], rc=None)
        t.ok("removed" not in r.out + r.err, r.told())
        r = t.command(argv + ["pools", "--json"], rc=None)
        seen = {p["name"]: p["state"] for p in r.json()} if r.rc == 0 else {}
        t.ok(r.rc or sorted(seen) == ["nodes", "p"], r.told())
        t.ok(set(seen.values()) <= {"running", "unknown"}, r.told())
    t.ok(t.keeper("p") == keeper, "it has another keeper")
    # A repair ends the keeper; but what it can't open isn't damaged.
    t.bash("p", "echo still > /fb/here")
    for n in range(3, 12):
        argv = ["bash", "-c", 'ulimit -n %d; exec "$@"' % n, "bash", t.forebay]
        r = t.command(argv + ["fsck", "--repair", "--pool", "p"], rc=None)
        t.ok("made anew" not in r.out + r.err, r.told())
    t.fb("up", "--reopen", "--pool", "p")
    t.bash("p", "cat /fb/here").prints("^still$")
    t.fb("down", "--pool", "nodes")
    t.fb("down", "--pool", "p")


MANY = r'''
import ctypes, os, signal, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
N = 64
gate = threading.Barrier(N)
failed = []
def work(n):
    gate.wait()
    for turn in range(20):
        try:
            fd = os.open("/fb/d/%d" % (n if turn % 2 else turn), os.O_CREAT | os.O_RDWR)
            os.close(fd)
        except OSError as e:
            failed.append((n, turn, e))
            return
threads = [threading.Thread(target=work, args=(n,)) for n in range(N)]
[x.start() for x in threads]
[x.join() for x in threads]
print("failed", failed) if failed else print("all opened")
'''


@case(60)
def sixty_four_threads_open_at_once(t):
    """Also while a process that may hold a lock is stopped."""
    t.up("p")
    t.bash("p", "mkdir /fb/d")
    t.python("p", MANY, timeout=30).prints("^all opened$")
    other = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                     "while :; do : > /fb/d/x; done"])
    time.sleep(0.3)
    for _ in range(3):
        kill(other.pid, signal.SIGSTOP)
        many = t.start_python("p", MANY)
        time.sleep(0.3)
        kill(other.pid, signal.SIGCONT)
        out, err = many.communicate(timeout=30)
        t.ok(out == b"all opened\n", "%r %r" % (out, err))
    other.kill()
    other.wait()
    t.fb("down", "--pool", "p")
