"""Tracepoints, counters and metrics: what was recorded and counted is what happened."""
import collections
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib

from harness import Failed, Skipped, case

# One operation of each kind, so often as the dictionary says.
WORK = r'''
import os, sys
d = sys.argv[1]
for i in range(40):
    f = os.open("%s/f%d" % (d, i), os.O_CREAT | os.O_WRONLY, 0o644)
    os.write(f, b"x" * 1000)
    os.close(f)
for i in range(40):
    f = os.open("%s/f%d" % (d, i), os.O_RDONLY)
    os.read(f, 300)
    os.lseek(f, 0, 0)
    os.fstat(f)
    os.close(f)
    os.stat("%s/f%d" % (d, i))
for i in range(20):
    os.rename("%s/f%d" % (d, i), "%s/g%d" % (d, i))
    os.unlink("%s/g%d" % (d, i))
try:
    os.open(d + "/none", os.O_RDONLY)
except FileNotFoundError:
    pass
'''
KINDS = {"openat": "open", "write": "write", "read": "read", "lseek": "seek", "close": "close", "rename": "rename",
         "unlink": "remove", "newfstatat": "stat", "fstat": "stat", "stat": "stat"}


def stats(t, pool="p", *more):
    return t.fb("stats", "--json", "--pool", pool, *more).json()


def events(t, *more, pool="p"):
    lines = t.fb("trace", "dump", "--json", "--pool", pool, *more, timeout=40).out.splitlines()
    return [json.loads(line) for line in lines]


@case(40)
def counters_are_what_strace_counts(t):
    if not shutil.which("strace"):
        raise Skipped("strace is not installed")
    plain = t.work + "/plain"
    os.mkdir(plain)
    log = t.work + "/strace"
    t.command(["strace", "-f", "-y", "-o", log, sys.executable, "-I", "-c", WORK, plain])
    expected = collections.Counter()
    with open(log) as f:
        for line in f:
            found = re.match(r"\d+ +(\w+)\((.*)", line)
            if found and found.group(1) in KINDS and plain + "/" in found.group(2):
                kind = KINDS[found.group(1)]
                expected["create" if "O_CREAT" in line else kind] += 1
    t.ok(expected["create"] == 40 and expected["stat"] >= 80, expected)
    t.up("p")
    t.exec("p", "mkdir", "/fb/d")
    t.exec("p", sys.executable, "-I", "-c", WORK, "/fb/d")
    counted = {kind: c["count"] for kind, c in stats(t)["operations"].items()}
    mkdir = counted.pop("mkdir")
    t.ok(mkdir == 1, counted)
    for kind, count in expected.items():
        t.ok(counted.get(kind) == count, "%s: %s, strace says %d" % (kind, counted.get(kind), count))
    totals = stats(t)["operations"]
    t.ok((totals["write"]["bytes"], totals["read"]["bytes"]) == (40_000, 12_000), totals)
    t.ok(totals["open"]["errors"] == 1 and totals["open"]["remote"] == 0, totals)
    processes = t.fb("stats", "--json", "--processes", "--pool", "p").json()
    t.ok(sum(p["totals"]["operations"].get("write", {"count": 0})["count"] for p in processes) == 40, processes)
    t.fb("stats", "--pool", "p").prints("^write +40 ").quiet()
    t.fb("down", "--pool", "p").says("operations in the pool: 40 files created, 11.7 KiB read, 39.1 KiB written",
                                     "100.0% of the operations")


# Calls that Forebay answers, since they might concern the pool, and that don't: code of libraries that
# is mapped, mappings at fixed addresses, descriptors and files outside.
OUTSIDE = r'''
import os
os.stat("/fb/d")
import ctypes, mmap, sqlite3, subprocess, sys, tempfile
ctypes.CDLL("libm.so.6")
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
with tempfile.TemporaryDirectory() as d:
    with open(d + "/f", "w+b") as f:
        f.truncate(8192)
        at = libc.mmap(None, 8192, 3, mmap.MAP_SHARED, f.fileno(), 0)
        assert libc.mmap(at, 4096, 3, mmap.MAP_SHARED | 0x10, f.fileno(), 4096) == at
        assert libc.mmap(at, 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0) == at
        os.dup2(f.fileno(), 50)
        os.close(os.dup(50))
        os.sendfile(50, f.fileno(), 0, 4096)
    os.rename(d + "/f", d + "/g")
    sqlite3.connect(d + "/db").execute("create table t(a)")
    subprocess.run(["sh", "-c", "cat < $0 > $0.copy", d + "/g"], check=True)
with open("/fb/d/f", "w+b") as f:
    f.truncate(4096)
    mmap.mmap(f.fileno(), 4096)
'''


