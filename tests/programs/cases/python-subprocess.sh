# Processes started from python: descriptors, directories and offsets passed on.
# needs: python3 cat sort
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
cat > worker.py <<'PY'
import os, sys
print("worker", sys.argv[1:], os.path.relpath(os.getcwd(), os.environ["WORK"]))
if len(sys.argv) > 1: os.write(int(sys.argv[1]), b"from worker\n")
PY
cat > main.py <<'PY'
import multiprocessing, os, signal, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
WORK = os.environ["WORK"]
def section(name): print("==", name, flush=True)
def show(name): print(name, repr(open(name).read()), flush=True)

section("standard streams")
with open("out", "w") as f: subprocess.run(["seq", "5"], stdout=f, check=True)
show("out")
with open("out", "a") as f: f.write("before\n"); f.flush(); subprocess.run(["echo", "child"], stdout=f); f.write("after\n")
show("out")
with open("out") as i, open("sorted", "w") as o: subprocess.run(["sort", "-r"], stdin=i, stdout=o, check=True)
show("sorted")
with open("err", "w") as f: print(subprocess.run("echo o; echo e >&2; exit 7", shell=True, stdout=f, stderr=subprocess.STDOUT).returncode)
show("err")
with open("both", "wb") as f: subprocess.run(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], stdout=f, stderr=f)
show("both")
with open("out") as f: f.readline(); f.seek(4); print(subprocess.run(["cat"], stdin=f, capture_output=True, text=True).stdout, f.tell())
with open("offset", "w+") as f:
    subprocess.run(["printf", "abc"], stdout=f); print(os.lseek(f.fileno(), 0, 1)); subprocess.run(["printf", "def"], stdout=f); f.seek(0); print(f.read())

section("directories")
os.makedirs("sub/deep")
print(subprocess.check_output(["pwd"], cwd="sub", text=True).replace(WORK, "@"), subprocess.check_output(["/bin/pwd"], cwd=os.path.join(WORK, "sub/deep"), text=True).replace(WORK, "@"))
subprocess.run("echo rel > rel; echo up > ../up; pwd", shell=True, cwd="sub/deep", check=True, stdout=open("pwd", "w")); show("sub/deep/rel"); show("sub/up"); print(open("pwd").read().replace(WORK, "@"))
print(subprocess.run([sys.executable, "../worker.py"], cwd="sub", capture_output=True, text=True).stdout)
print(subprocess.run(["./none"], shell=True, stderr=subprocess.DEVNULL).returncode)
for what in ((["./none"], {}), (["pwd"], {"cwd": "none"}), (["./out"], {}), (["./sub"], {})):
    try: subprocess.run(what[0], **what[1])
    except OSError as e: print(type(e).__name__, e.filename)

section("programs in the pool")
with open("tool", "w") as f: f.write("#!/bin/sh\necho tool $0 $*\ncat out | wc -l\n")
os.chmod("tool", 0o755); print(subprocess.check_output(["./tool", "x"], text=True)); print(subprocess.check_output([WORK + "/tool"], text=True).replace(WORK, "@"))
with open("py", "w") as f: f.write("#!/usr/bin/env python3\nimport sys, worker2\nprint(worker2.v, sys.argv[1:])\n")
with open("worker2.py", "w") as f: f.write("v = 'imported'\n")
os.chmod("py", 0o755); print(subprocess.check_output(["./py", "1"], text=True))
subprocess.run(["cp", "/bin/echo", "my-echo"], check=True); print(subprocess.check_output(["./my-echo", "binary"], text=True)); os.unlink("my-echo")

