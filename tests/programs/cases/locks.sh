# flock and fcntl locks between processes.
# needs: flock python3
set -euo pipefail
echo 0 > counter
for i in 1 2 3 4; do
  ( for j in $(seq 20); do ( flock 9; n=$(< counter); echo $((n + 1)) > counter ) 9> lock; done ) &
done
wait; cat counter
flock lock echo under a lock
( flock 8; flock -n lock true || echo "busy $?"; flock -s -n lock true || echo "busy $?" ) 8> lock
( flock -s 8; flock -s -n lock echo shared; flock -n lock true || echo "busy $?" ) 8> lock
flock -n lock echo free again
python3 - <<'PY'
import errno, fcntl, os, struct
f = os.open("range", os.O_CREAT | os.O_RDWR, 0o644); os.write(f, b"0" * 100)
def child(what):
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            g = os.open("range", os.O_RDWR); what(g); code = 0
        except OSError as e: code = e.errno
        finally: os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return errno.errorcode.get(code, code)
EX, SH, NB, UN = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB, fcntl.LOCK_UN
fcntl.lockf(f, EX, 10, 0)
print(child(lambda g: fcntl.lockf(g, EX | NB, 10, 5)) in ("EAGAIN", "EACCES"), child(lambda g: fcntl.lockf(g, EX | NB, 10, 10)))
fcntl.lockf(f, SH, 10, 0)
print(child(lambda g: fcntl.lockf(g, SH | NB, 10, 0)), child(lambda g: fcntl.lockf(g, EX | NB, 10, 0)) in ("EAGAIN", "EACCES"))
fcntl.lockf(f, UN, 5, 0); print(child(lambda g: fcntl.lockf(g, EX | NB, 5, 0)), child(lambda g: fcntl.lockf(g, EX | NB, 5, 5)) in ("EAGAIN", "EACCES"))
def getlk(g):
    r = struct.unpack("hhqqi4x", fcntl.fcntl(g, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)))
    os._exit(0 if r[0] == fcntl.F_RDLCK and r[2:4] == (5, 5) and r[4] == os.getppid() else 77)
print(child(getlk))
os.close(os.open("range", os.O_RDONLY)); print(child(lambda g: fcntl.lockf(g, EX | NB)))
fcntl.lockf(f, EX); print(child(lambda g: fcntl.lockf(f, EX | NB)) in ("EAGAIN", "EACCES"))
fcntl.lockf(f, UN); open("n", "w").write("0")
pids = []
for i in range(4):
    pid = os.fork()
    if pid == 0:
        g = os.open("range", os.O_RDWR)
        for j in range(50):
            fcntl.lockf(g, EX); n = int(open("n").read()); open("n", "w").write(str(n + 1)); fcntl.lockf(g, UN)
        os._exit(0)
    pids.append(pid)
print([os.waitpid(p, 0)[1] for p in pids], open("n").read())
pid = os.fork()
if pid == 0: fcntl.lockf(os.open("range", os.O_RDWR), EX); os._exit(0)
os.waitpid(pid, 0); fcntl.lockf(f, EX | NB); print("let go at exit")
fcntl.flock(f, EX); print(child(lambda g: fcntl.flock(g, EX | NB)), child(lambda g: fcntl.flock(f, EX | NB)))
PY
