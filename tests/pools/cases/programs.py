"""Programs in pools: pipes, forks, threads, limits."""
import os
import re
import sys

from harness import Skipped, case, noise, wait_until


@case(30)
def programs_that_do_not_touch_the_pool(t):
    t.up("p")
    r = t.bash("p", "ls / >/dev/null; echo ok").quiet()
    t.ok(r.out == "ok\n", "printed: %r" % r.out)
    r = t.python("p", "print('ok')").quiet()
    t.ok(r.out == "ok\n", "printed: %r" % r.out)
    t.bash("p", "ls -la / /usr/bin /proc/self/ > /dev/null; cat /etc/passwd | sort > /dev/null; "
                "cd /usr; cd ..; pwd; find /etc -name passwd > /dev/null 2>&1; sleep 0").quiet()
    # fifty at once
    many = [t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                     "echo $1 > /fb/many-$1; cat /fb/many-$1", "bash", str(n)]) for n in range(50)]
    for n, p in enumerate(many):
        r = t.finish(p, timeout=15).quiet()
        t.ok(r.out == "%d\n" % n, "process %d printed %r" % (n, r.out))
    t.bash("p", '''for n in $(seq 50); do (echo $n > /fb/sub-$n) & done; wait
        for n in $(seq 30); do /bin/true & done; wait; cat /fb/sub-* | sort -n | tail -1
        ls /fb/sub-* /fb/many-* | wc -l''').prints("^50$", "^100$").quiet()
    wait_until(lambda: t.fb("status", "--pool", "p", "--json").json()["processes"] == [], 3,
               "status to show no process")


@case(30)
def pipes_and_exit_codes(t):
    t.up("p")
    data = noise(8 << 20, 3)
    p = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                 "tee /fb/copy | cat | tee /fb/second"], stdin=-1)
    out, err = p.communicate(data, 20)
    t.ok(p.returncode == 0 and err == b"" and out == data, "8 MiB through pipes are not the same")
    t.bash("p", "cmp /fb/copy /fb/second && stat -c %s /fb/copy").prints("^8388608$").quiet()
    out = t.start([t.forebay, "exec", "--pool", "p", "--", "cat", "/fb/copy"]).communicate(timeout=20)[0]
    t.ok(out == data, "cat prints something else")
    p = t.start(["bash", "-c", '"$0" exec --pool p -- cat /fb/copy | head -c 10 | wc -c; echo ${PIPESTATUS[0]}',
                 t.forebay])
    t.finish(p).prints("^10$").quiet()
    odd = ["a b", "", "x\ny", "*", "$HOME", "-n", "--", "ä", "'"]
    r = t.exec("p", sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd)
    t.ok(r.out == repr(odd) + "\n", "arguments: " + r.out)
    t.python("p", "import os; print('EXTRA' in os.environ, os.getcwd())",
             env={"EXTRA": "1"}, cwd="/usr").prints("^True /usr$")

    def both(words, code, killed=None, *patterns):
        r = t.exec("p", *words, rc=None)
        t.check("exec " + words[-1], lambda: (
            t.ok(r.rc == (code if killed is None else -killed), r.told()), r.says(*patterns)))
        r = t.fb("run", "-q", "--media", "memory:16M", "--", *words, rc=None)
        t.check("run " + words[-1], lambda: (t.ok(r.rc == code, r.told()), r.says(*patterns)))
    both(["true"], 0)
    both(["false"], 1)
    both(["bash", "-c", "exit 3"], 3)
    both(["bash", "-c", "exit 120"], 120)
    both(["bash", "-c", "exit 255"], 255)
    both(["bash", "-c", "kill -9 $$"], 137, 9)
    both(["bash", "-c", "kill -15 $$"], 143, 15)
    both(["bash", "-c", "kill -SEGV $$"], 139, 11)
    both(["bash", "-c", "echo x > /fb/x; kill -9 $$"], 137, 9)
    both(["no-such-program"], 127, None, "no-such-program", "no such program")
    both(["/no/such/program"], 127, None, "no such program")
    both(["/etc/passwd"], 126, None, "/etc/passwd", "can't be executed", "chmod")
    both(["/etc"], 126, None, "/etc")
    t.exec("p", "bash", "-c", "(exit 4); echo $?; bash -c 'kill -9 $$'; echo $?").prints("^4$", "^137$")
    r = t.command(["bash", "-c", '"$0" exec --pool p -- bash -c "kill -9 \\$\\$"; echo $?',
                   t.forebay])
    r.prints("^137$")
    # Signals of a program are blocked and ignored as outside.
    look = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]

    def masks(r):
        usual = sum(1 << (s - 1) for s in (1, 2, 3, 10, 11, 13, 14, 15, 17))
        return {a: int(b, 16) & usual for a, b in re.findall(r"Sig(...):\s+([0-9a-f]+)", r.out)}
    outside = masks(t.command(look))
    t.ok(set(outside) == {"Blk", "Ign"}, "%s" % outside)
    for words in (["exec", "--pool", "p"], ["run", "-q", "--media", "memory:16M"]):
        r = t.fb(*words, "--", *look)
        t.check("signals under " + words[0], lambda: t.ok(masks(r) == outside, "%s, outside %s" % (r.out, outside)))
        p = t.start([t.forebay, *words, "--", "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"])
        t.check("SIGPIPE under " + words[0], lambda: t.finish(p).prints("^y$", "^141$"))
    r = t.fb("run", "-q", "--media", "memory:16M", "--", "cat", feed=b"from stdin\n")
    t.ok(r.out == "from stdin\n" and r.err == "", r.told())
    # Without "--": all behind the program is its own.
    t.fb("exec", "--pool", "p", "bash", "-c", "echo $0 $1", "--pool", "x").prints("^--pool x$")
    t.fb("run", "-q", "echo", "--help", "-v").prints("^--help -v$")
    # Steps are told when they happen.
    steps = t.command(["bash", "-c", '"$0" run --media memory:16M -- echo THE PROGRAM 2>&1', t.forebay]).out
    t.ok(re.search("pool 'run-.*\n(.*\n)*THE PROGRAM\n(.*\n)*.*exit code 0", steps), steps)
    # A program in the pool.
    t.bash("p", "printf '#!/bin/sh\\necho \"script $1\"; exit 6\\n' > /fb/s; chmod +x /fb/s")
    t.exec("p", "/fb/s", "arg", rc=6).prints("^script arg$").quiet()
    t.exec("p", "cp", "/bin/echo", "/fb/echo").quiet()
    t.exec("p", "/fb/echo", "binary").prints("^binary$").quiet()


