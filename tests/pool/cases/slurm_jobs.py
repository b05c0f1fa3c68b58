"""The scripts of examples/slurm, as users send them to Slurm, and what happens to a job that is ended by force."""
import hashlib
import os
import shutil
import subprocess
import time

from harness import ROOT_OF_TESTS, Failed, case, kill, processes_with, wait_until
from .slurm import Slurm

EXAMPLES = os.path.join(ROOT_OF_TESTS, "..", "examples", "slurm")
SITE_EPILOG = os.path.join(ROOT_OF_TESTS, "..", "packaging", "slurm", "epilog")
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


class Jobs:
    """A user's directory, with the examples and their input, and what Slurm does of it."""

    def __init__(self, t, cluster):
        self.t, self.cluster, self.dir = t, cluster, t.work
        for name in os.listdir(EXAMPLES):
            shutil.copy(os.path.join(EXAMPLES, name), self.dir)
        os.mkdir(self.dir + "/input")
        for n in range(20):
            t.file("%s/input/f%02d" % (self.dir, n), 200000, n)
        os.mkdir(self.dir + "/bin")
        with open(self.dir + "/bin/forebay", "w") as f:
            f.write(SMALL % t.forebay)
        os.chmod(self.dir + "/bin/forebay", 0o755)
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
    touch started
    sleep 0.1
done
"""


@case(180)
def slurm_jobs_that_are_ended(t):
    """A job that is told to stop or is cancelled saves what is there. One that is killed leaves nothing in memory."""
    with Slurm(t, epilog=EPILOG.format(bin=os.path.dirname(t.forebay), home=t.home, epilog=SITE_EPILOG)) as cluster:
        jobs = Jobs(t, cluster)
        output, started = jobs.dir + "/output", jobs.dir + "/started"
        with open(jobs.dir + "/task.sh", "w") as f:
            f.write(ENDLESS)

        def end(script, stop):
            number = jobs.submit(script)
            wait_until(lambda: os.path.exists(started), 30, lambda: "the tasks: " + jobs.output(number))
            time.sleep(0.5)
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
    t.nothing_left("the jobs")
