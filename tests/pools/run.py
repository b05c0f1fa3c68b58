#!/usr/bin/env python3
"""Whole-system tests of pools: two at once, killed ones, unreachable and damaged
ones, full media, interrupted staging, odd mount prefixes, wrong options.

Each case is a function in cases/. It runs in a process of its own with its own
FOREBAY_HOME below /dev/shm, its own directory on a real file system, and its own
time limit; programs run under `forebay exec` or `forebay run` with the real
library. What a case leaves behind, processes and directories, is removed.
"""
import argparse
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)

import cases  # noqa: E402 (found by the path set above)
import harness  # noqa: E402 (found by the path set above)

print_lock = threading.Lock()
# The user's options for the cases.
PASSED_VARIABLES = ("FOREBAY_TEST_NODES", "FOREBAY_CHECK_SECONDS", "FOREBAY_KILLS", "FOREBAY_SEED")


def say(text):
    with print_lock:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class Runner:
    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.stopping = False
        self.marks = {}

    def make_room(self):
        base = tempfile.mkdtemp(prefix="fbp-", dir="/dev/shm")
        disk = tempfile.mkdtemp(prefix="fbp-", dir=self.options.disk)
        os.chmod(base, 0o755)
        return base, disk

    def run(self, name):
        """Runs one case: (passed, seconds, details)."""
        limit = harness.CASES[name].limit * self.options.slow
        mark = "%d-%d-%s" % (os.getpid(), random.getrandbits(32), name)
        base, disk = self.make_room()
        with self.lock:
            if self.stopping:
                shutil.rmtree(base, ignore_errors=True)
                shutil.rmtree(disk, ignore_errors=True)
                raise SystemExit
            self.marks[mark] = (base, disk)
        log = os.path.join(base, "case.log")
        env = {k: v for k, v in os.environ.items()
               if (k in PASSED_VARIABLES or not k.startswith(("FOREBAY_", "PYTHON", "LC_"))) and k not in (
                   "LD_PRELOAD", "BASH_ENV", "ENV", "CDPATH", "TMPDIR", "POSIXLY_CORRECT",
                   "BLOCK_SIZE", "LS_COLORS")}
        env.update(LANG="C", LC_ALL="C", TZ="UTC", FOREBAY_HOME=os.path.join(base, "home"),
                   FOREBAY_TEST_MARK=mark, PYTHONDONTWRITEBYTECODE="1")
        began = time.monotonic()
        details = ""
        try:
            with open(log, "wb") as out:
                process = subprocess.Popen(
                    [sys.executable, os.path.abspath(sys.argv[0]), "--one", name, "--base", base,
                     "--disk", disk, "--forebay", self.options.forebay],
                    env=env, cwd=base, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True)
            try:
                rc = process.wait(limit)
            except subprocess.TimeoutExpired:
                rc = None
                if not self.stopping:
                    details = "  took more than its %g seconds\n" % limit
                    pids = harness.processes_with("FOREBAY_TEST_MARK=" + mark)
                    details += "".join(harness.stacks(pid) for pid in sorted(pids)[:16])
            seconds = time.monotonic() - began
            with open(log, errors="backslashreplace") as f:
                details = f.read() + details
        finally:
            self.end_all(mark)
            # A case whose process was killed is no zombie for longer than this.
            try:
                process.wait(5)
            except (subprocess.TimeoutExpired, UnboundLocalError):
                pass
            if self.options.keep:
                say("kept: %s: %s %s" % (name, base, disk))
            else:
                shutil.rmtree(base, ignore_errors=True)
                shutil.rmtree(disk, ignore_errors=True)
            with self.lock:
                self.marks.pop(mark, None)
        if rc == harness.SKIPPED:
            return None, seconds, details
        return rc == 0, seconds, details

    def end_all(self, mark):
        """Kills what a case has started, again until nothing is left."""
        until = time.monotonic() + 10
        while True:
            pids = harness.processes_with("FOREBAY_TEST_MARK=" + mark)
            if not pids or time.monotonic() > until:
                return
            for pid in pids:
                harness.kill(pid)
            time.sleep(0.02)

    def stop(self):
        with self.lock:
            self.stopping = True
            marks = list(self.marks)
        for mark in marks:
            self.end_all(mark)


def main():
    parser = argparse.ArgumentParser(description="Whole-system tests of pools.")
    parser.add_argument("--only", action="append", metavar="NAME",
                        help="this case only (may be given more than once)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--keep", action="store_true", help="keep what the cases leave behind")
    parser.add_argument("--forebay", metavar="PATH",
                        default=os.path.join(ROOT, "target", "release", "forebay"))
    parser.add_argument("--disk", default="/var/tmp", metavar="DIR",
                        help="where directories for `files` media are made (default /var/tmp)")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="cases at a time (default 2)")
    parser.add_argument("--slow", type=float, default=1, metavar="FACTOR",
                        help="multiply the time limits of the cases")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--base", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.forebay = os.path.abspath(options.forebay)

    if options.one:
        return harness.run_one(options.one, options.forebay, options.base, options.disk)
    names = list(harness.CASES)
    if options.only:
        unknown = sorted(set(options.only) - set(names))
        if unknown:
            parser.error("no case named %s; see --list" % ", ".join(unknown))
        names = [n for n in names if n in options.only]
    if options.list:
        for name in names:
            say(name)
        return 0
    if not os.access(options.forebay, os.X_OK):
        parser.error("%s is not there: build it (cargo build --release) or name it with --forebay"
                     % options.forebay)

    runner = Runner(options)
    width = max(len(n) for n in names)
    counts = [0, 0, 0]
    failed = []

    def one(name):
        try:
            passed, seconds, details = runner.run(name)
        except Exception as e:  # noqa: BLE001 (whatever it was: the other cases go on)
            passed, seconds, details = False, 0, "  the runner itself failed: %r\n" % e
        if runner.stopping:
            return
        counts[2 if passed is None else 0 if passed else 1] += 1
        if passed is False:
            failed.append(name)
        word = "skipped" if passed is None else "passed" if passed else "FAILED"
        line = "%-7s %-*s  %6.2f s" % (word, width, name, seconds)
        say(line if not details.strip() else line + "\n" + details.rstrip("\n"))

    def interrupted(number, _frame):
        raise SystemExit(number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, interrupted)
    pool = concurrent.futures.ThreadPoolExecutor(max(1, options.jobs))
    # The long ones first, so that none of them runs alone at the end.
    order = sorted(names, key=lambda n: -harness.CASES[n].limit)
    try:
        for future in [pool.submit(one, n) for n in order]:
            future.result()
    except SystemExit:
        runner.stop()
        pool.shutdown(wait=True, cancel_futures=True)
        say("interrupted; cases not finished count as failed")
        counts[1] = len(names) - counts[0]
    say("%d passed, %d failed" % tuple(counts[:2])
        + (", %d skipped" % counts[2] if counts[2] else "")
        + (": " + " ".join(failed) if failed else ""))
    return 1 if counts[1] or not counts[0] else 0


if __name__ == "__main__":
    sys.exit(main())
