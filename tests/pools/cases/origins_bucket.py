"""Origins that are buckets: an S3 server (moto) behind a pool, also one that refuses, dies or is changed by others."""
import hashlib
import os
import random
import re
import subprocess
import threading
import time

from cases.buckets import BUCKET, KEYS, Between, Server, at, error, free_port
from cases.origins import status
from harness import case, kill, noise, wait_until

TOP = "s3://%s/case" % BUCKET


def up(t, port, *options, origin=TOP + "=/data", media=("memory:256M",), **more):
    return t.fb("up", "--pool", "p", *(word for m in media for word in ("--media", m)), "--origin", origin, *options,
                env=at(port), **more)


def digest(content):
    return hashlib.sha256(content).hexdigest()


def fill(server):
    """Some objects of other tools, without attributes. Key below the prefix -> content."""
    contents = {"input": noise(3000, 1), "mesh/large": noise((20 << 20) + 5, 2), "mesh/deep/small": b"small\n", "empty": b""}
    for key, content in contents.items():
        server.ask("PUT", "case/" + key, body=content)
    server.ask("PUT", "case/link", body=b"mesh/deep/small", headers={"x-amz-meta-mode": str(0o120777)})
    server.ask("PUT", "case/private", body=b"mine\n", headers={
        "x-amz-meta-mode": str(0o100600), "x-amz-meta-mtime": "1600000000.123456789", "x-amz-meta-step": "3",
        "content-type": "text/x-of-others"})
    return contents


def content(server, key):
    found, _, body = server.ask("GET", "case/" + key)
    return body if found == 200 else None


def meta(server, key):
    return server.ask("HEAD", "case/" + key)[1]


