# Python's ways of making, reading, moving and locking files.
# needs: python3
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
python3 - <<'PY'
import csv, errno, fcntl, glob, io, json, os, pathlib, pickle, shutil, stat, sys, tempfile, threading

def section(name): print("==", name)
def error(f, *args, **named):
    try:
        f(*args, **named)
        print("no error", f.__name__, args)
    except OSError as e:
        print(f.__name__, type(e).__name__, errno.errorcode.get(e.errno), (e.filename or "")[:40])

section("modes")
with open("a", "w") as f: print(f.write("hello\nworld\n"), f.tell())
with open("a", "r+") as f:
    print(f.readline(), f.tell()); f.seek(0, 2); f.write("end\n"); f.seek(6); print(f.read())
with open("a", "a+b") as f: print(f.tell()); f.write(b"app"); f.seek(-3, 2); print(f.read())
with open("a", "rb", buffering=0) as f: print(f.read(5), f.seek(-2, io.SEEK_END), f.read(), f.readall())
with open("a", "w+") as f: print(repr(f.read()), f.write("new"), f.seek(0), f.read())
with open("x", "x") as f: f.write("x")
error(open, "x", "x")
with open("u", "w", encoding="utf-16", newline="\r\n") as f: f.write("äöü\n")
print(open("u", "rb").read())
with open("a", "r+b") as f: f.truncate(1); f.seek(10); f.write(b"z")
print(open("a", "rb").read(), os.path.getsize("a"))
with open("big", "wb") as f:
    for i in range(300): f.write(bytes([i % 256]) * 10007)
with open("big", "rb") as f:
    f.seek(1000000); print(f.read(4), f.tell()); b = bytearray(20); print(f.readinto(b), b); print(len(f.read()))
fd = os.open("big", os.O_RDWR)
print(os.pread(fd, 4, 10005), os.pwrite(fd, b"AB", 10006), os.pread(fd, 4, 10005), os.lseek(fd, 0, os.SEEK_CUR))
print(os.preadv(fd, [bytearray(3), bytearray(5)], 7), os.pwritev(fd, [b"one", b"two"], 500), os.pread(fd, 6, 500))
print(os.writev(fd, [b"abc", b"", b"def"]), os.lseek(fd, 0, 1), os.readv(fd, [bytearray(10), bytearray(10)]))
print(os.read(fd, 0), os.lseek(fd, 0, 2), os.read(fd, 10), os.pread(fd, 10, 10**9)); error(os.lseek, fd, -1, 0)
os.ftruncate(fd, 20000); os.fsync(fd); os.fdatasync(fd); print(os.fstat(fd).st_size)
os.close(fd); error(os.read, fd, 1)
fd = os.open("big", os.O_RDONLY); error(os.write, fd, b"x"); os.close(fd)
fd = os.open("big", os.O_WRONLY); error(os.read, fd, 1); os.close(fd)
fd = os.open("sparse", os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600); os.pwrite(fd, b"e", 5_000_000); print(sum(os.pread(fd, 100, 4_999_950))); os.close(fd)

section("trees")
for i in range(5):
    os.makedirs("tree/d%d/sub" % i, exist_ok=True)
    for j in range(6): pathlib.Path("tree/d%d/sub/f%d.txt" % (i, j)).write_text("%d %d\n" % (i, j))
