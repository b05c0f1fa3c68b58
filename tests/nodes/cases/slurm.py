"""A job of three nodes under Slurm: a controller and three slurmd of this test's own, on loopback."""
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time

from harness import Failed, Skipped, alive, case, comm, kill, processes_with, wait_until
from .nodes import POOL

NODES = 3
NEEDED = ["slurmctld", "slurmd", "sbatch", "srun", "scontrol", "munged"]

CONF = """ClusterName=fb
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={base}/munge.socket
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait={kill_wait}
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

JOB = r"""#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --time=3
set -ex
F={forebay}
each() {{ srun --nodes=3 --ntasks=6 bash -c 'export FOREBAY_NODE=$SLURM_NODEID; '"$1"; }}
$F up --media memory:96M --listen 127.0.0.1
each '{forebay} exec -- bash -c "echo written by $SLURM_PROCID > /fb/r$SLURM_PROCID"'
each '{forebay} exec -- bash -c "for r in 0 1 2 3 4 5; do [[ \$(</fb/r\$r) == \"written by \$r\" ]] || exit 3; done; echo rank $SLURM_PROCID on node \$FOREBAY_NODE"' > ranks
$F status --json > status
$F df --json > df
$F stage in {tree} /tree
$F stage out /tree {back}
$F node kill 1
$F node restart 1
$F exec -- ls -R /fb/tree | wc -l
$F status --json > again
$F down
ls -A $FOREBAY_HOME > left
# In one step for all, with its own pool for the job.
$F run --pool job --media memory:96M --listen 127.0.0.1 --in {tree}:/in --out /out:{out} -- \
    bash -c 'mkdir /fb/out && cp -r /fb/in/. /fb/out'
ls -A $FOREBAY_HOME >> left
echo done > end
"""


def free_ports(n):
    """The first of n consecutive free ports."""
    for _ in range(100):
        first = random.randrange(20000, 32000)
        taken = []
        try:
            for port in range(first, first + n):
                s = socket.socket()
                taken.append(s)
                s.bind(("127.0.0.1", port))
            return first
        except OSError:
            pass
        finally:
            for s in taken:
                s.close()
    raise Skipped("no free ports")


def parent(pid):
    """A process's parent; 0 if it has ended."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return int(f.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