def never_told(t, texts):
    """No secret is in any of these texts, in the pool's directory, or in a list of processes."""
    texts = list(texts)
    for directory, _, names in os.walk(t.pool_dir("p")):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
                texts.append(open(path, errors="replace").read())
    texts.append(subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        t.ok(not any(KEYS[name] in text for text in texts), "%s can be seen" % name)


@case(60)
def origin_that_is_a_bucket(t):
    server = Server(t)
    contents = fill(server)
    requests = []
    between = Between(server, lambda request, reply: requests.append((request.method, request.path, len(request.body))))
    up(t, between.port, "--origin-lag", "0.2")
    # A list shows all, and brings nothing in.
    t.bash("p", "cd /fb/data; stat -c '%n %s %a %F' *; readlink link; stat -c %.9Y private").prints(
        "^input 3000 644 regular file$", "^mesh .* 755 directory$", "^link 15 777 symbolic link$", "^empty 0 644 ",
        "^private 5 600 regular file$", "^mesh/deep/small$", r"^1600000000\.123456789$")
    t.ok(status(t)["fetched_bytes"] == 0, "a list has brought objects in")
    t.bash("p", "cd /fb/data; sha256sum input mesh/large empty; cat link").prints(
        *(digest(contents[key]) for key in ("input", "mesh/large", "empty")), "^small$")
    requests.clear()
    t.bash("p", "cd /fb/data; cat input mesh/large link > /dev/null; ls -lR > /dev/null")
    t.ok(not [r for r in requests if r[0] == "GET" and "list-type" not in r[1]], "brought in again: %s" % requests)
    # Changes, and the same on a plain directory.
    changes = """cd "$1"; echo new > out-of-nothing; mkdir -p out/a/b; seq 1000 > out/a/b/list; echo more >> input
mv mesh/deep/small mesh/renamed; rmdir mesh/deep; ln -sf out/a link; chmod 640 mesh/large; truncate -s 1000 mesh/large
echo part > out/.tmp; mv out/.tmp input; mkdir gone; rmdir gone; cp -p private out/copied; rm empty
for i in $(seq 30); do echo $i > out/a/file-$i; done; rm out/a/file-1*; head -c 9000000 /dev/zero > out/parts"""
    plain = os.path.join(t.disk, "plain")
    for key, body in contents.items():
        os.makedirs(os.path.dirname(os.path.join(plain, key)), exist_ok=True)
        open(os.path.join(plain, key), "wb").write(body)
    open(plain + "/private", "w").write("mine\n")
    os.chmod(plain + "/private", 0o600)
    os.symlink("mesh/deep/small", plain + "/link")
    t.command(["bash", "-c", changes, "bash", plain])
    t.bash("p", changes, "/fb/data")
    # A directory that the bucket has is moved by copying.
    for where, run in (("/fb/data", lambda s: t.bash("p", s)), (plain, lambda s: t.command(["bash", "-c", s]))):
        run("cd %s; sleep 0.3; mv out/a out/moved" % where)
    # Links are one file in the pool, and objects of their own.
    # A name is removed before the other names have its version.
    links = """cd "$1"; ln mesh/large out/same; ln out/parts out/parts-too; echo one > out/first; ln out/first out/second
ln input again; sleep $2; echo more >> out/second; rm input; truncate -s 9000001 out/parts-too"""
    t.command(["bash", "-c", links, "bash", plain, "0"])
    t.bash("p", links, "/fb/data", "0.%d" % random.randrange(10))
    t.fb("origin", "sync", "--pool", "p", timeout=40).says("all changes are at the origin")
    kinds = lambda walked: {k: v[:2] + v[3:] for k, v in walked.items() if k}
    t.same(kinds(t.walk(plain)), kinds(t.walk("/fb/data", "p")), "what the pool shows")
    keys = {k[5:] for k in server.keys() if k.startswith("case/") and not k.endswith("/")}
    files = {os.path.relpath(os.path.join(d, n), plain) for d, _, names in os.walk(plain) for n in names}
    files |= {"link"} if os.path.islink(plain + "/link") else set()
    t.ok(keys == files, "keys and files differ: %s" % sorted(keys ^ files))
    for name in files - {"link"}:
        t.ok(content(server, name) == open(os.path.join(plain, name), "rb").read(), "%s differs" % name)
    t.ok(content(server, "link") == b"out/a" and meta(server, "link")["x-amz-meta-mode"] == str(0o120777), "the link")
    t.ok(meta(server, "mesh/large")["x-amz-meta-mode"] == str(0o100640), meta(server, "mesh/large"))
    t.ok(not server.uploads(), "uploads are left")
    # What gets another name, mode or owner isn't sent again.
    requests.clear()
    t.bash("p", "cd /fb/data; mv out/parts out/moved/parts; sleep 0.5; ln mesh/large mesh/large-too; sleep 0.5")
    t.fb("origin", "sync", "--pool", "p", timeout=40)
    sent = [r for r in requests if r[0] == "PUT" and r[2] > 10000]
    t.ok(not sent and content(server, "out/moved/parts") == bytes(9000001), "sent again: %s" % sent)
    t.bash("p", "cd /fb/data; mv out/moved/parts out/parts; rm mesh/large-too")
    # Evicted, and read again; the mode of what only the bucket has.
    t.fb("origin", "evict", "--pool", "p").says("evicted")
    t.ok(status(t)["archived_bytes"] == 0, status(t))
    t.bash("p", "chmod 600 /fb/data/out/parts; sha256sum /fb/data/out/parts").prints(digest(bytes(9000001)))
    t.fb("origin", "sync", "--pool", "p", timeout=40)
    t.ok(meta(server, "out/parts")["x-amz-meta-mode"] == str(0o100600), meta(server, "out/parts"))
    # User metadata are attributes, whoever has written them; a new mode changes nothing else.
    t.bash("p", "cd /fb/data; chmod 640 private; cd out; setfattr -n user.step -v 4 moved/b/list")
    t.python("p", """import os
assert os.getxattr("/fb/data/private", "user.step") == b"3", os.listxattr("/fb/data/private")
os.setxattr("/fb/data/out/moved/b/list", "user.Odd", b"\\0")""")
    t.fb("origin", "sync", "--pool", "p")
    found = meta(server, "private")
    t.ok((found["x-amz-meta-mode"], found["x-amz-meta-step"], found["content-type"])
         == (str(0o100640), "3", "text/x-of-others"), found)
    t.ok(meta(server, "out/moved/b/list")["x-amz-meta-step"] == "4", meta(server, "out/moved/b/list"))
    t.fb("origin", "evict", "--pool", "p")
    t.python("p", """import os
open("/fb/data/out/moved/b/list").read(1)
assert sorted(os.listxattr("/fb/data/out/moved/b/list")) == ["user.Odd", "user.step"]
assert os.getxattr("/fb/data/out/moved/b/list", "user.step") == b"4" """)
    # The last object of a directory goes; the directory stays.
    t.bash("p", "rm -r /fb/data/mesh/*; ls -d /fb/data/mesh")
    t.ok("case/mesh/" in server.keys(), server.keys())
    never_told(t, [])
    t.fb("down", "--pool", "p")
    server.stop()
    t.nothing_left("down")


@case(60)
def bucket_behind_a_pool_that_others_change(t):
    server = Server(t)
    fill(server)
    put = lambda key, body: server.ask("PUT", "case/" + key, body=body)
    for key in ("clean", "dirty", "removed", "open", "raced", "dir/a", "dir/b"):
        put(key, b"first\n")
    raced = []

    def by_others(request):
        if request.method == "PUT" and request.path.endswith("/raced") and raced == ["now"]:
            raced.append("done")
            put("raced", b"theirs, just before\n")
    between = Between(server, lambda *_: None, by_others)
    up(t, between.port, "--origin-lag", "0.2", origin=TOP)
    t.bash("p", "cd /fb; cat clean dirty removed open raced dir/a > /dev/null")
    t.fb("origin", "hold", "--pool", "p")
    t.bash("p", "echo mine >> /fb/dirty; echo mine >> /fb/raced")
    put("clean", b"second version\n")
    put("dirty", b"theirs\n")
    put("added/below", b"added\n")
    put("dir/b", b"another\n")
    server.ask("DELETE", "case/removed")
    # What is only there is read as it is now.
    t.bash("p", "cat /fb/dir/b").prints("^another$")
    is_shown = lambda: t.bash("p", "cat /fb/clean /fb/added/below; ls /fb/removed", rc=None).out == "second version\nadded\n"
    wait_until(is_shown, 20, "the changes of others")
    raced.append("now")
    t.fb("origin", "resume", "--pool", "p")
    uuid = status(t) and next(iter(re.findall(r'"uuid": *"(\w{8})', open(t.pool_dir("p") + "/pool.json").read())))
    for key, theirs in (("dirty", b"theirs\n"), ("raced", b"theirs, just before\n")):
        wait_until(lambda: content(server, "%s.forebay-conflict-%s" % (key, uuid)), 15, "the pool's version of " + key)
        t.ok(content(server, "%s.forebay-conflict-%s" % (key, uuid)) == b"first\nmine\n", "the pool's version of " + key)
        t.ok(content(server, key) == theirs, "what others have written to %s was replaced" % key)
    t.ok(raced == ["now", "done"], "nothing came in between")
    conflicts = lambda: sorted(c["path"] for c in status(t)["conflicts"])
    wait_until(lambda: conflicts() == [TOP + "/dirty", TOP + "/raced"], 10, "both conflicts in the status")
    # A directory with something of others in it.
    t.bash("p", "ls /fb/dir; rm /fb/dir/*")
    put("dir/late", b"late\n")
    t.bash("p", "rmdir /fb/dir", rc=1).says("not empty")
    t.bash("p", "cat /fb/dir/late").prints("^late$")
    # Keys that no tree can have.
    put("odd//x", b"x")
    wait_until(lambda: t.bash("p", "ls /fb/odd", rc=None).rc == 0, 20, "the directory of others")
    t.ok(any("can't be the name of a file" in p["what"] for p in status(t)["problems"]), status(t))
    t.fb("down", "--pool", "p")
    server.stop()


@case(60)
def bucket_whose_pool_links_files_that_are_being_written_back(t):
    """A file that gets another name between the walk of a pass and its turn to be written: both names get its bytes."""
    server = Server(t)
    # More than are written together.
    names = ["f%03d" % k for k in range(80)]
    for name in names:
        server.ask("PUT", "case/" + name, body=b"old\n")
    goes_on, waiting, copied = threading.Event(), [], []

    def before(request):
        if request.method == "PUT" and "x-amz-copy-source" in request.headers:
            copied.append(request.path)
        elif request.method == "PUT":
            waiting.append(request.path)
            goes_on.wait(20)
    up(t, Between(server, lambda *_: None, before).port, "--origin-lag", "0.2", origin=TOP)
    t.bash("p", "cd /fb; cat f* > /dev/null")
    t.fb("origin", "hold", "--pool", "p")
    t.bash("p", "cd /fb; for f in f*; do echo new >> $f; done; sleep 0.3")
    listed = t.bash("p", "ls -U /fb").out.split()
    t.fb("origin", "resume", "--pool", "p")
    wait_until(lambda: waiting, 10, "the first files being written")
    chosen = listed[:3] + listed[-3:]
    links = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                     'cd /fb; for f; do ln $f other-$f & done; wait', "bash", *chosen])
    wait_until(lambda: copied, 10, "a copy of an object that waits for its turn")
    goes_on.set()
    t.ok(links.wait(30) == 0, "ln failed")
    t.fb("origin", "sync", "--pool", "p", timeout=40).says("all changes are at the origin")
    t.bash("p", "cd /fb; rm %s" % " ".join(chosen))
    t.fb("origin", "sync", "--pool", "p", timeout=40).says("all changes are at the origin")
    for name in chosen:
        t.ok(content(server, "other-" + name) == b"old\nnew\n", "other-%s: %s" % (name, content(server, "other-" + name)))
    t.ok(not [k for k in server.keys() if "conflict" in k], server.keys())
    t.fb("down", "--pool", "p", timeout=40)
    server.stop()


