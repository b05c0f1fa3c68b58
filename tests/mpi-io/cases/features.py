"""Each feature of MPI-IO (c/features.c), in files that lie on one node and in striped ones."""
from harness import case

from .faces import compiled, face, job

CASES = ["independent", "collective", "atomic", "atomic-strided", "sieving", "shared", "views", "sizes", "nonblocking",
         "nonblocking-collective", "delete-on-close", "append", "errors"]


def features(t, kind, *options, but=(), only=None):
    program = compiled(t, kind, "features")
    f = face(t)
    names = [c for c in only or CASES if c not in but]
    for top, striped in (("local", False), ("striped", True)):
        directory = f.directory(top, striped)
        r = job(t, f, kind, program, directory, *names, at=directory, options=options, timeout=80)
        f.spread(r)
        r.prints(*["^done %s " % c for c in names])
    f.down()


@case(200)
def mpich(t):
    features(t, "mpich")


@case(200)
def ompio(t):
    # Open MPI 4.1's OMPIO knows the mode, but does nothing for it: the same on /dev/shm without a pool.
    features(t, "openmpi", "--mca", "io", "ompio", but=["atomic", "atomic-strided"])


@case(100)
def ompio_lockedfile(t):
    """Shared file pointers in a file beside the other, under a lock, in place of shared memory of one host."""
    features(t, "openmpi", "--mca", "io", "ompio", "--mca", "sharedfp", "lockedfile", only=["shared", "append"])


@case(200)
def romio321(t):
    # Open MPI's ROMIO has no such calls: it jumps to address 0, without a pool, too.
    features(t, "openmpi", "--mca", "io", "romio321", but=["nonblocking-collective"])
