"""Jobs of two users at the same time, on the same nodes."""
import json
import os
import pwd
import shutil
import subprocess

from harness import Failed, Skipped, case, kill, processes_with, wait_until
from .slurm import Slurm
from .slurm_jobs import PACKAGING, small_command

# Accounts of every Debian that own no files; Slurm wants users that can be looked up.
USERS = ["nobody", "games"]
# Both users choose the same name for their pool, and the same names for their files.
JOB = """#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --mem=200 --time=10
set -e
export FOREBAY_POOL=job
trap 'forebay stage out /output $PWD/output && forebay down' EXIT
forebay up
srun forebay exec -- bash -c 'mkdir -p /fb/output; echo "of $(id -un)" > /fb/output/part-$SLURM_PROCID'
forebay exec -- env -0 > environment
touch ready
until [[ -e go ]]; do sleep 0.1; done
srun forebay exec -- bash -c 'cat /fb/output/part-* > /fb/output/all-$SLURM_PROCID'
"""
EPILOG = """#!/bin/bash
export FOREBAY_BIN={bin} FOREBAY_HOME={work}/$SLURM_JOB_USER/home
exec {epilog}
"""
# Prints what can be opened of the paths on its standard input. Processes among them may have ended.
OPEN = r"""
import os, sys
for path in sys.stdin.read().split("\0"):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        print(path)
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        pass
"""


class User:
    """A user with a directory, a home of pools, and a job."""

    def __init__(self, t, cluster, name, job=JOB):
        entry = pwd.getpwnam(name)
        self.t, self.name, self.uid, self.gid = t, name, entry.pw_uid, entry.pw_gid
        self.dir = "%s/%s" % (t.work, name)
        self.home = self.dir + "/home"
        os.mkdir(self.dir)
        os.chown(self.dir, self.uid, self.gid)
        with open(self.dir + "/job.sh", "w") as f:
            f.write(job)
        self.env = {**os.environ, **cluster.env, "PATH": t.work + "/bin:" + cluster.env["PATH"],
                    "FOREBAY_HOME": self.home, "HOME": self.dir, "USER": name}
        self.does("mkdir", self.home)

    def does(self, *words, env=None, feed=""):
        return subprocess.run(words, env={**self.env, **(env or {})}, cwd=self.dir, input=feed, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=30, text=True, user=self.uid, group=self.gid,
                              extra_groups=[])

    def submit(self):
        done = self.does("sbatch", "--parsable", "--output=job.out", "job.sh")
        if done.returncode:
            raise Failed("sbatch as %s: %s" % (self.name, done.stdout))
        self.number = done.stdout.strip()

    def output(self):
        try:
            with open(self.dir + "/job.out", errors="replace") as f:
                return "%s:\n%s" % (self.name, f.read())
        except OSError:
            return self.name + ": no output"

    def has(self, name):
        return os.path.exists("%s/%s" % (self.dir, name))

    def pools(self):
        return sorted(name for name in os.listdir(self.home) if not name.startswith("sites-"))

    def sees_nothing_of(self, other):
        """What one user can do to the other's pool: nothing."""
        their = {"FOREBAY_HOME": other.home, "FOREBAY_POOL": "job"}
        for words in (["pools"], ["status"], ["exec", "--", "cat", "/fb/output/part-0"],
                      ["stage", "out", "/", "theirs"], ["down", "--force"], ["pools", "--clean", "--all", "--here"]):
            r = self.does("forebay", *words, env=their)
            self.t.ok("of " + other.name not in r.stdout and not self.has("theirs/output"), r.stdout)
            # `pools` finds none; the others say that there is none, or that it is another's.
            self.t.ok(r.returncode != 0 or words[0] in ("pools", "down"), "%s: %s" % (words, r.stdout))
        with open(other.dir + "/environment") as f:
            theirs = dict(line.split("=", 1) for line in f.read().split("\0") if "=" in line)
        shown = {k: v for k, v in theirs.items() if k.startswith("FOREBAY_") or k == "LD_PRELOAD"}
        r = self.does("cat", "/fb/output/part-0", env=shown)
        self.t.ok(r.returncode != 0 and "of " + other.name not in r.stdout, r.stdout)
        paths = [os.path.join(d, name) for d, dirs, names in os.walk(other.home) for name in dirs + names]
        self.t.ok(len(paths) > 20, "the other's pool has only %s" % paths)
        paths += ["/proc/%d/%s" % (pid, name) for pid in processes_with("SLURM_JOB_ID=" + other.number)
                  for name in ("environ", "mem", "maps")]
        r = self.does("python3", "-c", OPEN, feed="\0".join(paths))
        self.t.ok(r.returncode == 0 and not r.stdout, "%s can open: %s" % (self.name, r.stdout[:1000]))
        self.t.ok(other.pools() == ["job"], "%s's pool is gone" % other.name)


def need_users():
    for name in USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            raise Skipped("there is no user " + name)


@case(120)
def slurm_two_users(t):
    """Neither sees anything of the other's pool; one's end by force leaves the other's alone."""
    need_users()
    epilog = EPILOG.format(bin=os.path.dirname(t.forebay), work=t.work, epilog=PACKAGING + "/epilog")
    with Slurm(t, "Epilog={base}/epilog\n", {"epilog": epilog}) as cluster:
        small_command(t)
        one, two = users = [User(t, cluster, name) for name in USERS]
        for user in users:
            user.submit()

        def told():
            return "\n".join([*(user.output() for user in users), cluster.say("squeue"), cluster.logs()])
        wait_until(lambda: all(user.has("ready") for user in users), 40, told)
        t.ok(cluster.say("squeue", "-h", "-o", "%N").split() == ["n[1-3]"] * 2, "not on the same nodes: " + told())
        for user in users:
            names = [pool["name"] for pool in json.loads(user.does("forebay", "pools", "--json").stdout)]
            t.ok(names == ["job"], "%s: %s" % (user.name, names))
        one.sees_nothing_of(two)
        two.sees_nothing_of(one)
        # The first job is killed; the epilog removes what is left of it, and nothing else.
        for pid in processes_with("SLURM_JOB_ID=" + one.number):
            kill(pid)
        wait_until(lambda: not one.pools(), 30, lambda: "the epilog: %s %s" % (one.pools(), told()))
        t.ok(not one.has("output") and two.pools() == ["job"], told())
        two.does("touch", "go")
        wait_until(lambda: not cluster.say("squeue", "-h").strip(), 40, told)
        for rank in range(3):
            with open("%s/output/all-%d" % (two.dir, rank)) as f:
                t.ok(f.read() == "of %s\n" % two.name * 3, told())
        t.ok(not two.pools(), told())
        for user in users:
            shutil.rmtree(user.home)
    t.nothing_left("the jobs")
