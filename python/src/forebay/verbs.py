"""Sessions, workspaces, collections, batches: thin classes over the native ones.

Every call of a collection is carried out before it returns. The forms for asyncio (`aread`, ...) and
`Batch` run on threads of the session, while the program goes on.
"""

import asyncio
import weakref

from . import _native, _owned
from .controls import text_of

__all__ = ["Batch", "Collection", "Running", "Session", "Workspace"]


def _of(what, kind):
    """The native object in one of these classes."""
    if not isinstance(what, kind):
        raise TypeError("a forebay.%s is needed, not %s" % (kind.__name__, type(what).__name__))
    return what._native


class Session:
    """A metadata store and back ends: `"pool:NAME"`, `"memory"`, `"etcd://HOST:PORT"`.

    Empty: `$FOREBAY_METADATA`, else the pool that programs here use.
    """

    def __init__(self, place=""):
        self._native = _native.Session(place)
        # What was made here and is in use: `close` ends it.
        self._made = weakref.WeakSet()
        _owned.note(self)

    def _pool_name(self):
        return self._native.pool_name

    def _note(self, made):
        self._made.add(made)
        return made

    def create(self, name, meta=None):
        """Makes a workspace. FileExistsError if there is one of this name."""
        return self._note(Workspace(self, self._native.create(name, meta)))

    def load(self, key):
        """The workspace of this name or `uuid.UUID`."""
        return self._note(Workspace(self, self._native.load(key)))

    def workspace(self, name, meta=None):
        """The workspace of this name, made if there is none."""
        try:
            return self.load(name)
        except FileNotFoundError:
            pass
        try:
            return self.create(name, meta)
        except FileExistsError:
            return self.load(name)

    def search(self, query=""):
        """Records of the workspaces for which a predicate holds: `project = "mcse"`."""
        return self._native.search(query)

    def attach(self, name, kind, config=""):
        """Attaches a back end under a name: `directory`, `forebay`, `memory`, `null`, or a shared object."""
        self._native.attach(name, kind, config)

    def backends(self):
        """Names of the back ends, and their kinds."""
        return self._native.backends()

    def choose(self, pattern, controls, backend):
        """Which back end new collections get whose `/WORKSPACE/NAME` fits a pattern."""
        self._native.choose(pattern, text_of(controls) or "", backend)

    def batch(self, failure="stop", order="free"):
        """An empty batch. `failure`: `continue`, `stop` or `rollback`; `order`: `free` or `chain`."""
        return self._note(Batch(self, self._native.batch(failure, order)))

    def buffer(self, length):
        """New memory in the pool, of zeros; other processes of the node can map it by its token."""
        return self._note(self._native.buffer(length))

    def attach_chunk(self, token):
        """Maps what another process of this node has named by `Chunk.token()`."""
        return self._note(self._native.attach_chunk(bytes(token)))

    def close(self):
        """Closes it and all that was opened in it: later calls of these are OSError (EBADF).

        A batch that is running goes on to its end. BufferError if views of mapped memory are still in
        use; all else is closed then.
        """
        try:
            _owned.close(self._made)
        finally:
            self._native.close()

    @property
    def closed(self):
        return self._native.closed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Workspace:
    """A namespace of collections, with metadata of its own. Iterating gives its collections' records."""

    def __init__(self, session, native):
        self.session = session
        self._native = native

    @property
    def name(self):
        return self._native.name

    @property
    def uuid(self):
        """Its UUID, as a text."""
        return self._native.uuid

    @property
    def meta(self):
        """Its metadata at this moment: a dict."""
        return self._native.meta

    def set_meta(self, changes=None, **more):
        """Changes metadata; None removes a key."""
        self._native.set_meta({**(changes or {}), **more})

    def create(self, name, *, meta=None, controls=None, backend=None):
        """Makes a collection and opens it. FileExistsError if there is one of this name."""
        return self.session._note(Collection(self, self._native.create(name, meta, text_of(controls), backend)))

    def open(self, key):
        """Opens the collection of this name or `uuid.UUID`."""
        return self.session._note(Collection(self, self._native.open(key)))

    def lookup(self, key):
        """The record of a collection."""
        return self._native.lookup(key)

    def search(self, query=""):
        """Records of the collections for which a predicate holds: `step >= 2 and exists owner`."""
        return self._native.search(query)

    def delete(self, key):
        """Deletes a collection."""
        self._native.delete(key)

    def remove(self):
        """Deletes the workspace. OSError (ENOTEMPTY) while it has collections."""
        self._native.remove()

    def close(self):
        """Ends this object's use. Its collections go on."""
        self._native.close()

    async def acreate(self, name, *, meta=None, controls=None, backend=None):
        """`create`, while the event loop goes on."""
        batch = self.session.batch()
        _, made = batch.create(self, name, meta=meta, controls=controls, backend=backend)
        await batch.start()
        return made

    async def aopen(self, key):
        """`open`, while the event loop goes on."""
        batch = self.session.batch()
        _, opened = batch.open(self, key)
        await batch.start()
        return opened

    async def asearch(self, query=""):
        """`search`, while the event loop goes on."""
        return await self.session.batch()._one(lambda b: b.search(self, query))

    async def adelete(self, key):
        """`delete`, while the event loop goes on."""
        await self.session.batch()._one(lambda b: b.delete(self, key))

    def __iter__(self):
        return iter(self.search())

    def __contains__(self, name):
        try:
            self.lookup(name)
        except FileNotFoundError:
            return False
        return True

    def __repr__(self):
        return "<forebay.Workspace %s>" % ("closed" if self._native.closed else repr(self.name))


