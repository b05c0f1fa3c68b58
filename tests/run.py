#!/usr/bin/env python3
"""Runs all tests of the project, those that wait beside those that compute (`make test`).

STEPS below is the table of all steps: what each runs, which steps it needs, how many cores it keeps
busy, and its time limit. The runner starts a step once all that it needs has passed and there are
cores for it, in the order of the table.

Two kinds of steps run beside each other. Front steps test a running system: pools, programs,
daemons. Most of their time they wait. They run while their cores add up to those of the machine.
Background steps compute: builds, lint, the simulator. One runs at a time, with a lower priority: it
takes the time that the front steps leave, and disturbs them little.

A step's output is printed when the step ends, and kept in target/tests/NAME.log. The last lines of
each step that failed, a table of all steps, and the lines that name the failures end the run. The
exit code is 0 if all passed.

    run.py                    all steps
    run.py --only pools       one step, after those that it needs; its output is printed as it comes
    run.py --list             the table
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "pools"))

from harness import stacks  # noqa: E402 (found by the path set above)

TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
LOGS = os.path.join(TARGET, "tests")
# Lines of a failed step's output that are repeated before the table: its last ones; and behind the
# table: those that name a failure.
LAST_LINES, NAMING_LINES = 40, 30
NAMES_A_FAILURE = re.compile(r"^ *(failed|FAILED)\b|\bpanicked at\b|^test .*\bFAILED\b|^error")
# So many lines behind one of these are shown with it, and so many at the end of the lines that belong to it: those
# up to the next result.
MORE_LINES, LAST_OF_ONE = 3, 4
RESULT = re.compile(r"^ *(passed|skipped|failed|FAILED|\d+ passed|test )\b")
# How long a step that is told to end (SIGTERM) has for removing its pools. Seconds.
GRACE = 60


class Step:
    """One line of the table. `needs`: steps that must have passed; `after`: steps that must have
    ended. `cores` is what the step keeps busy on average. `background`: a step that computes, and
    its nice value. `alone`: no front step runs beside it. `limit`: seconds."""

    def __init__(self, name, command, needs=(), after=(), cores=1.0, background=0, alone=False, limit=900):
        self.name, self.command, self.needs, self.after = name, command, needs, after
        self.cores, self.background, self.alone, self.limit = cores, background, alone, limit
        self.state = "waits"
        self.process = self.log = None
        self.began = self.ended = self.cpu = 0.0

    def seconds(self):
        return self.ended - self.began


def only(*names):
    """The options of tests/programs/run.py that choose these cases."""
    return " ".join("--only " + name for name in names)


THROUGH_A_MOUNT = only(
    "bash-redirections", "c-names", "coreutils-attrs", "exec", "git", "leases", "libraries", "locks",
    "mmap", "mmap-calls", "privileges", "python-files", "replace", "rsync", "sandboxed", "sessions",
    "sqlite-concurrent", "thread-credentials", "unreached")
ON_FOUR_NODES = only(
    "bash-redirections", "beside", "c-data", "c-range-locks", "coreutils-listing", "exit-mapped", "git", "locks",
    "python-files", "rsync")
KEPT_BACK = only(
    "bash-redirections", "c-data", "c-passing", "c-robust", "limits", "locks", "python-processes",
    "sqlite")

WITH_AN_ORIGIN = only(
    "bash-redirections", "c-data", "coreutils-copy", "git", "locks", "mmap", "python-files", "replace",
    "rsync", "small-files", "sort-large", "sqlite", "tree-tools")
WITH_AN_ORIGIN_OF_NODES = only("bash-redirections", "coreutils-copy", "python-files", "rsync", "sqlite")

# Nice values of background steps: those that others wait for get a fair part.
WAITED_FOR, NOT_WAITED_FOR = 5, 19

STEPS = [
    Step("packages", "tests/install-packages"),
    Step("build", "make build", ["packages"], background=WAITED_FOR, limit=1800),
    # What the steps below need of the network.
    Step("python-packages", "python3 tests/python/prepare.py", ["packages"], cores=0.5),
    # Background steps, those first that others wait for.
    Step("crates-build", "python3 tests/crates/run.py --build", ["build"], background=WAITED_FOR, limit=1800),
    Step("suites-build", "python3 tests/conformance/run.py --install", ["build"], background=WAITED_FOR, limit=1800),
    Step("simulate", "make simulate SEEDS=1..80", ["packages"], background=NOT_WAITED_FOR, limit=1800),
    Step("models", "make models", ["packages"], background=NOT_WAITED_FOR, limit=1800),
    # cargo locks the directory of what it has built for both.
    Step("lint", "make lint", ["packages"], after=["crates"], background=NOT_WAITED_FOR, limit=1800),
    # Front steps, the long ones first.
    Step("nodes", "python3 tests/nodes/run.py -j 2", ["build", "python-packages"], limit=1800),
    Step("pools", "python3 tests/pools/run.py -j 2", ["build", "python-packages"], limit=1800),
    Step("crates", "python3 tests/crates/run.py -j 2", ["crates-build"], limit=1200),
    Step("conformance", "python3 tests/conformance/run.py -j 2", ["build", "suites-build"]),
    Step("programs", "python3 tests/programs/run.py -j 2", ["build"]),
    Step("programs-files", "python3 tests/programs/run.py -j 2 --media files:DIR:2G", ["build"]),
    Step("python", "python3 tests/python/run.py", ["build", "python-packages"]),
    Step("verbs", "python3 tests/verbs/run.py -j 2", ["build", "crates-build"]),
    Step("programs-fuse", "python3 tests/programs/run.py -j 2 --face fuse " + THROUGH_A_MOUNT, ["build"]),
    Step("programs-nodes", "python3 tests/programs/run.py --nodes 4 " + ON_FOUR_NODES, ["build"]),
    Step("programs-session", "python3 tests/programs/run.py --nodes 3"
         " --set '--distribution striped consistency=session' " + KEPT_BACK, ["build"]),
    Step("programs-origin", "python3 tests/programs/run.py -j 2 --origin " + WITH_AN_ORIGIN
         + " && python3 tests/programs/run.py -j 2 --nodes 3 --origin " + WITH_AN_ORIGIN_OF_NODES, ["build"]),
    # The documentation as a site: links that lead nowhere are errors.
    Step("site", "python3 packaging/site/build.py", ["build", "python-packages"], limit=300),
    # Installs packages of what was built, and removes them; most of the time it waits for archives.
    Step("dist", "python3 tests/dist/run.py", ["build"], limit=900),
    # Alone: hundreds of processes at once, and ranks that never sleep while they wait for each other.
    Step("soak", "python3 tests/soak/run.py --seconds 80", ["build"], alone=True),
    Step("mpi-io", "python3 tests/mpi-io/run.py -j 2", ["build"], alone=True),
    Step("mpi-io-fuse", "python3 tests/mpi-io/run.py -j 2 --face fuse --only romio321 --only hdf5-mpich",
         ["build"], alone=True),
]


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def lower_priority(nice):
    """For this process and its children, also where each session has its own share of the CPU."""
    os.nice(nice)
    try:
        with open("/proc/self/autogroup", "w") as f:
            f.write(str(nice))
    except OSError:
        pass


def start(step, straight):
    """Starts a step; with `straight` its output is printed as it comes."""
    step.began = time.monotonic()
    step.state = "runs"
    out = None
    if not straight:
        step.log = os.path.join(LOGS, step.name + ".log")
        out = open(step.log, "wb")
    # A session of its own, so that it can be ended with all that it has started.
    step.process = subprocess.Popen(
        step.command, shell=True, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out,
        stderr=subprocess.STDOUT if out else None, start_new_session=True,
        preexec_fn=(lambda: lower_priority(step.background)) if step.background and not straight else None)
    if out:
        out.close()
        say("started %s: %s" % (step.name, step.command))


def reap(steps):
    """Waits for up to a second for a step to end; returns it, or None. Its CPU time is noted."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        for step in steps:
            pid, status, usage = os.wait4(step.process.pid, os.WNOHANG)
            if pid:
                step.process.returncode = os.waitstatus_to_exitcode(status)
                step.cpu = usage.ru_utime + usage.ru_stime
                step.ended = time.monotonic()
                return step
        time.sleep(0.05)
    return None


