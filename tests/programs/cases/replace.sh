# A file replaced by rename again and again: readers see the old or the new one, whole.
# needs: python3
set -euo pipefail
python3 - <<'PY'
import mmap, os, sys
N, READERS = 400, 3
def content(n): return (b"%06d\n" % n) * (1 + n * 7 % 3000)
def write(name, n, fsync):
    with open(name + ".new", "wb") as f:
        f.write(content(n))
        if fsync: f.flush(); os.fsync(f.fileno())
    os.rename(name + ".new", name)
os.mkdir("d"); write("f", 0, False); write("d/f", 0, False)
def reader(k):
    last = -1
    while True:
        name = ("f", "d/f")[k % 2]
        with open(name, "rb") as f:
            if k == 2 and os.fstat(f.fileno()).st_size:
                with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m: d = m[:]
            else: d = f.read()
        if not d: continue
        n = int(d[:6])
        if d != content(n): return "torn: %r" % d[:20]
        if n < last: return "backwards: %d after %d" % (n, last)
        last = n
        if os.stat(name).st_size == 0: return "empty"
        if "f" not in os.listdir(os.path.dirname(name) or "."): return "not listed"
        if n == N: return ""
pids = []
for k in range(READERS):
    pid = os.fork()
    if pid == 0:
        try: what = reader(k)
        except BaseException as e: what = repr(e)
        if what: print("reader", k, what, flush=True)
        os._exit(1 if what else 0)
    pids.append(pid)
for n in range(1, N + 1): write("f", n, n % 10 == 0); write("d/f", n, False)
print([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids], os.listdir("d"))
PY
# Many writers, one name: one of them wins each time, and nothing is left over.
for i in 1 2 3 4; do ( for j in $(seq 30); do echo "writer $i $j whole" > "t.$i"; mv "t.$i" won; done ) & done
for i in $(seq 50); do [ ! -e won ] || grep -qx 'writer [1-4] [0-9]* whole' won || echo torn; done
wait; grep -c whole won; ls; rm won
# ln -f and exchange by links.
echo a > a; for i in $(seq 30); do echo $i > b; ln -f b a; cat a; done | sha256sum; for i in $(seq 30); do ln -sfn "target$i" s; readlink s; done | sha256sum
