"""Export and import of an unstructured mesh with six doubles for each cell: strong scaling over ranks.

    python python/bench/mesh.py --cells 5 --ranks 1,2,4        # millions of cells

For each number of ranks one MPI job measures all variants in turn, for several rounds: `iov` and
`mpio` on a pool of one node, `mpio` on tmpfs, and `iov` without copies (import only). Two guides
move the same bytes, a contiguous block for each rank. `guide` does it as IOR does: 4 MiB at a time
from and to one buffer, which stays in the cores' caches. `arrays` moves them from and to the
program's arrays. Prints medians in GB/s (10^9 bytes) and their ratios as Markdown. Needs the wheel,
h5py, mpi4py and an MPI. Memory: about 280 bytes for each cell.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

TRANSFER = 4 << 20
WAYS = ["iov", "iov, no copy", "mpio", "mpio on tmpfs", "guide", "arrays", "guide on tmpfs"]


def slab(cells, rank, size):
    """Returns this rank's layers of a box of hexahedra. Points are numbered in the order of the file."""
    from forebay import mesh

    n = max(round(cells ** (1 / 3)), size)
    begin, end = rank * n // size, (rank + 1) * n // size
    plane = (n + 1) ** 2
    layers = end - begin + 1
    owned = (end - begin + (rank == size - 1)) * plane
    points = numpy.empty((layers, n + 1, n + 1, 3))
    axis = numpy.arange(n + 1) / n
    points[..., 0] = (numpy.arange(begin, end + 1) / n)[:, None, None]
    points[..., 1], points[..., 2] = axis[:, None], axis
    low = (numpy.arange(n)[:, None] * (n + 1) + numpy.arange(n)).ravel()
    corners = numpy.array([0, plane, plane + n + 1, n + 1, 1, plane + 1, plane + n + 2, n + 2])
    first_layer = low[:, None] + corners
    nodes = numpy.empty((end - begin, n * n, 8), dtype=numpy.int64)
    for i in range(end - begin):
        numpy.add(first_layer, i * plane, out=nodes[i])
    values = numpy.empty((len(nodes) * n * n, 6))
    values[:] = numpy.arange(begin * n * n, end * n * n)[:, None]
    return mesh.Mesh(points=points.reshape(-1, 3), cells={"hexahedron": nodes.reshape(-1, 8)},
                     cell_data={"q": {"hexahedron": values}}, owned=owned,
                     point_ids=numpy.arange(begin * plane, begin * plane + layers * plane))


def job(cells, rounds, cpu, pool, tmpfs):
    """Runs one rank: measures all variants. The first rank prints the times as JSON."""
    from mpi4py import MPI

    from forebay import Pool, mesh

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    opened = Pool(pool)
    iov, mpio = mesh.Iov(opened), mesh.Mpio()
    posix = mesh.Posix()

    def timed(call):
        comm.Barrier()
        began, used = time.perf_counter(), time.process_time()
        got = call()
        used = time.process_time() - used
        comm.Barrier()
        took = time.perf_counter() - began
        return comm.allreduce(used) if cpu else took, got

    def by_mesh(back, path, copy):
        part = slab(cells, rank, size)
        total = comm.allreduce(sum(a.nbytes for a in (part.points[: part.owned], part.cells["hexahedron"],
                                                      part.cell_data["q"]["hexahedron"])))
        checked = float(part.cell_data["q"]["hexahedron"].sum()), int(part.cells["hexahedron"].sum())
        wrote, _ = timed(lambda: mesh.write(part, path, back, comm=comm, xdmf=False))
        del part
        read, got = timed(lambda: mesh.read(mesh.Mesh(), path, back, comm=comm, copy=copy))
        assert checked == (float(got.cell_data["q"]["hexahedron"].sum()), int(got.cells["hexahedron"].sum()))
        return total, wrote, read

    def by_blocks(back, path, arrays):
        total = cells * (64 + 48 + 24)
        block = total // size // 4096 * 4096
        transfer = block if arrays else TRANSFER
        buffer = numpy.ones(transfer, dtype=numpy.uint8)
        if rank == 0:
            back.create(path).close()
        comm.Barrier()

        def each(name):
            file = back.open(path, name == "write")
            memory = numpy.empty(block, dtype=numpy.uint8) if arrays and name == "read" else buffer
            for at in range(0, block, transfer):
                getattr(file, name)(memory[: min(transfer, block - at)], rank * block + at)
            file.close()
            return memory

        return block * size, timed(lambda: each("write"))[0], timed(lambda: each("read"))[0]

    found = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            on_tmpfs, kind = way.endswith("tmpfs"), way.split()[0].rstrip(",")
            back = {"mpio": mpio, "guide": posix if on_tmpfs else iov}.get(kind, iov)
            path = tmpfs + "/a.h5" if on_tmpfs else (opened.mount if back is mpio else "") + "/a.h5"
            if kind in ("guide", "arrays"):
                found[way].append(by_blocks(back, path, kind == "arrays"))
            else:
                found[way].append(by_mesh(back, path, not way.endswith("no copy")))
            comm.Barrier()
            if rank == 0:
                os.unlink(path) if on_tmpfs else opened.unlink("/a.h5")
            comm.Barrier()
    if rank == 0:
        print(json.dumps(found))


