"""The scripts of examples/schedulers, with stand-ins for the commands of PBS, LSF and Flux: what is shown is that the
scripts fit the command, not that they fit the schedulers."""
import os
import shutil
import signal
import zlib

from harness import ROOT_OF_TESTS, Skipped, case, kill, wait_until

EXAMPLES = os.path.join(ROOT_OF_TESTS, "..", "examples")
HOSTS = ["h1", "h2", "h3"]
# All hosts are this one. As of ssh, the words behind the host are one text for its shell.
STANDINS = {
    "forebay": """#!/bin/bash
forebay=%(forebay)s
[[ $1 != run ]] || exec "$forebay" run --media memory:96M --listen 127.0.0.1 "${@:2}"
exec "$forebay" "$@"
""",
    "pbs_tmrsh": """#!/bin/bash
[[ " h1 h2 h3 " = *" $1 "* ]] && exec sh -c "${*:2}"
""",
    "blaunch": """#!/bin/bash
[[ " h1 h2 h3 " = *" $1 "* ]] && exec sh -c "${*:2}"
""",
    # Hydra would look for the hosts of PBS and LSF.
    "mpiexec": """#!/bin/bash
exec env -u PBS_NODEFILE -u PBS_JOBID -u LSB_JOBID -u LSB_DJOB_HOSTFILE mpiexec.mpich -n 6 "$@"
""",
    "flux": """#!/bin/bash
case $1 in
hostlist) [[ $* = *--delimiter=,* ]] && echo h1,h2,h3 || echo h1 h2 h3 ;;
exec) [[ $2 = --rank && $3 = [012] ]] && exec "${@:4}" ;;
run) exec mpiexec "${@:6}" ;;
*) exit 9 ;;
esac
""",
}


@case(90)
def scheduler_scripts(t):
    if not (shutil.which("mpicc.mpich") and shutil.which("mpiexec.mpich")):
        raise Skipped("not installed: mpicc.mpich, mpiexec.mpich")
    os.mkdir(t.work + "/bin")
    for name, text in STANDINS.items():
        with open("%s/bin/%s" % (t.work, name), "w") as f:
            f.write(text % {"forebay": t.forebay} if name == "forebay" else text)
        os.chmod("%s/bin/%s" % (t.work, name), 0o755)
    for name in ("pbs.sh", "lsf.sh", "flux.sh", "flux_rsh.sh"):
        shutil.copy("%s/schedulers/%s" % (EXAMPLES, name), t.work)
    t.command(["mpicc.mpich", "-O2", "-o", "sums", EXAMPLES + "/slurm/sums.c"], timeout=60)
    os.mkdir(t.work + "/input")
    wanted = []
    for n in range(20):
        path = t.file("%s/input/f%02d" % (t.work, n), 50000, n)
        with open(path, "rb") as f:
            wanted.append("50000 %08x f%02d" % (zlib.crc32(f.read()), n))
    with open(t.work + "/hosts", "w") as f:
        f.write("".join(host + "\n" for host in HOSTS for _ in range(2)))
    env = {"PATH": "%s/bin:%s" % (t.work, os.environ["PATH"]), "PBS_O_WORKDIR": t.work, "PBS_JOBID": "12[3].server",
           # By default UCX looks at all networks, those included that other cases are just removing.
           "UCX_TLS": "self,sm,tcp", "UCX_NET_DEVICES": "lo",
           "PBS_NODEFILE": t.work + "/hosts", "LSB_JOBID": "12", "LSB_DJOB_HOSTFILE": t.work + "/hosts"}
    for name in ("pbs.sh", "lsf.sh", "flux.sh"):
        r = t.command(["./" + name], env=env, timeout=30).says("with 3 nodes", "staged out")
        with open(t.work + "/output/sums") as f:
            t.ok([" ".join(line.split()) for line in f] == wanted, "%s: %s" % (name, r.told()))
        shutil.rmtree(t.work + "/output")
        t.nothing_left(name)


@case(60)
def scheduler_that_ends_a_job(t):
    """PBS, LSF and Flux send SIGTERM to all of a job's processes at once, daemons included: results are saved."""
    script = "echo $$ > /fb/out; touch %s/started; sleep 60 & wait" % t.work
    for number, variable in enumerate(("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")):
        nodes = ["--nodes", "3"] if number == 0 else []
        running = t.start([t.forebay, "run", "--pool", "job", "--media", "memory:64M", *nodes,
                           "--out", "/out:%s/" % t.work, "--", "sh", "-c", script],
                          env={**os.environ, variable: "17.server"})
        wait_until(lambda: os.path.exists(t.work + "/started"), 20, "the program")
        for pid in t.ours():
            kill(pid, signal.SIGTERM)
        r = t.finish(running, rc=None, timeout=20)
        t.ok(os.path.exists(t.work + "/out"), "%s: %s" % (variable, r.told()))
        os.unlink(t.work + "/started")
        os.unlink(t.work + "/out")
        t.nothing_left(variable)
