"""The scripts of examples/slurm, as users send them to Slurm, and what happens to a job that is ended by force."""
import hashlib
import os
import shutil
import subprocess
import time

from harness import ROOT_OF_TESTS, Failed, Skipped, case, kill, processes_with, wait_until
from .slurm import Slurm

EXAMPLES = os.path.join(ROOT_OF_TESTS, "..", "examples", "slurm")
PACKAGING = os.path.join(ROOT_OF_TESTS, "..", "packaging", "slurm")
# A site's pools lie in its nodes' shared memory, a test's in a directory of its own.
EPILOG = """#!/bin/bash
export FOREBAY_BIN={bin} FOREBAY_HOME={home}
exec {epilog}
"""


# The command, for a test: pools are small, and daemons listen on loopback alone.
SMALL = """#!/bin/bash
forebay=%s
case $1 in
up | run)
    several=()
    [[ ${SLURM_JOB_NUM_NODES:-1} = 1 && -z ${SLURM_HET_SIZE:-} ]] || several=(--listen 127.0.0.1)
    exec "$forebay" "$1" --media memory:96M "${several[@]}" "${@:2}" ;;
esac
exec "$forebay" "$@"
"""


def small_command(t):
    """Path of SMALL."""
    path = t.work + "/bin/forebay"
    if not os.path.exists(path):
        os.mkdir(os.path.dirname(path))
        with open(path, "w") as f:
            f.write(SMALL % t.forebay)
        os.chmod(path, 0o755)
    return path


class Jobs:
    """A user's directory, with the examples and their input, and what Slurm does of it."""

    def __init__(self, t, cluster):
        self.t, self.cluster, self.dir = t, cluster, t.work
        for name in os.listdir(EXAMPLES):
            shutil.copy(os.path.join(EXAMPLES, name), self.dir)
        os.mkdir(self.dir + "/input")
        for n in range(20):
            t.file("%s/input/f%02d" % (self.dir, n), 200000, n)
        small_command(t)
        self.env = {**os.environ, **cluster.env, "PATH": self.dir + "/bin:" + cluster.env["PATH"]}

    def submit(self, *words):
        done = self.does("sbatch", "--parsable", "--output=%x-%A.out", *words)
        if done.returncode != 0:
            raise Failed("sbatch: " + done.stdout)
        return done.stdout.split(";")[0].strip()

    def does(self, *words):
        return subprocess.run(words, env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60, text=True)

    def output(self, number):
        texts = []
        for name in os.listdir(self.dir):
            if name.endswith("-%s.out" % number):
                with open(self.dir + "/" + name, errors="replace") as f:
                    texts.append(f.read())
        return "\n".join(texts)

    def wait(self, number, seconds=60):
        until = time.monotonic() + seconds
        while self.cluster.say("squeue", "-h", "-j", number).strip():
            if time.monotonic() > until:
                raise Failed("job %s doesn't end:\n%s\n%s" % (number, self.output(number)[-3000:], self.cluster.logs()))
            time.sleep(0.2)
        return self.output(number)

    def sums(self, directory):
        """What the tasks wrote: file -> sum."""
        found = {}
        for name in os.listdir(directory):
            if name.startswith("sums-"):
                with open(directory + "/" + name) as f:
                    found.update(reversed(line.split()) for line in f)
        return {os.path.basename(path): text for path, text in found.items()}

    def expected(self):
        sums = {}
        for name in os.listdir(self.dir + "/input"):
            with open(self.dir + "/input/" + name, "rb") as f:
                sums[name] = hashlib.file_digest(f, "sha256").hexdigest()
        return sums


def pools(t):
    """The pools that are on this host."""
    return [name for name in os.listdir(t.home) if not name.startswith("sites-")]


@case(180)
def slurm_examples(t):
    """Each script of examples/slurm does what it says, and leaves nothing."""
    with Slurm(t) as cluster:
        jobs = Jobs(t, cluster)
        wanted = jobs.expected()

        def has_all(directory, what):
            t.ok(jobs.sums(directory) == wanted, what + ": not the sums of all files")
            shutil.rmtree(directory)

        said = jobs.wait(jobs.submit("run.sh"))
        t.ok("with 3 nodes" in said and said.count("task ") == 6, said)
        has_all(jobs.dir + "/output", said)
        said = jobs.wait(jobs.submit("steps.sh"))
        t.ok("3 nodes" in said and said.count("task ") == 6, said)
        with open(jobs.dir + "/output/all") as f:
            t.ok(len(f.readlines()) == len(wanted), "the second step hasn't seen all of the first one's files")
        has_all(jobs.dir + "/output", said)
        said = jobs.wait(jobs.submit("array.sh"))
        for n in range(3):
            has_all("%s/output-%d" % (jobs.dir, n), said)
        said = jobs.wait(jobs.submit("hetero.sh"))
        t.ok("3 nodes" in said and said.count("task ") == 4, said)
        has_all(jobs.dir + "/output", said)
        # In an allocation without a script.
        r = jobs.does("salloc", "--nodes=2", "--quiet", "./run.sh")
        t.ok(r.returncode == 0 and "with 2 nodes" in r.stdout, r.stdout)
        has_all(jobs.dir + "/output", r.stdout)
        t.ok(not pools(t), "left in FOREBAY_HOME: %s" % pools(t))
    t.nothing_left("the jobs")