@case(60)
def bucket_behind_a_pool_that_refuses_or_dies(t):
    server = Server(t)
    fill(server)
    fails = lambda port, *words, rc=1, **more: up(t, port, rc=rc, timeout=30, **more).one_line().says(*words)
    fails(server.port, "there is no bucket 'no-such-bucket'", origin="s3://no-such-bucket/x=/data")
    fails(free_port(), "the server can't be reached; check AWS_ENDPOINT_URL")
    fails(server.port, "names no bucket", rc=2, origin="s3://=/data")
    for change, wanted in ((error(403, "InvalidAccessKeyId"), "the server refuses the credentials"),
                           (error(403, "AccessDenied"), "access is denied; ask for the permission")):
        fails(Between(None, change).port, wanted)
    bare = {"HOME": t.work, "AWS_ENDPOINT_URL": "http://127.0.0.1:%d" % server.port}
    t.fb("up", "--pool", "p", "--origin", TOP, rc=1, env=bare).one_line().says("no credentials were found; set AWS_ACCESS_KEY_ID")
    t.nothing_left("a start that failed", processes=False)
    # An empty prefix may be a new one.
    up(t, server.port, origin="s3://%s/new" % BUCKET).says("there is nothing below s3://%s/new yet" % BUCKET)
    t.bash("p", "ls /fb").quiet()
    t.fb("down", "--pool", "p")
    # Credentials that lose a permission; a server that dies, silently at first.
    refuses, stalls = [], []

    def before(request):
        request.is_refused = refuses and request.method == "PUT"
        if request.is_refused:
            # The server gets something else.
            request.method, request.body, request.headers["content-length"] = "GET", b"", "0"

    def change(request, reply):
        if request.is_refused:
            error(403, "AccessDenied")(request, reply)
        if stalls:
            time.sleep(stalls[0])
    between = Between(server, change, before)
    up(t, between.port, "--origin-lag", "0.2", "--origin-timeout", "2")
    t.bash("p", "cat /fb/data/input /fb/data/mesh/deep/small > /dev/null; ls /fb/data/mesh")
    refuses.append(True)
    t.bash("p", "echo new > /fb/data/new")
    told = lambda word: any(word in p["what"] for p in status(t)["problems"])
    wait_until(lambda: told("access is denied"), 10, "the refusal in the status")
    t.fb("down", "--pool", "p", rc=120).says("access is denied", "nothing was removed")
    refuses.clear()
    wait_until(lambda: content(server, "new") == b"new\n" and not status(t)["problems"], 10, "the next attempt")
    stalls.append(6)
    began = time.monotonic()
    t.bash("p", "cat /fb/data/private", rc=1).says("timed out|doesn't answer in time")
    t.ok(time.monotonic() - began < 10, "waited for %.1f s" % (time.monotonic() - began))
    t.bash("p", "cat /fb/data/input > /dev/null; echo later > /fb/data/later; cat /fb/data/later").prints("^later$")
    server.stop()
    stalls.clear()
    t.fb("origin", "sync", "--pool", "p", rc=120, timeout=40).says("later: the (connection breaks off|server)")
    wait_until(lambda: told("the "), 10, "the dead server in the status")
    never_told(t, [t.fb("origin", "status", "--pool", "p").out])
    server.start()
    t.fb("down", "--pool", "p", timeout=40)
    t.ok(content(server, "later") == b"later\n", "a change is lost")
    server.stop()


