#!/usr/bin/env python3
"""What the rules of this directory buy for the programs that they are for: each program on the plain file system, on tmpfs and in pools of
one and of four nodes on this host, without its rules, with them, and without one of their controls; in turns.

Each run has a pool of its own. Four ranks use what one of them, on node 0, has made; results have to be the same everywhere, and no rule
may be violated. The tables are Markdown; `0.80x` is time, beside that of the pool without rules. OpenFOAM runs only with --openfoam (minutes).
--check runs all once, small, for the tests. Needs `make build` before.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))

import pools  # noqa: E402 (found by the path set above)
from pools import FOREBAY, Failed, run  # noqa: E402 (found by the path set above)

EXAMPLES = "/usr/share/doc/bowtie2/examples"
TUTORIAL = "/usr/share/doc/openfoam-examples/examples/incompressible/simpleFoam/pitzDaily"
# What was said of all files of a kind, with the line that says it: to be left out, one at a time.
CONTROL = re.compile(r"^(mutability|parallelism|consistency|temporality|persistence) *= *\"([^\"]*)\"", re.M)


def variants(text):
    """The rules as they are, and without each control in turn: name and text."""
    found = [("with rules", text)]
    said = sorted(set(CONTROL.findall(text)))
    for control, value in said if len(said) > 1 else []:
        line = re.compile(r'^%s *= *"%s".*\n?' % (control, re.escape(value)), re.M)
        blocks = [line.sub("", block) for block in text.split("[[rule]]")[1:]]
        kept = "".join("[[rule]]" + block for block in blocks if CONTROL.search(block))
        found.append(("without %s" % value, kept))
    return found


class Place:
    """A directory of a plain file system."""

    def __init__(self, name, top):
        self.name, self.nodes = name, 1
        self.home = tempfile.mkdtemp(prefix="forebay-rules-", dir=top)
        self.environment = pools.environment()
        self.at = os.path.join(self.home, "at")

    def __enter__(self):
        os.mkdir(self.at)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.home, ignore_errors=True)

    def on(self, node, words):
        """The words that run a program at a node."""
        return words

    def looked_at(self):
        """That no rule was violated."""


class Pool(pools.Pool):
    """The root of a pool: a place as well."""

    at = "/fb"

    def __init__(self, name, nodes, media, rules=None):
        super().__init__("rules", nodes, media)
        self.name = name
        if rules is not None:
            path = os.path.join(self.home, "rules.toml")
            with open(path, "w") as f:
                f.write(rules)
            self.options = ["--rules", path]

    def looked_at(self):
        listed = run([FOREBAY, "violations", "--pool", self.pool], env=self.environment)
        if "no violations" not in listed:
            raise Failed("%s: %s" % (self.name, listed))


class Program:
    """One of the scripts beside this one: `make`, by one rank; `use`, by all; `digest`."""

    phases = ["make", "use"]

    def __init__(self, name, script, ranks, scale, needs=()):
        self.name, self.ranks, self.scale = name, ranks, scale
        self.script = [os.path.join(HERE, script or "")]
        self.missing = [what for what in needs if not (os.path.exists(what) if what.startswith("/") else shutil.which(what))]
        with open(os.path.join(HERE, name + ".toml")) as f:
            self.rules = f.read()

    def ran(self, place):
        """Seconds of each phase, and the digest of the results."""
        environment = {**place.environment, "AT": place.at, "RANKS": str(self.ranks), "SCALE": str(self.scale)}
        seconds = {}
        began = time.monotonic()
        run(place.on(0, [*self.script, "make"]), env=environment)
        seconds["make"] = time.monotonic() - began
        began = time.monotonic()
        pools.run_together("%s, %s" % (self.name, place.name),
                           [(place.on(rank, [*self.script, "use"]), {**environment, "RANK": str(rank)}) for rank in range(self.ranks)])
        seconds["use"] = time.monotonic() - began
        return seconds, run(place.on(0, [*self.script, "digest"]), env=environment)


class OpenFoam(Program):
    """simpleFoam on its tutorial pitzDaily, two ranks, 100 iterations, from the mesh to the fields put together."""

    phases = ["blockMesh", "decomposePar", "simpleFoam", "reconstructPar"]
    PARTS = "FoamFile { version 2.0; format ascii; class dictionary; object decomposeParDict; }\n" \
            "numberOfSubdomains 2;\nmethod simple;\nsimpleCoeffs { n (2 1 1); delta 0.001; }\n"
    # Each rank at its node.
    RANK = 'exec "$0" exec --pool "$1" --node "$OMPI_COMM_WORLD_RANK" -- "${@:2}"'

    def __init__(self, iterations=100):
        self.iterations = iterations
        super().__init__("openfoam", None, 2, 1, ("blockMesh", "simpleFoam", "mpiexec.openmpi", TUTORIAL))

    def ran(self, place):
        case = os.path.join(place.at, "case")
        source = tempfile.mkdtemp(prefix="forebay-foam-")
        try:
            shutil.copytree(TUTORIAL, source, dirs_exist_ok=True)
            with open(source + "/system/controlDict") as d:
                text = d.read()
            text = re.sub(r"(?m)^endTime .*", "endTime %d;" % self.iterations, text)
            text = re.sub(r"(?m)^writeInterval .*", "writeInterval 5;", text)
            with open(source + "/system/controlDict", "w") as d:
                d.write(text)
            with open(source + "/system/decomposeParDict", "w") as d:
                d.write(self.PARTS)
            run(place.on(0, ["cp", "-rT", source, case]), env=place.environment)
        finally:
            shutil.rmtree(source, ignore_errors=True)
        environment = {**place.environment, "WM_PROJECT_DIR": "/usr/share/openfoam", "PWD": place.home}
        seconds = {}
        for phase in self.phases:
            # What it says goes to a log in the case, which grows.
            log = 'log=$1$OMPI_COMM_WORLD_RANK; shift; exec "$@" >> "$log" 2>&1'
            parallel = ["-parallel"] if phase == "simpleFoam" else []
            words = ["bash", "-c", log, "-", "%s/log.%s" % (case, phase), phase, *parallel, "-case", case]
            if not parallel or place.nodes == 1:
                words = place.on(0, words)
            else:
                words = ["bash", "-c", self.RANK, FOREBAY, place.pool, *words]
            if parallel:
                words = ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader,tcp",
                         "-n", str(self.ranks), *words]
            began = time.monotonic()
            run(words, env=environment, cwd=place.home)
            seconds[phase] = time.monotonic() - began
        sums = "cd \"$1\" && find . -type f ! -name 'log.*' -print0 | sort -z | xargs -0 sha256sum | sha256sum"
        return seconds, run(place.on(0, ["bash", "-c", sums, "-", case]), env=place.environment)


def places(program, nodes, media, disk, leave_out):
    """Makers of the places to compare: the rows of one turn."""
    found = []
    if nodes == 1:
        found += [("disk", lambda: Place("disk", disk)), ("tmpfs", lambda: Place("tmpfs", "/dev/shm"))]
    found.append(("pool", lambda: Pool("pool", nodes, media)))
    for name, rules in variants(program.rules) if leave_out else variants(program.rules)[:1]:
        found.append((name, lambda name=name, rules=rules: Pool(name, nodes, media, rules)))
    return found


def measured(program, nodes, media, disk, reps, leave_out):
    """Seconds by phase and place. The first turn isn't counted: programs and their data come into the cache of files."""
    found = {}
    ways = places(program, nodes, media, disk, leave_out)
    for turn in range(reps + (reps > 1)):
        # What comes first is another one each time.
        for name, make in ways[turn % len(ways):] + ways[:turn % len(ways)]:
            with make() as place:
                seconds, digest = program.ran(place)
                place.looked_at()
            program.digests.setdefault(digest, "%s, %d nodes" % (name, nodes))
            if len(program.digests) > 1:
                raise Failed("%s: other results in turn %d: %s" % (program.name, turn, program.digests))
            for phase, took in seconds.items():
                if turn > 0 or reps == 1:
                    found.setdefault(phase, {}).setdefault(name, []).append(took)
    return found


