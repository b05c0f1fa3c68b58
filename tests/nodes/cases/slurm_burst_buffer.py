"""packaging/slurm/burst_buffer.lua: stage-in before a job has its node, stage-out afterwards."""
import glob
import os
import shutil

from harness import Failed, Skipped, case, comm, wait_until
from .slurm import Slurm
from .slurm_jobs import PACKAGING, Jobs
from .slurm_users import USERS, User, need_users

PLUGIN = "/usr/lib/*/slurm*/burst_buffer_lua.so"
WRONG = {
    "size=1G;touch": "has signs that aren't known here",
    "size=1G\n#BB_LUA forebay stage_in $HOME /in": "has signs that aren't known here",
    "size=1G\n#BB_LUA forebay stage_in /etc/'passwd /in": "has signs that aren't known here",
    "size=1G\n#BB_LUA forebay stage_in ./case /in": "paths begin with /",
    "size=1G\n#BB_LUA forebay stage_in /case": "takes size=SIZE, stage_in SRC DST or stage_out SRC DST",
    "stage_in /case /in": "size=SIZE is missing",
    "sice=1G": "takes size=SIZE, stage_in SRC DST or stage_out SRC DST",
}


@case(120)
def slurm_burst_buffer(t):
    if not glob.glob(PLUGIN) or not shutil.which("setpriv"):
        raise Skipped("without burst_buffer/lua or setpriv (Debian: slurm-wlm-basic-plugins, util-linux)")
    need_users()
    os.chmod(t.disk, 0o755)
    burst = t.disk + "/burst"
    os.mkdir(burst, 0o755)
    with open(PACKAGING + "/burst_buffer.lua") as f:
        lua = f.read()
    for setting, value in (("/burst/forebay", burst), ("/usr/local/bin/forebay", t.forebay),
                           ("/etc/slurm/burst_buffer_stage", PACKAGING + "/burst_buffer_stage")):
        t.ok('= "%s"\n' % setting in lua, "there is no setting " + setting)
        lua = lua.replace('= "%s"\n' % setting, '= "%s"\n' % value)
    files = {"burst_buffer.lua": lua, "burst_buffer.conf": ""}
    with Slurm(t, "BurstBufferType=burst_buffer/lua\n", files) as cluster:
        jobs, user = Jobs(t, cluster), User(t, cluster, USERS[0])
        # Slurm allows root no burst buffers.
        for name in os.listdir(jobs.dir):
            if name == "input" or name.endswith(".sh"):
                t.command(["cp", "-a", "%s/%s" % (jobs.dir, name), user.dir])
        t.command(["chown", "-R", "%d:%d" % (user.uid, user.gid), user.dir])
        jobs.dir = user.dir
        user.env["PATH"] = os.path.dirname(t.forebay) + ":" + user.env["PATH"]
        with open(jobs.dir + "/burst_buffer.sh") as f:
            script = f.read()

        def submit(text, *options):
            with open(jobs.dir + "/bb.sh", "w") as f:
                f.write(text)
            return user.does("sbatch", "--parsable", "--output=%x-%A.out", *options, "bb.sh")

        def told(number):
            with open(cluster.base + "/slurmctld.out", errors="replace") as f:
                return "%s\n%s\n%s" % (jobs.output(number), cluster.say("scontrol", "show", "job", number),
                                       "".join(f.readlines()[-30:]))

        def daemons():
            """The daemons of pools, wherever they are."""
            return ["%d %s" % (pid, comm(pid)) for pid in t.ours() if " keeper " in comm(pid)]

        def gone(number):
            """The job is over, and nothing is left of it on the burst buffer."""
            wait_until(lambda: not cluster.say("squeue", "-h", "-j", number).strip(), 40, lambda: told(number))
            wait_until(lambda: not os.listdir(burst), 10, lambda: "%s %s" % (os.listdir(burst), told(number)))

        here = script
        for path, name in (("/home/me/case", "/input"), ("/home/me/results", "/results")):
            t.ok(path in script, "the example has another path than " + path)
            here = here.replace(path, jobs.dir + name)
        # All nodes are busy: the input comes in all the same.
        busy = user.does("sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=busy",
                         "--wrap=until [ -e go ]; do sleep 0.1; done").stdout.strip()
        number = submit(here).stdout.strip()
        staged = "%s/job-%s" % (burst, number)
        wait_until(lambda: "BurstBufferState=staged-in" in cluster.say("scontrol", "show", "job", number), 30,
                   lambda: told(number))
        t.ok(cluster.say("squeue", "-h", "-j", number, "-o", "%T").strip() == "PENDING", told(number))
        t.ok(os.stat(staged).st_mode & 0o777 == 0o700 and not daemons(), "%s %s" % (daemons(), told(number)))
        shutil.move(jobs.dir + "/input", jobs.dir + "/moved")
        open(jobs.dir + "/go", "w").close()
        jobs.wait(busy)
        gone(number)
        shutil.move(jobs.dir + "/moved", jobs.dir + "/input")
        t.ok(jobs.sums("%s/results-%s" % (jobs.dir, number)) == jobs.expected(), told(number))

        # Results that can't get out stay; scancel --hurry gives them up.
        lost = here.replace(jobs.dir + "/results-%j", "/proc/nowhere")
        number = submit(lost).stdout.strip()
        staged = "%s/job-%s" % (burst, number)
        wait_until(lambda: "staging_is_incomplete" in cluster.say("scontrol", "show", "job", number), 40,
                   lambda: told(number))
        t.ok(os.path.exists(staged + "/unsaved"), told(number))
        wait_until(lambda: not daemons(), 10, lambda: "the end of %s: %s" % (daemons(), told(number)))
        env = {"FOREBAY_HOME": user.dir + "/rescue", "FOREBAY_POOL": "job-" + number}
        said = user.does("mkdir", "-m", "700", "rescue").stdout
        for words in (["up", "--reopen", "--from", staged], ["stage", "out", "/output", jobs.dir + "/rescued"]):
            r = user.does("forebay", *words, env=env)
            said += r.stdout
            t.ok(r.returncode == 0, said)
        t.ok(jobs.sums(jobs.dir + "/rescued") == jobs.expected(), said)
        user.does("forebay", "down", env=env)
        cluster.say("scancel", "--hurry", number)
        gone(number)

        # What can't come in: the job doesn't run, and its reason says why.
        number = submit(here.replace(jobs.dir + "/input", "/nowhere")).stdout.strip()
        wait_until(lambda: "/nowhere" in cluster.say("scontrol", "show", "job", number), 30, lambda: told(number))
        cluster.say("scancel", number)
        gone(number)

        for lines, says in WRONG.items():
            r = submit("#!/bin/bash\n#BB_LUA forebay %s\ntrue\n" % lines)
            if r.returncode == 0 or says not in r.stdout:
                raise Failed("%s: %s" % (lines, r.stdout))
        number = user.does("sbatch", "--parsable", "--output=env-%A.out", "--wrap=env").stdout.strip()
        said = jobs.wait(number)
        t.ok("FOREBAY_STAGED" not in said and "SLURM_JOB_ID" in said, said)
        shutil.rmtree(user.home)
    t.nothing_left("the jobs")
