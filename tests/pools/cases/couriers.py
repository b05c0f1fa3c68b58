"""Couriers: what becomes of bytes on their way from a program that doesn't see the pool, whoever
waits for that program."""
import os
import shutil
import signal
import time

from harness import alive, case, comm, wait_until

PROGRAM = r'''
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* write BYTES, exit CODE, die SIGNAL, pid FILE, sleep SECONDS, sh SCRIPT (in a child). */
int main(int argc, char **argv) {
  static char b[1 << 16];
  memset(b, 'x', sizeof b);
  for (int i = 1; i + 1 < argc; i += 2) {
    char *what = argv[i], *arg = argv[i + 1];
    if (!strcmp(what, "write")) for (long n, left = atol(arg); left > 0; left -= n) {
      n = write(1, b, left < (long)sizeof b ? left : (long)sizeof b);
      if (n < 0) return 9;
    }
    if (!strcmp(what, "exit")) return atoi(arg);
    if (!strcmp(what, "die")) kill(getpid(), atoi(arg));
    if (!strcmp(what, "pid")) { FILE *f = fopen(arg, "w"); fprintf(f, "%d %d", getpid(), getppid()); fclose(f); }
    if (!strcmp(what, "sleep")) sleep(atoi(arg));
    if (!strcmp(what, "sh")) { int s = system(arg); return s & 127 ? 9 : s >> 8; }
  }
  return 0;
}
'''
# Twice: the first may stop short of the last segment.
FILL = "for i in 1 2; do head -c 20M /dev/zero >> /fb/fill; done 2> /dev/null; "
LOST = r"not all that process [0-9]+ has written is in /fb/lost: No space left on device.*; make room"


def static(t):
    source, program = os.path.join(t.work, "program.c"), os.path.join(t.work, "W")
    with open(source, "w") as c:
        c.write(PROGRAM)
    t.command(["gcc", "-O1", "-w", "-static", "-o", program, source], timeout=60)
    return program


def numbers(path):
    """The program's process and its parent's, once the program has written them."""
    def text():
        try:
            with open(path) as f:
                return f.read().split()
        except OSError:
            return []
    wait_until(lambda: len(text()) == 2, 15, "the program")
    return [int(n) for n in text()]


@case(120)
def no_program_ends_well_whose_output_is_lost(t):
    program = static(t)
    env = {"W": program, "T": t.work + "/trace"}
    t.up("p", media=("memory:8M",))
    t.bash("p", FILL, rc=None)
    write = '"$W" write 60000 > /fb/lost'
    ways = {
        "exec": 'exec ' + write,
        "the last command": write,
        "not the last command": write + '; exit $?',
        "env": 'exec env ' + write,
        "nice": 'exec nice ' + write,
        "setsid": 'exec setsid --wait ' + write,
        "a shell's shell": "exec sh -c 'exec %s'" % write,
        "a static parent": "\"$W\" sh 'exec %s'" % write,
        "xargs": "exec sh -c 'echo 60000 | exec xargs \"$W\" write > /fb/lost'",
        "a descriptor above 2": 'exec "$W" sh "exec $W write 60000 >&7" 7> /fb/lost',
    }
    if shutil.which("strace"):
        ways["strace -f"] = "exec strace -f -o \"$T\" sh -c 'exec %s'" % write
        ways["strace"] = 'exec strace -o "$T" ' + write
    for name, script in ways.items():
        r = t.check(name, t.bash, "p", script, env=env, rc=None)
        if name == "xargs":  # xargs has a code of its own for it.
            t.ok(r.rc == 123, "%s: exit code %d" % (name, r.rc))
        else:
            t.ok(r.rc == 74, "%s: exit code %d\n%s" % (name, r.rc, r.err))
        t.check(name, r.says, LOST)
    # The program's own failure goes first.
    t.bash("p", 'exec "$W" write 60000 exit 5 > /fb/lost', env=env, rc=5).says(LOST)
    t.bash("p", 'exec "$W" write 60000 die 15 > /fb/lost', env=env, rc=-15).says(LOST)
    t.fb("down", "--pool", "p")
    r = t.fb("run", "--media", "memory:8M", "--out", "/lost:%s/lost" % t.work, "--", "bash", "-c",
             FILL + "exec " + write, env=env, rc=74).says(LOST)
    # Nobody waits for the program, which has ended when the run's program ends.
    t.fb("run", "--media", "memory:8M", "--out", "/lost:%s/again" % t.work, "--", "bash", "-c",
         FILL + "( %s & ); sleep 2" % write, env=env, rc=74).says(LOST)
    t.nothing_left("run")


