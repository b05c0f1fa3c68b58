"""What the measurements of this directory share: pools of their own on this host, and programs that run in them for a limited time."""
import os
import shutil
import signal
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release")
FOREBAY = os.path.join(TARGET, "forebay")
# Seconds that a program may take.
LIMIT = 200


class Failed(Exception):
    pass


def run(command, **more):
    """What a program says, which has to succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, text=True, **more)
    if done.returncode != 0:
        raise Failed("%s: exit status %d\n%s" % (" ".join(command), done.returncode, done.stdout))
    return done.stdout


def run_together(story, commands):
    """What programs say that run at once, each given as (words, environment); all have to succeed."""
    processes = []
    try:
        for words, environment in commands:
            processes.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                              start_new_session=True))
        said = "".join([process.communicate(timeout=LIMIT)[0] for process in processes])
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if any(process.returncode for process in processes):
        raise Failed("%s: %s" % (story, said))
    return said


def environment():
    """That of this process, without what leads to a pool."""
    return {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "FOREBAY_POOL", "FOREBAY_NODE")}


class Pool:
    """A pool of its own, with a home in shared memory that goes with it."""

    def __init__(self, what, nodes, media):
        self.nodes, self.media, self.pool = nodes, media, "%s-%d" % (what, os.getpid())
        self.home = tempfile.mkdtemp(prefix="forebay-%s-" % what, dir="/dev/shm")
        self.environment = {**environment(), "FOREBAY_HOME": self.home}
        # More words for `forebay up`.
        self.options = []

    def __enter__(self):
        several = ["--nodes", str(self.nodes)] if self.nodes > 1 else []
        try:
            run([FOREBAY, "up", "--pool", self.pool, "--media", self.media, *several, *self.options], env=self.environment)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run([FOREBAY, "down", "--force", "--pool", self.pool], env=self.environment, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.home, ignore_errors=True)

    def on(self, node, words):
        """The words that run a program at a node."""
        node = ["--node", str(node % self.nodes)] if self.nodes > 1 else []
        return [FOREBAY, "exec", "--pool", self.pool, *node, "--", *words]
