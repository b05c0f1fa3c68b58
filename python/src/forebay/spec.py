"""fsspec: `forebay://POOL/PATH`, and so pandas, xarray, Zarr 3, dask, pyarrow, polars.

- Listings and sizes are never cached: each call reads them from the pool, which takes microseconds.
- It keeps no thread and no event loop. A forked child opens the pool again.
- `asynchronous=True` adds the coroutines that Zarr 3 awaits. Small calls are carried out at once,
  long copies in a thread.
"""

from __future__ import annotations

import asyncio
import datetime
import errno
import os
import stat as modes
from collections.abc import AsyncIterator
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from .pool import Pool

# Minimum size of a copy that a coroutine makes in a thread, so that the event loop continues.
# Bytes.
IN_A_THREAD = 1 << 20

_KINDS = {modes.S_IFDIR: "directory", modes.S_IFREG: "file", modes.S_IFLNK: "link"}


class ForebayFileSystem(AbstractFileSystem):
    """The files of a pool: `ForebayFileSystem(pool="NAME")`, or a URL `forebay://NAME/path`.

    Without a name, and for `forebay:///path`, the pool is that of `$FOREBAY_POOL`, else `default`.
    """

    protocol = "forebay"
    root_marker = "/"
    async_impl = True
    # Instances are cheap, and a process must not pass one to its child.
    cachable = False

    def __init__(
        self, pool: str = "", asynchronous: bool = False, loop: Any = None, batch_size: Any = None,
        **options: Any
    ) -> None:
        super().__init__(asynchronous=asynchronous, loop=loop, **options)
        self.asynchronous = asynchronous
        self.batch_size = batch_size
        self.pool_name = pool
        self._pid: int | None = None
        self._opened: Pool | None = None

    @property
    def pool(self) -> Pool:
        """The pool, opened by this process."""
        if self._opened is None or self._pid != os.getpid():
            self._opened = Pool(self.pool_name)
            self._pid = os.getpid()
        return self._opened

    def __reduce__(self) -> tuple[Any, ...]:
        known = {**self.storage_options, "pool": self.pool_name, "asynchronous": self.asynchronous}
        return _again, (type(self), known)

    @property
    def fsid(self) -> str:
        return "forebay_" + self.pool.name

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = stringify_path(path)
        for start in ("forebay://", "forebay::"):
            if path.startswith(start):
                # The first component is the pool: _get_kwargs_from_urls.
                _, _, path = path[len(start):].partition("/")
                path = "/" + path
                break
        path = "/" + path.strip("/")
        return path

    @staticmethod
    def _get_kwargs_from_urls(path: Any) -> dict[str, str]:
        if path.startswith("forebay://"):
            pool = path[len("forebay://"):].partition("/")[0]
            return {"pool": pool} if pool else {}
        return {}

    def unstrip_protocol(self, name: str) -> str:
        return "forebay://%s%s" % (self.pool.name, self._strip_protocol(name))

    # ---- what is there ----

    def _entry(self, name: str, attributes: Any) -> dict[str, Any]:
        ino, mode, nlink, uid, gid, size, _, mtime, ctime, birth = attributes
        return {
            "name": name,
            "size": 0 if modes.S_ISDIR(mode) else size,
            "type": _KINDS.get(modes.S_IFMT(mode), "other"),
            "islink": modes.S_ISLNK(mode),
            "mode": mode,
            "uid": uid,
            "gid": gid,
            "ino": ino,
            "nlink": nlink,
            "mtime": mtime / 1e9,
            "created": birth / 1e9,
            "ctime": ctime / 1e9,
        }

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        stat = super(Pool, self.pool).stat
        entry = self._entry(path, stat(path, False))
        if entry["islink"]:
            entry["destination"] = self.pool.readlink(path)
            try:
                to = self._entry(path, stat(path, True))
            except OSError:
                return entry
            entry.update(size=to["size"], type=to["type"])
        return entry

    def ls(self, path: Any, detail: bool = True, **_: Any) -> Any:
        path = self._strip_protocol(path)
        base = path.rstrip("/")
        try:
            if not detail:
                return sorted("%s/%s" % (base, name) for name, _ in self.pool.list(path))
            found = sorted(self.pool.scan(path))
        except NotADirectoryError:
            entry = self.info(path)
            return [entry] if detail else [path]
        entries = []
        for name, attributes in found:
            inner = "%s/%s" % (base, name)
            if modes.S_ISLNK(attributes[1]):
                try:
                    entries.append(self.info(inner))
                except FileNotFoundError:
                    pass
            else:
                entries.append(self._entry(inner, attributes))
        return entries

    def exists(self, path: Any, **_: Any) -> bool:
        return self.pool.exists(self._strip_protocol(path))

    def created(self, path: Any) -> Any:
        return _time(self.info(path)["created"])

    def modified(self, path: Any) -> Any:
        return _time(self.info(path)["mtime"])

    def ukey(self, path: Any) -> str:
        info = self.info(path)
        return "%s-%s-%s" % (info["ino"], info["size"], info["ctime"])

    def invalidate_cache(self, path: Any = None) -> None:
        """Does nothing, as nothing is cached."""

    # ---- directories ----

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.pool.makedirs(path)
        else:
            self.pool.mkdir(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        self.pool.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: Any) -> None:
        self.pool.rmdir(self._strip_protocol(path))

    # ---- bytes ----

    def _open(
        self, path: Any, mode: str = "rb", block_size: Any = None, autocommit: bool = True,
        cache_options: Any = None, **_: Any
    ) -> Any:
        path = self._strip_protocol(path)
        mode = mode.replace("t", "")
        if "r" not in mode and self.auto_mkdir:
            self.pool.makedirs(self._parent(path), exist_ok=True)
        if not autocommit:
            return _Later(self, path, mode)
        return self.pool.open(path, mode if "b" in mode else mode + "b")

    @property
    def auto_mkdir(self) -> bool:
        """Whether writing a file makes its missing parent directories (the option `auto_mkdir`)."""
        return bool(self.storage_options.get("auto_mkdir", True))

    def _range(self, path: Any, start: Any, end: Any) -> tuple[int, int | None]:
        if start is None and end is None:
            return 0, None
        if (start or 0) >= 0 and (end is None or end >= 0):
            return start or 0, end
        size = self.info(path)["size"]
        start = 0 if start is None else start + size if start < 0 else start
        end = None if end is None else end + size if end < 0 else end
        return max(start, 0), None if end is None else max(end, 0)

    def cat_file(self, path: Any, start: Any = None, end: Any = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        return self.pool.read(path, *self._range(path, start, end))

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        exclusive = mode == "create"
        try:
            self.pool.write(path, value, exclusive)
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
            self.pool.makedirs(self._parent(path), exist_ok=True)
            self.pool.write(path, value, exclusive)

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")
        else:
            self.pool.set_times(path, None, None)

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        if self.auto_mkdir:
            self.pool.makedirs(self._parent(path2), exist_ok=True)
        self.pool.copy(path1, path2)

    def rm_file(self, path: Any) -> None:
        self.pool.unlink(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        paths = [path] if isinstance(path, (str, os.PathLike)) else path
        for one in self.expand_path(paths, recursive=recursive, maxdepth=maxdepth)[::-1]:
            if self.isdir(one):
                if one != "/":
                    self.rmdir(one)
            else:
                self.rm_file(one)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None,
        **options: Any
    ) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if any(letter in path1 for letter in "*?[") or maxdepth is not None:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        if not recursive and self.isdir(source):
            raise IsADirectoryError(errno.EISDIR, "is a directory; recursive=True moves it", source)
        if path2.endswith("/") or self.isdir(target):
            target = "%s/%s" % (target.rstrip("/"), source.rsplit("/", 1)[1])
        if self.auto_mkdir:
            self.pool.makedirs(self._parent(target), exist_ok=True)
        self.pool.rename(source, target)

    def put_file(
        self, lpath: Any, rpath: Any, callback: Any = None, mode: str = "overwrite", **options: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        if mode == "create" and self.exists(rpath):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), rpath)
        with open(lpath, "rb") as source, self.open(rpath, "wb") as target:
            _copy(source, target, callback)

    def get_file(
        self, rpath: Any, lpath: Any, callback: Any = None, outfile: Any = None, **options: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if outfile is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        with self.open(rpath, "rb") as source:
            if outfile is not None:
                _copy(source, outfile, callback)
                return
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            with open(lpath, "wb") as target:
                _copy(source, target, callback)

    # ---- for asynchronous=True ----

    async def _info(self, path: Any, **options: Any) -> Any:
        return self.info(path, **options)

    async def _ls(self, path: Any, detail: bool = True, **options: Any) -> Any:
        return self.ls(path, detail=detail, **options)

    async def _exists(self, path: Any, **options: Any) -> Any:
        return self.exists(path, **options)

    async def _isdir(self, path: Any) -> Any:
        return self.isdir(path)

    async def _isfile(self, path: Any) -> Any:
        return self.isfile(path)

    async def _find(
        self, path: Any, maxdepth: int | None = None, withdirs: bool = False, **options: Any
    ) -> Any:
        return await asyncio.to_thread(self.find, path, maxdepth=maxdepth, withdirs=withdirs, **options)

    async def _walk(
        self, path: Any, maxdepth: int | None = None, on_error: str = "omit", **options: Any
    ) -> AsyncIterator[Any]:
        for found in await asyncio.to_thread(lambda: list(self.walk(path, maxdepth=maxdepth, **options))):
            yield found

    async def _glob(self, path: Any, maxdepth: int | None = None, **options: Any) -> Any:
        return await asyncio.to_thread(self.glob, path, maxdepth=maxdepth, **options)

    async def _du(self, path: Any, total: bool = True, maxdepth: int | None = None, **options: Any) -> Any:
        return await asyncio.to_thread(self.du, path, total=total, maxdepth=maxdepth, **options)

    async def _expand_path(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> Any:
        return await asyncio.to_thread(self.expand_path, path, recursive=recursive, maxdepth=maxdepth)

    async def _mkdir(self, path: Any, create_parents: bool = True, **options: Any) -> None:
        self.mkdir(path, create_parents=create_parents, **options)

    async def _makedirs(self, path: Any, exist_ok: bool = False) -> None:
        self.makedirs(path, exist_ok=exist_ok)

    async def _rm_file(self, path: Any, **_: Any) -> None:
        self.rm_file(path)

    async def _rm(self, path: Any, recursive: bool = False, **options: Any) -> None:
        await asyncio.to_thread(self.rm, path, recursive=recursive)

    async def _cp_file(self, path1: Any, path2: Any, **options: Any) -> None:
        await asyncio.to_thread(self.cp_file, path1, path2, **options)

    async def _cat_file(self, path: Any, start: Any = None, end: Any = None, **options: Any) -> bytes:
        length = (end or 0) - (start or 0)
        if end is not None and 0 <= length < IN_A_THREAD:
            return self.cat_file(path, start, end)
        if self.info(path)["size"] < IN_A_THREAD:
            return self.cat_file(path, start, end)
        return await asyncio.to_thread(self.cat_file, path, start, end)

    async def _cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", batch_size: Any = None,
        **options: Any
    ) -> Any:
        return await asyncio.to_thread(self.cat, path, recursive=recursive, on_error=on_error, **options)

    async def _cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, batch_size: Any = None,
        on_error: str = "return", **options: Any
    ) -> Any:
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        reads = (self._cat_file(*one) for one in zip(paths, starts, ends, strict=True))
        return await asyncio.gather(*reads, return_exceptions=on_error == "return")

    async def _pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **options: Any) -> None:
        if len(value) < IN_A_THREAD:
            self.pipe_file(path, value, mode=mode)
        else:
            await asyncio.to_thread(self.pipe_file, path, value, mode)

    async def _put_file(self, lpath: Any, rpath: Any, **options: Any) -> None:
        await asyncio.to_thread(self.put_file, lpath, rpath, **options)

    async def _get_file(self, rpath: Any, lpath: Any, **options: Any) -> None:
        await asyncio.to_thread(self.get_file, rpath, lpath, **options)

    async def _mv(self, path1: Any, path2: Any, **options: Any) -> None:
        await asyncio.to_thread(self.mv, path1, path2, **options)

    async def open_async(self, path: Any, mode: str = "rb", **options: Any) -> _AsyncFile:
        """Opens a file whose `read`, `write` and `close` are coroutines."""
        return _AsyncFile(self.open(path, mode, **options))


