"""What programs and administrators expect of any file system in the kernel, through a mount."""
import os
import shutil
import subprocess
import sys

from cases.mounts import mounted
from harness import Skipped, case

# Lists argv[1] by getdents64 with a small buffer, as musl's programs do, and removes meanwhile.
LISTS = r'''
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(2048)

def pages(fd):
    """The entries by pages: (name, offset behind it)."""
    while True:
        n = libc.syscall(217, fd, buffer, len(buffer))
        assert n >= 0, os.strerror(ctypes.get_errno())
        if n == 0:
            return
        page, at = [], 0
        while at < n:
            offset, length = struct.unpack_from("<qH", buffer, at + 8)
            page.append((buffer.raw[at + 19:at + length].split(b"\0")[0].decode(), offset))
            at += length
        yield [(name, offset) for name, offset in page if name not in (".", "..")]

os.chdir(sys.argv[1])
N = 500

def fill(d, name):
    os.mkdir(d)
    for n in range(N):
        os.close(os.open("%s/%s" % (d, name(n)), os.O_CREAT | os.O_WRONLY))
    return os.open(d, os.O_RDONLY)

# Each entry is removed when it is seen.
fd, seen = fill("d", "file-{}".format), 0
for page in pages(fd):
    for name, _ in page:
        os.unlink("d/" + name)
        seen += 1
assert seen == N, "%d of %d names listed while they were removed" % (seen, N)
os.rmdir("d")

# Others are removed, what stays is seen once.
fd, seen = fill("e", lambda n: ("stay" if n % 2 else "go") + "-%d" % n), []
for number, page in enumerate(pages(fd)):
    seen += [name for name, _ in page if name.startswith("stay")]
    if number == 0:
        for n in range(0, N, 2):
            os.unlink("e/go-%d" % n)
assert len(seen) == len(set(seen)) == N // 2, "%d of %d entries that stayed" % (len(seen), N // 2)

# An offset means its entry, even if earlier ones, and that one, are removed.
os.lseek(fd, 0, os.SEEK_SET)
all = [entry for page in pages(fd) for entry in page]
for name, _ in all[:101]:
    os.unlink("e/" + name)
os.lseek(fd, all[100][1], os.SEEK_SET)
rest = [name for page in pages(fd) for name, _ in page]
assert rest == [name for name, _ in all[101:]], "%d entries behind the offset, not %d" % (len(rest), len(all) - 101)
# From the start there are the current entries.
os.lseek(fd, 0, os.SEEK_SET)
now = [name for page in pages(fd) for name, _ in page]
assert sorted(now) == sorted(os.listdir("e")) and len(now) == N // 2 - 101, len(now)
print("ok")
'''


@case(60)
def mount_small_listing_buffers(t):
    """Nothing is missed in a listing while files are removed, whatever the program's buffer."""
    t.up("p")
    with mounted(t, "p") as at:
        t.command([sys.executable, "-c", LISTS, at]).prints("^ok$")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


# $1: the mount, then the command for `forebay exec`. A file system is mounted on a name in the mount.
INSIDE = r'''
set -e; at=$1; shift
mkdir -p "$at/src" "$at/on/dir" "$at/on/tmp"; echo inside > "$at/src/f"; touch "$at/on/file"
mount --bind "$at/src" "$at/on/dir"; mount --bind "$at/src/f" "$at/on/file"; mount -t tmpfs none "$at/on/tmp"
for turn in 1 2 3; do
  for n in 1 2 3 4 5 6 7 8; do stat "$at/on/dir/f" "$at/on/file" "$at/on/none" > /dev/null 2>&1 || true; sleep 0.05; done
  "$@" sh -c "echo $turn > /fb/on/new; mv /fb/on/new /fb/on/$turn" < /dev/null
  [ "$(cat "$at/on/$turn")" = $turn ]
  [ "$(cat "$at/on/dir/f" "$at/on/file")" = "inside
inside" ]
done
[ "$(grep -c " $at/on/" /proc/self/mountinfo)" = 3 ] && echo "all are there"
umount "$at/on/tmp" "$at/on/file" "$at/on/dir"
'''


@case(60)
def mount_inside_a_mount(t):
    """What is mounted on names of a mount stays when other processes begin to use the pool."""
    if os.getuid() != 0:
        raise Skipped("mount namespaces need root")
    t.up("p")
    with mounted(t, "p") as at:
        t.command(["unshare", "--mount", "--propagation", "private", "bash", "-c", INSIDE, "bash", at,
                   t.forebay, "exec", "--pool", "p", "--"], timeout=40).prints("^all are there$")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