@case(30)
def what_lies_outside_is_not_counted(t):
    t.up("p")
    t.exec("p", "mkdir", "/fb/d")
    t.exec("p", sys.executable, "-I", "-c", OUTSIDE)
    counted = {kind: c["count"] for kind, c in stats(t)["operations"].items()}
    kinds = {"mkdir", "stat", "create", "truncate", "close", "seek", "other", "map"}
    t.ok(counted["map"] == 1 and set(counted) <= kinds, "other operations: %s" % counted)
    t.fb("down", "--pool", "p")


@case(40)
def events_are_recorded_where_they_are_on(t):
    t.up("p")
    t.exec("p", "sh", "-c", "mkdir /fb/d; echo 1 > /fb/d/before")
    t.ok(events(t) == [], "events, though nothing is on")
    t.fb("trace", "on", "STORE_CREATE_*", "POSIX_OPENED", "--pool", "p").quiet()
    status = t.fb("trace", "status", "--json", "--pool", "p").json()[0]
    t.ok(sorted(status["on"]) == ["POSIX_OPENED", "STORE_CREATE_ENTER", "STORE_CREATE_EXIT"], status)
    t.exec("p", "sh", "-c", "for i in 1 2 3; do echo $i > /fb/d/new$i; done")
    found = events(t)
    made = [e["fields"]["text"] for e in found if e["point"] == "STORE_CREATE_ENTER"]
    t.ok(made == ["new1", "new2", "new3"], made)
    opened = [e["fields"]["text"] for e in found if e["point"] == "POSIX_OPENED"]
    t.ok(opened == made, opened)
    t.ok([e["time"] for e in found] == sorted(e["time"] for e in found), "not in order")
    t.ok(all(e["program"] == "sh" for e in found), found)
    t.fb("trace", "off", "STORE_CREATE_*", "--pool", "p")
    t.exec("p", "sh", "-c", "echo > /fb/d/later")
    later = [e["point"] for e in events(t)][len(found):]
    t.ok(later == ["POSIX_OPENED"], later)
    t.fb("trace", "off", "--pool", "p")
    t.fb("trace", "clear", "--pool", "p")
    t.ok(events(t) == [], "events were cleared")
    t.fb("trace", "on", "NO_SUCH", "--pool", "p", rc=2).says("'NO_SUCH' is neither a tracepoint nor a profile")
    t.fb("trace", "on", "CALL_*", "--keep", "100", "--pool", "p", rc=2).says("power of two")
    t.fb("trace", "show", "1.2", "--pool", "p", rc=2).says("NODE.PROCESS.NUMBER")
    t.fb("trace", "show", "0.1.1", "--pool", "p", rc=1).says("no events of request 0.1.1")
    t.fb("trace", "costs", "--pool", "p", rc=1).says("no pairs of events")
    t.fb("down", "--pool", "p")