os.symlink("d1/sub", "tree/link"); os.utime("tree/d0", (1e9, 1e9)); os.utime("tree/d1/sub/f1.txt", ns=(1, 1234567890123456789))
os.chmod("tree/d2/sub/f2.txt", 0o4711)
shutil.copytree("tree", "copied", symlinks=True)
print(sorted((t.removeprefix("copied"), sorted(d), len(f)) for t, d, f in os.walk("copied")))
print(os.stat("copied/d0").st_mtime, os.stat("copied/d1/sub/f1.txt").st_mtime_ns, oct(os.stat("copied/d2/sub/f2.txt").st_mode))
error(shutil.copytree, "tree", "copied"); os.unlink("copied/link"); shutil.copytree("tree", "copied", symlinks=True, dirs_exist_ok=True)
shutil.move("copied", "moved"); shutil.move("moved/d4", "d4"); shutil.move("d4", "moved/d3"); print(sorted(os.listdir("moved/d3")))
shutil.rmtree("moved/d3"); print(sorted(os.listdir("moved")))
print(sorted(map(str, pathlib.Path("moved").glob("**/f[12].txt")))); print(len(glob.glob("tree/*/*/*.txt")), sorted(glob.glob("moved/**/sub", recursive=True)))
print(sorted((e.name, e.is_dir(), e.is_symlink(), e.is_file(), e.is_dir(follow_symlinks=False), stat.S_IFMT(e.stat(follow_symlinks=False).st_mode), e.inode() == os.lstat(e.path).st_ino) for e in os.scandir("tree")))
print(sorted(os.walk("tree", topdown=False))[0][0]); print(len(list(os.fwalk("tree"))))
d = os.open("tree", os.O_RDONLY | os.O_DIRECTORY)
print(sorted(os.listdir(d))); f = os.open("d0/sub/f0.txt", os.O_RDONLY, dir_fd=d); print(os.read(f, 9)); os.close(f)
os.mkdir("by-fd", dir_fd=d); os.rename("by-fd", "renamed", src_dir_fd=d, dst_dir_fd=d); os.symlink("t", "s", dir_fd=d); print(os.readlink("s", dir_fd=d), os.stat("s", dir_fd=d, follow_symlinks=False).st_size)
os.link("d0/sub/f0.txt", "hl", src_dir_fd=d, dst_dir_fd=d); print(os.stat("hl", dir_fd=d).st_nlink); os.unlink("hl", dir_fd=d); os.unlink("s", dir_fd=d); os.rmdir("renamed", dir_fd=d)
os.chmod("d1", 0o711, dir_fd=d); os.utime("d1", (5, 6), dir_fd=d); print(os.access("d1/sub", os.X_OK, dir_fd=d), os.stat("tree/d1").st_mtime)
here = os.getcwd(); os.fchdir(d); print(os.path.basename(os.getcwd()), len(os.listdir("."))); os.chdir(here); os.fsync(d); os.close(d)
print(os.path.realpath("tree/link/f0.txt") == os.path.join(os.path.realpath(here), "tree/d1/sub/f0.txt"), os.path.samefile("tree/link", "tree/d1/sub"), os.path.ismount("tree"), os.path.lexists("tree/link"))
p = pathlib.Path("pl"); p.mkdir(parents=True, exist_ok=True); (p / "a").touch(); (p / "a").rename(p / "b"); (p / "c").symlink_to("b"); (p / "d").hardlink_to(p / "b"); print(sorted(x.name for x in p.iterdir()), (p / "c").resolve().name, (p / "d").stat().st_nlink); (p / "c").unlink(); (p / "zz").unlink(missing_ok=True)

section("temporary files")
with tempfile.TemporaryDirectory(dir=".") as t:
    with tempfile.NamedTemporaryFile(dir=t, delete=False) as f: f.write(b"named"); name = f.name
    print(open(name).read(), oct(os.stat(name).st_mode))
    with tempfile.TemporaryFile(dir=t) as f: f.write(b"x" * 70000); f.seek(0); print(len(f.read()), os.fstat(f.fileno()).st_nlink, len(os.listdir(t)))
    with tempfile.SpooledTemporaryFile(max_size=10, dir=t) as f: f.write(b"y" * 100); f.seek(5); print(len(f.read()))
    fd, name = tempfile.mkstemp(dir=t, suffix=".s"); os.write(fd, b"m"); os.close(fd); print(os.path.getsize(name))
print([n for n in os.listdir(".") if n.startswith("tmp")])

section("threads")
def many(k):
    for i in range(50):
        with open("th-%d-%d" % (k, i), "w") as f: f.write("thread %d file %d\n" % (k, i))
