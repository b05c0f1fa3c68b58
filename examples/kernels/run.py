#!/usr/bin/env python3
"""Runs the use-case kernels: with POSIX calls on tmpfs and in a pool, and with the verbs, each with the default
controls and with those that the kernel declares; on pools of one node and of several on this host.

Each figure is the median of --reps runs, all ways in turn. The tables are Markdown; the last columns say what declaring the controls changes:
all of them, and, where there are several, what each adds to the others.
--check runs all once, small, for the tests. Needs `make build` before, which builds stream.rs, too.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))

import pools  # noqa: E402 (found by the path set above)
from pools import FOREBAY, ROOT, TARGET, Failed, run  # noqa: E402 (found by the path set above)

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
# Name, and what else is said.
KERNELS = [("ior_easy",), ("ior_hard",), ("strided",), ("strided", "--collective"), ("chunks",), ("stream",),
           ("checkpoint",), ("update",), ("samples",), ("creates",), ("creates", "--apart"), ("stream-cpp",), ("stream-rs",)]
POSIX = ["tmpfs", "pool", "pool+"]
VERBS = ["verbs", "verbs+"]


def compiled(room, c, cpp, stream_rs):
    """The programs, by name. The one in Rust, `stream_rs`, is there already; None: not wanted."""
    def one(compiler, standard, sources, to, *more):
        run([compiler, "-std=" + standard, "-O2", "-g", *WARNINGS, *more, "-I", os.path.join(ROOT, "include"),
             "-I", HERE, "-o", to, *sources])
        return to

    link = ["-L", TARGET, "-Wl,-rpath," + TARGET, "-lforebay_iov"]
    kit = [one(c, "c11", [os.path.join(HERE, s)], os.path.join(room, s + ".o"), "-c") for s in ("kernel.c", "objects.c")]
    programs = {}
    for name in sorted({kernel[0] for kernel in KERNELS} - {"stream-cpp", "stream-rs"}):
        programs[name] = one(c, "c11", [os.path.join(HERE, name + ".c"), *kit, *link], os.path.join(room, name))
    programs["stream-cpp"] = one(cpp, "c++20", [os.path.join(HERE, "stream.cpp"), *kit, *link],
                                 os.path.join(room, "stream-cpp"))
    if stream_rs:
        programs["stream-rs"] = stream_rs
        if not os.path.exists(stream_rs):
            raise Failed("%s isn't built: cargo build --release -p forebay-verbs --example kernel-stream" % stream_rs)
    return programs


class Pool(pools.Pool):
    """A pool, and a directory of tmpfs beside it."""

    def __init__(self, nodes, media):
        super().__init__("kernels", nodes, media)
        self.plain = os.path.join(self.home, "plain")
        os.mkdir(self.plain)

    def ranks(self, command, way, ranks, kernel=None):
        """What the ranks of a kernel say together: forked by one process on one node; else started at their nodes."""
        place = {"tmpfs": self.plain, "pool": "/fb"}.get(way.rstrip("+"))
        said = ["--posix", place] if place else ["--place", "pool:" + self.pool]
        said += ["--controls", controls_of(kernel, way), "--ranks", str(ranks)]
        at = [(0, [])]
        if self.nodes > 1:
            meet = os.path.join(self.home, "meet")
            if os.path.exists(meet):
                os.remove(meet)
            at = [(r, ["--rank", str(r), "--meet", meet]) for r in range(ranks)]
        commands = []
        for node, rank in at:
            words, environment = [*command, *said, *rank], self.environment
            if way.startswith("pool"):
                words = self.on(node, words)
            elif self.nodes > 1:
                environment = {**environment, "FOREBAY_NODE": str(node % self.nodes)}
            commands.append((words, environment))
        return pools.run_together("%s, %s, %d nodes" % (" ".join(command), way, self.nodes), commands)

    def rust(self, program, way, ranks, scale):
        """stream.rs has a command line of its own, and threads for ranks."""
        controls = "declared" if way.endswith("+") else "default"
        return run([program, "pool:" + self.pool, str(ranks), str(5 * scale), controls],
                   env={**self.environment, "FOREBAY_NODE": "0"} if self.nodes > 1 else self.environment)


def figures(line):
    """`name write=12.3MB/s ... ranks=2 ...` -> [("write", 12.3, "MB/s")]"""
    found = re.findall(r" ([\w-]+)=([0-9.]+)([A-Za-z/]*)", line.split(" ranks=")[0])
    if not found:
        raise Failed("no figures: " + line)
    return [(what, float(value), unit) for what, value, unit in found]


def declared(kernel):
    """The controls that a kernel declares."""
    path = os.path.join(HERE, kernel[0] + ".c")
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [c for c in re.search(r'\.declares = "([^"]*)"', f.read()).group(1).split(",") if c]


def controls_of(kernel, way):
    """What is said in a way: `verbs-CONTROL` is all but that."""
    if "-" not in way:
        return "declared" if way.endswith("+") else "default"
    return ",".join(c for c in declared(kernel) if c != way.split("-", 1)[1])


def ways_of(kernel, leave_out):
    ways = (POSIX if kernel[0] not in ("stream-cpp", "stream-rs") else []) + VERBS
    all = declared(kernel)
    if not all and kernel[0] not in ("stream-cpp", "stream-rs"):
        ways = [w for w in ways if not w.endswith("+")]
    return ways + ["verbs-" + control for control in all if leave_out and len(all) > 1]


def measured(programs, pool, kernel, ranks, scale, reps, leave_out=True):
    """Figures by phase and way, and which controls weren't kept."""
    found, refused = {}, set()
    for _ in range(reps):
        for way in ways_of(kernel, leave_out):
            if kernel[0] == "stream-rs":
                line = pool.rust(programs[kernel[0]], way, ranks, scale)
            else:
                line = pool.ranks([programs[kernel[0]], *kernel[1:], "--scale", str(scale)], way, ranks, kernel)
            refused.update((way, what) for what in re.findall(r"\(([^()]+: not kept here)\)", line))
            for what, value, unit in figures(line):
                found.setdefault((what, unit), {}).setdefault(way, []).append(value)
    return found, refused


