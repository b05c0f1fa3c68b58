"""Pools that are unreachable, of another user, damaged; checking and repairing."""
import os
import re
import shutil
import signal
import sys
import time

from harness import Failed, alive, case, kill, noise, wait_until
from .several import WRITE_AND_CHECK


@case(30)
def pool_removed_under_programs(t):
    script = '''read -r x; /bin/echo a > /fb/x; echo "rc $?"; touch /fb/x; echo "touch $?"
        ls /fb; echo "ls $?"; cat /fb/there 2>/dev/null; echo "cat $?"; cd /fb; echo "cd $?"
        ls / > /dev/null; echo "still here $?"'''
    t.up("p")
    t.bash("p", "echo x > /fb/there")
    # A program that `down` doesn't know: not started by `exec` itself, and it hasn't used the pool.
    handed_on = dict(line.split("=", 1) for line in t.bash("p", "env -0").out.split("\0")
                     if line.startswith(("FOREBAY_DIR=", "FOREBAY_MOUNT=", "LD_PRELOAD=")))
    p = t.start(["bash", "-c", script], env=handed_on, stdin=-1)
    time.sleep(0.2)
    t.fb("down", "--pool", "p", "--force")
    r = t.finish(p, rc=0, feed=b"go\n")
    r.prints("^rc 1$", "^touch 1$", "^ls [12]$", "^cat 1$", "^cd 1$", "^still here 0$")
    # One line says what has happened and what to do; the programs' own errors follow.
    own = [x for x in r.err.splitlines() if x.startswith("forebay: ")]
    t.ok(own, "forebay says nothing\n" + r.told())
    one = own[0]
    t.check("the line", lambda: t.ok(
        "/fb" in one and re.search("gone|removed|no pool|no longer", one)
        and re.search("forebay (up|pools)", one),
        "it doesn't say that the pool is gone and what to do: %s\n%s" % (one, r.told())))
    # Each program says it once.
    env = {"FOREBAY_DIR": t.home + "/never-was", "FOREBAY_MOUNT": "/fb", "LD_PRELOAD": t.preload}
    r = t.command([sys.executable, "-c", '''
import os
for n in range(3):
    try:
        open("/fb/x", "w")
        print("opened")
    except OSError as e:
        print(e.errno)
print(os.path.exists("/fb/y"), os.path.isdir("/"))
'''], env=env)
    import errno
    r.prints("^%d$" % errno.ENOTCONN, "^False True$").one_line()
    t.check("a pool that never was", r.says, "/fb", "gone|removed|no pool|no longer")
    # Settings that lead nowhere don't harm a program that doesn't use the pool.
    t.command(["bash", "-c", "echo ok; ls / > /dev/null"], env=env).prints("^ok$").quiet()
    # A program has the pool open while its directory is removed by rm -rf.
    t.up("q")
    p = t.start([t.forebay, "exec", "--pool", "q", "--", "bash", "-c", '''
        exec 3> /fb/open; echo ready; read -r x; echo more >&3; echo y > /fb/new; cat /fb/new
        ls /fb > /dev/null; (echo sub > /fb/sub); echo "end"'''], stdin=-1)
    p_out = p.stdout.readline()
    t.ok(p_out == b"ready\n", "the program did not start: %r" % p_out)
    # The keeper may make a file in it meanwhile.
    wait_until(lambda: shutil.rmtree(t.pool_dir("q"), ignore_errors=True) or not os.path.exists(t.pool_dir("q")), 10,
               "the pool's directory to be removed")
    r = t.finish(p, rc=0, feed=b"go\n")
    r.prints("^end$")
    t.fb("pools").says("no pools")
    wait_until(lambda: not t.ours(), 5, "the keeper of a removed pool to end")