def launch(mpiexec, ranks, cells, rounds, cpu, pool, tmpfs):
    from forebay._command import program

    command = [*mpiexec, "-n", str(ranks), program(), "exec", "--pool", pool, "--", sys.executable, os.path.abspath(__file__), "--job",
               json.dumps([cells, rounds, cpu, pool, tmpfs])]
    # Makes ranks keep freed memory, so that the kernel's allocation of new pages isn't measured.
    keep = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, env={**os.environ, **keep})
    if done.returncode != 0:
        sys.exit("%s: exit status %d" % (" ".join(command), done.returncode))
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default="5", help="millions of cells, several with commas (default 5)")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks (default 1,2,4)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the median counts (default 5)")
    parser.add_argument("--cpu", action="store_true",
                        help="GB for each second of CPU time of all ranks together: where other programs take the cores")
    parser.add_argument("--mpiexec", help="the launcher; default: mpiexec, with what Open MPI needs on a small machine")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return job(*json.loads(options.job))
    import forebay

    mpiexec = (options.mpiexec or "mpiexec.openmpi --allow-run-as-root --oversubscribe --mca btl self,vader,tcp").split()
    print("| cells, millions | ranks | | %s | iov/mpio on tmpfs | iov/guide | iov/arrays |" % " | ".join(WAYS))
    print("|---|---|---|%s---|---|---|" % ("---|" * len(WAYS)))
    tmpfs = tempfile.mkdtemp(prefix="mesh-", dir="/dev/shm")
    try:
        for millions in map(float, options.cells.split(",")):
            cells = int(millions * 1e6)
            room = max(cells * 136 * 5 // 4 >> 20, 64)
            for ranks in map(int, options.ranks.split(",")):
                with forebay.run(media="memory:%dM" % room) as pool:
                    found = launch(mpiexec, ranks, cells, options.rounds, options.cpu, pool.name, tmpfs)
                for at, name in ((1, "export"), (2, "import")):
                    rates = {way: statistics.median(one[0] / one[at] / 1e9 for one in found[way]) for way in WAYS}
                    print("| %g | %d | %s | %s | %.2f | %.2f | %.2f |" % (
                        millions, ranks, name, " | ".join("%.2f" % rates[way] for way in WAYS),
                        rates["iov"] / rates["mpio on tmpfs"], rates["iov"] / rates["guide"],
                        rates["iov"] / rates["arrays"]), flush=True)
    finally:
        shutil.rmtree(tmpfs)


if __name__ == "__main__":
    main()