@case(120)
def commands_inside_a_pool_read_and_write_its_files(t):
    """The command line restarts itself without the library; its standard files stay the pool's."""
    env = {"F": t.forebay}
    t.up("p", media=("memory:32M",))
    t.bash("p", "echo hello > /fb/in")
    version = t.fb("version").out
    # What is written, what the file has then, and whether that is all of it.
    ways = {
        "version": ('"$F" version > /fb/out', version),
        "at the end of a file": ('echo 1 > /fb/out; "$F" version >> /fb/out 2>&1', "1\n" + version),
        "in place of a shell": ('(exec "$F" version > /fb/out)', version),
        "a descriptor above 2": ('sh -c \'"$F" version >&7\' 7> /fb/out', version),
        "exec": ('"$F" exec -- seq 3 > /fb/out', "1\n2\n3\n"),
        "a static program": ('"$F" exec -- "$W" write 3 > /fb/out', "xxx"),
        "exec's input": ('"$F" exec -- cat < /fb/in > /fb/out', "hello\n"),
        "exec's errors": ('"$F" exec -- sh -c "echo error >&2" 2> /fb/out', "error\n"),
        "run": ('"$F" -q run --media memory:8M -- cat < /fb/in > /fb/out', "hello\n"),
        "an error": ('"$F" ls /none 2> /fb/out || true', "forebay: "),
        "ls": ('"$F" ls / > /fb/out', "in\n"),
        "pools": ('"$F" pools --json > /fb/out', "[\n"),
        "df": ('"$F" df > /fb/out', "Medium"),
    }
    env["W"] = static(t)
    for name, (script, expected) in ways.items():
        t.check(name, t.bash, "p", "rm -f /fb/out; " + script, env=env)
        text = t.bash("p", "cat /fb/out").out
        is_whole = name not in ("an error", "ls", "pools", "df")
        t.ok(text == expected if is_whole else text.startswith(expected), "%s: %r" % (name, text))
    # What a command leaves of its input is for the next.
    t.bash("p", 'seq 3 > /fb/in; { "$F" version > /dev/null; cat; } < /fb/in',
           env=env).prints("^1\n2\n3\n$")
    # Bytes that don't fit.
    t.bash("p", FILL, rc=None)
    t.bash("p", '"$F" version > /fb/lost', env=env, rc=74).says(LOST)
    t.bash("p", 'exec "$F" version > /fb/lost', env=env, rc=74).says(LOST)
    # The writer is told by SIGPIPE or by the courier, depending on who is first.
    t.bash("p", '"$F" exec -- head -c 60000 /dev/zero > /fb/lost', env=env,
           rc=(74, 141)).says(LOST)
    # A standard output that can't be written, whatever it is.
    r = t.command(["sh", "-c", '"$F" version 1< /dev/null'], env={**os.environ, **env}, rc=1)
    r.says("can't write to the standard output")


@case(60)
def output_beyond_a_limit_on_file_sizes_is_reported(t):
    """The limit holds for the courier, too, whose note is longer than it."""
    env = {"W": static(t)}
    t.up("p")
    limits = {"both limits": "10", "the soft limit": "10:1000000"}
    ends = {"the parent waits": "%s; exit $?", "the parent is outside": "exec %s"}
    for limit, value in limits.items():
        for end, script in ends.items():
            name = limit + ", " + end
            run = 'prlimit --fsize=%s "$W" write 6000 > /fb/lost' % value
            r = t.check(name, t.bash, "p", "rm -f /fb/lost; " + script % run, env=env, rc=None)
            # Where the note can't be written, the program isn't executed.
            allowed = (74, 126) if limit == "both limits" else (74,)
            t.ok(r.rc in allowed, "%s: exit code %d\n%s" % (name, r.rc, r.err))
            t.check(name, r.says, "File too large")


