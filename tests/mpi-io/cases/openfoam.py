"""A real solver: OpenFOAM's simpleFoam on its tutorial pitzDaily, two ranks on two nodes, 100 iterations.

Everything from the mesh to the reassembled fields is done in the pool and on a plain directory: the logs have to be the
same line by line (so the residuals are), but for times and process ids, and so has every file.
Needs Debian's packages openfoam and openfoam-examples (1912). tests/install-packages doesn't
install the examples: they are large.
"""
import os
import re
import shutil
import sys

from harness import Skipped, case

from .faces import LAUNCHERS, SUITES, Plain, face, job, needs

TUTORIAL = "/usr/share/doc/openfoam-examples/examples/incompressible/simpleFoam/pitzDaily"
ITERATIONS, EACH = 100, 5

DECOMPOSE = """FoamFile { version 2.0; format ascii; class dictionary; object decomposeParDict; }
numberOfSubdomains 2;
method simple;
simpleCoeffs { n (2 1 1); delta 0.001; }
"""

# Lines that are other each time.
OTHER = re.compile(r"^(Date|Time|Host|PID|Case|Exec|Build|Arch|I/O|Slaves|nProcs|Pstream|Roots|allowSystem|fileModif|"
                   r"file|sigFpe|trapFpe)\s*:|^ExecutionTime = |ClockTime|^\s*\d?\s*\(?\"?[\w-]+\.\d+\"?\)?$")

# Collated files hold the path of their case.
SUMS = """
import hashlib, os, sys
top = sys.argv[1]
for at, dirs, files in os.walk(top):
    dirs.sort()
    for name in sorted(files):
        with open(at + "/" + name, "rb") as f:
            text = f.read().replace(top.encode(), b"@CASE@")
        print(hashlib.sha256(text).hexdigest(), at[len(top):] + "/" + name)
"""


def said(r, directory):
    """A program's output, without what differs each time."""
    text = re.sub(r" in [\d.]+ s\b", " in @TIME@ s", r.out.replace(directory, "@CASE@"))
    return [x for x in text.split("\n") if not OTHER.search(x)]


def prepare(t, f, name, handler):
    """The tutorial, with something to write every few iterations."""
    directory = f.directory(name)
    source = os.path.join(t.work, "tutorial-" + name)
    if not os.path.exists(source):
        shutil.copytree(TUTORIAL, source)
        with open(source + "/system/controlDict") as d:
            text = d.read()
        text = re.sub(r"(?m)^endTime .*", "endTime %d;" % ITERATIONS, text)
        text = re.sub(r"(?m)^writeInterval .*", "writeInterval %d;" % EACH, text)
        with open(source + "/system/controlDict", "w") as d:
            d.write(text + "OptimisationSwitches { fileHandler %s; }\n" % handler)
        with open(source + "/system/decomposeParDict", "w") as d:
            d.write(DECOMPOSE)
    f.outside("cp", "-rT", source, directory)
    return directory


def solve(t, f, name, handler, counted=None):
    """The whole workflow: its output, its files, its seconds. With `counted`, the solver runs under strace."""
    directory = prepare(t, f, name, handler)
    # $PWD is compared with the real directory.
    env = {"PWD": t.work, "WM_PROJECT_DIR": "/usr/share/openfoam", "FOAM_FILEHANDLER": handler}
    logs, seconds = {}, {}
    options = ["-case", directory]
    for program in ("blockMesh", "decomposePar", "simpleFoam", "reconstructPar"):
        if program == "simpleFoam":
            strace = ["strace", "-f", "-c", "-o", counted, "-e", "trace=file,desc"] if counted else []
            # Only one rank is counted: the table of the other would be written over it.
            words = ["bash", "-c", '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || shift %d; exec "$@"' % len(strace), "-", *strace,
                     program, "-parallel", *options]
            r = job(t, f, "openmpi", *words, at="/nowhere", ranks=2, timeout=200, env=env)
        else:
            r = t.command(f.on(0, program, *options), env={**f.env, **env}, timeout=100)
        logs[program], seconds[program] = said(r, directory), r.seconds
    files = f.outside(sys.executable, "-c", SUMS, directory, timeout=60).out.split("\n")
    return logs, files, seconds


def told(seconds):
    return "  ".join("%s %5.2f s" % item for item in seconds.items())


def openfoam(t, handler):
    needs("blockMesh", "simpleFoam", LAUNCHERS["openmpi"][0], "strace")
    if not os.path.isdir(TUTORIAL):
        raise Skipped("not installed: openfoam-examples")
    f, beside = face(t, nodes=2), Plain(t)
    beside.up()
    wanted = solve(t, beside, "outside", handler)
    got = solve(t, f, "inside", handler)
    residuals = [x for x in wanted[0]["simpleFoam"] if "Initial residual" in x]
    t.ok(len(residuals) == 5 * ITERATIONS, "%d residuals" % len(residuals))
    for program, lines in wanted[0].items():
        inside = got[0][program]
        differ = [(a, b) for a, b in zip(lines, inside) if a != b]
        t.ok(len(lines) == len(inside) and not differ,
             "%s: %d lines, not %d; first %r" % (program, len(inside), len(lines), differ[:5]))
    t.ok(len(wanted[1]) > 200 and wanted[1] == got[1], "files differ: %s" % sorted(set(wanted[1]) ^ set(got[1]))[:6])
    counts = os.path.join(t.work, "counts")
    solve(t, beside, "counted", handler, counts)
    with open(counts) as c:
        rows = [x.split() for x in c if re.match(r"\s*\d+\.\d+ ", x)]
    total = next(int(x[3]) for x in rows if x[-1] == "total")
    most = sorted(((int(x[3]), x[-1]) for x in rows if x[-1] != "total"), reverse=True)[:6]
    print("%s: %d residuals and %d files are the same" % (handler, len(residuals), len(wanted[1]) - 1))
    print("  outside  " + told(wanted[2]))
    print("  pool     " + told(got[2]))
    print("  system calls of the first rank of simpleFoam on files and descriptors: %d (%s)" % (
        total, ", ".join("%s %d" % (name, n) for n, name in most)))
    f.down()


if SUITES:
    @case(500)
    def openfoam_uncollated(t):
        openfoam(t, "uncollated")

    @case(500)
    def openfoam_collated(t):
        openfoam(t, "collated")
