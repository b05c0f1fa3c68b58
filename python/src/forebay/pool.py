"""A pool and its files.

Paths are inside the pool: `/case/mesh.h5`, whatever the prefix is under which programs see the
pool. Nothing is cached: each call sees the effects of earlier calls of all processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import secrets
import stat
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from . import _native, _owned
from ._command import call
from .controls import Controls, text_of

if TYPE_CHECKING:
    from typing_extensions import Buffer as BufferLike

    from fsspec.spec import AbstractFileSystem

    from .verbs import Session

# Maps modes of open() to flags of os.open().
_FLAGS = {
    "r": os.O_RDONLY,
    "w": os.O_CREAT | os.O_TRUNC,
    "x": os.O_CREAT | os.O_EXCL,
    "a": os.O_CREAT | os.O_APPEND,
}


@dataclasses.dataclass(frozen=True)
class Stat:
    """Attributes of a file. Times are nanoseconds since 1970, the size is in bytes."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    birthtime_ns: int

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)


class PoolFile(io.RawIOBase):
    """An open file of a pool, with a position. `Pool.open` wraps it in a buffer, as `open` does."""

    # A class attribute, as the interpreter also closes an object whose opening failed.
    _file: _native.File | None = None
    mode = ""

    def __init__(self, pool: Pool, path: str, mode: str = "r") -> None:
        super().__init__()
        self.name = path
        letters = set(mode) - {"b", "+"}
        if len(letters) != 1 or not letters <= set(_FLAGS) or len(set(mode)) != len(mode):
            raise ValueError("mode %r: one of r, w, x, a, with b and +" % mode)
        (letter,) = letters
        access = os.O_RDWR if "+" in mode else os.O_RDONLY if letter == "r" else os.O_WRONLY
        self._reads = access != os.O_WRONLY
        self._writes = access != os.O_RDONLY
        self._appends = letter == "a"
        self._file = pool.open_file(path, _FLAGS[letter] | access)
        if stat.S_ISDIR(self._file.stat()[1]):
            self._file.close()
            raise IsADirectoryError(21, "Is a directory", path)
        self.mode = "%sb%s" % (letter, "+" if "+" in mode else "")
        self._at = self._file.size() if self._appends else 0
        self._pool = pool.name
        _owned.note(self)

    def _pool_name(self) -> str:
        return self._pool

    def _end(self) -> None:
        # The buffers around it are closed later, or never: they can't write back any more.
        if self._file is not None:
            self._file.close()

    def readable(self) -> bool:
        """Whether its mode allows reading. ValueError if it is closed."""
        self._check()
        return self._reads

    def writable(self) -> bool:
        """Whether its mode allows writing. ValueError if it is closed."""
        self._check()
        return self._writes

    def seekable(self) -> bool:
        """True. ValueError if it is closed."""
        self._check()
        return True

    def _check(self) -> _native.File:
        if self.closed or self._file is None:
            raise ValueError("I/O operation on closed file")
        return self._file

    def readinto(self, buffer: BufferLike) -> int:
        """Reads into a writable buffer from the position on. Returns the number of bytes; 0 at the end."""
        file = self._check()
        if not self._reads:
            raise io.UnsupportedOperation("not readable")
        n = file.readinto(buffer, self._at)
        self._at += n
        return n

    def readall(self) -> bytes:
        """Returns the bytes from the position to the end."""
        file = self._check()
        if not self._reads:
            raise io.UnsupportedOperation("not readable")
        data = file.read_from(self._at)
        self._at += len(data)
        return data

    def write(self, data: BufferLike) -> int:
        """Writes all of a buffer at the position (mode `a`: at the end). Returns the number of bytes."""
        file = self._check()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        n = file.write(data, self._at)
        self._at = file.size() if self._appends else self._at + n
        return n

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position as `io.IOBase.seek`. Returns the new one in bytes. OSError (EINVAL) below 0."""
        file = self._check()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: None}.get(whence, whence)
        if base is None:
            base = file.size()
        elif whence not in (os.SEEK_SET, os.SEEK_CUR):
            raise ValueError("whence %r isn't known" % (whence,))
        if base + offset < 0:
            raise OSError(22, "Invalid argument: a position before the beginning", self.name)
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Returns the position in bytes."""
        self._check()
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Truncates the file to `size` bytes (None: the position), or extends it with zeros.
        Returns the size."""
        file = self._check()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        size = self._at if size is None else size
        file.truncate(size)
        return size

    def sync(self) -> None:
        """Calls fsync; docs/explanation/semantics.md says what it promises."""
        file = self._check()
        file.sync()

    def close(self) -> None:
        """Closes the file. Closing it again does nothing."""
        if not self.closed:
            try:
                super().close()
            finally:
                if self._file is not None:
                    self._file.close()

    def __repr__(self) -> str:
        return "<forebay.PoolFile %r mode=%r%s>" % (self.name, self.mode, " closed" if self.closed else "")


class Pool(_native.Pool):
    """A running pool: `Pool("NAME")`; without a name that of `$FOREBAY_POOL`, else `default`.

    As a context manager it closes this object at the end; the pool continues to run.
    """

    def __init__(self, name: str = "") -> None:
        self._name = self.name
        self._maps: weakref.WeakSet[_native.Chunk] = weakref.WeakSet()
        _owned.note(self)

    def _pool_name(self) -> str:
        return self._name

    def _end(self) -> None:
        try:
            _owned.close(self._maps)
        finally:
            self.close()

    @classmethod
    def start(
        cls, name: str | None = None, *, media: str | Sequence[str] | None = None,
        nodes: int | None = None, hosts: Sequence[str] | None = None,
        mount: str | os.PathLike[str] | None = None, rules: str | os.PathLike[str] | None = None,
        ttl: str | None = None, force: bool = False, options: Sequence[str] = (),
    ) -> Pool:
        """Starts a pool (`forebay up`) and attaches to it.

        `media` is a text or a list of texts (`"memory:4G"`), `hosts` a list, `nodes` the number of
        nodes on this host; `options` are further options of the command line.

        Raises OSError with the command's message if it can't be started.
        """
        name = name or "default"
        arguments = ["up", "--json", "--pool", name]
        for medium in [media] if isinstance(media, str) else media or ():
            arguments += ["--media", medium]
        for option, value in [("--nodes", nodes), ("--mount", mount), ("--rules", rules), ("--ttl", ttl),
                              ("--hosts", ",".join(hosts) if hosts else None)]:
            if value is not None:
                arguments += [option, os.fspath(value) if not isinstance(value, int) else str(value)]
        if force:
            arguments.append("--force")
        call(*arguments, *options)
        return cls(name)

    def stop(self) -> None:
        """Removes the pool and all its content (`forebay down`).

        First closes this process's objects in the pool: their later calls raise OSError (EBADF);
        memory of arrays stays until they are freed. Raises OSError if other processes use the pool.
        """
        name = self.name
        _owned.close_pool(name)
        call("down", "--besides", str(os.getpid()), "--pool", name)

    def status(self) -> dict[str, Any]:
        """Returns the output of `forebay status --json`."""
        status: dict[str, Any] = json.loads(call("status", "--json", "--pool", self.name))
        return status

    def session(self) -> Session:
        """Opens a session with its metadata and bytes in this pool."""
        from .verbs import Session

        return Session("pool:%s" % self.name)

    def filesystem(self, **options: Any) -> AbstractFileSystem:
        """Returns this pool for fsspec: a `forebay.spec.ForebayFileSystem`."""
        import fsspec

        return fsspec.filesystem("forebay", pool=self.name, **options)

    def open(
        self, path: str, mode: str = "r", buffering: int = -1, encoding: str | None = None,
        errors: str | None = None, newline: str | None = None,
    ) -> Any:
        """Opens a file, as the built-in `open` does."""
        text = "b" not in mode
        if text and buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        if not text and (encoding or errors or newline):
            raise ValueError("binary mode takes no encoding, errors or newline")
        raw = PoolFile(self, path, mode.replace("t", ""))
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
        buffered: io.BufferedRandom | io.BufferedWriter[Any] | io.BufferedReader[Any]
        if "+" in mode:
            buffered = io.BufferedRandom(raw, size)
        elif raw.writable():
            buffered = io.BufferedWriter(raw, size)
        else:
            buffered = io.BufferedReader(raw, size)
        if not text:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)

    def listdir(self, path: str = "/") -> list[str]:
        """Returns the names in a directory, sorted."""
        return sorted(name for name, _ in self.list(path))

    def scandir(self, path: str = "/") -> list[tuple[str, Stat]]:
        """Returns (name, `Stat`) of a directory's entries, sorted by name. Symbolic links aren't followed."""
        return [(name, Stat(*of)) for name, of in sorted(self.scan(path))]

    def stat(self, path: str, follow: bool = True) -> Stat:
        """Returns the attributes of the object at a path."""
        return Stat(*super().stat(path, follow))

    def exists(self, path: str) -> bool:
        """Whether the path exists. OSError, never False, if that can't be determined."""
        try:
            super().stat(path, True)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        """Makes a directory and its missing parents."""
        parts = [part for part in path.split("/") if part]
        for i in range(1, len(parts) + 1):
            try:
                self.mkdir("/" + "/".join(parts[:i]), mode)
            except FileExistsError:
                if i == len(parts) and not (exist_ok and self.stat(path).is_dir):
                    raise

    def walk(self, top: str = "/") -> Iterator[tuple[str, list[str], list[str]]]:
        """Yields (directory, names of directories, names of others), from the top, as `os.walk`."""
        dirs: list[str] = []
        others: list[str] = []
        for name, kind in sorted(self.list(top)):
            (dirs if stat.S_ISDIR(kind) else others).append(name)
        yield top, dirs, others
        for name in dirs:
            yield from self.walk("%s/%s" % (top.rstrip("/"), name))

    def rmtree(self, path: str) -> None:
        """Removes a directory and its content."""
        for name, kind in self.list(path):
            inner = "%s/%s" % (path.rstrip("/"), name)
            if stat.S_ISDIR(kind):
                self.rmtree(inner)
            else:
                self.unlink(inner)
        self.rmdir(path)

    def map(
        self, path: str, start: int = 0, length: int | None = None, writable: bool = False,
    ) -> _native.Chunk:
        """Maps a range of a file's bytes into this process's memory, without a copy. Returns a
        `Chunk`.

        Use it by `memoryview(chunk)` or `numpy.frombuffer(chunk)`. OSError (EREMOTE) if the bytes
        are on another node, (EINVAL) beyond the end.
        """
        chunk = super().map(path, start, length, writable)
        self._maps.add(chunk)
        return chunk

    def declare(self, path: str, controls: Controls | str | None) -> None:
        """Declares controls for a file, or for future entries of a directory."""
        super().declare(path, text_of(controls) or "")

    def stage_in(self, source: str | os.PathLike[str], path: str) -> None:
        """Copies a file, or a directory's content, from the host into the pool, verified."""
        call("stage", "in", "--pool", self.name, os.fspath(source), path, timeout=None)

    def stage_out(self, path: str, target: str | os.PathLike[str]) -> None:
        """Copies a file, or a directory's content, from the pool to the host, verified."""
        call("stage", "out", "--pool", self.name, path, os.fspath(target), timeout=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<forebay.Pool %s>" % ("closed" if self.closed else self.name)


@contextlib.contextmanager
def run(name: str | None = None, **options: Any) -> Iterator[Pool]:
    """Runs a pool during a `with` block: `with forebay.run(nodes=4, media="memory:1G") as pool`.

    Options are those of `Pool.start`. Without a name the pool gets a unique one. At the end this
    process's objects in the pool are closed, and the pool and its content are removed. If the
    process is killed, the pool is removed when nobody has used it for two minutes.
    """
    options["options"] = ["--idle", "2m", *options.get("options", ())]
    name = name or "run-%d-%s" % (os.getpid(), secrets.token_hex(4))
    pool, owner = Pool.start(name, **options), os.getpid()
    try:
        yield pool
    finally:
        # In a forked child, the end of the block leaves the pool to the parent.
        if os.getpid() == owner:
            _owned.close_pool(name)
            call("down", "--besides", str(owner), "--pool", name)
