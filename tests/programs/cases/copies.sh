# Copies by copy_file_range and sendfile: cp, Python's shutil, ranges, holes, files onto themselves, limits.
# needs: python3 cp cmp
set -euo pipefail
source "$CASES/../lib.sh"
export PYTHONDONTWRITEBYTECODE=1

section cp
python3 -c 'import random, sys; sys.stdout.buffer.write(random.Random(3).randbytes(5000000))' > random
cp random copied && cmp random copied && stat -c %s copied
cp --sparse=never random never && cmp random never
truncate -s 20M holes; printf middle | dd of=holes bs=1 seek=9000000 conv=notrunc status=none
cp holes holes-copied && cmp holes holes-copied && stat -c %s holes-copied
: > empty && cp empty empty-copied && stat -c %s empty-copied
cp random copied && cmp random copied

section python
python3 - <<'PY'
import errno, os, random, resource, shutil, signal
chance = random.Random(5)
shutil.copyfile("random", "by-shutil"); print(open("random", "rb").read() == open("by-shutil", "rb").read())

def copy(src, dst, n, at=None, to=None):
    try:
        return os.copy_file_range(src, dst, n, at, to)
    except OSError as e:
        return errno.errorcode[e.errno]

model = [bytearray(open("random", "rb").read()), bytearray(open("by-shutil", "rb").read())]
files = [os.open(name, os.O_RDWR) for name in ("random", "by-shutil")]
wrong = 0
for step in range(300):
    a, b = chance.randrange(2), chance.randrange(2)
    at, to = chance.randrange(5_500_000), chance.randrange(5_500_000)
    n = chance.choice([1, 100, 4096, 70_000, 2_000_000])
    if step % 10 == 0:
        size = chance.randrange(6_000_000)
        os.ftruncate(files[a], size); del model[a][size:]; model[a].extend(bytes(size - len(model[a])))
    there = max(0, min(n, len(model[a]) - at))
    if a == b and abs(at - to) < there:
        wrong += copy(files[a], files[b], n, at, to) != "EINVAL"
        continue
    done = 0
    while done < there and (k := copy(files[a], files[b], n - done, at + done, to + done)): done += k
    wrong += done != there
    if there:
        piece = model[a][at:at + there]
        model[b].extend(bytes(max(0, to + there - len(model[b])))); model[b][to:to + there] = piece
print("wrong", wrong, [os.pread(f, 20_000_000, 0) == bytes(m) for f, m in zip(files, model)])

os.lseek(files[0], 100, 0); os.lseek(files[1], 200, 0)
print(copy(files[0], files[1], 50), [os.lseek(f, 0, 1) for f in files], copy(files[0], files[1], 10, 7), [os.lseek(f, 0, 1) for f in files])
reads, appends = os.open("random", os.O_RDONLY), os.open("by-shutil", os.O_WRONLY | os.O_APPEND)
print(copy(files[1], reads, 1, 0, 0), copy(appends, files[0], 1, 0, 0), copy(reads, appends, 1, 0, 0), copy(reads, files[1], 0))
print(copy(reads, files[1], 5, 10**9, 0), copy(reads, files[1], 5, 0, 2**62) == 5 or "refused")
end = os.fstat(reads).st_size
print(copy(reads, files[0], 2**40, end - 10, end) == 10, os.fstat(files[0]).st_size - end)

new = os.open("sent", os.O_RDWR | os.O_CREAT)
sent = 0
while k := os.sendfile(new, reads, sent, 2**30): sent += k
print(sent == os.fstat(reads).st_size, os.pread(new, sent, 0) == os.pread(reads, sent, 0), os.lseek(new, 0, 1) == sent, os.lseek(reads, 0, 1))

signal.signal(signal.SIGXFSZ, lambda *_: print("SIGXFSZ"))
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
limited = os.open("limited", os.O_RDWR | os.O_CREAT)
print(copy(reads, limited, 2_000_000, 0, 0), copy(reads, limited, 10, 0, 1_000_000), os.fstat(limited).st_size)
PY
