"""Working directories in a pool, and programs that don't see it: nothing outside is touched."""
import os
import re
import shutil
import subprocess
import sys

from harness import Skipped, case, wait_until

# rm -rf, cp, a compiler and a shell in one static program, by its first argument.
STATIC = r'''
#define _GNU_SOURCE
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int gone(const char *p, const struct stat *s, int t, struct FTW *f) { return remove(p); }
static int copy(const char *from, const char *to, const char *head) {
    FILE *in = fopen(from, "r"), *out = in ? fopen(to, "w") : 0;
    if (!in || !out) { perror(in ? to : from); return 1; }
    fputs(head, out);
    for (int c; (c = getc(in)) != EOF;) putc(c, out);
    return fclose(out) != 0;
}
int main(int n, char **v) {
    char b[5000];
    if (n < 2) return 9;
    if (!strcmp(v[1], "rm")) return nftw(v[2], gone, 9, FTW_DEPTH | FTW_PHYS) ? perror(v[2]), 1 : 0;
    if (!strcmp(v[1], "cp")) return copy(v[2], v[3], "");
    if (!strcmp(v[1], "cc")) return copy(v[2], v[3], "compiled: ");
    if (!strcmp(v[1], "put")) { FILE *f = fopen(v[2], "a"); return !f ? perror(v[2]), 1 : fputs(v[3], f) < 0 || fclose(f); }
    if (!strcmp(v[1], "pwd")) return !getcwd(b, sizeof b) ? perror("getcwd"), 1 : puts(b) < 0;
    if (!strcmp(v[1], "in")) { if (chdir(v[2])) { perror(v[2]); return 1; } execvp(v[3], v + 3); return 126; }
    if (!strcmp(v[1], "run")) { execvp(v[2], v + 2); perror(v[2]); return 126; }
    return 9;
}
'''
SENTENCE = r"forebay: [^\n]* doesn't see /fb, nor its working directory; [^\n]*forebay mount"


def needs_fuse():
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Skipped("/dev/fuse isn't there, or isn't for this user")


def static(t, name="s", where=None):
    """The program."""
    source, program = os.path.join(t.work, name + ".c"), os.path.join(where or t.work, name)
    with open(source, "w") as c:
        c.write(STATIC)
    if not shutil.which("gcc"):
        raise Skipped("there is no gcc")
    t.command(["gcc", "-O1", "-w", "-static", "-o", program, source], timeout=60)
    return program


def outside(t, name="outer"):
    """A directory with the same names as that in the pool; what is in it."""
    outer = os.path.join(t.disk, name)
    os.makedirs(os.path.join(outer, "build", "deep"))
    for path in ("victim", "build/a", "build/deep/b", "source.c"):
        with open(os.path.join(outer, path), "w") as f:
            f.write("outer %s\n" % path)
    os.chmod(t.disk, 0o755)
    return outer


FILL = ("mkdir -p /fb/w/build/deep; cd /fb/w; "
        "for f in victim build/a build/deep/b source.c; do echo inner $f > $f; done; ")

# Ways of executing a program; $S is it.
WAYS = {
    "directly": '"$S" %s',
    "by exec": '(exec "$S" %s)',
    "by a shell": 'sh -c "\\"$S\\" %s"',
    "by env": 'env A=b "$S" %s',
    "with an empty environment": 'env -i "$S" %s',
    "by xargs": 'echo %s | xargs "$S"',
    "by find": 'find victim -exec "$S" %s \\;',
    "by Python, with the directory": 'cd /; "$PYTHON" -c \'import os, subprocess, sys; sys.exit(subprocess.run('
                                     '[os.environ["S"]] + sys.argv[1:], cwd="/fb/w").returncode)\' %s',
    "by another static program": '"$S" run "$S" %s',
    "in the background": '{ "$S" %s & wait $!; }',
}
WORDS = ("rm build", "rm ./build/../build", "cp source.c victim", "cc source.c a.out", "put new x",
         "rm ../outer/build", "put ../new x", "rm ../../../../build")


