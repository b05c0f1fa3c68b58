"""Forebay for Python: pools, files, collections, batches; bytes without copies.

- `Pool`: a running pool. `Pool()` attaches to one, `Pool.start(...)` starts one, `run(...)` starts
  one and removes it afterwards.
- `Session`, `Workspace`, `Collection`, `Batch`: bytes with names, metadata and controls.
- `Controls`: what a program says of its I/O.
- `forebay://POOL/PATH` is known to fsspec (`forebay.spec`), and so to pandas, xarray, Zarr, dask.

Errors are `OSError` and its subclasses (`FileNotFoundError`, ...), with `errno` and a sentence. A
forked child can't use what its parent has opened (`PermissionError`): it opens its own.
"""

from ._native import Buffer, Chunk, Record, __version__
from .controls import Controls
from .pool import Pool, PoolFile, run
from .verbs import Batch, Collection, Running, Session, Workspace

__all__ = [
    "Batch",
    "Buffer",
    "Chunk",
    "Collection",
    "Controls",
    "Pool",
    "PoolFile",
    "Record",
    "Running",
    "Session",
    "Workspace",
    "__version__",
    "run",
]