@case(60)
def events_of_a_killed_process_are_read(t):
    t.up("p")
    t.fb("trace", "on", "small-io", "--pool", "p")
    child = t.start_python("p", r'''
import os
f = os.open("/fb/f", os.O_CREAT | os.O_RDWR)
os.write(1, b"ready\n")
i = 0
while True:
    os.pwrite(f, b"x" * 10, i % 1000)
    i += 1
''')
    t.ok(child.stdout.readline() == b"ready\n", "it didn't start")
    time.sleep(0.3)
    child.send_signal(signal.SIGKILL)
    child.wait()
    found = [e for e in events(t) if e["point"] == "POSIX_WRITE_ENTER"]
    t.ok(len(found) > 500, "only %d events" % len(found))
    t.ok(all(e["fields"]["length"] == 10 and e["fields"]["offset"] < 1000 for e in found), "wrong fields")
    # Consecutive offsets: no event is missing among those that are kept.
    offsets = [e["fields"]["offset"] for e in found]
    t.ok(all((a + 1) % 1000 == b for a, b in zip(offsets, offsets[1:])), "events are missing")
    costs = t.fb("trace", "costs", "--json", "--pool", "p").json()["costs"]
    call = [c for c in costs if c["path"] == ["CALL"]][0]
    own = sum(c["own_nanoseconds"] for c in costs if c["path"][0] == "CALL")
    t.ok(abs(own - call["nanoseconds"]) <= 0.05 * call["nanoseconds"], "parts: %d of %d" % (own, call["nanoseconds"]))
    # Garbage in a ring is an error message, and the others are read.
    rings = t.pool_dir("p") + "/rings"
    for i, name in enumerate(sorted(os.listdir(rings))):
        with open(rings + "/" + name, "r+b") as f:
            f.seek((0, 16, 24, 4096)[i % 4])
            f.write(b"\xff" * 16)
    with open(rings + "/999.1", "wb") as f:
        f.write(b"short")
    t.fb("trace", "dump", "--pool", "p", timeout=40).says("left out")
    t.fb("trace", "costs", "--pool", "p", rc=None, timeout=40)
    t.fb("down", "--pool", "p")


