"""The workflow service with jobs on its own host: runs through deaths of the service, attacks, users, the page."""
import glob
import json
import os
import pwd
import shutil
import signal
import socket
import time

from browser import Browser
from flowservice import ROOT, Service
from harness import Skipped, case, kill, wait_until

TIERS = """
registry = "{top}/registry"
[tier.scratch]
path = "{top}/scratch"
"""
EXAMPLE = os.path.join(ROOT, "examples", "snakemake", "Snakefile")
# One job that waits for a file, so that a test can look at a run that goes on.
SLOW = '''
rule all:
    input: "end"
rule slow:
    output: "middle"
    shell: "touch begun; until [ -e go ]; do sleep 0.1; done; touch {output}"
rule last:
    input: "middle"
    output: "end"
    shell: "cp {input} {output}"
'''


def tiers(t):
    """The environment in which there is a tier."""
    with open(t.disk + "/tiers.toml", "w") as f:
        f.write(TIERS.format(top=t.disk))
    return {"FOREBAY_CAMPAIGNS": t.disk + "/tiers.toml"}


def write(t, text, name="Snakefile"):
    path = "%s/%s" % (t.work, name)
    with open(path, "w") as f:
        f.write(text)
    return path


@case(limit=200)
def flow_through_deaths(t):
    """30 jobs in a campaign, over TLS, with a step to approve; the service is killed twice, the run itself once."""
    env = tiers(t)
    os.mkdir(t.work + "/data")
    t.file(t.work + "/data/a", 300000, 1)
    t.file(t.work + "/data/b", 10, 2)
    with Service(t, tls=True, env=env, environment=env) as s:
        s.fb("status", env={"FOREBAY_FLOW_CA": ""}, rc=1).says("certificate|UnknownIssuer")
        s.fb("init", "study", EXAMPLE, "--spec", "1G,scratch,1d", "--approve", "compare").says("'study' is ready")
        s.fb("init", "study", rc=2).says("give a Snakefile")
        s.fb("init", "study", EXAMPLE)
        place = t.fb("campaign", "path", "study", env=env).out.strip()
        t.ok(os.listdir(place) == ["Snakefile"], os.listdir(place))
        s.fb("upload", "study", t.work + "/data", "--to", "input").says("2 files are uploaded")
        with open(place + "/input/data/a", "rb") as f, open(t.work + "/data/a", "rb") as g:
            t.ok(f.read() == g.read(), "the upload differs")
        s.fb("get", "study", "input/data/b", "b")
        t.ok(os.path.getsize(t.work + "/b") == 10, "the download")
        # A request that is repeated starts one run.
        parameters = {"jobs": 2}
        done = [s.ask("POST", "workflows/study/runs", parameters, fields={"Idempotency-Key": "k1"}) for _ in range(3)]
        t.ok([d[0] for d in done] == [201, 200, 200] and {d[1]["number"] for d in done} == {1}, done)
        t.ok(s.ask("POST", "workflows/study/runs", {})[0] == 409, "a second run beside the first")
        s.kill()
        s.start()
        wait_until(lambda: glob.glob(place + "/samples/*"), 60, "the first job")
        s.kill()
        # Without a service the run goes on.
        made = lambda: len(glob.glob(place + "/samples/*") + glob.glob(place + "/counts/*"))
        before = made()
        wait_until(lambda: made() > before, 60, "more jobs")
        s.start()
        run = s.wait_for("study", 1, "waiting")
        t.ok(run["waits_for"] == ["compare"] and run["attempt"] == 1, run)
        t.ok(not os.path.exists(place + "/summary.csv"), "the step began without an approval")
        s.fb("approve", "study", "nothing", rc=1).says("needs no approval")
        s.fb("approve", "study", "compare").says("is approved for run 1")
        s.wait_for("study", 1, "succeeded")
        with open(place + "/summary.csv") as f:
            t.ok(f.read().split() == ["s%02d,4000" % n for n in range(14)], "the result")
        graph = s.ask("GET", "workflows/study/runs/1/graph")[1]
        t.ok(len(graph["jobs"]) == 30 and {j["state"] for j in graph["jobs"]} == {"succeeded"}, graph)
        # 14 from make to count, 14 from count to compare, one to all.
        t.ok(len(graph["edges"]) == 29, graph["edges"])
        s.fb("status", "study", "1").prints("^succeeded +count sample=s03")
        s.fb("status").prints("^study +local +study +1 +succeeded")
        s.fb("list", "study").prints("summary.csv$", "input/data/a$")
        s.fb("logs", "study", "--follow").prints("Finished jobid")
        usage = wait_until(lambda: s.ask("GET", "workflows/study")[1]["campaign"]["usage"], 10, "the campaign's usage")
        t.ok(usage["files"] > 30, usage)
        s.fb("delete", "study", "input/data/b")
        t.ok(not os.path.exists(place + "/input/data/b"), "a deleted file")
        s.fb("delete", "study").says("'study' is deleted")
        t.ok(not os.path.exists(place), "the campaign's data are left")
        t.ok(t.fb("campaign", "list", "--json", env=env).json() == [], "the campaign is left")
        t.ok(os.listdir(glob.glob(s.state + "/areas/*")[0]) == [], "files are left")


