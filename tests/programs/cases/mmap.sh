# Files mapped into memory: private, shared, by two processes, and with programs.
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
PY
sort --parallel=1 numbers | sha256sum; grep -c 77 numbers; sha256sum small made
