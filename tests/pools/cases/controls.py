"""Controls: rules of a pool, what they refuse to programs, how that is reported; on one node and on several."""
import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time

from harness import Skipped, case, wait_until
from .mounts import mounted

RULES = """
# Checkpoints never change, logs only grow.
[[rule]]
path = "/ckpt/**"
mutability = "immutable"
parallelism = "exclusive"

[[rule]]
path = "/fb/**/*.log"
mutability = "append"

[[rule]]
path = "/loose/**"
mutability = "append"
on_violation = "report"
"""

# The view of a shell, wherever the pool is seen. Each error is the word behind the last colon.
WORK = r"""
cd {at} || exit 1
last() {{ grep -v '^forebay: ' | sed 's/.*: //'; }}
mkdir -p ckpt loose
echo one > ckpt/{n}; cat ckpt/{n}
{{ echo two > ckpt/{n}; }} 2>&1 | last
echo one > {n}.log; echo two >> {n}.log
{{ echo three > {n}.log; }} 2>&1 | last
dd if=/dev/zero of={n}.log bs=1 count=1 conv=notrunc status=none 2>&1 | last
cat {n}.log
echo old > loose/{n}; echo new > loose/{n}; cat loose/{n}
exec 5> ckpt/{n}-open
echo first >&5
bash -c 'echo second > ckpt/{n}-open' 2>&1 | last
cat ckpt/{n}-open 2>&1 | last
exec 5>&-
cat ckpt/{n}-open
mv ckpt/{n} moved-{n}; {{ echo four >> moved-{n}; }} 2>&1 | last
rm moved-{n} ckpt/{n}-open {n}.log loose/{n}
"""

WANTED = """one
Operation not permitted
Operation not permitted
Operation not permitted
one
two
new
Device or resource busy
Device or resource busy
first
Operation not permitted
"""


def rules(t, text=RULES, name="rules.toml"):
    path = os.path.join(t.disk, name)
    with open(path, "w") as f:
        f.write(text)
    return path


@case(60)
def rules_hold_for_programs(t):
    t.up("p", "--rules", rules(t))
    inside = t.bash("p", WORK.format(at="/fb", n="a"))
    t.ok(inside.out == WANTED, "under exec: %s" % inside.out)
    t.bash("p", "cd /fb/ckpt; echo x > s; echo y > s", rc=1).says(
        "/fb/ckpt/s: open refused, it was written and closed, and never changes again .mutability = .immutable")
    with mounted(t, "p") as at:
        outside = t.command(["bash", "-c", WORK.format(at=at, n="b")])
        t.ok(outside.out == WANTED, "through a mount: %s" % outside.out)
        t.fb("umount", at)
    listed = t.fb("violations", "--pool", "p", "--json").json()
    for name in "ab":
        def of(path):
            return sorted((v["what"], v["control"], v["refused"]) for v in listed if v["path"] == path)
        t.ok(("open", 'mutability = "immutable"', True) in of("/ckpt/" + name), "%s" % listed)
        t.ok(("open", 'parallelism = "exclusive"', True) in of("/ckpt/%s-open" % name), "%s" % listed)
        t.ok(("truncate to 0", 'mutability = "append"', False) in of("/loose/" + name), "%s" % listed)
    t.fb("violations", "--pool", "p").prints("refused", "done")
    shown = t.fb("top", "--once", "--pool", "p").prints("^VIOLATION +PROCESS", r"^[0-9:]{8} .* /[a-z]+/[ab]")
    refused = sum(v["refused"] for v in listed)
    t.ok("%d violations, %d refused" % (len(listed), refused) in shown.out, shown.told())
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def staging_and_rules(t):
    """Staged files arrive whole, and are then as the rules say; files staged again replace them."""
    source = os.path.join(t.disk, "source")
    os.makedirs(source + "/ckpt/empty")
    for path, size in (("ckpt/large", 70 << 20), ("ckpt/small", 10), ("ckpt/empty/none", 0), ("run.log", 3 << 20)):
        t.file(os.path.join(source, path), size, seed=size)
    for nodes in ((), ("--nodes", "3")):
        t.up("p", *nodes, "--rules", rules(t), media=("memory:200M",))
        for _ in range(2):
            t.fb("stage", "in", "--pool", "p", source, "/", timeout=60)
            t.same(t.walk(source), t.walk("/fb", "p"), "what was staged in")
            for path in ("ckpt/large", "ckpt/small"):
                t.bash("p", "echo x >> /fb/" + path, rc=1).says("never changes again")
            t.bash("p", "echo x > /fb/run.log", rc=1).says("it only grows")
            t.bash("p", "echo x > /fb/ckpt/empty/none && ! echo y > /fb/ckpt/empty/none", rc=0)
            t.file(os.path.join(source, "ckpt/small"), 20, seed=77)
            os.utime(source + "/ckpt/small", (5, 5))
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")