class Collection:
    """Bytes with a name, metadata and controls. Any object with the buffer protocol can be written."""

    def __init__(self, workspace, native):
        self.workspace = workspace
        self._native = native
        # The two that a loop calls most go to the native object at once.
        self.read = native.read
        self.write = native.write

    @property
    def name(self):
        return self._native.name

    @property
    def uuid(self):
        """Its UUID, as a text."""
        return self._native.uuid

    @property
    def meta(self):
        """Its metadata at this moment: a dict."""
        return self._native.meta

    def set_meta(self, changes=None, **more):
        """Changes metadata; None removes a key."""
        self._native.set_meta({**(changes or {}), **more})

    @property
    def size(self):
        """Bytes."""
        return self._native.size

    def readinto(self, buffer, at=0):
        """Reads into a writable buffer: how many bytes; fewer than it has only at the end."""
        return self._native.readinto(buffer, at)

    def append(self, data):
        """Writes behind the end: where that was."""
        return self._native.append(data)

    def truncate(self, size):
        self._native.truncate(size)

    def sync(self):
        """Commits what was written, as far as its controls promise."""
        self._native.sync()

    def copy(self, to, *, at=0, length=None, to_at=0):
        """Copies bytes to another collection: how many."""
        length = self.size - at if length is None else length
        return self._native.copy(at, max(length, 0), _of(to, Collection), to_at)

    def map(self, at=0, length=None, writable=False):
        """A range of its bytes in this process's memory, without a copy: a `Chunk`.

        `memoryview(chunk)`, `numpy.frombuffer(chunk)`. OSError (EREMOTE) if the bytes lie on another
        node, (EINVAL) beyond the end.
        """
        return self.workspace.session._note(self._native.map(at, length, writable))

    async def aread(self, length=None, at=0):
        """`read`, while the event loop goes on."""
        length = max(self.size - at, 0) if length is None else length
        return await self.workspace.session.batch()._one(lambda b: b.read(self, length, at))

    async def awrite(self, data, at=0):
        """`write`, while the event loop goes on. `data` must not change meanwhile."""
        await self.workspace.session.batch()._one(lambda b: b.write(self, data, at))

    async def aappend(self, data):
        """`append`, while the event loop goes on."""
        return await self.workspace.session.batch()._one(lambda b: b.append(self, data))

    async def async_close(self):
        """`close`, while the event loop goes on."""
        await self.workspace.session.batch()._one(lambda b: b.close(self))

    def close(self):
        """Ends its use: every later call is OSError (EBADF). Memory that was mapped stays mapped."""
        self._native.close()

    @property
    def closed(self):
        return self._native.closed

    def __len__(self):
        return self.size

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return "<forebay.Collection %s>" % ("closed" if self.closed else repr(self.name))


