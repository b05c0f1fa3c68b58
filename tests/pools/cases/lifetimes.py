"""Pools that end by themselves, and what cleans up behind those that can't."""
import os
import signal
import subprocess
import time

from harness import alive, case, kill, wait_until


def gone(t, pool, seconds=20):
    wait_until(lambda: not os.path.exists(t.pool_dir(pool)), seconds, "the end of pool %s" % pool)


@case(60)
def a_time_to_live(t):
    """A pool goes when its time is over, but not while it is used; status says what is left."""
    t.up("p", "--ttl", "2s")
    t.up("long", "--ttl", "2h", "--idle", "30m")
    t.fb("status", "--pool", "long").prints(
        r"^lifetime +is removed in .*\(--ttl\); is removed when nobody uses it for .*30.*left\)")
    left = t.fb("status", "--pool", "long", "--json").json()["lifetime"]
    t.ok(left["ttl"] == 7200 and 7000 < left["ttl_left"] <= 7200 and left["idle"] == 1800, left)
    user = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                    "exec 3> /fb/f; echo ready; read; echo kept >&3; cat /fb/f"], stdin=subprocess.PIPE)
    t.ok(user.stdout.readline() == b"ready\n", "it doesn't run")
    time.sleep(4)
    t.ok(t.state("p") == "running", "it was removed under a program")
    t.fb("status", "--pool", "p").prints("^lifetime +its time is over")
    out, err = user.communicate(b"\n", timeout=10)
    t.ok(out == b"kept\n", "%r %r" % (out, err))
    gone(t, "p")
    t.ok(t.state("long") == "running", "the other one went, too")
    for bad in ("0", "soon", "1h30", "-5m"):
        t.fb("up", "--pool", "x", "--media", "memory:64M", "--ttl=" + bad, rc=2)
    t.fb("down", "--pool", "long")
    t.nothing_left("the end of their time")


@case(60)
def a_pool_whose_time_is_over_can_be_gone_on_with(t):
    """A user who reopens a pool wants its content: its time begins again."""
    t.up("p", "--ttl", "4s")
    t.bash("p", "echo precious > /fb/f")
    keeper = t.keeper("p")
    kill(keeper)
    wait_until(lambda: not alive(keeper), 5, "the keeper's death")
    wait_until(lambda: t.fb("status", "--pool", "p", "--json").json()["lifetime"]["ttl_left"] == 0, 10, "its end")
    t.fb("up", "--reopen", "--pool", "p", "--ttl", "1h", rc=2)
    t.fb("up", "--reopen", "--pool", "p")
    time.sleep(0.5)
    t.bash("p", "cat /fb/f").prints("^precious$")
    gone(t, "p")
    t.nothing_left("the end of its second time")


@case(60)
def an_idle_limit(t):
    """A pool is removed when it was unused for its idle limit; each use starts the time again."""
    t.up("p", "--idle", "3s")
    for _ in range(5):
        time.sleep(1)
        t.exec("p", "ls", "/fb")
    t.ok(t.state("p") == "running", "it went although it was used")
    gone(t, "p")
    t.nothing_left("the idle limit")


@case(60)
def an_idle_limit_on_several_nodes(t):
    t.fb("up", "--pool", "p", "--nodes", "2", "--media", "memory:32M", "--idle", "3s", "--ttl", "1h")
    t.fb("status", "--pool", "p").prints(r"node 1: is removed in")
    for n in range(4):
        time.sleep(1)
        t.fb("exec", "--pool", "p", "--node", str(n % 2), "--", "ls", "/fb")
    t.ok(t.state("p") == "running", "it went although it was used")
    gone(t, "p")
    t.nothing_left("the idle limit")


@case(40)
def the_end_of_a_batch_job(t):
    """In a Slurm job a pool with memory ends with the job, by the environment or by scontrol."""
    def lifetime(pool):
        return t.fb("status", "--pool", pool, "--json").json()["lifetime"]
    job = {"SLURM_JOB_ID": "77"}
    t.up("env", env={**job, "SLURM_JOB_END_TIME": str(int(time.time()) + 1000)})
    at = lifetime("env")
    t.ok(980 < at["ttl_left"] <= 1000 and at["why"] == "the end of job 77", at)
    bin_dir = os.path.join(t.work, "bin")
    os.mkdir(bin_dir)
    with open(os.path.join(bin_dir, "scontrol"), "w") as f:
        f.write("#!/bin/sh\n[ \"$*\" = '-o show job 77' ] || exit 1\n"
                "echo 'JobId=77 RunTime=00:10:00 TimeLimit=01:00:00 NodeList=x'\n")
    os.chmod(os.path.join(bin_dir, "scontrol"), 0o755)
    path = {**job, "PATH": bin_dir + ":" + os.environ["PATH"]}
    t.up("asked", env=path)
    t.ok(2980 < lifetime("asked")["ttl_left"] <= 3000, lifetime("asked"))
    # Pools that can be opened again stay, and so do those that the user wants to keep.
    t.up("files", media=["files:%s:32M" % t.disk], env=path)
    t.up("none", "--ttl", "none", env=path)
    t.up("silent", env={**job, "PATH": os.environ["PATH"]})
    for pool in ("files", "none"):
        t.ok(lifetime(pool)["ttl"] is None, "%s: %s" % (pool, lifetime(pool)))
    for pool in ("env", "asked", "files", "none", "silent"):
        t.fb("down", "--pool", pool)


