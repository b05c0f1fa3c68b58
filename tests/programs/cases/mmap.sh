# Files mapped into memory: private, shared, by two processes, growing, and with programs.
# ignore: db
# needs: python3
set -euo pipefail
seq 1 30000 > numbers; head -c 100000 numbers > small
python3 - <<'PY'
import mmap, os
f = open("numbers", "r+b"); size = os.path.getsize("numbers")
with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    print(len(m) == size, m[:9], m.find(b"\n777\n"), m[-6:], m[4095:4100])
with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m: m[:5] = b"HELLO"; print(m[:7])
print(open("numbers", "rb").read(7))
with mmap.mmap(f.fileno(), 8192, offset=mmap.ALLOCATIONGRANULARITY, access=mmap.ACCESS_READ) as m: print(m[:10])
try: mmap.mmap(os.open("/dev/null", os.O_RDONLY), 0)
except (ValueError, OSError) as e: print(type(e).__name__)
f.close()
f = open("small", "r+b")
m = mmap.mmap(f.fileno(), 0); m[10:20] = b"0123456789"; m[99990:] = b"endendende"; m.flush()
print(os.pread(f.fileno(), 12, 9), open("small", "rb").read()[-10:]); m[50:55] = b"later"; m.close(); f.close()
print(open("small", "rb").read()[48:58])
f = open("made", "w+b"); f.truncate(1 << 20); m = mmap.mmap(f.fileno(), 1 << 20)
for i in range(0, 1 << 20, 4096): m[i:i + 4] = b"%04d" % (i // 4096)
m.flush(); m.close(); f.close(); d = open("made", "rb").read(); print(len(d), d[4096 * 200:4096 * 200 + 5], sum(d[4::4096]))
f = open("forked", "w+b"); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); pid = os.fork()
if pid == 0: m[0:5] = b"child"; os._exit(0)
os.waitpid(pid, 0); print(m[0:6]); m.flush(); m.close(); f.close(); print(open("forked", "rb").read(6))
f = open("grows", "w+b"); f.truncate(5000); m = mmap.mmap(f.fileno(), 5000); m[4990:] = b"0123456789"
for n in (100000, 3000000, 70000, 4096, 9000000):
    m.resize(n); m[n - 5:] = b"%05d" % (n % 100000); print(len(m), os.fstat(f.fileno()).st_size, m[4985:5000], m.find(b"00000"))
m.close(); f.close(); d = open("grows", "rb").read(); print(len(d), d[-5:], d.count(0))
import sqlite3, multiprocessing
def work(k):
    c = sqlite3.connect("db", timeout=50)
    for i in range(60):
        with c: c.execute("insert into t values (?, ?)", (k, "x" * 500))
    c.close()
c = sqlite3.connect("db"); print(c.execute("pragma journal_mode=wal").fetchone(), c.execute("pragma mmap_size=268435456").fetchone())
c.execute("create table t (k, v)"); c.commit(); p = [multiprocessing.get_context("fork").Process(target=work, args=(k,)) for k in range(3)]
for q in p: q.start()
while any(q.is_alive() for q in p): c.execute("select count(*) from t").fetchone()
print(c.execute("select k, count(*), sum(length(v)) from t group by k").fetchall(), c.execute("pragma integrity_check").fetchone())
c.execute("pragma wal_checkpoint(truncate)"); c.execute("delete from t where k > 0"); c.commit(); c.execute("vacuum"); print(c.execute("select count(*) from t").fetchone())
c.close()
PY
sort --parallel=1 numbers | sha256sum; grep -c 77 numbers; sha256sum small made