@case(60)
def unseen_programs_touch_nothing_outside(t):
    s, outer = static(t), outside(t)
    t.up("p")
    before = t.walk(t.disk)
    t.bash("p", FILL, cwd=outer)
    inner = t.walk("/fb", "p")
    env = {"S": s, "PYTHON": sys.executable}
    # Every way with one word, and every word by one way; all of them must fail, and say why.
    tries = [(way, WORDS[0]) for way in WAYS] + [("directly", words) for words in WORDS[1:]]
    script = "cd /fb/w\n"
    for number, (way, words) in enumerate(tries):
        script += "( %s ) 2> $ERRORS/%d; echo %d $?\n" % (WAYS[way] % words, number, number)
    errors = os.path.join(t.work, "errors")
    os.mkdir(errors)
    r = t.bash("p", script, env={**env, "ERRORS": errors}, cwd=outer, timeout=50)
    t.same(before, t.walk(t.disk), "outside")
    t.same(inner, t.walk("/fb", "p"), "the pool")
    codes = dict(line.split() for line in r.out.splitlines())
    for number, (way, words) in enumerate(tries):
        with open(os.path.join(errors, str(number))) as f:
            said = f.read()
        t.ok(codes[str(number)] != "0" or way == "by find", "%s %s: exit code 0" % (way, words))
        t.ok(re.search(SENTENCE, said), "%s %s: no hint\n%s" % (way, words, said))
    # Outside again it works as ever, whichever process changed the directory, and how.
    t.bash("p", r'''cd /fb/w; cd "$OLDPWD"; "$S" pwd; cd /fb/w; (cd /usr; "$S" pwd)
        cd ../../usr; "$S" pwd; cd /fb/w; "$PYTHON" -c 'import os
here = os.open("/usr/bin", os.O_RDONLY); inside = os.open(".", os.O_RDONLY)
os.fchdir(here); os.system("$S pwd"); os.fchdir(inside); print(os.getcwd(), os.listdir("build"))
os.chdir("/usr/lib"); os.system("$S pwd")' ''', env=env, cwd=outer).quiet().prints(
        "^%s$" % re.escape(outer), r"^/usr$(.|\n)*^/usr$", "^/usr/bin$", r"^/fb/w \[", "^/usr/lib$")
    # A program that sees the pool, started by one that doesn't, is where it ought to be.
    t.bash("p", 'cd /fb/w; "$S" run sh -c \'pwd; cat victim; cd build; "$S" run cat a\'', env=env,
           cwd=outer).prints("^/fb/w$", "^inner victim$", "^inner build/a$")
    # And where that one has gone, if it has.
    t.bash("p", 'cd /fb/w; "$S" in /usr sh -c "pwd; cd /fb/w; pwd"; (exec "$S" in "$0" cat victim)'.replace(
        "$0", outer), env=env, cwd=outer).prints("^/usr$", "^/fb/w$", "^outer victim$")
    # Neither is anything left of the places where they were.
    left = [n for n in os.listdir(t.pool_dir("p")) if n.startswith(".")]
    t.ok(not left, "left in the pool's directory: %s" % left)


@case(30)
def programs_with_other_rights_touch_nothing_outside(t):
    if os.getuid() != 0:
        raise Skipped("only root can make a set-user-ID program of another user")
    outer = outside(t)
    os.chmod(outer, 0o777)
    for name in ("rm", "touch", "env"):
        copy = os.path.join(t.disk, name)
        shutil.copy(shutil.which(name), copy)
        os.chown(copy, 65534, 65534)
        os.chmod(copy, 0o6755)
    s = static(t, where=t.disk)
    os.chmod(s, 0o755)
    t.up("p")
    before = t.walk(outer)
    env = {"D": t.disk, "S": s}
    r = t.bash("p", FILL + '''"$D/rm" -f victim ../outer/victim; "$D/touch" new; "$D/env" rm -rf build
        chmod 0777 /fb /fb/w; command -v sudo > /dev/null && sudo -n -u nobody touch by-sudo; true''',
               env=env, cwd=outer)
    t.same(before, t.walk(outer), "outside")
    r.says(r"changes its user", SENTENCE)
    # A process that gives its rights up, in the pool and before it goes there.
    t.python("p", r'''
import os, sys
os.chdir("/fb/w")
if os.fork() == 0:
    os.setgid(65534); os.setuid(65534)
    os.chdir("/"); os.chdir("/fb/w")
    os.execv(os.environ["S"], ["s", "rm", "victim"])
os.wait()
os.setgid(65534); os.setuid(65534)
os.chdir("/"); os.chdir("/fb/w"); os.chdir("/usr")
print(os.getcwd())
''', env=env, cwd=outer).prints("^/usr$")
    t.same(before, t.walk(outer), "outside")