class Batch:
    """Operations that are collected, then run while the program does something else.

    Each method gives the operation's number, for `after`, `Running.result` and `Running.status`.
    Buffers belong to the batch until it has ended.
    """

    def __init__(self, session, native):
        self.session = session
        self._native = native

    def create(self, workspace, name, *, meta=None, controls=None, backend=None):
        """(operation, collection): it can be used in this batch at once."""
        op, native = self._native.create(_of(workspace, Workspace), name, meta, text_of(controls), backend)
        return op, self.session._note(Collection(workspace, native))

    def open(self, workspace, key):
        """(operation, collection): it can be used in this batch at once."""
        op, native = self._native.open(_of(workspace, Workspace), key)
        return op, self.session._note(Collection(workspace, native))

    def lookup(self, workspace, key):
        return self._native.lookup(_of(workspace, Workspace), key)

    def search(self, workspace, query=""):
        return self._native.search(_of(workspace, Workspace), query)

    def delete(self, workspace, key):
        return self._native.delete(_of(workspace, Workspace), key)

    def read(self, collection, length, at=0):
        return self._native.read(_of(collection, Collection), length, at)

    def readinto(self, collection, buffer, at=0):
        return self._native.readinto(_of(collection, Collection), buffer, at)

    def write(self, collection, data, at=0):
        return self._native.write(_of(collection, Collection), data, at)

    def append(self, collection, data):
        return self._native.append(_of(collection, Collection), data)

    def truncate(self, collection, size):
        return self._native.truncate(_of(collection, Collection), size)

    def sync(self, collection):
        return self._native.sync(_of(collection, Collection))

    def get_meta(self, collection):
        return self._native.get_meta(_of(collection, Collection))

    def set_meta(self, collection, changes):
        return self._native.set_meta(_of(collection, Collection), changes)

    def close(self, collection):
        return self._native.close(_of(collection, Collection))

    def after(self, op, *needed):
        """An operation waits for others to be done."""
        self._native.after(op, list(needed))

    def start(self):
        """Starts it: a `Running`."""
        return self.session._note(Running(self._native.start()))

    def _end(self):
        self._native.discard()

    async def _one(self, add):
        op = add(self)
        running = self.start()
        await running
        return running.result(op)

    def __len__(self):
        return len(self._native)

    def __enter__(self):
        """`with session.batch() as b`: started and waited for at the end of the block."""
        return self

    def __exit__(self, kind, *_):
        if kind is None and len(self):
            running = self.start()
            running.wait()
            running.check()


class Running:
    """A batch that was started. `await` it, or call `wait` and then `check`."""

    def __init__(self, native):
        self._native = native

    def wait(self, timeout=None):
        """Waits until it has ended, at most `timeout` seconds: whether it has. Ctrl-C ends the wait."""
        return self._native.wait(timeout)

    def test(self):
        """Whether it has ended."""
        return self._native.test()

    def cancel(self):
        """Skips what hasn't begun."""
        self._native.cancel()

    def status(self, op):
        """`waiting`, `running`, `done`, `failed`, `skipped` or `undone`."""
        return self._native.status(op)

    def result(self, op):
        """What an operation has brought. Raises its error."""
        return self._native.result(op)

    def check(self):
        """Raises why the batch as a whole failed, if it did."""
        self._native.check()

    def _end(self):
        self._native.close()

    def __await__(self):
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def end():
            if not done.done():
                done.set_result(None)

        def tell():
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
