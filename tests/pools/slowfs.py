"""A directory as a file system that can be slow, failing or dead: tools/slowfs, driven by tests."""
import json
import os
import socket
import subprocess
import sys

MiB = 1 << 20


class SlowFs:
    """`source`, shown at `at` until close(). It is unmounted also if this process is killed.

    Settings (tools/slowfs/src/settings.rs): rate, latency_ms, contention_ms, seed, full, read_only, faults.
    """

    def __init__(self, program, source, at, control, cache=False, **settings):
        self.source, self.at, self.control = source, at, control
        for directory in (source, at):
            os.makedirs(directory, exist_ok=True)
        words = ["--cache"] if cache else []
        self.server = subprocess.Popen(
            [program, "mount", source, at, "--control", control, "--settings", json.dumps(settings), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.server.stdout.readline() != b"ready\n":
            self.server.stdin.close()
            self.server.wait(10)
            raise OSError("%s can't be mounted at %s" % (source, at))

    def tell(self, order):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self.control)
            connection.sendall(json.dumps(order).encode() + b"\n")
            with connection.makefile() as lines:
                reply = json.loads(lines.readline())
        if "error" in reply:
            raise ValueError(reply["error"])
        return reply

    def set(self, **settings):
        """These settings from now on; what isn't named is off."""
        self.tell({"set": settings})

    def heal(self):
        self.set()

    def fail(self, errno, share=1.0, kinds=(), path="*", seed=0, **more):
        """A share of the operations fails; with errno 0 it hangs until the settings change."""
        self.set(seed=seed, faults=[{"errno": errno, "share": share, "kinds": list(kinds), "path": path}], **more)

    def die(self):
        """All operations hang."""
        self.fail(0)

    def stats(self):
        return self.tell("stats")

    def file(self, path):
        """The counters of a file."""
        none = {"read_opens": 0, "write_opens": 0, "reads": 0, "bytes_read": 0, "jumps": 0, "writes": 0,
                "bytes_written": 0}
        return self.stats()["files"].get(path, none)

    def reset(self):
        self.tell("reset")

    def close(self):
        if self.server.poll() is None:
            try:
                self.heal()
            except (OSError, ValueError) as e:
                sys.stderr.write("%s: %s\n" % (self.control, e))
        # It unmounts when its input ends.
        self.server.stdin.close()
        try:
            self.server.wait(10)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        self.server.stdout.close()
