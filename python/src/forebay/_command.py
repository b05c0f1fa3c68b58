"""The command `forebay`, and the libraries installed beside it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys

BIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def program() -> str:
    """Returns the path of the command: the one in this package, else (in a checkout) the one on `$PATH`."""
    own = os.path.join(BIN, "forebay")
    if os.access(own, os.X_OK):
        return own
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("forebay", path=directory)
        # This package's own script on `$PATH` would call itself.
        if found and not _is_script(found):
            return found
    raise FileNotFoundError(
        errno.ENOENT, "this package was built without the command; build the wheel, or put it on $PATH", own)


def _is_script(path: str) -> bool:
    with open(path, "rb") as f:
        return f.read(2) == b"#!"


def call(*arguments: str, timeout: float | None = 120) -> str:
    """Runs the command and returns its output.

    Raises OSError with the command's own message.
    """
    try:
        done = subprocess.run(
            [program(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, "forebay %s: no end after %g s" % (arguments[0], timeout or 0)) from None
    if done.returncode:
        text = done.stderr.strip() or "forebay %s: exit code %d" % (arguments[0], done.returncode)
        raise OSError(errno.EIO, text)
    return done.stdout


def main() -> None:
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
