#!/usr/bin/env python3
"""Installs a release's packages on a bare system, runs a demo there, and removes them again.

The bare system is what debootstrap makes of the least packages of Debian. It lies in a directory of its
own, and is entered with namespaces of its own for mounts and processes. For each package:

  1. it is installed as its users would: dpkg, rpm, or tar in a home directory;
  2. a user without privileges runs a pipeline in a pool on one node and on two, and compares bytes;
     of the tarball again after its directory was moved, and the commands of docs/tutorial.md;
  3. the package is removed. Each file of the system is as it was, and no process is left.

    run.py                  packages of target/release, on this machine's release of Debian
    run.py --release DIR    the packages in DIR, which make dist has made (make dist-test)
    run.py --suite NAME     another release of Debian, such as bullseye; may be given more than once

Needs root, debootstrap, rpm and an archive of Debian in apt's sources; is skipped without. The archive
is asked once for each release of Debian: target/dist-test keeps its packages.
"""
import argparse
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pools"))

import tutorial  # noqa: E402 (found by the path set above)

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))
CACHE = os.path.join(TARGET, "dist-test")
USER = 1234
HOME = "/home/user"
# How long a command may take: one in the bare system, and debootstrap. Seconds.
COMMAND_LIMIT, BOOTSTRAP_LIMIT = 120, 600
# What managers of packages write of what they did, and the loader's cache.
OF_MANAGERS = re.compile(r"^(var/log/(dpkg\.log|alternatives\.log)|var/lib/dpkg(/.*)?|var/lib/rpm(/.*)?"
                         r"|var/cache/ldconfig(/.*)?|etc/ld\.so\.cache|etc|var/log|var/lib)$")

# A pipeline on one node and on two; `forebay` is in PATH. The bytes of what comes out are compared with
# what the same commands make outside.
DEMO = r'''
set -eu
cd "$HOME"; mkdir in out
seq 1 200000 > in/numbers
forebay --version
forebay run -q --media memory:64M --in ./in:/in --out /out:./out -- sh -c '
  mkdir /fb/out; cd /fb/in
  sort -r numbers > /fb/out/sorted
  cp numbers ../out/copy
  sed "s/1/one/" < numbers | gzip -n > ../out/words.gz; rm /fb/in/numbers
  set -- /fb/out/*; echo $# > /fb/out/count; mv /fb/out/count /fb/out/counted'
sort -r in/numbers | cmp - out/sorted
cmp in/numbers out/copy
sed "s/1/one/" in/numbers | gzip -n | cmp - out/words.gz
[ "$(cat out/counted)" -eq 3 ]
forebay up --nodes 2 --media memory:32M > up.log
forebay stage in in /in > stage.log
forebay exec -- sh -c 'cp /fb/in/numbers /fb/copy; echo done > /fb/done; cat /fb/done' | grep -q done
forebay fsck > fsck.log
forebay stage out /copy copied > stage.log
cmp in/numbers copied
forebay down > down.log
# The cache of call sites of libraries stays until the node is started again.
[ -z "$(find /dev/shm -type f ! -name 'sites-*')" ] || { ls -lR /dev/shm; exit 1; }
cd "$HOME"; rm -r in out copied ./*.log
'''

# Mounts what a system has, enters the root and runs a command there. All ends with this process.
ENTER = r'''
set -e
root=$1 user=$2; shift 2
mount -t proc proc "$root/proc"
mount -t tmpfs -o size=256k,mode=755 tmpfs "$root/dev"
mkdir -m 1777 "$root/dev/shm"; mount -t tmpfs -o size=256m,mode=1777 tmpfs "$root/dev/shm"
for file in null zero full random urandom tty; do
  touch "$root/dev/$file"; mount --bind "/dev/$file" "$root/dev/$file"
done
ln -s /proc/self/fd "$root/dev/fd"
exec chroot --userspec="$user" "$root" env -i HOME="$HOME_INSIDE" PATH="$PATH_INSIDE" LC_ALL=C FOREBAY_RSH= "$@"
'''


class Failed(Exception):
    """A check that isn't met; its text says which."""


class Skipped(Exception):
    """The test can't be made here; its text says why."""


def say(text):
    print(text, flush=True)


def shown(argv):
    return " ".join("..." if "\n" in word else word for word in argv)


