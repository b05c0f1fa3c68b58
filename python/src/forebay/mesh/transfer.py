"""Writing and reading of meshes: which rank transfers which rows, and how points are numbered.

Guarantees: ranks write exclusive ranges and hold no lock. The file gets its name when it is
complete, and never changes afterwards. A failure on one rank is an exception on all of them, and
leaves no file. Reading communicates only the file's description: each rank reads the rows of its
cells, its own points, and the other points of its cells (ghosts).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy

from . import backends, layout, xdmf
from .backends import Backend, OpenFile
from .layout import Contents, Dataset
from .model import CELL_TYPES, MARKER, NODE, Array, Mesh, MeshError, check
from .numbering import Numbers, numbered
from .ranks import Ranks

T = TypeVar("T")
Path = str | os.PathLike[str]
Summary = dict[str, Any]

# Rows of cells are renumbered and written in pieces: large enough for fast copies, small enough for
# a cache. Bytes.
PIECE = 1 << 21
# Rows of ghosts with gaps up to this size between them are one read. Bytes.
GAP = 1 << 14
# Maximum length of such a read. Bytes.
MAX_PIECE_BYTES = 1 << 24


def write(mesh: Any, path: Path, backend: Any = "iov", *, comm: Any = None,
          xdmf: bool = True) -> None:
    """Writes a mesh to a file, and an XDMF file beside it.

    `mesh` is a `Mesh`, or has `to_forebay()`. `backend` is "iov", "mpio", "posix", or an object of
    such a class. With `comm`, a communicator of mpi4py, all its ranks call this, each with its
    part; without it, one process writes the whole mesh.

    Raises, on all ranks, MeshError for an invalid mesh (it names the array), or OSError for a file
    that can't be written. Then there is no new file, and an existing one is unchanged.
    """
    ranks = Ranks(comm)
    back, part, summaries = _prepared(ranks, mesh, path, backend)
    numbers = numbered(ranks, part, summaries)
    contents, firsts = _merged(ranks, summaries, numbers)
    made, partial = _created(ranks, back, path, contents)
    try:
        ranks.all(lambda: _write_part(back, ranks, partial, contents, firsts, part, numbers))
        ranks.first(lambda: back.seal(made[0], partial, os.fspath(path)))
    except BaseException:
        for file in made:
            back.discard(file, partial)
        raise
    if xdmf:
        ranks.first(lambda: _put_xdmf(back, contents, path))


def read(mesh: Any, path: Path, backend: Any = "iov", *, comm: Any = None,
         split: Literal["stored", "even"] = "stored", copy: bool = True) -> Any:
    """Reads a file into a `Mesh`, or calls `mesh.from_forebay(Mesh)`. Returns `mesh`.

    With `comm` each rank gets a part. `split="stored"`: a part that a rank has written, or several
    of them if fewer ranks read. With `split="even"`, or if more ranks read than wrote, rows are
    distributed evenly.

    With `copy=False` and the back end iov, arrays whose rows are those of the file are the pool's
    own memory, read-only, if it is on this node: nothing is read until they are used.

    Raises, on all ranks, MeshError for a file that isn't a mesh or is damaged (it names the
    dataset), or OSError for a file that can't be read.
    """
    ranks = Ranks(comm)

    def prepared() -> Backend:
        if split not in ("stored", "even"):
            raise MeshError("split: %r isn't known; known are 'stored' and 'even'" % (split,))
        if not hasattr(mesh, "from_forebay"):
            raise MeshError("a forebay.mesh.Mesh, or an object with from_forebay(), is needed, not %s" % type(mesh).__name__)
        return backends.of(backend, comm)

    back, described = _same(ranks, prepared, path, lambda back: _described(back, path) if ranks.rank == 0 else None)
    contents = described[0]
    assert contents is not None, "the first rank's"
    found: list[Mesh] = []

    def part() -> None:
        found.append(_read_part(back, ranks, os.fspath(path), contents, split, copy))

    ranks.all(part)
    mesh.from_forebay(found[0])
    return mesh


def _same(
    ranks: Ranks, prepared: Callable[[], Backend], path: Path, more: Callable[[Backend], T],
) -> tuple[Backend, list[T]]:
    """Checks that all ranks name the same back end and path. Returns the back end, and each rank's `more`."""
    kept: list[Backend] = []

    def mine() -> tuple[str, str, T]:
        kept.append(prepared())
        return kept[0].name, os.fspath(path), more(kept[0])

    said = ranks.all(mine)
    for rank, other in enumerate(said):
        if other[:2] != said[0][:2]:
            raise MeshError("the ranks name different files: rank 0 %s by %s, rank %d %s by %s"
                            % (said[0][1], said[0][0], rank, other[1], other[0]))
    return kept[0], [one[2] for one in said]