# $1: the mount, then the command for `forebay exec`.
MOUNTED_ON = r'''
set -e; at=$1; shift
name='a b\c'
mkdir -p "$at/d/$name"; mount -t tmpfs none "$at/d/$name"; echo kept > "$at/d/$name/f"
"$@" rmdir "/fb/d/$name" < /dev/null 2>&1 | grep -c "Device or resource busy" || true
rmdir "$at/d/$name" 2>&1 | grep -c "Device or resource busy" || true
"$@" sh -c 'mkdir /fb/other /fb/d/e; rmdir /fb/other /fb/d/e' < /dev/null
cat "$at/d/$name/f"
umount "$at/d/$name"
"$@" rmdir "/fb/d/$name" < /dev/null && echo "removed"
'''


@case(60)
def a_directory_that_has_a_mount_on_it_stays(t):
    """Neither a program in the pool nor one at the mount can remove it: it is EBUSY."""
    if os.getuid() != 0:
        raise Skipped("mount namespaces need root")
    t.up("p")
    with mounted(t, "p") as at:
        r = t.command(["unshare", "--mount", "--propagation", "private", "bash", "-c", MOUNTED_ON, "bash", at,
                       t.forebay, "exec", "--pool", "p", "--"], timeout=40)
        t.ok(r.out == "1\n1\nkept\nremoved\n", r.told())
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


REMOVED = r'''
import os, sys
at, beside = sys.argv[1], sys.argv[2:]
os.chdir(at)
def removed(how, flags=os.O_RDONLY):
    os.mkdir("gone", 0o750)
    fd = os.open("gone", flags)
    how()
    s = os.fstat(fd)
    assert (s.st_nlink, s.st_mode & 0o7777) == (0, 0o750), (s.st_nlink, oct(s.st_mode))
    assert flags == os.O_PATH or os.listdir(fd) == []
    path = "/proc/self/fd/%d" % fd
    os.chmod(path, 0o700)
    os.chown(path, os.getuid(), os.getgid())
    os.utime(path, (5, 7))
    s = os.fstat(fd)
    assert (s.st_nlink, s.st_mode & 0o7777, s.st_mtime) == (0, 0o700, 7), s
    if flags != os.O_PATH:
        os.fchmod(fd, 0o711)
        os.fchown(fd, os.getuid(), -1)
        assert os.fstat(fd).st_mode & 0o7777 == 0o711, os.fstat(fd)
    assert os.stat(".", dir_fd=fd).st_ino == s.st_ino
    os.fchdir(fd)
    try:
        os.close(os.open("new", os.O_CREAT | os.O_WRONLY))
        raise SystemExit("a file was created in a removed directory")
    except FileNotFoundError:
        pass
    os.chdir(at)
    os.close(fd)

def replaced():
    os.mkdir("other")
    os.rename("other", "gone")

import subprocess
removed(lambda: os.rmdir("gone"))
removed(replaced)
os.rmdir("gone")
for flags in (os.O_RDONLY, os.O_PATH):
    removed(lambda: subprocess.run([*beside, "rmdir", "/fb/gone"], check=True, timeout=20), flags)
removed(lambda: os.rmdir("gone"), os.O_PATH)
print("ok")
'''


@case(60)
def mount_removed_directory(t):
    """A removed directory that is open can be used as on other file systems."""
    t.up("p")
    with mounted(t, "p") as at:
        t.command([sys.executable, "-c", REMOVED, at, t.forebay, "exec", "--pool", "p", "--"]).prints("^ok$")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


# Programs that were executed in a removed directory know nothing of the one above it. The errors of
# all ways to it, one line each.
IN_REMOVED = r'''
import os
from errno import errorcode
CALLS = [os.stat, os.listdir, lambda p: os.open(p, os.O_RDONLY), lambda p: os.open(p, os.O_PATH),
         lambda p: os.chmod(p, 0o755), lambda p: os.chown(p, 0, 0), os.utime, os.chdir,
         lambda p: os.mkdir(p + "/x"), os.statvfs]
for path in ("..", "../.", "../..", "../../etc"):
    for call in CALLS:
        try:
            call(path)
            print("granted", path, call)
        except OSError as e:
            if e.errno != 2:
                print(path, errorcode[e.errno])
print(sorted(os.listdir(".")), os.path.exists("x"))
'''


@case(60)
def executed_in_a_removed_directory(t):
    """Whatever a program does with `..` there, it gets ENOENT."""
    for nodes in (1, 2):
        t.up("p", *(("--nodes", "2") if nodes > 1 else ()))
        for node in range(nodes):
            where = ("--node", str(node)) if nodes > 1 else ()
            t.command([t.forebay, "exec", "--pool", "p", *where, "--", "sh", "-c",
                       'mkdir /fb/d; cd /fb/d; rmdir /fb/d; exec "$@"', "sh", sys.executable, "-c", IN_REMOVED]
                      ).prints(r"^\[\] False$").quiet()
        t.fb("down", "--pool", "p")


