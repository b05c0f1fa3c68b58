#!/usr/bin/env python3
"""Benchmarks of others, as users run them: on tmpfs, in a pool by preload, through a mount, and on four nodes.

Prints one table: each figure, and its ratio to tmpfs of the same minute; above 1, Forebay is faster.
Nothing is fetched: a program that isn't there is skipped, and the run says so. From packages
(tests/install-packages): fio, dbench, stress-ng, sysbench. The others are found on $PATH or named:

    IOR=/opt/ior/bin/ior MDTEST=/opt/ior/bin/mdtest IO500=/opt/io500/io500 BTIO=/opt/npb/bt.A.x.full \\
    ELBENCHO=... DLIO=/venv/bin/dlio_benchmark MPIEXEC='mpiexec -n 4' tests/suites/run.py

IOR and mdtest get the command lines of docs/performance.md, IO500 its own, with a short limit on
each phase. Programs of MPI need the MPIEXEC that they were built for.

    --seconds N   for each figure of a program that runs for a time (default 1)
    --only NAME   this program only; repeatable
    --place NAME  tmpfs and this place only; repeatable
    --json FILE   the figures, for programs
"""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
FOREBAY = os.environ.get("FOREBAY", os.path.join(TARGET, "release", "forebay"))
NODES = 4
# Room of a pool, or of a node of one, and the time limit of one command.
MEDIA, MEDIA_OF_NODE, LIMIT = "memory:2G", "memory:512M", 120
TMPFS, PRELOAD, MOUNT, FOUR = "tmpfs", "preload", "mount", "4 nodes"


class Failed(Exception):
    pass


def call(words, cwd=None, limit=LIMIT, env=None):
    """Standard output of a command."""
    try:
        done = subprocess.run(words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit,
                              env={**os.environ, **(env or {})}, errors="replace")
    except subprocess.TimeoutExpired:
        raise Failed("%s: no end after %d s" % (shlex.join(words), limit)) from None
    if done.returncode:
        raise Failed("%s: exit code %d\n%s%s" % (shlex.join(words), done.returncode, done.stdout[-800:], done.stderr[-800:]))
    return done.stdout


# ---- where programs work ----

class Place:
    """`run(WORDS)` runs a command whose working directory is `self.dir`. `ranks`: by MPI."""

    def __init__(self, name, directory, prefix=()):
        self.name, self.dir, self.prefix = name, directory, list(prefix)

    def run(self, words, ranks=False):
        mpi = shlex.split(os.environ.get("MPIEXEC", "mpiexec -n 2")) if ranks else []
        # A program's own directory, which the shell inside the pool enters.
        inside = ["sh", "-c", 'mkdir -p "$0" && cd "$0" && exec "$@"', self.dir, *words]
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        return call([*mpi, *self.prefix, *inside], env=env)

    def clear(self):
        call([*self.prefix, "sh", "-c", 'rm -rf "$0"', self.dir])


