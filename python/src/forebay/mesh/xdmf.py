"""The XDMF file beside a mesh: XML that tells ParaView, VisIt and others where the arrays are.

One cell type is one grid; several are a spatial collection of one grid each, over the same points.
"""

from __future__ import annotations

import os
import posixpath
from xml.sax.saxutils import quoteattr

import numpy

from .layout import Contents, Dataset
from .model import CELL_TYPES

# XDMF's names of the cell types.
TOPOLOGIES = {
    "vertex": "Polyvertex", "line": "Polyline", "line3": "Edge_3",
    "triangle": "Triangle", "triangle6": "Triangle_6",
    "quad": "Quadrilateral", "quad8": "Quadrilateral_8", "quad9": "Quadrilateral_9",
    "tetra": "Tetrahedron", "tetra10": "Tetrahedron_10", "pyramid": "Pyramid", "pyramid13": "Pyramid_13",
    "wedge": "Wedge", "wedge15": "Wedge_15", "wedge18": "Wedge_18",
    "hexahedron": "Hexahedron", "hexahedron20": "Hexahedron_20", "hexahedron24": "Hexahedron_24",
    "hexahedron27": "Hexahedron_27",
}  # fmt: skip
_KINDS = {"f": "Float", "i": "Int", "u": "UInt"}


def path_of(path: str | os.PathLike[str]) -> str:
    """Returns the path of the XDMF file of a mesh file: `a.xdmf` for `a.h5`."""
    base, end = posixpath.splitext(os.fspath(path))
    return (base if end in (".h5", ".hdf5") else os.fspath(path)) + ".xdmf"


def text(contents: Contents, path: str | os.PathLike[str]) -> str:
    """Returns the text of the XDMF file. `path` is the mesh file's; the text has only its last component."""
    name = posixpath.basename(os.fspath(path))
    grids = [_grid(contents, kind, name) for kind, nodes in contents.cells.items() if nodes.rows]
    if len(grids) == 1:
        inner = grids[0]
    else:
        inner = '<Grid Name="mesh" GridType="Collection" CollectionType="Spatial">\n%s</Grid>\n' % "".join(grids)
    return '<?xml version="1.0"?>\n<Xdmf Version="3.0">\n<Domain>\n%s</Domain>\n</Xdmf>\n' % inner


def _grid(contents: Contents, kind: str, name: str) -> str:
    nodes, points = contents.cells[kind], contents.points
    each = ' NodesPerElement="%d"' % CELL_TYPES[kind] if kind in ("vertex", "line") else ""
    parts = [
        '<Geometry GeometryType="%s">%s</Geometry>\n' % ("XYZ" if points.shape[1] == 3 else "XY", _item(points, name)),
        '<Topology TopologyType="%s" NumberOfElements="%d"%s>%s</Topology>\n'
        % (TOPOLOGIES[kind], nodes.rows, each, _item(nodes, name)),
    ]
    for data, dataset in contents.point_data.items():
        parts.append(_attribute(data, "Node", dataset, name))
    for data, by_type in contents.cell_data.items():
        if kind in by_type:
            parts.append(_attribute(data, "Cell", by_type[kind], name))
    if kind in contents.markers and "marker" not in contents.cell_data:
        parts.append(_attribute("marker", "Cell", contents.markers[kind], name))
    return '<Grid Name="%s" GridType="Uniform">\n%s</Grid>\n' % (kind, "".join(parts))


def _attribute(data: str, center: str, dataset: Dataset, name: str) -> str:
    shape = dataset.shape[1:]
    # VTK would make nine components of a `Tensor6`, and one row of all rows of a `Matrix`.
    kind = "Scalar" if not shape or shape[0] == 1 else "Vector"
    return '<Attribute Name=%s AttributeType="%s" Center="%s">%s</Attribute>\n' % (
        quoteattr(data), kind, center, _item(dataset, name))


def _item(dataset: Dataset, name: str) -> str:
    dtype = numpy.dtype(dataset.dtype)
    path = dataset.path.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return '<DataItem DataType="%s" Precision="%d" Dimensions="%s" Format="HDF">%s:%s</DataItem>' % (
        _KINDS[dtype.kind], dtype.itemsize, " ".join(map(str, dataset.shape)), name, path)