@case(limit=200)
def flow_lost_runs(t):
    """A run that is killed is started again; one that is cancelled ends; a second service is refused."""
    with Service(t) as s:
        s.fb("init", "w", write(t, SLOW))
        area = glob.glob(s.state + "/areas/*/w/work")[0]
        s.fb("start", "w")
        wait_until(lambda: os.path.exists(area + "/begun"), 60, "the job")
        t.fb("flow", "serve", "--state", s.state, "--listen", "127.0.0.1:0", rc=1).says("another service")
        # Everything dies at once, as when the host does; the service is told by nobody.
        s.kill()
        pids = s.runs()
        t.ok(len(pids) >= 2, pids)
        for pid in pids:
            kill(pid, signal.SIGKILL)
        os.unlink(area + "/begun")
        s.start()
        run = s.wait_for("w", 1, "running")
        wait_until(lambda: s.run("w", 1)["attempt"] == 2 and os.path.exists(area + "/begun"), 30,
                   lambda: s.run_log("w", 1))
        with open(area + "/go", "w"):
            pass
        run = s.wait_for("w", 1, "succeeded")
        t.ok(run["attempt"] == 2 and os.path.exists(area + "/end"), run)
        for name in ("begun", "go", "middle", "end"):
            os.unlink("%s/%s" % (area, name))
        s.fb("start", "w")
        wait_until(lambda: os.path.exists(area + "/begun"), 60, "the job")
        t.ok(s.ask("DELETE", "workflows/w")[0] == 409, "a workflow with a run is deleted")
        s.fb("cancel", "w").says("is being cancelled")
        run = wait_until(lambda: (r := s.run("w", 2))["state"] == "cancelled" and r, 40, lambda: s.run_log("w", 2))
        wait_until(lambda: not s.runs(), 5, "the end of Snakemake")
        # An approval that comes before the run waits for it.
        s.fb("init", "early", write(t, SLOW), "--approve", "last")
        early = glob.glob(s.state + "/areas/*/early/work")[0]
        s.fb("start", "early")
        wait_until(lambda: os.path.exists(early + "/begun"), 60, "the job")
        s.fb("approve", "early", "last")
        with open(early + "/go", "w"):
            pass
        s.wait_for("early", 1, "succeeded")
        t.ok(os.path.exists(early + "/end"), "what was approved wasn't done")
        s.fb("upload", "w", write(t, "rule all:\n  input: 'nowhere'\n"))
        s.fb("start", "w", "--wait", rc=1, timeout=40).says("run 3 has failed: forebay flow logs w 3")
        s.fb("logs", "w").prints("MissingInputException")
        s.fb("delete", "w")