@case(30)
def pool_of_another_user(t):
    if os.geteuid() != 0:
        return  # nobody else's directory can be made
    nobody = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    where = t.work + "/bin"
    os.mkdir(where)
    own = shutil.copy(t.forebay, where)
    shutil.copy(t.preload, where)
    t.up("p")
    t.bash("p", "echo secret > /fb/x")

    def other(*argv, rc=None, **env):
        return t.command(list(argv), rc, env=env, **nobody)
    for words in (["status"], ["df"], ["ls"], ["exec", "--", "cat", "/fb/x"],
                  ["down"], ["down", "--force"], ["up", "--reopen"],
                  ["stage", "out", "/x", "/tmp/never-made"]):
        r = other(own, words[0], "--pool", "p", *words[1:])
        t.check("as another user, " + " ".join(words), lambda: (
            t.ok(r.rc == 3, "exit code %s, not 3\n%s" % (r.rc, r.told())),
            r.one_line().says("belongs to another user|another user's", "FOREBAY_HOME")))
    r = other(own, "pools", rc=3).one_line().says("another user", "FOREBAY_HOME")
    t.ok("secret" not in r.out, "pools shows too much")
    t.check("up", lambda: other(own, "up", "--pool", "n", "--media", "memory:16M").one_line().says(
        "belongs to another user", "FOREBAY_HOME"))
    r = other("bash", "-c", "cat /fb/x; echo y > /fb/y; echo $?", LD_PRELOAD=t.preload if
              os.access(t.preload, os.R_OK) else where + "/libforebay_preload.so",
              FOREBAY_DIR=t.pool_dir("p"), FOREBAY_MOUNT="/fb")
    r.prints("^1$").says("forebay: /fb: .*runs as user 65534, and only the user who started the pool")
    t.ok("secret" not in r.out, "another user reads the pool\n" + r.told())
    t.bash("p", "cat /fb/x; ls /fb").prints("^secret$", "^x$")
    # The user's own pool, in its own home; no other user uses it, not even root.
    theirs = t.work + "/theirs"
    os.mkdir(theirs, 0o700)
    os.chown(theirs, 65534, 65534)
    env = {"FOREBAY_HOME": theirs}
    other(own, "up", "--pool", "n", "--media", "memory:16M", rc=0, **env)
    other(own, "exec", "--pool", "n", "--", "bash", "-c",
          "echo x > /fb/x; test -O /fb/x && test -O /fb", rc=0, **env).quiet()
    t.fb("status", "--pool", "n", env=env, rc=3).one_line().says("another user")
    other(own, "down", "--pool", "n", rc=0, **env)
    # A directory that anybody may write to isn't trusted, not even by root.
    os.chown(t.pool_dir("p"), 65534, 65534)
    os.chmod(t.pool_dir("p"), 0o777)
    for words in (["status"], ["exec", "--", "true"], ["down", "--force"]):
        t.fb(words[0], "--pool", "p", *words[1:], rc=3).one_line().says("another user")
    t.fb("pools").prints("^p +damaged")
    os.chown(t.pool_dir("p"), 0, 0)
    os.chmod(t.pool_dir("p"), 0o700)
    t.bash("p", "cat /fb/x").prints("^secret$")
    t.fb("down", "--pool", "p")