shared = os.open("shared", os.O_CREAT | os.O_RDWR, 0o644)
def at_offsets(k):
    for i in range(200): os.pwrite(shared, b"%04d" % (i * 8 + k) * 25, (i * 8 + k) * 100)
def appends(k):
    with open("log", "ab", buffering=0) as f:
        for i in range(100): f.write(b"thread %d line %d\n" % (k, i))
ts = [threading.Thread(target=f, args=(k,)) for k in range(8) for f in (many, at_offsets, appends)]
[t.start() for t in ts]; [t.join() for t in ts]; os.close(shared)
print(len(glob.glob("th-*")), all(open(n).read() == "thread %s file %s\n" % tuple(n.split("-")[1:]) for n in glob.glob("th-*")))
data = open("shared", "rb").read(); print(len(data), data == b"".join(b"%04d" % n * 25 for n in range(1600)))
lines = open("log").read().splitlines(); print(len(lines), len(set(lines)), all(l.startswith("thread ") for l in lines))
open("log", "w").writelines(sorted(l + "\n" for l in lines)); [os.unlink(n) for n in glob.glob("th-*-*")]

section("replace")
open("current", "w").write("0" * 5000); bad, stop = [], []
def reader():
    while not stop:
        with open("current") as f: s = f.read()
        if len(s) != 5000 or len(set(s)) != 1: bad.append(s[:50])
rs = [threading.Thread(target=reader) for _ in range(2)]; [r.start() for r in rs]
for i in range(200):
    with open("next", "w") as f: f.write(str(i % 10) * 5000)
    os.replace("next", "current")
stop.append(1); [r.join() for r in rs]; print(bad, os.path.exists("next"), open("current").read(3))
keep = open("current"); os.replace("log", "current"); print(keep.read(4), os.fstat(keep.fileno()).st_nlink, open("current").readline()); keep.close()
os.rename("current", "log"); keep = open("log", "r+"); os.unlink("log"); keep.write("kept"); keep.seek(0); print(keep.read(8), os.path.exists("log")); keep.close()

section("links")
os.link("a", "hard"); print(os.stat("a").st_nlink, os.path.samefile("a", "hard")); open("hard", "a").write("via"); print(open("a", "rb").read()[-3:]); os.unlink("a"); print(os.stat("hard").st_nlink)
os.symlink("hard", "soft"); print(os.readlink("soft"), os.path.islink("soft"), open("soft").read()[-3:]); os.symlink("a" * 200, "long"); print(len(os.readlink("long")), os.lstat("long").st_size)
os.rename("soft", "softer"); os.replace("softer", "long"); print(os.readlink("long")); os.symlink("made-through", "dang"); open("dang", "w").write("m"); print(open("made-through").read())

section("round trips")
rows = [{"n": i, "s": "v%d" % i, "f": i / 7} for i in range(500)]
json.dump(rows, open("j", "w"), indent=1); print(json.load(open("j")) == rows); pickle.dump(rows, open("p", "wb"), protocol=4); print(pickle.load(open("p", "rb")) == rows)
with open("c.csv", "w", newline="") as f: w = csv.DictWriter(f, ["n", "s", "f"]); w.writeheader(); w.writerows(rows)
print(sum(int(r["n"]) for r in csv.DictReader(open("c.csv", newline=""))))

section("copies")
shutil.copyfile("big", "big2"); shutil.copy("c.csv", "c2.csv"); shutil.copy2("tree/d1/sub/f1.txt", "f1"); print(os.path.getsize("big2"), open("big", "rb").read() == open("big2", "rb").read(), os.stat("f1").st_mtime_ns)
with open("c.csv", "rb") as i, open("sent", "wb") as o:
    n = 0
    while k := os.sendfile(o.fileno(), i.fileno(), n, 4096): n += k
