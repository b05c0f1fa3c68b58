"""Staging that is interrupted."""
import os
import re
import shutil
import signal
import time

from harness import Failed, Skipped, case, kill, wait_until


def make_source(t, big=4):
    top = t.work + "/source"
    os.makedirs(top + "/many/deep")
    for n in range(300):
        t.file("%s/many/%sf%d" % (top, "deep/" if n % 4 == 0 else "", n), n * 37 % 9000, n)
    for n in range(10):
        t.file("%s/mib%d" % (top, n), (1 << 20) + n * 1000, n)
    for n in range(big):
        t.file("%s/big%d" % (top, n), (40 << 20) + n, n)
    with open(top + "/sparse", "wb") as f:
        f.truncate(5 << 20)
    os.symlink("many/deep", top + "/link")
    os.link(top + "/mib1", top + "/mib1-again")
    os.chmod(top + "/mib2", 0o700)
    os.chmod(top + "/many/deep", 0o755)
    return top


def interrupted(t, argv, seconds, number):
    """Starts a command and sends it a signal after a while. Its end, None if it was done first."""
    p = t.start(argv)
    try:
        p.wait(seconds)
    except Exception:
        p.send_signal(number)
    r = t.finish(p, rc=None)
    return None if r.rc == 0 else r


def interrupt_until(t, argv, number, least=2):
    """Interrupts a command at several moments; at least twice it has to be unfinished."""
    got = []
    for delay in (0.03, 0.012, 0.06, 0.1, 0.02, 0.15, 0.008):
        r = interrupted(t, argv, delay, number)
        if r is None:
            break
        t.ok(r.rc in (-number, 128 + number, 120), "after signal %d:\n%s" % (number, r.told()))
        got.append(r)
    t.ok(len(got) >= least, "interrupted only %d times; the source is too small" % len(got))
    return got


@case(50)
def staging_interrupted(t):
    source = make_source(t)
    wanted = t.walk(source)
    t.up("p", media=["memory:1G"])
    into = [t.forebay, "stage", "in", source, "/case", "--pool", "p"]
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        t.bash("p", "rm -rf /fb/case").quiet()
        interrupt_until(t, into, number)
        t.command(into).says("staged in")
        t.same(wanted, t.walk("/fb/case", "p"), "what was staged in after signal %d" % number)
    # A repetition moves nothing.
    r = t.fb("stage", "in", source, "/case", "--pool", "p", "--json").json()
    t.ok(r["moved_bytes"] == 0 and r["moved_files"] == 0, "a repetition moved: %s" % r)
    t.bash("p", "cd /fb/case; ls -A . many | grep forebay-part", rc=1)
    dest = t.work + "/dest"
    out = [t.forebay, "stage", "out", "/case", dest, "--pool", "p"]
    for number in (signal.SIGKILL, signal.SIGINT):
        shutil.rmtree(dest, ignore_errors=True)
        interrupt_until(t, out, number)
        t.command(out).says("staged out")
        t.same(wanted, t.walk(dest), "what was staged out after signal %d" % number)
    # Complete files had their names already, half of one never has: also right after a kill.
    shutil.rmtree(dest)
    interrupted(t, out, 0.06, signal.SIGKILL)
    for name, what in (t.walk(dest) if os.path.isdir(dest) else {}).items():
        if what[0] == "f" and ".forebay-part-" not in name:
            t.ok(what[2] == wanted[name][2] and what[4] == wanted[name][4],
                 "%s has its name, but not all of its content" % name)
    t.fb("down", "--pool", "p").quiet()
    t.nothing_left("down")


def started(path):
    wait_until(lambda: os.path.exists(path), 10, "the program to start")


