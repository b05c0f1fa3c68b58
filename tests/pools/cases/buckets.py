"""Buckets: staging from and to an S3 server (moto), also one that dies, lies or is changed by others."""
import atexit
import glob
import hashlib
import http.client
import http.server
import itertools
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

from harness import ROOT_OF_TESTS, Skipped, case, kill, wait_until

BUCKET = "some-bucket"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDOFTHETESTS", "AWS_SECRET_ACCESS_KEY": "the+secret/of=the=tests",
        "AWS_SESSION_TOKEN": "token/of/the/tests", "AWS_REGION": "us-east-1"}
# moto checks no signatures, but takes the account from them.
UNCHECKED = {"Authorization": "AWS4-HMAC-SHA256 Credential=%s/20200101/us-east-1/s3/aws4_request, "
             "SignedHeaders=host, Signature=0" % KEYS["AWS_ACCESS_KEY_ID"]}


def python_with_moto():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT_OF_TESTS, "..", "target"))
    found = glob.glob(os.path.join(target, "python", "*-s3", "bin", "python"))
    if not found:
        raise Skipped("moto isn't there; get it with: python3 tests/python/prepare.py")
    return found[0]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ServerPlace:
    """What a server of buckets needs of a runner without cases: a directory for its log, a process that ends with it."""

    def __init__(self, base):
        self.base = base

    def start(self, argv, **more):
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **more)
        atexit.register(process.kill)
        return process