def run(argv, limit=COMMAND_LIMIT, env=None, text=None):
    """Runs a command to its end; returns its output. Its whole session is killed after the limit."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE if text else subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=env, start_new_session=True, text=True,
                               errors="backslashreplace")
    try:
        said, _ = process.communicate(text, timeout=limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failed("%s: more than %d s\n%s" % (shown(argv), limit, said)) from None
        raise
    if process.returncode:
        raise Failed("%s: exit code %d\n%s" % (shown(argv), process.returncode, said))
    return said


def archive():
    """The address and the name of this machine's release in apt's sources."""
    with open("/etc/os-release") as f:
        own = dict(line.rstrip("\n").replace('"', "").split("=", 1) for line in f if "=" in line)
    name = own.get("VERSION_CODENAME", "")
    said = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Codename: " + name,
                "Component: main"])
    if own.get("ID") != "debian" or not said.split():
        raise Skipped("no archive of Debian in apt's sources")
    return said.split()[0], name


def bootstrapped(suite, address):
    """A directory with the bare system, made by debootstrap once, packed."""
    os.makedirs(CACHE, exist_ok=True)
    packed = os.path.join(CACHE, suite + ".tar")
    with open(packed + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(packed):
            return packed
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bootstrap-", dir=CACHE) as room:
            system = os.path.join(room, "root")
            run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "debootstrap", "--variant=minbase",
                 suite, system, address], BOOTSTRAP_LIMIT)
            for cache in ("var/cache/apt", "var/lib/apt/lists"):
                shutil.rmtree(os.path.join(system, cache), ignore_errors=True)
            run(["tar", "-C", system, "--numeric-owner", "--one-file-system", "-cf", packed + ".new", "."])
            os.rename(packed + ".new", packed)
        say("  debootstrap of %s: %.0f s, %d MB" % (suite, time.monotonic() - began, os.path.getsize(packed) >> 20))
    return packed


class System:
    """A bare system, unpacked."""

    def __init__(self, room, packed):
        self.root = os.path.join(room, "root")
        os.mkdir(self.root)
        run(["tar", "-C", self.root, "--numeric-owner", "-xpf", packed])
        os.makedirs(self.at(HOME))
        os.chown(self.at(HOME), USER, USER)

    def at(self, path):
        return os.path.join(self.root, path.lstrip("/"))

    def enter(self, *argv, user=0, path="", script=None):
        """Runs a command inside; `path`: a directory before those of the system."""
        env = {"PATH": os.environ["PATH"], "HOME_INSIDE": HOME if user else "/root",
               "PATH_INSIDE": (path + ":" if path else "") + "/usr/sbin:/usr/bin:/sbin:/bin"}
        return run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", self.root,
                    "%d:%d" % (user, user), *argv], env=env, text=script)

    def demo(self, path=""):
        return self.enter("sh", "-xs", user=USER, path=path, script=DEMO)

    def glibc(self):
        return self.enter("ldd", "--version").split("\n")[0].split()[-1]

    def files(self):
        """Kind, owner, size and time of each file that isn't a package manager's."""
        found = {}
        for directory, names, others in os.walk(self.root):
            for name in names + others:
                path = os.path.join(directory, name)
                inner = os.path.relpath(path, self.root)
                s = os.lstat(path)
                if not OF_MANAGERS.match(inner):
                    # A directory's time changes as files come and go.
                    detail = () if stat.S_ISDIR(s.st_mode) else (s.st_size, s.st_mtime_ns)
                    found[inner] = (s.st_mode, s.st_uid, *detail)
        return found


def compare(before, after, what):
    left = sorted(set(after) - set(before))
    gone = sorted(set(before) - set(after))
    changed = sorted(path for path in before if path in after and before[path] != after[path])
    if left or gone or changed:
        raise Failed("%s: left %s, gone %s, changed %s" % (what, left[:10], gone[:10], changed[:10]))


def of_kind(release, ending):
    found = [f for f in os.listdir(release) if f.endswith(ending) and "debug" not in f]
    if len(found) != 1:
        raise Failed("%s has %d files *%s" % (release, len(found), ending))
    return os.path.join(release, found[0])


def deb(system, release):
    shutil.copy(of_kind(release, ".deb"), system.at("/package.deb"))
    system.enter("dpkg", "--install", "/package.deb")
    system.enter("sh", "-c", "ldconfig -p | grep -q libforebay_iov && cd / && "
                 "md5sum --check --quiet /var/lib/dpkg/info/forebay.md5sums")
    said = system.demo()
    system.enter("dpkg", "--purge", "forebay")
    os.unlink(system.at("/package.deb"))
    return said


def rpm(system, release):
    # The data base of packages is the bare system's own; the program rpm is this machine's.
    tool = ["rpm", "--root", system.root, "--dbpath", "/var/lib/rpm"]
    run([*tool, "--initdb"])
    run([*tool, "--install", "--nodeps", "--force-debian", of_kind(release, ".rpm")])
    run([*tool, "--verify", "--nodeps", "forebay"])
    said = system.demo()
    run([*tool, "--erase", "--force-debian", "forebay"])
    return said


def tarball(system, release):
    packed = of_kind(release, ".tar.xz")
    name = os.path.basename(packed)[:-len(".tar.xz")]
    # The bare system has no xz: its users have a full one, or unpack elsewhere.
    run(["tar", "-C", system.at(HOME), "--owner=%d" % USER, "--no-same-owner", "-xJf", packed])
    run(["chown", "-R", "%d:%d" % (USER, USER), system.at(HOME)])
    said = system.demo("%s/%s/bin" % (HOME, name))
    os.makedirs(system.at(HOME + "/software"))
    os.rename(system.at(HOME + "/" + name), system.at(HOME + "/software/moved"))
    system.demo(HOME + "/software/moved/bin")
    why = tutorial.missing(system.enter("sh", "-s", user=USER, path=HOME + "/software/moved/bin",
                                        script='cd "$HOME"\n' + tutorial.script()))
    if why:
        raise Failed("docs/tutorial.md: " + why)
    shutil.rmtree(system.at(HOME + "/forebay-tutorial"))
    shutil.rmtree(system.at(HOME + "/software"))
    return said


PACKAGES = {"tarball": tarball, "deb": deb, "rpm": rpm}


def checksums(release):
    """All files are as SHA256SUMS says."""
    done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=release, capture_output=True,
                          text=True, timeout=COMMAND_LIMIT)
    if done.returncode:
        raise Failed("SHA256SUMS: " + done.stdout + done.stderr)


def test(suite, address, release, room):
    """The number of packages that failed."""
    failed = 0
    packed = bootstrapped(suite, address)
    for name, function in PACKAGES.items():
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(dir=room) as here:
                system = System(here, packed)
                before = system.files()
                version = re.search("^forebay [0-9].*", function(system, release), re.M).group()
                compare(before, system.files(), "after it was removed")
                say("passed %s of %s on %s, glibc %s (%.1f s)" % (
                    name, version, suite, system.glibc(), time.monotonic() - began))
        except Failed as error:
            failed += 1
            say("FAILED %s on %s: %s" % (name, suite, error))
    return failed


def rooms_of_the_dead():
    """Removes what runs that were killed have left."""
    os.makedirs(CACHE, exist_ok=True)
    for name in os.listdir(CACHE):
        made_by = re.match(r"run-(\d+)-", name)
        if made_by and not os.path.exists("/proc/" + made_by.group(1)):
            shutil.rmtree(os.path.join(CACHE, name), ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--release", metavar="DIR", help="packages that are there already")
    parser.add_argument("--suite", action="append", metavar="NAME",
                        help="a release of Debian (default: this machine's)")
    options = parser.parse_args()
    if os.getuid():
        raise Skipped("a bare system needs root")
    for tool in ("debootstrap", "rpmbuild", "rpm", "unshare", "apt-get"):
        if not shutil.which(tool):
            raise Skipped("%s isn't here" % tool)
    address, own = archive()
    rooms_of_the_dead()
    with tempfile.TemporaryDirectory(prefix="run-%d-" % os.getpid(), dir=CACHE) as room:
        release = options.release
        if not release:
            release = os.path.join(room, "release")
            say(run([os.path.join(ROOT, "packaging/dist"), "--build", os.path.join(TARGET, "release"), "--to", release,
                     "--no-debug"]).strip())
        checksums(release)
        failed, count = 0, 0
        for suite in options.suite or [own]:
            failed += test(suite, address, os.path.abspath(release), room)
            count += len(PACKAGES)
    say("%d passed, %d failed" % (count - failed, failed))
    return 1 if failed else 0


def ended(number, _frame):
    raise SystemExit("ended by %s" % signal.Signals(number).name)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, ended)
    try:
        sys.exit(main())
    except Skipped as why:
        say("skipped: %s" % why)
        say("0 passed, 0 failed, 1 skipped")
    except Failed as why:
        sys.exit("FAILED: %s" % why)