class _AsyncFile:
    def __init__(self, file: Any) -> None:
        self._file = file

    async def read(self, length: int = -1) -> bytes:
        return await asyncio.to_thread(self._file.read, length)

    async def write(self, data: Any) -> int:
        return await asyncio.to_thread(self._file.write, data)

    async def close(self) -> None:
        await asyncio.to_thread(self._file.close)

    async def __aenter__(self) -> _AsyncFile:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


class _Later:
    """A file of a transaction. Its bytes are in a file beside the target, which `commit` renames."""

    def __init__(self, fs: ForebayFileSystem, path: str, mode: str) -> None:
        self.fs, self.path, self.mode = fs, path, mode
        self.temp = "%s.forebay-part-%d-%x" % (path, os.getpid(), id(self))
        if "a" in mode and fs.exists(path):
            fs.cp_file(path, self.temp)
        self._file = fs.pool.open(self.temp, mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Later:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def commit(self) -> None:
        self.fs.pool.rename(self.temp, self.path)

    def discard(self) -> None:
        self.fs.pool.unlink(self.temp)


def _again(cls: type[Any], options: Any) -> Any:
    return cls(**options)


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)


def _copy(source: Any, target: Any, callback: Any = None) -> int:
    done, space = 0, bytearray(4 << 20)
    if callback is not None:
        callback.set_size(getattr(source, "size", None) or os.fstat(source.fileno()).st_size
                          if hasattr(source, "fileno") and not hasattr(source, "raw") else None)
    with memoryview(space) as view:
        while n := source.readinto(view):
            target.write(view[:n])
            done += n
            if callback is not None:
                callback.relative_update(n)
    return done
