"""Origins of which only some paths are in the pool: programs use the origin's own files for the others."""
import os
import shutil
import subprocess

from cases.origins import an_origin, status, tree, up
from harness import case, wait_until

# Changes with everyday tools, of both kinds of files; prints what must be the same on a plain directory.
CHANGES = r"""
set -e
cd "$1"
ls -a | sort; find . | sort
# Files that are off: made, changed, linked, renamed, removed, by relative and absolute paths.
echo new > new; echo more >> input; chmod 600 new; ln new linked; ln -s new soft; mv linked renamed; cat soft
mkdir -p free/a/b; seq 100 > free/a/b/list; (cd free/a && pwd | sed "s|$1|TOP|" && cat b/list | wc -l && echo x > ../y && cat ../../input | wc -l)
cp -r free copied; rm -r copied/a; mv free/a/b free/c; touch -d @1000000000 free/y; truncate -s 5 new
# Between both kinds.
mv input mesh/input; cp -p mesh/input input2; mv mesh/deep/small small; mv free/c out/c; mv out/c free/d
cp mesh/input free/i; ln -s ../mesh/input free/l; cat free/l; echo by-link >> free/l; tail -n 1 mesh/input
ln -s ../free mesh/f; ls mesh/f | sort; echo 1 > mesh/f/1; cat free/1; cat mesh/../free/1 free/../mesh/input | tail -n 2
# A program and a script that are off.
printf '#!/bin/sh\necho script "$@" in "$(basename "$PWD")"\n' > free/script; chmod +x free/script; free/script 1; (cd mesh && ../free/script 2)
cp "$(command -v cat)" free/program; chmod +x free/program; free/program mesh/input | tail -n 1; (cd mesh; ../free/program ../small | wc -c)
(cd free; ./program ../mesh/input | tail -n 1; PATH=.:$PATH script 3)
tar cf all.tar mesh free small; mkdir un; tar xf all.tar -C un; diff -r mesh un/mesh && diff -r free un/free; tar cf mesh/all.tar small
mkdir out/d; (cd out/d && ls .. && echo z > z && cp z ../../z && cat ../../z); rm -r un free/d; rm -f soft
# By a descriptor of a directory, and a list that goes on.
python3 - <<'P'
import os
d = os.open(".", os.O_RDONLY)
for name in ("one", "mesh/two", "free/three"):
    f = os.open(name, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o640, dir_fd=d)
    os.write(f, name.encode()); os.close(f)
    assert os.stat(name, dir_fd=d).st_size == len(name) and os.access(name, os.W_OK, dir_fd=d)
e = os.open("free", os.O_RDONLY, dir_fd=d)
assert os.stat("../mesh/two", dir_fd=e).st_size == 8 and "three" in os.listdir(e)
os.rename("one", "moved", src_dir_fd=d, dst_dir_fd=e)
for source, target in (("mesh/two", "free/two"), ("free/three", "mesh/three"), ("mesh", "free/mesh")):
    try: os.rename(source, target)
    except OSError as err: assert os.path.dirname(source) == os.path.dirname(target) or err.errno in (18, 39), err
    else: os.rename(target, source)
for name in ("absent", "mesh/absent", "free/absent", "absent/x"):
    for call in (os.stat, os.unlink, os.rmdir, os.readlink, os.listdir):
        try: call(name)
        except FileNotFoundError: pass
        else: raise AssertionError((call, name))
os.chdir(e)
assert os.path.basename(os.getcwd()) == "free" and os.path.exists("../mesh/two")
os.chdir("../mesh")
assert os.path.basename(os.getcwd()) == "mesh" and os.path.exists("../free/moved")
P
find . | sort; ls -a . mesh free | sort
"""


def both(t, top, pool="p", **more):
    """Makes the changes in the pool, and on a plain copy; both print the same. The copy."""
    copy = os.path.join(t.disk, "copy", "origin")
    t.fb("origin", "sync", "--pool", "p")
    shutil.copytree(top, copy, symlinks=True)
    plain = t.command(["bash", "-c", CHANGES, "-", copy], timeout=40)
    mine = t.bash(pool, CHANGES, top, timeout=60, **more)
    t.same(dict(enumerate(plain.out.splitlines())), dict(enumerate(mine.out.splitlines())), "the output")
    return copy