# $2 bytes fit into the pool once. It is looked up by others, so that the mount keeps it for a moment.
REFILLS = r'''
import os, sys, time
os.chdir(sys.argv[1])
size, slowest = int(sys.argv[2]), 0
for n in range(5):
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    began = time.monotonic()
    os.posix_fallocate(fd, 0, size)
    slowest = max(slowest, time.monotonic() - began)
    os.close(fd)
    os.link("f", "l")
    os.rename("l", "m")
    assert os.stat("f").st_size == os.stat("m").st_size == size
    os.unlink("m"); os.unlink("f")
fd = os.open("f", os.O_CREAT | os.O_RDWR)
try:
    os.posix_fallocate(fd, 0, 2 * size)
    print("more than there is")
except OSError as e:
    print("errno", e.errno, "slow" if slowest > 2 else "in time")
'''


@case(60)
def mount_room_of_removed_files(t):
    """The room of a removed file is there for the next call; ENOSPC is only said when there is none."""
    t.up("p", media=("memory:64M",))
    # Another process uses the pool: the kernel asks for each name, and the mount keeps its file.
    other = t.start([t.forebay, "exec", "--pool", "p", "--", "sh", "-c", "cd /fb; echo; read x"], stdin=subprocess.PIPE)
    other.stdout.readline()
    with mounted(t, "p") as at:
        t.command([sys.executable, "-c", REFILLS, at, str(44 << 20)]).prints("^errno 28 in time$")
        t.finish(other, feed=b"\n")
        t.fb("umount", at)
    t.fb("down", "--pool", "p")


# $1: forebay, $2: where to mount, $3: a directory for files. mount(8) finds the link in a /sbin of its own.
BY_MOUNT = r'''
set -e; forebay=$1 at=$2 own=$3
sbin=$(readlink -f /sbin)
[ ! -x /sbin/mount.fuse3 ] || cp /sbin/mount.fuse3 "$own/mount.fuse"
mount -t tmpfs none "$sbin"; ln -s "$forebay" "$sbin/mount.fuse.forebay"
mount -t fuse.forebay -o allow_other,noatime forebay:p "$at"; umount "$at"
# libmount hands "dev" to no helper.
"$forebay" mount --pool p --allow-other --dev "$at"
mknod "$at/null" c 1 3; echo > "$at/null" && echo "a device"
echo one > "$at/f"
mount -o remount,ro "$at"; echo > "$at/null"; touch "$at/f" 2> /dev/null || echo "nothing can be changed"
mount -o remount,rw,noexec "$at"; printf '#!/bin/sh\necho started\n' > "$at/x"; chmod 755 "$at/x"
"$at/x" 2> /dev/null || echo "nothing is started"
umount "$at"
echo "forebay:p $at fuse.forebay ro,noauto,nofail,x-a-comment 0 0" > "$own/fstab"
mount --fstab "$own/fstab" "$at"; mount --fstab "$own/fstab" --all
cat "$at/f"; grep -c " $at fuse.forebay ro," /proc/mounts; umount "$at"
mount -t fuse.forebay -o max_read=1 forebay:p "$at" || echo "refused"
# fuse's own helper starts the command by its name.
[ -e "$own/mount.fuse" ] || { echo "by name"; exit 0; }
rm "$sbin/mount.fuse.forebay"; cp "$own/mount.fuse" "$sbin/mount.fuse"
ln -s "$forebay" "$sbin/forebay"
mount -t fuse.forebay forebay:p "$at" && cat "$at/f" > /dev/null && echo "by name"
umount "$at"
'''


@case(60)
def mount_by_the_mount_command(t):
    """mount(8), fstab and remounting, by the helper that packages install."""
    if os.getuid() != 0 or not shutil.which("unshare"):
        raise Skipped("mount(8) needs root")
    t.up("p")
    at, own = os.path.join(t.disk, "mnt"), os.path.join(t.disk, "own")
    os.mkdir(at)
    os.mkdir(own)
    os.chmod(t.disk, 0o711)
    r = t.command(["unshare", "--mount", "--propagation", "private", "bash", "-c", BY_MOUNT, "bash", t.forebay, at, own],
                  timeout=40)
    r.prints("^a device$", "^nothing can be changed$", "^nothing is started$", "^one$", "^1$", "^refused$", "^by name$")
    r.says("max_read=1' isn't kept")
    t.fb("down", "--pool", "p")