# Writing


def _prepared(ranks: Ranks, mesh: Any, path: Path, backend: Any) -> tuple[Backend, Mesh, list[Summary]]:
    kept: list[Mesh] = []

    def prepared() -> Backend:
        if not hasattr(mesh, "to_forebay"):
            raise MeshError("a forebay.mesh.Mesh, or an object with to_forebay(), is needed, not %s; "
                            "for meshio's: forebay.mesh.from_meshio" % type(mesh).__name__)
        kept.append(check(mesh.to_forebay()))
        return backends.of(backend, ranks.comm)

    back, summaries = _same(ranks, prepared, path, lambda _: _summary(kept[0]))
    return back, kept[0], summaries


def _summary(part: Mesh) -> Summary:
    """Returns the shapes and types of a part's arrays, which the ranks compare."""
    return {
        "dims": part.points.shape[1], "points": len(part.points), "has_ids": part.point_ids is not None, "owned": part.owned,
        "cells": {k: len(r) for k, r in part.cells.items()},
        "markers": sorted(part.markers), "marker_names": part.marker_names,
        "point_data": {name: (rows.dtype.str, rows.shape[1:]) for name, rows in part.point_data.items()},
        "cell_data": {(name, kind): (rows.dtype.str, rows.shape[1:])
                      for name, by_type in part.cell_data.items() for kind, rows in by_type.items()},
    }


def _merged(ranks: Ranks, all_of: list[Summary], numbers: Numbers) -> tuple[Contents, dict[str, int]]:
    """Returns the whole file's contents and this rank's first rows. Errors are the same on all ranks."""
    for rank, one in enumerate(all_of):
        if one["dims"] != all_of[0]["dims"] and one["points"] and all_of[0]["points"]:
            raise MeshError("points: rank 0 has %d coordinates, rank %d has %d" % (all_of[0]["dims"], rank, one["dims"]))
    dims = next((one["dims"] for one in all_of if one["points"]), 3)
    parts = {"points": numbers.counts}
    total = sum(parts["points"])
    contents = layout.Contents(layout.Dataset("/points", "<f8", (total, dims)), parts=parts)
    for one in all_of:
        contents.marker_names.update(one["marker_names"])
    for rank, one in enumerate(all_of):
        for name, number in one["marker_names"].items():
            if contents.marker_names[name] != number:
                raise MeshError("marker %r: rank %d has number %d, another rank %d"
                                % (name, rank, number, contents.marker_names[name]))
    for name, (dtype, tail) in _agreed(all_of, "point_data", lambda one, _: one["points"], "point data").items():
        contents.point_data[name] = layout.Dataset("/point_data/" + layout.quoted(name), dtype, (total, *tail))
    present = {kind for one in all_of for kind in one["cells"]}
    for kind in [kind for kind in CELL_TYPES if kind in present]:
        counts = parts[kind] = [one["cells"].get(kind, 0) for one in all_of]
        contents.cells[kind] = layout.Dataset("/cells/%s/nodes" % kind, NODE.str, (sum(counts), CELL_TYPES[kind]))
        if any(kind in one["markers"] for one in all_of):
            # A rank without markers writes 0 (none).
            contents.markers[kind] = layout.Dataset("/cells/%s/marker" % kind, MARKER.str, (sum(counts),))
    agreed = _agreed(all_of, "cell_data", lambda one, of: one["cells"].get(of[1], 0), "cell data")
    for (name, kind), (dtype, tail) in agreed.items():
        path = "/cells/%s/data/%s" % (kind, layout.quoted(name))
        contents.cell_data.setdefault(name, {})[kind] = layout.Dataset(path, dtype, (sum(parts[kind]), *tail))
    return contents, {name: sum(rows[: ranks.rank]) for name, rows in parts.items()}


