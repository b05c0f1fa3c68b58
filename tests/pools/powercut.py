#!/usr/bin/env python3
"""Losses of power on a real file system, by hand: needs root, a loop device and ext4.

A pool lies on an ext4 that is shut down (EXT4_IOC_SHUTDOWN without flushing: what the kernel
hasn't written yet is lost) while programs create, sync, replace and remove files in it. Then
everything is killed, the file system is mounted again, the pool opened from what is left,
checked, and compared with what the programs had been promised.

    python3 tests/pools/powercut.py [ROUNDS [NODES]]
"""
import ctypes
import fcntl
import hashlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOREBAY = os.environ.get("FOREBAY", os.path.join(
    os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release/forebay"))
LIMIT = 60


def content(name, serial, n):
    block = hashlib.sha256(("%s %d" % (name, serial)).encode()).digest()
    return (block * (n // 32 + 1))[:n]


def work(top, who, log):
    """Random operations. Writes to `log` what begins, and what is promised from then on."""
    log = open(log, "a", buffering=1)
    r = random.Random(os.getpid())
    here = "%s/w%s" % (top, who)
    os.makedirs(here, exist_ok=True)
    for serial in range(1, 1 << 30):
        name = "w%s/f%d" % (who, r.randrange(40))
        path, other = top + "/" + name, "%s/u%d" % (here, r.randrange(30))
        n = r.choice([0, 10, 900, 3000, 5000, 70000, 1500000])
        what = r.randrange(10)
        if what < 4:
            log.write("begin %s %d %d\n" % (name, serial, n))
            with open(path + ".tmp", "wb") as f:
                f.write(content(name, serial, n))
                f.flush()
                os.fsync(f.fileno())
            os.rename(path + ".tmp", path)
            fd = os.open(here, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            log.write("end %s %d %d\n" % (name, serial, n))
        elif what < 7:
            with open(other, "wb") as f:
                f.write(content("u", serial, n))
        elif what == 7 and os.path.exists(path):
            log.write("begin %s -1 0\n" % name)
            os.unlink(path)
        elif what > 7 and os.path.exists(other):
            os.unlink(other)


def churn(top):
    """Names that come and go, so that checkpoints are due."""
    os.makedirs(top + "/churn", exist_ok=True)
    for i in range(1 << 40):
        path = "%s/churn/%d" % (top, i % 500)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        os.rename(path, path + "x")
        os.unlink(path + "x")


def verify(top, logs):
    allowed = {}
    for log in logs:
        for line in open(log):
            words = line.split()
            if len(words) == 4 and line.endswith("\n"):
                name, serial, n = words[1], int(words[2]), int(words[3])
                one = (serial, n) if serial >= 0 else None
                if words[0] == "begin":
                    allowed.setdefault(name, [None]).append(one)
                else:
                    allowed[name] = [one]
    wrong = 0
    for name, ways in allowed.items():
        try:
            with open(top + "/" + name, "rb") as f:
                got = f.read()
        except FileNotFoundError:
            got = None
        if not any(got is None if way is None else got == content(name, *way) for way in ways):
            wrong += 1
            print("%s: not one of %s, but %s" % (name, ways, got and (len(got), got[:8])))
    print("%d files compared, %d wrong" % (len(allowed), wrong))
    return wrong == 0


def forebay(*words, quiet=False):
    done = subprocess.run([FOREBAY, *words], timeout=LIMIT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if not quiet or done.returncode:
        print(done.stdout, end="")
    return done


def apart():
    """From now on, this process mounts in a namespace of its own: in a copy that another process takes, a file system
    would outlive its unmounting, shut down as it is, and come back when it is mounted again."""
    new_mounts = 0x00020000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(new_mounts) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace can be made")
    subprocess.run(["mount", "--make-rslave", "/"], check=True)


def one_round(number, base, loop, nodes):
    mount, home = base + "/mnt", base + "/home"
    subprocess.run(["mkfs.ext4", "-q", "-F", loop], check=True)
    subprocess.run(["mount", loop, mount], check=True)
    os.mkdir(home, 0o700)
    os.environ["FOREBAY_HOME"] = home
    logs = ["%s/log%d" % (base, w) for w in (1, 2)]
    programs = []
    good = True
    try:
        several = ["--nodes", str(nodes)] if nodes > 1 else []
        media = "files:%s:%dM" % (mount, 192 // nodes if nodes > 1 else 96)
        good &= forebay("up", *several, "--media", media, quiet=True).returncode == 0
        me = [FOREBAY, "exec", "--", sys.executable, os.path.abspath(__file__)]
        jobs = [["work", "/fb", str(w + 1), log] for w, log in enumerate(logs)] + [["churn", "/fb"]]
        for at, job in enumerate(jobs):
            where = ["--node", str(at % nodes)] if nodes > 1 else []
            programs.append(subprocess.Popen(me[:2] + where + me[2:] + job,
                                             stderr=subprocess.DEVNULL))
        time.sleep(random.uniform(1, 5))
        keepers = []
        for at in ["/node-%d" % n for n in range(nodes)] if nodes > 1 else [""]:
            with open(home + "/default" + at + "/keeper.pid") as f:
                keepers.append(int(f.read()))
        fd = os.open(mount, os.O_RDONLY)
        fcntl.ioctl(fd, 0x8004587d, struct.pack("I", 2))
        os.close(fd)
        for p in programs:
            p.kill()
            p.wait()
        for keeper in keepers:
            os.kill(keeper, signal.SIGKILL)
        shutil.rmtree(home + "/default")
        for _ in range(50):
            if subprocess.run(["umount", mount], stderr=subprocess.DEVNULL).returncode == 0:
                break
            time.sleep(0.1)
        subprocess.run(["mount", loop, mount], check=True)
        good &= forebay("up", "--reopen", "--from", mount).returncode == 0
        good &= forebay("exec", "--", *me[3:], "verify", "/fb", *logs).returncode == 0
        good &= forebay("fsck").returncode == 0
    finally:
        for p in programs:
            p.kill()
        forebay("down", "--force", quiet=True)
        shutil.rmtree(home, ignore_errors=True)
        for log in logs:
            if os.path.exists(log):
                os.unlink(log)
        subprocess.run(["umount", mount])
    print("round %d: %s" % (number, "passed" if good else "FAILED"))
    return good


def main():
    jobs = {"work": work, "churn": churn}
    if len(sys.argv) > 1 and sys.argv[1] in jobs:
        return jobs[sys.argv[1]](*sys.argv[2:])
    if len(sys.argv) > 1 and sys.argv[1] == "verify":
        return 0 if verify(sys.argv[2], sys.argv[3:]) else 1
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    nodes = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    base = tempfile.mkdtemp(prefix="forebay-powercut-", dir="/var/tmp")
    loop = None
    try:
        apart()
        os.mkdir(base + "/mnt")
        with open(base + "/image", "wb") as f:
            f.truncate(600 << 20)
        loop = subprocess.run(["losetup", "-f", "--show", base + "/image"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.strip()
        return 0 if all([one_round(n + 1, base, loop, nodes) for n in range(rounds)]) else 1
    finally:
        if loop:
            subprocess.run(["losetup", "-d", loop])
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