section("pipes")
a = subprocess.Popen(["cat", "out"], stdout=subprocess.PIPE); b = subprocess.Popen(["wc", "-l"], stdin=a.stdout, stdout=open("count", "w")); a.stdout.close(); print(a.wait(), b.wait()); show("count")
p = subprocess.Popen(["tee", "teed"], stdin=subprocess.PIPE, stdout=subprocess.PIPE); print(p.communicate(b"z" * 200000)[0] == b"z" * 200000, os.path.getsize("teed"))
p = subprocess.Popen(["sh", "-c", "while read l; do echo got $l >> got; echo $l; done"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
for w in ("x", "y"): p.stdin.write(w + "\n"); p.stdin.flush(); print(p.stdout.readline().strip(), open("got").read().count("\n"))
p.stdin.close(); p.wait(); p.stdout.close()

section("descriptors")
fd = os.open("passed", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644); os.write(fd, b"parent\n")
print(subprocess.run([sys.executable, "worker.py", str(fd)], pass_fds=[fd], capture_output=True, text=True).stdout.replace(str(fd), "N")); os.write(fd, b"parent again\n"); show("passed")
print(subprocess.run([sys.executable, "worker.py", str(fd)], capture_output=True).returncode)
print(subprocess.run(["sh", "-c", "cat <&%d; echo sh >&%d" % (fd, fd)], pass_fds=[fd]).returncode); os.lseek(fd, 0, 0); print(os.read(fd, 1000))
os.set_inheritable(fd, True); print(subprocess.run("echo kept >&%d" % fd if fd < 10 else "true", shell=True, close_fds=False).returncode); show("passed")
os.close(fd)
save = os.dup(1); f = os.open("dup2", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644); os.dup2(f, 1); os.close(f)
print("python hidden", flush=True); os.system("echo system hidden"); os.dup2(save, 1); os.close(save); show("dup2")
print(os.popen("cat dup2").read().count("\n")); subprocess.run(["sh", "-c", "exec 8>eight; echo e >&8; sh -c 'echo f >&8'"]); show("eight")

section("fork")
fd = os.open("forked", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
for i in range(4):
    pid = os.fork()
    if pid == 0: os.write(fd, b"child %d\n" % i); os._exit(i)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.lseek(fd, 0, 1))
os.lseek(fd, 0, 0); pid = os.fork()
if pid == 0: os.read(fd, 8); os._exit(0)
os.waitpid(pid, 0); print(os.read(fd, 8)); os.close(fd); show("forked")
pids = []
for i in range(4):
    pid = os.fork()
    if pid == 0:
        f = os.open("appended", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        for j in range(100): os.write(f, b"process %d line %03d\n" % (i, j))
        os._exit(0)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids]); l = open("appended").readlines(); print(len(l), len(set(l))); open("appended", "w").writelines(sorted(l))
pid = os.fork()
if pid == 0: os.dup2(os.open("exec", os.O_CREAT | os.O_WRONLY, 0o600), 1); os.chdir("sub"); os.execv("/bin/sh", ["sh", "-c", "echo execed; cat up; ls"])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); show("exec")
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "echo spawned; cat up 2>/dev/null || cat sub/up"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "spawn", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); show("spawn")
pid = os.fork()
if pid == 0:
    f = open("killed", "w"); f.write("written"); f.flush(); os.kill(os.getpid(), signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); show("killed")

section("multiprocessing")
def work(i):
    with open("mp-%d" % i, "w") as f: f.write(str(i * i) * 1000)
    return os.path.getsize("mp-%d" % i)
if __name__ == "__main__":
    sys.stdout.flush(); context = multiprocessing.get_context("fork")
    with context.Pool(3) as pool: print(sum(pool.map(work, range(24))))
    with ProcessPoolExecutor(2, mp_context=context) as ex: print(sum(ex.map(work, range(24, 36))))
    def put(q, i):
        open("q-%d" % i, "w").write("q"); q.put(i)
    q = context.Queue(); ps = [context.Process(target=put, args=(q, i)) for i in range(3)]
    [p.start() for p in ps]; print(sorted(q.get() for _ in ps)); [p.join() for p in ps]; print(sum(os.path.exists("q-%d" % i) for i in range(3)))
    print(sum(len(open("mp-%d" % i).read()) for i in range(36)), sorted(os.listdir("sub")))
PY
python3 main.py