@case(limit=60)
def flow_in_the_campaign_of_a_resource(t):
    """`resources: campaign=...` in a Snakefile is enough: the workflow works in that campaign, and ends it."""
    env = tiers(t)
    asks = 'rule all:\n    output: "end"\n    resources: campaign="1MB,100files,scratch,1d"\n    shell: "echo x > {output}"\n'
    with Service(t, env=env, environment=env) as s:
        s.fb("init", "study", write(t, asks)).says("the rules ask for a campaign: 1MB,100files,scratch,1d", "is ready")
        made = t.fb("campaign", "show", "study", "--json", env=env).json()
        t.ok((made["bytes"], made["files"], made["ends"] - made["created"]) == (10**6, 100, 86400), made)
        s.fb("start", "study", "--wait", timeout=40).says("run 1 of 'study': succeeded: all jobs are done")
        t.ok(sorted(f for f in os.listdir(made["place"]) if f[0] != ".") == ["Snakefile", "end"], os.listdir(made["place"]))
        s.fb("status", "study", "1").prints("^state +succeeded: all jobs are done$")
        s.fb("init", "wrong", write(t, asks.replace("1MB,", "much,")), rc=2).says('campaign "much,100files,scratch,1d"')
        two = asks + asks.replace("all", "b").replace("1MB", "2MB").replace('"end"', '"b"')
        s.fb("init", "two", write(t, two), rc=2).says("ask for 2 campaigns", "--spec")
        t.ok(len(s.ask("GET", "workflows")[1]["workflows"]) == 1, "a workflow that was refused is there")
        s.fb("delete", "study")
        t.ok(not os.path.exists(made["place"]), "the campaign's data are left")


def head(method, path, *fields, token=""):
    lines = ["%s %s HTTP/1.1" % (method, path), "Host: x", "Authorization: Bearer " + token, *fields, "", ""]
    return "\r\n".join(lines).encode()


def status(reply):
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.1 ") else None


def unfinished(s, count):
    """Connections whose requests don't come: half of them send the beginning of one."""
    all_of = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(count)]
    for n, c in enumerate(all_of):
        c.sendall(b"GET / HT" if n % 2 == 0 else b"")
    return all_of


