"""The file format: the HDF5 datasets of a mesh, where their bytes are, and what makes a file valid.

    /                      attribute forebay_mesh: the layout's version
    /points                float64 (points, 2 or 3)
    /cells/TYPE/nodes      int64 (cells, nodes): numbers of points, from 0
    /cells/TYPE/marker     int32 (cells), 0: none
    /cells/TYPE/data/NAME  (cells) or (cells, components)
    /point_data/NAME       (points) or (points, components)
    /markers               an attribute for each named marker: its number
    /partitions/points, /partitions/TYPE   int64: the rows of each rank that wrote the file

One rank makes the metadata with HDF5. HDF5 reserves contiguous room for all datasets and fills none
of it; then each rank writes its rows at their offset in the dataset. Data names are percent-encoded
where HDF5 or XDMF need it: `/`, `:`, `%`, and `.` at the beginning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy

from .backends import OpenFile
from .model import CELL_TYPES, MARKER, NODE, MeshError

T = TypeVar("T")

VERSION = 1
VERSION_NAME = "forebay_mesh"
# Datasets of at least this size begin at a multiple of `ALIGNED`. Bytes.
ALIGNED_FROM, ALIGNED = 1 << 16, 1 << 12
# HDF5 allocates metadata in blocks of this size. Bytes.
METADATA_BLOCK = 1 << 16


@dataclasses.dataclass
class Dataset:
    """A dataset's rows, from byte `offset` of the file; None: not contiguous, or empty."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int | None = None

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return numpy.dtype(self.dtype).itemsize * int(numpy.prod(self.shape[1:], dtype=numpy.int64))

    def position(self, row: int) -> int:
        """Returns where a row of a contiguous dataset begins in the file. Bytes."""
        assert self.offset is not None, self.path
        return self.offset + row * self.row_bytes


@dataclasses.dataclass
class Contents:
    """The datasets and markers of a mesh file."""

    points: Dataset
    cells: dict[str, Dataset] = dataclasses.field(default_factory=dict)  # by type
    markers: dict[str, Dataset] = dataclasses.field(default_factory=dict)  # by type
    point_data: dict[str, Dataset] = dataclasses.field(default_factory=dict)  # by name
    cell_data: dict[str, dict[str, Dataset]] = dataclasses.field(default_factory=dict)  # by name, then by type
    marker_names: dict[str, int] = dataclasses.field(default_factory=dict)
    parts: dict[str, list[int]] = dataclasses.field(default_factory=dict)  # "points" and types: rows of each writer

    def datasets(self) -> Iterator[Dataset]:
        yield self.points
        yield from self.cells.values()
        yield from self.markers.values()
        yield from self.point_data.values()
        for by_type in self.cell_data.values():
            yield from by_type.values()


def quoted(name: str) -> str:
    """Returns the name of an HDF5 link for a data name."""
    name = name.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")
    return "%2E" + name[1:] if name.startswith(".") else name


def unquoted(name: str) -> str:
    return urllib.parse.unquote(name)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as e:
        raise ImportError("meshes need h5py: pip install h5py (%s)" % e) from e
    return h5py


class _Seen(io.RawIOBase):
    """Adapts a back end's open file to HDF5's driver for Python objects. Keeps the first error."""

    def __init__(self, file: OpenFile) -> None:
        self._file, self._at = file, 0
        self.error: Exception | None = None

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as e:
            self.error = self.error or e
            raise

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self._try(self._file.size) if base is None else base)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        n = self._try(lambda: self._file.read(buffer, self._at))
        self._at += n
        return n

    def write(self, data: Any) -> int:
        self._try(lambda: self._file.write(data, self._at))
        self._at += len(data)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        end = self._at if size is None else size
        self._try(lambda: self._file.truncate(end))
        return end


@contextlib.contextmanager
def opened(file: OpenFile, path: str, mode: str = "r") -> Iterator[Any]:
    """Opens the `h5py.File` in an open file. Raises MeshError if HDF5 can't read the file."""
    h5py, seen = _h5py(), _Seen(file)
    options: dict[str, int] = {} if mode == "r" else {
        "alignment_threshold": ALIGNED_FROM, "alignment_interval": ALIGNED, "meta_block_size": METADATA_BLOCK}
    try:
        with h5py.File(seen, mode, driver="fileobj", **options) as h5:
            yield h5
    except MeshError:
        raise
    except Exception as e:
        if seen.error is not None:
            raise seen.error from e
        if mode == "r" and isinstance(e, (OSError, KeyError, RuntimeError)):
            raise MeshError("%s: HDF5 can't read it, it is damaged, cut, or another kind of file: %s" % (path, e)) from e
        raise


