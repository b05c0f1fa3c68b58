"""One rank of a job that writes a mesh, and some of whose ranks read it: `mesh.py BACKEND DIRECTORY`.

The mesh is N^3 hexahedra and the quads of one side. Each rank makes its part out of numbers of cells, and checks
what it reads in the same way: coordinates and data follow from the number of the cell.
"""
import os
import sys

import numpy
from mpi4py import MPI

from forebay import mesh

N = 24


def corners(cells):
    """Lattice numbers of the corners of hexahedra."""
    i, j, k = cells // (N * N), cells // N % N, cells % N
    corner = (i * (N + 1) + j) * (N + 1) + k
    x, y, z = (N + 1) ** 2, N + 1, 1
    return numpy.stack([corner + d for d in (0, x, x + y, y, z, x + z, x + y + z, y + z)], axis=1)


def coordinates(lattice):
    return numpy.stack([lattice // (N + 1) ** 2, lattice // (N + 1) % (N + 1), lattice % (N + 1)], axis=1) / N


def values(cells):
    """Six doubles for each cell."""
    return cells[:, None] + numpy.arange(6) / 8


def dealt(total, comm):
    rank, size = comm.Get_rank(), comm.Get_size()
    return numpy.arange(rank * total // size, (rank + 1) * total // size)


def part(comm):
    cells, sides = dealt(N**3, comm), dealt(N * N, comm)
    nodes = {"hexahedron": corners(cells), "quad": corners(sides)[:, [0, 3, 7, 4]]}
    lattice = numpy.unique(numpy.concatenate([rows.ravel() for rows in nodes.values()]))
    points = coordinates(lattice)
    return mesh.Mesh(
        points=points, point_ids=lattice * 3 + 1, point_data={"T": points.sum(axis=1)},
        cells={kind: numpy.searchsorted(lattice, rows) for kind, rows in nodes.items()},
        cell_data={"q": {"hexahedron": values(cells)}}, markers={"quad": sides % 3}, marker_names={"wall": 1, "inlet": 2})


def check(got, comm):
    for kind in ("hexahedron", "quad"):
        first, rows = got.first_cells[kind], got.cells[kind]
        cells = numpy.arange(first, first + len(rows))
        wanted = corners(cells) if kind == "hexahedron" else corners(cells)[:, [0, 3, 7, 4]]
        assert (got.points[rows] == coordinates(wanted.ravel()).reshape(*wanted.shape, 3)).all(), kind
        assert (got.point_data["T"][rows] == got.points[rows].sum(axis=2)).all(), kind
        if kind == "hexahedron":
            assert (got.cell_data["q"][kind] == values(cells)).all()
        else:
            assert (got.markers[kind] == cells % 3).all()
    assert got.marker_names == {"wall": 1, "inlet": 2}
    totals = comm.allreduce(numpy.array([got.owned, len(got.cells["hexahedron"]), len(got.cells["quad"])]))
    assert totals.tolist() == [(N + 1) ** 3, N**3, N * N], totals


def fails(error, text, call):
    try:
        call()
    except error as e:
        assert text in str(e), e
    else:
        raise AssertionError("nothing failed: " + text)


def main():
    back, top = sys.argv[1:]
    path, absent = top + "/%s.h5" % back, top + "/absent"
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    mesh.write(part(comm), path, back, comm=comm)
    for readers in {1, size - 1, size}:
        # The others wait: for them the file must not change.
        some = comm.Split(0 if rank < readers else MPI.UNDEFINED, rank)
        if some != MPI.COMM_NULL:
            for split in ("stored", "even"):
                got = mesh.read(mesh.Mesh(), path, back, comm=some, split=split)
                check(got, some)
            # As it was read, it is written again and is the same.
            mesh.write(got, path + "-again.h5", back, comm=some)
            check(mesh.read(got, path + "-again.h5", back, comm=some, split="even"), some)
            some.Free()
        comm.Barrier()
    # One rank is wrong: all ranks get an exception, and none hangs.
    wrong = part(comm)
    if rank == size - 1:
        wrong.cells["quad"][0, 0] = 10**9
    fails(mesh.MeshError, "has point 1000000000", lambda: mesh.write(wrong, path + "-wrong.h5", back, comm=comm))
    fails(FileNotFoundError, "", lambda: mesh.write(part(comm), absent + "/a.h5", back, comm=comm))
    fails(FileNotFoundError, "", lambda: mesh.read(mesh.Mesh(), absent, back, comm=comm))
    print("rank %d on node %s" % (rank, os.environ["FOREBAY_NODE"]) if "FOREBAY_NODE" in os.environ else "done")


main()
