"""Files with weaker consistency: when others see a program's writes, for all ways in which a program goes on."""
import os
import shutil
import subprocess
import sys
import time

from harness import Skipped, case

# Writes to a file of another node; waits; does what it was given; waits.
WRITER = r'''
import fcntl, os, socket, subprocess, sys, time
path, event = sys.argv[1:]
fd = os.open(path, os.O_RDWR)
def say(what):
    os.write(1, what.encode() + b"\n")
    sys.stdin.readline()
def write(what):
    assert os.write(fd, what) == len(what)
write(b"a")
write(b"bc")
assert os.pread(fd, 3, 0) == b"abc"
say("written")
exec(event)
say("done")
'''

# A program's actions, and what others see of its writes. From `ends` on it has ended.
EVENTS = {
    "fsync": "os.fsync(fd)",
    "fdatasync": "os.fdatasync(fd)",
    "close": "os.close(fd)",
    "close of a duplicate": "os.close(os.dup(fd))",
    "dup2": "os.dup2(0, fd)",
    "close_range": "os.closerange(fd, fd + 1)",
    "sync": "os.sync()",
    "ftruncate": "os.ftruncate(fd, 3)",
    "fallocate": "os.posix_fallocate(fd, 0, 3)",
    "stat by its path": "assert os.stat(path).st_size == 3",
    "the end": "assert os.lseek(fd, 0, os.SEEK_END) == 3",
    "times": "os.utime(fd, (5, 5)); assert os.stat(path).st_mtime == 5",
    "rename": "os.rename(path, path + '-'); os.rename(path + '-', path)",
    "flock": "fcntl.flock(fd, fcntl.LOCK_EX); os.pwrite(fd, b'a', 0); fcntl.flock(fd, fcntl.LOCK_UN)",
    "lockf": "fcntl.lockf(fd, fcntl.LOCK_EX); os.pwrite(fd, b'a', 0); fcntl.lockf(fd, fcntl.LOCK_UN)",
    "fork": "if os.fork() == 0: os._exit(0)",
    "a child of vfork": "subprocess.run(['true'], close_fds=False)",
    "mmap": "import mmap; mmap.mmap(fd, 3, mmap.MAP_SHARED)",
    "a descriptor that is passed": "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [fd])",
    "sendfile": "import tempfile; t = tempfile.TemporaryFile(dir='/tmp'); assert os.sendfile(t.fileno(), fd, 0, 4) == 3",
    "exec": "os.execvp('cat', ['cat'])",
    "exit": "sys.exit(0)",
    "_exit": "os._exit(0)",
    "an exception": "raise SystemExit(3)",
}

# Prints the content of the files that it is asked for.
READER = r'''
import sys
for line in sys.stdin:
    print(open(line.strip(), "rb").read().decode(), flush=True)
'''


def python(t, node, script, *arguments):
    words = [t.forebay, "exec", "--pool", "p", "--node", str(node), "--", sys.executable, "-c", script, *arguments]
    return t.start(words, stdin=subprocess.PIPE)


def said(process, what):
    process.stdin.write(what.encode() + b"\n")
    process.stdin.flush()
    return process.stdout.readline().decode().rstrip("\n")


def up(t, what):
    t.up("p", "--nodes", "3", "--request-timeout", "5")
    t.command([t.forebay, "exec", "--pool", "p", "--node", "1", "--", "mkdir", "/fb/c"])
    t.fb("set", "--pool", "p", "/c", what)


def make(t, names):
    """They lie on node 1."""
    t.command([t.forebay, "exec", "--pool", "p", "--node", "1", "--", "bash", "-c",
               'cd /fb/c && for n in "$@"; do > "$n"; done', "-", *names])