def damage(path, how):
    size = os.path.getsize(path)
    if how == "missing":
        os.unlink(path)
        return
    with open(path, "r+b") as f:
        if how == "empty":
            f.truncate(0)
        elif how == "short":
            f.truncate(min(size // 2, 8192))
        elif how == "garbage":
            f.write(noise(min(size, 1 << 20), 5))
        elif how == "zeros":
            f.write(bytes(min(size, 1 << 20)))


@case(50)
def damaged(t):
    ways = [("pool.json", h) for h in ("empty", "short", "garbage", "missing", "zeros")]
    ways += [("control", h) for h in ("empty", "short", "garbage", "missing", "zeros")]
    ways += [("medium-0/segment", h) for h in ("empty", "short", "missing")]
    ways += [("map-0", h) for h in ("empty", "short", "missing", "garbage")]
    ways += [("records/00", h) for h in ("empty", "missing", "garbage", "zeros")]
    ways += [("records", "gone"), ("medium-0", "gone")]
    ways += [("pool.json", w) for w in (
        ('"version": ', '"version": 9'), ('"shards": ', '"shards": 4000'),
        ('"mount": "/fb"', '"mount": "fb"'), ('"uuid": "', '"uuid": "../'))]
    for alive_keeper in (False, True):
        for file, how in ways if not alive_keeper else ways[::5]:
            what = "%s %s%s" % (file, how, ", keeper alive" if alive_keeper else "")
            t.check(what, damaged_one, t, file, how, alive_keeper)
            # Whatever the result, the next round starts again.
            t.kill_everything()
            shutil.rmtree(t.pool_dir("p"), ignore_errors=True)


def damaged_one(t, file, how, alive_keeper):
    t.up("p", media=["memory:16M"])
    t.bash("p", "echo hello > /fb/x; head -c 500000 /dev/urandom > /fb/y; sha256sum < /fb/y")
    if not alive_keeper:
        pid = t.keeper("p")
        kill(pid)
        wait_until(lambda: not alive(pid), 5, "the keeper's death")
    path = os.path.join(t.pool_dir("p"), file)
    if how == "gone":
        shutil.rmtree(path)
    elif isinstance(how, tuple):
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text.replace(*how))
        t.ok(how[0] in text, "pool.json has no " + how[0])
    else:
        damage(path, how)
    bad = []
    # Damage to records may go unnoticed at first; all else is noticed by every command.
    records = file.startswith("records/") or how == "garbage" and file.startswith("medium")
    for words in (["status"], ["df"], ["exec", "--", "sha256sum", "/fb/x", "/fb/y"], ["ls", "-l"],
                  ["up", "--reopen"], ["up", "--media", "memory:16M"], ["pools"], ["down"]):
        began = time.monotonic()
        r = t.fb(words[0], "--pool", "p", *words[1:], rc=None, timeout=10)
        name = " ".join(words)
        if r.rc < 0 or r.rc > 128:
            bad.append("'%s' was killed by a signal\n%s" % (name, r.told()))
        if time.monotonic() - began > 5:
            bad.append("'%s' took %.1f s" % (name, r.seconds))
        if name == "pools":
            if r.rc != 0:
                bad.append("pools fails\n" + r.told())
            elif not records and "damaged" not in r.out:
                if not re.search("can't be used|forebay down --force", r.out):
                    bad.append("pools doesn't tell\n" + r.told())
        elif name.startswith("up --media"):
            if r.rc == 0 or r.err.count("forebay") == 0:
                bad.append("'%s' should not succeed\n%s" % (name, r.told()))
        elif not records:
            if r.rc != 3 or not re.search("the pool 'p' can't be used .*forebay down --force "
                                          "--pool p", r.err) or r.err.count("\n") != 1:
                bad.append("'%s' has exit code %s, not 3, or is unclear\n%s" % (
                    name, r.rc, r.told()))
        if name == "down" and r.rc == 0:
            break
    t.fb("down", "--pool", "p", "--force")
    t.nothing_left("down --force")
    if bad:
        raise Failed("\n".join(bad))
    t.up("p", media=["memory:16M"])
    t.fb("down", "--pool", "p").quiet()


def offset_of(path, what):
    with open(path, "rb") as f:
        at = f.read().find(what)
    if at < 0:
        raise Failed("%s has no %r" % (path, what))
    return at


@case(50)
def checked_and_repaired(t):
    """forebay fsck: what it finds, what it mends, and its exit codes."""
    t.fb("fsck", rc=8).one_line().says("there is no pool 'default'")

    def make():
        t.up("p", media=["memory:32M"])
        t.bash("p", "mkdir -p /fb/d/e; echo hello > /fb/d/e/x; seq 200000 > /fb/d/y; "
               "ln /fb/d/y /fb/z; ln -s d /fb/l; for i in $(seq 100); do echo $i > /fb/d/$i; done")
    make()
    t.fb("fsck", "--pool", "p").quiet().prints("^pool 'p': 10[0-9] objects, 10[0-9] names .* clean$")
    r = t.fb("fsck", "--pool", "p", "--json").json()
    t.ok(r["clean"] and r["findings"] == [] and not r["online"], "json: %s" % r)
    t.fb("fsck", "--repair", "--pool", "p").prints("clean$")
    t.ok(t.state("p") == "running", "the keeper didn't come back")
    # Under work, again and again; a repair has to wait.
    busy = t.start_python("p", WRITE_AND_CHECK, "/fb", "abc", "1000000", "1")
    wait_until(lambda: t.fb("status", "--pool", "p", "--json").json()["processes"], 5,
               "a program to use the pool")
    for _ in range(20):
        t.fb("fsck", "--pool", "p").quiet().prints("clean$")
    r = t.fb("fsck", "--pool", "p", "--json").json()
    t.ok(r["clean"] and r["online"], "json: %s" % r)
    t.fb("fsck", "--repair", "--pool", "p", rc=8).one_line().says("in use by [0-9]+ .python")
    t.bash("p", "touch /fb/enough")
    t.finish(busy)
    t.bash("p", "rm /fb/enough")
    # Some damage of each kind; each time it is reported, repaired, and reported no more.
    for file, how, words in (("control", "garbage", "control region .* can't be used"),
                             ("control", "zeros", "control region .* can't be used"),
                             ("control", "short", "control region .* can't be used"),
                             ("control", "missing", "control region .* can't be used"),
                             ("map-0", "garbage", "its map .* can't be used"),
                             ("map-0", "zeros", "its map .* can't be used"),
                             ("map-0", "missing", "its map .* can't be used")):
        what = "%s %s" % (file, how)
        kill(t.keeper("p"))
        damage(os.path.join(t.pool_dir("p"), file), how)
        t.fb("fsck", "--pool", "p", rc=8).one_line().says("can't be used")
        t.fb("fsck", "--repair", "--pool", "p", rc=1).prints(words + ".*repaired")
        t.fb("fsck", "--pool", "p").quiet().prints("clean$")
        t.ok(t.state("p") == "running", what + ": no keeper")
        t.bash("p", "test $(cat /fb/d/e/x) = hello; seq 200000 | cmp - /fb/z; cmp /fb/d/y /fb/z; "
               "test $(ls /fb/l/ | wc -l) = 102; for i in $(seq 100); do test $(cat /fb/d/$i) = $i; done; "
               "echo more > /fb/more; rm /fb/more").quiet()
    # A word here and there in the records and in the map.
    for n, (file, at) in enumerate([("records/%02d" % s, 8192 + 4096 * p + 100)
                                    for s in range(2) for p in range(4)]
                                   + [("map-0", 4096 + 128 + 64 * c) for c in range(6)]):
        wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 5, "a whole pool")
        keeper = t.keeper("p")
        kill(keeper)
        wait_until(lambda: not alive(keeper), 5, "the keeper's death")
        with open(os.path.join(t.pool_dir("p"), file), "r+b") as f:
            f.seek(at)
            f.write(noise(64, n))
        r = t.fb("fsck", "--pool", "p", rc=(0, 4))
        if r.rc == 4:
            t.fb("fsck", "--repair", "--pool", "p", rc=1).prints("repaired: ")
        t.fb("up", "--pool", "p", "--reopen")
        t.fb("fsck", "--pool", "p").quiet().prints("clean$")
        t.bash("p", "find /fb | wc -l; find /fb -type f -exec cat {} + > /dev/null").quiet()
        if r.rc == 4:
            t.fb("down", "--pool", "p")
            make()
    # What can't be repaired is reported as such.
    kill(t.keeper("p"))
    damage(os.path.join(t.pool_dir("p"), "records/01"), "zeros")
    t.fb("fsck", "--pool", "p", rc=4).prints("meta pages").says("forebay fsck --repair")
    t.fb("fsck", "--repair", "--pool", "p", rc=4).says("stage out what you need")
    damage(os.path.join(t.pool_dir("p"), "pool.json"), "garbage")
    for option in ([], ["--repair"], ["--json"]):
        t.fb("fsck", "--pool", "p", *option, rc=8).one_line().says("can't be used", "pool.json")
    t.damaged = True


