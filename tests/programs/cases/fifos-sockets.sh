# FIFOs between processes, Unix sockets, names of both.
# needs: python3 mkfifo
set -euo pipefail
source "$CASES/../lib.sh"
section fifo
mkfifo -m 640 pipe
( echo one; echo two ) > pipe &
cat pipe
wait
exec 3<> pipe; seq 100 >&3
mv pipe moved; ln moved twice; rm moved
exec 4< twice; exec 3>&-; wc -l <&4; exec 4<&-
plain_stat twice
printf x > twice & p=$!
cp --copy-contents twice copied; wait $p; cat copied; echo
timeout 1 bash -c 'exec 3<> twice; echo both >&3; read -r line <&3; echo "$line"'
tee < <(echo process substitution)
section many writers
mkfifo many
# The shell holds the FIFO for writing until all have written: sort sees its end only then.
sort many > sorted & reader=$!
exec 5> many
writers=()
for i in 1 2 3 4; do for j in $(seq 50); do echo "writer $i line $j"; done > many 5>&- & writers+=($!); done
wait "${writers[@]}"; exec 5>&-; wait $reader
sha256sum < sorted; rm sorted
section sockets
python3 - <<'PY'
import errno, os, socket, stat, threading
s = socket.socket(socket.AF_UNIX)
s.bind("sock"); s.listen()
st = os.stat("sock"); print(stat.S_ISSOCK(st.st_mode), oct(st.st_mode & 0o777))
def serve():
    c, _ = s.accept()
    c.sendall(c.recv(100).upper()); c.close()
for path in ("sock", os.path.abspath("sock")):
    t = threading.Thread(target=serve); t.start()
    c = socket.socket(socket.AF_UNIX); c.connect(path); c.sendall(b"hello"); print(c.recv(100)); c.close(); t.join()
def refused(f):
    try: f(); print("no error")
    except OSError as e: print(errno.errorcode[e.errno])
refused(lambda: socket.socket(socket.AF_UNIX).bind("sock"))
refused(lambda: socket.socket(socket.AF_UNIX).connect("nothing"))
open("file", "w").close()
refused(lambda: socket.socket(socket.AF_UNIX).connect("file"))
refused(lambda: open("sock"))
refused(lambda: socket.socket(socket.AF_UNIX).bind("no/where"))
os.rename("sock", "renamed")
t = threading.Thread(target=serve); t.start()
c = socket.socket(socket.AF_UNIX); c.connect("renamed"); c.sendall(b"renamed"); print(c.recv(100)); c.close(); t.join()
s.close()
refused(lambda: socket.socket(socket.AF_UNIX).connect("renamed"))
d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); d.bind("datagrams")
e = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); e.connect("datagrams"); e.send(b"datagram"); print(d.recv(100))
t = os.path.abspath("talker"); f = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); f.bind(t)
print(f.getsockname() == t, e.getpeername(), d.getsockname(), repr(e.getsockname()))
f.sendto(b"without connecting", os.path.abspath("datagrams")); print(d.recv(100))
f.sendmsg([b"a ", b"message"], [], 0, "datagrams"); print(d.recv(100))
refused(lambda: f.sendto(b"x", "nothing")); refused(lambda: f.sendmsg([b"x"], [], 0, "file"))
os.unlink("talker"); refused(lambda: e.sendto(b"x", "talker"))
os.unlink("datagrams"); print(sorted(os.listdir(".")))
PY
# Python's file in TMPDIR: the socket of a manager's server.
mkdir tmp
TMPDIR=$PWD/tmp python3 - <<'PY'
from multiprocessing import Process, Manager
def work(shared, i): shared[i] = i * i
if __name__ == "__main__":
    with Manager() as m:
        shared = m.dict()
        all = [Process(target=work, args=(shared, i)) for i in range(4)]
        for p in all: p.start()
        for p in all: p.join()
        print(sorted(shared.items()))
PY