def session(sid):
    """The ids of the processes of a session."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(entry)) == sid:
                found.append(int(entry))
        except OSError:
            pass
    return found


def end(steps):
    """Ends steps: they remove what they have made, or are killed."""
    for step in steps:
        os.killpg(step.process.pid, signal.SIGTERM)
    until = time.monotonic() + GRACE
    left = list(steps)
    while left and time.monotonic() < until:
        step = reap(left)
        if step:
            left.remove(step)
    for step in left:
        for pid in session(step.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        step.process.wait()
        step.ended = time.monotonic()


def lines_of(log):
    with open(log, errors="backslashreplace") as f:
        return f.read().rstrip("\n").split("\n")


def finished(step, why=""):
    """Prints a step's output and notes how it has ended."""
    step.state = "passed" if step.process.returncode == 0 and not why else "FAILED"
    if step.log:
        say("==== %s: %s\n%s" % (step.name, step.command, "\n".join(lines_of(step.log))))
    say("==== %s %s after %.0f s%s" % (step.name, step.state, step.seconds(), why))


def can_start(step, steps, cores):
    running = [s for s in steps if s.state == "runs"]
    if step.background:
        return not any(s.background for s in running)
    front = [s for s in running if not s.background]
    if step.alone or any(s.alone for s in front):
        return not front
    return not front or sum(s.cores for s in front) + step.cores <= cores + 0.01


