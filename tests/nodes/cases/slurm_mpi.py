"""examples/slurm/mpi.sh: stage-in, an MPI program of six ranks on three nodes, stage-out; by each launcher."""
import os
import shutil
import zlib

from harness import Skipped, case
from .slurm import Slurm
from .slurm_jobs import Jobs, pools

# MPI library -> what takes the place of `srun --mpi=pmi2` in the script, for each way to launch the ranks.
# Open MPI: the options are for root, and for several nodes on one host, whose shared memory would be taken for one.
LAUNCHERS = {
    "mpich": ["srun --mpi=pmi2", "mpiexec.mpich"],
    "openmpi": ["mpiexec.openmpi --allow-run-as-root --mca btl self,tcp"],
}


@case(120)
def slurm_mpi(t):
    kinds = [kind for kind in LAUNCHERS if shutil.which("mpicc." + kind) and shutil.which("mpiexec." + kind)]
    if not kinds:
        raise Skipped("not installed: mpicc.mpich or mpicc.openmpi")
    with Slurm(t) as cluster:
        jobs = Jobs(t, cluster)
        wanted = []
        for name in sorted(os.listdir(jobs.dir + "/input")):
            with open(jobs.dir + "/input/" + name, "rb") as f:
                content = f.read()
            wanted.append("%d %08x %s" % (len(content), zlib.crc32(content), name))
        with open(jobs.dir + "/mpi.sh") as f:
            script = f.read()
        t.ok(LAUNCHERS["mpich"][0] in script, "mpi.sh has another launcher than this test expects")
        for kind in kinds:
            warnings = ["-Wall", "-Wextra", "-Werror"]
            t.command(["mpicc." + kind, "-O2", *warnings, "-o", jobs.dir + "/sums", jobs.dir + "/sums.c"], timeout=60)
            for launcher in LAUNCHERS[kind]:
                with open(jobs.dir + "/mpi.sh", "w") as f:
                    f.write(script.replace(LAUNCHERS["mpich"][0], launcher))
                said = jobs.wait(jobs.submit("mpi.sh"))
                what = "%s:\n%s" % (launcher, said)
                t.ok("with 3 nodes" in said and all("rank %d of 6" % rank in said for rank in range(6)), what)
                with open(jobs.dir + "/output/sums") as f:
                    t.ok([" ".join(line.split()) for line in f] == wanted, what)
                t.ok(not pools(t), "%s\nleft: %s" % (what, pools(t)))
                shutil.rmtree(jobs.dir + "/output")
    t.nothing_left("the jobs")