@case(60)
def bucket_behind_a_pool_whose_keeper_is_killed(t):
    server = Server(t)
    fill(server)
    up(t, server.port, "--origin-lag", "0.1", origin=TOP)
    writer = """import os, sys
n = 0
os.makedirs("/fb/out", exist_ok=True)
while True:
    name = "/fb/out/f%d" % (n % 30)
    with open(name + ".tmp", "w") as f: f.write("%d\\n" % n * (1 + n % 300))
    os.rename(name + ".tmp", name)
    if n % 5 == 0: os.unlink(name)
    else: print(n, flush=True)
    n += 1
"""
    log = os.path.join(t.disk, "log")
    with open(log, "w") as out:
        p = t.start_python("p", writer, stdout=out)
        for pause in (0.7, 0.3, 0.5):
            time.sleep(pause)
            kill(t.keeper("p"))
            t.fb("up", "--reopen", "--pool", "p", env=at(server.port))
        time.sleep(0.3)
        p.kill()
        p.wait()
    # Without credentials, the next keeper doesn't start, and nothing is lost.
    kill(t.keeper("p"))
    wait_until(lambda: t.state("p") == "stale", 10, "the keeper's death")
    t.fb("up", "--reopen", "--pool", "p", rc=1, env={"HOME": t.work}).says("no credentials were found")
    t.fb("up", "--reopen", "--pool", "p", env=at(server.port))
    t.fb("origin", "sync", "--pool", "p", timeout=40)
    last = {}
    for n in map(int, open(log).read().split("\n")[:-1]):
        last[n % 30] = n
    t.ok(len(last) > 20, "only %d files were written" % len(last))
    for slot, n in last.items():
        body = content(server, "out/f%d" % slot)
        if slot % 5 == 0 and body is None:
            continue
        lines = (body or b"").decode().split()
        t.ok(lines and len(set(lines)) == 1 and int(lines[0]) >= n and len(lines) == 1 + int(lines[0]) % 300,
             "f%d has %s, acknowledged was %d" % (slot, lines[:1], n))
    t.ok(not [k for k in server.keys() if "forebay" in k], server.keys())
    wait_until(lambda: set(t.bash("p", "ls /fb/out").out.split())
               == {k[9:] for k in server.keys() if k.startswith("case/out/")} - {""}, 20, "the same names")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p", timeout=40)
    server.stop()