@case(20)
def run_without_media(t):
    times = []
    for _ in range(3):
        r = t.fb("run", "--", "true")
        times.append(r.seconds)
        r.says("pool 'run-\\d+' with memory:", "exit code 0")
        t.ok(r.out == "", "something on standard output\n" + r.told())
        t.nothing_left("run")
    t.ok(min(times) < 1, "run -- true takes %s s" % times)
    r = t.fb("run", "-q", "--", "bash", "-c", "echo x > /fb/x; cat /fb/x").quiet()
    t.ok(r.out == "x\n", r.told())
    t.fb("run", "--", "false", rc=1)
    t.fb("run", "--", "no-such-program", rc=127)
    t.nothing_left("run")
    # FOREBAY_POOL is not for run; a pool of that name stays untouched.
    r = t.fb("up", "--pool", "mine").prints(r"pool 'mine' is up: memory:\S+ .*available", "/fb; ")
    t.fb("run", "--", "touch", "/fb/x", env={"FOREBAY_POOL": "mine"}).says("pool 'run-")
    t.bash("mine", "test ! -e /fb/x; echo $?").prints("^0$")
    t.fb("run", "--pool", "mine", "--", "true", rc=1).says("'mine' exists already")
    t.fb("down", "--pool", "mine").quiet()
    # Several at the same time.
    many = [t.start([t.forebay, "run", "-q", "--media", "memory:16M", "--", "bash", "-c",
                     "echo $1 > /fb/x; cat /fb/x", "bash", str(n)]) for n in range(8)]
    for n, p in enumerate(many):
        t.ok(t.finish(p).out == "%d\n" % n, "run %d prints something else" % n)
    t.nothing_left("run")
    # Processes that the program leaves running are ended, and that is reported.
    r = t.fb("run", "--media", "memory:16M", "--", "bash", "-c",
             "(exec 3> /fb/x; exec sleep 100) > /dev/null 2>&1 & sleep 0.1")
    r.says("warning: ended what the program had left running: \\d+ \\(sleep\\)")
    t.nothing_left("run")
    r = t.fb("run", "--keep", "--pool", "kept", "--", "bash", "-c", "echo k > /fb/k")
    r.says("the pool 'kept' stays", "forebay down --pool kept")
    t.exec("kept", "cat", "/fb/k").prints("^k$")
    t.fb("down", "--pool", "kept").quiet()
    t.nothing_left("down")