class Server:
    """moto's S3 server, with one bucket. All is lost when it stops."""

    def __init__(self, t):
        self.t, self.python, self.port = t, python_with_moto(), free_port()
        self.start()

    def start(self):
        with open(self.t.base + "/moto.log", "ab") as log:
            self.process = self.t.start(
                [self.python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log, stderr=log)
        wait_until(self.answers, 15, "moto to start")
        self.ask("PUT", "")

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def stop(self):
        kill(self.process.pid)
        self.process.wait(5)

    def ask(self, method, key, query="", body=None, headers=None):
        """A request past forebay: (status, headers, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        path = "/%s/%s%s" % (BUCKET, urllib.parse.quote(key), query)
        connection.request(method, path, body, {**UNCHECKED, **(headers or {})})
        reply = connection.getresponse()
        got = reply.status, dict((k.lower(), v) for k, v in reply.getheaders()), reply.read()
        connection.close()
        return got

    def keys(self):
        text = self.ask("GET", "", "?list-type=2")[2].decode()
        return sorted(re.findall("<Key>(.*?)</Key>", text))

    def uploads(self):
        return re.findall("<UploadId>(.*?)</UploadId>", self.ask("GET", "", "?uploads")[2].decode())


class Between(http.server.ThreadingHTTPServer):
    """Passes requests on to a server. `change(request, reply)` may change what passes.

    A request has method, path, body; a reply status, headers, body, and `cut`: after so many bytes
    of the body the connection is closed. Without a server, `change` makes the reply."""
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    class Message:
        pass

    def __init__(self, server, change, before=lambda request: None):
        self.server, self.change, self.before = server, change, before
        super().__init__(("127.0.0.1", 0), Handler)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def pass_on(self):
        between = self.server
        request, reply = Between.Message(), Between.Message()
        request.method, request.path = self.command, self.path
        request.headers = {k.lower(): v for k, v in self.headers.items()}
        request.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        between.before(request)
        reply.status, reply.headers, reply.body, reply.cut = 200, {}, b"", None
        if between.server is not None:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", between.server.port, timeout=20)
                connection.putrequest(request.method, request.path, True, True)
                for name, value in request.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(request.body or None)
                got = connection.getresponse()
                reply.status, reply.body = got.status, got.read()
                reply.headers = {k.lower(): v for k, v in got.getheaders()}
                connection.close()
            except (OSError, http.client.HTTPException):
                self.close_connection = True
                return
        between.change(request, reply)
        for name in ("connection", "transfer-encoding"):
            reply.headers.pop(name, None)
        if request.method != "HEAD" or "content-length" not in reply.headers:
            reply.headers["content-length"] = str(len(reply.body))
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if request.method != "HEAD":
            self.wfile.write(reply.body[:reply.cut])
        if reply.cut is not None:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on


def at(port):
    return {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:%d" % port}


def stage(t, direction, source, target, port, rc=0, **more):
    """A staging. Nothing it prints has a secret in it."""
    r = t.fb("stage", direction, source, target, "--pool", "p", rc=rc, env=at(port), timeout=30, **more)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        t.ok(KEYS[name] not in r.out + r.err, "a message has %s in it\n%s" % (name, r.told()))
    return r


def times(path):
    """Modification times of a tree. Nanoseconds."""
    found = {}
    for directory, _, names in os.walk(path):
        for name in [".", *names]:
            full = os.path.join(directory, name)
            found[os.path.relpath(full, path)] = os.lstat(full).st_mtime_ns
    return found


def make_source(t):
    top = t.work + "/source"
    for name in ("many/deep/deeper", "empty/nothing", "a name/with spaces"):
        os.makedirs(os.path.join(top, name))
    for n in range(200):
        t.file("%s/many/%sf%d" % (top, "deep/" if n % 4 == 0 else "", n), n * 37 % 9000, n)
    for name in ("ünïcode ☃", "100% sure", "%41+b&c=d?e#f", "quote\"'<>;", "back\\slash", " edges ",
                 "..x", "a:b@c,d$e!f*g(h)"):
        t.file(os.path.join(top, "a name/with spaces", name), 100, len(name))
    t.file(top + "/big", (40 << 20) + 12345, 1)
    t.file(top + "/one-part", 8 << 20, 2)
    t.file(top + "/two-parts", (8 << 20) + 1, 3)
    open(top + "/zero", "w").close()
    with open(top + "/sparse", "wb") as f:
        f.truncate(3 << 20)
    os.symlink("many/deep", top + "/link")
    os.symlink("ünï\ncode \\ %", top + "/odd-link")
    os.link(top + "/many/f1", top + "/many/f1-again")
    os.chmod(top + "/many/f2", 0o4750)
    os.chmod(top + "/many/deep", 0o700)
    os.utime(top + "/many/f3", ns=(5, 1_600_000_000_123_456_789))
    os.utime(top + "/empty", ns=(5, 1_500_000_000_000_000_001))
    return top


def without_links(found):
    """Hard links are files of their own in a bucket."""
    return {name: what[:3] + [0] + what[4:] for name, what in found.items()}


@case(40)
def bucket_round_trip(t):
    server = Server(t)
    source = make_source(t)
    wanted = without_links(t.walk(source))
    t.up("p", media=["memory:512M"])
    t.fb("stage", "in", source, "/case", "--pool", "p")
    stage(t, "out", "/case", "s3://%s/some/where/" % BUCKET, server.port).says("staged out")
    t.ok(not server.uploads(), "uploads are left")
    status, headers, _ = server.ask("HEAD", "some/where/many/f2")
    t.ok(status == 200 and headers["x-amz-meta-mode"] == str(0o104750), "f2 has %s" % headers)
    t.ok(server.ask("GET", "some/where/link")[2] == b"many/deep", "the link's content isn't its target")
    t.ok("some/where/empty/nothing/" in "".join(server.keys()), "empty directories have no marker")
    # Through the pool's other path, and outside: all as it was.
    stage(t, "in", "s3://%s/some/where" % BUCKET, "/back", server.port).says("staged in")
    t.same(wanted, without_links(t.walk("/fb/back", "p")), "what came back")
    t.fb("stage", "out", "/back", t.work + "/back", "--pool", "p")
    t.same(times(source), times(t.work + "/back"), "times of what came back")
    # Repetitions move nothing, and only what has changed.
    for direction, a, b in (("out", "/case", "s3://%s/some/where" % BUCKET),
                            ("in", "s3://%s/some/where" % BUCKET, "/back")):
        r = t.fb("stage", direction, a, b, "--pool", "p", "--json", env=at(server.port)).json()
        t.ok(r["moved_files"] == 0 and r["failed"] == 0, "a repetition moved: %s" % r)
    r = t.fb("stage", "out", "/case", "s3://%s/some/where" % BUCKET, "--checksum", "--pool", "p", "--json",
             env=at(server.port), timeout=30).json()
    t.ok(r["moved_files"] == 0 and r["failed"] == 0, "a repetition by content moved: %s" % r)
    t.bash("p", "echo new > /fb/case/many/f5; chmod 600 /fb/case/big; ln -sfn elsewhere /fb/case/link")
    r = t.fb("stage", "out", "/case", "s3://%s/some/where" % BUCKET, "--pool", "p", "--json",
             env=at(server.port)).json()
    t.ok(r["moved_files"] == 2 and r["failed"] == 0, "not what has changed was moved: %s" % r)
    headers = server.ask("HEAD", "some/where/big")[1]
    t.ok(headers["x-amz-meta-mode"] == str(0o100600), "the mode didn't change: %s" % headers)
    # One file, and the whole bucket.
    stage(t, "in", "s3://%s/some/where/many/f5" % BUCKET, "/f5", server.port)
    t.exec("p", "cat", "/fb/f5").prints("^new$")
    stage(t, "out", "/f5", "s3://%s" % BUCKET, server.port)
    t.ok(server.ask("GET", "f5")[2] == b"new\n", "a file isn't in the bucket's root")
    # What a program has made, in one command.
    r = t.fb("run", "--media", "memory:256M", "--in", "s3://%s/some/where/many:/in" % BUCKET,
             "--out", "/out:s3://%s/results" % BUCKET, "--", "bash", "-c",
             "mkdir /fb/out; cat /fb/in/f5 /fb/in/f5 > /fb/out/twice", env=at(server.port))
    r.says("staged in s3://", "staged out /out s3://")
    t.ok(server.ask("GET", "results/twice")[2] == b"new\nnew\n", "the result isn't there")
    t.fb("down", "--pool", "p")
    server.stop()
    t.nothing_left("down")


@case(30)
def bucket_with_many_keys(t):
    server = Server(t)
    names = ["%s%04d" % ("sub/" if n % 2 else "", n) for n in range(1234)]

    def fill(some):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for name in some:
            connection.request("PUT", "/%s/many/%s" % (BUCKET, name), name.encode(), UNCHECKED)
            connection.getresponse().read()
    threads = [threading.Thread(target=fill, args=(names[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t.up("p")
    stage(t, "in", "s3://%s/many" % BUCKET, "/many", server.port).says("1234 files")
    found = t.walk("/fb/many", "p")
    got = {k[1:]: v[4] for k, v in found.items() if v[0] == "f"}
    t.same({n: hashlib.sha256(n.encode()).hexdigest() for n in names}, got, "what was staged in")
    # Keys that no tree can have are failures, and the rest is staged.
    for key in ("odd/a", "odd/a/b", "odd//c", "odd/../d", "odd/fine"):
        server.ask("PUT", key, body=b"x")
    r = stage(t, "in", "s3://%s/odd" % BUCKET, "/odd", server.port, rc=120)
    r.says("can't be the name of a file")
    t.ok(sorted(t.walk("/fb/odd", "p"))[-2:] == ["/a/b", "/fine"], "the rest isn't there")
    # Of other tools: rclone's time, and octal mode.
    server.ask("PUT", "other/tool", body=b"x", headers={
        "x-amz-meta-mtime": "1600000000.5", "x-amz-meta-mode": "0100600", "x-amz-meta-uid": "x"})
    stage(t, "in", "s3://%s/other" % BUCKET, "/other", server.port)
    t.bash("p", "stat -c '%a %.1Y' /fb/other/tool").prints(r"^600 1600000000\.5$")
    t.fb("down", "--pool", "p")
    server.stop()


@case(40)
def bucket_whose_server_dies(t):
    server = Server(t)
    t.up("p", media=["memory:256M"])
    t.bash("p", "mkdir /fb/d; head -c 41000000 /dev/urandom > /fb/d/big; echo x > /fb/d/small")
    # A staging that is killed: nothing half is there, and a repetition removes the parts.
    reached = threading.Event()

    def slow(request, reply):
        if "partNumber=3" in request.path:
            reached.set()
            time.sleep(1)
    between = Between(server, slow)
    p = t.start([t.forebay, "stage", "out", "/d", "s3://%s/d" % BUCKET, "--threads", "1", "--pool", "p"],
                env=at(between.port))
    t.ok(reached.wait(10), "no third part came")
    with open("/proc/%d/cmdline" % p.pid) as f:
        t.ok(KEYS["AWS_SECRET_ACCESS_KEY"] not in f.read(), "the secret is in the process list")
    p.send_signal(signal.SIGKILL)
    t.finish(p, rc=-9)
    t.ok("d/big" not in server.keys() and server.uploads(), "the upload wasn't cut")
    stage(t, "out", "/d", "s3://%s/d" % BUCKET, server.port)
    t.ok(not server.uploads(), "parts of a killed run are left")
    t.ok(sorted(server.keys()) == ["d/", "d/big", "d/small"], "not all is there: %s" % server.keys())
    # A server that dies: a clear failure within the attempts' time, and nothing half.
    server.ask("DELETE", "d/big")
    reached.clear()
    p = t.start([t.forebay, "stage", "out", "/d", "s3://%s/d" % BUCKET, "--threads", "1", "--pool", "p"],
                env=at(between.port))
    t.ok(reached.wait(10), "no third part came")
    server.stop()
    r = t.finish(p, rc=120, timeout=20)
    r.says(r"s3://%s/d/big: can't be written: " % BUCKET, "stage the rest with: forebay stage out")
    server.start()
    t.ok(not server.keys(), "a server without memory has keys")
    stage(t, "out", "/d", "s3://%s/d" % BUCKET, server.port)
    t.ok(sorted(server.keys()) == ["d/", "d/big", "d/small"] and not server.uploads(), "not all is there")
    # A server that fails now and then: attempts are repeated.
    seen = set()

    def fails_first(request, reply):
        if request.path not in seen:
            seen.add(request.path)
            reply.status, reply.body, reply.headers = 503, b"", {}
            if len(seen) % 2:
                reply.body, reply.cut = b"x" * 100, 10
    between = Between(server, fails_first)
    t.bash("p", "echo y > /fb/d/small; echo z > /fb/d/other")
    stage(t, "out", "/d", "s3://%s/d" % BUCKET, between.port)
    t.ok(server.ask("GET", "d/small")[2] == b"y\n", "small isn't there")
    t.fb("down", "--pool", "p")
    server.stop()


def error(status, code, **more):
    def change(_, reply):
        reply.status = status
        reply.headers = {k.replace("_", "-"): v for k, v in more.items()}
        reply.body = ("<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>In words, %s</Message></Error>" % (
            code, KEYS["AWS_ACCESS_KEY_ID"])).encode()
    return change


@case(30)
def bucket_that_refuses(t):
    server = Server(t)
    t.up("p")
    t.bash("p", "mkdir /fb/d; echo x > /fb/d/x")
    gone = "s3://no-such-bucket/d"
    for direction, a, b in (("in", gone, "/y"), ("out", "/d", gone)):
        stage(t, direction, a, b, server.port, rc=1).one_line().says("there is no bucket 'no-such-bucket'")
    stage(t, "in", "s3://%s/nothing" % BUCKET, "/y", server.port, rc=120).says("no such file or directory")
    env = {"HOME": t.work, "AWS_ENDPOINT_URL": "http://127.0.0.1:%d" % server.port}
    t.fb("stage", "out", "/d", "s3://abc/d", "--pool", "p", rc=2, env=env).one_line().says(
        "no credentials were found; set AWS_ACCESS_KEY_ID")
    t.fb("stage", "out", "/d", "s3://abc//d", "--pool", "p", rc=2, env=env).one_line().says("empty part")
    t.fb("stage", "out", "/d", "s3://", "--pool", "p", rc=2, env=env).one_line().says("names no bucket")
    t.fb("run", "--in", "s3://abc/d", "--", "true", rc=2, env=env).one_line().says("is not SRC:/DST")
    os.mkdir(t.work + "/.aws")
    with open(t.work + "/.aws/credentials", "w") as f:
        f.write("[x]\naws_access_key_id = %s\naws_secret_access_key = %s\n" % (
            KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]))
    t.fb("stage", "out", "/d", "s3://%s/d" % BUCKET, "--pool", "p", env={**env, "AWS_PROFILE": "x"})
    t.ok("d/x" in server.keys(), "nothing came with the profile's keys")
    refusals = [
        (error(403, "InvalidAccessKeyId"), "the server refuses the credentials"),
        (error(403, "SignatureDoesNotMatch"), "the server refuses the credentials"),
        (error(403, "AccessDenied"), "access is denied; ask for the permission"),
        (error(301, "PermanentRedirect", x_amz_bucket_region="eu-x-1"), "set AWS_REGION to it .AWS_REGION=eu-x-1"),
        (error(404, "SomethingElse"), "the server refuses the request .SomethingElse: In words, .hidden"),
        (error(403, "RequestTimeTooSkewed", date="Fri, 24 May 2013 00:00:00 GMT"), "clock is wrong .* is \\d+ s"),
    ]
    for change, wanted in refusals:
        between = Between(None, change)
        stage(t, "out", "/d", "s3://%s/e" % BUCKET, between.port, rc=1).one_line().says(wanted)
        stage(t, "in", "s3://%s/d" % BUCKET, "/e", between.port, rc=1).one_line().says(wanted)
    # Nothing is run, and no pool made, if results couldn't be brought away.
    r = t.fb("run", "--out", "/d:s3://%s/d" % BUCKET, "--", "touch", t.work + "/ran", rc=1, env=at(between.port))
    r.one_line().says("clock")
    t.ok(not os.path.exists(t.work + "/ran"), "it was run")
    # Garbage, and nothing at all.
    def garbage(_, reply):
        reply.body, reply.headers = b"<html>welcome</html>", {}

    def nothing(_, reply):
        raise ConnectionError
    for change, wanted in ((garbage, "can't be understood|can't be read"), (nothing, "connection breaks off")):
        between = Between(None, change)
        r = stage(t, "in", "s3://%s/d" % BUCKET, "/e", between.port, rc=(1, 120)).says(wanted)
    closed = free_port()
    stage(t, "in", "s3://%s/d" % BUCKET, "/e", closed, rc=1).one_line().says("the server can't be reached")
    t.fb("down", "--pool", "p")
    server.stop()


@case(30)
def bucket_whose_replies_are_damaged(t):
    server = Server(t)
    t.up("p", media=["memory:256M"])
    t.bash("p", "mkdir /fb/d; head -c 20000000 /dev/urandom > /fb/d/big; head -c 300000 /dev/urandom > /fb/d/small")
    wanted = t.walk("/fb/d", "p")
    stage(t, "out", "/d", "s3://%s/d" % BUCKET, server.port)
    is_object = lambda request: request.method == "GET" and "/d/" in request.path.split("?")[0]
    # Cut once each: read on from there.
    seen = set()

    def cut_once(request, reply):
        if request.method == "GET" and (request.path, request.headers.get("range")) not in seen:
            seen.add((request.path, request.headers.get("range")))
            reply.cut = len(reply.body) // 2
    stage(t, "in", "s3://%s/d" % BUCKET, "/once", Between(server, cut_once).port)
    t.same(wanted, t.walk("/fb/once", "p"), "what came over cut connections")

    # Always short: never a success, and no short file.
    def shorter(request, reply):
        if is_object(request):
            reply.body = reply.body[:-1]

    def lists(request, reply):
        if "list-type" in request.path:
            reply.body = reply.body[:len(reply.body) * 2 // 3]

    def another(request, reply):
        if is_object(request):
            reply.headers["etag"] = "\"0123\""

    def other_range(request, reply):
        if is_object(request):
            reply.headers["content-range"] = "bytes 1-5/6"
    for number, change in enumerate((shorter, lists, another, other_range)):
        between = Between(server, change)
        target = "/bad%d" % number
        stage(t, "in", "s3://%s/d" % BUCKET, target, between.port, rc=(1, 120))
        r = t.bash("p", "find /fb%s -type f" % target, rc=None)
        t.ok(r.out == "", "%s left: %s" % (change.__name__, r.out))

    # A server that confirms no checksums is read back; one that keeps other bytes is found out.
    def unconfirmed(request, reply):
        reply.headers.pop("x-amz-checksum-sha256", None)

    stage(t, "out", "/d", "s3://%s/e" % BUCKET, Between(server, unconfirmed).port)

    def flip(request):
        if request.method == "PUT" and len(request.body) > 1000:
            body = bytearray(request.body)
            body[500] ^= 1
            request.body = bytes(body)
            for name in [n for n in request.headers if "checksum" in n]:
                del request.headers[name]
    between = Between(server, unconfirmed, flip)
    r = stage(t, "out", "/d", "s3://%s/f" % BUCKET, between.port, rc=120)
    r.says("what arrived is not what left")
    t.ok(not [k for k in server.keys() if k.startswith("f/") and k != "f/"], "damaged objects stay")
    t.ok(not server.uploads(), "uploads are left")

    # A server that removes any version keeps the damaged one: it could be that of others.
    def unconditional(request):
        flip(request)
        if request.method == "DELETE":
            request.headers.pop("if-match", None)
    between = Between(server, unconfirmed, unconditional)
    r = stage(t, "out", "/d", "s3://%s/g" % BUCKET, between.port, rc=120)
    r.says("not what left .size or checksum., and it is still there")
    left = [k for k in server.keys() if k.startswith("g/") and k != "g/"]
    t.ok(left == ["g/big", "g/small"], "left: %s" % left)

    # What others write just before the removal stays.
    def overtaken(request):
        flip(request)
        path = request.path
        if request.method == "DELETE" and path.endswith(("/big", "/small")):
            server.ask("PUT", path.split("/", 2)[2], body=b"theirs")
    between = Between(server, unconfirmed, overtaken)
    stage(t, "out", "/d", "s3://%s/h" % BUCKET, between.port, rc=120).says("others have changed it")
    for key in ("h/big", "h/small"):
        t.ok(server.ask("GET", key)[2] == b"theirs", "%s of others was removed" % key)
    t.fb("down", "--pool", "p")
    server.stop()


@case(30)
def bucket_that_others_change(t):
    server = Server(t)
    t.up("p", media=["memory:256M"])
    t.bash("p", "mkdir /fb/d; echo mine > /fb/d/x; head -c 9000000 /dev/urandom > /fb/d/big")

    count = itertools.count()

    def by_others(request):
        """Others write an object just before it is written."""
        path = request.path.split("?")[0]
        ends = request.method == "POST" and "uploadId=" in request.path
        if path.endswith("/x") and request.method == "PUT" or ends:
            server.ask("PUT", path.split("/", 2)[2], body=b"theirs %d" % next(count))
    between = Between(server, lambda *_: None, by_others)
    r = stage(t, "out", "/d", "s3://%s/d" % BUCKET, between.port, rc=120)
    r.says("d/x: can't be written: others have changed it meanwhile")
    r.says("d/big: can't be written: others have changed it meanwhile")
    for key in ("d/x", "d/big"):
        t.ok(server.ask("GET", key)[2].startswith(b"theirs"), "%s of others was replaced" % key)
    t.ok(not server.uploads(), "uploads are left")
    # What was there before may be replaced, but not what came since.
    r = stage(t, "out", "/d", "s3://%s/d" % BUCKET, between.port, rc=120).says("others have changed it")
    stage(t, "out", "/d", "s3://%s/d" % BUCKET, server.port)
    t.ok(server.ask("GET", "d/x")[2] == b"mine\n", "x wasn't replaced")

    # An object that changes while it is read.
    def change_it(request):
        if request.method == "GET" and request.path.split("?")[0].endswith("/x"):
            server.ask("PUT", "d/x", body=b"longer than before")
    between = Between(server, lambda *_: None, change_it)
    stage(t, "in", "s3://%s/d" % BUCKET, "/e", between.port, rc=120).says("d/x.*others have changed it")
    t.bash("p", "ls /fb/e/x", rc=2)

    # A write whose reply is lost, and whose repetition finds itself.
    lost = set()

    def lose(request, reply):
        path = request.path.split("?")[0]
        if request.method == "PUT" and path.endswith("/once") and path not in lost:
            lost.add(path)
            reply.status, reply.cut, reply.body = 200, 1, b"xx"
    t.bash("p", "mkdir /fb/g; echo once > /fb/g/once")
    stage(t, "out", "/g", "s3://%s/g" % BUCKET, Between(server, lose).port)
    t.ok(lost and server.ask("GET", "g/once")[2] == b"once\n", "once isn't there")

    # The same, but others have written in between: theirs stays.
    def lose_to_others(request, reply):
        lose(request, reply)
        if reply.cut:
            server.ask("PUT", "h/once", body=b"theirs")
    t.bash("p", "mkdir /fb/h; echo once > /fb/h/once")
    r = stage(t, "out", "/h", "s3://%s/h" % BUCKET, Between(server, lose_to_others).port, rc=120)
    r.says("h/once: can't be written: others have changed it")
    t.ok(server.ask("GET", "h/once")[2] == b"theirs", "what others have written was replaced or removed")
    t.fb("down", "--pool", "p")
    server.stop()