@case(60)
def bucket_behind_a_run_and_behind_several_nodes(t):
    server = Server(t)
    contents = fill(server)
    t.fb("run", "--media", "memory:128M", "--origin", TOP, "--", "bash", "-c",
         "sha256sum /fb/mesh/large > /fb/sum; exit 3", rc=3, env=at(server.port)).says("all changes are at the origin")
    t.ok(content(server, "sum").split()[0].decode() == digest(contents["mesh/large"]), "the result is wrong")
    up(t, server.port, "--nodes", "2", "--origin-lag", "0.2", media=("memory:128M",))
    here = lambda node, script: t.command([t.forebay, "exec", "--pool", "p", "--node", str(node), "--", "bash", "-c",
                                           "cd /fb/data; " + script], timeout=30)
    for node in (1, 0):
        here(node, "sha256sum mesh/large").prints(digest(contents["mesh/large"]))
    t.ok(status(t)["fetched_files"] == 1, "not once for all nodes: %s" % status(t))
    here(1, "mkdir out; echo one > out/one; mv input out/moved; rm private")
    here(0, "echo two >> out/one")
    t.fb("origin", "sync", "--pool", "p")
    t.ok(content(server, "out/one") == b"one\ntwo\n" and content(server, "out/moved") == contents["input"], "not all is there")
    t.ok(content(server, "input") is None and content(server, "private") is None, "what was removed is there")
    t.fb("down", "--pool", "p", timeout=40)
    server.stop()