@case(60)
def cleaning(t):
    """`pools --clean` removes what a killed job has left, and nothing else."""
    t.up("runs")
    t.up("dead")
    t.up("used")
    t.up("files", media=["files:%s:32M" % t.disk])
    t.up("damaged")
    t.fb("up", "--pool", "nodes", "--nodes", "2", "--media", "memory:32M")
    user = t.start([t.forebay, "exec", "--pool", "used", "--", "bash", "-c", "exec 3> /fb/f; echo ready; read"],
                   stdin=subprocess.PIPE)
    t.ok(user.stdout.readline() == b"ready\n", "it doesn't run")
    inside = t.start([t.forebay, "exec", "--pool", "dead", "--", "bash", "-c", "exec 3> /fb/f; echo ready; read"],
                     stdin=subprocess.PIPE)
    t.ok(inside.stdout.readline() == b"ready\n", "it doesn't run")
    pids = [t.keeper(p) for p in ("dead", "used", "files", "damaged")]
    for node in t.fb("status", "--pool", "nodes", "--json").json()["nodes"]:
        pids.append(node["keeper"])
    pids.append(inside.pid)
    for pid in pids:
        kill(pid, signal.SIGKILL)
    inside.wait()
    wait_until(lambda: not any(map(alive, pids)), 5, "their deaths")
    with open(os.path.join(t.pool_dir("damaged"), "pool.json"), "w") as f:
        f.write("{")
    t.damaged = True
    r = t.fb("pools", "--clean", rc=1)
    r.says("'dead' removed: its keeper is dead", "'nodes' removed", "'runs' stays: its keeper runs",
           r"'used' stays: in use by \d+ \(bash\)", "'files' stays: .*--reopen", "'damaged' stays: .*down --force")
    listed = sorted(p["name"] for p in t.fb("pools", "--json").json())
    t.ok(listed == ["damaged", "files", "runs", "used"], listed)
    user.communicate(b"\n", timeout=10)
    said = {o["name"]: o for o in t.fb("pools", "--clean", "--all", "--json", rc=1).json()}
    t.ok([n for n in sorted(said) if said[n]["removed"]] == ["files", "used"], said)
    t.ok(not os.listdir(t.disk), "left on disk: %s" % os.listdir(t.disk))
    t.fb("down", "--force", "--pool", "damaged")
    t.fb("down", "--pool", "runs")
    t.fb("pools", "--clean").says("no pools")
    t.nothing_left("cleaning")


@case(40)
def a_program_uses_its_pool_from_its_start_on(t):
    """`down` doesn't take the pool from a program of `exec` that hasn't touched it yet."""
    for nodes in ([], ["--nodes", "2"]):
        t.up("p", *nodes)
        t.fb("down", "--pool", "p", "--check")
        program = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                           "echo ready; read; echo kept > /fb/f; cat /fb/f; read"], stdin=subprocess.PIPE)
        t.ok(program.stdout.readline() == b"ready\n", "it doesn't run")
        r = t.fb("down", "--pool", "p", rc=1).one_line()
        r.says(r"is in use by %d \(bash\); end them first, or .*forebay down --force" % program.pid)
        program.stdin.write(b"\n")
        program.stdin.flush()
        t.ok(program.stdout.readline() == b"kept\n", "the pool is gone")
        # A process that later gets the number of an ended one isn't taken for it.
        t.finish(program, feed=b"\n")
        at = os.path.join(t.pool_dir("p"), *(["node-0"] if nodes else []), "programs")
        with open(os.path.join(at, str(os.getpid())), "w") as f:
            f.write("1")
        t.fb("exec", "--pool", "p", "--", "true")
        t.ok(len(os.listdir(at)) <= 1, "left of ended programs: %s" % os.listdir(at))
        t.fb("down", "--pool", "p")
    # With --force, it is ended.
    t.up("p")
    program = t.start([t.forebay, "exec", "--pool", "p", "--", "sleep", "60"])
    wait_until(lambda: t.fb("down", "--pool", "p", "--check", rc=None).rc == 1, 10, "the start of sleep")
    t.fb("down", "--force", "--pool", "p")
    t.finish(program, rc=-signal.SIGTERM)
    t.nothing_left("programs that don't use the pool")
