"""Staging that is interrupted."""
import os
import re
import shutil
import signal
import time

from harness import Failed, case, kill, wait_until


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