@case(60)
def a_supervisor_is_like_its_program(t):
    program = static(t)
    file = t.work + "/numbers"
    env = {"W": program, "N": file}
    t.up("p")
    t.bash("p", 'exec "$W" write 3000000 > /fb/out', env=env).quiet()
    t.bash("p", 'stat -c %s /fb/out').prints("^3000000$")
    t.bash("p", 'echo in > /fb/in; exec "$W" exit 6 < /fb/in', env=env, rc=6).quiet()
    t.bash("p", 'exec /no/such/program > /fb/out', env=env, rc=127)
    # Signals: to the process that was started, and no process stays.
    for number in (signal.SIGTERM, signal.SIGKILL):
        p = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                     'exec "$W" pid "$N" sleep 30 > /fb/out'], env={**os.environ, **env})
        own, parent = numbers(file)
        t.ok(parent == p.pid, "the parent is %d, not %d" % (parent, p.pid))
        wait_until(lambda: comm(p.pid).startswith("forebay-waits"), 5, "the supervisor")
        os.kill(p.pid, number)
        t.finish(p, rc=-number)
        wait_until(lambda: not alive(own), 5, "the end of the program")
        os.unlink(file)
    # A stopped program is seen as stopped.
    p = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                 'exec "$W" pid "$N" sleep 2 exit 4 > /fb/out'], env={**os.environ, **env})
    own, parent = numbers(file)
    os.kill(own, signal.SIGSTOP)
    t.ok(os.WIFSTOPPED(os.waitpid(p.pid, os.WUNTRACED)[1]), "it isn't stopped")
    os.kill(p.pid, signal.SIGCONT)
    t.finish(p, rc=4)
    os.unlink(file)
    # A killed courier may have lost bytes.
    p = t.start([t.forebay, "exec", "--pool", "p", "--", "bash", "-c",
                 'exec "$W" pid "$N" sleep 2 > /fb/out'], env={**os.environ, **env})
    own, parent = numbers(file)
    notes = os.path.join(t.pool_dir("p"), "couriers")
    note = [n for n in os.listdir(notes) if n.endswith("-%d" % own)]
    with open(os.path.join(notes, note[0])) as f:
        os.kill(int(f.read().split()[0]), signal.SIGKILL)
    t.finish(p, rc=74).says("forebay-courier.* was killed")
    # What stays in the background with the file open delays nobody.
    begun = time.monotonic()
    t.bash("p", 'exec "$W" sh "sleep 20 & exit 0" > /fb/out 2> /dev/null', env=env)
    t.ok(time.monotonic() - begun < 10, "it took %.1f s" % (time.monotonic() - begun))


@case(30)
def a_hint_is_written_once_for_a_command(t):
    env = {"W": static(t), "E": t.work + "/errors", "F": t.forebay}
    t.up("p")
    hint = "doesn't see /fb; it does where the pool is mounted"
    many = 'for i in 1 2 3; do "$W" exit 0 /fb/x; done; true'
    for script in (many, 'exec sh -c "$1"', '"$F" exec --pool p -- bash -c "$1"; eval "$1"'):
        r = t.bash("p", script, many, env=env)
        t.ok(r.err.count(hint) == 1, "hints: %s" % r.err)
    # A file of its own has its own; -q means none.
    t.bash("p", many + '; "$W" exit 0 /fb/x 2> "$E"', env=env)
    with open(env["E"]) as f:
        t.ok(f.read().count(hint) == 1, "no hint in a file")
    t.fb("-q", "exec", "--pool", "p", "--", "bash", "-c", many, env=env).quiet()