@case(90)
def what_is_written_is_seen_when_it_is_committed(t):
    up(t, "consistency=commit")
    make(t, EVENTS)
    reader = python(t, 2, READER)
    for name, event in EVENTS.items():
        path = "/fb/c/" + name
        writer = python(t, 0, WRITER, path, event)
        t.ok(writer.stdout.readline() == b"written\n", name)
        t.ok(said(reader, path) == "", "seen before: " + name)
        ends = event.startswith(("os.exec", "sys.exit", "os._exit", "raise"))
        if ends:
            writer.stdin.close()
            t.ok(writer.wait(20) in (0, 3), name)
        else:
            t.ok(said(writer, "") == "done", name)
        t.ok(said(reader, path) == "abc", "not seen after: " + name)
        writer.kill()
        writer.wait(10)
        t.ok(said(reader, path) == "abc", "gone after: " + name)
    reader.kill()
    reader.wait(10)
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def what_was_not_committed_is_lost_with_the_program(t):
    up(t, "consistency=commit")
    make(t, ["killed", "forked", "full"])
    reader = python(t, 2, READER)
    writer = python(t, 0, WRITER, "/fb/c/killed", "os.fsync(fd); write(b'def')")
    t.ok(writer.stdout.readline() == b"written\n", "it writes")
    t.ok(said(writer, "") == "done", "it writes more")
    writer.kill()
    writer.wait(10)
    t.ok(said(reader, "/fb/c/killed") == "abc", "what was committed stays, the rest doesn't come")
    # Nothing is published twice: neither by a child that ends later, nor by its parent.
    writer = python(t, 0, WRITER, "/fb/c/forked",
                    "if os.fork() == 0:\n os.pwrite(fd, b'C', 2); os._exit(0)\n"
                    "os.wait(); say('child'); os.close(fd)")
    t.ok(writer.stdout.readline() == b"written\n", "it writes")
    t.ok(said(writer, "") == "child", "its child has ended")
    t.ok(said(reader, "/fb/c/forked") == "abC", "the child's came")
    t.command([t.forebay, "exec", "--pool", "p", "--node", "2", "--", "bash", "-c",
               "printf new > /fb/c/forked"])
    t.ok(said(writer, "") == "done", "it closes")
    t.ok(said(reader, "/fb/c/forked") == "new", "nothing came again")
    writer.kill()
    writer.wait(10)
    reader.kill()
    reader.wait(10)
    # An error that no call can return is reported on standard error.
    for event, told in (("os.close(fd)", "No space left on device"),
                        ("os._exit(0)", "/fb/c/full: some of what was written before the last commit is lost")):
        script = ("import os\nfd = os.open('/fb/c/full', os.O_WRONLY)\n"
                  "try:\n for n in range(300): os.write(fd, bytes(1_000_000))\nexcept OSError as e: print(e.errno)\n" + event)
        words = [t.forebay, "exec", "--pool", "p", "--node", "0", "--", sys.executable, "-c", script]
        t.command(words, rc=None, timeout=60).says(told)
        t.fb("exec", "--pool", "p", "--", "truncate", "-s", "0", "/fb/c/full")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def what_was_closed_is_seen_by_who_opens(t):
    """consistency = session, and eventual: readers of small pieces on another node."""
    up(t, "consistency=session")
    make(t, ["s", "e"])
    t.fb("set", "--pool", "p", "/c/e", "consistency=eventual(200ms)")
    script = r'''
import os, sys
for line in sys.stdin:
    path = line.strip()
    if path: fd = os.open(path, os.O_RDONLY); at = 0
    print(os.pread(fd, 10, at).decode(), flush=True); at += 10
'''

    def write(name, letter):
        t.command([t.forebay, "exec", "--pool", "p", "--node", "0", "--", "bash", "-c",
                   "head -c 5000 /dev/zero | tr '\\0' %s > /fb/c/%s" % (letter, name)])
    reader = python(t, 2, script)
    write("s", "a")
    t.ok(said(reader, "/fb/c/s") == "a" * 10, "the first")
    write("s", "b")
    t.ok(said(reader, "") == "a" * 10, "it was read ahead")
    t.ok(said(reader, "/fb/c/s") == "b" * 10, "opened anew")
    write("e", "a")
    t.ok(said(reader, "/fb/c/e") == "a" * 10, "the first")
    write("e", "b")
    for _ in range(400):
        if said(reader, "") == "b" * 10:
            break
        time.sleep(0.005)
    else:
        t.ok(False, "it isn't seen")
    reader.kill()
    reader.wait(10)
    t.fb("rules", "explain", "--pool", "p", "/c/e").prints("consistency +eventual.200ms. +declared for it")
    t.fb("down", "--pool", "p")