# The actions of the programs of examples/rules, and those that are refused afterwards.
PROGRAMS = {
    "git": (r"""
export HOME=/fb GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q /fb/r && cd /fb/r || exit 1
for n in 1 2 3; do seq $n 1000 > f; git add f; git commit -qm $n || exit 1; done
object=$(find .git/objects/[0-9a-f][0-9a-f] -type f | head -1); chmod u+w $object
git clone -q --bare /fb/r /fb/s.git && git push -q /fb/s.git HEAD:other && git gc -q && git reflog expire --expire=now --all && git fsck --strict
""", None),
    "bowtie2": (r"""
cd /fb; { echo '>x'; seq 1 3000 | md5sum | tr 0-9a-f ACGTACGTACGTACGT | head -c 32; seq 9 4000 | sha512sum | tr 0-9a-f GATCGTACGACTCATG | head -c 128; echo; } > x.fa
bowtie2-build -q x.fa x > build.log 2>&1 || exit 1
echo "@a
$(sed -n 2p x.fa | head -c 60)
+
$(printf 'I%.0s' $(seq 60))" > a.fq
bowtie2 -x x -U a.fq -S a.sam 2> a.log && grep -q 60M a.sam
""", "x.1.bt2"),
    "training": (r"""
mkdir -p /fb/data /fb/runs/1/checkpoints; cd /fb
for n in 1 2 3; do head -c 5000 /dev/zero > data/$n; done
python3 - <<END
import json, os, random
for step in range(3):
    total = sum(len(open("data/%d" % n, "rb").read()) for n in random.sample([1, 2, 3], 3))
    with open("runs/1/metrics.jsonl", "a") as f:
        f.write(json.dumps({"step": step, "bytes": total}) + "\\n")
    with open("runs/1/checkpoints/%d.pt" % step, "wb") as f:
        f.write(os.urandom(100000)); f.seek(0); f.write(b"head")
END
[ $(wc -l < runs/1/metrics.jsonl) = 3 ]
""", "runs/1/checkpoints/2.pt"),
}


