#!/usr/bin/env python3
"""Tests of the C interface of the verbs.

The headers, the library and tests/verbs/abi.txt (symbols, layouts, numbers) say the same; a change of the
interface fails until it is recorded (--record) and the version in the header is thought about. The C program that
uses every function is compiled by gcc and clang with warnings as errors and run on a session in memory and on
a pool: plainly, under valgrind, and with sanitizers. One in C++20 uses iov.hpp in the same way. Examples are built with what
packaging/install has installed, by pkg-config and CMake. The use-case kernels of examples/kernels run on one node and on three. The command line is tried with an etcd, too.
"""
import argparse
import concurrent.futures
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release")
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wstrict-prototypes", "-Werror"]
RECORD = os.path.join(HERE, "abi.txt")
# Rust's types as C has them. Handles: crates/faces/verbs/src/capi.
TYPES = {
    "Session": "iov_session", "Workspace": "iov_workspace", "Collection": "iov_collection",
    "Collected": "iov_batch", "Records": "iov_records", "abi::Pair": "struct iov_pair",
    "abi::Options": "struct iov_options", "abi::Record": "struct iov_record",
    "abi::Uuid": "struct iov_uuid", "abi::Token": "struct iov_token", "abi::Function": "iov_function*",
    "c_char": "char", "c_void": "void", "c_int": "int",
    "i64": "int64_t", "u64": "uint64_t", "u32": "uint32_t", "usize": "size_t",
}


class Failed(Exception):
    pass


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240,
                          text=True, **more)
    if done.returncode != 0:
        raise Failed("%s: exit status %d\n%s" % (" ".join(command), done.returncode, done.stdout))
    return done.stdout


def c_prototypes():
    """The functions of iov.h: name -> types of the result and the arguments, without const."""
    with open(os.path.join(ROOT, "include/forebay/iov.h")) as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    found = {}
    for result, name, arguments in re.findall(r"^(?!typedef)([\w ]+?[ *]+)(iov_\w+)\(([^)]*)\);", text, re.M):
        types = []
        for argument in arguments.split(","):
            argument = re.sub(r"\bconst\b|\s+", " ", argument).strip()
            types.append(re.sub(r"\s*\b\w+$", "", argument) if argument != "void" else "")
        types = [plain(t) for t in types if t]
        found[name] = [plain(re.sub(r"\bconst\b", "", result))] + types
    return found


def plain(c_type):
    c_type = re.sub(r"enum \w+", "int", c_type)
    return re.sub(r"\s+", "", c_type.replace("struct ", "struct_"))


def rust_signatures():
    """The same of crates/faces/verbs/src/capi."""
    found = {}
    folder = os.path.join(ROOT, "crates/faces/verbs/src")
    files = [os.path.join(folder, "capi.rs")]
    files += [os.path.join(folder, "capi", f) for f in os.listdir(os.path.join(folder, "capi"))]
    for path in files:
        with open(path) as f:
            text = f.read()
        pattern = r'extern "C" fn (iov_\w+)\(([^)]*)\)(?:\s*->\s*([^{]+?))?\s*\{'
        for name, arguments, result in re.findall(pattern, text):
            types = [a.split(":", 1)[1] for a in re.split(r",\s*", arguments.strip(", \n")) if a]
            found[name] = [c_type(t.strip()) for t in [result or "void"] + types]
    return found


def c_type(rust):
    stars = len(re.findall(r"\*(?:mut|const) ", rust))
    base = re.sub(r"\*(?:mut|const) ", "", rust)
    return plain(TYPES.get(base, base)) + "*" * stars


def check_signatures():
    header, library = c_prototypes(), rust_signatures()
    if header != library:
        wrong = [n for n in sorted(set(header) | set(library)) if header.get(n) != library.get(n)]
        raise Failed("\n".join("%s: the header has %s, the library %s"
                               % (n, header.get(n), library.get(n)) for n in wrong))
    return header