def table(program, nodes, found):
    """Rows of Markdown: medians in milliseconds; beside the pool without rules."""
    for phase in program.phases:
        by_way = {way: statistics.median(all) * 1e3 for way, all in found[phase].items()}
        base = by_way["pool"]
        spread = [a / b for a, b in zip(found[phase]["with rules"], found[phase]["pool"])]
        cells = ["%.0f" % by_way[way] if way in by_way else "" for way in ("disk", "tmpfs", "pool", "with rules")]
        left = ", ".join("%s %.2fx" % (way, took / base) for way, took in by_way.items() if way.startswith("without"))
        print("| %s | %s | %d | %s | %.2fx | %.2f to %.2f | %s |" % (
            program.name, phase, nodes, " | ".join(cells), by_way["with rules"] / base, min(spread), max(spread), left), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="all once and small, for the tests")
    parser.add_argument("--nodes", default="1,4", help="pools of so many nodes (default: 1,4)")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--scale", type=int, default=4, help="how much a program does (default: 4)")
    parser.add_argument("--media", default="memory:512M", help="of each node")
    parser.add_argument("--disk", default="/var/tmp", help="a directory of the plain file system (default: /var/tmp)")
    parser.add_argument("--only", default="", help="programs, with commas between")
    parser.add_argument("--openfoam", action="store_true", help="OpenFOAM, too")
    options = parser.parse_args()
    ranks, scale = (2, 1) if options.check else (4, options.scale)
    programs = [Program("bowtie2", "bowtie2.sh", ranks, scale, ("bowtie2", "bowtie2-build", EXAMPLES)),
                Program("git", "git.sh", ranks, scale, ("git",)), Program("training", "training.py", ranks, scale)]
    if options.openfoam or "openfoam" in options.only.split(","):
        programs.append(OpenFoam())
    programs = [p for p in programs if not options.only or p.name in options.only.split(",")]
    began = time.monotonic()
    try:
        if not options.check:
            print("| program | phase | nodes | disk ms | tmpfs ms | pool ms | with rules ms | | spread | leaving one out |")
            print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
        for program in programs:
            if program.missing:
                print("| %s | not run: %s not there |" % (program.name, " ".join(program.missing)), flush=True)
                continue
            program.digests = {}
            for nodes in (1, 2) if options.check else [int(n) for n in options.nodes.split(",")]:
                leave_out = not options.check and nodes > 1 and program.name != "openfoam"
                reps = 1 if options.check else options.reps
                found = measured(program, nodes, options.media, options.disk, reps, leave_out)
                if options.check:
                    print("passed  %s on %d nodes" % (program.name, nodes), flush=True)
                else:
                    table(program, nodes, found)
        if not options.check and "openfoam" not in [p.name for p in programs]:
            print("| openfoam | not run: asked for by --openfoam |")
        print("results are the same everywhere, and no rule was violated; %.0f s" % (time.monotonic() - began))
    except (Failed, subprocess.TimeoutExpired, OSError) as error:
        sys.exit("FAILED  %s" % error)


if __name__ == "__main__":
    main()