@case(90)
def example_rules_are_those_of_their_programs(t):
    """All of them can be read; git, bowtie2 and a loader do what they do under theirs, and violate nothing."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/rules")
    names = sorted(n for n in os.listdir(folder) if n.endswith(".toml"))
    t.ok(names == ["bowtie2.toml", "git.toml", "openfoam.toml", "training.toml"], "%s" % names)
    for name in names:
        t.fb("rules", "check", os.path.join(folder, name)).says("no error")
    for name, (script, written_once) in PROGRAMS.items():
        t.up("p", "--rules", os.path.join(folder, name + ".toml"))
        t.bash("p", script, timeout=60)
        t.fb("violations", "--pool", "p").says("no violations")
        if written_once:
            t.bash("p", "echo x >> /fb/" + written_once, rc=1).says("never changes again")
        else:
            t.bash("p", "cd /fb/s.git/objects; f=$(find . -type f -path './[0-9a-f][0-9a-f]/*' | head -1); chmod u+w $f; echo x >> $f",
                   rc=1).says("never changes again")
        t.fb("down", "--pool", "p")


@case(120)
def programs_do_the_same_with_their_rules(t):
    """`make bench ONLY=rules` in small: bowtie2, git and a loader, on one node and on two, with their rules
    and without."""
    target = os.path.dirname(os.path.dirname(t.forebay))
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/rules/run.py")
    said = t.command([sys.executable, script, "--check", "--disk", t.disk], env={"CARGO_TARGET_DIR": target}, timeout=110)
    said.prints("passed  git on 2 nodes", "passed  training on 2 nodes", "results are the same everywhere, and no rule was violated")


@case(60)
def rules_are_explained(t):
    t.fb("rules", "check", rules(t)).says("3 rules, no error")
    wrong = rules(t, '[[rule]]\npath = "/a"\nmutability = "apend"\n', "wrong.toml")
    for what in (["rules", "check", wrong], ["up", "--pool", "p", "--rules", wrong]):
        t.fb(*what, rc=2).says("wrong.toml, line 3, column 14: \"apend\" isn't one of overwrite, append, immutable")
    t.fb("up", "--pool", "p", "--rules", t.disk + "/none.toml", rc=2).says("can't read the rules")
    t.nothing_left("refused pools")

    t.up("p", "--rules", rules(t))
    t.fb("rules", "show", "--pool", "p").prints("path = \"/ckpt/\\*\\*\"", "mutability = \"append\"")
    t.fb("rules", "explain", "--pool", "p", "/ckpt/x.log").prints(
        "mutability +append +line 8: ", "parallelism +exclusive +line 3: ", "consistency +sequential +default")
    t.bash("p", "mkdir /fb/ckpt /fb/said && echo x > /fb/ckpt/x")
    t.fb("rules", "explain", "--pool", "p", "/fb/ckpt/x").prints("mutability +immutable +declared for it", "laminated")
    t.fb("rules", "explain", "--pool", "p", "/fb/ckpt").says("is a directory").prints(
        "mutability +immutable +line 3: /ckpt", "consistency +sequential +default")
    t.fb("set", "--pool", "p", "/said", "mutability=append", "parallelism=exclusive")
    t.fb("rules", "explain", "--pool", "p", "/said").prints("mutability +append +declared for its directory")
    t.fb("set", "--pool", "p", "/said", "parallelism=")
    t.fb("set", "--pool", "p", "/said").prints("^local\nmutability=append\n$")
    t.fb("rules", "explain", "--pool", "p", "/said/new").prints("mutability +append +declared for its directory")
    t.fb("set", "--pool", "p", "/said", "mutability=x", rc=2).says("isn't one of")
    t.fb("set", "--pool", "p", "/ckpt/x", "persistence=process", rc=2).says("is fixed when a file is created")
    t.fb("set", "--pool", "p", "/ckpt/x", "mutability=overwrite")
    t.bash("p", "echo y > /fb/ckpt/x && getfattr --only-values -n user.forebay.controls /fb/ckpt/x").prints(
        "mutability=overwrite")
    t.fb("violations", "--pool", "p").says("no violations")
    t.fb("down", "--pool", "p")


@case(90)
def rules_hold_between_nodes(t):
    """The programs of every node get the same errors; a pool goes on with its rules when daemons die."""
    t.up("p", "--nodes", "3", "--request-timeout", "5", "--rules", rules(t))

    def on(node, script, rc=0):
        return t.command([t.forebay, "exec", "--pool", "p", "--node", str(node), "--", "bash", "-c", script],
                         rc=rc, timeout=60)
    for node in range(3):
        out = on(node, WORK.format(at="/fb", n="n%d" % node))
        t.ok(out.out == WANTED, "on node %d: %s" % (node, out.out))
    on(0, "mkdir /fb/all; cd /fb; for n in 0 1 2; do echo x > ckpt/$n; echo x > $n.log; done")
    # A directory of exclusive files keeps its names.
    t.fb("rules", "explain", "--pool", "p", "/ckpt").prints("distribution +local-all")
    t.fb("rules", "explain", "--pool", "p", "/all").prints("distribution +local ")
    for node in (1, 2):
        t.fb("node", "kill", str(node), "--pool", "p")
        t.fb("node", "restart", str(node), "--pool", "p")
    for node in range(3):
        for n in range(3):
            on(node, "echo y > /fb/ckpt/%d" % n, rc=1).says("Operation not permitted")
            on(node, "echo y > /fb/%d.log" % n, rc=1).says("Operation not permitted")
            on(node, "echo y >> /fb/%d.log && cat /fb/ckpt/%d" % (n, n)).prints("^x$")
    # One node has it open, the others are notified, and a killed process gives it up.
    holder = t.start([t.forebay, "exec", "--pool", "p", "--node", "0", "--", "python3", "-c",
                      "import time; f = open('/fb/ckpt/held', 'w'); f.write('x'); f.flush(); print('open', flush=True);"
                      "time.sleep(60)"])
    holder.stdout.readline()
    for node in (1, 2):
        on(node, "cat /fb/ckpt/held", rc=1).says("Device or resource busy")
    holder.kill()
    holder.wait(10)
    on(1, "for i in $(seq 200); do cat /fb/ckpt/held 2> /dev/null && exit; sleep 0.05; done; exit 1")
    on(2, "echo whole > /fb/ckpt/held && cat /fb/ckpt/held").prints("^whole$")
    on(0, "echo more >> /fb/ckpt/held", rc=1).says("Operation not permitted")
    for node in range(3):
        listed = t.fb("violations", "--pool", "p", "--json").json()
        t.ok(any(v["path"] == "/ckpt/%d" % node for v in listed), "%s" % listed)
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


# Has a file open, or only a mapping of it. Stores as it is commanded.
USER = r"""
import ctypes, os, signal, sys
signal.alarm(100)
path, how = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
fd = os.open(path, os.O_RDONLY if how == "read" else os.O_RDWR)
if how == "map":
    at = libc.mmap(None, 4096, 3, 1, fd, 0)
    assert at != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    os.close(fd)
