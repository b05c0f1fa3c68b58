"""One HDF5 file written by four ranks over three nodes, compared with one that a single rank wrote outside."""
import os

from harness import case

from .faces import Plain, compiled, face, job, needs


def hdf5(t, kind, *options):
    needs("h5diff", "h5dump")
    program = compiled(t, kind, "hdf5", "h5pcc." + kind)
    f, beside = face(t), Plain(t)
    beside.up()
    directory = beside.directory("outside")
    wanted = directory + "/file.h5"
    job(t, beside, kind, program, wanted, at=directory, ranks=1)
    for top, striped in (("local", False), ("striped", True)):
        directory = f.directory(top, striped)
        got = directory + "/file.h5"
        job(t, f, kind, program, got, at=directory, options=options)
        r = f.outside("h5diff", "-v", got, wanted, timeout=60)
        t.ok(r.out.count("\n0 differences found") == 8 + 20, r.told())
        f.outside("bash", "-c", "cd $(dirname $1) && h5dump file.h5 > $2", "-", got, t.work + "/got")
        t.command(["bash", "-c", "cd $(dirname $1) && h5dump file.h5 > $2", "-", wanted, t.work + "/wanted"])
        t.command(["cmp", t.work + "/got", t.work + "/wanted"])
        t.ok(os.path.getsize(t.work + "/got") > 1 << 20, "h5dump says little")
    f.down()


@case(100)
def hdf5_mpich(t):
    hdf5(t, "mpich")


@case(100)
def hdf5_openmpi(t):
    hdf5(t, "openmpi")
