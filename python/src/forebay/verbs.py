"""Sessions, workspaces, collections, batches: thin classes over the native ones.

A call of a collection is carried out before it returns. The variants for asyncio (`aread`, ...) and
`Batch` run on threads of the session, while the program continues.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

from . import _native, _owned
from .controls import Controls, text_of

if TYPE_CHECKING:
    from typing_extensions import Buffer as BufferLike

M = TypeVar("M")

__all__ = ["Batch", "Collection", "Running", "Session", "Workspace"]


def _of(what: Any, kind: Any) -> Any:
    """Returns the native object inside an object of these classes."""
    if not isinstance(what, kind):
        raise TypeError("a forebay.%s is needed, not %s" % (kind.__name__, type(what).__name__))
    return what._native


class Session:
    """A metadata store and back ends: `"pool:NAME"`, `"memory"`, `"etcd://HOST:PORT"`.

    An empty text means `$FOREBAY_METADATA`, else the pool of `$FOREBAY_POOL`, else `default`.
    """

    def __init__(self, place: str = "") -> None:
        self._native = _native.Session(place)
        # The objects that this session has made, which `close` closes.
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        _owned.note(self)

    def _pool_name(self) -> str | None:
        return self._native.pool_name

    def _note(self, made: M) -> M:
        self._made.add(made)
        return made

    def create(self, name: str, meta: dict[str, str] | None = None) -> Workspace:
        """Makes a workspace. FileExistsError if the name exists."""
        return self._note(Workspace(self, self._native.create(name, meta)))

    def load(self, key: str | UUID) -> Workspace:
        """Opens the workspace with this name or `uuid.UUID`."""
        return self._note(Workspace(self, self._native.load(key)))

    def workspace(self, name: str, meta: dict[str, str] | None = None) -> Workspace:
        """Opens the workspace of this name, and makes it if it doesn't exist."""
        try:
            return self.load(name)
        except FileNotFoundError:
            pass
        try:
            return self.create(name, meta)
        except FileExistsError:
            return self.load(name)

    def search(self, query: str = "") -> list[_native.Record]:
        """Returns the records of the workspaces for which a predicate holds: `project = "mcse"`."""
        return self._native.search(query)

    def attach(self, name: str, kind: str, config: str = "") -> None:
        """Attaches a back end under a name: `directory`, `forebay`, `memory`, or a shared object."""
        self._native.attach(name, kind, config)

    def backends(self) -> dict[str, str]:
        """Returns the names of the back ends, and their kinds."""
        return self._native.backends()

    def choose(self, pattern: str, controls: Controls | str | None, backend: str) -> None:
        """Sets the back end of new collections whose `/WORKSPACE/NAME` matches a pattern."""
        self._native.choose(pattern, text_of(controls) or "", backend)

    def batch(self, failure: str = "stop", order: str = "free") -> Batch:
        """Makes an empty batch. `failure`: `continue`, `stop` or `rollback`; `order`: `free` or `chain`."""
        return self._note(Batch(self, self._native.batch(failure, order)))

    def buffer(self, length: int) -> _native.Buffer:
        """Allocates zeroed memory in the pool. Other processes of the node can map it by its token."""
        return self._note(self._native.buffer(length))

    def attach_chunk(self, token: BufferLike) -> _native.Chunk:
        """Maps the memory that another process of this node has named by `Chunk.token()`."""
        return self._note(self._native.attach_chunk(bytes(token)))

    def close(self) -> None:
        """Closes the session and the objects opened in it: their later calls raise OSError (EBADF).

        A running batch continues to its end. BufferError if views of mapped memory are still in
        use; all other objects are closed then.
        """
        try:
            _owned.close(self._made)
        finally:
            self._native.close()

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self._native.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Workspace:
    """A namespace of collections, with metadata. Iterating it yields its collections' records."""

    def __init__(self, session: Session, native: _native.Workspace) -> None:
        self.session = session
        self._native = native

    @property
    def name(self) -> str:
        """The workspace's name."""
        return self._native.name

    @property
    def uuid(self) -> str:
        """The workspace's UUID, as a text."""
        return self._native.uuid

    @property
    def meta(self) -> dict[str, str]:
        """The workspace's current metadata: a dict."""
        return self._native.meta

    def set_meta(self, changes: dict[str, str | None] | None = None, **more: str | None) -> None:
        """Changes metadata. The value None removes a key."""
        self._native.set_meta({**(changes or {}), **more})

    def create(
        self, name: str, *, meta: dict[str, str] | None = None, controls: Controls | str | None = None,
        backend: str | None = None,
    ) -> Collection:
        """Makes a collection and opens it. FileExistsError if the name exists."""
        return self.session._note(Collection(self, self._native.create(name, meta, text_of(controls), backend)))

    def open(self, key: str | UUID) -> Collection:
        """Opens the collection with this name or `uuid.UUID`."""
        return self.session._note(Collection(self, self._native.open(key)))

    def lookup(self, key: str | UUID) -> _native.Record:
        """Returns the record of a collection."""
        return self._native.lookup(key)

    def search(self, query: str = "") -> list[_native.Record]:
        """Returns the records of the collections for which a predicate holds:
        `step >= 2 and exists owner`."""
        return self._native.search(query)

    def delete(self, key: str | UUID) -> None:
        """Deletes a collection."""
        self._native.delete(key)

    def remove(self) -> None:
        """Deletes the workspace. OSError (ENOTEMPTY) while it has collections."""
        self._native.remove()

    def close(self) -> None:
        """Closes this object. Its collections stay usable."""
        self._native.close()

    async def acreate(
        self, name: str, *, meta: dict[str, str] | None = None, controls: Controls | str | None = None,
        backend: str | None = None,
    ) -> Collection:
        """Like `create`, while the event loop continues."""
        batch = self.session.batch()
        _, made = batch.create(self, name, meta=meta, controls=controls, backend=backend)
        await batch.start()
        return made

    async def aopen(self, key: str | UUID) -> Collection:
        """Like `open`, while the event loop continues."""
        batch = self.session.batch()
        _, opened = batch.open(self, key)
        await batch.start()
        return opened

    async def asearch(self, query: str = "") -> list[_native.Record]:
        """Like `search`, while the event loop continues."""
        found: list[_native.Record] = await self.session.batch()._one(lambda b: b.search(self, query))
        return found

    async def adelete(self, key: str | UUID) -> None:
        """Like `delete`, while the event loop continues."""
        await self.session.batch()._one(lambda b: b.delete(self, key))

    def __iter__(self) -> Iterator[_native.Record]:
        return iter(self.search())

    def __contains__(self, name: Any) -> bool:
        try:
            self.lookup(name)
        except FileNotFoundError:
            return False
        return True

    def __repr__(self) -> str:
        return "<forebay.Workspace %s>" % ("closed" if self._native.closed else repr(self.name))