@case(60)
def a_recording_holds_everything_and_a_full_disk_stops_nobody(t):
    t.up("p")
    out = t.work + "/events"
    recorder = t.start([t.forebay, "trace", "record", "--to", out, "--on", "io-pattern", "--wait", "--pool", "p"])
    until = time.monotonic() + 10
    while not t.fb("trace", "status", "--json", "--pool", "p").json()[0]["on"]:
        t.ok(time.monotonic() < until, "recording doesn't begin")
    t.exec("p", sys.executable, "-I", "-c", r'''
import os
os.mkdir("/fb/dir")
f = os.open("/fb/dir/f", os.O_CREAT | os.O_RDWR)
for i in range(60_000):
    os.pwrite(f, b"x" * 8, i * 8)
''', timeout=50)
    recorder.send_signal(signal.SIGINT)
    said = t.finish(recorder)
    found = events(t, "--from", out)
    writes = [e["fields"]["offset"] for e in found if e["point"] == "POSIX_WRITE_ENTER"]
    t.ok(writes == [i * 8 for i in range(60_000)], "%d writes are recorded; missing %s; %s" % (
        len(writes), sorted({i * 8 for i in range(60_000)} - set(writes))[:5], said.err))
    t.ok(t.fb("trace", "status", "--json", "--pool", "p").json()[0]["on"] == [], "points stay on")
    size = os.path.getsize(out)
    t.ok(size < 120_000 * 30, "%d bytes for 120,000 events" % size)
    # Cut off anywhere, it is read as far as it goes.
    with open(out, "r+b") as f:
        f.truncate(size // 2)
    cut = t.fb("trace", "dump", "--json", "--from", out, "--pool", "p", timeout=40).says("ends in the middle")
    t.ok(1000 < len(cut.out.splitlines()) < 120_000, "nothing is left")
    t.file(t.work + "/garbage", 5000)
    t.fb("trace", "dump", "--from", t.work + "/garbage", "--pool", "p", rc=1).says("isn't a stream of events")
    # Onto a full disk: the program goes on, whatever was asked.
    if os.path.exists("/dev/full"):
        os.remove(out)
        os.symlink("/dev/full", out)
        t.fb("trace", "record", "--to", out, "--pool", "p", rc=1).says("File exists")
    limit = "ulimit -f 8; trap '' XFSZ; exec \"$@\""
    small = t.start(["bash", "-c", limit, "-", t.forebay, "trace", "record", "--to", t.work + "/small", "--on",
                     "io-pattern", "--wait", "--pool", "p"])
    until = time.monotonic() + 10
    while not t.fb("trace", "status", "--json", "--pool", "p").json()[0]["on"]:
        t.ok(time.monotonic() < until, "recording doesn't begin")
    began = time.monotonic()
    t.exec("p", sys.executable, "-I", "-c", r'''
import os
f = os.open("/fb/dir/f", os.O_RDWR)
for i in range(60_000):
    os.pwrite(f, os.urandom(8), i * 8)
''', timeout=30)
    t.ok(small.wait(20) == 1, "it says nothing of the full disk")
    t.ok(time.monotonic() - began < 20, "the program was held up")
    t.fb("down", "--pool", "p")


@case(40)
def one_request_is_followed_over_nodes(t):
    t.up("p", "--nodes", "3")
    t.fb("trace", "slow", "--bound", "0.001", "--pool", "p").quiet()
    t.fb("trace", "on", "network", "CALL_*", "CLUSTER_*", "--pool", "p").quiet()
    run = [t.forebay, "exec", "--pool", "p", "--node"]
    t.command([*run, "1", "--", "sh", "-c", "mkdir /fb/d; head -c 300000 /dev/zero > /fb/d/f"])
    t.command([*run, "0", "--", "cat", "/fb/d/f"])
    slow = t.fb("trace", "slow", "--json", "--pool", "p").json()
    remote = [s for s in slow if s["requests_to_other_nodes"] and s["operation"] == "read"]
    t.ok(remote, slow)
    shown = t.fb("trace", "show", remote[0]["request"], "--json", "--pool", "p").json()["events"]
    points = [(e["node"], e["point"]) for e in shown]
    for node, point in ((0, "CALL_ENTER"), (0, "ASK_ENTER"), (0, "LINK_SEND"), (1, "SERVE_ENTER"), (1, "SERVE_EXIT"),
                        (0, "LINK_REPLY"), (0, "ASK_EXIT"), (0, "CALL_EXIT")):
        t.ok((node, point) in points, "no %s of node %d in %s" % (point, node, points))
    order = [points.index(p) for p in ((0, "ASK_ENTER"), (1, "SERVE_ENTER"), (0, "ASK_EXIT"))]
    t.ok(order == sorted(order), points)
    t.fb("trace", "show", remote[0]["request"], "--pool", "p").prints("SERVE_ENTER request READ of node 0")
    read = stats(t)["operations"]["read"]
    t.ok(read["remote"] > 0 and read["bytes"] == 300_000, read)
    t.ok(stats(t)["received"] >= 300_000, "received")
    perfetto = t.fb("trace", "dump", "--perfetto", "--pool", "p").json()["traceEvents"]
    t.ok(any(e["ph"] == "X" and e["name"] == "SERVE" and e["dur"] > 0 for e in perfetto), "no spans")
    t.fb("down", "--pool", "p")


def scrape(path, request=b"GET /metrics HTTP/1.0\r\n\r\n"):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(path)
        s.sendall(request)
        answer = b""
        while part := s.recv(1 << 16):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body.decode()


@case(40)
def metrics_are_served_on_a_socket(t):
    t.up("p")
    t.exec("p", "sh", "-c", "for i in 1 2 3; do echo $i > /fb/$i; done; cat /fb/*")
    path = t.pool_dir("p") + "/metrics.sock"
    t.ok(os.stat(path).st_uid == os.getuid(), "whose is it?")
    head, body = scrape(path)
    t.ok("200 OK" in head, head)
    sample = {m.group(1): float(m.group(2)) for m in re.finditer(r"^(\S+) (\S+)$", body, re.M)}
    t.ok(sample['forebay_operations_total{pool="p",node="0",operation="write"}'] == 3, body)
    t.ok(sample['forebay_operation_bytes_total{pool="p",node="0",operation="read"}'] == 6, body)
    named = set(re.findall(r"^# TYPE (\S+)", body, re.M))
    for line in body.splitlines():
        if not line.startswith("#"):
            name = re.match(r"[a-z_]+", line).group(0)
            t.ok(name in named or re.sub("_(bucket|sum|count)$", "", name) in named, "no type: " + line)
    t.ok(t.fb("stats", "--prometheus", "--pool", "p").out.splitlines()[:2] == body.splitlines()[:2], "not the same")
    t.ok("404" in scrape(path, b"GET / HTTP/1.0\r\n\r\n")[0], "other paths")
    for garbage in (b"\r\n\r\n", b"\xff" * 9000, b"GET /metrics\r\n\r\n" * 3):
        try:
            scrape(path, garbage)
        except OSError:
            pass
    # A client that says nothing doesn't hold up the pool.
    idle = socket.socket(socket.AF_UNIX)
    idle.connect(path)
    t.exec("p", "cat", "/fb/1", timeout=3)
    idle.close()
    t.ok("200 OK" in scrape(path)[0], "it is gone")
    t.fb("down", "--pool", "p")
    t.ok(not os.path.exists(path), "the socket stays")


@case(40)
def a_report_says_what_was_counted(t):
    page = t.work + "/page.html"
    t.fb("run", "--media", "memory:64M", "--report", page, "--", "sh", "-c",
         "mkdir /fb/d; for i in 1 2 3; do head -c 10000 /dev/zero > /fb/d/$i; done; cat /fb/d/* > /dev/null",
         "</script>").says(
             "the report is " + page, "3 files created, 29.3 KiB read, 29.3 KiB written")
    t.ok(not os.path.exists(page + ".events"), "events stay")
    with open(page) as f:
        text = f.read()
    run = json.loads(re.search(r'<script type="application/json" id="run">(.*?)</script>', text, re.S).group(1))
    t.ok("http://" not in re.sub(r'xmlns="[^"]*"', "", text), "it needs the network")
    operations = run["totals"]["operations"]
    found = operations["create"]["count"], operations["read"]["bytes"], operations["write"]["bytes"]
    t.ok(found == (3, 30_000, 30_000), operations)
    files = [f["path"] for f in run["files"]]
    t.ok(set(files) >= {"/d/1", "/d/2", "/d/3"}, files)
    t.fb("report", "--page", page).prints("immutable")
    t.fb("report", "--compare", page, page)
    t.fb("run", "--media", "memory:64M", "--report", page, "--", "true", rc=1).says("File exists")
    t.fb("report", "--page", "/dev/null", rc=1)
    t.file(t.work + "/garbage", 3000)
    t.fb("report", "--darshan", t.work + "/garbage", rc=1).says("garbage")
    t.nothing_left("after the runs")


@case(60)
def a_killed_recorder_holds_nobody_up(t):
    t.up("p")
    words = [t.forebay, "trace", "record", "--on", "small-io", "--wait", "--pool", "p", "--to"]
    recorder = t.start([*words, t.work + "/first"])
    until = time.monotonic() + 10
    while not t.fb("trace", "status", "--json", "--pool", "p").json()[0]["on"]:
        t.ok(time.monotonic() < until, "recording doesn't begin")
    t.command([*words, t.work + "/second"], rc=1).says("process %d records the events already" % recorder.pid)
    recorder.send_signal(signal.SIGKILL)
    recorder.wait()
    began = time.monotonic()
    t.exec("p", sys.executable, "-I", "-c", """
import os
f = os.open("/fb/f", os.O_CREAT | os.O_RDWR)
for i in range(60_000):
    os.pwrite(f, b"x" * 8, i * 8)
""", timeout=30)
    t.ok(time.monotonic() - began < 8, "the program was held up for %.1f s" % (time.monotonic() - began))
    # Another one takes over.
    t.command([*words, t.work + "/third", "--for", "0.2"]).says("events in")
    t.fb("down", "--pool", "p")


@case(60)
def processes_come_and_go_while_a_run_is_watched(t):
    page = t.work + "/page.html"
    # More of them than there is room for rings.
    r = t.fb("run", "--media", "memory:64M", "--report", page, "--", "bash", "-c",
             "for i in {1..150}; do head -c 1000 /dev/zero > /fb/$i; done", timeout=50)
    r.says("150 files created")
    t.ok("incomplete" not in r.err, r.err)
    with open(page) as f:
        run = json.loads(re.search(r'id="run">(.*?)</script>', f.read(), re.S).group(1))
    t.ok(run["incomplete"] == [], run["incomplete"])
    found = len(run["files"]), run["writes"]["count"]
    t.ok(found[0] >= 150 and found[1] == 150, found)


@case(40)
def clearing_forgets_what_was_and_not_what_comes(t):
    t.up("p")
    t.fb("trace", "on", "POSIX_OPENED", "--pool", "p")
    child = t.start_python("p", """
import os, sys
open("/fb/before", "w").close()
print("made", flush=True)
sys.stdin.readline()
open("/fb/after", "w").close()
print("made", flush=True)
sys.stdin.readline()
""", stdin=subprocess.PIPE)
    child.stdout.readline()
    t.ok([e["fields"]["text"] for e in events(t)] == ["before"], "the first file")
    t.fb("trace", "clear", "--pool", "p").quiet()
    t.ok(events(t) == [], "events after clearing")
    child.stdin.write(b"\n")
    child.stdin.flush()
    child.stdout.readline()
    t.ok([e["fields"]["text"] for e in events(t)] == ["after"], "the second file")
    child.stdin.close()
    child.wait(10)
    t.fb("trace", "clear", "--pool", "p").quiet()
    t.ok(os.listdir(t.pool_dir("p") + "/rings") == [], "rings of ended processes stay")
    t.fb("down", "--pool", "p")


@case(30)
def verbs_are_counted(t):
    t.up("p")
    t.file(t.work + "/bytes", 5000)
    t.fb("workspace", "create", "w", "--pool", "p")
    t.fb("collection", "put", "w", "c", t.work + "/bytes", "--pool", "p")
    t.fb("collection", "get", "w", "c", t.work + "/back", "--pool", "p")
    operations = stats(t)["operations"]
    t.ok((operations["put"]["bytes"], operations["get"]["bytes"]) == (5000, 5000), operations)
    t.fb("down", "--pool", "p")


# Accounts in a database that several processes use at once, a log that others read while it grows, and a file that is made
# again and again.
BANK = """
import multiprocessing, os, sqlite3, sys, time
def connect():
    return sqlite3.connect("/fb/bank.db", timeout=20, isolation_level=None)
def moves(n):
    db = connect()
    for i in range(20):
        db.execute("begin immediate")
        db.execute("update accounts set money = money - 1 where id = ?", (n,))
        db.execute("update accounts set money = money + 1 where id = ?", ((n + 1) % 4,))
        db.execute("commit")
        with open("/fb/log", "a") as log:
            log.write("%d %d\\n" % (n, i))
        with open("/fb/log") as log:
            assert "%d %d\\n" % (n, i) in log.read()
        with open("/fb/state.%d" % n, "w") as state:
            state.write("%d" % i)
db = connect()
db.execute("create table accounts (id integer primary key, money integer)")
for n in range(4):
    db.execute("insert into accounts values (?, 100)", (n,))
db.close()
workers = [multiprocessing.get_context("fork").Process(target=moves, args=(n,)) for n in range(4)]
for w in workers:
    w.start()
for w in workers:
    w.join(40)
    assert w.exitcode == 0, w.exitcode
print([money for money, in connect().execute("select money from accounts order by id")])
print(sum(1 for line in open("/fb/log")))
"""


@case(90)
def advice_breaks_no_program_that_needs_strict_files(t):
    page, rules = t.work + "/page.html", t.work + "/rules.toml"
    program = t.file(t.work + "/bank.py", 0)
    with open(program, "w") as f:
        f.write(BANK)
    run = ["run", "--media", "memory:64M", "--nodes", "2"]
    t.fb(*run, "--report", page, "--", "python3", program, timeout=60).prints(r"^\[100, 100, 100, 100\]$", "^80$")
    t.fb("report", "--page", page, "--rules", rules)
    with open(rules) as f:
        text = f.read()
    found = [r for r in tomllib.loads(text).get("rule", []) if r["path"] in ("/bank.db", "/**")]
    # All ran on one node.
    t.ok(all(set(r) <= {"path", "parallelism"} and r["parallelism"] == "exclusive(node)" for r in found), text)
    t.fb("up", "--pool", "p", "--media", "memory:64M", "--nodes", "2", "--rules", rules)
    t.fb("exec", "--pool", "p", "--", "python3", program, timeout=60).prints(r"^\[100, 100, 100, 100\]$", "^80$")
    t.fb("violations", "--pool", "p").says("no violations")
    t.fb("down", "--pool", "p")