def _agreed(
    all_of: list[Summary], field: str, rows: Callable[[Summary, Any], int], what: str,
) -> dict[Any, tuple[str, tuple[int, ...]]]:
    """Returns type and shape of each array, and checks that all ranks which have rows for it agree."""
    agreed: dict[Any, tuple[int, tuple[str, tuple[int, ...]], int]] = {}
    for rank, one in enumerate(all_of):
        for of, form in one[field].items():
            if of not in agreed or (rows(one, of) and not agreed[of][2]):
                agreed[of] = (rank, form, rows(one, of))
    for of, (first, form, _) in agreed.items():
        name = "%s %s" % (what, " of ".join(map(repr, of)) if isinstance(of, tuple) else repr(of))
        for rank, one in enumerate(all_of):
            if rows(one, of) and of not in one[field]:
                raise MeshError("%s: rank %d has it, rank %d doesn't; each rank with rows has to" % (name, first, rank))
            if rows(one, of) and one[field][of] != form:
                raise MeshError("%s: rank %d has %s of shape %s, rank %d %s of shape %s"
                                % (name, first, *form, rank, *one[field][of]))
    return {of: form for of, (_, form, _) in agreed.items()}


def _created(ranks: Ranks, back: Backend, path: Path, contents: Contents) -> tuple[list[OpenFile], str]:
    """Creates the file under a temporary name. Returns it, open, on the first rank, [] elsewhere;
    and the name."""
    kept: list[OpenFile] = []

    def make() -> tuple[str, list[int | None]]:
        partial = "%s.partial-%s" % (os.fspath(path), secrets.token_hex(4))
        file = back.create(partial)
        try:
            layout.create(file, partial, contents)
        except BaseException:
            back.discard(file, partial)
            raise
        kept.append(file)
        return partial, [dataset.offset for dataset in contents.datasets()]

    partial, offsets = ranks.first(make)
    for dataset, offset in zip(contents.datasets(), offsets, strict=True):
        dataset.offset = offset
    return kept, partial


def _write_part(
    back: Backend, ranks: Ranks, partial: str, contents: Contents, firsts: dict[str, int], part: Mesh, numbers: Numbers,
) -> None:
    file = back.open(partial, True, ranks.comm)
    try:
        rows = _Rows(file)
        rows.write(contents.points, firsts["points"], numbers.own(part.points))
        for name, dataset in contents.point_data.items():
            if name in part.point_data:
                rows.write(dataset, firsts["points"], numbers.own(part.point_data[name]))
        for kind, dataset in contents.cells.items():
            nodes = part.cells.get(kind)
            if nodes is None or not len(nodes):
                continue
            rows.write_nodes(dataset, firsts[kind], nodes, kind, len(part.points), numbers)
            if kind in contents.markers:
                marker = part.markers.get(kind)
                rows.write(contents.markers[kind], firsts[kind],
                           numpy.zeros(len(nodes), MARKER) if marker is None else marker)
        for name, by_type in contents.cell_data.items():
            for kind, dataset in by_type.items():
                if name in part.cell_data and kind in part.cell_data[name]:
                    rows.write(dataset, firsts[kind], part.cell_data[name][kind])
    finally:
        file.close()


def _put_xdmf(back: Backend, contents: Contents, path: Path) -> None:
    back.put(xdmf.path_of(path), xdmf.text(contents, path).encode())


