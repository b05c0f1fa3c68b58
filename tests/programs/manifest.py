#!/usr/bin/env python3
"""Describe a directory tree, one line for each entry, so that two can be compared.

    manifest.py DIRECTORY [GLOB-TO-IGNORE ...]

Each line has the type, the mode, the owner, for files the number of links,
the size and the SHA-256 of the content, for symbolic links the target, the
time of modification where it was evidently set on purpose (a day or more away
from now), the user.* attributes, and the path relative to DIRECTORY. The paths
in the environment variables WORK and OUTER count as @WORK@ and @OUTER@ in the
content of files up to a megabyte and in the targets of links.
"""
import fnmatch
import hashlib
import os
import stat
import sys
import time

NOW = time.time()
LARGE = 1 << 20
PLACES = [(os.environ[name].encode(), b"@%s@" % name.encode())
          for name in ("WORK", "OUTER") if os.environ.get(name)]


def neutral(data):
    for path, name in PLACES:
        data = data.replace(path, name)
    return data


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as f:
        while True:
            block = f.read(LARGE)
            if not block:
                return digest.hexdigest()
            digest.update(neutral(block) if os.fstat(f.fileno()).st_size <= LARGE else block)


def mtime(st):
    if abs(st.st_mtime - NOW) < 86400:
        return "recent"
    return "%d.%09d" % divmod(st.st_mtime_ns, 10**9)


def attributes(path):
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return ""
    found = []
    for name in sorted(names):
        if name.startswith("user."):
            value = os.getxattr(path, name, follow_symlinks=False)
            found.append("%s=%s" % (name, value.hex()))
    return "[%s]" % ",".join(found) if found else ""


def describe(path, rel):
    st = os.lstat(path)
    mode = stat.S_IMODE(st.st_mode)
    owner = "%d:%d" % (st.st_uid, st.st_gid)
    if stat.S_ISREG(st.st_mode):
        before = st.st_size
        digest = sha256(path)
        what = "file %04o %s links=%d size=%d sha256=%s" % (
            mode, owner, st.st_nlink, before, digest)
    elif stat.S_ISDIR(st.st_mode):
        what = "dir  %04o %s" % (mode, owner)
    elif stat.S_ISLNK(st.st_mode):
        # The mode of a symbolic link means nothing.
        what = "link ---- %s size=%d -> %r" % (owner, st.st_size, neutral(os.fsencode(os.readlink(path))))
    else:
        what = "other(%o) %04o %s" % (stat.S_IFMT(st.st_mode), mode, owner)
    return "%r %s mtime=%s%s" % (rel, what, mtime(st), attributes(path))


def walk(top, rel, ignore, lines):
    if rel:
        lines.append(describe(os.path.join(top, rel), rel))
    for name in sorted(os.listdir(os.path.join(top, rel))):
        child = os.path.join(rel, name)
        if any(fnmatch.fnmatch(child, pattern) for pattern in ignore):
            continue
        if stat.S_ISDIR(os.lstat(os.path.join(top, child)).st_mode):
            walk(top, child, ignore, lines)
        else:
            lines.append(describe(os.path.join(top, child), child))


def main():
    lines = []
    walk(sys.argv[1], "", sys.argv[2:], lines)
    sys.stdout.write("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
