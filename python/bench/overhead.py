#!/usr/bin/env python3
"""Measures what Python adds: 4 KiB reads and writes beside the C interface, large ones beside
memcpy, fsspec beside open of a pool, and Python's own open under `forebay exec` (--open POOL).
Needs the installed wheel. Usage: python python/bench/overhead.py LIBRARY, where LIBRARY is
libforebay_iov.so. The C loop is compiled with cc.
"""
import ctypes
import os
import subprocess
import sys
import tempfile
import time

import numpy

import forebay
from forebay._command import program

N = 200_000
LOOP = r"""
#include <stdint.h>
#include <time.h>
typedef int64_t call(void *, const void *, uint64_t, uint64_t, void *);
double loop(call *f, void *collection, void *bytes, uint64_t length, long n)
{
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (long i = 0; i < n; i++)
        if (f(collection, bytes, length, 0, 0) < 0)
            return -1;
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n / 1e3;
}
"""


def per_call(call, n=N):
    """Returns the microseconds per call, the best of three runs."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter() - began) / n * 1e6)
    return best


def by_c(library, pool):
    with tempfile.TemporaryDirectory() as place:
        source, loop = os.path.join(place, "loop.c"), os.path.join(place, "loop.so")
        with open(source, "w") as f:
            f.write(LOOP)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", loop], check=True)
        iov, loop = ctypes.CDLL(library), ctypes.CDLL(loop).loop
    loop.restype = ctypes.c_double
    loop.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint64, ctypes.c_long]
    session, workspace, collection = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert iov.iov_session_open(b"pool:" + pool.encode(), ctypes.byref(session)) == 0
    assert iov.iov_workspace_create(session, b"by-c", None, 0, ctypes.byref(workspace)) == 0
    assert iov.iov_collection_create(workspace, b"f", None, ctypes.byref(collection), None) == 0
    buffer = ctypes.create_string_buffer(4096)
    address = lambda f: ctypes.cast(f, ctypes.c_void_p)  # noqa: E731
    return [min(loop(address(f), collection, buffer, 4096, N) for _ in range(3)) for f in (iov.iov_write, iov.iov_read)]


def by_open(name):
    """Measures reads of whole files, each opened for its read. Under `forebay exec` Python's `open`
    sees the pool."""
    with forebay.Pool(name) as pool:
        fs = pool.filesystem()

        def read(opened):
            with opened as f:
                return f.read()

        print("open and read(), microseconds    open  Pool.open    fsspec  fsspec/open")
        for size, n in [(4 << 10, 20000), (1 << 20, 1000), (64 << 20, 10)]:
            pool.write("/whole", b"x" * size)
            whole = pool.mount + "/whole"
            ways = (lambda: read(open(whole, "rb")), lambda: read(pool.open("/whole", "rb")),
                    lambda: read(fs.open("/whole")))
            took = [per_call(way, n) for way in ways]
            print("  %8d KiB              %9.1f  %9.1f %9.1f  %11.2f" % (size >> 10, *took, took[2] / took[0]))


def main():
    library = sys.argv[1]
    if library == "--open":
        return by_open(sys.argv[2])
    with forebay.run(media="memory:1G", force=True) as pool, pool.session() as session:
        c_write, c_read = by_c(library, pool.name)
        field = session.create("w").create("f")
        data, into = b"x" * 4096, bytearray(4096)
        write, readinto = per_call(lambda: field.write(data)), per_call(lambda: field.readinto(into))
        read = per_call(lambda: field.read(4096))
        print("4 KiB, microseconds    C   Python   above")
        for name, c, py in [("write", c_write, write), ("readinto", c_read, readinto), ("read", c_read, read)]:
            print("  %-16s %7.2f %7.2f %7.2f" % (name, c, py, py - c))
        large = numpy.ones(64 << 17)
        target = numpy.empty_like(large)
        field.write(large)
        field.write(large)
        copy = per_call(lambda: numpy.copyto(target, large), 10)
        put = per_call(lambda: field.write(large), 10)
        get = per_call(lambda: field.readinto(target), 10)
        view = per_call(lambda: numpy.frombuffer(field.map(0, large.nbytes)), 100)
        print("64 MiB, of memcpy: write %.2f, readinto %.2f; a view %.0f microseconds" % (copy / put, copy / get, view))
        fs = pool.filesystem()
        pool.write("/small", b"x" * 4096)
        print("4 KiB file, microseconds: fsspec cat %.1f, Pool.read %.1f" % (
            per_call(lambda: fs.cat_file("/small"), 20000), per_call(lambda: pool.read("/small"), 20000)), flush=True)
        again = [sys.executable, os.path.abspath(__file__), "--open", pool.name]
        subprocess.run([program(), "exec", "--pool", pool.name, "--", *again], check=True)


if __name__ == "__main__":
    main()
