"""`forebay top`: its numbers are those of the load, and the terminal and the tracepoints are as before."""
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import threading
import time

from harness import Failed, alive, case, wait_until

# Writes and reads files, and notes how many bytes it has written by when.
LOAD = r'''
import os, sys, time
d, log, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
os.makedirs(d, exist_ok=True)
done, end = 0, time.monotonic() + seconds
with open(log, "w", buffering=1) as notes:
    while time.monotonic() < end:
        path = "%s/file-%d" % (d, done // 65536 % 10)
        f = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        for i in range(8):
            done += os.pwrite(f, b"x" * 65536, i * 65536)
            os.pread(f, 32768, i * 65536)
        os.close(f)
        os.stat(path)
        notes.write("%f %d\n" % (time.monotonic(), done))
        time.sleep(0.02)
'''
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def loads(t, pool, nodes, seconds):
    """A load on each node, and the files of their notes."""
    logs, running = [], []
    for node in range(nodes):
        logs.append("%s/load-%s-%d" % (t.work, pool, node))
        place = ["--node", str(node)] if nodes > 1 else []
        running.append(t.start([t.forebay, "exec", "--pool", pool, *place, "--", sys.executable, "-I", "-c", LOAD,
                                "/fb/data/run-%d" % node, logs[-1], str(seconds)]))
    wait_until(lambda: all(os.path.exists(log) and os.path.getsize(log) > 200 for log in logs), 20, "the loads")
    return running, logs


def written_per_second(logs, begin, end):
    """Least and largest sum of the loads' rates over any part of this time that is at least half a second long."""
    low, high = 0, 0
    for log in logs:
        with open(log) as f:
            notes = [(float(a), int(b)) for a, b in (line.split() for line in f)]
        notes = [n for n in notes if begin - 0.3 <= n[0] <= end + 0.3]
        rates = []
        for i, (at, done) in enumerate(notes):
            later = next((n for n in notes[i:] if n[0] - at >= 0.5), None)
            if later:
                rates.append((later[1] - done) / (later[0] - at))
        low, high = low + min(rates), high + max(rates)
    return low, high


def number(text):
    return float(text.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1)


@case(90)
def top_shows_what_a_load_does(t):
    for pool, nodes in (("one", 1), ("four", 4)):
        t.up(pool, *(["--nodes", str(nodes)] if nodes > 1 else []))
        running, logs = loads(t, pool, nodes, 16)
        for width in (80, 200):
            begin = time.monotonic()
            r = t.fb("top", "--once", "--width", str(width), "--height", "40", "--pool", pool).quiet()
            low, high = written_per_second(logs, begin, time.monotonic())
            lines = r.out.splitlines()
            t.ok(max(map(len, lines)) <= width and len(lines) <= 40, r.told())
            r.prints("^pool %s +up .* %d nodes? up, 0 down" % (pool, nodes))
            total = re.search(r"^(\S+) ops/s  read (\S+) (\S+)/s  written (\S+) (\S+)/s  local (\S+)%", r.out, re.M)
            t.ok(total, r.told())
            operations, read = number(total[1]), float(total[2]) * UNITS[total[3]]
            written, local = float(total[4]) * UNITS[total[5]], float(total[6])
            t.ok(operations > 0 and 0 < local <= 100, r.told())
            t.ok(low * 0.7 <= written <= high * 1.3, "%.0f B/s are written, of %.0f to %.0f\n%s" % (
                written, low, high, r.told()))
            t.ok(0.4 * written <= read <= 0.6 * written, "half as much is read\n" + r.told())
            rows = re.findall(r"^ +\d+  up ", r.out, re.M)
            t.ok(len(rows) == nodes, r.told())
            r.prints("^write +[0-9.]+k?  +[0-9.]+ [KM]iB +0 ", "MEAN", "99% BELOW")
        r = t.fb("top", "--once", "--files", "--processes", "--pool", pool).prints(
            "tracepoints are on, about 50 ns per operation", "^/data/run-0/file-[0-9] ", "^/data/run-0 ", "python3")
        t.ok(all(not n["on"] for n in t.fb("trace", "status", "--json", "--pool", pool).json()), "points stay on")
        for load in running:
            t.finish(load, timeout=40)
        t.fb("down", "--pool", pool)