@case(30)
def forks_and_redirections(t):
    t.up("p", media=["memory:128M"])
    t.bash("p", '''for n in $(seq 200); do ( echo "line $n of many" >> /fb/log ) & done; wait
        for n in $(seq 201 260); do ( for m in 1 2 3; do echo "line $n of many"; done >> /fb/log; ) &
        done; wait''').quiet()
    lines = sorted(t.bash("p", "cat /fb/log").out.splitlines())
    wanted = sorted(["line %d of many" % n for n in range(1, 201)]
                    + ["line %d of many" % n for n in range(201, 261)] * 3)
    t.ok(lines == wanted, "%d lines, not %d; wrong: %s" % (
        len(lines), len(wanted), sorted(set(lines) ^ set(wanted))[:5]))
    t.bash("p", '''set -e; mkdir /fb/jobs; cd /fb/jobs
        for n in $(seq 20); do seq $n > out$n 2> err$n & done; wait
        for n in $(seq 20); do test "$(tail -1 out$n)" = $n; test ! -s err$n; done
        ls none > o 2> e || true; test -s e; test ! -s o
        ls none > both 2>&1 || true; test -s both
        exec 3>>/fb/log2; bash -c 'echo x >&3'; bash -c 'exec bash -c "echo y >&3"'; (echo z >&3)
        exec 3>&-; test "$(tr '\\n' ' ' < /fb/log2)" = "x y z "; ! bash -c 'echo no >&3' 2> /dev/null
        exec 4<out20; read a <&4; b=$(head -c 2 <&4 | tr -d '\\n'); bash -c 'read c <&4; echo $c' > c
        exec 4<&-; test "$a" = 1; test "$b" = 2
        exec 5<>rw; echo one >&5; bash -c 'echo two >&5'; exec 5>&-; test "$(cat rw | wc -l)" = 2
        { echo a; bash -c 'echo b'; (echo c); } > group; test "$(tr -d '\\n' < group)" = abc
        cat > here <<END\nhere $((1 + 1))\nEND
        test "$(cat here)" = "here 2"; cat <<< word > word; grep -qx word word
        test "$(cat < here | tee t1 t2 | wc -c)" = 7; cmp t1 t2; sort < out20 | uniq | wc -l > n
        test "$(cat n)" = 20; diff <(seq 20) out20; while read -r x; do echo "$x"; done < out20 > o20
        cmp o20 out20; set -o noclobber; ! { echo x > o20; } 2> /dev/null; cmp o20 out20''').quiet()
    t.bash("p", '''set -e; mkdir -p /fb/dir/sub; cd /fb/dir; bash -c 'test "$(pwd)" = /fb/dir; echo x > y'
        test -s /fb/dir/y; /bin/pwd | grep -qx /fb/dir; (cd sub; touch z; exec ls) | grep -qx z
        env -C /fb/dir/sub ls | grep -qx z; python3 -c 'import os; assert os.getcwd() == "/fb/dir"'
        cd sub; cd ..; test "$(pwd -P)" = /fb/dir; cd /usr; test -e bin; cd - > /dev/null; test -e y
        ls -l /proc/self/cwd > /dev/null; perl -e 'exit !-e "y"' 2> /dev/null || test ! -x /usr/bin/perl
        cd sub; rmdir ../none 2> /dev/null || true; mv ../sub ../renamed; touch here
        test -e /fb/dir/renamed/here; test "$(/bin/pwd)" = /fb/dir/renamed''').quiet()
    t.bash("p", '''set -e; cd /fb; for m in 022 077 000 027; do umask $m; touch f$m; mkdir d$m
        bash -c "umask; touch g$m; (touch h$m)" > /dev/null; python3 -c "open('i$m', 'w')"; done
        stat -c '%n %a' [dfghi]0*''').prints(
            "^f022 644$", "^d022 755$", "^g022 644$", "^f077 600$", "^d077 700$", "^h077 600$",
            "^i077 600$", "^f000 666$", "^d000 777$", "^g000 666$", "^f027 640$", "^d027 750$",
            "^i027 640$").quiet()
    # fork, spawn, threads; a shared offset; close-on-exec; wait for all of it
    t.python("p", r'''
import os, subprocess, sys, threading
fd = os.open("/fb/shared", os.O_RDWR | os.O_CREAT)
for n in range(40):
    if os.fork() == 0:
        os.write(fd, b"%03d\n" % n)
        os._exit(0)
for n in range(40):
    assert os.wait()[1] == 0
assert sorted(os.pread(fd, 1000, 0).split()) == [b"%03d" % n for n in range(40)]
assert os.lseek(fd, 0, 1) == 160
r = subprocess.run(["bash", "-c", "echo x >&%d" % fd], stderr=subprocess.DEVNULL)
assert r.returncode != 0, "close-on-exec is not respected"
subprocess.run(["bash", "-c", "echo end >&%d" % fd], pass_fds=[fd], check=True)
assert os.pread(fd, 10, 160) == b"end\n"
with open("/fb/out", "w") as f:
    subprocess.run(["echo", "to a file"], stdout=f, check=True)
with open("/fb/out") as f:
    assert subprocess.run(["cat"], stdin=f, stdout=subprocess.PIPE).stdout == b"to a file\n"
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "echo $0; pwd", "spawned"], os.environ, file_actions=[
    (os.POSIX_SPAWN_OPEN, 1, "/fb/spawned", os.O_WRONLY | os.O_CREAT, 0o600)])
assert os.waitpid(pid, 0)[1] == 0
assert open("/fb/spawned").read().startswith("spawned\n")
def work(n):
    for m in range(20):
        with open("/fb/thread-%d" % n, "a") as f:
            f.write("%d\n" % m)
        if m % 10 == 0:
            subprocess.run(["bash", "-c", "echo s >> /fb/thread-%d" % n], check=True)
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[x.start() for x in threads]
[x.join() for x in threads]
for n in range(6):
    assert len(open("/fb/thread-%d" % n).readlines()) == 22
p = [subprocess.Popen(["sort", "-n"], stdin=subprocess.PIPE, stdout=open("/fb/sorted%d" % n, "wb"))
     for n in range(10)]
for q in p:
    q.stdin.write(b"".join(b"%d\n" % m for m in range(2000, 0, -1)))
    q.stdin.close()
assert [q.wait() for q in p] == [0] * 10
for n in range(10):
    assert open("/fb/sorted%d" % n).read().split() == [str(m) for m in range(1, 2001)]
''').quiet()
    t.fb("down", "--pool", "p").quiet()
    t.nothing_left("down")