def create(file: OpenFile, path: str, contents: Contents) -> None:
    """Writes the metadata of a new file and fills in the offsets of all datasets."""
    h5py = _h5py()
    with opened(file, path, "w") as h5:
        h5.attrs[VERSION_NAME] = numpy.int32(VERSION)
        links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        links.set_char_encoding(h5py.h5t.CSET_UTF8)
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_layout(h5py.h5d.CONTIGUOUS)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        # So that equal meshes give equal bytes.
        early.set_obj_track_times(False)
        for name in ("cells", "point_data", "partitions"):
            h5.create_group(name)
        named = h5.create_group("markers").attrs
        for name, number in contents.marker_names.items():
            named[name] = numpy.int32(number)
        for kind, rows in contents.parts.items():
            h5["partitions"][kind] = numpy.asarray(rows, dtype=NODE)
        for dataset in contents.datasets():
            kind = h5py.h5t.py_create(numpy.dtype(dataset.dtype))
            made = h5py.h5d.create(h5.id, dataset.path.encode(), kind, h5py.h5s.create_simple(dataset.shape),
                                   dcpl=early, lcpl=links)
            dataset.offset = made.get_offset()


def describe(file: OpenFile, path: str) -> Contents:
    """Returns the `Contents` of a file. Raises MeshError that names what is missing or wrong."""
    with opened(file, path) as h5:
        version = h5.attrs.get(VERSION_NAME)
        if version is None:
            raise MeshError("%s: an HDF5 file, but no mesh: the attribute %r of / is missing" % (path, VERSION_NAME))
        if int(version) != VERSION:
            raise MeshError("%s: the layout has version %s, and this Forebay reads %d" % (path, version, VERSION))
        reader = _Description(h5, path, file.size())
        contents = reader.contents()
    return contents


class _Description:
    def __init__(self, h5: Any, path: str, size: int) -> None:
        self._h5, self._path, self._size = h5, path, size
        self._h5py = _h5py()

    def contents(self) -> Contents:
        points = self._dataset("/points", "f", 2)
        if points.shape[1] not in (2, 3):
            raise self._wrong("/points", "its rows have %d coordinates, not 2 or 3" % points.shape[1])
        done = Contents(points=points)
        for kind in self._group("/cells", needed=True):
            if kind not in CELL_TYPES:
                raise self._wrong("/cells/" + kind, "the cell type isn't known; known are %s" % ", ".join(CELL_TYPES))
            top = "/cells/" + kind
            nodes = self._dataset(top + "/nodes", "iu", 2)
            if nodes.shape[1] != CELL_TYPES[kind]:
                raise self._wrong(nodes.path, "its rows have %d indices, not %d" % (nodes.shape[1], CELL_TYPES[kind]))
            done.cells[kind] = nodes
            if top + "/marker" in self._h5:
                done.markers[kind] = self._dataset(top + "/marker", "iu", 1, rows=nodes.rows)
            for name in self._group(top + "/data"):
                by_type = done.cell_data.setdefault(unquoted(name), {})
                by_type[kind] = self._dataset("%s/data/%s" % (top, name), "fiu", rows=nodes.rows)
        for name in self._group("/point_data"):
            done.point_data[unquoted(name)] = self._dataset("/point_data/" + name, "fiu", rows=points.rows)
        if "markers" in self._h5:
            done.marker_names = {name: int(number) for name, number in self._h5["markers"].attrs.items()}
        done.parts = self._parts(done)
        return done

    def _wrong(self, name: str, why: str) -> MeshError:
        return MeshError("%s: %s: %s" % (self._path, name, why))

    def _group(self, name: str, needed: bool = False) -> list[str]:
        if name not in self._h5:
            if needed:
                raise self._wrong(name, "the group is missing")
            return []
        if not isinstance(self._h5[name], self._h5py.Group):
            raise self._wrong(name, "a group is needed")
        return list(self._h5[name])

    def _dataset(self, name: str, kinds: str, dims: int | None = None, rows: int | None = None) -> Dataset:
        if name not in self._h5:
            raise self._wrong(name, "the dataset is missing")
        found = self._h5[name]
        if not isinstance(found, self._h5py.Dataset):
            raise self._wrong(name, "a dataset is needed")
        if found.dtype.kind not in kinds or found.ndim not in ((1, 2) if dims is None else (dims,)):
            raise self._wrong(name, "%s of shape %s is no array of this layout" % (found.dtype, found.shape))
        if rows is not None and found.shape[0] != rows:
            raise self._wrong(name, "it has %d rows, and %d are needed" % (found.shape[0], rows))
        done = Dataset(name, found.dtype.str, tuple(int(n) for n in found.shape), found.id.get_offset())
        end = (done.offset or 0) + done.rows * done.row_bytes
        if done.offset is not None and end > self._size:
            raise self._wrong(name, "the file is cut: the rows end at byte %d, and it has %d bytes" % (end, self._size))
        return done

    def _parts(self, done: Contents) -> dict[str, list[int]]:
        """Reads the partition tables; {} if one is missing or doesn't fit: rows are then
        distributed evenly."""
        wanted = {"points": done.points.rows, **{kind: nodes.rows for kind, nodes in done.cells.items()}}
        parts: dict[str, list[int]] = {}
        for name, rows in wanted.items():
            name_of = "/partitions/" + name
            if name_of not in self._h5:
                return {}
            parts[name] = [int(n) for n in self._h5[name_of][()].ravel()]
            if sum(parts[name]) != rows or min(parts[name], default=0) < 0:
                return {}
        return parts if len({len(p) for p in parts.values()}) == 1 else {}
