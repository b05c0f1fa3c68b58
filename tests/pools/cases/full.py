"""Full media."""
import os
import re
import shutil

from harness import case, wait_until
from .killed import all_gives_room_back
from .staging import printed_command


@case(30)
def full_medium(t):
    t.up("p", media=["memory:8M"])
    t.bash("p", "head -c 1500000 /dev/urandom > /fb/keep; cd /fb; sha256sum keep > sum")
    r = t.bash("p", "dd if=/dev/zero of=/fb/big bs=1M count=20", rc=1)
    r.says("No space left on device")
    size = int(t.bash("p", "stat -c %s /fb/big").out)
    t.ok(5 << 20 <= size < 7 << 20, "the short file has %d bytes" % size)
    said = re.search(r"^(\d+) bytes", r.err, re.M)
    t.ok(said and int(said.group(1)) == size, "dd says that it wrote %s, the size is %d" % (
        said and said.group(1), size))
    t.ok(int(t.bash("p", "cat /fb/big | tr -d '\\0' | wc -c").out) == 0, "not all zeros")
    t.file(t.work + "/source", 4 << 20)
    t.exec("p", "cp", t.work + "/source", "/fb/copy", rc=1).says("No space left on device")
    t.bash("p", "cd /fb && sha256sum -c --quiet sum").quiet()
    t.fb("df", "--pool", "p").prints("^memory:8M +8.0 MiB +[78].* (9[0-9]|100)% ")
    t.python("p", r'''
import errno, os
fd = os.open("/fb/short", os.O_RDWR | os.O_CREAT)
total = 0
while True:
    try:
        n = os.write(fd, b"s" * 300000)
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
        break
    assert 0 < n <= 300000
    total += n
assert os.fstat(fd).st_size == total
assert os.pread(fd, total + 10, 0) == b"s" * total
# Operations that need no room go on.
keep = os.open("/fb/keep", os.O_RDWR)
old = os.pread(keep, 100, 70000)
assert os.pwrite(keep, b"o" * 100, 70000) == 100
assert os.pread(keep, 100, 70000) == b"o" * 100
os.pwrite(keep, old, 70000)
os.rename("/fb/short", "/fb/renamed")
os.mkdir("/fb/dir")
os.symlink("x", "/fb/dir/l")
with open("/fb/dir/small", "w") as f:
    f.write("small")
assert open("/fb/dir/small").read() == "small"
try:
    os.posix_fallocate(fd, 0, 30 << 20)
    assert False, "fallocate of 30 MiB in 8"
except OSError as e:
    assert e.errno == errno.ENOSPC, e
assert os.fstat(fd).st_size == total
os.ftruncate(fd, 10)
assert os.read(keep, 5)
''').quiet()
    t.bash("p", "cd /fb && sha256sum -c --quiet sum && rm -r big renamed copy dir").quiet()
    # There is room again, for another file and for the next one.
    for _ in range(2):
        wait_until(lambda: t.used("p") < 2 << 20, 5, "room after rm")
        t.bash("p", "dd if=/dev/urandom of=/fb/again bs=1M count=6 && test $(stat -c %s "
                    "/fb/again) = 6291456 && rm /fb/again")
    t.bash("p", "cd /fb && sha256sum -c --quiet sum").quiet()
    t.fb("stage", "in", t.work + "/source", "/fits", "--pool", "p")
    t.file(t.work + "/too-large", 9 << 20)
    r = t.fb("stage", "in", t.work + "/too-large", "/large", "--pool", "p", rc=120)
    r.says("No space left|full", "forebay stage in")
    t.bash("p", "test ! -e /fb/large && cd /fb && sha256sum -c --quiet sum").quiet()
    t.fb("down", "--pool", "p")


@case(30)
def overflow(t):
    t.up("p", media=["memory:8M", "files:%s:64M" % t.disk])
    t.bash("p", '''set -e; cd /fb; for n in 1 2 3 4 5 6; do head -c $((n * 1777777)) /dev/urandom > f$n
        done; (for n in 1 2 3 4; do head -c 1000000 /dev/urandom; done) > g
        sha256sum f? g > sums; sha256sum -c --quiet sums''').quiet()
    media = t.fb("df", "--pool", "p", "--json").json()["media"]
    t.ok(media[0]["used"] > 6 << 20, "the first medium isn't full: %s" % media)
    t.ok(media[1]["used"] > 25 << 20, "the second medium isn't used: %s" % media)
    t.exec("p", "cmp", "/fb/f6", "/fb/f6")
    t.bash("p", "cd /fb; dd if=/dev/zero of=big bs=1M count=100", rc=1).says("No space left")
    size = int(t.bash("p", "stat -c %s /fb/big").out)
    t.ok(size >= 28 << 20, "only %d MiB of about 31 fit" % (size >> 20))
    t.bash("p", "cd /fb; sha256sum -c --quiet sums").quiet()
    # From another process, after another program, and staged out.
    t.fb("stage", "out", "/", t.work + "/out", "--pool", "p")
    t.command(["sha256sum", "-c", "--quiet", "sums"], cwd=t.work + "/out").quiet()
    all_gives_room_back(t, "p")
    t.fb("down", "--pool", "p")
    t.ok(os.listdir(t.disk) == [], "left in the medium: %s" % os.listdir(t.disk))


