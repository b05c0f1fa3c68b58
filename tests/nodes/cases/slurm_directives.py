"""Lines `#FB` of a job script, which the plug-in reads."""
import os
import shutil

from harness import case, wait_until
from .slurm import Slurm
from .slurm_jobs import ENDLESS, Jobs, plugin, pools
from .slurm_users import USERS, User, need_users

SCRIPT = """#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=2 --time=10
%s

set -e
#FB nothing after the first command counts
touch ran
ls /fb/input > seen
df /fb | tail -n 1 > room
srun ./task.sh
"""
LINES = """#FB up --media memory:48M
#FB stage_in ./input /input
#FB stage_out /output ./output-%j"""
# Line, and what the job's output says of it.
WRONG = {
    "#FB": "line 3, #FB: a command is missing",
    "#FB down": "there is no 'down'; there are up, campaign, stage_in, stage_out",
    "#FB stage_in ./input": "stage_in takes SRC and DST",
    "#FB stage_in --force /input": "stage_in takes SRC and DST",
    "#FB stage_in $PWD/input /input": "'$PWD/input' has signs that no shell expands here",
    "#FB stage_out /output `id>evil`": "has signs that no shell expands here",
    "#FB stage_out /output ./out;touch evil": "has signs that no shell expands here",
    "#FB stage_in ./in* /input": "has signs that no shell expands here",
    "#FB stage_out /output ./%u": "has signs that no shell expands here",
    "#FB up --pool other": "--pool isn't for a job's own pool",
    "#FB up --hosts=n1": "--hosts isn't for a job's own pool",
    "#FB up --media $(touch evil)": "has signs that no shell expands here",
    "#FB up --mdia memory:1M": "unexpected argument '--mdia'",
    "#FB campaign": "campaign takes NAME",
    "#FB campaign one\n#FB campaign two": "a job has one campaign",
    "#FB campaign case\n#FB up --origin ./input": "the origin of a campaign's pool is its data",
    "#FB campaign nothing-of-this-name": "the pool of this job can't be started",
    "#FB stage_in ./" + "x" * 5000 + " /input": "longer than 4094 bytes",
    "\n".join(["#FB stage_in ./input /input"] * 17): "line 19, #FB: more than 16 pairs",
}


TIERS = """registry = "%(top)s/registry"
[tier.scratch]
path = "%(top)s/scratch"
longest = "10d"
"""
# The campaign's data are the pool, by their own path.
OF_CAMPAIGN = """#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --time=10
#FB up --media memory:48M
#FB %s
set -e
cd %s
! head -c 3000000 /dev/zero > large
rm -f large
srun bash -c 'echo task $SLURM_PROCID, $(cat before 2>/dev/null) > out-$SLURM_PROCID'
"""


@case(60)
def slurm_campaigns(t):
    """Jobs with a line `#FB campaign`: the campaign is made and kept, and each job has a pool for it."""
    with Slurm(t, "PlugStackConfig={base}/plugstack.conf\n", {"plugstack.conf": plugin(t)}) as cluster:
        jobs = Jobs(t, cluster)
        top = jobs.dir + "/site"
        os.mkdir(top)
        with open(top + "/tiers.toml", "w") as f:
            f.write(TIERS % {"top": top})
        env = {"FOREBAY_CAMPAIGNS": top + "/tiers.toml"}

        def submit(line, at):
            with open(jobs.dir + "/study.sh", "w") as f:
                f.write(OF_CAMPAIGN % (line, at))
            number = jobs.submit("--export=ALL,FOREBAY_CAMPAIGNS=" + env["FOREBAY_CAMPAIGNS"], "study.sh")
            return number, jobs.wait(number)

        def show(name):
            return t.fb("campaign", "show", name, "--json", env=env).json()

        at = top + "/scratch/study"
        number, said = submit("campaign study 2M,100files,scratch,2d", at)
        t.ok(sorted(os.listdir(at)) == ["out-0", "out-1", "out-2"], "%s %s" % (os.listdir(at), said))
        t.ok(show("study")["pool"] is None and show("study")["usage"]["files"] == 3 and not pools(t), said)
        with open(at + "/before", "w") as f:
            f.write("the first job has ended")
        number, said = submit("campaign study", at)
        for n in range(3):
            with open("%s/out-%d" % (at, n)) as f:
                t.ok(f.read() == "task %d, the first job has ended\n" % n, said)
        t.ok(show("study")["pool"] is None and not pools(t), said)
        # One for this job, which outlives it.
        with open(jobs.dir + "/study.sh", "w") as f:
            f.write(OF_CAMPAIGN % ("campaign 2M,scratch,1d", top + "/scratch/job-$SLURM_JOB_ID"))
        number = jobs.submit("--export=ALL,FOREBAY_CAMPAIGNS=" + env["FOREBAY_CAMPAIGNS"], "study.sh")
        said = jobs.wait(number)
        t.ok(len(os.listdir("%s/scratch/job-%s" % (top, number))) == 3 and not pools(t), said)