def without(copy, top):
    """Both trees, without what tar files have in them (times)."""
    return [{n: (v[:2] if n.endswith(".tar") else v) for n, v in tree(d).items()} for d in (copy, top)]


@case(90)
def origin_of_which_only_some_paths_are_cached(t):
    top = an_origin(t)
    up(t, top, "--cache", "mesh/**", "--cache", "out/**:write-back", "--origin-lag", "0.3")
    t.ok(status(t)["mode"] == "off", status(t))
    # A file that is off is at the origin at once, and not in the pool. The rest is the other way round.
    t.bash("p", "cd %s; cat input > /dev/null; head -c 9M /dev/zero > big; echo x > mesh/x; ls -l . mesh" % top).prints(" big$", " x$")
    t.ok(os.path.getsize(top + "/big") == 9 << 20, "it isn't at the origin")
    s = status(t)
    t.ok(t.used("p") < 4 << 20 and s["fetched_files"] == 0 and s["released_files"] == s["dirty_files"] == 1, "%s %s" % (t.used("p"), s))
    os.unlink(top + "/big")
    # Others' changes are seen at once, in listings, too.
    open(top + "/theirs", "w").write("1")
    t.bash("p", "cd %s; ls; cat theirs; rm theirs mesh/x; ls" % top).prints("^theirs$")
    t.ok(not os.path.exists(top + "/theirs"), "it wasn't removed")
    copy = both(t, top)
    t.fb("origin", "sync", "--pool", "p")
    t.same(*without(copy, top), "the origin")
    # Each name once, and the same from the command line.
    names = t.bash("p", "cd %s; ls -a" % top).out.split()
    t.ok(sorted(names) == sorted(set(names)) == sorted([".", ".."] + os.listdir(top)), names)
    t.fb("ls", "/", "--pool", "p").prints("^mesh", "^free", "^small")
    t.fb("ls", "-l", top, "--pool", "p").prints("mesh$", "small$")
    for command in ("pin", "prefetch", "evict"):
        t.fb("origin", command, top + "/free", "--pool", "p", rc=1).says("its mode is off")
    t.fb("origin", "sync", top + "/free", "--pool", "p")
    t.fb("origin", "prefetch", top, "--pool", "p")
    t.ok(not [n for n in t.fb("origin", "status", "--json", "--pool", "p").json()["problems"]], "problems")
    # A mount can't show them.
    os.mkdir(os.path.join(t.disk, "at"))
    t.fb("mount", os.path.join(t.disk, "at"), "--pool", "p", rc=2).says("mode off", "forebay exec")
    t.fb("exec", "--with-mount", "--pool", "p", "--", "true", rc=2).says("mode off")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")
    t.same(*without(copy, top), "the origin at the end")


@case(60)
def origin_that_is_off_below_another_path_and_by_name(t):
    top = an_origin(t)
    # Below a directory of the pool, which has files of its own; what is off is chosen by name.
    t.fb("up", "--pool", "p", "--media", "memory:128M", "--origin", top + "=/data", "--cache", "**/*.tmp:off", "--origin-lag", "1000")
    t.bash("p", """cd /fb; echo 1 > own.tmp; cd data; echo 2 > a.tmp; echo 3 > a; mkdir -p new/dir; echo 4 > new/dir/b.tmp; cat new/dir/b.tmp
ls . new/dir; mv a.tmp b.tmp; mv a c.tmp; mv c.tmp d; stat -c %s new/dir/b.tmp; rm b.tmp; ls; cat /fb/own.tmp""").prints("^4$", "^2$", "^a.tmp$", "^b.tmp$", "^d$", "^1$")
    # Only what is off has gone there, and the directories above it.
    t.ok(sorted(os.listdir(top)) == ["input", "link", "mesh", "new", "out"] and os.listdir(top + "/new/dir") == ["b.tmp"], os.listdir(top))
    # A directory with one of them can't be removed before it.
    t.bash("p", "rmdir /fb/data/new/dir", rc=1).says("not empty")
    t.bash("p", "cd /fb/data; rm -r new; ls; mkdir x.tmp; echo 5 > x.tmp/y; rm -r x.tmp")
    t.fb("down", "--pool", "p")
    t.ok(sorted(os.listdir(top)) == ["d", "input", "link", "mesh", "out"], os.listdir(top))
    t.ok(open(top + "/d").read() == "3\n", "a file is lost")