@case(20)
def overflow_from_a_medium_in_pieces(t):
    """Free space in many small pieces is not a full medium."""
    t.up("p", media=["memory:8M", "files:%s:256M" % t.disk])
    t.bash("p", '''mkdir /fb/s; cd /fb/s; for i in $(seq 1 900); do printf %08192d 0 > f$i
        done; rm f*[13579]''').quiet()
    t.check("overflow", t.bash, "p", "head -c 30000000 /dev/urandom > /fb/big")
    t.check("all of the first medium", t.bash, "p",
            "dd if=/dev/zero of=/fb/many bs=4k count=40000")
    t.up("q", media=["memory:8M"])
    t.bash("q", '''mkdir /fb/s; cd /fb/s; for i in $(seq 1 900); do printf %08192d 0 > f$i
        done; rm f*[13579]''').quiet()
    t.check("3 MB in pieces", t.bash, "q", "head -c 3000000 /dev/urandom > /fb/big; wc -c < /fb/big; "
            "test $(stat -c %s /fb/big) = 3000000")


@case(30)
def run_with_too_little_room(t):
    t.file(t.work + "/large", 20 << 20)
    flag = t.work + "/flag"
    r = t.fb("run", "--media", "memory:8M", "--in", t.work + "/large:/x", "--", "touch", flag,
             rc=121)
    r.says("stage-in failed", "No space left|full", "nothing was run, and the pool is removed")
    t.check("a hint", r.says, "--media")
    t.ok(not os.path.exists(flag), "the program was run")
    t.nothing_left("run")
    r = t.fb("run", "--in", t.work + "/no-such:/x", "--", "touch", flag, rc=121)
    r.says("no-such", "nothing was run").one_line()
    r = t.fb("run", "--in", t.work + "/large:/x", "--", "no-such-program", rc=127).one_line()
    r.says("there is no such program")
    t.nothing_left("run")
    # The program meets the full medium; what it made is staged out all the same.
    r = t.fb("run", "--media", "memory:8M", "--out", "/r:%s/r" % t.work, "--", "bash", "-c",
             "mkdir /fb/r; echo a > /fb/r/a; dd if=/dev/zero of=/fb/r/b bs=1M count=20", rc=1)
    r.says("No space left", "staged out /r", "exit code 1")
    t.ok(os.path.getsize(t.work + "/r/a") == 2, "a is not there")
    t.nothing_left("run")


@case(30)
def stage_out_impossible(t):
    make = "mkdir -p /fb/r/d; for n in 1 2 3; do head -c ${n}00000 /dev/urandom > /fb/r/f$n; done; " \
           "echo x > /fb/r/d/x; cd /fb/r; sha256sum f? d/x > sums"
    # A file where the directory should be: nothing is run. One that comes later: the pool stays.
    dest, flag = t.work + "/dest", t.work + "/flag"
    t.file(dest, 10)
    r = t.fb("run", "--out", "/r:%s/below" % dest, "--", "touch", flag, rc=1)
    r.says("stage-out to .*/below is impossible: .*/dest is no directory", "nothing was run")
    t.ok(not os.path.exists(flag), "the program was run")
    t.nothing_left("run")
    os.unlink(dest)
    r = t.fb("run", "--out", "/r:%s/below" % dest, "--", "bash", "-c", make + "; touch " + dest, rc=120)
    r.says("stage-out is incomplete, so the pool 'run-\\d+' stays", "program: exit code 0")
    os.unlink(dest)
    t.fb(*printed_command(r, "stage out"))
    t.command(["sha256sum", "-c", "--quiet", "sums"], cwd=dest + "/below").quiet()
    t.fb(*printed_command(r, "down --pool"))
    t.nothing_left("down")
    # One of the files can't be written; the others arrive.
    os.makedirs(t.work + "/two/f2/in-the-way")
    r = t.fb("run", "--pool", "two", "--out", "/r:%s/two" % t.work, "--", "bash", "-c", make,
             rc=120).says("f2", "the pool 'two' stays")
    t.ok(os.path.getsize(t.work + "/two/f3") == 300000, "f3 has not arrived")
    t.fb("stage", "out", "/r", t.work + "/two", "--pool", "two", rc=120).says("f2")
    os.rmdir(t.work + "/two/f2/in-the-way")
    os.rmdir(t.work + "/two/f2")
    t.fb(*printed_command(r, "stage out"))
    t.command(["sha256sum", "-c", "--quiet", "sums"], cwd=t.work + "/two").quiet()
    t.fb(*printed_command(r, "down --pool"))
    t.nothing_left("down")
    # The program's success without its results is none; its failure without them is its own.
    r = t.fb("run", "--pool", "three", "--out", "/none:%s/three" % t.work, "--", "true", rc=120)
    r.says("/none", "stays")
    t.fb("down", "--pool", "three")
    r = t.fb("run", "--out", "/none:%s/four" % t.work, "--", "bash", "-c", "exit 9", rc=9)
    r.says("nothing staged out of /none")
    # A full file system, where one can be made.
    small = t.work + "/small"
    os.mkdir(small)
    made = os.geteuid() == 0 and shutil.which("mount") and t.command(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small], rc=None).rc == 0
    if made:
        try:
            r = t.fb("run", "--out", "/r:%s/r" % small, "--", "bash", "-c", make, rc=120)
            r.says("No space left", "fetch it with: forebay stage out")
            for where, _, names in os.walk(small):
                for name in names:
                    if name in ("f1", "f2", "f3"):
                        t.ok(os.path.getsize(where + "/" + name) == int(name[1]) * 100000,
                             "%s is short and has its name" % name)
            t.command(["mount", "-o", "remount,size=10M", small])
            t.fb(*printed_command(r, "stage out"))
            t.command(["sha256sum", "-c", "--quiet", "sums"], cwd=small + "/r").quiet()
            t.fb(*printed_command(r, "down --pool"))
        finally:
            t.command(["umount", "-l", small], rc=None)
    t.nothing_left("the end")