# As a user without rights: %s is a file that only root can read.
OF_USER = """#!/bin/bash
#FB stage_in %s /secret
#FB stage_out /output ./output
mkdir /fb/output
id -un > /fb/output/name
"""


@case(120)
def slurm_directives(t):
    with Slurm(t, "PlugStackConfig={base}/plugstack.conf\n", {"plugstack.conf": plugin(t)}) as cluster:
        jobs = Jobs(t, cluster)

        def submit(lines, *options):
            with open(jobs.dir + "/lines.sh", "w") as f:
                f.write(SCRIPT % lines)
            return jobs.submit(*options, "lines.sh")

        number = submit(LINES)
        said = jobs.wait(number)
        output = "%s/output-%s" % (jobs.dir, number)
        t.ok(said.count("task ") == 6 and jobs.sums(output) == jobs.expected(), said)
        with open(jobs.dir + "/seen") as f:
            t.ok(len(f.readlines()) == 20, said)
        with open(jobs.dir + "/room") as f:
            # The test's command gives each node 96 MiB more.
            t.ok(f.read().split()[1] == str(3 * (48 + 96) * 1024), "the option of up isn't followed: " + said)
        t.ok(not pools(t), "left: %s" % pools(t))

        # Together with the option; and a job that is cancelled.
        with open(jobs.dir + "/task.sh", "w") as f:
            f.write(ENDLESS)
        number = submit("#FB stage_out /output ./cancelled", "--forebay=in=./input:/input")
        wait_until(lambda: os.path.exists(jobs.dir + "/started"), 30, lambda: "the tasks: " + jobs.output(number))
        cluster.say("scancel", number)
        said = jobs.wait(number)
        wait_until(lambda: not pools(t), 20, lambda: "the pool's end: %s %s" % (pools(t), said))
        t.ok(os.path.exists(jobs.dir + "/cancelled/last-5"), said)

        # A wrong line keeps the script from running, and no shell sees it. All at once: each takes a moment.
        os.unlink(jobs.dir + "/ran")
        numbers = {}
        for lines in WRONG:
            numbers[lines] = submit(lines, "--nodes=1", "--ntasks-per-node=1", "--mem=100")
        for lines, told in WRONG.items():
            said = jobs.wait(numbers[lines])
            t.ok(told in said, "%s: %s" % (lines[:100], said))
        for name in ("ran", "evil"):
            t.ok(not os.path.exists("%s/%s" % (jobs.dir, name)), "a wrong line was carried out: " + name)
        t.ok(not pools(t), "left: %s" % pools(t))

        # Lines that aren't ours, and a comment longer than a line may be.
        said = jobs.wait(submit("#FBI investigates\n# #FB down\n#" + "x" * 4100 + "#FB down", "--nodes=1"))
        t.ok("forebay:" not in said and os.path.exists(jobs.dir + "/ran"), said)
        shutil.rmtree(output)

        # Everything is done with the user's rights, also after the script, in a process of Slurm's.
        need_users()
        secret = t.file(t.work + "/secret", 100)
        os.chmod(secret, 0o600)
        user = User(t, cluster, USERS[0], OF_USER % secret)
        user.submit()
        jobs.wait(user.number)
        t.ok("ermission denied" in user.output() and not user.has("output"), user.output())
        with open(user.dir + "/job.sh", "w") as f:
            f.write(OF_USER % "./job.sh")
        user.submit()
        jobs.wait(user.number)
        wait_until(lambda: not user.pools(), 10, user.output)
        for name in ("output", "output/name", "forebay-job-%s.out" % user.number):
            t.ok(os.stat("%s/%s" % (user.dir, name)).st_uid == user.uid, name)
        with open(user.dir + "/output/name") as f:
            t.ok(f.read() == USERS[0] + "\n", user.output())
        shutil.rmtree(user.home)
    t.nothing_left("the jobs")