class Collection:
    """A sequence of bytes with a name, metadata and controls. `write` takes any object with the
    buffer protocol."""

    def __init__(self, workspace: Workspace, native: _native.Collection) -> None:
        self.workspace = workspace
        self._native = native
        # The most frequently called methods are the native object's own.
        self.read = native.read
        self.write = native.write

    @property
    def name(self) -> str:
        """The collection's name in its workspace."""
        return self._native.name

    @property
    def uuid(self) -> str:
        """The collection's UUID, as a text."""
        return self._native.uuid

    @property
    def meta(self) -> dict[str, str]:
        """The collection's current metadata: a dict."""
        return self._native.meta

    def set_meta(self, changes: dict[str, str | None] | None = None, **more: str | None) -> None:
        """Changes metadata. The value None removes a key."""
        self._native.set_meta({**(changes or {}), **more})

    @property
    def size(self) -> int:
        """The collection's current size in bytes."""
        return self._native.size

    def readinto(self, buffer: BufferLike, at: int = 0) -> int:
        """Reads into a writable buffer. Returns the number of bytes; less than its size only at the end."""
        return self._native.readinto(buffer, at)

    def append(self, data: BufferLike) -> int:
        """Appends a buffer. Returns its offset."""
        return self._native.append(data)

    def truncate(self, size: int) -> None:
        """Truncates the collection to `size` bytes, or extends it with zeros."""
        self._native.truncate(size)

    def sync(self) -> None:
        """Commits what was written, as far as the collection's controls promise."""
        self._native.sync()

    def copy(self, to: Collection, *, at: int = 0, length: int | None = None, to_at: int = 0) -> int:
        """Copies bytes to another collection. Returns the number of bytes."""
        length = self.size - at if length is None else length
        return self._native.copy(at, max(length, 0), _of(to, Collection), to_at)

    def map(self, at: int = 0, length: int | None = None, writable: bool = False) -> _native.Chunk:
        """Maps a range of the collection's bytes into this process's memory, without a copy.
        Returns a `Chunk`.

        Use it by `memoryview(chunk)` or `numpy.frombuffer(chunk)`. OSError (EREMOTE) if the bytes
        are on another node, (EINVAL) beyond the end.
        """
        return self.workspace.session._note(self._native.map(at, length, writable))

    async def aread(self, length: int | None = None, at: int = 0) -> bytes:
        """Like `read`, while the event loop continues."""
        length = max(self.size - at, 0) if length is None else length
        batch = self.workspace.session.batch()
        data: bytes = await batch._one(lambda b: b.read(self, length, at))
        return data

    async def awrite(self, data: BufferLike, at: int = 0) -> None:
        """Like `write`, while the event loop continues. `data` must not change meanwhile."""
        await self.workspace.session.batch()._one(lambda b: b.write(self, data, at))

    async def aappend(self, data: BufferLike) -> int:
        """Like `append`, while the event loop continues."""
        at: int = await self.workspace.session.batch()._one(lambda b: b.append(self, data))
        return at

    async def async_close(self) -> None:
        """Like `close`, while the event loop continues."""
        await self.workspace.session.batch()._one(lambda b: b.close(self))

    def close(self) -> None:
        """Closes the collection: later calls raise OSError (EBADF). Mapped memory stays mapped."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether the collection was closed."""
        return self._native.closed

    def __len__(self) -> int:
        return self.size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<forebay.Collection %s>" % ("closed" if self.closed else repr(self.name))