print(os.getpid(), flush=True)
for line in sys.stdin:
    line = line.strip().encode()
    if how == "map":
        ctypes.memmove(at, line, len(line))
        done = libc.msync(at, 4096, 4) == 0
    else:
        done = os.pwrite(fd, line, 0) == len(line)
    print("stored" if done else "not stored", flush=True)
"""


class User:
    """A process with a file open, or mapped, under `forebay exec` or through a mount."""

    def __init__(self, t, face, path, how):
        self.process = t.start(face[0] + [sys.executable, "-c", USER, face[1] + path, how], stdin=subprocess.PIPE)
        line = self.process.stdout.readline()
        t.ok(line.strip().isdigit(), "%s, %s: %s" % (face, path, line or self.process.stderr.read()))
        self.pid = int(line)

    def store(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip().decode()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)

    def end(self):
        self.process.stdin.close()
        self.process.wait(10)


@case(150)
def what_is_said_holds_for_those_who_have_it_open(t):
    """`exclusive` counts them, on all nodes and through mounts; `append` waits for mappings, and so does lamination."""
    for nodes in (0, 3):
        t.up("p", *(("--nodes", "3", "--request-timeout", "5") if nodes else ()))
        faces = [([t.forebay, "exec", "--pool", "p", *(["--node", str(n)] if nodes else []), "--"], "/fb")
                 for n in range(nodes or 1)]
        t.bash("p", "mkdir /fb/s")
        if nodes:
            t.bash("p", "rmdir /fb/s")
            t.fb("set", "--pool", "p", "/s", "--distribution", "striped", "--chunk-size", "1M")
        with mounted(t, "p") as at:
            users = faces + [([], at)]
            for where in ("/", "/s/"):
                for k, face in enumerate(users):
                    others(t, face, users[(k + 1) % len(users)], users[(k + 2) % len(users)], "%s%d" % (where, k), at)
            t.fb("umount", at)
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")


def others(t, one, two, three, path, mount):
    """`path` is made by one; what the others have of it."""
    def on(face, script, rc=0):
        return t.command([*face[0], "bash", "-c", script.replace("@", face[1] + path)], rc=rc)

    def say(what, rc=0):
        return t.fb("set", "--pool", "p", path, what, rc=rc)

    def said(what, face=one):
        # The kernel reports the end of a process that used a mount at any later time.
        def now():
            r = say(what, rc=(0, 1))
            return r.rc == 0
        wait_until(now, 5 if mount in (one[1], two[1], three[1]) else 0.2, "%s to be said of %s" % (what, path))

    def shown():
        return t.fb("set", "--pool", "p", path).out

    on(one, "head -c 3000000 /dev/zero > @")
    # Two have it open.
    first, second = User(t, two, path, "write"), User(t, three, path, "read")
    say("parallelism=exclusive", rc=1).says("2 processes have it open", r"\b%d\b" % first.pid, r"\b%d\b" % second.pid)
    on(one, "setfattr -n user.forebay.controls -v parallelism=exclusive @", rc=1).says("Device or resource busy")
    t.ok("exclusive" not in shown(), shown())
    on(one, "echo x >> @")
    # One of them is killed; the other one is alone.
    second.kill()
    said("parallelism=exclusive")
    for face in (one, three):
        on(face, "cat @", rc=1).says("Device or resource busy")
        on(face, "stat @ && ls -l @")
    t.ok(first.store("still") == "stored", "who is alone can't write")
    first.kill()

    def is_free():
        return t.command([*three[0], "bash", "-c", "head -c 5 " + three[1] + path], rc=None).out == "still"
    wait_until(is_free, 5, "the file of a killed process to be free")
    say("parallelism=")
    # Mappings without a descriptor.
    mapping = User(t, two, path, "map")
    if two[1] == mount:
        # A file system isn't notified of what is mapped; but the kernel learns that a page can't be
        # written back.
        say("mutability=append")
        t.ok(mapping.store("xxxxx") == "not stored", "a file that only grows was changed by a mapping")
        on(one, "head -c 5 @").prints("^still")
        mapping.kill()
    else:
        say("mutability=append", rc=1).says("1 process maps it for writing", r"\b%d\b" % mapping.pid)
        t.ok("append" not in shown(), shown())
        t.ok(mapping.store("there") == "stored", "it can't be stored to")
        on(one, "head -c 5 @").prints("^there")
        mapping.end()
        said("mutability=append")
        refused = t.command([*two[0], sys.executable, "-c", USER, two[1] + path, "map"], rc=1)
        refused.says("not permitted")
    say("mutability=overwrite")
    mapping = User(t, two, path, "map")
    say("mutability=immutable")
    on(three, "printf first | dd of=@ conv=notrunc status=none")
    t.ok("laminated" not in shown(), "it is laminated while it is mapped")
    t.ok(mapping.store("after") == "stored", "it can't be stored to")
    mapping.end()
    wait_until(lambda: "laminated" in shown(), 5, "%s to be laminated" % path)
    for face in (one, two, three):
        on(face, "echo x >> @", rc=1).says("Operation not permitted")
        on(face, "head -c 5 @").prints("^after")


@case(60)
def impossible_persistence(t):
    """Controls that a pool's media can't keep are refused by rule, command and attribute; files keep theirs."""
    node = '[[rule]]\npath = "/log/**"\npersistence = "node"\n'
    t.up("p", "--rules", rules(t, node, "node.toml"), rc=2).says("line 1", 'persistence = "node" is impossible on this pool: none of its media is files')
    text = '[[rule]]\npath = "/log/**"\npersistence = "durable"\n'
    t.up("p", "--rules", rules(t, text), rc=2).says('persistence = "durable" is impossible on this pool')
    t.up("p", "--nodes", "2", "--rules", rules(t, text), rc=2).says("line 1: persistence")
    t.up("p")
    t.bash("p", "echo x > /fb/f; mkdir /fb/d")
    for path in "/f", "/d":
        t.fb("set", "--pool", "p", path, "persistence=node", rc=2).says("impossible on this pool")
    t.fb("set", "--pool", "p", "/f", "persistence=process", rc=2).says("is fixed when a file is created")
    t.up("q", "--rules", rules(t, text), media=["files:%s:64M" % t.disk])
    t.bash("q", "mkdir /fb/log; echo x > /fb/log/f; sync /fb/log/f")
    t.ok("persistence=durable" in t.fb("set", "--pool", "q", "/log/f").out, "it has no rule")
    t.fb("set", "--pool", "q", "/log/f", "persistence=node")


NODE = """
[[rule]]
path = "/n/**"
persistence = "node"
"""

# Whatever writes: what is small, appended, mapped, reserved, cut, copied; a file that was there before.
WRITES = r"""
cd /fb/n || exit 1
n=$1; mkdir $n; cd $n || exit 1
echo small > small; for i in 1 2 3; do echo $i >> log; done
head -c 5000000 /dev/urandom > large; cp large copy; cmp large copy || exit 1
truncate -s 100 copy; fallocate -l 3M copy; dd if=large of=copy bs=70k seek=9 conv=notrunc status=none
python3 - <<END
import mmap
with open("mapped", "w+b") as f:
    f.truncate(3000000)
    with mmap.mmap(f.fileno(), 0) as m:
        m[1000:1005] = m[2999990:2999995] = b"where"