class Slurm:
    """Controller, nodes, and munge for the credentials; all in a directory of their own."""

    def __init__(self, t, lines="", files=None, kill_wait=20):
        """`lines` of slurm.conf, with {base} for the directory; `files` in it: name -> content; KillWait in seconds."""
        missing = [c for c in NEEDED if not shutil.which(c) and not os.path.exists("/usr/sbin/" + c)]
        if missing:
            raise Skipped("not installed: %s (Debian: slurmctld slurmd slurm-client munge)" % " ".join(missing))
        if os.getuid() != 0:
            raise Skipped("Slurm's daemons need root")
        self.t, self.base, self.running = t, t.base + "/slurm", []
        self.env = {"SLURM_CONF": self.base + "/slurm.conf", "PATH": os.environ["PATH"] + ":/usr/sbin"}
        os.makedirs(self.base + "/state")
        os.chmod(self.base, 0o755)
        self.lines, self.files, self.kill_wait = lines, files or {}, kill_wait

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self):
        base, first = self.base, free_ports(NODES + 1)
        with open(base + "/slurm.conf", "w") as f:
            f.write(CONF.format(host=socket.gethostname().split(".")[0], base=base, nodes=NODES, port=first,
                                first=first + 1, last=first + NODES, kill_wait=self.kill_wait))
            f.write(self.lines.format(base=base))
        for name, content in self.files.items():
            with open(base + "/" + name, "w") as f:
                f.write(content)
            os.chmod(base + "/" + name, 0o755)
        with open(base + "/cgroup.conf", "w") as f:
            f.write("CgroupAutomount=no\n")
        with open(base + "/munge.key", "wb") as f:
            f.write(os.urandom(128))
        os.chmod(base + "/munge.key", 0o400)
        files = {w: "%s/munge.%s" % (base, w) for w in ("socket", "pid", "log", "seed")}
        self.start("munged", "--foreground", "--force", "--key-file", base + "/munge.key", "--socket", files["socket"],
                   "--pid-file", files["pid"], "--log-file", files["log"], "--seed-file", files["seed"])
        wait_until(lambda: os.path.exists(files["socket"]), 10, "munged's socket")
        self.start("slurmctld", "-D", "-f", base + "/slurm.conf")
        for n in range(1, NODES + 1):
            self.start_node("n%d" % n)
        wait_until(lambda: self.say("sinfo", "-h", "-o", "%T").split() == ["idle"], 40, "all nodes idle: " + self.logs())

    def start(self, name, *words):
        with open("%s/%s.out" % (self.base, name), "ab") as out:
            self.running.append(self.t.start([shutil.which(name) or "/usr/sbin/" + name, *words], env=self.env,
                                             cwd=self.base, stdout=out, stderr=out))

    def start_node(self, name):
        self.start("slurmd", "-D", "-N", name, "-f", self.base + "/slurm.conf")

    def kill_node(self, name):
        """A node dies: SIGKILL to its slurmd, and to all tasks and Forebay's daemons there with their slurmstepd."""
        on_node = set(processes_with("SLURMD_NODENAME=" + name)) & set(self.processes())
        steps = {parent(pid) for pid in on_node}
        slurmd = [process.pid for process in self.running if process.args[1:4] == ["-D", "-N", name]]
        dying = on_node | {pid for pid in steps if comm(pid).startswith("slurmstepd")} | set(slurmd)
        # None of them sees another's end.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in dying:
                kill(pid, number)
        wait_until(lambda: not any(map(alive, dying - set(slurmd))), 5, "the end of %s's processes" % name)

    def processes(self):
        """Process ids of all that belongs to this cluster."""
        return processes_with("SLURM_CONF=" + self.env["SLURM_CONF"])

    def say(self, *words):
        done = subprocess.run(words, env={**os.environ, **self.env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=30)
        return done.stdout.decode("utf-8", "replace")

    def logs(self):
        texts = []
        for name in sorted(os.listdir(self.base)):
            if name.endswith(".out"):
                with open(self.base + "/" + name, errors="replace") as f:
                    texts.append("%s:\n%s" % (name, "".join(f.readlines()[-8:])))
        return "\n".join(texts)

    def sruns(self):
        """Process ids of the commands `srun` of this cluster."""
        found = []
        for pid in self.processes():
            try:
                with open("/proc/%d/comm" % pid) as f:
                    if f.read() == "srun\n":
                        found.append(pid)
            except OSError:
                pass
        return found

    def __exit__(self, *_):
        # Jobs first, then the nodes, the controller, munge.
        if len(self.running) > 1:
            try:
                self.say("scancel", "--state=RUNNING", "--full")
            except (OSError, subprocess.SubprocessError):
                pass
        # srun ends a moment after what it has started, if the controller still answers.
        began = time.monotonic()
        while self.sruns() and time.monotonic() < began + 30:
            time.sleep(0.1)
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


@case(180)
def slurm(t):
    tree, back, out = (t.work + "/" + d for d in ("tree", "back", "out"))
    os.mkdir(tree)
    for n in range(40):
        t.file("%s/f%d" % (tree, n), 1 << 20, n)
    with Slurm(t) as cluster:
        script = t.work + "/job.sh"
        with open(script, "w") as f:
            f.write(JOB.format(forebay=t.forebay, tree=tree, back=back, out=out))
        env = {**cluster.env, "FOREBAY_POOL": POOL}
        t.command(["sbatch", "--output=job.out", script], env=env)

        def read(name):
            try:
                with open(t.work + "/" + name) as f:
                    return f.read()
            except FileNotFoundError:
                return ""
        until = time.monotonic() + 100
        while cluster.say("squeue", "-h").strip():
            if time.monotonic() > until:
                raise Failed("the job doesn't end:\n%s\n%s" % (read("job.out")[-3000:], cluster.logs()))
            time.sleep(0.2)
        if read("end") != "done\n":
            raise Failed("the job failed:\n%s\n%s" % (read("job.out")[-4000:], cluster.logs()))
        ranks = sorted(read("ranks").splitlines())
        t.ok(ranks == ["rank %d on node %d" % (r, r // 2) for r in range(6)], "\n".join(ranks))
        status, df = json.loads(read("status")), json.loads(read("df"))
        t.ok(status["state"] == "running" and len(status["nodes"]) == NODES, read("status"))
        t.ok([n["name"] for n in status["nodes"]] == ["n1", "n2", "n3"], read("status"))
        t.ok(df["media"][0]["capacity"] == NODES * 96 << 20 and not df["missing"], read("df"))
        again = [n["state"] for n in json.loads(read("again"))["nodes"]]
        t.ok(again == ["up"] * NODES, "after a restart: %s" % again)
        t.same(t.walk(tree), t.walk(back), "what was staged out")
        t.same(t.walk(tree), t.walk(out), "the result of the run")
        t.ok(read("left") == "", "left in FOREBAY_HOME: " + read("left"))
    t.nothing_left("the job")