class _Rows:
    """Rows of datasets in an open file.

    With `copy=False` rows that are read are the pool's memory if the back end can map it.
    """

    def __init__(self, file: OpenFile, copy: bool = True) -> None:
        self._file = file
        self._map: Callable[[int, int], Any] | None = None if copy else getattr(file, "map", None)

    def write(self, dataset: Dataset, first: int, rows: Array) -> None:
        if len(rows):
            self._file.write(rows, dataset.position(first))

    def write_nodes(
        self, dataset: Dataset, first: int, nodes: Array, kind: str, points: int, numbers: Numbers,
    ) -> None:
        """Checks and renumbers indices in pieces, and writes them."""
        step = max(PIECE // dataset.row_bytes, 1)
        room = numpy.empty((min(step, len(nodes)), nodes.shape[1]), dtype=NODE)
        for at in range(0, len(nodes), step):
            piece = nodes[at : at + step]
            top = _top(piece)
            if top >= points:
                raise _out_of_range("cells of type %s" % kind, piece, at, points)
            self.write(dataset, first + at, numbers.of_file(piece, top, room[: len(piece)]))

    def read(self, dataset: Dataset, first: int, count: int) -> Array:
        rows = self._mapped(dataset, first, count)
        if rows is None:
            rows = numpy.empty((count, *dataset.shape[1:]), dtype=dataset.dtype)
            if rows.size and dataset.offset is None:
                with layout.opened(self._file, dataset.path) as h5:
                    rows = h5[dataset.path][first : first + count]
            elif rows.size:
                self._fill(rows, dataset, first)
        return rows.astype(rows.dtype.newbyteorder("="), copy=False)

    def _fill(self, rows: Array, dataset: Dataset, first: int) -> None:
        done = self._file.read(rows, dataset.position(first))
        if done != rows.nbytes:
            raise MeshError("%s: the file is cut: %d bytes of %d could be read" % (dataset.path, done, rows.nbytes))

    def _mapped(self, dataset: Dataset, first: int, count: int) -> Array | None:
        """Returns the rows as the pool's memory; None if that isn't possible."""
        if self._map is None or dataset.offset is None or not count * dataset.row_bytes:
            return None
        memory = self._map(dataset.position(first), count * dataset.row_bytes)
        if memory is None:
            self._map = None
            return None
        return numpy.frombuffer(memory, dtype=dataset.dtype).reshape(count, *dataset.shape[1:])

    def read_nodes(
        self, dataset: Dataset, start: int, count: int, first: int, owned: int, points: int,
    ) -> tuple[Array, list[int]]:
        """Reads indices and converts them to those of this rank's points, of which `owned` begin at
        number `first`.

        Returns the indices, and where pieces begin that contain other points: their indices are
        numbers in the file, less `first`.
        """
        step = max(PIECE // dataset.row_bytes, 1)
        came = None
        if dataset.offset is None or dataset.dtype != NODE.str or self._map is not None:
            came = self.read(dataset, start, count).astype(NODE, copy=False)
        if came is not None and first == 0 and owned == points:
            return came, [at for at in range(0, count, step) if _top(came[at : at + step]) >= owned]
        nodes, far = numpy.empty((count, dataset.shape[1]), dtype=NODE), []
        for at in range(0, count, step):
            piece = nodes[at : at + step]
            if came is not None:
                numpy.subtract(came[at : at + step], first, out=piece)
            else:
                self._fill(piece, dataset, start + at)
                if first:
                    piece -= first
            if _top(piece) >= owned:
                far.append(at)
        return nodes, far

    def read_some(self, dataset: Dataset, into: Array, which: Array) -> None:
        """Reads the rows `which`, which ascend. Rows with small gaps between them are one read."""
        near, longest = max(GAP // dataset.row_bytes, 1), max(MAX_PIECE_BYTES // dataset.row_bytes, 1)
        begin = 0
        ends = numpy.append(numpy.flatnonzero(numpy.diff(which) > near) + 1, len(which))
        for end in ends:
            while begin < end:
                last = min(int(end), begin + int(numpy.searchsorted(which[begin:end], which[begin] + longest)))
                low = int(which[begin])
                piece = self.read(dataset, low, int(which[last - 1]) + 1 - low)
                into[begin:last] = piece[which[begin:last] - low]
                begin = last


def _top(nodes: Array) -> int:
    """Returns the highest index; a huge number if an index is negative."""
    if nodes.dtype == NODE and nodes.flags.c_contiguous:
        return int(nodes.view(numpy.uint64).max())
    return int(nodes.max()) if nodes.min() >= 0 else 2**64


def _out_of_range(what: str, piece: Array, at: int, points: int) -> MeshError:
    row, _ = numpy.argwhere((piece < 0) | (piece >= points))[0]
    wrong = piece[row][(piece[row] < 0) | (piece[row] >= points)][0]
    return MeshError("%s: cell %d has point %d, and there are %d points (0 to %d)" % (what, at + row, wrong, points, points - 1))


# Reading


def _described(back: Backend, path: Path) -> Contents:
    file = back.open(os.fspath(path), False)
    try:
        return layout.describe(file, os.fspath(path))
    finally:
        file.close()


def _range(total: int, parts: list[int] | None, rank: int, size: int, split: str) -> tuple[int, int]:
    """Returns the rows of a rank: (first, end)."""
    if split == "stored" and parts and size <= len(parts):
        bounds = numpy.concatenate(([0], numpy.cumsum(parts, dtype=numpy.int64)))
        return int(bounds[rank * len(parts) // size]), int(bounds[(rank + 1) * len(parts) // size])
    return rank * total // size, (rank + 1) * total // size


def _read_part(back: Backend, ranks: Ranks, path: str, contents: Contents, split: str, copy: bool) -> Mesh:
    file = back.open(path, False, ranks.comm)
    try:
        return _rows_of_part(_Rows(file, copy), ranks, path, contents, split)
    finally:
        file.close()


def _rows_of_part(rows: _Rows, ranks: Ranks, path: str, contents: Contents, split: str) -> Mesh:
    def mine(name: str, dataset: Dataset) -> tuple[int, int]:
        first, end = _range(dataset.rows, contents.parts.get(name), ranks.rank, ranks.size, split)
        return first, end - first

    done = Mesh(marker_names=dict(contents.marker_names))
    points = contents.points
    first, owned = mine("points", points)
    outside: list[Array] = []
    for kind, dataset in contents.cells.items():
        start, count = mine(kind, dataset)
        nodes, far = rows.read_nodes(dataset, start, count, first, owned, points.rows)
        step = max(PIECE // dataset.row_bytes, 1) if len(nodes) else 1
        outside += [nodes[at : at + step] for at in far]
        done.cells[kind], done.first_cells[kind] = nodes, start
        if kind in contents.markers:
            done.markers[kind] = rows.read(contents.markers[kind], start, count)
    found = [numpy.unique(piece[_outside(piece, owned)]) + first for piece in outside]
    ghosts: Array = numpy.unique(numpy.concatenate(found)) if found else numpy.empty(0, NODE)
    if ghosts.size and (ghosts[0] < 0 or ghosts[-1] >= points.rows):
        raise MeshError("%s: a cell has point %d, and there are %d points"
                        % (path, ghosts[0] if ghosts[0] < 0 else ghosts[-1], points.rows))
    for piece in outside:
        where = _outside(piece, owned)
        piece[where] = owned + numpy.searchsorted(ghosts, piece[where] + first)

    def with_ghosts(dataset: Dataset) -> Array:
        if not ghosts.size:
            return rows.read(dataset, first, owned)
        all_of = numpy.empty((owned + len(ghosts), *dataset.shape[1:]), numpy.dtype(dataset.dtype).newbyteorder("="))
        all_of[:owned] = rows.read(dataset, first, owned)
        rows.read_some(dataset, all_of[owned:], ghosts)
        return all_of

    done.points = with_ghosts(points)
    done.point_data = {name: with_ghosts(dataset) for name, dataset in contents.point_data.items()}
    for name, by_type in contents.cell_data.items():
        done.cell_data[name] = {kind: rows.read(dataset, *mine(kind, dataset)) for kind, dataset in by_type.items()}
    if ranks.comm is not None:
        done.owned = owned
        done.point_ids = numpy.concatenate((numpy.arange(first, first + owned, dtype=NODE), ghosts))
    return done


def _outside(nodes: Array, owned: int) -> Array:
    """Returns where indices aren't those of owned points."""
    # Viewed as unsigned, negative numbers are large.
    return nodes.view(numpy.uint64) >= owned