END
[ $(grep -ao where mapped | wc -l) = 2 ] || exit 1
mv large renamed; cat small log > both; cmp <(cat small log) both
"""


@case(120)
def node_keeps_bytes_out_of_memory(t):
    """Files with persistence=node lie on files media, whichever process writes them how; they use no byte of memory."""
    path = rules(t, NODE, "node.toml")
    source = t.file(os.path.join(t.disk, "source"), 2 << 20, seed=3)

    def used(kind):
        media = t.fb("df", "--pool", "p", "--json").json()["media"]
        return sum(m["used"] for m in media if m["medium"].startswith(kind))
    for nodes in (0, 3):
        among = ("--nodes", str(nodes), "--request-timeout", "5") if nodes else ()
        t.up("p", *among, "--rules", path, media=("memory:32M", "files:%s:64M" % t.disk))
        t.fb("rules", "explain", "--pool", "p", "/n/new").prints("persistence +node +line 2")
        t.bash("p", "mkdir /fb/n")
        places = ["/n"]
        if nodes:
            t.fb("set", "--pool", "p", "/n/striped", "--distribution", "striped")
            places.append("/n/striped")
        for place in places:
            for node in range(nodes or 1):
                at = ("--node", str(node)) if nodes else ()
                script = WRITES.replace("/fb/n", "/fb" + place)
                t.fb("exec", "--pool", "p", *at, "--", "bash", "-c", script, "bash", "w%d" % node, timeout=60)
                t.ok(used("memory") == 0 and used("files") > 0, "%d bytes of memory are used in %s" % (used("memory"), place))
        if not nodes:
            with mounted(t, "p") as at:
                t.command(["bash", "-c", WRITES.replace("/fb/n", at + "/n"), "bash", "mount"], timeout=60)
                t.fb("umount", at)
        t.fb("stage", "in", "--pool", "p", source, "/n/staged")
        t.ok(used("memory") == 0, "%d bytes of memory are used by what was staged in" % used("memory"))
        # The existing bytes are moved when it is declared.
        t.bash("p", "head -c 7000000 /dev/urandom > /fb/before; md5sum < /fb/before > /fb/n/sum")
        t.ok(used("memory") >= 7000000, "it isn't there")
        t.fb("set", "--pool", "p", "/before", "persistence=node")
        t.ok(used("memory") == 0, "%d bytes of memory are used by what was moved" % used("memory"))
        t.bash("p", "md5sum < /fb/before | cmp - /fb/n/sum")
        # Full is full, with memory left.
        full = t.bash("p", "dd if=/dev/zero of=/fb/n/full bs=1M count=200", rc=1)
        full.says("No space left on device", "/fb/n/full: .* refused, its bytes may lie on files media only, which have no room left",
                  'persistence = "node"')
        t.ok(used("memory") == 0, "%d bytes of memory are used instead of files" % used("memory"))
        listed = t.fb("violations", "--pool", "p", "--json").json()
        t.ok(any(v["path"] == "/n/full" and v["control"] == 'persistence = "node"' for v in listed), "%s" % listed)
        if nodes:
            # Some of it lies on other nodes: writing there asks one of them, once.
            before = asked(t)
            t.bash("p", "dd if=/dev/zero of=/fb/n/full bs=8k count=100 seek=$((80 << 7)) conv=notrunc")
            t.ok(100 <= asked(t) - before < 150, "%d requests to other nodes for 100 writes" % (asked(t) - before))
        t.bash("p", "head -c 5000000 /dev/zero > /fb/strict; rm /fb/n/full; echo x > /fb/n/again")
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")


def asked(t):
    """How many requests programs of pool p have asked other nodes."""
    return t.fb("stats", "--pool", "p", "--json").json()["asks"]["timed"]


BURSTY = """
[[rule]]
path = "/out/**"
temporality = "bursty"
"""


@case(90)
def bursts_move_to_files(t):
    """A burst lands in memory and moves to files when it is closed; the next one finds memory again."""
    path = rules(t, BURSTY, "bursty.toml")
    t.fb("up", "--pool", "q", "--media", "memory:32M", "--rules", path, rc=2).says(
        "line 2", "bursty", "it needs memory with files behind it")
    for nodes in ((), ("--nodes", "2")):
        t.up("p", *nodes, "--rules", path, media=("memory:32M", "files:%s:128M" % t.disk))
        for burst in range(4):
            t.bash("p", "mkdir -p /fb/out; head -c 20000000 /dev/urandom > /fb/out/%d; md5sum < /fb/out/%d > /fb/sum%d"
                   % (burst, burst, burst))

            def is_free():
                media = t.fb("df", "--pool", "p", "--json").json()["media"]
                return sum(m["used"] for m in media if m["medium"].startswith("memory")) < 4 << 20
            wait_until(is_free, 20, "burst %d to leave memory" % burst)
        t.bash("p", "for i in 0 1 2 3; do md5sum < /fb/out/$i | cmp - /fb/sum$i || exit 1; done")
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")


PROCESS = """
[[rule]]
path = "/tmp/**"
persistence = "process"
"""

# Makes files in several ways; a thread that ends isn't their maker, and a child isn't that of its parent's.
MAKER = r"""
import os, signal, sys, threading, time
at = sys.argv[1]
def put(name, text="x"):
    with open(os.path.join(at, name), "w") as f:
        f.write(text)
