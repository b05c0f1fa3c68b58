"""A workflow service of a test: its state, its configuration, tokens, requests."""
import glob
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time

from harness import Failed, ROOT_OF_TESTS, Skipped, kill, processes_with, wait_until

ROOT = os.path.dirname(ROOT_OF_TESTS)
ALL = "read,write,start,approve"

CONFIG = """
snakemake = "{snakemake}"
root = true
[limits]
{limits}
[local]
cores = 2
[slurm]
options = ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2", "--slurm-no-account"]
[environment]
FOREBAY_TEST_MARK = "{mark}"
{environment}
"""


def snakemake(plugin=None):
    """Snakemake of the tests, with this plug-in."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    found = glob.glob(os.path.join(target, "python", "*", "bin", "snakemake"))
    if plugin:
        packages = "../lib/python*/site-packages/" + plugin
        found = [f for f in found if glob.glob(os.path.join(os.path.dirname(f), packages))]
    if not found:
        raise Skipped("there is no Snakemake%s: tests/python/prepare.py" % (" with " + plugin if plugin else ""))
    return os.path.normpath(found[0])


def for_others(t, program):
    """The same Snakemake by the system's Python, if it is the same version: other users can't use one in a home."""
    (packages,) = glob.glob(os.path.join(os.path.dirname(program), "../lib/python*/site-packages"))
    version = os.path.basename(os.path.dirname(packages))
    if not os.path.exists("/usr/bin/" + version):
        raise Skipped("the system has no %s for other users" % version)
    for name in ("bin", "cache"):
        os.mkdir(t.disk + "/" + name)
    # Their homes need not be there, and Snakemake wants a cache.
    os.chmod(t.disk + "/cache", 0o1777)
    with open(t.disk + "/bin/snakemake", "w") as f:
        f.write("#!/bin/sh\nexport XDG_CACHE_HOME=\"%s/cache/$(id -un)\" PYTHONPATH=\"$PYTHONPATH:%s\"\n"
                "exec /usr/bin/%s -m snakemake \"$@\"\n" % (t.disk, os.path.normpath(packages), version))
    os.chmod(t.disk + "/bin/snakemake", 0o755)
    return t.disk + "/bin/snakemake"


class Service:
    """`with Service(t) as s: s.fb("status")`. With `tls`, certificates are made for it."""

    def __init__(self, t, limits="", environment=None, tls=False, env=None, plugin=None, others=False):
        self.t, self.top, self.process, self.env = t, t.disk + "/flow", None, env or {}
        os.mkdir(self.top)
        # Users reach what is theirs below.
        for path in (t.disk, self.top):
            os.chmod(path, 0o755)
        self.state = self.top + "/state"
        with open(self.top + "/flow.toml", "w") as f:
            lines = "\n".join("%s = '%s'" % pair for pair in (environment or {}).items())
            program = snakemake(plugin)
            program = for_others(t, program) if others else program
            f.write(CONFIG.format(snakemake=program, limits=limits, mark=t.mark, environment=lines))
        self.ca = self.certificates() if tls else None
        self.port, self.log = None, self.top + "/log"
        self.token = self.make_token()

    def certificates(self):
        if not shutil.which("openssl"):
            raise Skipped("there is no openssl")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                        "-nodes", "-keyout", self.top + "/key.pem", "-out", self.top + "/cert.pem", "-days", "2",
                        "-subj", "/CN=flow",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"],
                       check=True, capture_output=True, timeout=20)
        return self.top + "/cert.pem"

    def make_token(self, user=None, scope=ALL, time_left="1h"):
        who = ["--user", user] if user else []
        return self.t.fb("flow", "token", "--state", self.state, *who, "--scope", scope, "--for", time_left).out.strip()

    def start(self, command=None, state=None):
        """Starts the service, on the port that it had before; by another command, with another state."""
        command = command or [self.t.forebay, "flow", "serve"]
        words = ["--listen", "127.0.0.1:%d" % (self.port or 0), "--config", self.top + "/flow.toml"]
        if self.ca:
            words += ["--tls-cert", self.ca, "--tls-key", self.top + "/key.pem"]
        with open(self.log, "ab") as out:
            begin = out.tell()
            self.process = self.t.start([*command, "--state", state or self.state, *words], env=self.env,
                                        stdout=out, stderr=out)

        def address():
            if self.process.poll() is not None:
                raise Failed("the service has ended: " + self.said())
            lines = [x for x in self.said()[begin:].splitlines() if "serves at" in x]
            return lines and lines[0].rsplit(" ", 1)[1]
        self.url = wait_until(address, 10, "the service's address")
        self.port = int(self.url.rsplit(":", 1)[1])

    def said(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def kill(self):
        """The service dies; its runs go on."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        # Runs outlive it: those of this test end here.
        for pid in self.runs():
            kill(pid)

    def runs(self):
        """Process ids of what keeps runs, and of Snakemakes."""
        found = []
        for pid in processes_with("FOREBAY_TEST_MARK=" + self.t.mark):
            try:
                with open("/proc/%d/cmdline" % pid, "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            if b"keep" in words or any(w.endswith(b"/snakemake") for w in words):
                found.append(pid)
        return found

    def fb(self, *words, token=None, **more):
        env = {"FOREBAY_FLOW_SERVER": self.url, "FOREBAY_FLOW_TOKEN": token or self.token,
               "FOREBAY_FLOW_CA": self.ca, **more.pop("env", {})}
        env = {name: value for name, value in env.items() if value}
        return self.t.fb("flow", *words, env=env, **more)

    def ask(self, method, path, body=None, token=None, fields=None):
        """Status and value of a request."""
        if self.ca:
            context = ssl.create_default_context(cafile=self.ca)
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        fields = {"Authorization": "Bearer " + (self.token if token is None else token), **(fields or {})}
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        try:
            connection.request(method, "/api/v1/" + path, body, fields)
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        is_json = reply.getheader("Content-Type") == "application/json"
        return reply.status, json.loads(text) if text and is_json else text

    def raw(self, data, seconds=30):
        """What comes back for these bytes, until the service closes."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as s:
            s.settimeout(seconds)
            got = b""
            try:
                s.sendall(data)
                while part := s.recv(65536):
                    got += part
            except (BrokenPipeError, ConnectionResetError):
                pass
            return got

    def run(self, workflow, number):
        return self.ask("GET", "workflows/%s/runs/%d" % (workflow, number))[1]

    def wait_for(self, workflow, number, *states, seconds=30):
        def there():
            run = self.run(workflow, number)
            if run["state"] in states:
                return run
            if run["state"] in ("failed", "cancelled", "succeeded"):
                raise Failed("the run %s: %s\n%s" % (run["state"], run["message"], self.run_log(workflow, number)))
            time.sleep(0.1)
            return None
        return wait_until(there, seconds, lambda: "%s: %s\n%s\n%s" % (
            states, self.run(workflow, number), self.said(), self.run_log(workflow, number)))

    def run_log(self, workflow, number):
        return self.ask("GET", "workflows/%s/runs/%d/log" % (workflow, number))[1]["text"][-3000:]
