"""Back ends: how the bytes of mesh files are read and written.

A back end has `open`, `create`, `seal`, `discard` and `put`. An open file reads and writes at any
position. Layout, numbering and order are the same for all back ends.

- `Iov`: files of a pool, by this package's calls, without HDF5 driver, MPI-IO or locks.
- `Mpio`: MPI-IO by mpi4py. For a pool, run under `forebay exec` with paths below `/fb`.
- `Posix`: plain files.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .model import MeshError

if TYPE_CHECKING:
    from .. import _native
    from ..pool import Pool

# Maximum length of one call. Bytes; MPI's counts have 31 bits.
MAX_CALL_BYTES = 1 << 30


class OpenFile(Protocol):
    """An open file. Reads and writes a whole buffer at a position in bytes, or raises an exception."""

    def write(self, buffer: Any, at: int) -> None: ...

    def read(self, buffer: Any, at: int) -> int:
        """Returns the number of bytes read: fewer than the buffer has only at the end."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """Opens, creates, completes and removes files."""

    @property
    def name(self) -> str: ...

    def open(self, path: str, writing: bool, comm: Any = None) -> OpenFile: ...

    def create(self, path: str) -> OpenFile: ...

    def seal(self, file: OpenFile, path: str, final: str) -> None:
        """Completes a file: it never changes again, and gets its name."""

    def discard(self, file: OpenFile, path: str) -> None: ...

    def put(self, path: str, data: bytes) -> None:
        """Writes a small file beside the mesh."""


def of(backend: str | Backend, comm: Any) -> Backend:
    """Returns the back end of this name, or `backend` itself if it is an object."""
    if isinstance(backend, str):
        if backend not in _NAMED:
            raise MeshError("back end %r isn't known; known are %s" % (backend, ", ".join(_NAMED)))
        backend = _NAMED[backend]()
    if not all(hasattr(backend, name) for name in ("open", "create", "seal", "discard", "put")):
        raise MeshError("back end: %r is needed, or an object of forebay.mesh.Iov, Mpio or Posix, not %s"
                        % (list(_NAMED), type(backend).__name__))
    return backend


class _File:
    """An `OpenFile` made of calls that may read or write fewer bytes than asked."""

    _write: Callable[[memoryview, int], int]
    _read: Callable[[memoryview, int], int]

    def write(self, buffer: Any, at: int) -> None:
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view):
            done += self._write(view[done : done + MAX_CALL_BYTES], at + done)

    def read(self, buffer: Any, at: int) -> int:
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view):
            n = self._read(view[done : done + MAX_CALL_BYTES], at + done)
            if n == 0:
                break
            done += n
        return done


class Iov:
    """Files of a pool.

    `pool` is a `forebay.Pool` or a name; without it, that of `$FOREBAY_POOL`, else `default`. Paths
    are paths inside the pool, paths below its prefix, or `forebay://POOL/path`. `controls` are
    declared for a file when it is complete; by default it becomes immutable.
    """

    name = "iov"

    def __init__(self, pool: Any = None, controls: Any = "mutability=immutable") -> None:
        self._pool, self._controls = pool, controls
        self._opened: dict[Any, Any] = {}

    def _at(self, path: str) -> tuple[Pool, str]:
        from .. import Pool

        pool = self._pool
        opened: Pool | None
        if path.startswith("forebay://"):
            pool, _, path = path[len("forebay://") :].partition("/")
        if isinstance(pool, Pool):
            opened = pool
        else:
            opened = self._opened.get(pool)
            if opened is None or opened.closed:
                opened = self._opened[pool] = Pool(pool or "")
        if path.startswith(opened.mount + "/"):
            path = path[len(opened.mount) :]
        return opened, "/" + path.lstrip("/")

    def open(self, path: str, writing: bool, comm: Any = None) -> OpenFile:
        pool, path = self._at(path)
        return _IovFile(pool.open_file(path, os.O_RDWR if writing else os.O_RDONLY), pool, path)

    def create(self, path: str) -> OpenFile:
        pool, path = self._at(path)
        return _IovFile(pool.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), pool, path)

    def seal(self, file: OpenFile, path: str, final: str) -> None:
        pool, path = self._at(path)
        if self._controls:
            pool.declare(path, self._controls)
        file.close()
        pool.rename(path, self._at(final)[1])

    def discard(self, file: OpenFile, path: str) -> None:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            pool, path = self._at(path)
            pool.unlink(path)

    def put(self, path: str, data: bytes) -> None:
        pool, path = self._at(path)
        pool.write(path, data)


class _IovFile(_File):
    def __init__(self, file: _native.File, pool: Pool, path: str) -> None:
        self._pool, self._path = pool, path
        self._write, self._read = file.write, file.readinto
        self.size, self.truncate, self.close = file.size, file.truncate, file.close

    def map(self, at: int, length: int) -> _native.Chunk | None:
        """Maps these bytes of the pool; None if they are on another node, or striped."""
        try:
            return self._pool.map(self._path, at, length)
        except OSError as e:
            if e.errno != errno.EREMOTE:
                raise
            return None


class Posix:
    """Plain files."""

    name = "posix"

    def open(self, path: str, writing: bool, comm: Any = None) -> OpenFile:
        return _PosixFile(path, os.O_RDWR if writing else os.O_RDONLY)

    def create(self, path: str) -> OpenFile:
        return _PosixFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def seal(self, file: OpenFile, path: str, final: str) -> None:
        file.close()
        os.rename(path, final)

    def discard(self, file: OpenFile, path: str) -> None:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            os.unlink(path)

    def put(self, path: str, data: bytes) -> None:
        with open(path, "wb") as f:
            f.write(data)


class _PosixFile(_File):
    def __init__(self, path: str, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o666)

    def _write(self, view: memoryview, at: int) -> int:
        return os.pwrite(self._fd, view, at)

    def _read(self, view: memoryview, at: int) -> int:
        return os.preadv(self._fd, [view], at)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Mpio(Posix):
    """Files by MPI-IO. `info` is a dictionary of hints."""

    name = "mpio"

    def __init__(self, info: Any = None) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as e:
            raise ImportError("the back end mpio needs mpi4py and an MPI library: pip install mpi4py (%s)" % e) from e
        self._mpi, self._info = MPI, info

    def open(self, path: str, writing: bool, comm: Any = None) -> OpenFile:
        return _MpiFile(self._mpi, comm, path, self._mpi.MODE_RDWR if writing else self._mpi.MODE_RDONLY, self._info)

    def create(self, path: str) -> OpenFile:
        mode = self._mpi.MODE_RDWR | self._mpi.MODE_CREATE | self._mpi.MODE_EXCL
        return _MpiFile(self._mpi, None, path, mode, self._info)


class _MpiFile(_File):
    def __init__(self, mpi: Any, comm: Any, path: str, mode: int, hints: Any) -> None:
        info = mpi.Info.Create(hints) if hints else mpi.INFO_NULL
        self._mpi, self._path = mpi, path
        self._file: Any = None
        with self._errors():
            self._file = mpi.File.Open(comm if comm is not None else mpi.COMM_SELF, path, mode, info)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        known = {self._mpi.ERR_NO_SUCH_FILE: errno.ENOENT, self._mpi.ERR_FILE_EXISTS: errno.EEXIST,
                 self._mpi.ERR_ACCESS: errno.EACCES, self._mpi.ERR_NO_SPACE: errno.ENOSPC,
                 self._mpi.ERR_QUOTA: errno.EDQUOT, self._mpi.ERR_READ_ONLY: errno.EROFS}
        try:
            yield
        except self._mpi.Exception as e:
            raise OSError(known.get(e.Get_error_class(), errno.EIO), e.Get_error_string(), self._path) from None

    def _write(self, view: memoryview, at: int) -> int:
        with self._errors():
            status = self._mpi.Status()
            self._file.Write_at(at, [view, self._mpi.BYTE], status)
            done: int = status.Get_count(self._mpi.BYTE)
        if done <= 0:
            raise OSError(errno.ENOSPC, "MPI-IO has written nothing: there is no space left", self._path)
        return done

    def _read(self, view: memoryview, at: int) -> int:
        with self._errors():
            status = self._mpi.Status()
            self._file.Read_at(at, [view, self._mpi.BYTE], status)
            return max(int(status.Get_count(self._mpi.BYTE)), 0)

    def size(self) -> int:
        with self._errors():
            return int(self._file.Get_size())

    def truncate(self, size: int) -> None:
        with self._errors():
            self._file.Set_size(size)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with self._errors():
                file.Close()


_NAMED: dict[str, Callable[[], Backend]] = {"iov": Iov, "mpio": Mpio, "posix": Posix}