@case(30)
def core_dumps_do_not_land_outside(t):
    with open("/proc/sys/kernel/core_pattern") as f:
        pattern = f.read().strip()
    if "/" in pattern or pattern.startswith("|"):
        raise Skipped("core dumps go to %s" % pattern)
    outer = outside(t)
    crash = "ulimit -c unlimited; sh -c 'kill -SEGV $$'; true"
    t.command(["bash", "-c", crash], cwd=outer)
    if not [n for n in os.listdir(outer) if n.startswith("core")]:
        raise Skipped("there are no core dumps here")
    shutil.rmtree(outer)
    outside(t)
    t.up("p")
    t.bash("p", FILL + crash, cwd=outer)
    left = [n for n in os.listdir(outer) if n.startswith("core")]
    t.ok(not left, "left outside: %s" % left)


@case(60)
def forebay_again_in_a_working_directory_of_the_pool(t):
    outer = outside(t)
    before = t.walk(outer)
    t.up("p")
    t.bash("p", FILL + "printf '#!/bin/sh\\npwd; echo $1 > made-by-script\\n' > script; chmod +x script",
           cwd=outer)
    env = {"F": t.forebay}
    t.bash("p", '''cd /fb/w
        "$F" exec --pool p -- sh -c 'pwd; cat victim; echo nested > result'
        "$F" exec --pool p -- ./script word
        "$F" exec --pool p -- sh -c 'cd build; "$F" exec --pool p -- cat a'
        "$F" ls --pool p build; "$F" exec --pool p -- cat victim; cat /fb/w/result /fb/w/made-by-script''',
           env=env, cwd=outer).quiet().prints(
        "^/fb/w$", "^inner victim$", "^nested$", "^word$", "^inner build/a$", "^deep$")
    # Relative paths of the command line are those of the pool, too, or lead out of it.
    t.bash("p", 'cd /fb/w; "$F" stage in ./build /x --pool p', env=env, cwd=outer, rc=None).says(
        "build: lies under the mount prefix /fb")
    t.bash("p", '''cd /fb/w; "$F" stage in "../..$0/build" staged --pool p; cat staged/a
        "$F" stage out build "../..$0/out" --pool p; cat "$0/out/a"'''.replace("$0", outer),
           env=env, cwd=outer).prints("^outer build/a$", "^inner build/a$")
    shutil.rmtree(os.path.join(outer, "out"))
    # Programs in another pool don't see it: they find nothing, rather than what is outside.
    t.up("q", mount="/fq")
    for words in ('"$F" exec --pool q --', '"$F" run -q --media memory:16M --'):
        r = t.bash("p", "cd /fb/w; %s sh -c 'cat victim; echo x > wrong'; true" % words, env=env, cwd=outer)
        t.ok("outer" not in r.out and "inner" not in r.out, "it found something\n" + r.told())
        r.says("the working directory lies in another pool")
    t.same(before, t.walk(outer), "outside")


