"""Campaigns that a site notes in etcd: TLS, users and roles; etcd is killed in the middle."""
import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

from harness import Failed, Skipped, case, wait_until
from cases.campaigns import Site, tree

REGISTRY = """
registry = "etcd:https://localhost:{port}/site"

[etcd]
ca = "{top}/ca.pem"
cert = "{top}/client.pem"
key = "{top}/client.key"
user = "{user}"
password-file = "{top}/{user}.pw"
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def encoded(text):
    return base64.b64encode(text.encode()).decode()


class Etcd:
    """An etcd with TLS, which asks for certificates, and users ann and bob beside root."""

    def __init__(self, t, top):
        self.t, self.top = t, top
        if not shutil.which("etcd") or not shutil.which("openssl"):
            raise Skipped("there is no etcd, or no openssl")
        self.certificates()
        self.process = None
        for _ in range(5):
            # Another process may take a port before etcd does.
            self.port, self.peers = free_port(), free_port()
            self.start()
            try:
                wait_until(lambda: self.process.poll() is not None or self.answers(), 30, "etcd")
            except BaseException:
                self.kill()
                raise
            if self.process.poll() is None:
                break
        else:
            raise Failed("etcd didn't start on any of five ports")
        self.users()

    def openssl(self, *words):
        done = subprocess.run(["openssl", *words], cwd=self.top, capture_output=True, timeout=30)
        self.t.ok(done.returncode == 0, done.stderr.decode())

    def certificates(self):
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        for ca in ("ca", "other"):
            self.openssl("req", "-x509", *curve, "-keyout", ca + ".key", "-out", ca + ".pem", "-subj", "/CN=" + ca)
        with open(self.top + "/names", "w") as f:
            f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        # Where etcd has users, its gateway refuses clients whose certificates have a common name.
        for who, subject in (("server", "/CN=server"), ("client", "/O=clients"), ("named", "/CN=ann")):
            self.openssl("req", *curve, "-keyout", who + ".key", "-out", who + ".csr", "-subj", subject)
            self.openssl("x509", "-req", "-in", who + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                         "-days", "2", "-extfile", "names", "-out", who + ".pem")

    def start(self):
        client, peer = "https://127.0.0.1:%d" % self.port, "http://127.0.0.1:%d" % self.peers
        self.process = subprocess.Popen(
            ["etcd", "--name", "site", "--data-dir", self.top + "/etcd", "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", "site=" + peer, "--cert-file", "server.pem", "--key-file", "server.key",
             "--trusted-ca-file", "ca.pem", "--client-cert-auth", "--bcrypt-cost", "4", "--log-level", "error"],
            cwd=self.top, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, path, request, token=None):
        context = ssl.create_default_context(cafile=self.top + "/ca.pem")
        context.load_cert_chain(self.top + "/client.pem", self.top + "/client.key")
        headers = {"Authorization": token} if token else {}
        asked = urllib.request.Request("https://localhost:%d/v3/%s" % (self.port, path),
                                       json.dumps(request).encode(), headers)
        with urllib.request.urlopen(asked, timeout=10, context=context) as reply:
            return json.load(reply)

    def answers(self):
        try:
            self.ask("kv/put", {"key": encoded("probe"), "value": ""})
        except urllib.error.HTTPError:
            return True
        except (OSError, ValueError):
            return False
        return True

    def users(self):
        """As docs/howto/campaigns.md shows it: everybody may change what is below their own name."""
        self.ask("auth/user/add", {"name": "root", "password": "of root"})
        self.ask("auth/role/add", {"name": "root"})
        self.ask("auth/user/grant", {"user": "root", "role": "root"})
        # Tests run as one user of the system: ann has its keys, bob has those of another one.
        for user, keys in (("ann", self.t.user), ("bob", "bob"), ("root", None)):
            with open("%s/%s.pw" % (self.top, user), "w") as f:
                os.fchmod(f.fileno(), 0o600)
                f.write("of %s\n" % user)
            if keys is None:
                continue
            self.ask("auth/user/add", {"name": user, "password": "of " + user})
            self.ask("auth/role/add", {"name": user})
            grant = {"permType": "READWRITE", "key": encoded("/site/%s/" % keys),
                     "range_end": encoded("/site/%s0" % keys)}
            self.ask("auth/role/grant", {"name": user, "perm": grant})
            self.ask("auth/user/grant", {"user": user, "role": user})
        self.ask("auth/enable", {})

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()


@case(limit=90)
def campaigns_in_etcd(t):
    """Two daemons, commands, and an etcd that is killed again and again: nothing is lost; roles are kept."""
    site = Site(t)
    t.user = site.fb("create", "x", "scratch", "--json").json()["owner"]
    site.fb("delete", "x", "--now")
    etcd = Etcd(t, site.top)
    with open(site.top + "/tiers.toml") as f:
        # Without the directory, which comes first.
        tiers = "".join(line for line in f if not line.startswith("registry"))

    def registry(user="ann", **changes):
        text = REGISTRY.format(port=etcd.port, top=site.top, user=user)
        for old, new in changes.items():
            text = text.replace(old, new)
        path = "%s/tiers-%s.toml" % (site.top, user + "".join(changes))
        with open(path, "w") as f:
            f.write(text.replace("[etcd]", "ROOM\n[etcd]").replace("ROOM", tiers.split("[tier")[0])
                    + "[tier" + tiers.split("[tier", 1)[1])
        return {"FOREBAY_CAMPAIGNS": path}

    daemons = []
    try:
        site.env = registry()
        site.fb("list").says("no campaigns")
        wanted = {}
        for n in range(4):
            name = "c%d" % n
            site.fb("create", name, "scratch,%ds" % (4 + n))
            path = site.path(name)
            for k in range(20):
                with open("%s/f%d" % (path, k), "wb") as f:
                    f.write(os.urandom(1000 * k))
            wanted[name] = tree(path)
        site.fb("create", "c0", "scratch", rc=1).says("there is a campaign 'c0'")
        daemons = [site.daemon() for _ in range(2)]
        for n in range(3):
            etcd.kill()
            began = time.monotonic()
            # Whoever calls while etcd is away waits for it.
            waits = t.start([t.forebay, "campaign", "create", "w%d" % n, "scratch,1d"], env=site.env)
            time.sleep(1.5)
            etcd.start()
            _, err = waits.communicate(timeout=30)
            t.ok(waits.returncode == 0, "%s after %.1f s" % (err.decode(), time.monotonic() - began))
            daemons[n % 2].send_signal(signal.SIGKILL)
            daemons[n % 2].wait()
            daemons[n % 2] = site.daemon()
        wait_until(lambda: all(site.show(name)["state"] == "archived" for name in wanted), 40, "the archive")
        for name in wanted:
            t.ok(tree("%s/tape/%s" % (site.top, name)) == wanted[name], "the data of %s differ" % name)
            # The message comes after the archive, and after the lease of a daemon that was killed before it.
            wait_until(lambda: "The campaign '%s' has ended." % name in site.mail(), 20, "the message about " + name)
        # A pool, its end noted in etcd.
        site.fb("restore", "c1", "--tier", "scratch", "--for", "1d")
        path = site.path("c1")
        site.fb("up", "c1", "--media", "memory:64M")
        t.bash("c1", "echo more > %s/more" % path)
        site.fb("down", "c1")
        t.ok(site.show("c1")["pool"] is None and tree(path) == {**wanted["c1"], "more": b"more\n"}, "the pool")
        names = {c["name"] for c in site.fb("list", "--json").json()}
        t.ok(names == set(wanted) | {"w0", "w1", "w2"}, names)
        # Root finds out who has campaigns. These are noted for a user whom this host hasn't.
        if os.getuid() == 0:
            site.env = registry("root")
            token = etcd.ask("auth/authenticate", {"name": "root", "password": "of root"})["token"]
            for key in ("/site/x.y/records/a", "/site/x.y/records/b", "/site/x/locks/a", "/site/"):
                etcd.ask("kv/put", {"key": encoded(key), "value": ""}, token)
            said = t.fb("campaignd", "--all-users", "--once", "--json", env=site.env, rc=1, timeout=60)
            said.says("x: there is no user 'x'", "x.y: there is no user 'x.y'", "failed for x, x.y;")
            t.ok({c["name"] for c in said.json()} == names, said.out)
            etcd.ask("kv/deleterange", {"key": encoded("/site/x"), "range_end": encoded("/site/y")}, token)
        # Users without rights, wrong certificates, secrets that others can read.
        site.env = registry("bob")
        site.fb("list", rc=1).says("permission denied", "role")
        site.fb("delete", "c1", "--now", rc=1).says("permission denied")
        site.env = registry(**{"ca.pem": "other.pem"})
        site.fb("list", rc=1, timeout=60).says("certificate, or ours, isn.t accepted").one_line()
        site.env = registry(**{"client.": "named."})
        site.fb("list", rc=1).says("must not have a common name").one_line()
        os.chmod(site.top + "/bob.pw", 0o644)
        site.env = registry("bob")
        site.fb("list", rc=1).says("chmod 600 .*bob.pw").one_line()
        os.chmod(site.top + "/bob.pw", 0o600)
        with open(site.top + "/bob.pw", "w") as f:
            f.write("wrong\n")
        site.fb("list", rc=1).says("login of 'bob'", "password in").one_line()
        etcd.kill()
        site.env = registry()
        site.fb("list", rc=1, timeout=60).says("no answer from etcd", "see whether it runs").one_line()
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait()
        etcd.kill()
