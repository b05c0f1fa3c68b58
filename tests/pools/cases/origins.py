"""Origins: a slow store behind a pool, in one namespace with it."""
import gzip
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import tempfile
import time

from cases.mounts import mounted
from harness import Failed, Skipped, case, kill, wait_until

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def tree(top):
    """Path -> kind, mode, links, content of everything below a directory."""
    found = {}
    for where, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(where, name)
            st = os.lstat(path)
            below = os.path.relpath(path, top)
            if os.path.islink(path):
                found[below] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[below] = ("directory", st.st_mode)
            else:
                found[below] = ("file", st.st_mode, st.st_nlink, digest(path))
    return found


def an_origin(t, name="origin"):
    """A directory with a few files, directories and links."""
    top = os.path.join(t.disk, name)
    os.makedirs(os.path.join(top, "mesh", "deep"))
    os.mkdir(os.path.join(top, "out"))
    t.file(os.path.join(top, "input"), 3000, 1)
    t.file(os.path.join(top, "mesh", "large"), 40 << 20, 2)
    t.file(os.path.join(top, "mesh", "deep", "small"), 10, 3)
    os.chmod(os.path.join(top, "input"), 0o640)
    os.symlink("input", os.path.join(top, "link"))
    return top


def up(t, top, *options, media=("memory:256M",), **more):
    t.fb("up", "--pool", "p", *(word for m in media for word in ("--media", m)), "--origin", top, *options, **more)


def status(t):
    return json.loads(t.fb("origin", "status", "--json", "--pool", "p").out)


@case(60)
def origin_under_its_own_path(t):
    top = an_origin(t)
    before = tree(top)
    up(t, top)
    # A file costs no room before it is used.
    t.bash("p", "ls -lR %s; stat -c %%b %s/mesh/large" % (top, top)).prints("^total", "large$", "^81920$")
    t.ok(status(t)["fetched_bytes"] == 0 and t.used("p") < 1 << 20, "a listing has brought files in")
    t.bash("p", "cd %s; sha256sum input mesh/large mesh/deep/small link" % top).prints(
        before["input"][3], before["mesh/large"][3], before["mesh/deep/small"][3])
    s = status(t)
    t.ok(s["fetched_files"] == 3 and s["released_files"] == 0 and s["dirty_files"] == 0, s)
    t.bash("p", "cd %s; cat input mesh/large > /dev/null" % top)
    t.ok(status(t)["fetched_files"] == 3, "a second reading has brought them in again")
    # All kinds of changes, and then the same on the plain directory: nothing differs.
    copy = os.path.join(t.disk, "copy")
    shutil.copytree(top, copy, symlinks=True)
    changes = """cd "$1"; echo new > out/new; mkdir -p out/a/b; seq 1000 > out/a/b/list; echo more >> input
mv mesh/deep/small mesh/renamed; rmdir mesh/deep; ln out/new out/linked; ln -sf out/new link; chmod 600 mesh/large
truncate -s 1000 mesh/large; echo part > out/.tmp; mv out/.tmp input; mkdir gone; rmdir gone; cp -p out/new out/copied
for i in $(seq 50); do echo $i > out/a/file-$i; done; rm out/a/file-1*; mv out/a out/moved; setfattr -n user.k -v v out/new"""
    t.bash("p", changes, top)
    t.command(["bash", "-c", changes, "-", copy])
    t.fb("origin", "sync", "--pool", "p").says("all changes are at the origin")
    t.same(tree(copy), tree(top), "the origin")
    t.ok(os.getxattr(os.path.join(top, "out", "new"), "user.k") == b"v", "an attribute is lost")
    t.bash("p", "cd %s; find . | sort" % top).prints("^./out/moved/b/list$", "^./out/linked$")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")
    t.same(tree(copy), tree(top), "the origin after the end")


@case(60)
def origin_below_a_directory_and_through_a_mount(t):
    top = an_origin(t)
    t.fb("up", "--pool", "p", "--media", "memory:256M", "--origin", top + "=/data")
    t.bash("p", "echo beside > /fb/own; cat /fb/data/mesh/deep/small > /fb/copied; ls /fb").prints("^data$", "^own$")
    with mounted(t, "p") as at:
        t.ok(digest(os.path.join(at, "data", "mesh", "large")) == digest(os.path.join(top, "mesh", "large")),
             "the mount shows another content")
        t.ok(sorted(os.listdir(os.path.join(at, "data"))) == ["input", "link", "mesh", "out"], "another listing")
        with open(os.path.join(at, "data", "out", "by-mount"), "w") as f:
            f.write("through the kernel")
        os.rename(os.path.join(at, "data", "input"), os.path.join(at, "data", "renamed"))
        os.unlink(os.path.join(at, "data", "link"))
    t.fb("origin", "sync", "--pool", "p")
    t.ok(open(os.path.join(top, "out", "by-mount")).read() == "through the kernel", "the origin hasn't got it")
    t.ok(sorted(os.listdir(top)) == ["mesh", "out", "renamed"], os.listdir(top))
    t.ok(not os.path.exists(os.path.join(top, "own")), "a file beside the origin was written to it")
    t.fb("down", "--pool", "p")