HOLD_AND_STOP = r'''
import os, signal, sys
# Stops itself in the middle of a write: the kernel stops it at the page that isn't there yet.
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
pid = os.fork()
if pid == 0:
    import time
    time.sleep(0.05)
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(0)
while True:
    os.pwrite(fd, bytes(64 << 20), 0)
'''


@case(40)
def stopped_while_it_holds_a_lock(t):
    """A process that waits for a stopped one names it, and goes on when it does."""
    t.up("p", media=["memory:256M"])

    def state(pid):
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    for attempt in range(20):
        holder = t.start_python("p", HOLD_AND_STOP, "/fb/f")
        wait_until(lambda: state(holder.pid) == "T", 10, "the holder's stop")
        waiter = t.start([t.forebay, "exec", "--pool", "p", "--", sys.executable, "-c",
                          "import os, sys, time; fd = os.open('/fb/f', os.O_WRONLY)\n"
                          "b = time.time(); os.write(fd, b'y'); os.write(fd, b'z'); print(time.time() - b)"])
        time.sleep(1.8)
        if waiter.poll() is None:
            break
        t.finish(waiter)
        # It was stopped just between two writes.
        kill(holder.pid, signal.SIGKILL)
        holder.wait()
    else:
        raise Failed("never stopped while it held the lock")
    stuck = t.fb("status", "--pool", "p").prints(
        r"^stuck +process %d \(python.*\) waits for process %d \(python.*\), which is stopped; "
        r"kill -CONT %d lets it go on$" % (waiter.pid, holder.pid, holder.pid))
    listed = t.fb("status", "--pool", "p", "--json").json()["stuck"]
    t.ok(listed == [{"process": waiter.pid, "waits_for": holder.pid}], "json: %s" % listed)
    t.fb("top", "--once", "--pool", "p").prints("1 stuck", r"^ +0  %d \(.*  %d \(.*  kill -CONT %d$" % (
        waiter.pid, holder.pid, holder.pid))
    # Others are not kept: neither other files nor the check of the pool as a whole.
    t.bash("p", "echo other > /fb/g; cat /fb/g").quiet().prints("^other$")
    r = t.fb("fsck", "--pool", "p", rc=4)
    r.prints("not looked at: .*process %d .*stopped" % holder.pid)
    kill(holder.pid, signal.SIGCONT)
    r = t.finish(waiter)
    t.ok(r.err == "forebay: waiting for a lock held by process %d (%s), which is stopped; kill -CONT %d "
         "lets it go on\n" % (holder.pid, name_of(holder.pid), holder.pid), "stderr:\n" + r.told())
    kill(holder.pid, signal.SIGKILL)
    holder.wait()


def name_of(pid):
    with open("/proc/%d/comm" % pid) as f:
        return f.read().strip()


@case(20)
def damaged_with_files(t):
    """Files in the directory of `files` media aren't left there silently."""
    for how in ("garbage", "missing"):
        t.up("p", media=["files:%s:64M" % t.disk])
        t.bash("p", "head -c 5000000 /dev/zero > /fb/y")
        damage(t.pool_dir("p") + "/pool.json", how)
        r = t.fb("down", "--pool", "p", "--force")
        t.nothing_left("down --force")
        left = os.listdir(t.disk)
        t.check(how, t.ok, not left or re.search("files", r.err),
                "%s of 64 MiB stays in the medium's directory, and nothing says so\n%s" % (
                    left, r.told()))
        if left:
            # It can be had back from there, and then removed.
            t.fb("up", "--reopen", "--pool", "p", "--from", t.disk)
            t.bash("p", "test $(stat -c %s /fb/y) = 5000000").quiet()
            t.fb("down", "--pool", "p")
            t.ok(os.listdir(t.disk) == [], "left in the medium")