THREADS_AND_FORKS = r'''
import os, subprocess, sys, threading
how = sys.argv[1]
wrong = []
os.makedirs("/fb/t-" + how)
def work(n):
    path = "/fb/t-%s/%d" % (how, n)
    lines = 0
    for m in range(40):
        try:
            with open(path, "a") as f:
                f.write("%d\n" % m)
            lines += 1
            if m % 5:
                continue
            if how == "vfork":
                subprocess.run(["true"], check=True)
            elif how == "fork":
                subprocess.run(["true"], check=True, preexec_fn=lambda: None)
            elif how == "spawn":
                pid = os.posix_spawn("/bin/true", ["true"], os.environ)
                assert os.waitpid(pid, 0)[1] == 0
            elif how == "child-in-pool":
                subprocess.run(["bash", "-c", "echo s >> " + path], check=True)
                lines += 1
            else:
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
        except Exception as e:
            wrong.append("thread %d, round %d: %r" % (n, m, e))
    with open(path) as f:
        got = len(f.readlines())
    if got != lines:
        wrong.append("%s has %d lines, not %d" % (path, got, lines))
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[x.start() for x in threads]
[x.join() for x in threads]
for w in wrong[:10]:
    print(w, file=sys.stderr)
sys.exit(1 if wrong else 0)
'''


@case(40)
def threads_that_start_programs(t):
    t.up("p", media=["memory:128M"])
    for how in ("vfork", "fork", "spawn", "child-in-pool", "plain-fork"):
        for turn in range(3):
            t.check(how, lambda: t.python("p", THREADS_AND_FORKS, how).quiet())
            t.bash("p", "rm -rf /fb/t-*")