print(n == os.path.getsize("sent"), open("sent", "rb").read() == open("c.csv", "rb").read())
with open("c.csv", "rb") as i, open("ranged", "wb") as o:
    n = 0
    try:
        while k := os.copy_file_range(i.fileno(), o.fileno(), 3000): n += k
    except OSError as e:
        # Allowed to be refused: programs then copy by hand.
        print(e, file=sys.stderr); shutil.copyfileobj(i, o)
print(open("ranged", "rb").read() == open("c.csv", "rb").read()); error(shutil.copyfile, "big", "big")
r, w = os.pipe(); i = os.open("c.csv", os.O_RDONLY); print(os.sendfile(w, i, 0, 1000), os.read(r, 1000) == open("c.csv", "rb").read(1000)); os.close(i)
os.write(w, b"through a pipe"); os.close(w); o = os.open("spliced", os.O_CREAT | os.O_WRONLY); print(os.write(o, os.read(r, 100))); os.close(o); os.close(r)

section("stat")
s = os.stat("sent"); print(s.st_size, s.st_nlink, oct(s.st_mode), s.st_uid == os.getuid(), s.st_gid == os.getgid(), s.st_blksize > 0, s.st_ino > 0, s.st_dev == os.stat(".").st_dev)
a, b = os.stat("sent"), os.lstat("sent"); f = os.open("sent", os.O_RDONLY); c = os.fstat(f); print(a == b == c, s.st_ino != os.stat("j").st_ino); os.close(f)
v = os.statvfs("."); print(v.f_bsize > 0, v.f_blocks >= v.f_bfree >= 0, v.f_namemax >= 255)
print(os.access("sent", os.R_OK), os.access("sent", os.X_OK), os.access("none", os.F_OK)); os.chmod("sent", 0o755); print(os.access("sent", os.X_OK))
f = os.open("sent", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC); fl = fcntl.fcntl(f, fcntl.F_GETFL); print(bool(fl & os.O_APPEND), fl & os.O_ACCMODE == os.O_RDWR, os.get_inheritable(f)); g = os.dup(f); os.close(f); print(os.write(g, b"dup"), os.isatty(g)); os.close(g)
os.posix_fallocate(f := os.open("fa", os.O_CREAT | os.O_RDWR), 0, 12345); print(os.fstat(f).st_size, os.read(f, 3)); os.close(f)

section("errors")
error(open, "missing"); error(open, "missing/x", "w"); error(open, "tree"  , "w"); error(open, "j/x"); error(os.listdir, "j"); error(os.listdir, "missing")
error(os.mkdir, "tree"); error(os.mkdir, "j"); error(os.mkdir, "no/dir"); error(os.rmdir, "tree"); error(os.rmdir, "j"); error(os.rmdir, "missing"); error(os.unlink, "tree"); error(os.unlink, "missing")
error(os.rename, "missing", "y"); error(os.rename, "tree", "j"); error(os.rename, "j", "tree"); error(os.rename, "tree", "tree/d0/in"); error(os.rename, "moved", "tree"); error(os.link, "missing", "y"); error(os.link, "j", "p"); error(os.symlink, "x", "j")
error(os.readlink, "j"); error(os.readlink, "missing"); error(os.chmod, "missing", 0o600); error(os.truncate, "missing", 1); error(os.truncate, "tree", 1); error(os.truncate, "j", -1); error(os.utime, "missing"); error(os.chdir, "j"); error(os.stat, "j/"); error(os.stat, "")
error(open, "n" * 256, "w"); error(os.mkdir, "n" * 256); error(os.stat, "x/" * 2100); error(os.link, "tree", "dirlink"); error(os.rmdir, "tree/."); error(os.open, "j", os.O_RDONLY | os.O_DIRECTORY); error(os.open, "long", os.O_RDONLY | os.O_NOFOLLOW); error(os.open, "j", os.O_CREAT | os.O_EXCL)
open("n" * 255, "w").close(); os.unlink("n" * 255); os.symlink("loop", "loop"); error(open, "loop"); error(os.mkdir, "loop"); os.unlink("loop")
PY
