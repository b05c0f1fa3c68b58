"""The view by attributes: `.by`, through both faces, on one node and on several."""
import os
import sys

from harness import case
from .mounts import mounted

# The view as programs see it, in the same words through each face. {at} is where the pool is seen.
LOOK = r'''
cd {at} || exit 1
ls -a | sort
ls .by .by/project
find .by/project=mcse -type l | sort
find -L .by/project=mcse -type f -size -9c | sort
cat .by/project=mcse/step=3/*
cat .by/step/3/project/mcse/one
ls .by/project=none; ls .by/none
cd .by/project=mcse && /bin/pwd && cat ../../runs/1/one && cd step=3 && ls && cd ../.. && ls
cd {at}/.by/kind=runs/runs && /bin/pwd && cat 1/one
cd {at}
realpath .by/project=mcse/one
readlink .by/step=3/project=mcse/one
stat -L -c '%i %s' .by/project=mcse/one; stat -c '%i %s' runs/1/one
for what in 'touch .by/new' 'mkdir .by/project=mcse/new' 'rm .by/project=mcse/one' 'rmdir .by' \
    'mv .by/project=mcse/one z' 'mv .by z' 'ln -s x .by/x' 'chmod 700 .by'; do
    $what 2>&1 | sed 's/.*: //'
done
echo more >> .by/project=mcse/two; cat two
cp -RL .by/project=mcse copy; cat copy/*; rm -r copy
tar -chf - .by/project=mcse | tar -tf - | sort
'''

MAKE = r'''
import os
os.makedirs("{at}/runs/1")
for path, text, attributes in [
        ("runs/1/one", "1\n", {{"project": "mcse", "step": "3"}}),
        ("two", "2\n", {{"project": "mcse"}}),
        ("three", "3\n", {{"project": "other", "step": "3"}}),
        ("four", "4\n", {{}})]:
    with open("{at}/" + path, "w") as f:
        f.write(text)
        for key, value in attributes.items():
            os.setxattr(f.fileno() if key == "step" else f.name, "user." + key, value.encode())
os.setxattr("{at}/runs", "user.kind", b"runs")
'''

LISTED = ["four", "runs", "three", "two"]


def looks_right(t, out):
    """The same whichever way it was seen, the pool's place apart."""
    lines = out.splitlines()
    t.ok(lines[:6] == [".", ".."] + LISTED, "the root lists %s" % lines[:6])
    for wanted in ("mcse", "other", ".by/project=mcse/one", ".by/project=mcse/two", "@/.by/project=mcse",
                   "@/runs", "@/runs/1/one", "../../../runs/1/one"):
        t.ok(wanted in lines, "%s isn't there: %s" % (wanted, out))
    t.ok(lines.count("Read-only file system") == 8, "it isn't read-only: %s" % out)
    t.ok(lines.count("1") >= 5, "the files' contents aren't there: %s" % out)


@case(60)
def view_by_attributes(t):
    t.up("p", media=("memory:256M",))
    with mounted(t, "p") as at:
        for make in ("/fb", at):
            script = MAKE.format(at=make)
            t.python("p", script) if make == "/fb" else t.command([sys.executable, "-c", script])
            inside = t.bash("p", LOOK.format(at="/fb"), rc=None).out.replace("/fb", "@")
            t.bash("p", "cd /fb && printf '2\\n' > two")
            outside = t.command(["bash", "-c", LOOK.format(at=at)], rc=None).out.replace(at, "@")
            t.ok(inside == outside, "the faces differ:\n%s\n%s" % (inside, outside))
            looks_right(t, inside)
            t.fb("fsck", "--pool", "p")
            # Each face sees the other's changes at once.
            t.bash("p", "cd /fb && setfattr -x user.project two && mv three t3 && rm -r runs")
            t.ok(os.listdir(at + "/.by/project=other") == ["t3"], "a new name isn't there")
            t.ok(not os.path.exists(at + "/.by/project=mcse"), "what has no attribute is there")
            t.bash("p", "cd /fb && rm t3 two four && ls .by").prints("^$")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


@case(90)
def view_of_nodes(t):
    """Each node tags files, every node finds all of them, through both faces."""
    count = 50
    t.up("p", "--nodes", "4", "--request-timeout", "5", media=("memory:64M",))

    def on(node, script):
        return t.command([t.forebay, "exec", "--pool", "p", "--node", str(node), "--", "python3", "-c", script],
                         timeout=60)
    for node in range(4):
        on(node, '''
import os
os.makedirs("/fb/n%d")
for n in range(%d):
    path = "/fb/n%d/%%d" %% (n %% 20 if n < 40 else n + 100 * %d)
    path += "" if n < 20 else "-" if n < 40 else "+"
    open(path, "w").write(path)
    os.setxattr(path, "user.all", b"yes")
    os.setxattr(path, "user.node", b"%d")
    if n %% 10 == 0:
        os.setxattr(path, "user.tenth", b"")
for n in range(45, 50):
    os.rename("/fb/n%d/%%d+" %% (n + 100 * %d), "/fb/moved%d.%%d" %% n)
''' % (node, count, node, node, node, node, node, node))
    find = '''
import os, sys
at = %r
def found(path):
    links = os.listdir(at + "/.by/" + path)
    os.chdir(at + "/.by/" + path)
    files = set(os.stat(l).st_ino for l in links)
    assert len(files) == len(links), path
    for l in links[::7]:
        f = os.path.realpath(l)
        assert ".by" not in f and os.stat(f).st_ino == os.stat(l).st_ino, (l, f)
    return len(files)
assert sorted(os.listdir(at + "/.by")) == ["all", "node", "tenth"]
assert sorted(os.listdir(at + "/.by/node")) == list("0123")
assert found("all=yes") == 4 * %d
for n in range(4):
    assert found("node=%%d" %% n) == %d
    assert found("node=%%d/tenth=" %% n) == 5 == found("tenth=/all/yes/node=%%d" %% n)
assert len([l for l in os.listdir(at + "/.by/all=yes") if l.startswith("moved")]) == 20
'''
    for node in range(4):
        on(node, find % ("/fb", count, count))
    with mounted(t, "p", "--node", "3", name="m3") as at:
        t.command([sys.executable, "-c", find % (at, count, count)], timeout=60)
        t.fb("umount", at)
    t.fb("fsck", "--pool", "p")
    on(1, "import shutil; [shutil.rmtree('/fb/n%d' % n) for n in range(4)]")
    on(2, "import os; assert len(os.listdir('/fb/.by/all=yes')) == 20, os.listdir('/fb/.by/all=yes')")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")
