"""Forebay for Python: pools, files, collections, batches, and memory of the pool without copies.

- `Pool`: a running pool. `Pool()` attaches to one, `Pool.start(...)` starts one, `run(...)` starts
  one and removes it afterwards.
- `Session`, `Workspace`, `Collection`, `Batch`: bytes with names, metadata and controls.
- `Controls`: what a program declares about its I/O.
- fsspec knows `forebay://POOL/PATH` (`forebay.spec`), and so do pandas, xarray, Zarr, dask.

Errors are `OSError` and its subclasses (`FileNotFoundError`, ...), with `errno` and a sentence. A
forked child can't use objects that its parent has opened (`PermissionError`); it opens its own.
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