class Places:
    """All places, with their pools, which end with the block."""

    def __init__(self, wanted):
        self.wanted, self.skipped, self.all = wanted, [], []

    def __enter__(self):
        self.top = tempfile.mkdtemp(prefix="forebay-suites-", dir="/dev/shm")
        os.environ["FOREBAY_HOME"] = self.top + "/home"
        for name in ("FOREBAY_POOL", "FOREBAY_NODE"):
            os.environ.pop(name, None)
        self.all.append(Place(TMPFS, self.top + "/tmpfs/work"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        if {PRELOAD, MOUNT} & set(self.wanted):
            call([FOREBAY, "up", "--pool", "one", "--media", MEDIA, "--force"])
        if PRELOAD in self.wanted:
            self.all.append(Place(PRELOAD, "/fb/work", [FOREBAY, "exec", "--pool", "one", "--"]))
        if MOUNT in self.wanted:
            os.mkdir(self.top + "/mount")
            try:
                call([FOREBAY, "mount", "--pool", "one", self.top + "/mount"])
                self.all.append(Place(MOUNT, self.top + "/mount/mounted"))
            except Failed as e:
                self.skipped.append("%s: %s" % (MOUNT, str(e).strip().splitlines()[-1]))
        if FOUR in self.wanted:
            call([FOREBAY, "up", "--pool", "four", "--nodes", str(NODES), "--media", MEDIA_OF_NODE, "--force"])
            self.all.append(Place(FOUR, "/fb/work", [FOREBAY, "exec", "--pool", "four", "--"]))

    def __exit__(self, *_):
        for words in (["umount", "--force", self.top + "/mount"], ["down", "--force", "--pool", "one"],
                      ["down", "--force", "--pool", "four"]):
            subprocess.run([FOREBAY, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        shutil.rmtree(self.top, ignore_errors=True)


# ---- programs: each gives figures by name, the larger the better ----

def number(pattern, text):
    """The first number that a pattern finds."""
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise Failed("its output has no %r:\n%s" % (pattern, text[-800:]))
    return float(found.group(1))


def fio(program, place, seconds):
    figures = {}
    for name, rw, block, size in (("write 1 MiB, MB/s", "write", "1m", "64m"), ("read 1 MiB, MB/s", "read", "1m", "64m"),
                                  ("write 4 KiB at random, k/s", "randwrite", "4k", "16m"),
                                  ("read 4 KiB at random, k/s", "randread", "4k", "16m")):
        out = place.run([program, "--name=x", "--filename=fio.%s" % size, "--rw=" + rw, "--bs=" + block, "--size=" + size,
                         "--ioengine=psync", "--fallocate=none", "--time_based", "--runtime=%d" % seconds,
                         "--output-format=json"])
        job = json.loads(out[out.index("{"):])["jobs"][0]["write" if "write" in rw else "read"]
        figures[name] = job["bw_bytes"] / 1e6 if "MB/s" in name else job["iops"] / 1e3
    return figures


def dbench(program, place, seconds):
    out = place.run([program, "-D", ".", "-t", str(max(2, seconds)), "2"])
    return {"file server, 2 clients, MB/s": number(r"^Throughput ([\d.]+) MB/sec", out)}


def stress_ng(program, place, seconds):
    figures = {}
    for stressor, more in (("dentry", ["--dentries", "512"]), ("rename", []), ("dir", ["--dir-dirs", "256"]), ("link", []),
                           ("hdd", ["--hdd-bytes", "8m"]), ("seek", ["--seek-size", "8m"])):
        place.run([program, "--" + stressor, "1", *more, "--temp-path", ".", "-t", "%ds" % seconds,
                   "--yaml", "stress.yaml", "--metrics-brief", "--no-rand-seed"])
        figures["%s, operations/s" % stressor] = number(r"bogo-ops-per-second-real-time: ([\d.]+)",
                                                        place.run(["cat", "stress.yaml"]))
    return figures


def sysbench(program, place, seconds):
    words = [program, "fileio", "--file-total-size=32M", "--file-num=16", "--file-test-mode=rndrw", "--file-fsync-freq=0"]
    place.run([*words, "prepare"])
    out = place.run([*words, "--time=%d" % seconds, "run"])
    return {"random reads, k/s": number(r"reads/s:\s+([\d.]+)", out) / 1e3,
            "random writes, k/s": number(r"writes/s:\s+([\d.]+)", out) / 1e3}


def elbencho(program, place, _):
    place.run([program, "-w", "-r", "--stat", "-F", "-d", "-D", "-t", "2", "-n", "4", "-N", "500", "-s", "4k", "--csvfile",
               "elbencho.csv", "."])
    lines = [line.split(",") for line in place.run(["cat", "elbencho.csv"]).strip().splitlines()]
    rows = [dict(zip(lines[0], line)) for line in lines[1:]]
    figures = {}
    for row in rows:
        rate = row.get("entries/s [last]")
        if rate:
            figures["%s, k/s" % row["operation"].lower()] = float(rate) / 1e3
    return figures


def dlio(program, place, _):
    """Its synthetic samples, made and read by PyTorch's loader."""
    words = [program, "workload=resnet50_a100", "++workload.framework=pytorch", "++workload.reader.data_loader=pytorch",
             "++workload.dataset.format=npz", "++workload.dataset.num_files_train=16",
             "++workload.dataset.num_samples_per_file=4", "++workload.train.epochs=1",
             "++workload.train.computation_time=0.001", "++workload.dataset.data_folder=./data",
             "++workload.output.folder=./out", "hydra.run.dir=./out"]
    place.run([*words, "++workload.workflow.generate_data=True", "++workload.workflow.train=False"], ranks=True)
    place.run([*words, "++workload.workflow.generate_data=False", "++workload.workflow.train=True"], ranks=True)
    summary = json.loads(place.run(["cat", "./out/summary.json"]))["metric"]
    return {"samples/s": float(summary["train_throughput_mean_samples_per_second"])}


def ior(program, place, _):
    out = place.run([program, *"-t 1m -b 4m -s 4 -i 10 -F -C -e -o ./filetest".split()], ranks=True)
    # Maximum, minimum and mean of all repetitions.
    summary = out[out.find("Summary of all tests"):]
    return {"%s, MiB/s" % name: number(r"^%s\s+[\d.]+\s+[\d.]+\s+([\d.]+)" % name, summary) for name in ("write", "read")}


def mdtest(program, place, _):
    out = place.run([program, *"-I 64 -L -z 0 -w 4096 -e 4096 -i 10 -R -P -d ./".split()], ranks=True)
    # Maximum, minimum and mean of all repetitions; the table of rates comes first.
    return {"%s, k/s" % name.lower(): number(r"^\s*%s\s*:?\s+[\d.]+\s+[\d.]+\s+([\d.]+)" % name, out) / 1e3
            for name in ("File creation", "File stat", "File read", "File removal")}


IO500_CONFIG = """[global]
datadir = ./data
resultdir = ./results
timestamp-datadir = FALSE
[debug]
stonewall-time = {seconds}
[ior-easy]
blockSize = 64m
[mdtest-easy]
n = 2000
[ior-hard]
segmentCount = 500
[mdtest-hard]
n = 1000
"""


def io500(program, place, seconds):
    config = IO500_CONFIG.format(seconds=max(1, seconds))
    place.run(["sh", "-c", 'printf %s "$0" > io500.ini', config])
    out = place.run([program, "io500.ini"], ranks=True)
    pattern = r"^\[SCORE *\]\s+Bandwidth ([\d.]+) GiB/s"
    return {"bandwidth, GiB/s": number(pattern, out),
            "metadata, kIOPS": number(r"^\[SCORE *\].*: IOPS ([\d.]+) kiops", out)}


def btio(program, place, _):
    out = place.run([program], ranks=True)
    return {"%s, MB/s" % os.path.basename(program): number(r"I/O data rate\s*\(MB/sec\)?\s*:?\s*([\d.]+)", out)}


# Name, the variable that names the program, its usual name, and what runs it.
PROGRAMS = [
    ("fio", "FIO", "fio", fio), ("dbench", "DBENCH", "dbench", dbench), ("stress-ng", "STRESS_NG", "stress-ng", stress_ng),
    ("sysbench", "SYSBENCH", "sysbench", sysbench), ("elbencho", "ELBENCHO", "elbencho", elbencho),
    ("dlio", "DLIO", "dlio_benchmark", dlio), ("ior", "IOR", "ior", ior), ("mdtest", "MDTEST", "mdtest", mdtest),
    ("io500", "IO500", "io500", io500), ("bt-io", "BTIO", None, btio)]
# What is needed beside the program itself.
NEEDS = {"dlio": "pip install dlio-benchmark, which brings TensorFlow, PyTorch and DALI"}


def find(name, variable, usual):
    """The path of a program, or why it is skipped."""
    given = os.environ.get(variable)
    path = shutil.which(given or usual or "")
    if path:
        return os.path.abspath(path), None
    if given:
        return None, "%s=%s is no program" % (variable, given)
    why = "not on $PATH" if usual else "not named"
    more = NEEDS.get(name, "%s=PATH names it" % variable)
    return None, "%s (%s)" % (why, more)


def shown(value):
    return "%.0f" % value if value >= 1000 else "%.3g" % value


def table(figures, places):
    rows = [["program", "figure", TMPFS] + [word for place in places[1:] for word in (place.name, "ratio")]]
    for program, name, values in figures:
        row = [program, name, shown(values[TMPFS])]
        for place in places[1:]:
            value = values.get(place.name)
            row += ["-", "-"] if value is None else [shown(value), "%.2f" % (value / values[TMPFS])]
        rows.append(row)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) if n < 2 else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths))).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--only", action="append", choices=[name for name, *_ in PROGRAMS])
    parser.add_argument("--place", action="append", choices=[PRELOAD, MOUNT, FOUR])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    figures, skipped, failed = [], [], []
    with Places(options.place or [PRELOAD, MOUNT, FOUR]) as places:
        skipped += places.skipped
        for name, variable, usual, run in PROGRAMS:
            if options.only and name not in options.only:
                continue
            program, why = find(name, variable, usual)
            if program is None:
                skipped.append("%s: %s" % (name, why))
                continue
            by_figure = {}
            for place in places.all:
                try:
                    place.clear()
                    for figure, value in run(program, place, max(1, options.seconds)).items():
                        by_figure.setdefault(figure, {})[place.name] = value
                    place.clear()
                except Failed as e:
                    failed.append("%s on %s: %s" % (name, place.name, e))
            figures += [(name, figure, values) for figure, values in by_figure.items() if values.get(TMPFS)]
        if figures:
            table(figures, places.all)
        for line in skipped:
            print("skipped  " + line)
        for line in failed:
            print("FAILED   " + line)
        if options.json:
            with open(options.json, "w") as f:
                json.dump({"figures": [{"program": p, "figure": n, "values": v} for p, n, v in figures],
                           "skipped": skipped, "failed": failed}, f, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
