"""Data loaders: the files of a pool, or the collections of a workspace, as numbered samples.

    samples = forebay.data.Files("default", "/train", form="tensor")
    loader = torch.utils.data.DataLoader(samples, batch_size=32, shuffle=True, num_workers=4,
                                         collate_fn=list, pin_memory=torch.cuda.is_available())

- The listing is made when the object is made: one call per directory, none per file.
- An object can be used after fork and by spawn: each process opens the pool again.
- PyTorch is imported only for `form="tensor"`; NumPy only for `form="numpy"`.
- `gopen` and `register_webdataset` read `forebay://` URLs in WebDataset.
"""

from __future__ import annotations

import collections
import errno
import fnmatch
import functools
import os
import random
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from .pool import Pool
from .verbs import Session, Workspace

__all__ = ["Batches", "Collections", "Files", "Form", "gopen", "register_webdataset", "tensor"]

Form = Literal["bytes", "numpy", "tensor"]
"""The form of a sample: `bytes`, a NumPy array of `uint8`, or a PyTorch tensor of `uint8`."""

_FORMS = ("bytes", "numpy", "tensor")


def tensor(memory: Any, *, pin: bool = False) -> Any:
    """A one-dimensional PyTorch tensor of `uint8` over memory, without a copy.

    `memory` is a `Chunk`, a `Buffer`, or any other object with the buffer protocol. The tensor
    keeps the memory mapped as long as it lives: closing the chunk before raises BufferError. (With
    `torch.frombuffer(chunk)`, which releases its view, the chunk can be closed; its memory still
    stays mapped as long as the tensor has a reference to the chunk.)

    A tensor over read-only memory must not be changed in place: the write ends the process
    (SIGSEGV). `pin=True` copies into page-locked memory if CUDA is available, else it does nothing.

    Raises BufferError for memory that isn't contiguous, OSError (EBADF) for a closed chunk.
    """
    import torch

    # The tensor refers to the view, not the chunk: so the chunk can't be closed while the tensor
    # lives.
    view = memoryview(memory).cast("B")
    if view.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    _quiet(torch)
    made = torch.frombuffer(view, dtype=torch.uint8)
    return made.pin_memory() if pin and torch.cuda.is_available() else made


@functools.cache
def _quiet(torch: Any) -> None:
    """Triggers PyTorch's warning of read-only memory, which it gives once per process, while it is
    suppressed."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"-", dtype=torch.uint8)


class _Samples:
    """Numbered samples. Subclasses define how a sample is read."""

    def __init__(self, form: Form, copy: bool, transform: Callable[[Any], Any] | None) -> None:
        if form not in _FORMS:
            raise ValueError("form %r: one of %s" % (form, ", ".join(_FORMS)))
        if form == "bytes" and not copy:
            raise ValueError("bytes are always a copy: copy=False needs form='numpy' or 'tensor'")
        self.form: Form = form
        self.copy = copy
        self.transform = transform
        self._process: int | None = None
        # The numbers of samples that couldn't be mapped, so that mapping isn't tried again.
        self._copied: set[int] = set()

    def __len__(self) -> int:
        raise NotImplementedError

    def _bytes(self, index: int) -> bytes:
        raise NotImplementedError

    def _map(self, index: int) -> Any:
        raise NotImplementedError

    def _open(self) -> None:
        """Opens, for this process, the pool or workspace that has the samples."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        if self._process != os.getpid():
            self._open()
            self._process = os.getpid()
        size = len(self)
        if not -size <= index < size:
            raise IndexError("sample %d of %d" % (index, size))
        sample = self._shape(self._bytes(index) if self.copy else self._memory(index))
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Returns the samples of a batch. PyTorch's DataLoader calls this."""
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def _memory(self, index: int) -> Any:
        """Returns the pool's own memory of a sample; a copy if that isn't possible (another node,
        several extents)."""
        if index not in self._copied:
            try:
                return self._map(index)
            except OSError as e:
                if e.errno == errno.ENOENT:
                    raise
                # The sample is on another node, empty, or in several pieces. Reading it reports
                # other errors.
                self._copied.add(index)
        return self._bytes(index)

    def _shape(self, data: Any) -> Any:
        if self.form == "bytes":
            return data
        if self.form == "tensor":
            return tensor(data)
        import numpy

        if isinstance(data, numpy.ndarray):
            return data
        return numpy.frombuffer(data, dtype=numpy.uint8)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # Objects that this process has opened aren't passed to another one.
        state.update(_process=None)
        for name in ("_pool", "_session", "_workspace"):
            if name in state:
                state[name] = None
        return state


