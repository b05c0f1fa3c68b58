"""Meshes of simulations in HDF5 files: written by N ranks, read by M, on a pool or beside it.

    from forebay import mesh

    mesh.write(grid, "/case/result.h5", backend="iov")         # "mpio", "posix"
    mesh.read(grid, "/case/result.h5", backend="iov")

- `Mesh`: points, cells by type, markers, data. Other classes have `to_forebay` and `from_forebay`.
- `read`, `write`: with `comm=` (mpi4py) all ranks of it call them together.
- `Iov`, `Mpio`, `Posix`: back ends with their options.
- `from_meshio`, `to_meshio`: all formats of meshio. `python -m forebay.mesh IN OUT` converts.

It guarantees: a file is there with all that was written, or not at all; what is wrong on one rank
is an exception on all. The layout, and what is checked: docs/howto/meshes.md.
"""

from .backends import Iov, Mpio, Posix
from .convert import from_meshio, to_meshio
from .model import CELL_TYPES, Mesh, MeshError
from .transfer import read, write

__all__ = [
    "CELL_TYPES",
    "Iov",
    "Mesh",
    "MeshError",
    "Mpio",
    "Posix",
    "from_meshio",
    "read",
    "to_meshio",
    "write",
]