# Two threads and a signal handler write, read and commit by one descriptor, each its own bytes, for a second.
BUSY = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>
enum { ROOM = 1 << 20 };
static int fd;
static volatile unsigned ticks, over;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static void tick(int s) {
    ticks++;
    if (pwrite(fd, (void *)&ticks, 4, 0) != 4) _exit(2);
    if (ticks % 50 == 0 && fsync(fd)) _exit(3);
}
static void *busy(void *which) {
    unsigned first = *(unsigned *)which, n = 0;
    double end = now() + 1;
    while (now() < end) {
        unsigned record[25], at = (n * 37 % 1000) * 100, i;
        for (i = 0; i < 25; i++) record[i] = n;
        if (pwrite(fd, record, 100, first * ROOM + at) != 100) _exit(4);
        memset(record, 0, 100);
        if (pread(fd, record, 100, first * ROOM + at) != 100 || record[0] != n || record[24] != n) _exit(5);
        n++;
        if (n % 200 == 0 && fsync(fd)) _exit(6);
        if (n % 500 == 0) {
            pid_t child = fork();
            if (child == 0) _exit(0);
            if (child > 0) while (waitpid(child, 0, 0) < 0) {}
        }
    }
    printf("%u\n", n);
    return 0;
}
int main(int argc, char **argv) {
    unsigned one = 1, two = 2, i;
    pthread_t other;
    struct itimerval each = {{0, 1000}, {0, 1000}}, none = {{0, 0}, {0, 0}};
    struct sigaction act = {.sa_handler = tick, .sa_flags = SA_RESTART};
    fd = open(argv[1], O_RDWR);
    sigaction(SIGALRM, &act, 0);
    setitimer(ITIMER_REAL, &each, 0);
    pthread_create(&other, 0, busy, &two);
    busy(&one);
    pthread_join(other, 0);
    setitimer(ITIMER_REAL, &none, 0);
    printf("%u\n", ticks);
    return close(fd);
}
"""

# The last record at each place, by how many there were.
LEFT = r"""
import struct, sys
content = open(sys.argv[1], "rb").read()
counts = [int(n) for n in sys.argv[2:]]
assert struct.unpack_from("<I", content)[0] == counts.pop(), content[:4]
threads = sorted(counts)
found = []
for first in (1, 2):
    records = [struct.unpack_from("<25I", content, (first << 20) + k * 100) for k in range(1000)]
    assert all(len(set(r)) == 1 for r in records)
    n = max(r[0] for r in records) + 1
    wanted = [0] * 1000
    for i in range(n):
        wanted[i * 37 % 1000] = i
    assert [r[0] for r in records] == wanted
    found.append(n)
assert sorted(found) == threads, (found, threads)
"""


@case(60)
def threads_and_handlers_write_while_others_publish(t):
    if not shutil.which("gcc"):
        raise Skipped("it needs gcc")
    source, program = os.path.join(t.disk, "busy.c"), os.path.join(t.disk, "busy")
    with open(source, "w") as f:
        f.write(BUSY)
    t.command(["gcc", "-O1", "-pthread", "-o", program, source], timeout=30)
    up(t, "consistency=commit")
    make(t, ["busy"])
    counts = t.command([t.forebay, "exec", "--pool", "p", "--node", "0", "--", program, "/fb/c/busy"], timeout=40).out.split()
    t.command([t.forebay, "exec", "--pool", "p", "--node", "2", "--", sys.executable, "-c", LEFT, "/fb/c/busy", *counts])
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")