put("tmp/plain")
put("tmp/large", "y" * 3000000)
os.link(at + "/tmp/plain", at + "/keep/linked")
os.rename(at + "/tmp/large", at + "/keep/moved")
thread = threading.Thread(target=put, args=("tmp/by-thread",))
thread.start()
thread.join()
child = os.fork()
if child == 0:
    put("tmp/of-child")
    signal.alarm(80)
    time.sleep(90)
os.execv(sys.executable, [sys.executable, "-c", "import signal, time; signal.alarm(80); print(%d, flush=True); time.sleep(90)" % child])
"""
OWN = ["keep/linked", "keep/moved", "tmp/by-thread", "tmp/plain"]
STAYS = ["keep/pool"]


@case(120)
def files_go_with_their_process(t):
    """With the process that made them, by whatever face, on whatever node; not with its threads and children, not before."""
    path = rules(t, PROCESS, "process.toml")
    t.fb("rules", "check", path).says("1 rule, no error")
    for nodes in (0, 3):
        t.up("p", *(("--nodes", str(nodes), "--request-timeout", "3") if nodes else ()), "--rules", path, media=("memory:200M",))
        if nodes:
            t.fb("set", "--pool", "p", "/tmp", "--distribution", "striped")
        t.bash("p", "mkdir -p /fb/tmp /fb/keep; echo x > /fb/keep/pool")
        t.fb("rules", "explain", "--pool", "p", "/tmp/new").prints("persistence +process +line 2")

        def names():
            return t.bash("p", "cd /fb; find keep tmp -type f | sort").out.split()

        def maker(command, at="/fb"):
            process = t.start(command + ["python3", "-c", MAKER, at])
            return process, int(process.stdout.readline())

        def end(process, child, wait=True):
            wait_until(lambda: "tmp/of-child" in names(), 10, "the child's file")
            time.sleep(2.5)
            t.ok(names() == sorted(OWN + STAYS + ["tmp/of-child"]), "while it lives: %s" % names())
            os.kill(process.pid, signal.SIGKILL)
            if not wait:
                os.kill(child, signal.SIGKILL)
                return
            wait_until(lambda: names() == sorted(STAYS + ["tmp/of-child"]), 20, "the files of the killed process to go")
            os.kill(child, signal.SIGTERM)
            wait_until(lambda: names() == STAYS, 20, "the file of its child to go")

        for node in range(nodes or 1):
            at = ["--node", str(node)] if nodes else []
            end(*maker([t.forebay, "exec", "--pool", "p", *at, "--"]))
        with mounted(t, "p") as at:
            end(*maker([], at))
            # It ends by itself, and is seen by the mount as well.
            t.command(["bash", "-c", "echo x > %s/tmp/a; cat %s/tmp/a" % (at, at)]).prints("^x$")
            wait_until(lambda: not os.path.exists(at + "/tmp/a"), 20, "the file of a shell to go")
            t.fb("umount", at)
        if nodes:
            # The daemons of its node and of others are killed, and come again.
            made = maker([t.forebay, "exec", "--pool", "p", "--node", "1", "--"])
            for node in ("1", "2"):
                t.fb("node", "kill", node, "--pool", "p")
                t.fb("node", "restart", node, "--pool", "p")
            end(*made)
            made = maker([t.forebay, "exec", "--pool", "p", "--node", "1", "--"])
            end(*made, wait=False)
            for node in ("1", "2"):
                t.fb("node", "kill", node, "--pool", "p")
                t.fb("node", "restart", node, "--pool", "p")
            wait_until(lambda: names() == STAYS, 30, "all files to go")
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")


def resident(path):
    """How many bytes of a file the kernel keeps in memory."""
    with open(path, "r+b") as f:
        mapped = mmap.mmap(f.fileno(), 0)
    first = ctypes.c_char.from_buffer(mapped)
    pages = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), pages) != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    del first
    mapped.close()
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


@case(60)
def what_is_read_once_leaves_the_page_cache(t):
    with open("/proc/self/mountinfo") as f:
        mounts = [line.split() for line in f]
    at = max((m for m in mounts if os.path.realpath(t.disk).startswith(m[4])), key=lambda m: len(m[4]))
    if at[at.index("-") + 1] in ("tmpfs", "ramfs"):
        raise Skipped("the disk of the tests is memory")
    text = '[[rule]]\npath = "/once/**"\ntemporality = "once"\n'
    t.up("p", "--rules", rules(t, text, "once.toml"), media=["files:%s:256M" % t.disk])
    t.bash("p", "mkdir /fb/once; for f in often once/f; do head -c 60000000 /dev/urandom > /fb/$f; done;"
                "md5sum /fb/often | cut -c-32 > /fb/sum; cp /fb/once/f /fb/copied; sync -f /fb; sync /fb/once/f /fb/often")
    segments = [os.path.join(where, "segment") for where, _, names in os.walk(t.disk) if "segment" in names]
    t.ok(len(segments) == 1, "%s" % segments)
    os.sync()
    # All of them are read, so that all are there.
    t.bash("p", "cat /fb/often /fb/copied > /dev/null")
    before = resident(segments[0])
    t.bash("p", "cmp /fb/copied /fb/once/f")
    left = resident(segments[0])
    t.ok(left < 150 << 20 and left > 100 << 20, "%d MiB of %d MiB are kept" % (left >> 20, before >> 20))
    # And once more, from the disk.
    t.bash("p", "cmp /fb/copied /fb/once/f; md5sum < /fb/often | cut -c-32 | cmp - /fb/sum")
    t.ok(abs(resident(segments[0]) - left) < 8 << 20, "%d MiB are kept now, %d before" % (resident(segments[0]) >> 20, left >> 20))
    t.fb("down", "--pool", "p")


# Damage as a shell sees it, wherever the pool is seen.
DAMAGED = r"""
cd {at} || exit 1
cat safe/f > /dev/null 2>&1; echo "cat $?"
head -c 4096 safe/f | cmp -n 4096 - {original} && echo "the first block"
cat plain > /dev/null; echo "plain $?"
{{ dd if=/dev/zero of=safe/f bs=10 count=1 seek=800 conv=notrunc status=none; }} 2> /dev/null; echo "dd $?"
cp safe/f copied 2> /dev/null; echo "cp $?"
"""


@case(60)
def damage_at_rest_is_noticed(t):
    # A bit of the bytes of a file turns over, in memory and on disk.
    original = t.file(os.path.join(t.disk, "original"), 3 << 20)
    with open(original, "rb") as f:
        content = f.read()
    for media in ("memory:32M", "files:%s:32M" % t.disk):
        t.up("p", "--rules", rules(t, '[[rule]]\npath = "/safe/**"\nintegrity = "checksum"\n'), media=(media,))
        t.bash("p", "mkdir /fb/safe; cp %s /fb/safe/f; cp %s /fb/plain; cmp /fb/safe/f %s; sync /fb/safe/f" % ((original,) * 3))
        t.fb("fsck", "--pool", "p")
        damaged = 0
        for top in (t.home, t.disk):
            for where, _, names in os.walk(top):
                if "segment" not in names:
                    continue
                with open(os.path.join(where, "segment"), "r+b") as f:
                    seg = mmap.mmap(f.fileno(), 0)
                    at = seg.find(content[8192:8192 + 4096])
                    while at >= 0:
                        seg[at + 5] ^= 1
                        damaged += 1
                        at = seg.find(content[8192:8192 + 4096], at)
                    seg.close()
        t.ok(damaged == 2, "%d copies found in the segments" % damaged)
        wanted = "cat 1\nthe first block\nplain 0\ndd 1\ncp 1\n"
        inside = t.bash("p", DAMAGED.format(at="/fb", original=original))
        t.ok(inside.out == wanted, "under exec, %s: %s" % (media, inside.told()))
        t.bash("p", "cat /fb/safe/f > /dev/null", rc=1).says(
            "/fb/safe/f: read at [0-9]+ refused, its bytes are not what was written, by their checksums .integrity = .checksum")
        t.fb("fsck", "--pool", "p", rc=4).prints("/safe/f .*not what was written")
        t.fb("stage", "out", "--pool", "p", "/safe", os.path.join(t.disk, "out"), rc=120).says("safe/f")
        t.ok(not os.path.exists(os.path.join(t.disk, "out", "f")), "a damaged file was staged out")
        t.fb("violations", "--pool", "p").prints("/safe/f")
        with mounted(t, "p") as at:
            seen = t.command(["bash", "-c", DAMAGED.format(at=at, original=original)])
            t.ok(seen.out == wanted, "through a mount, %s: %s" % (media, seen.told()))
        # Written again, all is well.
        t.bash("p", "cp %s /fb/safe/f; cmp /fb/safe/f %s" % (original, original))
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p")


@case(60)
def damage_of_parts_is_noticed(t):
    original = t.file(os.path.join(t.disk, "original"), 6 << 20)
    with open(original, "rb") as f:
        content = f.read()
    t.up("p", "--nodes", "2", "--rules", rules(t, '[[rule]]\npath = "/safe/**"\nintegrity = "checksum"\n'))
    t.bash("p", "mkdir /fb/safe")
    t.fb("set", "--pool", "p", "/safe", "--distribution", "striped")
    t.bash("p", "cp %s /fb/safe/f; cmp /fb/safe/f %s; sync /fb/safe/f" % (original, original))
    t.fb("fsck", "--pool", "p")
    found = 0
    for where, _, names in os.walk(t.home):
        if "segment" in names:
            with open(os.path.join(where, "segment"), "r+b") as f:
                seg = mmap.mmap(f.fileno(), 0)
                for mib in range(6):
                    at = seg.find(content[mib << 20:(mib << 20) + 4096])
                    if at >= 0:
                        seg[at + 9] ^= 1
                        found += 1
                seg.close()
    t.ok(found == 6, "%d chunks found" % found)
    for mib in range(6):
        t.bash("p", "dd if=/fb/safe/f of=/dev/null bs=4096 skip=%d count=1" % (mib * 256), rc=1).says("not what was written")
        t.bash("p", "dd if=/fb/safe/f of=/dev/null bs=4096 skip=%d count=1" % (mib * 256 + 1))
    t.fb("fsck", "--pool", "p", rc=4)
    t.bash("p", "rm /fb/safe/f")
    # Parts go a moment later.
    wait_until(lambda: t.fb("fsck", "--pool", "p", rc=None).rc == 0, 10, "a clean pool")