def check_record(room, record):
    prototypes = check_signatures()
    library = os.path.join(TARGET, "libforebay_iov.so")
    symbols = [line.split()[-1] for line in run(["nm", "-D", "--defined-only", library]).splitlines()]
    symbols = sorted(s for s in symbols if s.startswith("iov_"))
    if symbols != sorted(prototypes):
        raise Failed("the library has %s\nthe header %s" % (symbols, sorted(prototypes)))
    layout = os.path.join(room, "layout")
    run(["gcc", "-std=c11", *WARNINGS, "-I", os.path.join(ROOT, "include"), "-o", layout,
         os.path.join(HERE, "layout.c")])
    now = "".join("%s(%s) %s\n" % (n, ", ".join(prototypes[n][1:]), prototypes[n][0]) for n in symbols)
    now += run([layout])
    run(["g++", "-std=c++20", "-fsyntax-only", *WARNINGS[:-2], "-Werror", "-x", "c++",
         os.path.join(ROOT, "include/forebay/iov_backend.h")])
    if record:
        with open(RECORD, "w") as f:
            f.write(now)
    with open(RECORD) as f:
        recorded = f.read()
    if now != recorded:
        gone = set(recorded.splitlines()) - set(now.splitlines())
        new = set(now.splitlines()) - set(recorded.splitlines())
        raise Failed("the interface has changed: gone %s, new %s. What programs rely on keeps its form, or the version "
                     "in the header changes; then: tests/verbs/run.py --record" % (sorted(gone), sorted(new)))


def compiled(room, compiler, name, *options):
    to = os.path.join(room, "%s-%s" % (name, compiler))
    include = ["-I", os.path.join(ROOT, "include")]
    heap = to + "-heap.so"
    common = [compiler, "-std=c11", "-g", "-O1", *WARNINGS, *include, *options]
    run([*common, "-shared", "-fPIC", "-o", heap,
         os.path.join(ROOT, "examples/backends/heap.c"), "-lpthread"])
    run([*common, "-o", to, os.path.join(HERE, "verbs.c"),
         "-L", TARGET, "-lforebay_iov", "-Wl,-rpath," + TARGET])
    return to, heap


def up(nodes):
    """The command that makes a pool of `nodes` nodes."""
    several = ["--nodes", str(nodes)] if nodes > 1 else []
    return [os.path.join(TARGET, "forebay"), "up", "--pool", "verbs", "--media", "memory:64M", *several]


