"""A node that dies during a job: what the job's end saves, and what it says."""
import os
import re
import shutil
import time

from harness import case, wait_until
from .slurm import NODES, Slurm
from .slurm_jobs import ENDLESS, Jobs, pools

RANKS = 2 * NODES
# Slurm's KillWait, and how long a request to a dead node is tried (`--request-timeout`). Seconds.
KILL_WAIT, REQUEST_TIMEOUT = 13, 4
# With an origin, each step's result is written back while the job runs.
STEPS = """#!/bin/bash
for ((n = 0; ; n++)); do
    echo "rank $SLURM_PROCID" > /fb/output/step-$SLURM_PROCID-$n
    sleep 0.3
done
"""
BY_ORIGIN = """#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --time=10 --no-requeue
exec forebay run --request-timeout 4 --pool "job-$SLURM_JOB_ID" --origin "$PWD/results=/output" -- srun ./steps.sh
"""


@case(180)
def slurm_node_that_dies(t):
    with Slurm(t, kill_wait=KILL_WAIT) as cluster:
        jobs = Jobs(t, cluster)
        output, results, started = (jobs.dir + "/" + name for name in ("output", "results", "started"))
        for name, content in (("task.sh", ENDLESS), ("steps.sh", STEPS), ("origin.sh", BY_ORIGIN)):
            with open("%s/%s" % (jobs.dir, name), "w") as f:
                f.write(content)
            os.chmod("%s/%s" % (jobs.dir, name), 0o755)

        with open(jobs.dir + "/run.sh") as f:
            script = f.read().replace("forebay run ", "forebay run --request-timeout %d " % REQUEST_TIMEOUT)
        with open(jobs.dir + "/run.sh", "w") as f:
            f.write(script)

        def node_dies(number, says):
            """Kills the third node; Slurm gives it up at once. How long the job took to say so much."""
            cluster.kill_node("n3")
            began = time.monotonic()
            cluster.say("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=dead")
            wait_until(lambda: says in jobs.output(number), KILL_WAIT + 5, lambda: jobs.output(number))
            seconds = time.monotonic() - began
            said = jobs.output(number)
            t.ok(seconds < 2 * REQUEST_TIMEOUT + 3, "it took %.1f s: %s" % (seconds, said))
            t.ok(re.search(r"node 2 (\(n3\) )?doesn't answer", said), said)
            wait_until(lambda: cluster.say("squeue", "-h", "-j", number, "-t", "RUNNING,COMPLETING").strip() == "",
                       KILL_WAIT + 10, lambda: "the job's end: " + cluster.say("squeue"))
            return said

        def node_is_back():
            cluster.start_node("n3")
            wait_until(lambda: cluster.say("sinfo", "-h", "-o", "%T").split() == ["idle"], 20, cluster.logs)

        # With an origin: what rested for its lag is saved, also what the dead node has made.
        os.mkdir(results)
        number = jobs.submit("origin.sh")

        def saved():
            return {name for name in os.listdir(results) if name.startswith("step-")}
        wait_until(lambda: all("step-%d-3" % rank in saved() for rank in range(RANKS)), 30,
                   lambda: "%s %s" % (saved(), jobs.output(number)))
        before = saved()
        said = node_dies(number, "stays (the program")
        t.ok("not all changes of the pool 'job-%s' are at its origin" % number in said, said)
        for name in before:
            with open("%s/%s" % (results, name)) as f:
                t.ok(f.read() == "rank %s\n" % name.split("-")[1], name)
        # Here the dead node's memory is still there: the rest can be fetched as the message says.
        t.fb("up", "--reopen", "--pool", "job-" + number)
        t.fb("origin", "sync", "--pool", "job-" + number)
        t.ok(len(saved()) > len(before), "the rest isn't saved: %s" % saved())
        t.fb("down", "--force", "--pool", "job-" + number)
        node_is_back()

        # With stage-out alone: the living nodes' files are saved; the messages say that it isn't all.
        number = jobs.submit("--requeue", "run.sh")
        wait_until(lambda: os.path.exists(started), 30, lambda: "the tasks: " + jobs.output(number))
        said = node_dies(number, "stage-out is incomplete")
        t.ok(re.search("/fb/output: node [0-9]+ doesn't answer", said), said)
        t.ok("the pool 'job-%s' stays" % number in said, said)
        t.ok(all(re.fullmatch("(last|part)-[0-5]|lost[+]found", name) for name in os.listdir(output)),
             os.listdir(output))
        # Slurm sends the job again, which removes what the first run has left in memory.
        os.unlink(started)
        node_is_back()

        def is_running():
            cluster.say("scontrol", "update", "JobId=" + number, "StartTime=now")
            time.sleep(0.5)
            return os.path.exists(started)
        wait_until(is_running, 30, lambda: "the second run: " + jobs.output(number))
        cluster.say("scancel", number)
        said = jobs.wait(number)
        last = sorted(name for name in os.listdir(output) if name.startswith("last-"))
        t.ok(last == ["last-%d" % n for n in range(RANKS)], said)
        t.ok(not pools(t), "left: %s" % pools(t))
        shutil.rmtree(output)
    t.nothing_left("the jobs")