@case(limit=90)
def flow_attacks(t):
    """Paths that lead out, large bodies, names, tokens, slow and many clients: refused, and the service goes on."""
    limits = "upload = '1M'\nuploads = '2M'\nfiles = 6\nruns = 1\nworkflows = 3"
    with Service(t, limits=limits) as s:
        t.fb("flow", "serve", "--state", t.work + "/x", "--listen", "0.0.0.0:0", rc=1).says("--tls-cert")
        s.fb("status", rc=2, env={"FOREBAY_FLOW_SERVER": "http://192.0.2.1:1"}).says("isn't safe for a token")
        s.fb("init", "w", write(t, SLOW))
        area = glob.glob(s.state + "/areas/*/w/work")[0]
        secret = t.disk + "/secret"
        with open(secret, "w") as f:
            f.write("secret")
        os.symlink(t.disk, area + "/out")
        os.symlink(secret, area + "/link")
        os.mkfifo(area + "/fifo")
        bad = ["../x", "a/../../x", "/etc/x", "a//b", "%2e%2e/x", "..%2fx", "a%2f..%2fx", "a%00b", "%ff",
               ".snakemake/x", ".", "x" * 101, "/".join(["a"] * 17), "out/x", "a%0Ab", "%2fetc%2fx"]
        for path in bad:
            reply = s.raw(head("PUT", "/api/v1/workflows/w/files/" + path, "Content-Length: 1", token=s.token) + b"x")
            t.ok(status(reply) in (400, 404), "%s: %s" % (path, reply[:200]))
        for path in ("link", "out/secret", "fifo", "../../../../secret"):
            code, text = s.ask("GET", "workflows/w/files/" + path)
            t.ok(code in (404, 409, 400) and "secret" not in json.dumps(text.get("error", "")), "%s: %s" % (path, text))
        t.ok(s.ask("DELETE", "workflows/w/files/out/secret")[0] == 404, "deleted through a link")
        t.ok(s.ask("PUT", "workflows/w/files/link", "new")[0] == 204, "a link isn't replaced")
        with open(secret) as f:
            t.ok(f.read() == "secret", "the link was followed")
        outside = [t.disk + "/x", s.state + "/areas/x", os.path.dirname(area) + "/x"]
        t.ok(not any(map(os.path.exists, outside)), "something was written outside")
        half = head("PUT", "/api/v1/workflows/w/files/half", "Content-Length: 100", token=s.token) + b"half"
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(half)
            wait_until(lambda: glob.glob(area + "/.upload*"), 5, "half an upload")
        # A sender of a byte now and then: it is cut below.
        trickle, trickled = socket.create_connection(("127.0.0.1", s.port)), time.monotonic()
        trickle.sendall(half.replace(b"/half", b"/trickle"))
        halves = lambda: [f for f in os.listdir(area) if f.startswith(".upload")]
        wait_until(lambda: len(halves()) == 1, 5, lambda: "what is left of half an upload: %s" % halves())
        # Sizes.
        t.ok(s.ask("PUT", "workflows/w/files/large", b"x" * (1 << 20) + b"x")[0] == 413, "a file that is too large")
        big = t.file(t.work + "/big", 3 << 20)
        s.fb("upload", "w", big, rc=1).says("too large: 1048576 are allowed")
        t.ok(s.ask("PUT", "workflows/w/files/l1", b"x" * (1 << 20))[0] == 204, "an upload")
        code, text = s.ask("PUT", "workflows/w/files/l2", b"x" * (1 << 20))
        t.ok(code == 507 and "delete some" in text["error"], text)
        t.ok(s.ask("PUT", "workflows/w/files/l1", b"x")[0] == 204, "replaced by less")
        for n in range(2):
            t.ok(s.ask("PUT", "workflows/w/files/f%d" % n, b"x")[0] == 204, n)
        t.ok(s.ask("PUT", "workflows/w/files/f3", b"x")[0] == 507, "too many files")
        for fields in (["Transfer-Encoding: chunked"], []):
            reply = s.raw(head("PUT", "/api/v1/workflows/w/files/f", *fields, token=s.token))
            t.ok(status(reply) == 411, "no length: %s" % reply)
        huge = head("POST", "/api/v1/workflows", "Content-Length: 999999999999", token=s.token)
        t.ok(status(s.raw(huge)) == 413, "a large body of JSON")
        t.ok(status(s.raw(head("GET", "/", "A: " + "x" * 20000))) == 431, "a large head")
        t.ok(status(s.raw(b"\x16\x03\x01garbage\r\n\r\n")) == 400, "garbage")
        # Names and words.
        for name in ("../w", ".w", "-w", "a b", "<img src=x onerror=alert(1)>", "w" * 101, "", "ä", "a/b", "a\nb"):
            t.ok(s.ask("POST", "workflows", {"name": name})[0] == 400, name)
        for change in ({"targets": ["--cores"]}, {"config": {"a b": "c"}}, {"config": {"a": "--x"}},
                       {"resources": {"-x": "1"}}, {"targets": ["a\nb"]}, {"jobs": 0}, {"jobs": -1}, {"unknown": 1},
                       {"targets": "a"}, [], {"config": {"a": "x" * 1001}}):
            t.ok(s.ask("POST", "workflows/w/runs", change)[0] == 400, change)
        t.ok(s.ask("POST", "workflows", {"name": "v", "approve": ["--x"]})[0] == 400, "a rule's name")
        t.ok(s.ask("POST", "workflows", {"name": "v", "campaign": {"spec": "--at-end"}})[0] == 400, "a spec")
        t.ok(s.ask("POST", "workflows", "{" * 100000)[0] == 400, "deep JSON")
        # Tokens.
        for token in ("", "x", s.token[:-1], s.token + "x", s.token.swapcase(), "fbf_../../../x_y"):
            t.ok(s.ask("GET", "workflows", token=token)[0] == 401, token)
            t.ok(s.ask("GET", "nothing", token=token)[0] == 401, "what there is, is told")
        t.ok(status(s.raw(head("GET", "/api/v1/workflows"))) == 401, "no token")
        reader = s.make_token(scope="read")
        refused = [("POST", "workflows", {"name": "v"}), ("DELETE", "workflows/w", None),
                   ("PUT", "workflows/w/files/x", "x"), ("DELETE", "workflows/w/files/f1", None),
                   ("POST", "workflows/w/runs", {}), ("POST", "workflows/w/runs/1/approve", {"rule": "a"}),
                   ("POST", "workflows/w/runs/1/cancel", None)]
        for method, path, body in refused:
            t.ok(s.ask(method, path, body, token=reader)[0] == 403, path)
        t.ok(s.ask("GET", "workflows", token=reader)[0] == 200, "a reader")
        short = s.make_token(time_left="1s")
        time.sleep(1.1)
        t.ok(s.ask("GET", "workflows", token=short)[0] == 401, "a token that has expired")
        t.fb("flow", "token", "--state", s.state, "--revoke", reader.split("_")[1])
        t.ok(s.ask("GET", "workflows", token=reader)[0] == 401, "a token that was revoked")
        for path in glob.glob(s.state + "/tokens/*"):
            with open(path) as f:
                t.ok(s.token.split("_", 2)[2] not in f.read() and os.stat(path).st_mode & 0o77 == 0, path)
        # Quotas.
        for name in ("w2", "w3"):
            t.ok(s.ask("POST", "workflows", {"name": name})[0] == 201, name)
        t.ok(s.ask("POST", "workflows", {"name": "w4"})[0] == 507, "too many workflows")
        t.ok(s.ask("POST", "workflows/w2/runs", {})[0] == 409, "a run without a Snakefile")
        t.ok(s.ask("PUT", "workflows/w/files/Snakefile", SLOW)[0] == 204, "a Snakefile")
        s.ask("DELETE", "workflows/w/files/f0")
        t.ok(s.ask("PUT", "workflows/w2/files/Snakefile", SLOW)[0] == 204, "a Snakefile")
        t.ok(s.ask("POST", "workflows/w/runs", {})[0] == 201, "a run")
        code, text = s.ask("POST", "workflows/w2/runs", {})
        t.ok(code == 429 and "1 are allowed" in text["error"], text)
        s.ask("POST", "workflows/w/runs/1/cancel")
        # Slow clients: heads that don't come, from the address of a client with a token. It isn't held up, and the
        # slowest get a 503.
        slow = unfinished(s, 100)
        for n in range(20):
            at = time.monotonic()
            t.ok(s.ask("GET", "workflows")[0] == 200, "a client behind the same address")
            t.ok(time.monotonic() - at < 2, "it waited for %.1f s" % (time.monotonic() - at))
            slow += unfinished(s, 5)
        s.fb("status").prints("^w ")
        first = slow.pop(0)
        first.settimeout(5)
        got = first.recv(1000)
        t.ok(status(got) == 503 and b"\r\nRetry-After: 1\r\n" in got, "the slowest: %s" % got)
        for c in slow:
            c.close()
        # Requests of one token in progress: no more than 32; another token has its own.
        half = head("PUT", "/api/v1/workflows/w/files/f1", "Content-Length: 100", token=s.token)
        mine = []

        def refusal():
            # Those that the service hasn't looked at yet count for their address, and may give way to later ones:
            # there are as many as it takes.
            for _ in range(40 if not mine else 4):
                mine.append(socket.create_connection(("127.0.0.1", s.port)))
                mine[-1].sendall(half)
            code, answer = s.ask("GET", "me")
            return code == 503 and answer["error"]

        busy = wait_until(refusal, 10, "a token with 32 requests")
        t.ok("32 requests of this token" in busy, busy)
        t.ok(s.ask("GET", "me", token=s.make_token())[0] == 200, "another token")
        for c in mine:
            c.close()
        wait_until(lambda: s.ask("GET", "me")[0] == 200, 5, "the token's requests to end")
        # As many as one address may have are cut when their time is over.
        began = time.monotonic()
        slow = unfinished(s, 32)
        for c in slow:
            c.settimeout(15)
            got = b""
            try:
                while part := c.recv(1000):
                    got += part
            except ConnectionResetError:
                pass
            t.ok(status(got) in (408, None), got)
            c.close()
        took = time.monotonic() - began
        t.ok(8 < took < 15, "slow clients were cut after %.1f s" % took)
        t.ok(s.ask("GET", "workflows")[0] == 200, "the service doesn't answer any more")
        trickle.sendall(b"x")
        trickle.settimeout(30)
        t.ok(status(trickle.recv(1000)) == 408 and 18 < time.monotonic() - trickled < 25, "a body that trickles")
        trickle.close()
        t.ok(not os.path.exists(area + "/trickle"), "an upload that wasn't whole is there")
        wait_until(lambda: not halves(), 5, "half an upload is left")
        t.ok(not os.path.exists(area + "/half"), "half an upload")
        t.ok(s.process.poll() is None and "panicked" not in s.said(), s.said()[-2000:])