@case(60)
def origin_reached_by_links_and_working_directories(t):
    """The kernel has the same directory: no path may lead there past the pool."""
    top = an_origin(t)
    os.symlink(top, os.path.join(t.disk, "to"))
    os.symlink(os.path.join(top, "mesh", "deep", "small"), os.path.join(t.disk, "small"))
    os.symlink(os.path.join(top, "out", "made"), os.path.join(t.disk, "dangling"))
    up(t, top, "--origin-lag", "1000")
    t.bash("p", "cd %s; echo changed > mesh/deep/small; rm input" % top)
    # Each of these sees what the pool has, and makes nothing at the origin but removals.
    for script, cwd in (("cat to/mesh/deep/small small", t.disk), ("cat mesh/deep/small ./mesh/../mesh/deep/small", top),
                        ("cat deep/small ../mesh/deep/small", top + "/mesh"), ("cd to/mesh; cat deep/small; cd deep; cat small", t.disk),
                        ("cd mesh/deep && cd .. && cat deep/small $PWD/deep/small", top)):
        got = t.bash("p", script, cwd=cwd).out
        t.ok(got == "changed\n" * 2, "%s in %s: %r" % (script, cwd, got))
    t.bash("p", "cat to/input", cwd=t.disk, rc=1).says("No such file")
    t.bash("p", "pwd; echo 1 > out/one; mkdir out/d; cd out; echo 2 > d/two", cwd=top).prints("^%s$" % top)
    t.bash("p", "echo 3 > to/out/three; echo 4 > dangling; mv to/out/d to/out/e; ln to/out/one to/out/five", cwd=t.disk)
    t.bash("p", "cd %s/out; cat one e/two three made five" % top).prints("^1$", "^2$", "^3$", "^4$")
    t.ok(os.listdir(os.path.join(top, "out")) == [], "something went past the pool: %s" % os.listdir(top + "/out"))
    t.bash("p", "echo outside > plain; cat plain; rm plain", cwd=t.disk).prints("^outside$")
    t.fb("down", "--pool", "p")
    t.ok(sorted(os.listdir(os.path.join(top, "out"))) == ["e", "five", "made", "one", "three"], "not all was written back")


@case(60)
def origin_changed_by_others(t):
    top = an_origin(t)
    up(t, top, "--origin-lag", "0.2")
    read = lambda name: t.bash("p", "cat %s/%s" % (top, name), rc=None).out  # noqa: E731 (short)
    t.bash("p", "cd %s; cat input mesh/deep/small > /dev/null; ls out" % top)
    # What is new, changed and gone outside is so inside, after a look at it.
    with open(os.path.join(top, "input"), "w") as f:
        f.write("by others\n")
    with open(os.path.join(top, "out", "theirs"), "w") as f:
        f.write("new\n")
    os.unlink(os.path.join(top, "mesh", "deep", "small"))
    wait_until(lambda: read("input") == "by others\n" and read("out/theirs") == "new\n"
               and read("mesh/deep/small") == "", 30, "what others changed")
    # Both have changed it: no byte is lost, and both are told.
    t.bash("p", "echo by the pool > %s/input; echo by the pool > %s/out/theirs" % (top, top))
    with open(os.path.join(top, "out", "theirs"), "w") as f:
        f.write("by others at the same time\n")
    wait_until(lambda: len(status(t)["conflicts"]) == 1, 30, "the conflict")
    conflict = status(t)["conflicts"][0]
    t.ok(conflict["path"].endswith("/out/theirs"), conflict)
    beside = [n for n in os.listdir(os.path.join(top, "out")) if "forebay-conflict" in n]
    t.ok(len(beside) == 1 and open(os.path.join(top, "out", beside[0])).read() == "by the pool\n", beside)
    t.ok(open(os.path.join(top, "out", "theirs")).read() == "by others at the same time\n", "theirs is lost")
    t.ok(open(os.path.join(top, "input")).read() == "by the pool\n", "the other file wasn't written back")
    wait_until(lambda: read("out/theirs") == "by others at the same time\n", 30, "their version in the pool")
    # A directory into which others have put something can't be removed, and shows it.
    t.bash("p", "mkdir %s/dir; touch %s/dir/own" % (top, top))
    t.fb("origin", "sync", "--pool", "p")
    open(os.path.join(top, "dir", "other"), "w").close()
    t.bash("p", "rm -r %s/dir" % top, rc=1).says("it has other at the origin")
    t.bash("p", "ls %s/dir" % top).prints("^other$")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def origin_changed_by_programs_of_this_host(t):
    """The kernel tells: each change shows at once, not after the next look at everything."""
    top = an_origin(t)
    up(t, top)
    path = lambda name: os.path.join(top, name)  # noqa: E731 (short)

    def shows(what, change, script, expected):
        change()
        began = time.monotonic()
        wait_until(lambda: t.bash("p", script, top, rc=None).out == expected, 20, what)
        took = time.monotonic() - began
        t.ok(took < 2, "%s showed after %.1f s" % (what, took))

    def write(name, text):
        with open(path(name), "w") as f:
            f.write(text)

    t.bash("p", "cd $1; cat input mesh/deep/small > /dev/null; ls out", top)
    for i in range(4):
        shows("a changed file", lambda: write("input", "version %d" % i), "cat $1/input", "version %d" % i)
        shows("a new file", lambda: write("out/%d" % i, "x" * i), "stat -c %%s $1/out/%d" % i, "%d\n" % i)
        shows("a renamed file", lambda: os.rename(path("out/%d" % i), path("out/to")), "ls $1/out", "to\n")
        shows("a file that is gone", lambda: os.unlink(path("out/to")), "ls $1/out", "")
        shows("a new directory", lambda: os.makedirs(path("new/a")), "ls $1/new", "a\n")
        shows("what is made in it", lambda: write("new/a/b", "c"), "cat $1/new/a/b", "c")
        shows("a directory that is gone", lambda: shutil.rmtree(path("new")), "ls $1", "input\nlink\nmesh\nout\n")
        shows("a directory in use", lambda: shutil.rmtree(path("mesh/deep")) or os.mkdir(path("mesh/deep")) or
              write("mesh/deep/small", "s"), "cat $1/mesh/deep/small", "s")
        shows("another mode", lambda: os.chmod(path("input"), 0o600 + i), "stat -c %a $1/input", "%o\n" % (0o600 + i))
    t.ok(status(t)["watched_dirs"] >= 3, status(t))
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def origin_of_a_user_who_may_not_change_all(t):
    """An open that is refused cuts nothing, here or at the origin."""
    if os.getuid() != 0:
        raise Skipped("needs root, to be somebody else")
    home = tempfile.mkdtemp(prefix="fb-user-", dir="/var/tmp")
    try:
        top = os.path.join(home, "origin")
        os.mkdir(top)
        for name in ("kept", "own"):
            with open(os.path.join(top, name), "w") as f:
                f.write("precious")
        os.chmod(os.path.join(top, "kept"), 0o444)
        for path in (home, top, os.path.join(top, "kept"), os.path.join(top, "own")):
            os.chown(path, 65534, 65534)

        def other(*words, rc=0):
            env = {"FOREBAY_HOME": os.path.join(home, "h")}
            return t.command(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", t.forebay, *words], env=env,
                             rc=rc, cwd="/")
        other("up", "--pool", "u", "--media", "memory:32M", "--origin", top)
        other("exec", "--pool", "u", "--", "bash", "-c", "echo new > %s/kept" % top, rc=1).says("Permission denied")
        other("exec", "--pool", "u", "--", "bash", "-c", "echo new > %s/own; cat %s/kept" % (top, top)).prints("^precious$")
        other("down", "--pool", "u")
        t.ok(open(os.path.join(top, "kept")).read() == "precious", "a refused open has cut the origin's file")
        t.ok(open(os.path.join(top, "own")).read() == "new\n", "a change is lost")
    finally:
        shutil.rmtree(home)