@case(40)
def run_interrupted(t):
    dest, flag = t.work + "/dest", t.work + "/flag"
    run = [t.forebay, "run", "--media", "memory:512M"]
    body = 'mkdir /fb/r; head -c 3000000 /dev/zero > /fb/r/x; : > "$0"; '
    def ended_by(number):
        """The program is ended by it; what it made is staged out."""
        p = t.start(run + ["--out", "/r:" + dest, "--", "bash", "-c", body + "exec sleep 60", flag])
        try:
            started(flag)
            p.send_signal(number)
            r = t.finish(p, rc=128 + number, timeout=5)
            r.says("killed by signal %d" % number, "staged out /r")
            t.ok(os.path.getsize(dest + "/x") == 3000000, "x is not all there")
            t.nothing_left("run after signal %d" % number)
        finally:
            start_anew()

    def start_anew():
        t.kill_everything()
        for left in [dest] + [os.path.join(t.home, n) for n in os.listdir(t.home)]:
            shutil.rmtree(left, ignore_errors=True)
        if os.path.exists(flag):
            os.unlink(flag)

    def trapped():
        """A program that takes the signal decides about the exit code."""
        p = t.start(run + ["--out", "/r:" + dest, "--", "bash", "-c",
                           "trap 'echo caught > /fb/r/t; exit 7' TERM; " + body +
                           "while :; do sleep 0.05; done", flag])
        try:
            started(flag)
            p.send_signal(signal.SIGTERM)
            t.finish(p, rc=7, timeout=5)
            with open(dest + "/t") as f:
                t.ok(f.read() == "caught\n", "what the trap wrote is not there")
            t.nothing_left("run after a caught signal")
        finally:
            start_anew()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        t.check("signal %d" % number, ended_by, number)
    t.check("a caught signal", trapped)
    # During stage-in: nothing is run, nothing is left.
    source = make_source(t, 6)
    for number in (signal.SIGTERM, signal.SIGINT):
        p = t.start(run + ["--in", source + ":/case", "--", "touch", flag])
        time.sleep(0.08)
        p.send_signal(number)
        r = t.finish(p, rc=121).says("interrupted; nothing was run, and the pool is removed")
        t.ok(not os.path.exists(flag), "the program was run")
        t.nothing_left("run ended in stage-in")
    # During stage-out: the pool stays, and the message is enough to get everything.
    wanted = t.walk(source)
    p = t.start(run + ["--pool", "keep-me", "--in", source + ":/case",
                       "--out", "/case:" + dest, "--", "touch", flag])
    started(flag)
    wait_until(lambda: os.path.isdir(dest), 10, "stage-out to begin")
    time.sleep(0.02)
    p.send_signal(signal.SIGTERM)
    r = t.finish(p, rc=120).says("stage-out is incomplete", "the pool 'keep-me' stays")
    fetch_the_rest(t, r, wanted, dest)
    # kill -9 of `run` itself: the pool is seen and removed with one command.
    os.unlink(flag)
    p = t.start(run + ["--pool", "lost", "--", "bash", "-c",
                       "mkdir /fb/r; exec 3> /fb/r/open; " + body[len("mkdir /fb/r; "):] +
                       "exec sleep 60", flag])
    started(flag)
    kill(p.pid)
    p.wait()
    t.fb("pools").prints("^lost +(running|stale)")
    t.fb("down", "--pool", "lost", rc=1).says("in use by", "forebay down --force --pool lost")
    t.fb("down", "--pool", "lost", "--force")
    t.nothing_left("down --force after kill -9 of run")


def printed_command(r, pattern):
    """A command that a message names, as arguments."""
    import shlex
    m = re.search(r"forebay (%s[^\n;]*)" % pattern, r.err)
    if not m:
        raise Failed("no command 'forebay %s' is named\n%s" % (pattern, r.told()))
    return shlex.split(m.group(1))


def fetch_the_rest(t, r, wanted, dest):
    r.says("fetch it with: forebay stage out")
    t.fb(*printed_command(r, "stage out"))
    t.same(wanted, t.walk(dest), "what was fetched")
    t.fb(*printed_command(r, "down --pool"))
    t.nothing_left("down")


@case(30)
def missing_parents_follow_the_umask(t):
    t.file(t.work + "/f", 10)
    t.up("p")
    out = t.work + "/out"
    for umask, wanted in ((0o022, 0o755), (0o077, 0o700), (0o002, 0o775)):
        at = "/m%o" % umask
        t.command(["bash", "-c", "umask %o; %s stage in --pool p f %s/a/b/f" % (umask, t.forebay, at)])
        t.bash("p", "stat -c %%a /fb%s /fb%s/a /fb%s/a/b" % (at, at, at)).prints(*["^%o$" % wanted])
        t.command(["bash", "-c", "umask %o; %s stage out --pool p %s %s%s/x/y" % (umask, t.forebay, at, out, at)])
        for name in ("", "/x", "/x/y", "/x/y/a", "/x/y/a/b"):
            path = out + at + name
            mode = os.stat(path).st_mode & 0o7777
            t.ok(mode == wanted, "%s has mode %o with umask %o" % (path, mode, umask))
    t.fb("down", "--pool", "p", "--force")


