# Python's multiprocessing, mmap, shelve, dbm and tempfile, with their files here.
# needs: python3
set -euo pipefail
mkdir tmp; export TMPDIR=$PWD/tmp PYTHONDONTWRITEBYTECODE=1
cat > work.py <<'PY'
import dbm.dumb, fcntl, glob, mmap, multiprocessing as mp, os, shelve, struct, sys, tempfile
from concurrent.futures import ProcessPoolExecutor

def square(n):
    with open("squares", "a") as f: f.write("%d\n" % (n * n))
    return n * n
def producer(q, k):
    for i in range(50): q.put((k, i, "x" * (i * 100)))
    q.put(None)
def add(path, lock, k):
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        for i in range(200):
            with lock:
                n, = struct.unpack_from("q", m, 0); struct.pack_into("q", m, 0, n + 1)
            m[4096 * (k + 1) + i] = k + 1
def locked(path):
    for i in range(100):
        with open(path, "r+") as f:
            fcntl.lockf(f, fcntl.LOCK_EX); n = int(f.read()); f.seek(0); f.write("%d" % (n + 1)); f.truncate(); f.flush()
def write_block(k):
    with open("blocks", "r+b", buffering=0) as f: os.pwrite(f.fileno(), bytes([k]) * 10000, k * 10000)
    return k

def main(method):
    print("==", method); ctx = mp.get_context(method)
    with ctx.Pool(3) as p: print(sum(p.map(square, range(60), chunksize=7)))
    print(sorted(map(int, open("squares"))) == sorted(n * n for n in range(60))); os.unlink("squares")
    q = ctx.Queue(); ps = [ctx.Process(target=producer, args=(q, k)) for k in range(3)]; [p.start() for p in ps]
    got, ends = [], 0
    while ends < 3:
        item = q.get()
        if item is None: ends += 1
        else: got.append(item)
    [p.join() for p in ps]; print(len(got), sum(len(g[2]) for g in got), [p.exitcode for p in ps])
    with open("shared", "wb") as f: f.truncate(4096 * 4)
    lock = ctx.Lock(); ps = [ctx.Process(target=add, args=("shared", lock, k)) for k in range(3)]; [p.start() for p in ps]; [p.join() for p in ps]
    d = open("shared", "rb").read(); print(struct.unpack_from("q", d)[0], [d[4096 * (k + 1):4096 * (k + 2)].count(k + 1) for k in range(3)])
    open("count", "w").write("0"); ps = [ctx.Process(target=locked, args=("count",)) for k in range(3)]; [p.start() for p in ps]; [p.join() for p in ps]
    print(open("count").read())
    open("blocks", "wb").close()
    with ProcessPoolExecutor(3, mp_context=ctx) as e: print(sorted(e.map(write_block, range(20))))
    d = open("blocks", "rb").read(); print(len(d), all(d[k * 10000:(k + 1) * 10000] == bytes([k]) * 10000 for k in range(20)))

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"): main(method)
    print("== shelve and dbm")
    with shelve.open("shelf", writeback=True) as s:
        for i in range(200): s["key%d" % i] = {"n": i, "list": list(range(i % 17))}
        s["key7"]["n"] = "changed"
    with shelve.open("shelf") as s: print(len(s), s["key7"], s["key199"]["n"], sorted(s)[:2]); del s["key0"]
    with shelve.open("shelf", "r") as s: print("key0" in s, len(s))
    with dbm.dumb.open("dumb", "c") as d:
        for i in range(100): d["k%d" % i] = "v" * i
    with dbm.dumb.open("dumb") as d: print(len(d), len(d["k99"]))
    try:
        import dbm.gnu
        with dbm.gnu.open("gnu", "cf") as d:
            for i in range(300): d["k%d" % i] = "v" * i
            del d["k3"]; d.reorganize(); print("gnu or", len(d.keys()) - 299)
    except ImportError: print("gnu or 0")
    for name in glob.glob("gnu*") + glob.glob("shelf*"): os.unlink(name)
    print("== tempfile", tempfile.gettempdir() == os.environ["TMPDIR"])
    with tempfile.TemporaryFile() as f: f.write(b"anonymous"); f.seek(0); print(f.read(), os.fstat(f.fileno()).st_nlink, len(os.listdir("tmp")))
    with tempfile.NamedTemporaryFile(suffix=".x") as f: f.write(b"named"); f.flush(); print(open(f.name, "rb").read(), len(os.listdir("tmp")))
    with tempfile.TemporaryDirectory() as d: open(d + "/f", "w").close(); os.makedirs(d + "/a/b"); print(oct(os.stat(d).st_mode))
    with tempfile.SpooledTemporaryFile(10) as f: f.write(b"longer than ten"); f.seek(3); print(f.read())
    fd, path = tempfile.mkstemp(dir="tmp"); os.write(fd, b"kept"); os.close(fd); print(oct(os.stat(path).st_mode), open(path).read()); os.unlink(path)
    print(len(os.listdir("tmp")))
PY
python3 work.py
echo "== one map, growing"
python3 - <<'PY'
import mmap, os
f = open("grows", "w+b"); f.truncate(5000); m = mmap.mmap(f.fileno(), 0)
for n in (3, 60, 700): f.truncate(4096 * n); m2 = mmap.mmap(f.fileno(), 0); m2[4096 * n - 5:] = b"%05d" % n; print(len(m2), m[4096:4100], m2[:5]); m[:5] = b"%05d" % n; m2.close()
print(f.read()[-5:], m.rfind(b"x"), len(m)); m.close(); f.close()
with open("grows", "r+b") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE) as m: m[:] = b"z" * len(m); print(m[:3], f.read(3))
PY