class Batch:
    """Operations that are collected, then run while the program does something else.

    Each method returns the operation's number, for `after`, `Running.result` and `Running.status`.
    The program must not change buffers until the batch has ended.
    """

    def __init__(self, session: Session, native: _native.Batch) -> None:
        self.session = session
        self._native = native

    def create(
        self, workspace: Workspace, name: str, *, meta: dict[str, str] | None = None,
        controls: Controls | str | None = None, backend: str | None = None,
    ) -> tuple[int, Collection]:
        """Returns (operation, collection). Later operations of this batch can use the collection."""
        op, native = self._native.create(_of(workspace, Workspace), name, meta, text_of(controls), backend)
        return op, self.session._note(Collection(workspace, native))

    def open(self, workspace: Workspace, key: str | UUID) -> tuple[int, Collection]:
        """Returns (operation, collection). Later operations of this batch can use the collection."""
        op, native = self._native.open(_of(workspace, Workspace), key)
        return op, self.session._note(Collection(workspace, native))

    def lookup(self, workspace: Workspace, key: str | UUID) -> int:
        """Looks up a collection; the result is its record."""
        return self._native.lookup(_of(workspace, Workspace), key)

    def search(self, workspace: Workspace, query: str = "") -> int:
        """Searches for collections; the result is the records for which a predicate holds."""
        return self._native.search(_of(workspace, Workspace), query)

    def delete(self, workspace: Workspace, key: str | UUID) -> int:
        """Deletes a collection."""
        return self._native.delete(_of(workspace, Workspace), key)

    def read(self, collection: Collection, length: int, at: int = 0) -> int:
        """Reads up to `length` bytes from offset `at`; the result is `bytes`."""
        return self._native.read(_of(collection, Collection), length, at)

    def readinto(self, collection: Collection, buffer: BufferLike, at: int = 0) -> int:
        """Reads into a writable buffer; the result is the number of bytes."""
        return self._native.readinto(_of(collection, Collection), buffer, at)

    def write(self, collection: Collection, data: BufferLike, at: int = 0) -> int:
        """Writes a buffer at offset `at`; the result is the number of bytes."""
        return self._native.write(_of(collection, Collection), data, at)

    def append(self, collection: Collection, data: BufferLike) -> int:
        """Appends a buffer; the result is its offset."""
        return self._native.append(_of(collection, Collection), data)

    def truncate(self, collection: Collection, size: int) -> int:
        """Truncates a collection to `size` bytes, or extends it with zeros."""
        return self._native.truncate(_of(collection, Collection), size)

    def sync(self, collection: Collection) -> int:
        """Commits what was written, as far as the collection's controls promise."""
        return self._native.sync(_of(collection, Collection))

    def get_meta(self, collection: Collection) -> int:
        """Reads a collection's metadata; the result is a dict."""
        return self._native.get_meta(_of(collection, Collection))

    def set_meta(self, collection: Collection, changes: dict[str, str | None]) -> int:
        """Changes metadata. The value None removes a key."""
        return self._native.set_meta(_of(collection, Collection), changes)

    def close(self, collection: Collection) -> int:
        """Closes a collection."""
        return self._native.close(_of(collection, Collection))

    def after(self, op: int, *needed: int) -> None:
        """Makes an operation wait for others, and need their success."""
        self._native.after(op, list(needed))

    def start(self) -> Running:
        """Starts the batch. Returns a `Running`."""
        return self.session._note(Running(self._native.start()))

    def _end(self) -> None:
        self._native.discard()

    async def _one(self, add: Callable[[Batch], int]) -> Any:
        op = add(self)
        running = self.start()
        await running
        return running.result(op)

    def __len__(self) -> int:
        return len(self._native)

    def __enter__(self) -> Self:
        """`with session.batch() as b`: starts the batch at the end of the block, and waits for it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and len(self):
            running = self.start()
            running.wait()
            running.check()


class Running:
    """A started batch. `await` it, or call `wait` and then `check`."""

    def __init__(self, native: _native.Running) -> None:
        self._native = native

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most `timeout` seconds. Returns whether the batch has ended. Ctrl-C ends the wait."""
        return self._native.wait(timeout)

    def test(self) -> bool:
        """Whether the batch has ended."""
        return self._native.test()

    def cancel(self) -> None:
        """Skips operations that haven't begun."""
        self._native.cancel()

    def status(self, op: int) -> str:
        """Returns an operation's state: `waiting`, `running`, `done`, `failed`, `skipped` or `undone`."""
        return self._native.status(op)

    def result(self, op: int) -> Any:
        """Returns the result of an operation, or raises its error."""
        return self._native.result(op)

    def check(self) -> None:
        """Raises the error of the batch as a whole, if it failed."""
        self._native.check()

    def _end(self) -> None:
        self._native.close()

    def __await__(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def end() -> None:
            if not done.done():
                done.set_result(None)

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(end)
            except RuntimeError:
                pass  # The loop is closed: nobody waits any more.

        if self._native.when_done(tell):
            try:
                yield from done
            except asyncio.CancelledError:
                self._native.cancel()
                raise
        self._native.check()