def table(programs, nodes, ranks, scale, reps, only, media):
    print("\n%s, %d ranks; +: with the controls that the kernel declares\n"
          % ("One node" if nodes == 1 else "%d nodes" % nodes, ranks))
    heads = ["kernel", "", *POSIX, *VERBS, "pool+ / pool", "verbs+ / verbs", "each control adds"]
    print("| %s |\n|%s" % (" | ".join(heads), "---|" * len(heads)))
    notes = []
    with Pool(nodes, media) as pool:
        for kernel in KERNELS:
            if only and kernel[0] not in only:
                continue
            found, refused = measured(programs, pool, kernel, ranks, scale, reps)
            for (what, unit), by_way in found.items():
                medians = {way: statistics.median(all) for way, all in by_way.items()}
                cells = ["%.0f" % medians[w] if w in medians else "" for w in POSIX + VERBS]
                for way in ("pool", "verbs"):
                    one, both = medians.get(way, 0), medians.get(way + "+")
                    cells.append("%.2f" % (both / one) if one and both and unit else "")
                alone = [(w.split("=")[1], medians["verbs+"] / m) for w, m in medians.items() if "=" in w and m and unit]
                cells.append(", ".join("%s %.2fx" % one for one in alone))
                print("| %s | %s | %s |" % (" ".join(kernel), what + " " + unit, " | ".join(cells)), flush=True)
            notes += ["%s, %s: %s" % (kernel[0], way, what) for way, what in sorted(refused)]
    for note in notes:
        print("- " + note)


def check(programs, clang, room):
    """Everything once, small; and that a kernel finds out what isn't kept."""
    for nodes, ranks in ((1, 2), (3, 3)):
        with Pool(nodes, "memory:192M") as pool:
            for kernel in KERNELS:
                found, _ = measured(programs, pool, kernel, ranks, 1, 1, False)
                print("passed  %s on %d nodes: %s" % (" ".join(kernel), nodes, ", ".join(w for w, _ in found)), flush=True)
            if nodes > 1:
                continue
            # Bytes that are in another process.
            for name in ("ior_easy", "ior_hard"):
                try:
                    said = pool.ranks([programs[name], "--backend", "memory", "--scale", "1"], "verbs", 2)
                except Failed as error:
                    said = str(error)
                if "the memory of the process" not in said and "read: 0 bytes" not in said:
                    raise Failed("with the back end memory: " + said)
            scratch = os.path.join(pool.home, "scratch")
            os.mkdir(scratch)
            pool.ranks([programs["chunks"], "--backend", "directory:" + scratch, "--scale", "1"], "verbs", 2)
            if clang:
                pool.ranks([compiled(room, "clang", "clang++", programs["stream-rs"])["chunks"], "--scale", "1"], "verbs", 2)
            if os.listdir(pool.plain) or os.listdir(scratch):
                raise Failed("left: %s" % (os.listdir(pool.plain) + os.listdir(scratch)))
            run([FOREBAY, "fsck", "--pool", pool.pool], env=pool.environment)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="all once and small, for the tests")
    parser.add_argument("--stream-rs", metavar="PATH", default=os.path.join(TARGET, "examples", "kernel-stream"),
                        help="the example kernel-stream of the crate verbs (default: the optimised one)")
    parser.add_argument("--nodes", default="1,4", help="pools of so many nodes (default: 1,4)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--scale", type=int, default=4, help="how much a kernel does (default: 4)")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--media", default="memory:1G", help="of each node")
    parser.add_argument("--only", default="", help="kernels, with commas between")
    options = parser.parse_args()
    room = tempfile.mkdtemp(prefix="forebay-kernels-")
    try:
        programs = compiled(room, "gcc", "g++", options.stream_rs)
        if options.check:
            check(programs, shutil.which("clang"), room)
            print("all kernels passed")
            return
        for nodes in options.nodes.split(","):
            table(programs, int(nodes), options.ranks, options.scale, options.reps,
                  [o for o in options.only.split(",") if o], options.media)
    except (Failed, subprocess.TimeoutExpired, OSError) as error:
        sys.exit("FAILED  %s" % error)
    finally:
        shutil.rmtree(room, ignore_errors=True)


if __name__ == "__main__":
    main()