class Files(_Samples):
    """Files of a pool as a map-style data set: `files[i]` is the content of the i-th.

    `pool` is a `Pool` or a name (empty: that of `$FOREBAY_POOL`, else `default`). Either `path` is
    a directory, which is listed once with its subdirectories, or `names` are paths inside the pool,
    which are used unchecked. `pattern` selects by file name, as the shell does (`"*.jpg"`). The
    samples are in the order of the sorted paths, or of `names`.

    `form` is the type of a sample. With `copy=False` a sample is the pool's own memory if the file
    is on this node in one piece, and must not be written to (see `tensor`); otherwise it is a copy.
    `transform` is called with each sample.

    `keep_open` is the number of files that each process keeps open (those read last), with their
    memory if `copy=False`; 0: none. Use it for sets that don't change: a kept file isn't looked up
    again. In a pool of several nodes, opening a file sends a request to the file's node, but
    reading an open laminated file sends none, so later epochs are local. Open files count towards
    the node's limit (131,072).

    A file is opened when its sample is used. If it was removed after the listing, that raises
    FileNotFoundError. Other errors are OSError, as of `Pool.read`.

    Raises FileNotFoundError or NotADirectoryError for `path`, ValueError for invalid options.
    """

    def __init__(
        self,
        pool: Pool | str = "",
        path: str = "/",
        *,
        names: Sequence[str] | None = None,
        pattern: str | None = None,
        form: Form = "bytes",
        copy: bool = True,
        transform: Callable[[Any], Any] | None = None,
        keep_open: int = 0,
    ) -> None:
        super().__init__(form, copy, transform)
        if keep_open < 0:
            raise ValueError("keep_open %d: a number of files" % keep_open)
        self.keep_open = keep_open
        # By index: an open file and its size in bytes, or mapped memory. The most recently used is
        # the last.
        self._kept: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self.pool_name = pool.name if isinstance(pool, Pool) else pool
        self._pool: Pool | None = None
        if names is None:
            opened = pool if isinstance(pool, Pool) else Pool(pool)
            names = sorted(_below(opened, path))
        if pattern is not None:
            names = [name for name in names if fnmatch.fnmatchcase(name.rpartition("/")[2], pattern)]
        self.names: tuple[str, ...] = tuple(names)
        """Paths inside the pool, in the order of the samples."""

    def __len__(self) -> int:
        return len(self.names)

    def _open(self) -> None:
        # Files that the parent process has kept open aren't usable here.
        self._kept = collections.OrderedDict()
        self._pool = Pool(self.pool_name)

    def _bytes(self, index: int) -> Any:
        assert self._pool is not None
        if not self.keep_open:
            return self._pool.read(self.names[index])
        kept = self._kept.get(index)
        if kept is None:
            file = self._pool.open_file(self.names[index])
            kept = self._keep(index, (file, file.size()))
        else:
            self._kept.move_to_end(index)
        file, size = kept
        into = _memory_of(size, self.form)
        done = 0
        while done < size:
            # A short read doesn't mean the file's end: the bytes may be in several pieces.
            n = file.readinto(into[done:] if done else into, done)
            if n == 0:
                break
            done += n
        return bytes(into[:done]) if self.form == "bytes" else into[:done]

    def _map(self, index: int) -> Any:
        assert self._pool is not None
        if not self.keep_open:
            return self._pool.map(self.names[index])
        kept = self._kept.get(index)
        if kept is None:
            return self._keep(index, self._pool.map(self.names[index]))
        self._kept.move_to_end(index)
        return kept

    def _keep(self, index: int, opened: Any) -> Any:
        self._kept[index] = opened
        if len(self._kept) > self.keep_open:
            _, oldest = self._kept.popitem(last=False)
            # A mapping is released with the last sample that refers to it.
            if isinstance(oldest, tuple):
                oldest[0].close()
        return opened

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kept": collections.OrderedDict()}

    def __repr__(self) -> str:
        return "<forebay.data.Files: %d of the pool %r>" % (len(self), self.pool_name or "default")


def _memory_of(size: int, form: Form) -> Any:
    """Returns memory to read a sample into. With NumPy or PyTorch it isn't zeroed."""
    if form == "bytes":
        return memoryview(bytearray(size))
    import numpy

    return numpy.empty(size, dtype=numpy.uint8)


def _below(pool: Pool, top: str) -> Iterator[str]:
    """Returns the paths of all files below a directory, with one listing per directory."""
    for name, kind in pool.list(top):
        path = "%s/%s" % (top.rstrip("/"), name)
        if stat.S_ISDIR(kind):
            yield from _below(pool, path)
        elif stat.S_ISREG(kind):
            yield path


