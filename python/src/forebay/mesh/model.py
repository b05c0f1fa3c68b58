"""The class `Mesh`, and the checks before anything is written.

Guarantees: a mesh that `check` accepts has arrays of matching lengths, cell types and element types
of the layout, and names that HDF5 supports. Arrays are copied only if they aren't contiguous or
have another byte order.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy
from numpy.typing import NDArray

Array = NDArray[Any]

# Cell types by their names in meshio, with their numbers of nodes. The order of nodes is VTK's.
CELL_TYPES = {
    "vertex": 1, "line": 2, "line3": 3,
    "triangle": 3, "triangle6": 6, "quad": 4, "quad8": 8, "quad9": 9,
    "tetra": 4, "tetra10": 10, "pyramid": 5, "pyramid13": 13, "wedge": 6, "wedge15": 15, "wedge18": 18,
    "hexahedron": 8, "hexahedron20": 20, "hexahedron24": 24, "hexahedron27": 27,
}  # fmt: skip
NODE = numpy.dtype("<i8")
MARKER = numpy.dtype("<i4")
# Maximum length of the names of data and markers. Bytes.
MAX_NAME_BYTES = 255


class MeshError(ValueError):
    """An invalid mesh or file. The text says what is wrong, where, and what to do."""


@dataclasses.dataclass
class Mesh:
    """A mesh, or one rank's part of one.

    `points` has a row of 2 or 3 coordinates for each point. `cells` has, for each type of cell
    (`CELL_TYPES`), rows of points' indices. `point_data` and `cell_data` have arrays with a row for
    each point or cell: `cell_data["p"]["tetra"]`. `markers` has a number for each cell of a type, 0
    for none; it tells to which boundary a face belongs. `marker_names` names these numbers.

    In a rank's part, `point_ids` are the points' numbers in the whole mesh, the same on all ranks
    that have the point. The first `owned` points are this rank's own; the others (ghosts) belong to
    another rank. With None, a point belongs to the lowest rank that has it. Without `point_ids` no
    point is on two ranks.

    `read` fills in `point_ids`, `owned`, and `first_cells`: for each type, the number that its
    first cell has in the whole mesh.
    """

    points: Any = None
    cells: dict[str, Array] = dataclasses.field(default_factory=dict)
    point_data: dict[str, Array] = dataclasses.field(default_factory=dict)
    cell_data: dict[str, dict[str, Array]] = dataclasses.field(default_factory=dict)
    markers: dict[str, Array] = dataclasses.field(default_factory=dict)
    marker_names: dict[str, int] = dataclasses.field(default_factory=dict)
    point_ids: Any = None
    owned: int | None = None
    first_cells: dict[str, int] = dataclasses.field(default_factory=dict)

    def to_forebay(self) -> Mesh:
        """Returns the mesh for `write`. Other classes return a `Mesh` made from their data."""
        return self

    def from_forebay(self, read: Mesh) -> None:
        """Takes over the mesh that `read` has read. Other classes take over its data."""
        for field in dataclasses.fields(Mesh):
            setattr(self, field.name, getattr(read, field.name))


def check(mesh: Mesh) -> Mesh:
    """Returns a `Mesh` with arrays as they are written. Raises MeshError for an invalid mesh."""
    points = _array(mesh.points if mesh.points is not None else numpy.empty((0, 3)), "points")
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise MeshError("points: the shape is %s; rows of 2 or 3 coordinates are needed" % (points.shape,))
    if points.dtype.kind not in "fiu":
        raise MeshError("points: the elements are %s; numbers are needed" % points.dtype)
    points = numpy.ascontiguousarray(points, dtype="<f8")
    done = Mesh(points=points, marker_names=_marker_names(mesh.marker_names))
    for kind, rows in mesh.cells.items():
        done.cells[kind] = _cells(kind, rows)
    counts = {kind: len(rows) for kind, rows in done.cells.items()}
    for name, rows in mesh.point_data.items():
        done.point_data[_name(name)] = _data(rows, "point data %r" % name, len(points), "points")
    for name, by_type in mesh.cell_data.items():
        if not isinstance(by_type, dict):
            raise MeshError("cell data %r: a dictionary from cell types to arrays is needed, not %s"
                            % (name, type(by_type).__name__))
        done.cell_data[_name(name)] = {
            kind: _data(rows, "cell data %r" % name, counts.get(kind), kind) for kind, rows in by_type.items()}
    for kind, rows in mesh.markers.items():
        rows = _data(rows, "markers", counts.get(kind), kind)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise MeshError("markers of %s: one whole number for each cell is needed, not %s of shape %s"
                            % (kind, rows.dtype, rows.shape))
        if rows.size and (rows.min() < -(2**31) or rows.max() >= 2**31):
            raise MeshError("markers of %s: numbers from -2^31 to 2^31-1 are needed" % kind)
        done.markers[kind] = numpy.ascontiguousarray(rows, dtype=MARKER)
    _ids(mesh, done)
    return done


def _array(value: Any, what: str) -> Array:
    try:
        return numpy.asarray(value)
    except ValueError as e:
        raise MeshError("%s: no array can be made of it: %s" % (what, e)) from None


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise MeshError("a name of data: %r; a text of 1 to %d bytes is needed" % (name, MAX_NAME_BYTES))
    return name


def _marker_names(names: dict[Any, Any]) -> dict[str, int]:
    for name, number in names.items():
        _name(name)
        if not isinstance(number, (int, numpy.integer)) or not -(2**31) <= number < 2**31:
            raise MeshError("marker %r: its number is %r; a whole number of 32 bits is needed" % (name, number))
    return {name: int(number) for name, number in names.items()}


def _cells(kind: str, rows: Any) -> Array:
    if kind not in CELL_TYPES:
        raise MeshError("cell type %r isn't known; known are %s" % (kind, ", ".join(CELL_TYPES)))
    nodes = _array(rows, "cells of type %s" % kind)
    if nodes.size == 0:
        return numpy.empty((0, CELL_TYPES[kind]), dtype=NODE)
    if nodes.ndim != 2 or nodes.shape[1] != CELL_TYPES[kind]:
        raise MeshError("cells of type %s: the shape is %s; rows of %d indices are needed"
                        % (kind, nodes.shape, CELL_TYPES[kind]))
    if nodes.dtype.kind not in "iu":
        raise MeshError("cells of type %s: the indices are %s; whole numbers are needed" % (kind, nodes.dtype))
    return nodes


def _data(rows: Any, what: str, count: int | None, of: str) -> Array:
    rows = _array(rows, what)
    if count is None:
        raise MeshError("%s: there are no cells of type %r" % (what, of))
    if rows.ndim == 0 or len(rows) != count:
        raise MeshError("%s: it has %s rows, and %s has %d" % (what, len(rows) if rows.ndim else "no",
                        "the array of points" if of == "points" else "the cell type %r" % of, count))
    if rows.ndim > 2:
        rows = rows.reshape(count, int(numpy.prod(rows.shape[1:])))
    if rows.dtype.kind not in "fiu" or rows.dtype.itemsize not in (1, 2, 4, 8) or rows.dtype == numpy.float16:
        raise MeshError("%s: the elements are %s; whole numbers of 8 to 64 bits, float32 and float64 can be written"
                        % (what, rows.dtype))
    return numpy.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))


def _ids(mesh: Mesh, done: Mesh) -> None:
    count = len(done.points)
    if mesh.owned is not None:
        if not 0 <= mesh.owned <= count:
            raise MeshError("owned: it is %r, and there are %d points" % (mesh.owned, count))
        done.owned = int(mesh.owned)
    if mesh.point_ids is None:
        if done.owned not in (None, count):
            raise MeshError("point_ids: needed, because %d of %d points are another rank's" % (count - done.owned, count))
        return
    ids = _array(mesh.point_ids, "point_ids")
    if ids.shape != (count,) or ids.dtype.kind not in "iu":
        raise MeshError("point_ids: %s of shape %s; a whole number for each of %d points is needed"
                        % (ids.dtype, ids.shape, count))
    done.point_ids = numpy.ascontiguousarray(ids, dtype=NODE)