@case(60)
def unseen_programs_use_the_mount(t):
    needs_fuse()
    s, outer = static(t), outside(t)
    before = t.walk(outer)
    t.up("p")
    env = {"S": s, "F": t.forebay}
    at = os.path.join(t.disk, "mnt")
    os.mkdir(at)
    try:
        t.fb("mount", "--pool", "p", at)
        t.bash("p", FILL + '''"$S" pwd; "$S" rm build; "$S" cp victim copy; "$S" cc source.c a.out
            ls; cat copy a.out; cd ..; "$S" put new x; cat new; "$S" run sh -c 'pwd; cat w/copy'
            cd w; (exec -a x "$S" nothing); "$F" exec --pool p -- pwd''', env=env, cwd=outer).quiet().prints(
            "^%s/w$" % re.escape(at), "^a.out\ncopy\nsource.c\nvictim$", "^inner victim$",
            "^compiled: inner source.c$", "^x", "^/fb/w$")
        # An exec that fails leaves the process where it was.
        t.bash("p", '''cd /fb/w; : > "$0/bad"; chmod +x "$0/bad"; printf '\\177ELFjunk' > "$0/bad"
            "$0/bad"; cat victim; pwd; ls -l /proc/self/cwd'''.replace("$0", t.work), env=env, cwd=outer,
               rc=None).prints("^inner victim$", "^/fb/w$")
    finally:
        subprocess.run(["umount", "-l", at] if os.getuid() == 0 else ["fusermount3", "-uz", at],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
    t.same(before, t.walk(outer), "outside")


@case(90)
def a_mount_for_one_program(t):
    needs_fuse()
    s, outer = static(t), outside(t)
    # A prefix of this test alone, which is a directory: others run at the same time.
    prefix = os.path.join(t.disk, "fb")
    os.mkdir(prefix)
    t.up("p", mount=prefix)
    env = {"S": s, "F": t.forebay, "P": prefix}
    script = '''mkdir -p "$P/w"; cd "$P/w"; "$S" pwd; "$S" put here x; "$S" put "$P/w/there" y; cat here there
        "$S" run sh -c 'pwd; cat "$P/w/here"'; exit 7'''
    words = ["exec", "--pool", "p", "--with-mount", "--", "bash", "-c", script]
    t.fb(*words, env=env, cwd=outer, rc=7).quiet().prints("^%s/w$" % re.escape(prefix), "^xy")

    if shutil.which("valgrind"):
        # Valgrind opens the program's file itself, by the path that it got.
        t.fb("exec", "--pool", "p", "--with-mount", "--", "bash", "-c",
             'mkdir -p "$P/v/in"; cp "$(command -v cat)" "$P/v/cat"; echo here > "$P/v/f"; cd "$P/v"; valgrind -q ./cat f && '
             'cd in && valgrind -q ../cat ../f && sh -c "cat ../f"', env=env, cwd=outer, timeout=50).prints("^here\nhere\nhere$")

    def mounts():
        with open("/proc/self/mountinfo") as f:
            return prefix in f.read()
    wait_until(lambda: not mounts(), 10, "the end of the mount")
    # Two at once share it, and it stays for the longer one.
    go = os.path.join(t.work, "go")
    os.mkfifo(go)
    longer = t.start([t.forebay, "exec", "--pool", "p", "--with-mount", "--", "bash", "-c",
                      'echo ready; read x < "%s"; "$S" put "$P/late" late' % go],
                     env={**os.environ, **env}, cwd=outer)
    t.ok(longer.stdout.readline() == b"ready\n", "it didn't start")
    t.fb(*words, env=env, cwd=outer, rc=7).prints("^%s/w$" % re.escape(prefix))
    t.ok(mounts(), "the mount went with the first program")
    with open(go, "w") as f:
        f.write("x\n")
    t.finish(longer, timeout=20)
    t.bash("p", 'cat "$P/late"', env=env).prints("^late")
    wait_until(lambda: not mounts(), 10, "the end of the mount")
    # Where the prefix has files in it, it isn't hidden: the working directory works by a private mount.
    with open(os.path.join(prefix, "file"), "w") as f:
        f.write("mine")
    r = t.fb("exec", "--pool", "p", "--with-mount", "--", "bash", "-c",
             'cd "$P/w"; "$S" put private z; cat private', env=env, cwd=outer)
    r.prints("^z").says("it is a directory with files in it")
    t.ok(sorted(os.listdir(prefix)) == ["file"], "the prefix: %s" % os.listdir(prefix))
    wait_until(lambda: not [n for n in os.listdir(os.path.join(t.pool_dir("p"), "mounts")) if n != "log"],
               10, "nothing to be left of the mounts")


@case(90)
def one_mount_for_one_program_after_another(t):
    needs_fuse()
    prefix = os.path.join(t.disk, "fb")

    def sees():
        return t.fb("exec", "--pool", "p", "--with-mount", "--", "cat", "/proc/self/mountinfo", prefix + "/f")
    for made in (True, False):
        # The prefix is a directory, or made for each mount.
        if not made:
            os.makedirs(prefix, exist_ok=True)
        t.up("p", mount=prefix)
        t.bash("p", 'echo seen > "%s/f"' % prefix)
        for _ in range(12):
            sees().quiet().prints(" %s .*fuse.forebay" % prefix, "^seen$")
        # Several at once, while the mounts of others begin and end.
        for _ in range(4):
            programs = [t.start([t.forebay, "exec", "--pool", "p", "--with-mount", "--", "cat",
                                 "/proc/self/mountinfo", prefix + "/f"]) for _ in range(4)]
            for program in programs:
                t.finish(program, timeout=30).quiet().prints(" %s .*fuse.forebay" % prefix, "^seen$")
        # Also directly after the last of them.
        t.fb("down", "--pool", "p")
        t.nothing_left("a mount for each program")
        if not made:
            os.rmdir(prefix)


INHERITS = r'''
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* Writes so many bytes. */
int main(int argc, char **argv) {
  static char b[1 << 16]; long left = atol(argv[1]);
  for (memset(b, 'x', sizeof b); left > 0; ) {
    long n = write(1, b, left < (long)sizeof b ? left : (long)sizeof b);
    if (n < 0) return 9;
    left -= n;
  }
  return 0;
}
'''


@case(60)
def descriptors_of_a_static_program_through_a_mount(t):
    needs_fuse()
    s = static(t)
    prefix = os.path.join(t.disk, "fb")
    os.mkdir(prefix)
    t.up("p", mount=prefix)
    # The file itself, where nobody shares the offset; in turns with others, who do.
    script = '''cd "$P"; "$S" run stat -L -c %F /proc/self/fd/1 > kind; { "$S" run echo a; echo b; "$S" run echo c; } > turns
        "$S" run echo d >> turns; echo in > in; "$S" run cat < in > out; exec 7<> two; "$S" run sh -c 'cat; echo x' <&7 >&7
        echo y >&7; cat kind turns out two'''
    t.fb("exec", "--pool", "p", "--with-mount", "--", "bash", "-c", script, env={"S": s, "P": prefix}).prints(
        "^regular (empty )?file\na\nb\nc\nd\nin\nx\ny$")


@case(60)
def output_of_a_static_program_that_finds_no_room(t):
    s = static(t, "s")
    source, program = os.path.join(t.work, "writes.c"), os.path.join(t.work, "writes")
    with open(source, "w") as c:
        c.write(INHERITS)
    t.command(["gcc", "-O1", "-w", "-static", "-o", program, source], timeout=60)
    t.up("p", media=("memory:8M",))
    # If all of it is in the pipe when the program ends, the program's parent hears of the loss; if the
    # courier has given up before, the program gets SIGPIPE.
    fill = 'head -c 20M /dev/zero > /fb/fill 2> /dev/null; '
    r = t.bash("p", fill + '"$W" 200000 > /fb/lost; echo "exit code $?"; "$W" 100000000 > /fb/lost; echo "exit code $?"',
               env={"W": program, "S": s}, rc=None)
    r.prints("^exit code (74|141)$", "^exit code (9|141)$").says("not all that process [0-9]+ has written is in /fb/lost: No space left")


@case(20)
def entering_a_pool_without_descriptors(t):
    outer = outside(t)
    t.up("p")
    t.bash("p", FILL, cwd=outer)
    t.python("p", r'''
import errno, os, resource
os.listdir("/fb/w")
before = os.getcwd()
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as e:
    assert e.errno == errno.EMFILE
try:
    os.chdir("/fb/w")
    # The working directory is in the pool, or where it was; never in between.
    assert os.getcwd() == "/fb/w" and open("victim").close() is None
except OSError as e:
    assert e.errno == errno.EMFILE, e
    assert os.getcwd() == before and os.path.exists(before + "/victim")
for fd in held[-8:]:
    os.close(fd)
os.chdir("/fb/w")
print(os.getcwd())
while True:
    try:
        held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as e:
        break
os.chdir("/usr")
os.chdir("/fb/w/build")
print(os.getcwd())
''', cwd=outer).quiet().prints("^/fb/w$", "^/fb/w/build$")
    # A umask that takes the owner's rights away.
    t.bash("p", "umask 777; cd /usr; cd /fb/w; cat victim; pwd", cwd=outer).quiet().prints("^/fb/w$")