class Screen:
    """A terminal of its own with a command on it: what it shows, as text."""

    def __init__(self, t, argv, rows=24, columns=80, all_on_it=False):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        # Something that differs from what a terminal has at first.
        modes = termios.tcgetattr(self.slave)
        modes[3] &= ~termios.ECHOK
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.before = termios.tcgetattr(self.slave)
        self.cells, self.row, self.column, self.raw = {}, 1, 1, b""
        self.process = t.start(argv, {"TERM": "xterm-256color"}, self.slave, stdout=self.slave, start_new_session=True,
                               **({"stderr": self.slave} if all_on_it else {}))
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def resize(self, rows, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        left = b""
        while True:
            try:
                some = os.read(self.master, 1 << 16)
            except OSError:
                return
            self.raw += some
            left = self.show(left + some)

    def show(self, stream):
        """Shows what is complete, and returns the rest."""
        while stream:
            control = re.match(rb"\x1b\[([0-9;?]*)([A-Za-z])", stream)
            if control:
                stream = stream[control.end():]
                if control[2] == b"H":
                    place = [int(n or 1) for n in control[1].split(b";")] + [1, 1]
                    self.row, self.column = place[:2] if control[1] else (1, 1)
                elif control[2] == b"J":
                    self.cells = {}
            elif stream[:1] == b"\x1b":
                if len(stream) < 12:
                    return stream
                stream = stream[1:]
            else:
                length = 1 if stream[0] < 0x80 else 2 if stream[0] < 0xe0 else 3 if stream[0] < 0xf0 else 4
                if len(stream) < length:
                    return stream
                self.cells[self.row, self.column] = stream[:length].decode("utf-8", "replace")
                self.column += 1
                stream = stream[length:]
        return b""

    def text(self):
        cells = dict(self.cells)
        rows = max((r for r, _ in cells), default=0)
        columns = max((c for _, c in cells), default=0)
        return "\n".join("".join(cells.get((r, c), " ") for c in range(1, columns + 1)) for r in range(1, rows + 1))

    def has(self, pattern, seconds=10):
        try:
            return wait_until(lambda: re.search(pattern, self.text(), re.M), seconds, pattern)
        except Failed as e:
            raise Failed("%s\n%s" % (e, self.text()))

    def press(self, keys):
        os.write(self.master, keys)

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def ends(self, t, rc=0):
        err = (self.process.communicate(timeout=10)[1] or b"").decode()
        t.ok(self.process.returncode == rc, "exit code %s: %s\n%s" % (self.process.returncode, err, self.text()))
        t.ok(termios.tcgetattr(self.slave) == self.before, "the terminal's modes differ")
        wait_until(lambda: self.raw.count(b"\x1b[?1049l") == self.raw.count(b"\x1b[?1049h") == 1, 5, "the first screen")
        t.ok(self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l"), "the cursor stays hidden")
        os.close(self.slave)
        os.close(self.master)
        return err


def points(t, pool):
    found = {tuple(sorted(n["on"])) for n in t.fb("trace", "status", "--json", "--pool", pool).json()}
    t.ok(len(found) == 1, "not all nodes have the same: %s" % found)
    return found.pop()


THREE = ("POSIX_OPENED", "POSIX_READ_EXIT", "POSIX_WRITE_EXIT")


@case(90)
def top_leaves_the_terminal_and_the_tracepoints_as_they_were(t):
    t.up("p", "--nodes", "2")
    running, _ = loads(t, "p", 2, 25)
    top = [t.forebay, "top", "--every", "0.3", "--pool", "p"]
    screen = Screen(t, top)
    screen.has("^pool p .* 2 nodes up, 0 down")
    screen.has("^write ")
    t.ok(screen.is_raw() and points(t, "p") == (), "the terminal isn't raw, or points are on")
    screen.press(b"f")
    screen.has("^/data/run-[01]/file-")
    t.ok(points(t, "p") == THREE, "points aren't on")
    screen.press(b"p")
    screen.has("^NODE  PROCESS  PROGRAM")
    screen.press(b"s")
    screen.has(r"sort \(bytes\)")
    screen.press(b"f")
    wait_until(lambda: points(t, "p") == (), 5, "points off")
    screen.press(b"?")
    screen.has("Ctrl-C  end")
    screen.press(b"x ")
    screen.has("PAUSED")
    screen.resize(40, 200)
    screen.process.send_signal(signal.SIGWINCH)
    screen.has("NODE  STATE.*OPERATION")
    screen.press(b" f")
    wait_until(lambda: points(t, "p") == THREE, 5, "points on")
    screen.press(b"q")
    t.ok(screen.ends(t) == "", "it says something")
    t.ok(points(t, "p") == (), "points stay on")
    # A point that was on before stays on.
    t.fb("trace", "on", "POSIX_OPENED", "--pool", "p")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        screen = Screen(t, [*top, "--files"])
        screen.has("^/data/run-[01]/file-")
        t.ok(points(t, "p") == THREE, "points aren't on")
        screen.process.send_signal(number)
        screen.ends(t)
        t.ok(points(t, "p") == ("POSIX_OPENED",), "points after signal %d: %s" % (number, points(t, "p")))
    # The terminal goes away.
    screen = Screen(t, [*top, "--files"])
    screen.has("^/data/run-[01]/file-")
    os.close(screen.slave)
    os.close(screen.master)
    screen.process.wait(10)
    t.ok(points(t, "p") == ("POSIX_OPENED",), "points without a terminal: %s" % (points(t, "p"),))
    for load in running:
        load.kill()
        load.communicate()


@case(60)
def top_sees_a_daemon_die_and_a_pool_go(t):
    t.up("p", "--nodes", "4", "--request-timeout", "1")
    # The standard error output is the terminal: messages about the node stay off the screen.
    screen = Screen(t, [t.forebay, "top", "--every", "0.2", "--pool", "p"], all_on_it=True)
    screen.has("4 nodes up, 0 down")
    t.fb("node", "kill", "2", "--pool", "p")
    screen.has("^ +2  dead ")
    time.sleep(1)
    t.ok(b"forebay: " not in screen.raw, "a message is on the screen:\n" + screen.text())
    screen.press(b"q")
    screen.ends(t)
    t.fb("top", "--once", "--width", "80", "--height", "24", "--pool", "p").prints("3 nodes up, 1 down", "^ +2  dead ")
    screen = Screen(t, [t.forebay, "top", "--every", "0.3", "--pool", "p"])
    screen.has("3 nodes up, 1 down")
    t.fb("node", "restart", "2", "--pool", "p")
    screen.has("4 nodes up, 0 down")
    t.fb("node", "pause", "1", "--pool", "p")
    screen.has("^ +1  paused ")
    t.fb("node", "resume", "1", "--pool", "p")
    screen.has("^ +1  up ")
    t.fb("down", "--pool", "p")
    t.ok("the pool 'p' has been removed" in screen.ends(t), "it doesn't say why it ends")
    t.ok(not alive(screen.process.pid), "it goes on")
    t.fb("top", "--once", "--pool", "p", rc=3).one_line()
    t.fb("top", "--pool", "p", rc=2).one_line().says("--once", "forebay stats --watch")
    t.fb("top", "--once", "--every", "0.1", "--pool", "p", rc=2).says("0.2")
    t.fb("top", "--width", "80", "--pool", "p", rc=2).says("--once")


# Gives each host a home of its own, and lets a host hang.
SHELL = r'''#!/bin/sh
host=$1; shift
[ ! -e PLACE/hang-$host ] || exec sleep 600
FOREBAY_HOME=PLACE/$host exec sh -c "$*"
'''


@case(90)
def top_goes_on_when_a_host_hangs(t):
    shell, pool = t.work + "/rsh", "top-%d" % os.getpid()
    with open(shell, "w") as f:
        f.write(SHELL.replace("PLACE", t.work))
    os.chmod(shell, 0o755)
    for host in ("h0", "h1"):
        os.mkdir("%s/%s" % (t.work, host))
    t.command(["env", "-u", "FOREBAY_HOME", t.forebay, "up", "--hosts", "h0,h1", "--rsh", shell, "--pool", pool,
               "--listen", "127.0.0.0/8", "--media", "memory:64M"], timeout=40)
    here, there = ({"FOREBAY_HOME": "%s/h%d" % (t.work, i), "FOREBAY_RSH": shell} for i in (0, 1))
    try:
        log = t.work + "/load"
        load = t.start([t.forebay, "exec", "--pool", pool, "--", sys.executable, "-I", "-c", LOAD, "/fb/d", log, "40"],
                       there)
        wait_until(lambda: os.path.exists(log) and os.path.getsize(log) > 200, 20, "the load")
        top = [t.forebay, "top", "--pool", pool]
        r = t.command([*top, "--once"], env=here).quiet().prints("^pool .* 2 nodes up, 0 down")
        r.prints(r"^ +0  up .* 0 +- +- ", r"^ +1  up .* [0-9.]+ [KM]iB +[0-9.]+ [KM]iB ", "^write ")
        screen = Screen(t, ["env", *("%s=%s" % setting for setting in here.items()), *top, "--every", "0.3"])
        screen.has("^write ")
        open(t.work + "/hang-h1", "w").close()
        screen.has("h1 doesn't answer; its figures are [0-9]+ s old", 20)
        screen.press(b"p")
        screen.has("^NODE  PROCESS", 2)
        screen.press(b"q")
        t.ok(screen.ends(t) == "", "it says something")
        os.remove(t.work + "/hang-h1")
        load.kill()
        load.communicate()
    finally:
        t.command([t.forebay, "down", "--force", "--pool", pool], env=here, timeout=40)