@case(60)
def origin_with_modes_by_path(t):
    top = an_origin(t)
    up(t, top, "--origin-mode", "read-only", "--cache", "out/**:write-back", "--cache", "out/tmp/**:scratch")
    for change in ("echo x > input", "echo x > new", "rm input", "mkdir d", "mv input x", "truncate -s 1 mesh/large",
                   "ln input y", "ln -s input z", "rmdir mesh/deep"):
        t.bash("p", "cd %s; %s" % (top, change), rc=1).says("Read-only file system")
    t.bash("p", "cd %s; cat input > /dev/null; mkdir out/tmp; echo kept > out/kept; echo not > out/tmp/not" % top)
    t.fb("origin", "sync", "--pool", "p")
    t.ok(os.listdir(os.path.join(top, "out")) == ["kept"] or not os.listdir(os.path.join(top, "out", "tmp")),
         "a scratch file was written back")
    t.fb("up", "--pool", "q", "--origin", top, "--origin-mode", "sometimes", rc=2).says("write-back")
    t.fb("up", "--pool", "q", "--origin", top + "/input", rc=2).says("not a directory")
    t.fb("up", "--pool", "q", "--origin", "ftp://host/x", rc=2).says("directory")
    t.fb("up", "--pool", "q", "--origin", top, "--cache", "out/**:never", rc=2).says("there is no mode 'never'")
    t.fb("origin", "status", "--pool", "q", rc=None)
    t.up("q")
    t.fb("origin", "sync", "--pool", "q", rc=1).says("has no origin", "--origin DIR")
    t.fb("down", "--pool", "q")
    t.fb("down", "--pool", "p")


@case(90)
def origin_larger_than_the_pool(t):
    top = os.path.join(t.disk, "origin")
    os.mkdir(top)
    for i in range(10):
        t.file(os.path.join(top, "f%d" % i), 16 << 20, i)
    sums = {n: digest(os.path.join(top, n)) for n in os.listdir(top)}
    up(t, top, media=("memory:64M",))
    # Ten files of 16 MiB in a pool of 64: each is brought in, others go.
    for _ in range(2):
        out = t.bash("p", "cd %s; for i in 3 1 4 0 5 9 2 6 8 7; do sha256sum f$i; done" % top, timeout=40).out
        got = {line.split()[1]: line.split()[0] for line in out.splitlines()}
        t.same(sums, got, "the files")
    s = status(t)
    t.ok(s["evicted_files"] >= 12 and s["dirty_files"] == 0, s)
    # One that is open stays.
    t.python("p", """import os, subprocess
f = open(%r, "rb"); first = f.read(100)
for n in range(1, 10): open(%r + "/f%%d" %% n, "rb").read()
f.seek(0); assert f.read(100) == first; f.seek(8 << 20); assert any(f.read(1000))""" % (top + "/f0", top), timeout=40)
    t.fb("origin", "evict", "--pool", "p").says("evicted")
    s = status(t)
    t.ok(s["archived_files"] == 0 and s["released_files"] == 10, s)
    t.fb("origin", "prefetch", top + "/f3", "--pool", "p").says("brought in 1 file")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")
    t.same(sums, {n: digest(os.path.join(top, n)) for n in os.listdir(top)}, "the origin")