def command_line(room, nodes):
    """`forebay workspace` and `collection`, on a pool of `nodes` nodes."""
    home = tempfile.mkdtemp(prefix="forebay-verbs-", dir="/dev/shm")
    environment = {**os.environ, "FOREBAY_HOME": home, "FOREBAY_POOL": "verbs"}
    program = os.path.join(TARGET, "forebay")

    def forebay(*words, status=0, says="", given=None, umask=-1):
        done = subprocess.run([program, *words], input=given, capture_output=True, timeout=120, env=environment,
                              umask=umask)
        told = done.stderr.decode()
        if done.returncode != status or says not in told:
            raise Failed("%s: exit status %d, %r isn't in:\n%s" % (" ".join(words), done.returncode, says, told))
        return done.stdout

    def names(*words):
        return forebay(*words).decode().split()

    def expect(what, is_, should):
        if is_ != should:
            raise Failed("%s: %r instead of %r" % (what, is_, should))

    try:
        forebay("workspace", "list", status=3, says="verbs")
        rules = os.path.join(room, "rules-%d" % nodes)
        with open(rules, "w") as f:
            f.write("[[rule]]\npath = '/own.*/**'\nparallelism = 'exclusive(node)'\n"
                    "[[rule]]\npath = '/w/*.only-grows'\nmutability = 'append'\n")
        run([*up(nodes), "--rules", rules], env=environment)
        forebay("workspace", "create", "w", "--meta", "owner=me")
        forebay("workspace", "create", "w", status=1, says="exists already")
        forebay("workspace", "create", "a/b", status=2, says="'/'")
        forebay("workspace", "create", "empty")
        expect("workspaces", names("workspace", "list"), ["empty", "w"])
        expect("workspaces of mine", names("workspace", "find", 'owner = "me"'), ["w"])
        forebay("workspace", "rm", "empty")

        forebay("collection", "create", "no", "c", status=1, says="forebay workspace create no")
        forebay("collection", "create", "w", "c", "--meta", "step", status=2, says="KEY=VALUE")
        forebay("collection", "create", "w", "c", "--control", "mutability=sometimes", status=2, says="mutability")
        forebay("collection", "create", "w", "log", "--meta", "step=3", "--control", "mutability=append")
        content = os.urandom(9 << 20)
        file = os.path.join(room, "put-%d" % nodes)
        with open(file, "wb") as f:
            f.write(content)
        forebay("collection", "put", "w", "big", file, "--meta", "step=10", "--meta", "project=mcse")
        expect("what was put", forebay("collection", "get", "w", "big"), content)
        forebay("collection", "put", "w", "big", "-", "--meta", "step=11", given=b"short")
        forebay("collection", "get", "w", "big", file + "-got")
        with open(file + "-got", "rb") as f:
            expect("what replaced it", f.read(), b"short")
        forebay("collection", "put", "w", "big", room, status=1, says="can't be read")
        shown = json.loads(forebay("collection", "show", "w", "big", "--json"))
        expect("its metadata", shown["meta"], {"project": "mcse", "step": "11"})
        expect("its size", shown["size"], 5)
        expect("controls", json.loads(forebay("collection", "find", "w", "step < 4", "--json"))[0]["controls"],
               "mutability=append")
        expect("a file", forebay("exec", "--", "cat", "/fb/w/big"), b"short")
        # Rules hold for collections and workspaces as for files and directories.
        forebay("collection", "create", "w", "x.only-grows", "--control", "consistency=commit")
        expect("by a rule", json.loads(forebay("collection", "show", "w", "x.only-grows", "--json"))["controls"],
               "consistency=commit,mutability=append")
        forebay("collection", "rm", "w", "x.only-grows")
        for name, how in (("own.1", b"local-all"), ("others", b"local")):
            forebay("workspace", "create", name)
            expect(name, nodes == 1 or how in forebay("rules", "explain", "/" + name).split(), True)
            forebay("workspace", "rm", name)
        forebay("workspace", "create", "mine", umask=0o027)
        forebay("collection", "put", "mine", "file", "-", given=b"x", umask=0o077)
        modes = [line.split()[0] for where in ("/", "/mine")
                 for line in forebay("ls", "-l", where).decode().splitlines() if line.endswith((" mine", " file"))]
        expect("modes", modes, ["drwxr-x---", "-rw-------"])
        forebay("collection", "rm", "mine", "file")
        forebay("workspace", "rm", "mine")
        forebay("collection", "find", "w", "step =", status=2, says="column 7")
        forebay("collection", "get", "w", "nothing", status=1, says="nothing")

        source, back = (os.path.join(room, "%s-%d" % (what, nodes)) for what in ("import", "export"))
        os.makedirs(os.path.join(source, "below"))
        # Enough bytes that movers are started on the other nodes.
        many = 1800 if nodes > 1 else 60
        for n in range(many):
            with open(os.path.join(source, "f%04d" % n), "wb") as f:
                f.write(content[n:n + n % 100 * 50])
        open(os.path.join(source, ".hidden"), "w").close()
        report = json.loads(forebay("collection", "import", "w", source, "--meta", "project=import", "--json",
                                    says="below: left out"))
        expect("files that were moved", report["moved_files"], many)
        if nodes > 1 and len(report["nodes"]) != nodes:
            raise Failed("these nodes took part: %s" % report["nodes"])
        # Each has made about as many as the others, and has them.
        made = {share["node"]: share["moved_files"] for share in report["nodes"]}
        if nodes > 1 and (sum(made.values()) != many or min(made.values()) < many / nodes / 2):
            raise Failed("files that each node made: %s" % made)
        expect("what was imported", len(names("collection", "find", "w", 'project = "import"')), many)
        for n in (20, 21, 22):
            with open(os.path.join(source, "f%04d" % n), "rb") as f:
                step = ["--meta", "step=%d" % n]
                forebay("collection", "put", "w", "f%04d" % n, "-", *step, given=f.read())
        expect("a range", names("collection", "find", "w", "step > 11 and step <= 21.5"), ["f0020", "f0021"])
        forebay("collection", "export", "w", back, 'project = "import" and step >= 21')
        expect("what was exported", sorted(os.listdir(back)), ["f0021", "f0022"])
        report = json.loads(forebay("collection", "export", "w", back, "--json"))
        expect("nodes that wrote it", len(report["nodes"]) if nodes > 1 else 1, nodes)
        # Each what lies with it: what it has made, but for the two that are there already and those of other commands.
        wrote = {share["node"]: share["moved_files"] for share in report["nodes"]}
        if any(abs(wrote.get(n, 0) - made[n]) > 6 for n in made):
            raise Failed("made by %s, but written by %s" % (made, wrote))
        expect("all of it", len(os.listdir(back)), many + 2)
        for n in range(many):
            with open(os.path.join(back, "f%04d" % n), "rb") as f:
                expect("the content of f%04d" % n, f.read(), content[n:n + n % 100 * 50])
        forebay("workspace", "rm", "w", status=1, says="has collections")
        # Killed while it removes: each is there, whole, or gone.
        there = names("collection", "list", "w")
        for delay in (0.03, 0.08, 0.2):
            with subprocess.Popen([program, "collection", "rm", "w", *there[:len(there) // 3]], env=environment,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as half:
                try:
                    half.wait(delay)
                except subprocess.TimeoutExpired:
                    half.kill()
            # The keeper completes what it had begun.
            time.sleep(2.5)
            there = names("collection", "list", "w")
        for name in [n for n in there if n[:1] == "f"][::50]:
            n = int(name[1:])
            expect("what is left in " + name, forebay("collection", "get", "w", name), content[n:n + n % 100 * 50])
        forebay("fsck")
        forebay("collection", "rm", "w", "missing", *there[:9], "gone", status=1, says="gone")
        forebay("collection", "rm", "w", *there[9:])
        expect("what is left", names("collection", "list", "w"), [])
        forebay("workspace", "rm", "w")
        forebay("fsck")
    finally:
        subprocess.run([program, "down", "--force"], env=environment,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        shutil.rmtree(home, ignore_errors=True)


class Etcd:
    """An etcd on this host, which goes with this process."""

    def __init__(self, room):
        def free_port():
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                return s.getsockname()[1]

        self.port = free_port()
        client, peer = ("http://127.0.0.1:%d" % p for p in (self.port, free_port()))
        data = tempfile.mkdtemp(dir=room)
        if not shutil.which("etcd"):
            raise Failed("there is no etcd: tests/install-packages installs it (etcd-server)")
        self.process = subprocess.Popen(
            ["etcd", "--name", "t", "--data-dir", data, "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "t=" + peer,
             "--unsafe-no-fsync", "--log-level", "error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))

    def place(self, rest=""):
        return "etcd://127.0.0.1:%d%s" % (self.port, rest)

    def __enter__(self):
        until = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen("http://127.0.0.1:%d/health" % self.port, timeout=5) as answer:
                    if b"true" in answer.read():
                        return self
            except OSError:
                pass
            if time.monotonic() > until or self.process.poll() is not None:
                self.__exit__()
                raise Failed("etcd doesn't answer")
            time.sleep(0.05)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def command_line_etcd(room):
    """`forebay workspace` and `collection`, with metadata in etcd and bytes in two pools."""
    home = tempfile.mkdtemp(prefix="forebay-verbs-", dir="/dev/shm")
    program = os.path.join(TARGET, "forebay")
    with Etcd(room) as etcd:
        environment = {**os.environ, "FOREBAY_HOME": home, "FOREBAY_METADATA": etcd.place()}

        def forebay(*words, status=0, says="", given=None):
            done = subprocess.run([program, *words], input=given, capture_output=True, timeout=120, env=environment)
            told = done.stderr.decode()
            if done.returncode != status or says not in told:
                raise Failed("%s: exit status %d, %r isn't in:\n%s" % (" ".join(words), done.returncode, says, told))
            return done.stdout.decode()

        def expect(what, is_, should):
            if is_ != should:
                raise Failed("%s: %r instead of %r" % (what, is_, should))

        try:
            for pool in ("one", "two"):
                run([program, "up", "--pool", pool, "--media", "memory:64M"], env=environment)
            forebay("collection", "list", "w", status=1, says="forebay workspace create w --store " + etcd.place())
            forebay("workspace", "create", "w", "--meta", "owner=me")
            forebay("collection", "put", "w", "a", "-", "--meta", "step=1", "--pool", "one", given=b"in one")
            forebay("collection", "put", "w", "b", "-", "--meta", "step=2", "--pool", "two", given=b"in two")
            expect("what is found", forebay("collection", "find", "w", "step >= 1"), "a\nb\n")
            expect("bytes", forebay("collection", "get", "w", "b", "--pool", "two"), "in two")
            expect("the file", forebay("exec", "--pool", "one", "--", "cat", "/fb/w/a"), "in one")
            forebay("collection", "get", "w", "a", "--pool", "two", status=1, says="the pool 'one'")
            shown = json.loads(forebay("collection", "show", "w", "a", "--json", "--pool", "two"))
            expect("its place", shown["place"][:14], "the pool 'one'")
            source, back = tempfile.mkdtemp(dir=room), tempfile.mkdtemp(dir=room)
            with open(os.path.join(source, "a"), "w") as f:
                f.write("in two")
            forebay("collection", "import", "w", source, "--pool", "two", status=120, says="the pool 'one'")
            expect("what is there", forebay("collection", "get", "w", "a", "--pool", "one"), "in one")
            forebay("collection", "export", "w", back, "--pool", "two", status=120, says="the pool 'one'")
            expect("what was exported", os.listdir(back), ["b"])
            forebay("collection", "list", "w", "--store", "memory", status=2, says="etcd://")
            forebay("collection", "list", "w", "--store", "etcd:here", status=2, says="etcd://[USER@]HOST")
            run([program, "down", "--pool", "one"], env=environment)
            # Their records outlive the pool.
            expect("what is left", forebay("collection", "find", "w", "step = 1", "--pool", "one"), "a\n")
            forebay("collection", "rm", "w", "b", "--pool", "two")
            expect("what is left", forebay("collection", "list", "w", "--pool", "two"), "a\n")
            expect("local copies", len(os.listdir(home + "-cache")), 1)
            uncached = etcd.place("?cache=off")
            expect("without one", forebay("collection", "list", "w", "--store", uncached), "a\n")
            elsewhere = etcd.place("/elsewhere")
            expect("elsewhere", forebay("workspace", "list", "--store", elsewhere), "")
            etcd.process.kill()
            forebay("workspace", "list", status=1, says="no answer from etcd")
        finally:
            for pool in ("one", "two"):
                subprocess.run([program, "down", "--force", "--pool", pool], env=environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
            shutil.rmtree(home, ignore_errors=True)
            shutil.rmtree(home + "-cache", ignore_errors=True)


def import_export_etcd(room, nodes):
    """Files become collections known to an etcd, and files again: by all nodes of the pool, and to directories through the command."""
    home = tempfile.mkdtemp(prefix="forebay-verbs-", dir="/dev/shm")
    program = os.path.join(TARGET, "forebay")
    with Etcd(room) as etcd:
        environment = {**os.environ, "FOREBAY_HOME": home, "FOREBAY_POOL": "verbs", "FOREBAY_METADATA": etcd.place()}

        def forebay(*words, status=0, says=""):
            done = subprocess.run([program, *words], capture_output=True, timeout=120, env=environment)
            told = done.stderr.decode()
            if done.returncode != status or says not in told:
                raise Failed("%s: exit status %d, %r isn't in:\n%s" % (" ".join(words), done.returncode, says, told))
            return done.stdout

        def names(*words):
            return forebay(*words).decode().split()

        def expect(what, is_, should):
            if is_ != should:
                raise Failed("%s: %r instead of %r" % (what, is_, should))

        def expect_files(directory, wanted):
            expect("files in " + directory, sorted(os.listdir(directory)), sorted(wanted))
            for name, content in wanted.items():
                with open(os.path.join(directory, name), "rb") as f:
                    expect("the content of " + name, f.read(), content)

        def attributes(path):
            return {a[5:]: os.getxattr(path, a).decode() for a in os.listxattr(path) if a.startswith("user.")}

        source, back, killed, scratch, other = (tempfile.mkdtemp(dir=room) for _ in range(5))
        # Enough bytes that movers are started on the other nodes.
        many = 1800 if nodes > 1 else 60
        files = {"f%04d" % n: os.urandom(n % 100 * 50) for n in range(many)}
        for name, content in files.items():
            with open(os.path.join(source, name), "wb") as f:
                f.write(content)
        os.makedirs(os.path.join(source, "below"))
        for n in (21, 22):
            os.setxattr(os.path.join(source, "f%04d" % n), "user.step", b"%d" % n)
        os.setxattr(os.path.join(source, "f0022"), "user.odd", b"\xff")
        try:
            forebay("collection", "import", "w", source, status=1, says="workspace create w")
            forebay("workspace", "create", "w")
            forebay("collection", "import", "w", source, status=3, says="verbs")
            run(up(nodes), env=environment)
            forebay("collection", "import", "w", "/fb/here", status=1, says="can't be listed")
            importing = ["collection", "import", "w", source, "--meta", "project=import", "--json"]
            report = json.loads(forebay(*importing, says="below: left out"))
            expect("files that were moved", report["moved_files"], many)
            expect("warnings", [w["path"] for w in report["warnings"]], ["f0022"])
            if nodes > 1:
                expect("nodes that took part", len(report["nodes"]), nodes)
            expect("what was imported", names("collection", "find", "w", 'project = "import"'), sorted(files))
            expect("attributes", names("collection", "find", "w", "step >= 21"), ["f0021", "f0022"])
            expect("a file", forebay("exec", "--", "cat", "/fb/w/f0021"), files["f0021"])
            expect("a collection", forebay("collection", "get", "w", "f0022"), files["f0022"])
            with open(os.path.join(source, "f0007"), "wb") as f:
                files["f0007"] = b"another content"
                f.write(files["f0007"])
            os.setxattr(os.path.join(source, "f0021"), "user.step", b"33")
            report = json.loads(forebay(*importing))
            expect("a repetition", (report["moved_files"], report["unchanged"]), (1, many - 1))
            expect("what it says", names("collection", "find", "w", "step > 22"), ["f0021"])

            forebay("collection", "export", "w", back, "step >= 22")
            expect_files(back, {name: files[name] for name in ("f0021", "f0022")})
            expect("its metadata", attributes(os.path.join(back, "f0021")), {"project": "import", "step": "33"})
            forebay("collection", "put", "w", "f0022", os.path.join(source, "f0022"), "--meta", "step=44")
            report = json.loads(forebay("collection", "export", "w", back, "--json"))
            if nodes > 1:
                expect("nodes that wrote it", len(report["nodes"]), nodes)
            expect_files(back, files)
            expect("its new metadata", attributes(os.path.join(back, "f0022")), {"project": "import", "step": "44"})

            # Bytes without a collection, and a collection without bytes.
            with open(os.path.join(other, "stray"), "wb") as f:
                f.write(b"mine")
            forebay("stage", "in", os.path.join(other, "stray"), "/w/stray")
            with open(os.path.join(other, "stray"), "wb") as f:
                f.write(b"not mine")
            with open(os.path.join(other, "sound"), "wb") as f:
                f.write(b"sound")
            forebay("collection", "import", "w", other, status=120, says="which no collection here has")
            expect("what others have", forebay("exec", "--", "cat", "/fb/w/stray"), b"mine")
            expect("what came", forebay("collection", "get", "w", "sound"), b"sound")
            expect("no collection", names("collection", "find", "w", "not exists project"), ["sound"])
            forebay("exec", "--", "rm", "/fb/w/sound", "/fb/w/stray")
            forebay("collection", "export", "w", back, status=120, says="there is no file /w/sound")
            forebay("collection", "import", "w", other)
            expect("what came again", forebay("collection", "get", "w", "sound"), b"sound")

            # Killed somewhere, then repeated.
            forebay("workspace", "create", "k")
            for delay in (0.05, 0.2, 0.4):
                with subprocess.Popen([program, "collection", "import", "k", source], env=environment,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as half:
                    try:
                        half.wait(delay)
                    except subprocess.TimeoutExpired:
                        half.kill()
            forebay("collection", "import", "k", source)
            forebay("collection", "export", "k", killed)
            expect_files(killed, files)

            # In a directory.
            attach = ["--attach", "scratch=" + scratch]
            forebay("workspace", "create", "v")
            few = tempfile.mkdtemp(dir=room)
            wanted = {name: files[name] for name in ("f0000", "f0021", "f0022")}
            wanted["large"] = os.urandom(9 << 20)
            for name, content in wanted.items():
                with open(os.path.join(few, name), "wb") as f:
                    f.write(content)
            os.setxattr(os.path.join(few, "large"), "user.step", b"5")
            importing = ["collection", "import", "v", few, "--backend", "scratch", "--json"]
            forebay(*importing, status=2, says="--attach scratch=DIR")
            forebay(*importing, "--attach", "forebay=" + scratch, status=2, says="--pool")
            expect("what was moved", json.loads(forebay(*importing, *attach))["moved_files"], 4)
            expect_files(os.path.join(scratch, "v"), wanted)
            with open(os.path.join(few, "f0000"), "wb") as f:
                wanted["f0000"] = b"not empty"
                f.write(wanted["f0000"])
            report = json.loads(forebay(*importing, *attach))
            expect("what was moved again", (report["moved_files"], report["unchanged"]), (1, 3))
            expect("where it is", json.loads(forebay("collection", "show", "v", "large", "--json", *attach))["size"], 9 << 20)
            forebay("collection", "put", "v", "inside", os.path.join(few, "f0021"))
            wanted["inside"] = wanted["f0021"]
            out = os.path.join(room, "out-%d" % nodes)
            forebay("collection", "export", "v", out, status=1, says="--attach scratch=DIR")
            expect("what was exported", json.loads(forebay("collection", "export", "v", out, "--json", *attach))["moved_files"], 5)
            expect_files(out, wanted)
            expect("its metadata", attributes(os.path.join(out, "large")), {"step": "5"})
            report = json.loads(forebay("collection", "export", "v", out, "--json", *attach))
            expect("exported again", (report["moved_files"], report["unchanged"]), (0, 5))
            forebay("collection", "rm", "v", *wanted, *attach)
            forebay("workspace", "rm", "v")
            expect("what is left", os.listdir(scratch), [])
            # With the pool's own metadata a directory can be attached, too.
            own = ["--store", "pool:verbs"]
            forebay("workspace", "create", "p", *own)
            forebay(*(word if word != "v" else "p" for word in importing), *attach, *own)
            shutil.rmtree(out)
            forebay("collection", "export", "p", out, *attach, *own)
            del wanted["inside"]
            expect_files(out, wanted)
            forebay("fsck")
        finally:
            subprocess.run([program, "down", "--force"], env=environment,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
            shutil.rmtree(home, ignore_errors=True)
            shutil.rmtree(home + "-cache", ignore_errors=True)


def everywhere(room, program, heap, before=(), places=("memory", "pool:verbs"), nodes=1):
    """Runs the program in memory, and on its own pool."""
    forebay = os.path.join(TARGET, "forebay")
    home = tempfile.mkdtemp(prefix="forebay-verbs-", dir="/dev/shm")
    environment = {**os.environ, "FOREBAY_HOME": home,
                   "ASAN_OPTIONS": "detect_leaks=1", "LSAN_OPTIONS": "report_objects=1"}
    try:
        for place in places:
            if place != "memory":
                run(up(nodes), env=environment)
            scratch = tempfile.mkdtemp(dir=room)
            said = run([*before, program, place, scratch, heap], env=environment)
            if "all as it should be" not in said or os.listdir(scratch):
                raise Failed("%s: %s\nleft: %s" % (place, said, os.listdir(scratch)))
            if place != "memory":
                checked = run([forebay, "fsck", "--pool", "verbs"], env=environment)
                if "clean" not in checked:
                    raise Failed(checked)
                run([forebay, "down", "--pool", "verbs"], env=environment)
                run([forebay, "pools"], env=environment)
    finally:
        subprocess.run([forebay, "down", "--force", "--pool", "verbs"], env=environment,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        shutil.rmtree(home, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write down what the interface is now")
    parser.add_argument("--only", metavar="WORDS", default="", help="only cases whose names have WORDS in them")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="cases at a time (default 1)")
    options = parser.parse_args()
    room = tempfile.mkdtemp(prefix="forebay-verbs-")

    def cpp(compiler):
        _, heap = compiled(room, "gcc", "for-" + compiler)
        to = os.path.join(room, "cpp-" + compiler)
        flags = [w for w in WARNINGS if w != "-Wstrict-prototypes"]
        if compiler == "g++":
            flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        run([compiler, "-std=c++20", "-g", "-O1", *flags, "-I", os.path.join(ROOT, "include"), "-o", to,
             os.path.join(HERE, "verbs.cpp"), "-L", TARGET, "-lforebay_iov", "-Wl,-rpath," + TARGET])
        everywhere(room, to, heap)

    def plainly(compiler):
        everywhere(room, *compiled(room, compiler, "plain"))

    def on_nodes():
        everywhere(room, *compiled(room, "gcc", "nodes"), places=("pool:verbs",), nodes=3)

    def valgrind():
        tool = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full",
                "--errors-for-leak-kinds=definite"]
        everywhere(room, *compiled(room, "gcc", "valgrind"), tool)

    def sanitized(compiler):
        flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        everywhere(room, *compiled(room, compiler, "asan", *flags))

    def cost():
        to = os.path.join(room, "cost")
        run(["gcc", "-std=c11", "-O2", *WARNINGS, "-I", os.path.join(ROOT, "include"), "-o", to,
             os.path.join(ROOT, "examples/verbs/cost.c"), "-L", TARGET, "-lforebay_iov", "-Wl,-rpath," + TARGET])
        said = run([to, "memory", "2000"])
        if len(re.findall(r"[0-9]+ ns", said)) != 5:
            raise Failed(said)

    def installed(c, cpp):
        """The pkg-config and CMake files of an installed Forebay are enough to build with, also after it was moved."""
        prefix, build = (os.path.join(room, "%s-%s" % (c, what)) for what in ("prefix", "build"))
        run([os.path.join(ROOT, "packaging/install"), prefix + "-before", TARGET])
        os.rename(prefix + "-before", prefix)
        examples = os.path.join(ROOT, "examples/verbs")
        found = {**os.environ, "PKG_CONFIG_PATH": os.path.join(prefix, "lib/pkgconfig")}
        flags = run(["pkg-config", "--cflags", "--libs", "forebay"], env=found).split()
        strict = [w for w in WARNINGS if w != "-Wstrict-prototypes"]
        libraries = {**os.environ, "LD_LIBRARY_PATH": os.path.join(prefix, "lib")}
        for compiler, standard, name in ((c, "c11", "cost.c"), (cpp, "c++20", "await.cpp")):
            to = os.path.join(build + "-" + name)
            run([compiler, "-std=" + standard, "-O2", *strict, "-o", to, os.path.join(examples, name), *flags])
            run([to, "memory", "50"], env=libraries)
        run(["cmake", "-S", examples, "-B", build, "-DCMAKE_PREFIX_PATH=" + prefix, "-DCMAKE_C_COMPILER=" + c,
             "-DCMAKE_CXX_COMPILER=" + cpp, "-DCMAKE_C_FLAGS=" + " ".join(strict), "-DCMAKE_CXX_FLAGS=" + " ".join(strict)])
        run(["cmake", "--build", build])
        said = run([os.path.join(build, "await"), "memory", "3"])
        if said != "1572864 bytes\n" * 3:
            raise Failed(said)
        run([os.path.join(prefix, "bin/forebay"), "--version"])

    def kernels():
        # cargo test builds the example, too.
        stream_rs = os.path.join(os.path.dirname(TARGET), "checks/examples/kernel-stream")
        said = run([sys.executable, os.path.join(ROOT, "examples/kernels/run.py"), "--check", "--stream-rs", stream_rs])
        if "all kernels passed" not in said:
            raise Failed(said)

    def advice():
        said = run([sys.executable, os.path.join(ROOT, "examples/kernels/advise.py"), "--check", "--nodes", "4"])
        if "all advice is as declared" not in said:
            raise Failed(said)

    cases = [
        ("headers, library and record", lambda: check_record(room, options.record)),
        ("gcc", lambda: plainly("gcc")),
        ("clang", lambda: plainly("clang")),
        ("C++, g++ with sanitizers", lambda: cpp("g++")),
        ("C++, clang++", lambda: cpp("clang++")),
        ("three nodes", on_nodes),
        ("command line", lambda: command_line(room, 1)),
        ("command line, three nodes", lambda: command_line(room, 3)),
        ("command line, etcd", lambda: command_line_etcd(room)),
        ("import and export, etcd", lambda: import_export_etcd(room, 1)),
        ("import and export, etcd, three nodes", lambda: import_export_etcd(room, 3)),
        ("valgrind", valgrind),
        ("example: cost", cost),
        ("sanitizers", lambda: sanitized("gcc")),
        ("installed: pkg-config and CMake, gcc", lambda: installed("gcc", "g++")),
        ("installed: pkg-config and CMake, clang", lambda: installed("clang", "clang++")),
        ("use-case kernels", kernels),
        ("use-case kernels, advice", advice),
    ]
    cases = [case for case in cases if options.only in case[0]]
    if not cases:
        parser.error("there is no such case")
    failed = []

    def one(case):
        name, function = case
        try:
            function()
            print("passed  %s" % name, flush=True)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            failed.append(name)
            print("FAILED  %s: %s" % (name, error), flush=True)
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(one, cases))
    finally:
        shutil.rmtree(room, ignore_errors=True)
    print("%d passed, %d failed" % (len(cases) - len(failed), len(failed))
          + (": " + "; ".join(failed) if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
