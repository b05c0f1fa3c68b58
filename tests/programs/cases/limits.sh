# Limits of the shell: size of files, number of descriptors, address space.
# needs: python3 head dd
set -euo pipefail
source "$CASES/../lib.sh"
section size of files
( ulimit -f 100; head -c 500000 /dev/zero > a ) 2> /dev/null || echo "ended: $?"; stat -c %s a
( trap '' XFSZ; ulimit -f 100; head -c 500000 /dev/zero > b || echo "ended: $?" ) 2>&1 | sed 's/.*: File/File/' || true; stat -c %s b
( trap '' XFSZ; ulimit -f 100; fails dd if=/dev/zero of=c bs=150000 count=2 status=none; fails truncate -s 1000000 c; truncate -s 102400 c; echo more >> c ) 2>&1 | sed 's/.*: File/File/' || true; stat -c %s c
python3 - <<'PY'
import errno, os, resource, signal
signal.signal(signal.SIGXFSZ, lambda *_: print("signal"))
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
f = os.open("p", os.O_CREAT | os.O_RDWR)
print(os.write(f, b"x" * 8000), os.pwrite(f, b"y" * 10, 4995))
for what in (lambda: os.write(f, b"z"), lambda: os.ftruncate(f, 5001), lambda: os.posix_fallocate(f, 0, 6000), lambda: os.pwrite(f, b"z", 10**9)):
    try: what(); print("no error")
    except OSError as e: print(errno.errorcode[e.errno])
g = os.open("p", os.O_WRONLY | os.O_APPEND)
try: os.write(g, b"z")
except OSError as e: print(errno.errorcode[e.errno])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
print(os.write(g, b"z" * 5000), os.fstat(f).st_size)
PY
section descriptors
python3 - <<'PY'
import errno, os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 4096))
fds = []
try:
    while True: fds.append(os.open("a", os.O_RDONLY))
except OSError as e: print(errno.errorcode[e.errno], 200 < len(fds) + 3 <= 300)
os.close(fds.pop()); fds.append(os.open("a", os.O_RDONLY)); print(len(os.read(fds[-1], 10)))
try: os.dup(fds[0])
except OSError as e: print(errno.errorcode[e.errno])
for name in ("b", "c", "p"):
    os.close(fds.pop()); fds.append(os.open(name, os.O_RDWR)); print(len(os.read(fds[-1], 10)), os.write(fds[-1], b"more"))
for f in fds: os.close(f)
print(len(os.listdir(".")))
PY
section address space
# A pool takes room for its records and its memory: some GiB of addresses.
( ulimit -v 8000000; sort -S 10M a | wc -c; grep -c x p || true; cp a copied; cmp a copied && echo same; python3 -c 'print(len(open("p", "rb").read()))' )
( ulimit -s 256; wc -c < b; ls | wc -l )