@case(20)
def no_room_for_addresses(t):
    """Under a tight `ulimit -v` the pool is out of reach: what is relative to a working directory
    in it fails, rather than be done where the kernel believes the process to be."""
    t.up("p")
    before = sorted(os.listdir(t.disk))
    script = """
        cd %s; cd /fb; echo inside > file
        ( ulimit -v 150000; cat file; bash -c 'echo wrong > made; mkdir made-too; pwd'; true ) 2>&1
        cat file; ls
        ( ulimit -v 150000; bash -c 'cd /; pwd; ls -d .' ) 2> /dev/null
    """ % t.disk
    r = t.bash("p", script)
    r.prints("^cat: file: Transport endpoint is not connected$", "^inside$", "^file$", "^/$", r"^\.$")
    t.ok(r.out.count("not connected") >= 3 and "\nmade" not in r.out, "not refused: %s" % r.out)
    t.ok(sorted(os.listdir(t.disk)) == before, "something was written outside the pool")


@case(20)
def commands_of_ours_inside_a_pool(t):
    # They are linked with an unwinder and keep their arguments and environment.
    t.up("p")
    t.bash("p", '"$F" pools; "$F" exec --pool p -- env; "$F" exec --pool p -- "$F" pools',
           env={"F": t.forebay, "KEPT": "word"}).quiet().prints("^p .*\n(.*\n)*p ", "^KEPT=word$")


# Argument: how the program becomes another user, in which thread, and the directory for its files.
# With `first`, the program makes the directory itself; otherwise, it hasn't used the pool before.
OTHER_USER = r'''
import ctypes, mmap, os, sys, threading
how, thread, when, top = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
SETRESUID, SETFSUID = 117, 122  # of x86-64
change = {
    "setfsuid": lambda: libc.setfsuid(5555),
    "setuid": lambda: os.setuid(5555),
    "seteuid": lambda: os.seteuid(5555),
    # Only of the calling thread.
    "own setresuid": lambda: libc.syscall(SETRESUID, -1, 5555, -1),
    "own setfsuid": lambda: libc.syscall(SETFSUID, 5555),
}[how]

def work():
    change()
    failed = {}
    for n in range(100):
        path = "%s/%d" % (top, n)
        try:
            with open(path, "wb") as f: f.write(b"x" * 3000)
            if os.stat(path).st_uid != 5555: failed[path] = "belongs to %d" % os.stat(path).st_uid
        except OSError as e:
            failed[path] = str(e)
    try:
        with open(top + "/large", "wb") as f: f.write(b"y" * (3 << 20))
        with open(top + "/large", "rb") as f:
            if mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[-1:] != b"y": failed["large"] = "other bytes"
    except OSError as e:
        failed["large"] = str(e)
    print("%d failed" % len(failed), list(failed.items())[:3])

if when == "first":
    os.mkdir(top)
    os.chmod(top, 0o777)
if thread == "main":
    work()
else:
    t = threading.Thread(target=work)
    t.start()
    t.join()
'''


@case(120)
def becomes_another_user(t):
    """A program that becomes another user than the pool's reaches a pool that hardly anybody has
    used yet: all that it needs is open before, or grows without being opened again."""
    if os.getuid() != 0:
        raise Skipped("only root can act as other users")
    # A program that it executes and that doesn't use the pool doesn't complain about it.
    t.up("p")
    for before in ("", "open('/fb/used', 'w').close()"):
        script = before + "\nimport os\nos.setuid(5555)\nos.execlp('id', 'id', '-u')"
        t.python("p", script).prints("^5555$").quiet()
    t.fb("down", "--pool", "p")
    ways = [(how, thread) for how in ("setfsuid", "setuid", "seteuid") for thread in ("main", "second")]
    ways += [("own setresuid", "second"), ("own setfsuid", "second")]
    for nodes in (1, 2):
        for k, (how, thread) in enumerate(ways):
            for when in ("first", "later"):
                t.up("p", *(["--nodes", "2"] if nodes > 1 else []))
                node = ["--node", str(k % 2)] if nodes > 1 else []
                if when == "later":
                    t.fb("exec", "--pool", "p", "--", "bash", "-c", "mkdir /fb/d; chmod 777 /fb/d")
                what = "%d nodes, %s in the %s thread, %s" % (nodes, how, thread, when)
                r = t.fb("exec", "--pool", "p", *node, "--", sys.executable, "-c", OTHER_USER, how, thread, when,
                         "/fb/d")
                t.ok(r.out == "0 failed []\n", "%s: %s%s" % (what, r.out, r.err))
                t.fb("down", "--pool", "p")