def next_step(steps, cores):
    """The first step of the table that can start now, or None."""
    by_name = {step.name: step for step in steps}
    for step in steps:
        if step.state != "waits":
            continue
        needed = [by_name[name].state for name in step.needs]
        if "FAILED" in needed or "not run" in needed:
            step.state = "not run"
            say("==== %s not run: it needs %s" % (step.name, ", ".join(step.needs)))
            continue
        waits_for = [by_name[name].state for name in step.after if name in by_name]
        if (all(state == "passed" for state in needed) and not {"waits", "runs"} & set(waits_for)
                and can_start(step, steps, cores)):
            return step
    return None


def run(steps, cores, straight):
    while True:
        step = next_step(steps, cores)
        while step:
            start(step, straight)
            step = next_step(steps, cores)
        running = [s for s in steps if s.state == "runs"]
        if not running:
            return
        step = reap(running)
        if step:
            finished(step)
        for step in running:
            if step.state == "runs" and time.monotonic() - step.began > step.limit:
                say("%s has taken more than its %d s" % (step.name, step.limit))
                for pid in session(step.process.pid)[:16]:
                    say(stacks(pid).rstrip("\n"))
                end([step])
                finished(step, ": more than its limit of %d s" % step.limit)


def table(steps, began):
    """When each step began and how long it took. CPU time is that of the processes that the step has
    waited for: daemons of pools aren't among them."""
    lines = ["%-18s %-8s %8s %8s %8s" % ("step", "", "began s", "took s", "CPU s")]
    for step in sorted(steps, key=lambda s: s.began or float("inf")):
        if step.began and step.ended:
            lines.append("%-18s %-8s %8.0f %8.0f %8.0f" % (
                step.name, step.state, step.began - began, step.seconds(), step.cpu))
        else:
            lines.append("%-18s %s" % (step.name, step.state))
    lines.append("%-18s %-8s %8s %8.0f %8.0f" % (
        "all", "", "", time.monotonic() - began, sum(s.cpu for s in steps)))
    return "\n".join(lines)


def naming(lines):
    """The lines of a log that say what has failed, and how."""
    shown = set()
    for i, line in enumerate(lines):
        if NAMES_A_FAILURE.search(line):
            end = i + 1
            while end < len(lines) and not RESULT.search(lines[end]):
                end += 1
            shown.update(range(i, min(i + 1 + MORE_LINES, len(lines))))
            shown.update(range(max(i, end - LAST_OF_ONE), end))
    return [lines[i] for i in sorted(shown)]


def chosen(names):
    """The steps of these names and all that they need, in the order of the table."""
    wanted = set(names)
    for step in reversed(STEPS):
        if step.name in wanted:
            wanted.update(step.needs)
    return [step for step in STEPS if step.name in wanted]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", choices=[s.name for s in STEPS],
                        help="this step, after those that it needs, one at a time (may be given more than once)")
    parser.add_argument("--list", action="store_true", help="print the steps")
    parser.add_argument("--cores", type=float, default=len(os.sched_getaffinity(0)), metavar="N",
                        help="front steps keep so many cores busy (default: those of this machine)")
    options = parser.parse_args()
    if options.list:
        for step in STEPS:
            say("%-18s %s" % (step.name, step.command))
        return 0
    steps = chosen(options.only) if options.only else STEPS
    if options.only:
        # One at a time.
        for before, step in zip(steps, steps[1:]):
            step.after = [before.name]
    os.makedirs(LOGS, exist_ok=True)
    began = time.monotonic()

    def interrupted(number, _frame):
        raise SystemExit("ended by %s" % signal.Signals(number).name)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, interrupted)
    try:
        run(steps, options.cores, bool(options.only))
    finally:
        unfinished = [s for s in steps if s.state == "runs"]
        end(unfinished)
        for step in unfinished:
            step.state = "ended"
        logs = {s.name: lines_of(s.log) for s in steps if s.state == "FAILED" and s.log}
        for step in steps:
            if step.name in logs:
                say("==== the last lines of %s, which failed (all: %s)\n%s" % (
                    step.name, step.log, "\n".join(logs[step.name][-LAST_LINES:])))
        say(table(steps, began))
        for name, lines in logs.items():
            say("\n".join("%s: %s" % (name, line[:300]) for line in naming(lines)[:NAMING_LINES]))
    failed = [s.name for s in steps if s.state != "passed"]
    say("all steps passed" if not failed else "not passed: " + " ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