@case(limit=60)
def flow_users(t):
    """Two users of a service of root: neither sees or touches anything of the other's, or of root's."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        raise Skipped("only root can act as other users")
    names = ("nobody", "games")
    with Service(t, others=True) as s:
        tokens = {name: s.make_token(user=name) for name in names}
        a, b = (tokens[name] for name in names)
        t.fb("flow", "token", "--state", s.state, "--user", "no-such-user", rc=2).says("there is no user")
        if s.ask("POST", "workflows", {"name": "w"}, token=a)[0] != 201:
            raise Skipped("others can't get to %s: %s" % (s.state, s.said()[-500:]))
        t.ok(s.ask("POST", "workflows", {"name": "w"}, token=b)[0] == 201, "both have a workflow of one name")
        t.ok(s.ask("POST", "workflows", {"name": "of-a"}, token=a)[0] == 201, "a workflow")
        who = "rule all:\n  shell: 'id -un > who; id -Gn >> who; cat %s/tokens/* >> who 2>&1 || true'\n" % s.state
        for token in tokens.values():
            t.ok(s.ask("PUT", "workflows/w/files/Snakefile", who, token=token)[0] == 204, "an upload")
        t.ok(s.ask("PUT", "workflows/of-a/files/Snakefile", who, token=a)[0] == 204, "an upload")
        for method, path, body in [("GET", "workflows/of-a", None), ("GET", "workflows/of-a/files", None),
                                   ("GET", "workflows/of-a/files/Snakefile", None),
                                   ("PUT", "workflows/of-a/files/x", "x"),
                                   ("DELETE", "workflows/of-a", None), ("POST", "workflows/of-a/runs", {}),
                                   ("GET", "workflows/of-a/runs/1", None), ("GET", "workflows/of-a/runs/1/log", None),
                                   ("GET", "workflows/of-a/runs/1/graph", None),
                                   ("POST", "workflows/of-a/runs/1/approve", {"rule": "x"}),
                                   ("POST", "workflows/of-a/runs/1/cancel", None)]:
            code, text = s.ask(method, path, body, token=b)
            t.ok(code == 404, "%s %s: %d %s" % (method, path, code, text))
        for name in names:
            area = "%s/areas/%s/w" % (s.state, name)
            uid = pwd.getpwnam(name).pw_uid
            stat = os.stat(area + "/work/Snakefile")
            t.ok(stat.st_uid == uid and os.stat(area).st_mode & 0o77 == 0, "%s: owner %d" % (area, stat.st_uid))
            t.ok(s.ask("POST", "workflows/w/runs", {}, token=tokens[name])[0] == 201, "a run")
        for name in names:
            def over():
                run = s.ask("GET", "workflows/w/runs/1", token=tokens[name])[1]
                return run["state"] in ("succeeded", "failed") and run
            run = wait_until(over, 30, lambda: s.said())
            text = s.ask("GET", "workflows/w/runs/1/log", token=tokens[name])[1]["text"]
            if "Permission denied" in text and run["state"] == "failed":
                raise Skipped("others can't run Snakemake: " + text[-300:])
            t.ok(run["state"] == "succeeded", text)
            with open("%s/areas/%s/w/work/who" % (s.state, name)) as f:
                lines = f.read().split("\n")
            t.ok(lines[0] == name and "root" not in lines[1].split(), lines)
            t.ok("hash" not in "".join(lines) and "Permission denied" in "".join(lines[2:]), lines)
        # A user's links and directories lead the service, which is root's, nowhere that the user can't go.
        area = "%s/areas/nobody/w" % s.state
        os.symlink(s.state + "/tokens", area + "/work/tokens")
        for path in ("tokens", "tokens/x"):
            t.ok(s.ask("GET", "workflows/w/files/" + path, token=a)[0] in (404, 409), path)
        with open(area + "/work/of-root", "w") as f:
            f.write("x")
        os.chmod(area + "/work/of-root", 0o600)
        t.ok(s.ask("GET", "workflows/w/files/of-root", token=a)[0] == 403, "a file that the user can't read")
        os.unlink(area + "/runs/1/log")
        os.symlink("/etc/shadow", area + "/runs/1/log")
        t.ok(s.ask("GET", "workflows/w/runs/1/log", token=a)[1].get("text", "") == "", "a log that is a link")
        # A process number in a user's file: the signal is the user's.
        with open(area + "/runs/1/pid", "w") as f:
            f.write(str(os.getpgid(os.getpid())))
        t.ok(s.ask("DELETE", "workflows/w", token=a)[0] == 202, "a deletion")
        wait_until(lambda: not os.path.exists(area), 10, lambda: s.said())
        t.ok(os.path.exists("%s/areas/games/w/work/who" % s.state), "the other's files went, too")
        # A service that isn't root's serves nobody else.
        state = t.disk + "/own"
        os.mkdir(state)
        os.chown(state, pwd.getpwnam("nobody").pw_uid, -1)
        as_nobody = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", t.forebay, "flow"]
        more = ["--state", state, "--user", "games"]
        t.command(as_nobody + ["token", *more], rc=2).says("only a service of root serves others than 'nobody'")
        # Also with a token that root has put there.
        token = t.fb("flow", "token", *more).out.strip()
        os.chown(state + "/tokens", pwd.getpwnam("nobody").pw_uid, -1)
        for path in glob.glob(state + "/tokens/*"):
            os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
        s.kill()
        s.start(as_nobody + ["serve"], state)
        code, text = s.ask("GET", "workflows", token=token)
        t.ok(code == 403 and "serves 'nobody' only" in text["error"], text)


CONTROLS = """[...document.querySelectorAll('a,button,input,summary,progress,[tabindex="0"]')]
  .filter(e => e.offsetParent !== null).map(e => [e.tagName, e.id, e.getBoundingClientRect().height])"""


def names(page):
    """Role and name of what a screen reader is told of."""
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    return [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]


@case(limit=90)
def flow_page(t):
    """The page in Chromium: sign in, runs, graph, log, an approval by a click; on a phone's width; hostile names."""
    env = tiers(t)
    hostile = "<img src=x onerror=alert(1)>"
    snakefile = SLOW.replace("rule slow:\n", 'rule slow:\n    params: "%s"\n' % hostile)
    with Service(t, env=env, environment=env) as s, Browser(t) as browser:
        s.fb("init", "study", write(t, snakefile), "--spec", "1M,scratch,1d", "--approve", "last")
        s.fb("init", "other")
        place = t.fb("campaign", "path", "study", env=env).out.strip()
        t.file(place + "/ballast", 3 << 19)
        page = browser.open(s.url + "/", width=360, scheme="")
        page.ask("Accessibility.enable")

        def shows(expression, what, seconds=15):
            wait_until(lambda: page.evaluate(expression), seconds,
                       lambda: "%s; the page has: %s" % (what, page.evaluate("document.body.innerText")))

        def looks_good(name):
            """No way to scroll sideways, names for all controls, large enough for fingers."""
            for width in (360, 1280):
                page.wide(width)
                wide = page.evaluate("document.documentElement.scrollWidth")
                t.ok(wide <= width, "%s: %d pixels on a screen of %d" % (name, wide, width))
                shot(page, "%s/%s-%d.png" % (os.environ.get("TEST_SHOTS", t.work), name, width))
            page.wide(360)
            nameless = [r for r, n in names(page) if not n and r in (
                "button", "link", "textbox", "progressbar", "progressIndicator", "region", "image", "img", "group")]
            t.ok(not nameless, "%s: without a name: %s" % (name, nameless))
            low = [c for c in page.evaluate(CONTROLS) if c[0] in ("BUTTON", "INPUT") and c[2] < 44]
            t.ok(not low, "%s: too low for fingers: %s" % (name, low))
        shows("!document.getElementById('enter').hidden", "the form")
        looks_good("enter")

        def sign_in(token):
            page.evaluate("document.getElementById('token').value = '%s'" % token)
            page.evaluate("document.querySelector('#enter button').click()")
        sign_in("fbf_wrong")
        shows("document.getElementById('message').innerText.includes('isn\\'t valid')", "a wrong token")
        sign_in(s.token)
        shows("document.querySelectorAll('#workflows a').length === 2", "two workflows")
        looks_good("overview")
        page.evaluate("document.querySelector('#workflows a[data-mark=study]').click()")
        shows("document.getElementById('workflow-title').innerText === 'study'", "the workflow")
        page.evaluate("document.getElementById('start').click()")
        shows("document.querySelectorAll('#graph g.running').length === 1", "a running job", 25)
        # Names and messages of others are text.
        with open(glob.glob(s.state + "/areas/*/study/runs/1/log")[0], "a") as f:
            f.write(hostile + "\n")
        event = {"event": "job", "id": 99, "rule": hostile, "wildcards": {hostile: hostile}, "output": ["x"]}
        with open(glob.glob(s.state + "/areas/*/study/runs/1/events")[0], "a") as f:
            f.write(json.dumps(event) + "\n")
        shows("document.getElementById('log').innerText.includes('<img src=x')", "the log")
        shows("document.getElementById('jobs').textContent.includes('<img src=x')", "the table")
        t.ok(page.evaluate("document.images.length") == 0, "a name became an element")
        looks_good("running")
        with open(place + "/go", "w"):
            pass
        shows("document.querySelector('#approvals button')?.innerText === 'Approve step last'", "the approval", 25)
        shows("document.getElementById('bytes-label').innerText.includes('over quota')", "the campaign's use", 25)
        looks_good("waiting")
        # As a user does it: with the keyboard.
        page.evaluate("document.querySelector('#approvals button').focus()")
        for kind in ("keyDown", "keyUp"):
            page.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13,
                     text="\r")
        shows("document.getElementById('run-state').innerText === 'succeeded'", "the end", 25)
        t.ok(os.path.exists(place + "/end"), "the step didn't run")
        page.evaluate("document.getElementById('jobs-all').open = true")
        looks_good("succeeded")
        # The result, and only that, as a file to fetch; each job with its time.
        files = page.evaluate("[...document.querySelectorAll('#results button')].map(b => b.textContent)")
        t.ok("end" in files and "middle" not in files, files)
        times = page.evaluate("[...document.querySelectorAll('#jobs tr')].filter(r => r.children[0].textContent == 'slow')"
                              ".map(r => r.children[3].textContent + '|' + r.children[4].textContent)")
        t.ok(len(times) == 1 and times[0].split(" s|")[0].isdigit() and times[0].endswith("|middle"), times)
        t.ok(page.evaluate("[...document.querySelectorAll('#graph .time')].some(e => e.textContent.endsWith(' s'))"),
             "the picture has no times")
        page.evaluate("URL.createObjectURL = blob => { window.fetched = blob.size; return '#fetched'; }")
        page.evaluate("document.querySelector('#results button[data-path=end]').click()")
        shows("window.fetched === 0", "the result was fetched")
        roles = names(page)
        headings = [n for r, n in roles if r == "heading"]
        wanted = {"Forebay workflows", "study", "Campaign study", "Runs", "Run 1", "Jobs", "Results", "Log"}
        t.ok(wanted <= set(headings), headings)
        t.ok(any(r == "main" for r, _ in roles), roles)
        t.ok(any("Graph of" in n for r, n in roles if r in ("image", "img")), roles)
        page.evaluate("document.getElementById('leave').click()")
        shows("!document.getElementById('enter').hidden && !sessionStorage.getItem('token')", "signed out")
        errors = [c for c in page.complaints() if "401" not in c and not c.startswith(s.url) and '"verbose"' not in c]
        t.ok(not errors, errors)


def shot(page, path):
    import base64
    data = page.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
    with open(path, "wb") as f:
        f.write(base64.b64decode(data))
