"""Meshes: every back end, other formats, errors; several ranks as threads, without MPI."""

import errno
import os
import subprocess
import sys
import threading

import numpy
import pytest

import forebay

h5py = pytest.importorskip("h5py")

from forebay import mesh as fm  # noqa: E402 (behind the check for h5py)


class Threads:
    """Ranks of a job as threads, with the methods of mpi4py's communicators that meshes use."""

    def __init__(self, rank, shared):
        self._rank, self._shared = rank, shared

    def Get_rank(self):
        return self._rank

    def Get_size(self):
        return self._shared["size"]

    def allgather(self, mine):
        shared = self._shared
        shared["slots"][self._rank] = mine
        shared["barrier"].wait(30)
        got = list(shared["slots"])
        shared["barrier"].wait(30)
        return got

    def alltoall(self, parts):
        return [sent[self._rank] for sent in self.allgather(parts)]

    def bcast(self, what, root=0):
        return self.allgather(what)[root]


def ranks(size, call):
    """Runs `call(comm)` as each of `size` ranks. Returns results or exceptions."""
    shared = {"size": size, "slots": [None] * size, "barrier": threading.Barrier(size)}
    results = [None] * size

    def run(rank):
        try:
            results[rank] = call(Threads(rank, shared))
        except Exception as e:
            results[rank] = e

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results


def fine(results):
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def box(n, mixed=True):
    """Makes n^3 cells: hexahedra, the first layer cut into two wedges each, and a boundary of quads."""
    at = numpy.arange((n + 1) ** 3).reshape(n + 1, n + 1, n + 1)
    axis = numpy.linspace(0, 1, n + 1)
    points = numpy.stack([a.ravel() for a in numpy.meshgrid(axis, axis, axis, indexing="ij")], axis=1)
    a, b, c, d, e, f, g, h = (at[i : n + i, j : n + j, k : n + k] for i, j, k in (
        (0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)))
    hexes = numpy.stack([x.ravel() for x in (a, b, c, d, e, f, g, h)], axis=1)
    low = numpy.stack([x[:, :, 0].ravel() for x in (a, b, c, d)], axis=1)
    rng = numpy.random.default_rng(n)
    mesh = fm.Mesh(points=points, cells={"hexahedron": hexes})
    if mixed:
        cut = hexes[: n * n]
        mesh.cells = {
            "wedge": numpy.concatenate([cut[:, [0, 1, 2, 4, 5, 6]], cut[:, [0, 2, 3, 4, 6, 7]]]),
            "hexahedron": hexes[n * n :],
            "quad": low,
        }
        mesh.markers = {"quad": numpy.where(numpy.arange(len(low)) % 2, 7, 3)}
        mesh.marker_names = {"wall": 3, "inlet": 7}
    mesh.point_data = {"T": rng.random(len(points)), "u/v:w": rng.random((len(points), 3)).astype("f4")}
    mesh.cell_data = {"q": {k: rng.random((len(r), 6)) for k, r in mesh.cells.items() if k != "quad"},
                      "id": {k: numpy.arange(len(r), dtype="u2") for k, r in mesh.cells.items()}}
    return mesh


def same(a, b):
    """Asserts that all arrays are exactly equal."""
    assert (numpy.asarray(a.points) == b.points).all()
    assert sorted(a.cells) == sorted(b.cells)
    for kind, rows in a.cells.items():
        assert (rows == b.cells[kind]).all()
    assert sorted(a.point_data) == sorted(b.point_data)
    for name, rows in a.point_data.items():
        assert b.point_data[name].dtype == rows.dtype.newbyteorder("=") and (rows == b.point_data[name]).all()
    assert sorted(a.cell_data) == sorted(b.cell_data)
    for name, by_type in a.cell_data.items():
        assert sorted(by_type) == sorted(b.cell_data[name])
        for kind, rows in by_type.items():
            got = b.cell_data[name][kind]
            assert got.dtype == rows.dtype.newbyteorder("=") and (rows == got).all()
    assert sorted(a.markers) == sorted(b.markers)
    for kind, rows in a.markers.items():
        assert (rows == b.markers[kind]).all()
    assert a.marker_names == b.marker_names