@case(60)
def origin_that_is_full_or_gone(t):
    if os.getuid() != 0:
        raise Skipped("only root can mount a small file system")
    top = os.path.join(t.disk, "small")
    os.mkdir(top)
    t.command(["mount", "-t", "tmpfs", "-o", "size=4m", "none", top])
    try:
        up(t, top, "--origin-lag", "0.2")
        t.bash("p", "head -c 8M /dev/urandom > %s/large; echo fits > %s/fits" % (top, top))
        t.fb("origin", "sync", "--pool", "p", rc=120).says("small/large", "no space|No space", "forebay origin sync")
        # Nothing is removed that the origin hasn't got.
        t.fb("down", "--pool", "p", rc=120).says("nothing was removed", "down --force")
        wait_until(lambda: os.path.exists(os.path.join(top, "fits")), 10, "the file that fits")
        t.ok(sorted(os.listdir(top)) == ["fits"], "something half done is at the origin: %s" % os.listdir(top))
        s = status(t)
        t.ok(s["dirty_files"] == 1 and len(s["problems"]) == 1, s)
        t.command(["mount", "-o", "remount,size=64m", top])
        t.fb("origin", "sync", "--pool", "p")
        t.ok(not status(t)["problems"], "a problem that is solved is told still")
        large = t.bash("p", "sha256sum %s/large" % top).out.split()[0]
        t.ok(digest(os.path.join(top, "large")) == large, "the origin has something else")
        # Read-only from here on: the same message, and the data stay.
        t.bash("p", "echo later > %s/later" % top)
        t.command(["mount", "-o", "remount,ro", top])
        t.bash("p", "rm %s/fits" % top, rc=1).says("[Rr]ead-only file system")
        t.command(["mount", "-o", "remount,rw", top])
        t.fb("down", "--pool", "p")
        t.ok(open(os.path.join(top, "later")).read() == "later\n", "a file is lost")
    finally:
        subprocess.run(["umount", "-l", top], timeout=20)


@case(60)
def origin_of_a_run(t):
    top = an_origin(t)
    ran = t.fb("run", "--media", "memory:128M", "--origin", top, "--", "bash", "-c",
               "cd %s; sha256sum mesh/large > out/sum; exit 3" % top, rc=3)
    ran.says("all changes are at the origin")
    t.ok(open(os.path.join(top, "out", "sum")).read().split()[0] == digest(os.path.join(top, "mesh", "large")),
         "the result is wrong")


@case(240)
def origin_of_a_genome_pipeline(t):
    """The demo's pipeline, unchanged, in the origin's own directory: the same results as without a pool."""
    examples = "/usr/share/doc/bowtie2/examples"
    if not shutil.which("bowtie2") or not os.path.isdir(examples):
        raise Skipped("bowtie2 isn't installed (tests/install-packages)")
    pipeline = os.path.join(ROOT, "examples", "bowtie2", "pipeline.sh")
    for name in ("plain", "origin"):
        top = os.path.join(t.disk, name)
        os.makedirs(os.path.join(top, "ref"))
        os.mkdir(os.path.join(top, "reads"))
        shutil.copy(os.path.join(examples, "reference", "lambda_virus.fa.gz"), os.path.join(top, "ref"))
        # A part of the reads: aligning all of them takes minutes of a busy machine.
        for reads, count in (("reads_1", 1000), ("reads_2", 1000), ("longreads", 150)):
            name = os.path.join("reads", reads + ".fq.gz")
            with gzip.open(os.path.join(examples, name)) as whole, gzip.open(os.path.join(top, name), "wb") as some:
                some.writelines(itertools.islice(whole, 4 * count))
    env = {"LC_ALL": "C"}
    plain, origin = (os.path.join(t.disk, name) for name in ("plain", "origin"))
    t.command([pipeline], cwd=plain, timeout=110, env=env)
    t.fb("run", "--media", "memory:512M", "--origin", origin, "--report", os.path.join(t.disk, "page.html"), "--", pipeline,
         cwd=origin, timeout=110, env=env).says("all changes are at the origin: ", "100.0% of the operations")
    with open(os.path.join(t.disk, "page.html")) as page:
        t.ok("Load of the origin" in page.read(), "the report doesn't show what the origin was spared")
    t.same(tree(os.path.join(plain, "results")), tree(os.path.join(origin, "results")), "the results")


@case(120)
def origin_of_a_pool_whose_processes_are_killed(t):
    """Programs and the service are killed at random; what was acknowledged is at the origin at the end."""
    seed = int(os.environ.get("FOREBAY_SEED", random.getrandbits(32)))
    draw = random.Random(seed)
    print("seed %d" % seed)
    top = an_origin(t)
    up(t, top, "--origin-lag", "0.1")
    worker = """import os, sys
top, me, log = sys.argv[1:]
log = open(log, "a")
n = 0
os.makedirs("%s/out/%s" % (top, me), exist_ok=True)
while True:
    name = "%s/out/%s/f%d" % (top, me, n % 40)
    with open(name + ".tmp", "w") as f: f.write("%s %d\\n" % (me, n) * (1 + n % 300))
    os.rename(name + ".tmp", name)
    # Acknowledged from here on: this version, or a later one.
    log.write("%s %d\\n" % (os.path.basename(name), n)); log.flush()
    if n % 7 == 3: open(top + "/mesh/large", "rb").read(1 << 20)
    n += 1
"""
    deaths = 0
    until = time.monotonic() + float(os.environ.get("FOREBAY_CHECK_SECONDS", 12))
    workers, logs, count = [], [], 0
    while time.monotonic() < until:
        while len(workers) < 3:
            log = os.path.join(t.disk, "log%d" % count)
            workers.append(t.start_python("p", worker, top, "w%d" % count, log))
            logs.append((log, "w%d" % count))
            count += 1
        time.sleep(draw.uniform(0.1, 0.8))
        if draw.random() < 0.5:
            victim = workers.pop(draw.randrange(len(workers)))
            victim.kill()
            victim.wait()
        else:
            kill(t.keeper("p"))
            time.sleep(draw.uniform(0, 0.3))
            t.fb("up", "--reopen", "--pool", "p")
        if draw.random() < 0.3:
            t.fb("origin", "evict", "--pool", "p")
        deaths += 1
    for victim in workers:
        victim.kill()
        victim.wait()
    t.fb("origin", "sync", "--pool", "p", timeout=60)
    checked = 0
    for log, me in logs:
        last = {}
        for line in open(log).read().splitlines() if os.path.exists(log) else []:
            name, n = line.split()
            last[name] = int(n)
        for name, n in last.items():
            text = open(os.path.join(top, "out", me, name)).read().splitlines()
            t.ok(len(set(text)) == 1, "%s of %s is half of two versions" % (name, me))
            version = int(text[0].split()[1])
            if version < n or len(text) != 1 + version % 300:
                inside = t.bash("p", "head -1 %s/out/%s/%s" % (top, me, name), rc=None).out
                raise Failed("%s of %s: version %d with %d lines, acknowledged was %d; the pool has %s" % (
                    name, me, version, len(text), n, inside))
            checked += 1
    t.ok(checked > 20, "only %d files were written" % checked)
    odd = [n for _, _, files in os.walk(top) for n in files if "forebay" in n]
    t.ok(not odd, "left at the origin: %s" % odd)
    # A process that was killed in the midst of a rename has changed the origin only: one look later.
    def is_same():
        try:
            t.same(t.walk(top), t.walk(top, "p"), "the pool and its origin")
        except Failed as e:
            last[:] = [e]
            return False
        return True
    last = []
    try:
        wait_until(is_same, 30, "")
    except Failed:
        raise last[0] if last else Failed("the pool and its origin can't be compared")
    t.fb("fsck", "--pool", "p")
    # A pool whose keeper is dead may have what the origin hasn't: it stays.
    t.bash("p", "echo last > %s/last" % top)
    kill(t.keeper("p"))
    wait_until(lambda: t.state("p") == "stale", 10, "the keeper's death")
    t.fb("pools", "--clean").says("p.*stays.*up --reopen")
    t.fb("up", "--reopen", "--pool", "p")
    t.fb("down", "--pool", "p")
    t.ok(open(os.path.join(top, "last")).read() == "last\n", "the last change is lost")
    print("%d deaths, %d files" % (deaths, checked))


