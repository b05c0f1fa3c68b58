"""Meshes of simulations in HDF5 files: N ranks write a file, M ranks read it, in a pool or outside.

    from forebay import mesh

    mesh.write(grid, "/case/result.h5", backend="iov")         # "mpio", "posix"
    mesh.read(grid, "/case/result.h5", backend="iov")

- `Mesh`: points, cells by type, markers, data. Other classes can implement `to_forebay` and
  `from_forebay`.
- `read`, `write`: with `comm=` (mpi4py) all its ranks call them together.
- `Iov`, `Mpio`, `Posix`: back ends with their options.
- `from_meshio`, `to_meshio`: conversion to all formats of meshio. `python -m forebay.mesh IN OUT`
  converts files.

Guarantees: a file exists completely or not at all; an error on one rank is an exception on all. The
layout, and the checks: docs/howto/meshes.md.
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