@case(60)
def bucket_behind_a_pool_with_many_objects(t):
    """Of large directories, objects too large for links cost no request each before they are used."""
    server = Server(t)
    seen = []
    names = ["f%04d" % n for n in range(1500)]

    def answer(request, reply):
        """A list of many large objects, page by page, and one small one."""
        seen.append((request.method, request.path))
        query = dict(part.partition("=")[::2] for part in request.path.partition("?")[2].split("&"))
        if query.get("prefix") != "case%2Fmany%2F" or "max-keys" not in query or query["max-keys"] == "1":
            return
        start = int(query.get("continuation-token") or 0)
        page = names[start:start + 1000]
        entry = "<Contents><Key>case/many/%s</Key><LastModified>2020-01-02T03:04:05.000Z</LastModified>" \
                "<ETag>&quot;0123&quot;</ETag><Size>%d</Size></Contents>"
        more = start + 1000 < len(names)
        body = "<ListBucketResult><EncodingType>url</EncodingType>" + "".join(entry % (n, 5000) for n in page)
        body += "<IsTruncated>%s</IsTruncated>" % str(more).lower()
        body += "<NextContinuationToken>%d</NextContinuationToken>" % (start + 1000) if more else ""
        reply.status, reply.body, reply.headers = 200, (body + "</ListBucketResult>").encode(), {}
    server.ask("PUT", "case/many/f0007", body=noise(5000, 7), headers={
        "x-amz-meta-mode": str(0o100640), "x-amz-meta-mtime": "1600000000"})
    etag = server.ask("HEAD", "case/many/f0007")[1]["etag"]
    t.ok(etag, "no ETag")
    between = Between(server, answer)
    up(t, between.port, origin=TOP)
    t.bash("p", "ls /fb/many | wc -l; TZ=UTC stat -c '%s %a %y' /fb/many/f0007").prints(
        "^1500$", r"^5000 644 2020-01-02 03:04:05\.0")
    heads = [r for r in seen if r[0] == "HEAD" and "/f0" in r[1]]
    t.ok(not heads, "%d requests for attributes" % len(heads))
    # Its attributes come with its bytes.
    t.bash("p", "sha256sum /fb/many/f0007; stat -c '%a %Y' /fb/many/f0007").prints(
        digest(noise(5000, 7)), "^640 1600000000$")
    t.fb("down", "--pool", "p", timeout=40)
    server.stop()


@case(60)
def bucket_behind_a_pool_read_by_ranges(t):
    """A large object comes in block by block, and never as a mixture of two versions."""
    server = Server(t)
    contents = fill(server)
    up(t, server.port, "--origin-ranges", "1M", "--cache", "mesh/**", rc=2).says("may have the mode off")
    up(t, server.port, "--origin-ranges", "1M")
    reader = t.start_python("p", """import hashlib, os, sys
fd = os.open("/fb/data/mesh/large", os.O_RDONLY)
print(hashlib.sha256(os.pread(fd, 1000, 17 << 20)).hexdigest(), flush=True)
sys.stdin.readline()
try:
    os.pread(fd, 1000, 0)
    print("read")
except OSError as e:
    print(e.strerror)
print(hashlib.sha256(open("/fb/data/mesh/large", "rb").read()).hexdigest())""", stdin=subprocess.PIPE, text=True)
    first = reader.stdout.readline().strip()
    t.ok(first == digest(contents["mesh/large"][17 << 20:(17 << 20) + 1000]), "another content: %s" % first)
    came = status(t)
    t.ok(0 < came["fetched_bytes"] < 20 << 20 and came["fetched_files"] == 0, came)
    other = noise((20 << 20) + 5, 9)
    server.ask("PUT", "case/mesh/large", body=other)
    out, _ = reader.communicate("go on\n", timeout=30)
    t.ok(out.split("\n")[:2] == ["Stale file handle", digest(other)], out)
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p", timeout=40)
    server.stop()
