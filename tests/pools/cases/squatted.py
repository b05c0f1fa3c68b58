"""Directories that another user made, or could change: nothing in them is trusted."""
import os
import stat
import subprocess

from harness import Skipped, case

NOBODY = 65534


def nobody():
    if os.geteuid():
        raise Skipped("another user's directories can only be made by root")
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}


def snapshot(top):
    return sorted((os.path.join(d, n), os.lstat(os.path.join(d, n)).st_mtime_ns)
                  for d, dirs, names in os.walk(top) for n in dirs + names)


@case(40)
def a_home_of_another_user(t):
    """Root doesn't use a home that another user has put where it looks, whatever is in it."""
    other = nobody()
    shared = os.path.join(t.base, "shared")
    os.mkdir(shared)
    os.chmod(shared, 0o1777)
    os.chmod(t.base, 0o755)
    home = os.path.join(shared, "forebay-0")
    made = "umask 022; mkdir -p %s/p/records; echo '{}' > %s/p/pool.json" % (home, home)
    subprocess.run(["bash", "-c", made], check=True, **other)
    before = snapshot(shared)
    env = {"FOREBAY_HOME": home}
    for words in (["up", "--media", "memory:64M"], ["up", "--nodes", "2", "--media", "memory:64M"],
                  ["status"], ["pools"], ["pools", "--clean"], ["down"], ["down", "--force"],
                  ["exec", "--", "true"], ["fsck"], ["up", "--reopen"],
                  ["run", "--media", "memory:64M", "--", "true"]):
        r = t.fb(words[0], "--pool", "p", *words[1:], rc=None, env=env)
        t.ok(r.rc != 0, "it was used: " + r.told())
        r.says("another user", "FOREBAY_HOME")
    # A link of theirs to a directory of ours is no better.
    link = os.path.join(shared, "link")
    subprocess.run(["ln", "-s", t.home, link], check=True, **other)
    r = t.fb("up", "--pool", "p", "--media", "memory:64M", rc=None, env={"FOREBAY_HOME": link})
    t.ok(r.rc != 0, "a link was followed: " + r.told())
    r = t.fb("up", "--pool", "p", "--media", "memory:64M", rc=None, env={"FOREBAY_HOME": link + "/x"})
    t.ok(r.rc != 0, "a link above was followed: " + r.told())
    r.says("another user")
    t.ok(snapshot(t.home) == [], "something was made in the home: %s" % snapshot(t.home))
    os.unlink(link)
    t.ok(snapshot(shared) == before, "something was changed there")


@case(40)
def a_directory_above_that_others_can_change(t):
    """Where others can rename, a home could be exchanged: only a sticky directory will do."""
    if os.geteuid():
        raise Skipped("root's directories are needed")
    open_to_all = os.path.join(t.base, "open")
    os.mkdir(open_to_all)
    os.chmod(open_to_all, 0o777)
    env = {"FOREBAY_HOME": open_to_all + "/home"}
    t.up("p", rc=None, env=env).says("another user", "FOREBAY_HOME")
    t.ok(os.listdir(open_to_all) == [], "something was left")
    os.chmod(open_to_all, 0o1777)
    t.up("p", env=env)
    os.chmod(open_to_all, 0o777)
    t.fb("status", "--pool", "p", rc=None, env=env).says("another user")
    os.chmod(open_to_all, 0o1777)
    t.fb("down", "--pool", "p", env=env)


@case(40)
def modes_whatever_the_umask(t):
    """All directories are their owner's alone."""
    home = os.path.join(t.base, "made/here")
    disk = os.path.join(t.disk, "media")
    os.mkdir(disk)
    for umask in ("0", "777", "277"):
        env = {"FOREBAY_HOME": home}
        t.command(["bash", "-c", 'umask %s; exec "$@"' % umask, "bash", t.forebay, "up", "--pool", "p",
                   "--media", "memory:32M", "--media", "files:%s:32M" % disk], env=env, rc=0)
        tops = [os.path.dirname(home), home] + [os.path.join(disk, n) for n in os.listdir(disk)]
        tops += [os.path.join(home, "p", n) for n in ("", "records", "medium-0")]
        for d in tops:
            mode = stat.S_IMODE(os.stat(d).st_mode)
            t.ok(mode == 0o700, "umask %s: %s has mode %o" % (umask, d, mode))
        t.fb("down", "--pool", "p", env=env)
        os.rmdir(home)
        os.rmdir(os.path.dirname(home))


@case(40)
def media_and_mounts_of_another_user(t):
    """A medium that another user has put in the place of ours isn't used; nor is his directory mounted at."""
    other = nobody()
    t.up("p", media=["files:%s:32M" % t.disk])
    t.bash("p", "echo secret > /fb/f; sync")
    medium = [n for n in os.listdir(t.disk) if n.startswith("forebay-")]
    t.ok(len(medium) == 1, "media: %s" % medium)
    at = os.path.join(t.disk, medium[0])
    os.chown(at, NOBODY, NOBODY)
    r = t.exec("p", "cat", "/fb/f", rc=None)
    t.ok(r.rc != 0 and "secret" not in r.out, "it was used: " + r.told())
    r.says("another user")
    os.chown(at, 0, 0)
    t.exec("p", "cat", "/fb/f").prints("^secret$")
    theirs = os.path.join(t.base, "theirs")
    os.mkdir(theirs)
    os.chown(theirs, NOBODY, NOBODY)
    t.fb("mount", "--pool", "p", theirs, rc=None).says("another user")
    t.fb("down", "--pool", "p")
    del other


@case(40)
def a_cache_of_patches_of_another_user(t):
    """Programs load nothing from a home that others can write to, and write nothing there."""
    if os.geteuid():
        raise Skipped("root's directories are needed")
    t.up("p")
    t.exec("p", "true")
    caches = [n for n in os.listdir(t.home) if n.startswith("sites-")]
    t.ok(caches, "there is no cache")
    for n in caches:
        os.unlink(os.path.join(t.home, n))
    os.chown(t.home, NOBODY, NOBODY)
    # The program can't use the pool either; what counts is the cache.
    env = {"FOREBAY_DIR": t.pool_dir("p"), "FOREBAY_MOUNT": "/fb", "LD_PRELOAD": t.preload}
    t.command(["/bin/true"], rc=None, env=env)
    left = [n for n in os.listdir(t.home) if n.startswith("sites-")]
    os.chown(t.home, 0, 0)
    t.ok(not left, "written into a directory of another user: %s" % left)
    t.fb("down", "--pool", "p")
