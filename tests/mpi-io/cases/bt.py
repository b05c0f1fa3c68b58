"""The output of NPB's BT-IO (c/btio.c): collective, and as many independent writes; the rates beside /dev/shm."""
import re

from harness import case

from .faces import LONG, Plain, compiled, face, job

POINTS, STEPS = ("64", "10") if LONG else ("24", "5")
RATES = re.compile(r"^(full|simple): .*$", re.M)


def bt(t, kind, *options):
    program = compiled(t, kind, "btio")
    f, beside = face(t), Plain(t)
    beside.up()
    told = []
    for form in ("full", "simple"):
        for where, at, striped in ((f, "local", False), (f, "striped", True), (beside, "local", False)):
            directory = where.directory(at, striped)
            r = job(t, where, kind, program, directory + "/" + form, form, POINTS, STEPS, at=directory,
                    options=options, timeout=400 if LONG else 40)
            name = "/dev/shm" if where is beside else at
            told.append("%-9s %s" % (name, RATES.search(r.out).group()))
            where.outside("rm", directory + "/" + form)
    f.down()
    print("\n".join(told))


@case(1500 if LONG else 150)
def bt_mpich(t):
    bt(t, "mpich")


@case(1500 if LONG else 150)
def bt_ompio(t):
    bt(t, "openmpi", "--mca", "io", "ompio")


if LONG:
    @case(1500)
    def bt_romio321(t):
        bt(t, "openmpi", "--mca", "io", "romio321")
