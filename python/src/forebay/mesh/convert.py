"""Converts meshes from and to meshio's, and so from and to its formats: Gmsh, VTK, CGNS, SU2,
Abaqus, Exodus, ...

Markers are called physical groups, tags or references in these formats. Several blocks of cells of
one type become one block. If a type of cells lacks data, meshio's mesh has NaN there, or 0 for
integers.
"""

from typing import Any

import numpy

from .model import Array, Mesh, MeshError

# Names of cell data by which formats mark boundaries; the first that exists is used.
MARKERS = ("gmsh:physical", "su2:tag", "medit:ref", "mesh:marker", "cell_tags")


def _meshio() -> Any:
    try:
        import meshio
    except ImportError as e:
        raise ImportError("meshio is needed for this: pip install meshio (%s)" % e) from e
    return meshio


def from_meshio(other: Any) -> Mesh:
    """Returns a `Mesh` made from a `meshio.Mesh`, or from a file that meshio reads."""
    if not hasattr(other, "cells_dict"):
        other = _meshio().read(other)
    done = Mesh(points=numpy.asarray(other.points, dtype=float), point_data=dict(other.point_data))
    blocks: dict[str, list[int]] = {}
    for i, block in enumerate(other.cells):
        blocks.setdefault(block.type, []).append(i)
    done.cells = {kind: _joined([other.cells[i].data for i in of]) for kind, of in blocks.items()}
    marked = next((name for name in MARKERS if name in other.cell_data), None)
    for name, rows in other.cell_data.items():
        by_type = {kind: _joined([rows[i] for i in of]) for kind, of in blocks.items()}
        if name == marked:
            done.markers = by_type
        else:
            done.cell_data[name] = by_type
    dims = {}
    for name, value in other.field_data.items():
        value = numpy.asarray(value).ravel()
        if value.size == 2 and value.dtype.kind in "iu":
            done.marker_names[name], dims[name] = int(value[0]), int(value[1])
    _sets(other, blocks, done)
    return done


def _joined(parts: list[Any]) -> Array:
    arrays = [numpy.asarray(part) for part in parts]
    return arrays[0] if len(arrays) == 1 else numpy.concatenate(arrays)


def _sets(other: Any, blocks: dict[str, list[int]], done: Mesh) -> None:
    """Converts named sets: to markers if there are no others and no sets overlap, else to data of 0 and 1."""
    sets = {name: parts for name, parts in (other.cell_sets or {}).items() if not name.startswith("gmsh:")}
    number = max(done.marker_names.values(), default=0)
    markers = not done.markers
    for name, parts in sets.items():
        if name in done.marker_names:
            continue
        inside = {}
        for kind, of in blocks.items():
            pieces = []
            for i in of:
                piece = numpy.zeros(len(other.cells[i].data), dtype=bool)
                if i < len(parts) and parts[i] is not None:
                    piece[numpy.asarray(parts[i], dtype=numpy.int64)] = True
                pieces.append(piece)
            inside[kind] = _joined(pieces)
        free = markers and all(not done.markers[kind][where].any() for kind, where in inside.items() if kind in done.markers)
        if not free:
            done.cell_data["set:" + name] = {kind: where.astype(numpy.uint8) for kind, where in inside.items()}
            continue
        number += 1
        done.marker_names[name] = number
        for kind, where in inside.items():
            if where.any():
                rows = done.markers.setdefault(kind, numpy.zeros(len(where), dtype=numpy.int32))
                rows[where] = number


# Returns the dimension of a cell type, which meshio needs with a marker's number.
def _dimension(kind: str) -> int:
    if kind == "vertex":
        return 0
    if kind.startswith("line"):
        return 1
    return 2 if kind.startswith(("triangle", "quad")) else 3


def to_meshio(mesh: Any) -> Any:
    """Returns a `meshio.Mesh` of a mesh, or of a rank's part with its ghosts."""
    meshio = _meshio()
    mesh = mesh.to_forebay()
    if mesh.points is None:
        raise MeshError("points: there are none")
    cells = [(kind, rows) for kind, rows in mesh.cells.items() if len(rows)]
    cell_data = {}
    for name, by_type in mesh.cell_data.items():
        if by_type:
            cell_data[name] = [_or_nothing(by_type, kind, len(rows)) for kind, rows in cells]
    if mesh.markers:
        cell_data["gmsh:physical"] = [_or_nothing(mesh.markers, kind, len(rows)) for kind, rows in cells]
    field_data = {}
    for name, number in mesh.marker_names.items():
        kinds = [kind for kind, rows in mesh.markers.items() if (numpy.asarray(rows) == number).any()]
        field_data[name] = numpy.array([number, max(map(_dimension, kinds), default=2)])
    return meshio.Mesh(mesh.points, cells, point_data=dict(mesh.point_data), cell_data=cell_data, field_data=field_data)


def _or_nothing(by_type: dict[str, Array], kind: str, count: int) -> Array:
    if kind in by_type:
        return by_type[kind]
    like = next(iter(by_type.values()))
    nothing = numpy.nan if like.dtype.kind == "f" else 0
    return numpy.full((count, *like.shape[1:]), nothing, dtype=like.dtype)