# A task that writes until it is told to stop.
ENDLESS = """#!/bin/bash
mkdir -p /fb/output
for ((n = 0; ; n++)); do
    echo $n > /fb/output/part-$SLURM_PROCID
    mv /fb/output/part-$SLURM_PROCID /fb/output/last-$SLURM_PROCID
    files=(/fb/output/last-*)
    [[ ${#files[@]} -lt $SLURM_NTASKS ]] || touch started
    sleep 0.1
done
"""


WITH_ORIGIN = """#!/bin/bash
#SBATCH --nodes=1 --ntasks=1
exec forebay run --pool "job-$SLURM_JOB_ID" --origin "$PWD/results=/output" --origin-lag 600 -- srun ./task.sh
"""


@case(180)
def slurm_jobs_that_are_ended(t):
    """A job that is told to stop or is cancelled saves what is there. One that is killed leaves nothing in memory."""
    epilog = EPILOG.format(bin=os.path.dirname(t.forebay), home=t.home, epilog=PACKAGING + "/epilog")
    with Slurm(t, "Epilog={base}/epilog\n", {"epilog": epilog}) as cluster:
        jobs = Jobs(t, cluster)
        output, started = jobs.dir + "/output", jobs.dir + "/started"
        with open(jobs.dir + "/task.sh", "w") as f:
            f.write(ENDLESS)

        def end(script, stop):
            number = jobs.submit(script)
            wait_until(lambda: os.path.exists(started), 30, lambda: "the tasks: " + jobs.output(number))
            stop(number)
            said = jobs.wait(number)
            os.unlink(started)
            return said

        for script in ("run.sh", "steps.sh"):
            for how in ((), ("--batch", "--signal=TERM")):
                said = end(script, lambda number: cluster.say("scancel", *how, number))
                what = "%s, scancel %s:\n%s" % (script, " ".join(how), said)
                t.ok("staged out" in said, what)
                last = sorted(name for name in os.listdir(output) if name.startswith("last-"))
                t.ok(last == ["last-%d" % n for n in range(6)], "%s\n%s" % (what, last))
                t.ok(not pools(t), "%s\nleft: %s" % (what, pools(t)))
                shutil.rmtree(output)
        # As a node does that has no memory left, or a limit of time that is over.
        said = end("run.sh", lambda number: [kill(pid) for pid in processes_with("SLURM_JOB_ID=" + number)])
        wait_until(lambda: not pools(t), 20, lambda: "the epilog to remove %s\n%s" % (pools(t), cluster.logs()))
        t.ok(not os.path.exists(output), "a job that was killed has saved something: " + said)
        # With an origin, the epilog writes back what it finds: here all, since nothing rests for that long.
        os.mkdir(jobs.dir + "/results")
        with open(jobs.dir + "/origin.sh", "w") as f:
            f.write(WITH_ORIGIN)
        said = end("origin.sh", lambda number: [kill(pid) for pid in processes_with("SLURM_JOB_ID=" + number)])
        wait_until(lambda: not pools(t), 20, lambda: "the epilog to remove %s\n%s" % (pools(t), cluster.logs()))
        with open(jobs.dir + "/results/last-0") as f:
            t.ok(f.read().strip().isdigit(), said)
    t.nothing_left("the jobs")


@case(180)
def slurm_jobs_that_go_on(t):
    """A job that is suspended goes on; one that is requeued saves what is there, and begins anew."""
    with Slurm(t) as cluster:
        jobs = Jobs(t, cluster)
        output, started = jobs.dir + "/output", jobs.dir + "/started"
        with open(jobs.dir + "/task.sh", "w") as f:
            f.write(ENDLESS)

        def tasks_run():
            if os.path.exists(started):
                os.unlink(started)
            wait_until(lambda: os.path.exists(started), 30, lambda: "the tasks: " + jobs.output(number))

        def has_all(what):
            last = sorted(name for name in os.listdir(output) if name.startswith("last-"))
            t.ok(last == ["last-%d" % n for n in range(6)], "%s: %s" % (what, last))
            shutil.rmtree(output)

        number = jobs.submit("--requeue", "run.sh")
        tasks_run()
        cluster.say("scontrol", "suspend", number)
        time.sleep(3)
        cluster.say("scontrol", "resume", number)
        tasks_run()
        cluster.say("scontrol", "requeue", number)
        wait_until(lambda: not pools(t) and os.path.exists(output), 20, lambda: "the first run's end: %s" % pools(t))
        has_all("requeued")
        os.unlink(started)

        def is_running():
            # Slurm gives it two minutes otherwise.
            cluster.say("scontrol", "update", "JobId=" + number, "StartTime=now")
            time.sleep(0.5)
            return os.path.exists(started)
        wait_until(is_running, 30, "the second run")
        cluster.say("scancel", number)
        jobs.wait(number)
        has_all("cancelled")
        t.ok(not pools(t), "left: %s" % pools(t))
    t.nothing_left("the jobs")


