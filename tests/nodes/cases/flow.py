"""The workflow service with Slurm: jobs on three nodes, while the service is killed."""
import glob
import os
import random
import shutil

from flowservice import ROOT, Service
from harness import case, kill, wait_until
from .slurm import Slurm

TIERS = """
registry = "{top}/registry"
[tier.scratch]
path = "{top}/scratch"
"""


def job_logs(place):
    """What the first jobs have said that failed: Slurm's logs of others are removed."""
    texts = []
    for path in sorted(glob.glob(place + "/.snakemake/slurm_logs/**/*.log", recursive=True))[:2]:
        with open(path, errors="replace") as f:
            texts.append("%s:\n%s" % (path, f.read()[-1500:]))
    return "\n".join(texts)


@case(360)
def flow_over_slurm(t):
    """A workflow of 30 jobs in a campaign runs to its end while the service is killed twice; another is cancelled."""
    with open(t.disk + "/tiers.toml", "w") as f:
        f.write(TIERS.format(top=t.disk))
    draw = random.Random(os.environ.get("FOREBAY_SEED") or 1)
    with Slurm(t) as cluster:
        # The plug-in takes Slurm's variables out of the environment of jobs, also where the configuration is.
        os.mkdir(t.disk + "/bin")
        with open(t.disk + "/bin/srun", "w") as f:
            f.write("#!/bin/sh\nSLURM_CONF=%s exec %s \"$@\"\n" % (cluster.env["SLURM_CONF"], shutil.which("srun")))
        os.chmod(t.disk + "/bin/srun", 0o755)
        env = {**cluster.env, "FOREBAY_CAMPAIGNS": t.disk + "/tiers.toml",
               "PATH": t.disk + "/bin:" + cluster.env["PATH"]}
        with Service(t, env=env, environment=env, plugin="snakemake_executor_plugin_slurm") as s:
            s.fb("init", "study", os.path.join(ROOT, "examples", "snakemake", "Snakefile"), "--executor", "slurm",
                 "--spec", "1G,scratch,1d")
            place = t.fb("campaign", "path", "study", env=env).out.strip()
            s.fb("start", "study", "--jobs", "30", "--resource", "mem_mb=100", "--resource", "runtime=5")
            made = lambda: len(glob.glob(place + "/samples/*") + glob.glob(place + "/counts/*"))
            for at in sorted(draw.sample(range(1, 20), 2)):
                wait_until(lambda: made() >= at or s.run("study", 1)["state"] == "failed", 90,
                           lambda: s.run_log("study", 1))
                t.ok(made() >= at, "jobs fail:\n" + job_logs(place))
                s.kill()
                # Jobs begin and end while nobody looks.
                wait_until(lambda: made() > at, 60, "more jobs without the service")
                s.start()
            run = s.wait_for("study", 1, "succeeded", seconds=240)
            t.ok(run["attempt"] == 1, run)
            with open(place + "/summary.csv") as f:
                t.ok(f.read().split() == ["s%02d,4000" % n for n in range(14)], "the result")
            graph = s.ask("GET", "workflows/study/runs/1/graph")[1]
            t.ok(len(graph["jobs"]) == 30 and {j["state"] for j in graph["jobs"]} == {"succeeded"}, graph)
            log = s.run_log("study", 1)
            t.ok("Complete log(s)" in log, log)
            # A run that is cancelled takes its jobs out of Slurm.
            with open(t.work + "/long", "w") as f:
                f.write("rule all:\n  input: 'x'\nrule x:\n  output: 'x'\n  shell: 'touch begun; sleep 600'\n")
            s.fb("init", "study", t.work + "/long")
            s.fb("start", "study", "--resource", "mem_mb=100", "--resource", "runtime=20")
            wait_until(lambda: os.path.exists(place + "/begun"), 60, lambda: s.run_log("study", 2))
            # Its Snakemake is killed, and leaves a job: it goes before the run is started again.
            jobs = lambda: cluster.say("squeue", "-h", "-t", "R,PD,CG", "-o", "%i").split()
            (left,) = jobs()
            os.unlink(place + "/begun")
            for pid in s.runs():
                kill(pid)
            wait_until(lambda: os.path.exists(place + "/begun"), 90, lambda: s.run_log("study", 2))
            t.ok(s.run("study", 2)["attempt"] == 2 and len(jobs()) == 1 and jobs() != [left], jobs())
            s.fb("cancel", "study")
            wait_until(lambda: s.run("study", 2)["state"] == "cancelled", 60, lambda: s.run_log("study", 2))
            t.ok(not cluster.say("squeue", "-h", "-t", "R,PD").split(), cluster.say("squeue"))
            s.fb("delete", "study")
            t.ok(not os.path.exists(place), "the campaign's data are left")