@case(60)
def origin_gets_a_change_right_after_a_file_came_in(t):
    """The clock of files stands still for milliseconds; a change in the same tick is one all the same."""
    for nodes in ((), ("--nodes", "2")):
        top = os.path.join(t.disk, "origin%d" % len(nodes))
        os.mkdir(top)
        for n in range(200):
            t.file(os.path.join(top, "f%d" % n), 5, n)
        up(t, top, *nodes, "--origin-lag", "60", media=("memory:64M",))
        t.python("p", """import os, sys
for n in range(200):
    name = "%s/f%d" % (sys.argv[1], n)
    fd = os.open(name, os.O_WRONLY | os.O_APPEND)
    if n % 3 == 0: os.write(fd, b"more")
    elif n % 3 == 1: os.fchmod(fd, 0o600)
    else: os.ftruncate(fd, 2)
    os.close(fd)
""", top)
        t.fb("origin", "sync", "--pool", "p", timeout=60)
        for n in range(200):
            st = os.stat(os.path.join(top, "f%d" % n))
            t.ok((n % 3 == 0) == (st.st_size == 9) and (n % 3 == 1) == (st.st_mode & 0o777 == 0o600)
                 and (n % 3 == 2) == (st.st_size == 2), "f%d hasn't got its change: %s" % (n, st))
        t.fb("down", "--pool", "p")


# Prints path, kind, and the first path of the same file, of all below a directory.
GROUPS = """import os, sys
first, lines = {}, []
for where, dirs, files in os.walk(sys.argv[1]):
    for name in sorted(dirs + files):
        path = os.path.join(where, name)
        st = os.lstat(path)
        lines.append((os.path.relpath(path, sys.argv[1]), st))
for path, st in sorted(lines, key=lambda l: l[0]):
    top = first.setdefault(st.st_ino, path)
    print(path, oct(st.st_mode >> 12), top if st.st_mode >> 12 != 4 else "", st.st_size if st.st_mode >> 12 == 8 else "")
"""

# Makes, links, renames, changes and removes names in three directories, some of them new ones.
NAMES = """import errno, os, random, sys, time
top, me, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
draw = random.Random(seed)
until = time.monotonic() + seconds
def name():
    return "%s/%s/%s-%d" % (top, draw.choice(["mesh", "out", "new", "new/below"]), me, draw.randrange(12))
done = 0
while time.monotonic() < until:
    one, other = name(), name()
    try:
        kind = draw.randrange(9)
        if kind == 0: os.makedirs(os.path.dirname(one), exist_ok=True)
        elif kind in (1, 2): open(one, "w").write(me * draw.randrange(1, 2000))
        elif kind in (3, 4): os.link(one, other)
        elif kind == 5: os.rename(one, other)
        elif kind == 6: os.unlink(one)
        elif kind == 7: open(one, "a").write("more")
        else: os.rename(top + "/new", top + "/other"); os.rename(top + "/other", top + "/new")
        done += 1
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ENOTEMPTY): raise
print(done)
"""