def cut(mesh, size, rank, own=True):
    """Returns a rank's part: each type's rows are distributed evenly, points go to the lowest rank
    that has them."""
    part = fm.Mesh(marker_names=mesh.marker_names)
    spans = {k: (rank * len(r) // size, (rank + 1) * len(r) // size) for k, r in mesh.cells.items()}
    rows = {k: numpy.asarray(r)[spans[k][0] : spans[k][1]] for k, r in mesh.cells.items()}
    ids = numpy.unique(numpy.concatenate([r.ravel() for r in rows.values()])) if rows else numpy.empty(0, int)
    numpy.random.default_rng(rank).shuffle(ids)
    local = numpy.full(len(mesh.points), -1)
    local[ids] = numpy.arange(len(ids))
    part.points, part.point_ids = mesh.points[ids], ids * 10 + 5
    part.cells = {k: local[r] for k, r in rows.items()}
    part.point_data = {n: r[ids] for n, r in mesh.point_data.items()}
    part.cell_data = {n: {k: r[spans[k][0] : spans[k][1]] for k, r in by.items()} for n, by in mesh.cell_data.items()}
    part.markers = {k: r[spans[k][0] : spans[k][1]] for k, r in mesh.markers.items()}
    return part


def shape(mesh):
    """Returns what doesn't depend on the order of points: coordinates and data of cells' corners,
    and cell data."""
    told = {}
    for kind, rows in mesh.cells.items():
        told[kind] = [mesh.points[rows], *(mesh.point_data[n][rows] for n in sorted(mesh.point_data)),
                      *(by[kind] for n, by in sorted(mesh.cell_data.items()) if kind in by)]
        if kind in mesh.markers:
            told[kind].append(mesh.markers[kind])
    return told


def same_shape(whole, parts):
    """Asserts that the parts, one after the other, are the whole."""
    wanted, got = shape(whole), [shape(part) for part in parts]
    for kind, arrays in wanted.items():
        for i, array in enumerate(arrays):
            assert (numpy.concatenate([one[kind][i] for one in got]) == array).all(), (kind, i)


@pytest.fixture(params=["iov", "posix"])
def place(request, pool, tmp_path):
    """A back end, and a function that returns a path for it."""
    if request.param == "iov":
        return fm.Iov(pool), lambda name: "/" + name
    return fm.Posix(), lambda name: str(tmp_path / name)


@pytest.mark.parametrize("mixed", [False, True])
def test_round_trip(place, mixed):
    back, at = place
    mesh = box(6, mixed)
    fm.write(mesh, at("a.h5"), back)
    same(mesh, got := fm.read(fm.Mesh(), at("a.h5"), back))
    assert got.point_ids is None and got.owned is None
    same(mesh, seen := fm.read(fm.Mesh(), at("a.h5"), back, copy=False))
    mapped = back.name == "iov"
    assert seen.points.flags.writeable != mapped and seen.cells["hexahedron"].flags.writeable != mapped
    # Writes over an existing file, from a mesh that was read.
    got.point_data["T"] += 1
    fm.write(got, at("a.h5"), back)
    same(got, fm.read(fm.Mesh(), at("a.h5"), back))


def test_mpi_io(tmp_path):
    """Runs in a separate process, as a process initialises MPI once. Several ranks: tests/mpi-io."""
    pytest.importorskip("mpi4py")
    fm.write(box(4), tmp_path / "a.h5", "posix")
    done = subprocess.run([sys.executable, "-c", """if 1:
        import sys
        from forebay import mesh
        try:
            back = mesh.Mpio()
        except ImportError as e:
            sys.exit("skip: %s" % e)
        read = mesh.read(mesh.Mesh(), sys.argv[1] + "/a.h5", back)
        mesh.write(read, sys.argv[1] + "/b.h5", "mpio")
        mesh.read(read, sys.argv[1] + "/b.h5", "mpio")
        try:
            mesh.read(read, sys.argv[1] + "/absent.h5", "mpio")
        except FileNotFoundError:
            pass
        else:
            sys.exit("it was read")
    """, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    if done.stdout.startswith("skip: "):
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout
    same(box(4), fm.read(fm.Mesh(), tmp_path / "b.h5", "posix"))


def test_names_of_back_ends_and_paths(pool, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_POOL", "tests")
    mesh = box(3)
    fm.write(mesh, "/a.h5")
    same(mesh, fm.read(fm.Mesh(), "forebay://tests/a.h5", "iov"))
    same(mesh, fm.read(fm.Mesh(), pool.mount + "/a.h5", backend="iov"))
    assert sorted(pool.listdir("/")) == ["a.h5", "a.xdmf"]
    assert pool.declared("/a.h5") == "mutability=immutable"
    with pytest.raises(PermissionError):
        pool.open("/a.h5", "r+b")
    with pytest.raises(fm.MeshError, match="'tape' isn't known"):
        fm.write(mesh, "/a.h5", "tape")
    fm.write(mesh, tmp_path / "b", "posix", xdmf=False)
    assert os.listdir(tmp_path) == ["b"]
    # All back ends write the same bytes.
    pool.stage_out("/a.h5", tmp_path / "out.h5")
    assert (tmp_path / "out.h5").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_class_of_its_own(pool):
    class Solver:
        def to_forebay(self):
            return box(2)

        def from_forebay(self, read):
            self.read = read

    solver = fm.read(Solver(), "/a.h5", fm.Iov(pool)) if fm.write(Solver(), "/a.h5", fm.Iov(pool)) is None else None
    same(box(2), solver.read)


@pytest.mark.parametrize("writers,readers", [(1, 3), (3, 1), (3, 3), (4, 2), (2, 5)])
def test_parts(pool, tmp_path, writers, readers):
    mesh = box(5)
    for back, path in ((fm.Iov(pool), "/a.h5"), (fm.Posix(), str(tmp_path / "a.h5"))):
        fine(ranks(writers, lambda comm: fm.write(cut(mesh, writers, comm.Get_rank()), path, back, comm=comm)))  # noqa: B023
        for split in ("stored", "even"):
            parts = fine(ranks(readers, lambda c: fm.read(fm.Mesh(), path, back, comm=c, split=split)))  # noqa: B023
            same_shape(mesh, parts)
            assert sum(part.owned for part in parts) == len(mesh.points)
            seen = fine(ranks(readers, lambda c: fm.read(fm.Mesh(), path, back, comm=c, split=split, copy=False)))  # noqa: B023
            for one, other in zip(parts, seen, strict=True):
                same(one, other)
            # Writing the parts again as they were read gives the same file, without renumbering.
            again = path.replace("a.h5", "again.h5")
            fine(ranks(readers, lambda c: fm.write(parts[c.Get_rank()], again, back, comm=c)))  # noqa: B023
            same(fm.read(fm.Mesh(), path, back), fm.read(fm.Mesh(), again, back))


def test_a_rank_with_nothing_and_parts_without_ids(pool):
    mesh, back = box(4), fm.Iov(pool)
    fine(ranks(3, lambda c: fm.write(mesh if c.Get_rank() == 1 else fm.Mesh(), "/a.h5", back, comm=c)))
    same(mesh, fm.read(fm.Mesh(), "/a.h5", back))
    parts = fine(ranks(3, lambda c: fm.read(fm.Mesh(), "/a.h5", back, comm=c)))
    assert [len(p.points) for p in parts] == [0, len(mesh.points), 0]
    fine(ranks(2, lambda c: fm.write(box(2), "/a.h5", back, comm=c)))
    assert len(fm.read(fm.Mesh(), "/a.h5", back).points) == 54
    fm.write(fm.Mesh(), "/empty.h5", back)
    assert fm.read(fm.Mesh(), "/empty.h5", back).points.shape == (0, 3)


WRONG = [
    ("it has 7 rows, and the array of points has 64", lambda m: m.point_data.update(T=numpy.zeros(7))),
    ("there are no cells of type 'tetra'", lambda m: m.cell_data["q"].update(tetra=numpy.zeros(1))),
    ("'blob' isn't known", lambda m: m.cells.update(blob=numpy.zeros((1, 4), int))),
    ("rows of 8 indices are needed", lambda m: m.cells.update(hexahedron=numpy.zeros((1, 4), int))),
    ("whole numbers are needed", lambda m: m.cells.update(quad=numpy.zeros((9, 4)))),
    ("cell 4 has point 64, and there are 64 points", lambda m: m.cells["quad"].__setitem__((4, 1), 64)),
    ("cell 0 has point -1", lambda m: m.cells["quad"].__setitem__((0, 0), -1)),
    ("rows of 2 or 3 coordinates", lambda m: setattr(m, "points", numpy.zeros((64, 4)))),
    ("complex128", lambda m: m.point_data.update(T=numpy.zeros(64, complex))),
    ("no array can be made", lambda m: m.point_data.update(T=[[1], [1, 2]])),
    ("for each of 64 points is needed", lambda m: setattr(m, "point_ids", numpy.zeros(3, int))),
    ("owned: it is 65", lambda m: setattr(m, "owned", 65)),
    ("a text of 1 to 255 bytes", lambda m: m.point_data.update({"": numpy.zeros(64)})),
    ("marker 'wall'", lambda m: m.marker_names.update(wall="red")),
    ("one whole number for each cell", lambda m: m.markers.update(quad=numpy.zeros(9))),
]


@pytest.mark.parametrize("why,spoil", WRONG, ids=[w for w, _ in WRONG])
def test_wrong_meshes(pool, why, spoil):
    """An invalid mesh is an exception on all ranks that names the array. An existing file is unchanged."""
    back = fm.Iov(pool)
    fm.write(box(2), "/a.h5", back)
    wrong = box(3)
    spoil(wrong)
    with pytest.raises(fm.MeshError, match=why):
        fm.write(wrong, "/a.h5", back)
    results = ranks(3, lambda c: fm.write(wrong if c.Get_rank() == 2 else box(3), "/a.h5", back, comm=c))
    assert all(isinstance(r, fm.MeshError) and why in str(r) for r in results), results
    assert str(results[0]).startswith("rank 2: ")
    assert sorted(pool.listdir("/")) == ["a.h5", "a.xdmf"]
    same(box(2), fm.read(fm.Mesh(), "/a.h5", back))


def test_ranks_that_disagree(pool):
    back = fm.Iov(pool)

    def fails(why, change, size=2):
        parts = [cut(box(3), size, rank) for rank in range(size)]
        change(parts)
        results = ranks(size, lambda c: fm.write(parts[c.Get_rank()], "/a.h5", back, comm=c))
        assert all(isinstance(r, fm.MeshError) and why in str(r) for r in results), results

    fails("rank 0 has it, rank 1 doesn't", lambda p: p[1].point_data.pop("T"))
    fails("rank 0 has <f8", lambda p: p[1].point_data.update(T=p[1].point_data["T"].astype("f4")))
    fails("'q' of 'wedge': rank 1 has it, rank 0 doesn't", lambda p: p[0].cell_data["q"].pop("wedge"))
    fails("marker 'wall'", lambda p: setattr(p[1], "marker_names", {"wall": 4}))
    fails("rank 0 has 3 coordinates, rank 1 has 2", lambda p: setattr(p[1], "points", p[1].points[:, :2]))
    fails("point_ids: rank 1 has none", lambda p: setattr(p[1], "point_ids", None))
    fails("is there 2 times", lambda p: p[1].point_ids.__setitem__(1, p[1].point_ids[0]))
    fails("ranks 0 and 1 both own", lambda p: [setattr(one, "owned", len(one.points)) for one in p])
    fails("no rank owns point", lambda p: [setattr(one, "owned", 3) for one in p])
    results = ranks(2, lambda c: fm.write(fm.Mesh(), "/%d.h5" % c.Get_rank(), back, comm=c))
    assert all("different files" in str(r) for r in results)
    assert pool.listdir("/") == []


def test_wrong_files(pool, tmp_path):
    back = fm.Iov(pool)
    fm.write(box(3), "/a.h5", back)
    whole = pool.read("/a.h5")

    def fails(why, data, error=fm.MeshError):
        pool.write("/b.h5", data)
        with pytest.raises(error, match=why):
            fm.read(fm.Mesh(), "/b.h5", back)
        results = ranks(2, lambda c: fm.read(fm.Mesh(), "/b.h5", back, comm=c))
        assert all(isinstance(r, error) for r in results), results

    fails("HDF5 can't read it", b"")
    fails("HDF5 can't read it", b"garbage" * 1000)
    fails("HDF5 can't read it", whole[:2000])
    fails("HDF5 can't read it|the file is cut", whole[:-5000])

    def changed(why, change):
        (tmp_path / "c.h5").write_bytes(whole)
        with h5py.File(tmp_path / "c.h5", "r+") as f:
            change(f)
        fails(why, (tmp_path / "c.h5").read_bytes())

    changed("/points: the dataset is missing", lambda f: f.pop("points"))
    changed("/cells: the group is missing", lambda f: f.pop("cells"))
    changed("/cells/wedge/nodes: the dataset is missing", lambda f: f.pop("cells/wedge/nodes"))
    changed("the attribute 'forebay_mesh' of / is missing", lambda f: f.attrs.pop("forebay_mesh"))
    changed("the layout has version 2", lambda f: f.attrs.__setitem__("forebay_mesh", 2))
    changed("'blob|cells/blob", lambda f: f.move("cells/wedge", "cells/blob"))
    changed("/point_data/T: it has 5 rows", lambda f: (f.pop("point_data/T"), f.__setitem__("point_data/T", numpy.ones(5))))
    changed("a cell has point 64, and there are 64", lambda f: f["cells/quad/nodes"].__setitem__((0, 0), 64))
    changed("a cell has point -3", lambda f: f["cells/quad/nodes"].__setitem__((0, 0), -3))
    # Datasets that are stored in another way, for instance by h5repack, can be read.
    (tmp_path / "c.h5").write_bytes(whole)
    with h5py.File(tmp_path / "c.h5", "r+") as f:
        q = f["cells/wedge/data/q"][:]
        del f["cells/wedge/data/q"], f["partitions"]
        f.create_dataset("cells/wedge/data/q", data=q.astype(">f8"), chunks=(5, 2), compression="gzip")
    mesh = box(3)
    same(mesh, fm.read(fm.Mesh(), str(tmp_path / "c.h5"), "posix"))
    with pytest.raises(FileNotFoundError):
        fm.read(fm.Mesh(), "/absent.h5", back)
    with pytest.raises(FileNotFoundError):
        fm.write(mesh, "/absent/a.h5", back)
    with pytest.raises(FileNotFoundError):
        fm.write(mesh, tmp_path / "absent" / "a.h5", "posix")
    results = ranks(2, lambda c: fm.write(box(2), "/absent/a.h5", back, comm=c))
    assert all(isinstance(r, FileNotFoundError) for r in results), results


def test_a_full_pool():
    with forebay.run("tiny", media="memory:8M", force=True) as tiny:
        back = fm.Iov(tiny)
        fm.write(box(4), "/a.h5", back)
        results = ranks(2, lambda c: fm.write(cut(box(40), 2, c.Get_rank()), "/a.h5", back, comm=c))
        assert all(isinstance(r, OSError) and r.errno == errno.ENOSPC for r in results), results
        assert sorted(tiny.listdir("/")) == ["a.h5", "a.xdmf"]
        same(box(4), fm.read(fm.Mesh(), "/a.h5", back))


def test_others_read_it(tmp_path):
    """h5py reads the file by its layout, meshio by the XDMF file."""
    meshio = pytest.importorskip("meshio")
    mesh = box(4, mixed=False)
    fm.write(mesh, tmp_path / "a.h5", "posix")
    with h5py.File(tmp_path / "a.h5") as f:
        assert (f["points"][:] == mesh.points).all()
        assert (f["cells/hexahedron/data/q"][:] == mesh.cell_data["q"]["hexahedron"]).all()
        assert f["points"].id.get_offset() % 4096 == 0 or f["points"].nbytes < 1 << 16
    got = meshio.read(tmp_path / "a.xdmf")
    assert (got.points == mesh.points).all() and (got.cells_dict["hexahedron"] == mesh.cells["hexahedron"]).all()
    assert (got.cell_data_dict["q"]["hexahedron"] == mesh.cell_data["q"]["hexahedron"]).all()
    assert (got.point_data["u/v:w"] == mesh.point_data["u/v:w"]).all()
    # Several types are a collection of grids, each of which meshio can read by itself.
    from xml.etree import ElementTree

    mesh = box(4)
    fm.write(mesh, tmp_path / "b.h5", "posix")
    tree = ElementTree.parse(tmp_path / "b.xdmf")
    collection = tree.getroot().find("Domain/Grid")
    assert collection.get("CollectionType") == "Spatial"
    for grid in collection:
        one = ElementTree.ElementTree(ElementTree.fromstring("<Xdmf Version='3.0'><Domain/></Xdmf>"))
        one.getroot().find("Domain").append(grid)
        one.write(tmp_path / "one.xdmf")
        got, kind = meshio.read(tmp_path / "one.xdmf"), grid.get("Name")
        assert (got.cells_dict[kind] == mesh.cells[kind]).all()
        if kind in mesh.markers:
            assert (got.cell_data_dict["marker"][kind] == mesh.markers[kind]).all()


SU2 = """NDIME= 3
NPOIN= 5
0 0 0
1 0 0
0 1 0
0 0 1
1 1 1
NELEM= 2
10 0 1 2 3
10 1 2 3 4
NMARK= 1
MARKER_TAG= 2
MARKER_ELEMS= 2
5 0 1 2
5 1 2 4
"""


@pytest.mark.parametrize("end", ["vtu", "vtk", "msh", "su2", "mesh", "inp", "xdmf", "med", "cgns", "e"])
def test_formats_of_meshio(pool, tmp_path, end):
    """A mesh is converted to a format, from there into a pool, and back."""
    meshio = pytest.importorskip("meshio")
    if end == "e":
        pytest.importorskip("netCDF4")
    points = numpy.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    cells = [("tetra", [[0, 1, 2, 3], [1, 2, 3, 4]]), ("triangle", [[0, 1, 2], [1, 2, 4]])]
    if end == "cgns":  # meshio writes nothing but tetrahedra in it
        cells = cells[:1]
    marks = {"msh": "gmsh:physical", "su2": "su2:tag", "mesh": "medit:ref", "med": "cell_tags"}.get(end)
    data = {marks: [numpy.array([0, 0])[: len(c[1])] + i + 1 for i, c in enumerate(cells)]} if marks else {}
    source = meshio.Mesh(points, cells, cell_data=data)
    if end in ("vtu", "vtk", "xdmf"):
        source.point_data["T"] = numpy.arange(5.0)
        source.cell_data["p"] = [numpy.arange(2.0) + i for i in range(len(cells))]
    if end == "msh":
        source.cell_data["gmsh:geometrical"] = source.cell_data["gmsh:physical"]
        source.field_data = {"volume": numpy.array([1, 3]), "wall": numpy.array([2, 2])}
    path = tmp_path / ("a." + end)
    more = {"binary": False, "file_format": "gmsh22"} if end == "msh" else {}
    if end == "su2":  # meshio 5.3.5 can't write triangles in it
        path.write_text(SU2)
    else:
        source.write(path, **more)
    came = meshio.read(path)
    mesh = fm.from_meshio(came)
    fm.write(mesh, "/a.h5", fm.Iov(pool))
    got = fm.read(fm.Mesh(), "/a.h5", fm.Iov(pool))
    same(mesh, got)
    back = fm.to_meshio(got)
    assert (back.points[:, :3] == came.points).all()
    for kind, rows in came.cells_dict.items():
        assert (back.cells_dict[kind] == rows).all()
    if end in ("msh", "su2", "mesh"):
        assert set(got.markers) >= {"triangle"}
    if end == "msh":
        assert got.marker_names == {"volume": 1, "wall": 2} and (got.markers["triangle"] == 2).all()
        assert (back.field_data["wall"] == [2, 2]).all() and (back.cell_data_dict["gmsh:physical"]["triangle"] == 2).all()
    if end in ("vtu", "vtk", "xdmf"):
        assert (back.point_data["T"] == numpy.arange(5)).all() and (back.cell_data_dict["p"]["triangle"] == [1, 2]).all()
    back.write(tmp_path / "back.vtu")


def test_sets_and_data_of_some_types(tmp_path):
    meshio = pytest.importorskip("meshio")
    source = meshio.Mesh(numpy.zeros((4, 3)), [("tetra", [[0, 1, 2, 3]]), ("triangle", [[0, 1, 2], [1, 2, 3]])],
                         cell_sets={"wall": [[], [0]], "all": [[0], [0, 1]]})
    mesh = fm.from_meshio(source)
    assert mesh.marker_names == {"wall": 1} and mesh.markers["triangle"].tolist() == [1, 0]
    assert mesh.cell_data["set:all"]["triangle"].tolist() == [1, 1]
    mesh.cell_data["p"] = {"tetra": numpy.ones(1)}
    back = fm.to_meshio(mesh)
    assert numpy.isnan(back.cell_data_dict["p"]["triangle"]).all()


def test_the_command(pool, tmp_path):
    meshio = pytest.importorskip("meshio")
    meshio.Mesh(numpy.eye(4)[:, :3], [("tetra", [[0, 1, 2, 3]])]).write(tmp_path / "a.vtu")

    def convert(*arguments):
        return subprocess.run([sys.executable, "-m", "forebay.mesh", *map(str, arguments)], capture_output=True, text=True,
                              timeout=60)

    for source, target in ((tmp_path / "a.vtu", "forebay://tests/a.h5"), ("forebay://tests/a.h5", tmp_path / "b.h5"),
                           (tmp_path / "b.h5", tmp_path / "c.vtk")):
        done = convert(source, target)
        assert done.returncode == 0, done.stderr
    assert meshio.read(tmp_path / "c.vtk").cells_dict["tetra"].tolist() == [[0, 1, 2, 3]]
    done = convert(tmp_path / "absent.h5", tmp_path / "c.vtk")
    assert done.returncode == 1 and "No such file" in done.stderr and "Traceback" not in done.stderr
