#!/usr/bin/env python3
"""Runs the use-case kernels (POSIX calls, default controls), asks for advice, and runs them again with the proposed rules.

For each kernel it prints which of its declared controls were proposed, what else was, and the time in operations (summed over
processes, the median of --reps runs each way, in turns): before, saved as promised, saved as measured. A rule that is broken by a run is
an error. With --check each runs once, and a declared control that isn't proposed is an error, too. Needs `make build` before.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)

import run as kernels  # noqa: E402 (found by the path set above)
from pools import FOREBAY, Failed, environment, run  # noqa: E402 (found by the path set above)

# Batches that are undone as a whole exist with the verbs only; with POSIX calls, the kernel renames new files over old ones.
VERBS_ONLY = {"update": "failure=rollback"}


class Room:
    """Directories for a kernel's pools and pages."""

    def __init__(self, nodes, ranks):
        self.nodes, self.ranks, self.pages = nodes, ranks, 0
        self.home = tempfile.mkdtemp(prefix="forebay-advise-", dir="/dev/shm")
        self.disk = tempfile.mkdtemp(prefix="forebay-advise-", dir="/var/tmp")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for directory in (self.home, self.disk):
            shutil.rmtree(directory, ignore_errors=True)

    def watched(self, command, rules=None):
        """Runs a kernel in a pool of its own, perhaps with rules: its page. A rule that it breaks makes it fail."""
        self.pages += 1
        page = os.path.join(self.disk, "%d.html" % self.pages)
        words = [FOREBAY, "run", "--report", page, "--media", "memory:512M", "--media", "files:%s:512M" % self.disk]
        words += ["--rules", rules] if rules else []
        kernel = [*command, "--posix", "/fb", "--controls", "default", "--ranks", str(self.ranks)]
        if self.nodes > 1:
            meet = os.path.join(self.home, "meet%d" % self.pages)
            each = ["'%s' exec --node %d -- %s --rank %d --meet '%s' &" % (FOREBAY, rank % self.nodes, " ".join(kernel), rank, meet)
                    for rank in range(self.ranks)]
            words += ["--nodes", str(self.nodes)]
            kernel = ["bash", "-c", "\n".join([*each, "for job in $(jobs -p); do wait $job || exit 1; done"])]
        run([*words, "--", *kernel], env={**environment(), "FOREBAY_HOME": self.home})
        return page

    def compared(self, command, reps):
        """What is proposed, (control, path, seconds saved or None), what runs took before, and what they took with it."""
        page, rules = self.watched(command), os.path.join(self.disk, "rules.toml")
        first = told(page, "--rules", rules)
        proposals = [p for of in ("proposals", "fitting") for p in first["advice"][of] if p["toml"]]
        before, after = [seconds(first)], []
        for rep in range(reps if proposals else 0):
            if rep > 0:
                before.append(seconds(told(self.watched(command))))
            after.append(seconds(told(self.watched(command, rules))))
        return [("%s=%s" % (p["control"], p["value"]), p["path"], p["saves"]["seconds"]) for p in proposals], before, after


def told(page, *more):
    return json.loads(run([FOREBAY, "report", "--page", page, "--json", *more]))


def seconds(page):
    """Time in operations, summed over processes; those that weren't timed took as long as the others of their kind."""
    operations = [o for o in page["totals"]["operations"].values() if o["durations"]["timed"]]
    return sum(o["count"] * o["durations"]["nanoseconds"] / o["durations"]["timed"] for o in operations) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="each once and small, for the tests")
    parser.add_argument("--nodes", default="1,4", help="pools of so many nodes (default: 1,4)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--scale", type=int, default=2, help="how much a kernel does (default: 2)")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--only", default="", help="kernels, with commas between")
    options = parser.parse_args()
    only = [o for o in options.only.split(",") if o]
    scale, reps = (1, 1) if options.check else (options.scale, options.reps)
    programs_at = tempfile.mkdtemp(prefix="forebay-advise-")
    missing = []
    try:
        programs = kernels.compiled(programs_at, "gcc", "g++", None)
        print("| nodes | kernel | declared | proposed | before, ms | promised, ms | measured, ms |\n|%s" % ("---|" * 7))
        for nodes in map(int, options.nodes.split(",")):
            for kernel in kernels.KERNELS:
                if kernel[0].startswith("stream-") or only and kernel[0] not in only:
                    continue
                command = [programs[kernel[0]], *kernel[1:], "--scale", str(scale)]
                with Room(nodes, options.ranks) as room:
                    proposals, before, after = room.compared(command, reps)
                declared = set(kernels.declared(kernel))
                proposed = {control for control, _, _ in proposals}
                missing += ["%s on %d nodes: %s" % (" ".join(kernel), nodes, control) for control in sorted(declared - proposed)
                            if VERBS_ONLY.get(kernel[0]) != control and nodes > 1]
                before_ms = 1000 * statistics.median(before)
                promised = 1000 * sum(saved or 0 for _, _, saved in proposals)
                measured = before_ms - 1000 * statistics.median(after) if after else 0
                print("| %d | %s | %s | %s | %.1f | %.1f | %.1f |" % (nodes, " ".join(kernel), ", ".join(sorted(declared)),
                                                                 ", ".join(sorted(proposed)), before_ms, promised, measured), flush=True)
        if options.check and missing:
            raise Failed("declared, and not proposed: " + "; ".join(missing))
        if options.check:
            print("all advice is as declared")
    except (Failed, subprocess.TimeoutExpired, OSError) as error:
        sys.exit("FAILED  %s" % error)
    finally:
        shutil.rmtree(programs_at, ignore_errors=True)


if __name__ == "__main__":
    main()