def names_change(t, top, wheres):
    """Processes change names, one at each of `wheres`; afterwards the origin has the same ones, and the same files."""
    seed = int(os.environ.get("FOREBAY_SEED", random.getrandbits(16)))
    print("seed %d" % seed)
    seconds = os.environ.get("FOREBAY_CHECK_SECONDS", "6")
    running = [t.start([t.forebay, "exec", "--pool", "p", *where, "--", "python3", "-c", NAMES, top, "w%d" % i,
                        str(seed + i), seconds], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for i, where in enumerate(wheres)]
    done = [one.communicate(timeout=float(seconds) + 60)[0] for one in running]
    t.ok(all(one.returncode == 0 for one in running), "a process failed: %s" % done)
    t.ok(all(int(d) > 20 for d in done), "hardly anything was done: %s" % done)
    t.fb("origin", "sync", "--pool", "p", timeout=60)
    inside = [t.forebay, "exec", "--pool", "p", *wheres[0], "--"]
    in_pool, at_origin = (
        dict(line.split(" ", 1) for line in t.command([*via, "python3", "-c", GROUPS, top], timeout=60).out.splitlines())
        for via in (inside, []))
    t.same(in_pool, at_origin, "the origin")


@case(90)
def origin_with_many_names_that_change(t):
    top = an_origin(t)
    up(t, top, "--origin-lag", "0.05")
    names_change(t, top, [()] * 3)
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(120)
def origin_of_a_pool_of_several_nodes(t):
    top = an_origin(t)
    before = tree(top)
    copy = os.path.join(t.disk, "copy")
    shutil.copytree(top, copy, symlinks=True)
    up(t, top, "--nodes", "3", "--origin-lag", "0.2", media=("memory:128M",))

    def at(node, script):
        return t.command([t.forebay, "exec", "--pool", "p", "--node", str(node), "--", "bash", "-c",
                          "cd %s; " % top + script], timeout=60)
    for node in range(3):
        at(node, "ls -l mesh out").prints("large$")
    t.ok(status(t)["fetched_bytes"] == 0, "a listing has brought files in")
    # All nodes read the same file at once: it is brought in once.
    readers = [t.start([t.forebay, "exec", "--pool", "p", "--node", str(node), "--", "sha256sum", top + "/mesh/large"],
                       stdout=subprocess.PIPE, text=True) for node in range(3)]
    for reader in readers:
        t.ok(before["mesh/large"][3] in reader.communicate(timeout=30)[0], "another content")
    t.ok(status(t)["fetched_files"] == 1, status(t))
    # Changes, each on another node, and the same on the plain directory.
    changes = ["mkdir -p out/a/b; seq 2000 > out/a/b/list; echo more >> input", "mv mesh/deep/small mesh/renamed; rmdir mesh/deep",
               "ln out/a/b/list out/linked; ln -sf out/linked link; chmod 600 mesh/large", "truncate -s 1000 mesh/large; mv out/a out/moved",
               "for i in $(seq 40); do echo $i > out/moved/f$i; done", "rm out/moved/f1*; ln out/moved/f2 mesh/f2; setfattr -n user.k -v v out/linked"]
    for i, change in enumerate(changes):
        at(i % 3, change)
        t.command(["bash", "-c", "cd %s; %s" % (copy, change)])
    t.fb("origin", "sync", "--pool", "p").says("all changes are at the origin")
    t.same(tree(copy), tree(top), "the origin")
    # Bytes leave all nodes, and come back.
    t.fb("origin", "evict", "--pool", "p").says("evicted")
    t.ok(status(t)["archived_bytes"] == 0, status(t))
    at(1, "cat mesh/large out/moved/f2 input > /dev/null")
    # The service's node dies: what the others have goes on, and what they write isn't lost.
    t.fb("node", "kill", "0", "--pool", "p")
    waiting = t.start([t.forebay, "exec", "--pool", "p", "--node", "2", "--", "bash", "-c",
                       "cd %s; echo later > out/later; cat out/moved/f3" % top], stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)
    t.fb("node", "restart", "0", "--pool", "p")
    t.ok(waiting.communicate(timeout=40)[0] == "3\n" and waiting.returncode == 0, "a program has failed")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p", timeout=60)
    t.ok(open(os.path.join(top, "out", "later")).read() == "later\n", "a change is lost")


@case(120)
def origin_with_names_that_change_on_several_nodes(t):
    top = an_origin(t)
    up(t, top, "--nodes", "3", "--origin-lag", "0.05", media=("memory:128M",))
    names_change(t, top, [("--node", str(n)) for n in range(3)])
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p", timeout=60)


@case(60)
def origin_outlives_a_full_node(t):
    """Each node's media are smaller than the files: clean ones leave the node that is full."""
    top = an_origin(t)
    for n in range(12):
        t.file(os.path.join(top, "mesh", "part%d" % n), 12 << 20, n)
    up(t, top, "--nodes", "2", media=("memory:64M",))
    for turn in range(2):
        for n in range(12):
            want = digest(os.path.join(top, "mesh", "part%d" % n))
            out = t.command([t.forebay, "exec", "--pool", "p", "--node", str(n % 2), "--", "sha256sum",
                             top + "/mesh/part%d" % n], timeout=60).out
            t.ok(out.split()[0] == want, "another content")
    t.ok(status(t)["evicted_files"] >= 3, status(t))
    t.fb("down", "--pool", "p", timeout=60)


@case(90)
def origin_makes_room_for_writers(t):
    """A job that writes more than the pool holds doesn't fail: what is at the origin leaves the pool."""
    for options in ((), ("--nodes", "2")):
        top = os.path.join(t.disk, "origin%d" % len(options))
        os.mkdir(top)
        up(t, top, *options, "--origin-lag", "30", media=("memory:64M",))
        t.python("p", """import hashlib, os, sys
for n in range(20):
    with open("%s/f%d" % (sys.argv[1], n), "wb") as f:
        for k in range(10): f.write(bytes([n, k]) * (1 << 19))
""", top)
        s = status(t)
        t.ok(s["waited"] >= 1 and s["evicted_files"] >= 5, s)
        t.fb("origin", "status", "--pool", "p").prints("writers waited for room")
        t.fb("down", "--pool", "p", timeout=60)
        for n in range(20):
            with open(os.path.join(top, "f%d" % n), "rb") as f:
                t.ok(f.read() == b"".join(bytes([n, k]) * (1 << 19) for k in range(10)), "f%d differs" % n)
    # A single file that is larger than the pool has no room, whatever leaves.
    os.mkdir(os.path.join(t.disk, "small"))
    up(t, os.path.join(t.disk, "small"), media=("memory:16M",))
    t.bash("p", "head -c 40M /dev/zero > %s/large" % os.path.join(t.disk, "small"), rc=1).says("No space left")
    t.fb("down", "--pool", "p", "--force")


@case(60)
def origin_written_through(t):
    top = an_origin(t)
    up(t, top, "--cache", "out/**:write-through", "--origin-lag", "60")
    writer = t.start_python("p", """import os, sys
top = sys.argv[1]
def told(): print("done", flush=True); sys.stdin.readline()
fd = os.open(top + "/out/log", os.O_WRONLY | os.O_CREAT, 0o644)
os.write(fd, b"one"); os.fsync(fd); told()
os.write(fd, b"two"); os.close(fd); told()
with open(top + "/out/a", "w") as f: f.write("x" * 100000)
with open(top + "/later", "w") as f: f.write("x")
told()
""", top, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for wanted in ({"out/log": b"one"}, {"out/log": b"onetwo"}, {"out/a": b"x" * 100000, "later": None}):
        t.ok(writer.stdout.readline() == "done\n", "the writer has ended")
        for name, content in wanted.items():
            path = os.path.join(top, name)
            there = open(path, "rb").read() if os.path.exists(path) else None
            t.ok(there == content, "%s: the origin has %s" % (name, there if there is None else there[:20]))
        writer.stdin.write("\n")
        writer.stdin.flush()
    t.ok(writer.wait(10) == 0, "the writer failed")
    with mounted(t, "p") as at:
        with open(os.path.join(at, "out", "by-mount"), "w") as f:
            f.write("mount")
        t.ok(open(os.path.join(top, "out", "by-mount")).read() == "mount", "close(2) came back too early")


# Two objects of all kinds, each made before the origin has them ("old") or after, and one change of names. Prints what
# each change did.
CHANGES = r"""
import itertools, os, sys
top, phase = sys.argv[1:]
def make(path, kind):
    if kind in ("file", "hard"): open(path, "w").write("content of " + os.path.basename(path))
    elif kind in ("empty", "full"): os.mkdir(path)
    elif kind in ("link", "links"): os.symlink("to-" + os.path.basename(path), path)
    if kind == "full": open(path + "/in", "w").close()
    if kind in ("hard", "links"): os.link(path, path + "-other", follow_symlinks=False)
def remove(path):
    if os.path.isdir(path) and not os.path.islink(path): os.rmdir(path)
    else: os.unlink(path)
changes = {
    "rename": lambda d: os.rename(d + "/s", d + "/t"),
    "move": lambda d: (os.mkdir(d + "/new"), os.rename(d + "/s", d + "/new/t")),
    "link": lambda d: os.link(d + "/s", d + "/t", follow_symlinks=False),
    "change": lambda d: (open(d + "/s", "a").write("more"), os.rename(d + "/s", d + "/t")),
    "into": lambda d: os.rename(d + "/s", d + "/s/in2"),
    "below": lambda d: os.rename(d, d + "/s"),
    "directory": lambda d: (remove(d + "/t"), os.mkdir(d + "/t"), open(d + "/t/x", "w").close()),
    "symlink": lambda d: (remove(d + "/t"), os.symlink("new", d + "/t")),
    "back": lambda d: (os.rename(d + "/s", d + "/t"), open(d + "/s", "w").write("again"), os.rename(d + "/t", d + "/u")),
    "above": lambda d: (os.rename(d, d + "-moved"), os.rename(d + "-moved/s", d + "-moved/q")),
}
kinds = ("none", "file", "empty", "full", "link", "hard", "links")
for name, s, t, ages in itertools.product(changes, kinds, kinds, ("old old", "old new", "new old")):
    d = "%s/%s-%s-%s-%s" % (top, name, s, t, ages.replace(" ", "-"))
    if phase == "before": os.makedirs(d)
    for path, kind, age in zip((d + "/s", d + "/t"), (s, t), ages.split()):
        if (age == "old") == (phase == "before"): make(path, kind)
    if phase == "after":
        try: changes[name](d); done = "done"
        except OSError as e: done = e.strerror
        print(os.path.basename(d), done)
"""


@case(90)
def origin_with_names_of_all_kinds_that_replace_each_other(t):
    """As on the plain directory, whatever the origin has of both."""
    top, copy = os.path.join(t.disk, "origin"), os.path.join(t.disk, "copy")
    for directory in (top, copy):
        os.mkdir(directory)
    up(t, top, "--origin-lag", "1000")
    t.python("p", CHANGES, top, "before", timeout=40)
    t.fb("origin", "sync", "--pool", "p", timeout=40)
    t.fb("origin", "evict", "--pool", "p", timeout=40)
    plain = [t.command(["python3", "-c", CHANGES, copy, phase], timeout=40).out for phase in ("before", "after")][1]
    inside = t.python("p", CHANGES, top, "after", timeout=40).out
    results = [dict(line.split(" ", 1) for line in out.splitlines()) for out in (plain, inside)]
    t.same(*results, "the result of a change")
    t.fb("origin", "sync", "--pool", "p", timeout=40)
    t.same(tree(copy), tree(top), "the origin")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def origin_is_told_what_to_do(t):
    """hold, resume, pin, unpin, a limit on bytes per second."""
    top = an_origin(t)
    up(t, top, "--origin-lag", "0.1", "--origin-bandwidth", "20M", media=("memory:128M",))
    began = time.monotonic()
    t.fb("origin", "pin", top + "/mesh", "--pool", "p").says("brought in 2 file")
    took = time.monotonic() - began
    t.ok(took > 1.5, "40 MiB at 20 MiB/s took %.2f s" % took)
    t.fb("origin", "hold", "--pool", "p")
    t.bash("p", "echo changed > %s/out/new; cat %s/input > /dev/null" % (top, top))
    time.sleep(1)
    t.ok(not os.path.exists(os.path.join(top, "out", "new")), "written back though it is on hold")
    t.fb("origin", "status", "--pool", "p").prints("on hold")
    t.fb("origin", "resume", "--pool", "p")
    wait_until(lambda: os.path.exists(os.path.join(top, "out", "new")), 10, "it isn't written back")
    # Room is needed: the pinned file stays, others go.
    t.bash("p", "head -c 80M /dev/urandom > %s/out/large" % top)
    t.fb("origin", "sync", "--pool", "p", timeout=60)
    wait_until(lambda: status(t)["evicted_files"] >= 1, 10, "nothing is evicted")
    t.ok(int(t.bash("p", "stat -c %%b %s/mesh/large" % top).out) > 0, "a pinned file has left")
    fetched = status(t)["fetched_files"]
    t.bash("p", "cat %s/mesh/large > /dev/null" % top)
    t.ok(status(t)["fetched_files"] == fetched, "a pinned file was brought in again")
    t.fb("origin", "unpin", top + "/mesh", "--pool", "p")
    t.fb("down", "--pool", "p", timeout=60)


@case(60)
def origin_never_shows_half_a_file_under_its_last_name(t):
    """A file rests while it is half written, and gets its name when it is whole."""
    top = an_origin(t)
    up(t, top, "--origin-lag", "0.1")
    writer = t.start_python("p", """import os, sys, time
top = sys.argv[1]
for n in range(4):
    with open(top + "/out/tmp", "w") as f:
        f.write("half"); f.flush(); time.sleep(1.2)
        f.write("whole")
    os.rename(top + "/out/tmp", "%s/out/final%d" % (top, n))
""", top)
    seen = set()
    while writer.poll() is None:
        for n in range(4):
            try:
                seen.add(open(os.path.join(top, "out", "final%d" % n)).read())
            except FileNotFoundError:
                pass
        time.sleep(0.001)
    t.ok(writer.returncode == 0 and seen <= {"halfwhole"}, seen)
    t.fb("down", "--pool", "p")
    t.ok(open(os.path.join(top, "out", "final3")).read() == "halfwhole", "another content")


def origin_gets_the_attributes_of_its_own_directory(t):
    """Those of the top, too, which isn't an entry of any directory."""
    top = an_origin(t)
    if os.getuid() == 0:
        os.chown(top, 1000, 1000)
    os.chmod(top, 0o2775)
    owner = os.stat(top).st_uid, os.stat(top).st_gid
    up(t, top, "--origin-lag", "0.1")
    t.bash("p", "cd %s; touch first; rm first; echo new > second" % top)
    t.fb("origin", "sync", "--pool", "p")
    st = os.stat(top)
    t.ok((st.st_uid, st.st_gid) == owner and st.st_mode & 0o7777 == 0o2775, "the origin's owner or mode is another: %s" % (st,))
    t.bash("p", "chmod 2751 %s; touch -d @1000000000 %s" % (top, top))
    t.fb("origin", "sync", "--pool", "p")
    st = os.stat(top)
    t.ok(st.st_mode & 0o7777 == 0o2751 and st.st_mtime == 1000000000, "the origin hasn't got the attributes: %s" % (st,))
    t.fb("down", "--pool", "p")


@case(60)
def origin_keeps_extended_attributes(t):
    """Those that the origin has show in the pool, and what the pool writes back doesn't remove them."""
    top = an_origin(t)
    for name in ("", "input", "mesh", "mesh/deep/small"):
        os.setxattr(os.path.join(top, name), "user.k", name.encode() or b"top")
    up(t, top, "--origin-lag", "0.1")
    t.python("p", """import os, sys
top = sys.argv[1]
# Files that nobody has opened, directories that nobody has listed.
for name in ("mesh/deep/small", "mesh", "input", ""):
    assert os.listxattr(top + "/" + name) == ["user.k"], name
    assert os.getxattr(top + "/" + name, "user.k") == (name.encode() or b"top"), name
os.chmod(top + "/input", 0o600)
open(top + "/mesh/new", "w").close()
open(top + "/mesh/deep/small", "a").write("x")
os.setxattr(top + "/out", "user.only", b"this")
os.setxattr(top + "/mesh/large", "user.large", b"1")
""", top)
    t.fb("origin", "sync", "--pool", "p")
    for name in ("", "input", "mesh", "mesh/deep/small"):
        t.ok(os.getxattr(os.path.join(top, name), "user.k") == (name.encode() or b"top"), name + " has lost it")
    t.ok(os.getxattr(os.path.join(top, "out"), "user.only") == b"this", "a directory's change is missing")
    t.ok(os.getxattr(os.path.join(top, "mesh", "large"), "user.large") == b"1", "a file's change is missing")
    t.ok(os.stat(os.path.join(top, "input")).st_mode & 0o777 == 0o600, "the mode isn't written")
    t.bash("p", "setfattr -x user.only %s/out" % top)
    t.fb("origin", "sync", "--pool", "p")
    t.ok(os.listxattr(os.path.join(top, "out")) == [], "it isn't removed")
    t.fb("down", "--pool", "p")


@case(60)
def origin_without_what_a_pipe_has_replaced(t):
    top = an_origin(t)
    up(t, top, "--origin-lag", "0.1")
    t.bash("p", "cd %s; mkfifo p; mv p input; ls -l input" % top).prints("^prw")
    t.fb("origin", "sync", "--pool", "p")
    t.ok(not os.path.exists(os.path.join(top, "input")), "the origin keeps what was replaced")
    # Others than the pool's user are told at once.
    t.python("p", """import os, sys
os.stat(sys.argv[1])
os.chmod(sys.argv[1], 0o777); os.chmod(sys.argv[1] + "/mesh", 0o777)
os.setuid(65534)
try: os.rename(sys.argv[1] + "/mesh/large", sys.argv[1] + "/mesh/other")
except PermissionError: pass
else: raise SystemExit("no error")
""", top) if os.getuid() == 0 else None
    t.fb("down", "--pool", "p")