@case(90)
def origin_that_is_off_on_several_nodes(t):
    top = an_origin(t)
    up(t, top, "--nodes", "2", "--cache", "mesh/**", "--origin-lag", "0.3", media=("memory:64M",))

    def at(node, script):
        return t.command([t.forebay, "exec", "--pool", "p", "--node", str(node), "--", "bash", "-c", "cd %s; " % top + script], timeout=30)
    at(1, "echo 1 > free; mkdir -p d/e; mv free d/e/f; ls; echo 2 > mesh/g; mkdir mesh/h; cp d/e/f mesh/h/f")
    at(0, "ls; cat d/e/f mesh/g mesh/h/f; mv mesh/g d/g; rm -r mesh/h").prints("^1$", "^2$", "^d$")
    at(1, "ls d mesh; cat d/g; mv d/g mesh/g").prints("^g$", "^2$")
    copy = both(t, top)
    t.fb("down", "--pool", "p")
    t.same(*without(copy, top), "the origin at the end")


@case(60)
def origin_that_is_off_as_a_whole(t):
    top = an_origin(t)
    up(t, top, "--origin-mode", "off")
    copy = both(t, top)
    t.same(*without(copy, top), "the origin, with nothing written back")
    s = status(t)
    t.ok(s["fetched_files"] == s["written_files"] == s["released_files"] == s["dirty_files"] == 0, s)
    t.fb("down", "--pool", "p")