# With --forebay, the script and its steps see the pool without more ado.
PLAIN = """#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --time=10
set -e
ls /fb/input > seen
srun ./task.sh
cat /fb/output/sums-* | sort -k 2 > /fb/output/all
"""


def plugin(t):
    """The content of a plugstack.conf with the plug-in, which is built for that."""
    if not os.path.exists("/usr/include/slurm/spank.h"):
        raise Skipped("without Slurm's headers (Debian: libslurm-dev)")
    path = t.work + "/spank_forebay.so"
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    t.command(["gcc", *flags, "-o", path, PACKAGING + "/spank_forebay.c"])
    return "required %s program=%s\n" % (path, small_command(t))


@case(180)
def slurm_option(t):
    """The plug-in: sbatch --forebay."""
    with Slurm(t, "PlugStackConfig={base}/plugstack.conf\n", {"plugstack.conf": plugin(t)}) as cluster:
        jobs = Jobs(t, cluster)
        with open(jobs.dir + "/plain.sh", "w") as f:
            f.write(PLAIN)
        output, started = jobs.dir + "/output", jobs.dir + "/started"
        option = "--forebay=in=./input:/input,out=/output:./output"
        said = jobs.wait(jobs.submit(option, "plain.sh"))
        t.ok(said.count("task ") == 6, said)
        t.ok(jobs.sums(output) == jobs.expected(), said)
        with open(jobs.dir + "/seen") as f:
            t.ok(len(f.readlines()) == 20, "the script itself doesn't see the pool: " + said)
        t.ok(not pools(t), "left: %s" % pools(t))
        shutil.rmtree(output)
        # An origin gets all changes, also below its own path.
        origin = jobs.dir + "/origin"
        os.mkdir(origin)
        script = "--wrap=forebay df > df; echo made > %s/made" % origin
        said = jobs.wait(jobs.submit("--forebay=origin=" + origin, script))
        t.ok(os.listdir(origin) == ["made"] and not pools(t), said)
        with open(jobs.dir + "/df") as f:
            t.ok("memory" in f.read(), "the script doesn't see the pool: " + said)
        # Of a script that fails, and of a job that is cancelled, what is there is saved.
        with open(jobs.dir + "/fails.sh", "w") as f:
            f.write("#!/bin/bash\nmkdir /fb/output; echo half > /fb/output/half; exit 3\n")
        said = jobs.wait(jobs.submit(option, "fails.sh"))
        t.ok(os.listdir(output) == ["half"] and not pools(t), said)
        shutil.rmtree(output)
        with open(jobs.dir + "/task.sh", "w") as f:
            f.write(ENDLESS)
        number = jobs.submit(option, "plain.sh")
        wait_until(lambda: os.path.exists(started), 30, lambda: "the tasks: " + jobs.output(number))
        cluster.say("scancel", number)
        said = jobs.wait(number)
        wait_until(lambda: not pools(t), 20, lambda: "the pool's end: %s %s" % (pools(t), said))
        t.ok(os.path.exists(output + "/last-5"), said)
        # Jobs without the option know nothing of it.
        said = jobs.wait(jobs.submit("--wrap=env"))
        t.ok("SLURM_JOB_ID" in said and "FOREBAY_POOL" not in said and "LD_PRELOAD" not in said, said)
        # A wrong option is told by sbatch; what can't come in keeps the script from running.
        for wrong, told in (("sice=1G", "there is no 'sice'"), ("in=/a", "isn't SRC:DST"), ("size", "has no value")):
            r = jobs.does("sbatch", "--forebay=" + wrong, "fails.sh")
            t.ok(r.returncode != 0 and told in r.stdout, r.stdout)
        os.unlink(jobs.dir + "/seen")
        said = jobs.wait(jobs.submit("--forebay=in=./nowhere:/input", "plain.sh"))
        t.ok("nowhere" in said and "stage-in failed; the job isn't run" in said, said)
        t.ok(not os.path.exists(jobs.dir + "/seen") and not pools(t), said)
        # Results that can't get out stay in the pool.
        number = jobs.submit("--forebay=out=/output:/proc/nowhere", "fails.sh")
        said = jobs.wait(number)
        with open("%s/forebay-job-%s.out" % (jobs.dir, number)) as f:
            said = f.read()
        t.ok("/proc/nowhere" in said and pools(t) == ["job-" + number], said)
        t.fb("exec", "--pool", "job-" + number, "--", "true", rc=None)
        t.fb("down", "--force", "--pool", "job-" + number)
    t.nothing_left("the jobs")