class Collections(_Samples):
    """Collections of a workspace as a map-style data set: `samples[i]` is the content of the i-th.

    `place` is the argument of a `Session` (`"pool:NAME"`), `query` a predicate over metadata,
    evaluated once (`'split = "train"'`; empty: all). Samples are in the order of their names.
    `form`, `copy` and `transform` are as for `Files`. `meta[i]` has the metadata of a sample.

    Raises FileNotFoundError if the workspace doesn't exist, ValueError for an invalid predicate.
    """

    def __init__(
        self,
        place: str,
        workspace: str,
        query: str = "",
        *,
        form: Form = "bytes",
        copy: bool = True,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(form, copy, transform)
        self.place = place
        self.workspace_name = workspace
        self._session: Session | None = None
        self._workspace: Workspace | None = None
        with Session(place) as session:
            found = sorted(session.load(workspace).search(query), key=lambda record: record.name)
        self.names = tuple(record.name for record in found)
        """Names of the collections, in the order of the samples."""
        self.meta = tuple(dict(record.meta) for record in found)
        """Metadata of the samples, as they were when the object was made."""

    def __len__(self) -> int:
        return len(self.names)

    def _open(self) -> None:
        self._session = Session(self.place)
        self._workspace = self._session.load(self.workspace_name)

    def _bytes(self, index: int) -> bytes:
        assert self._workspace is not None
        with self._workspace.open(self.names[index]) as collection:
            return collection.read()

    def _map(self, index: int) -> Any:
        assert self._workspace is not None
        with self._workspace.open(self.names[index]) as collection:
            return collection.map()

    def __repr__(self) -> str:
        return "<forebay.data.Collections: %d of %r>" % (len(self), self.workspace_name)


class Batches:
    """A batch sampler that gives each worker of a DataLoader the same samples in every epoch.

    Worker `w` gets the samples `w`, `w + workers`, ..., in a new random order each epoch, so that
    it can use the files that it has kept open (`Files(keep_open=...)`). A batch has samples of one
    worker only. Use it as `DataLoader(..., batch_sampler=Batches(...), num_workers=workers)`, which
    hands batches to its workers in turn.

    `samples` is the number of samples, `batch` the maximum number of samples in a batch. Each
    iteration is an epoch, counted from 0, or set by `set_epoch`. The order depends only on `seed`
    and the epoch.

    Raises ValueError for numbers below 1.
    """

    def __init__(self, samples: int, batch: int, workers: int, *, seed: int = 0, shuffle: bool = True) -> None:
        if min(samples, batch, workers) < 1:
            raise ValueError("%d samples, batches of %d, %d workers: at least 1" % (samples, batch, workers))
        self.samples, self.batch, self.workers = samples, batch, workers
        self.seed, self.shuffle = seed, shuffle
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch of the next iteration."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Returns the number of batches of an epoch."""
        parts = (len(range(worker, self.samples, self.workers)) for worker in range(self.workers))
        return sum(-(-part // self.batch) for part in parts)

    def __iter__(self) -> Iterator[list[int]]:
        order = random.Random("%d %d" % (self.seed, self._epoch))
        self._epoch += 1
        parts = [list(range(worker, self.samples, self.workers)) for worker in range(self.workers)]
        for part in parts:
            if self.shuffle:
                order.shuffle(part)
        # Workers take turns. Their numbers of samples differ by at most one, so only a last batch
        # can be missing.
        for first in range(0, len(parts[0]), self.batch):
            for part in parts:
                if first < len(part):
                    yield part[first:first + self.batch]


def gopen(url: str, mode: str = "rb", bufsize: int = 1 << 20, **options: Any) -> Any:
    """Opens `forebay://POOL/path` for WebDataset: a handler of its `gopen_schemes`.

    `mode` is `rb` or `wb`, `bufsize` is in bytes; other options are ignored. Raises ValueError for
    other URLs and modes, OSError as `Pool.open` does.
    """
    scheme, _, rest = url.partition("://")
    name, _, path = rest.partition("/")
    if scheme != "forebay" or not path:
        raise ValueError("%r: forebay://POOL/PATH is needed" % url)
    if mode not in ("rb", "wb"):
        raise ValueError("mode %r: rb or wb" % mode)
    return Pool(name).open("/" + path, mode, max(bufsize, 1 << 16))


def register_webdataset(worker: int | None = None) -> None:
    """Makes WebDataset read URLs `forebay://POOL/path`.

    Call it once per process, also in workers started by spawn: pass it to the DataLoader as
    `worker_init_fn`, which is called with the worker's number.
    """
    from webdataset.gopen import gopen_schemes

    gopen_schemes["forebay"] = gopen