@case(60)
def origin_that_has_what_fsync_and_close_return_for(t):
    """persistence = "origin", by rule, for a directory and for a file; whatever the path's mode is."""
    top = an_origin(t)
    rules = os.path.join(t.disk, "rules.toml")
    with open(rules, "w") as f:
        f.write('[[rule]]\npath = "/out/**"\npersistence = "origin"\n')
    t.fb("up", "--pool", "q", "--media", "memory:64M", "--rules", rules, rc=2).says('persistence = "origin" is impossible', "--origin DIR")
    os.mkdir(top + "/out/tmp")
    t.file(top + "/out/old", 5000, 4)
    up(t, top, "--rules", rules, "--origin-lag", "1000", "--cache", "out/tmp/**:scratch", "--cache", "out/ro:read-only")
    writer = t.start_python("p", """import os, sys
top = sys.argv[1]
def check(name, wanted):
    print(name, repr(wanted), flush=True); sys.stdin.readline()
f = os.open(top + "/out/new", os.O_WRONLY | os.O_CREAT, 0o644)
os.write(f, b"one"); os.fsync(f); check("out/new", b"one")
os.write(f, b"two"); check("out/new", b"one")
g = os.open(top + "/out/new", os.O_RDONLY); os.fsync(g); check("out/new", b"onetwo"); os.close(g)
os.write(f, b"3"); os.close(f); check("out/new", b"onetwo3")
# One that the origin had before, and one that is made by renaming.
with open(top + "/out/old", "r+b") as f: f.write(b"changed")
check("out/old", b"changed" + open(top + "/out/old", "rb").read()[7:])
with open(top + "/out/.part", "w") as f: f.write("whole")
os.rename(top + "/out/.part", top + "/out/whole"); check("out/whole", b"whole")
# Another path isn't waited for.
with open(top + "/beside", "w") as f: f.write("x")
check("beside", None)
""", top, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    checks = 0
    for line in writer.stdout:
        name, wanted = line.rstrip("\n").split(" ", 1)
        path = os.path.join(top, name)
        there = repr(open(path, "rb").read() if os.path.exists(path) else None)
        t.ok(there == wanted, "%s: the origin has %s, not %s" % (name, there[:40], wanted[:40]))
        checks += 1
        writer.stdin.write("\n")
        writer.stdin.flush()
    t.ok(writer.wait(10) == 0 and checks == 7, "the writer failed after %d checks" % checks)
    # Where nothing is written to the origin, it can't be promised.
    t.bash("p", "echo x > %s/out/tmp/x" % top, rc=1).says("not supported", "mode is scratch")
    # Declared of a directory and a file, and no more.
    t.bash("p", "mkdir %s/d; touch %s/file" % (top, top))
    t.fb("set", "--pool", "p", top + "/d", "persistence=origin")
    t.fb("set", "--pool", "p", top + "/file", "persistence=origin")
    t.bash("p", "cd %s; echo 1 > d/1; echo 2 >> file" % top)
    t.ok(open(top + "/d/1").read() == "1\n" and open(top + "/file").read() == "2\n", "the origin hasn't got them")
    t.fb("set", "--pool", "p", top + "/file", "persistence=")
    t.bash("p", "echo 3 >> %s/file" % top)
    t.ok(open(top + "/file").read() == "2\n", "it was written through")
    t.fb("down", "--pool", "p")
    t.ok(open(top + "/file").read() == "2\n3\n", "a change is lost")
    # Beside the origin it isn't possible.
    t.fb("up", "--pool", "p", "--media", "memory:64M", "--origin", top + "=/data")
    t.bash("p", "mkdir /fb/own; touch /fb/own/f")
    for path in ("/own", "/own/f"):
        t.fb("set", "--pool", "p", path, "persistence=origin", rc=2).says("the origin isn't behind its path")
    t.fb("down", "--pool", "p")


@case(60)
def origin_gets_and_keeps_files_by_their_temporality(t):
    top = os.path.join(t.disk, "origin")
    os.makedirs(top + "/once")
    os.mkdir(top + "/again")
    rules = os.path.join(t.disk, "rules.toml")
    with open(rules, "w") as f:
        f.write('[[rule]]\npath = "/once/**"\ntemporality = "once"\n\n[[rule]]\npath = "/again/**"\ntemporality = "multiple"\n')
    for name in ("again/a", "plain", "once/o"):
        t.file(os.path.join(top, name), 14 << 20, len(name))
    up(t, top, "--rules", rules, "--origin-lag", "1000", media=("memory:64M",))
    # A file that is written once doesn't wait for the lag; while a program has it open, it does.
    writer = t.start_python("p", """import sys, time
with open(sys.argv[1] + "/once/open", "w") as f:
    f.write("x" * 9000); f.flush(); print("written", flush=True); time.sleep(2.5)
""", top)
    t.ok(writer.stdout.readline() == b"written\n", "the writer has failed")
    t.bash("p", "cd %s; echo 1 > once/new; echo 2 > again/new; echo 3 > new" % top)
    wait_until(lambda: os.path.exists(top + "/once/new"), 10, "what is written once")
    t.ok(not os.path.exists(top + "/once/open"), "it was written back while it was being written")
    t.finish(writer)
    wait_until(lambda: os.path.exists(top + "/once/open"), 10, "what is written once, after its end")
    t.ok(os.listdir(top + "/again") == ["a"] and not os.path.exists(top + "/new"), "the lag isn't kept")
    # The least recently used one stays if it is used repeatedly; the last one goes if it is used once.
    t.bash("p", "cd %s; cat again/a plain once/o > /dev/null" % top)
    read = status(t)["fetched_files"]
    t.ok(read == 3, read)

    def fetched(name):
        before = status(t)["fetched_files"]
        t.bash("p", "cat %s/%s > /dev/null" % (top, name))
        return status(t)["fetched_files"] - before
    t.bash("p", "head -c 18M /dev/zero > %s/more; sleep 1.5" % top)
    s = status(t)
    t.ok(s["evicted_files"] >= 1, s)
    t.ok(fetched("again/a") == 0, "what is used repeatedly has left first")
    t.ok(fetched("once/o") == 1, "what is used once has stayed")
    t.fb("down", "--pool", "p")