def deep_tree(top, names, content):
    """A file below so many directories, reached by descriptors; and what reads it again."""
    at = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    with open(os.open("file", os.O_WRONLY | os.O_CREAT, 0o640, dir_fd=at), "w") as f:
        f.write(content)
    os.symlink("target", "link", dir_fd=at)
    os.utime("file", (1000000000, 1000000000), dir_fd=at)
    os.close(at)


def deep_file(top, names):
    at = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    with open(os.open("file", os.O_RDONLY, dir_fd=at)) as f:
        st = os.fstat(f.fileno())
        found = (f.read(), st.st_mode & 0o7777, st.st_mtime, os.readlink("link", dir_fd=at))
    os.close(at)
    return found


@case(60)
def trees_deeper_than_path_max(t):
    t.up("p")
    for kind, names in (("long", ["n" * 200] * 45), ("many", ["d" * 9] * 450)):
        source, back = "%s/%s" % (t.work, kind), "%s/%s-back" % (t.work, kind)
        os.mkdir(source)
        try:
            deep_tree(source, names, kind)
            t.fb("stage", "in", source, "/" + kind, "--pool", "p", timeout=30)
            t.fb("stage", "out", "/" + kind, back, "--pool", "p", timeout=30)
            t.ok(deep_file(back, names) == (kind, 0o640, 1000000000, "target"), deep_file(back, names))
            # All is there: nothing is moved again.
            r = t.fb("stage", "out", "/" + kind, back, "--pool", "p", "--json", timeout=30).json()
            t.ok(r["moved_files"] == 0 and r["unchanged"] == 2, r)
        finally:
            # Python's own way recurses.
            t.command(["rm", "-rf", source, back])
        t.exec("p", "rm", "-r", "/fb/" + kind, timeout=30)
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(30)
def times_beyond_those_of_a_pool(t):
    source, back = t.disk + "/source", t.disk + "/back"
    os.mkdir(source)
    late = 12000000000  # in 2350
    for name, at in (("now", 1700000000), ("late", late)):
        t.file("%s/%s" % (source, name), 10)
        os.utime("%s/%s" % (source, name), (at, at))
    if os.stat(source + "/late").st_mtime != late:
        raise Skipped("the file system has no such times")
    t.up("p")
    r = t.fb("stage", "in", source, "/in", "--pool", "p")
    r.says("late: its time of modification can't be kept here")
    t.ok("now: its time" not in r.err, r.err)
    # Another content of the same size and, for a pool, the same time: noticed.
    with open(source + "/late", "w") as f:
        f.write("0123456789")
    os.utime(source + "/late", (late + 5, late + 5))
    t.fb("stage", "in", source, "/in", "--pool", "p")
    t.bash("p", "cat /fb/in/late").prints("^0123456789$")
    # What is saved where the origin of it still is keeps its time.
    t.fb("stage", "out", "/in", source, "--pool", "p", "--checksum")
    t.ok(os.stat(source + "/late").st_mtime == late + 5, "the time was changed")
    # All calls give a file the closest time that a pool has, as the kernel does for file systems.
    t.python("p", """import ctypes, os
open('/fb/f', 'w').close()
for call in ('utimes', 'utimensat'):
    times = (ctypes.c_long * 4)(12000000000, 999999, 12000000000, 999999)
    libc = ctypes.CDLL(None, use_errno=True)
    got = libc.syscall(235, b'/fb/f', times) if call == 'utimes' else libc.utimensat(-100, b'/fb/f', times, 0)
    print(call, got, int(os.stat('/fb/f').st_mtime))
""").prints("^utimes 0 9223372036$", "^utimensat 0 9223372036$")
    t.fb("down", "--pool", "p", "--force")
