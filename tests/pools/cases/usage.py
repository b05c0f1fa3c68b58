"""Mount prefixes, and wrong usage."""
import os

from harness import case


@case(20)
def mount_hides_a_directory(t):
    real = t.work + "/real"
    os.makedirs(real + "/sub")
    t.file(real + "/outside", 10)
    t.file(t.work + "/beside", 20)
    r = t.up("p", mount=real)
    r.says("warning: .*%s hides a directory that exists; programs in the pool won't see it" % real)
    t.ok(r.rc == 0, "up fails")
    t.bash("p", '''set -e; cd "$1"; test -z "$(ls -A)"; test ! -e outside; test ! -d sub
        ! cat outside 2>/dev/null; echo in > inside; mkdir sub; echo s > sub/s; cat "$1/inside"
        test "$(ls | tr '\\n' ' ')" = "inside sub "; test "$(pwd)" = "$1"
        cd ..; test -s beside; cd "$1/sub"; cat ../../beside > copy
        test "$(stat -c %s copy)" = 20; ls ../.. | grep -qx beside
        find "$1" -type f | wc -l''', real).prints("^in$", "^3$").quiet()
    # From the directory above it, with a relative path.
    t.check("relative path from above", lambda: t.bash(
        "p", 'cd "$1/.."; test ! -e real/outside; cat real/inside; cd real; ls', real
    ).prints("^in$", "^inside$").quiet())
    t.check("relative path from two above", lambda: t.bash(
        "p", 'cd "$1/../.."; cat work/real/inside; cd work; echo n > real/new; ls real', real
    ).prints("^in$", "^new$").quiet())
    t.check("openat from above", lambda: t.python("p", '''
import os, sys
d = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
assert os.stat("beside", dir_fd=d).st_size == 20
assert open(os.open("real/inside", os.O_RDONLY, dir_fd=d)).read() == "in\\n"
''', real).quiet())
    t.ok(sorted(os.listdir(real)) == ["outside", "sub"] and os.listdir(real + "/sub") == [],
         "the real directory was written to: %s" % os.listdir(real))
    t.fb("ls", "--pool", "p").prints("^inside$")
    t.fb("ls", "--pool", "p", real).prints("^inside$")
    # Files under the prefix can't be staged: a path there would be ambiguous.
    t.fb("stage", "in", real + "/outside", "/x", "--pool", "p", rc=120).says("under the mount prefix")
    t.fb("down", "--pool", "p").quiet()
    t.ok(sorted(os.listdir(real)) == ["outside", "sub"], "down removed what is not the pool's")
    r = t.fb("run", "--mount", real, "--", "bash", "-c", 'test ! -e "$1/outside"', "bash", real)
    r.says("hides a directory")
    t.up("f", mount=t.work + "/beside").says("hides a file")
    t.bash("f", 'cd "$1" && echo x > y', t.work + "/beside").quiet()
    t.ok(os.path.getsize(t.work + "/beside") == 20, "the real file was changed")
    t.fb("down", "--pool", "f")
    # A long one, and one that is the beginning of a real name.
    t.up("g", mount=real + "/not/there/" + "x" * 100).quiet()
    t.bash("g", 'd="$1"; echo x > "$d/x"; cat "$d/x"; test ! -e "${d}x"; test -e "$2/outside"',
           real + "/not/there/" + "x" * 100, real).prints("^x$").quiet()


@case(20)
def refused_prefixes(t):
    own = t.work + "/myhome"
    os.mkdir(own)
    for mount in ("/", "//", "", "fb", "./fb", "/a/../b", "/a/./b", "/a//b", "/usr", "/usr/",
                  "/bin", "/lib", "/lib64", "/etc", "/tmp", "/dev", "/proc", "/sys", "/proc/self/x",
                  "/sys/x", own, t.work, t.home, t.base, t.disk, os.path.dirname(t.disk)):
        for words in (["up"], ["run"]):
            r = t.fb(words[0], "--mount", mount, "--media", "files:%s:16M" % t.disk,
                     *(["--", "touch", t.work + "/was-run"] if words == ["run"] else []),
                     rc=None, env={"HOME": own})
            t.check("%s --mount '%s'" % (words[0], mount), lambda: (
                t.ok(r.rc == 2, "exit code %s, not 2\n%s" % (r.rc, r.told())),
                r.one_line().says("--mount", "/fb")))
    t.fb("pools").says("no pools")
    t.ok(not os.path.exists(t.work + "/was-run"), "the program was run")
    t.ok(os.listdir(t.disk) == [], "left in the medium")
    # Refused is only what is needed.
    for mount in ("/fb/", "/a/b/c", "/tmp/below", own + "/fb", "/no-such"):
        t.up("p", mount=mount)
        t.fb("down", "--pool", "p")


@case(20)
def wrong_usage(t):
    def wrong(words, *patterns, rc=2):
        r = t.fb(*words, rc=None)
        t.check(" ".join(words), lambda: (
            t.ok(r.rc == rc, "exit code %s, not %s\n%s" % (r.rc, rc, r.told())),
            t.ok(r.out == "", "something on standard output\n" + r.told()),
            r.says(*patterns)))
    wrong(["up", "--meida", "memory:1G"], "--meida", "--media", "--help")
    wrong(["down", "--forse"], "--forse", "--force")
    wrong(["frobnicate"], "frobnicate", "--help")
    wrong(["stauts"], "stauts", "status")
    wrong([], "Usage", "Commands")
    wrong(["stage"], "Usage")
    wrong(["stage", "in", "x"], "DST", "Usage")
    wrong(["stage", "sideways", "a", "b"], "sideways")
    wrong(["run"], "CMD", "Usage")
    wrong(["exec", "--"], "CMD", "Usage")
    wrong(["ls", "--bogus"], "--bogus", "--help")
    wrong(["df", "--jsno"], "--jsno", "--json")
    wrong(["up", "--media", "memory:lots"], "'lots' is not a size", "4G")
    wrong(["up", "--media", "memory"], "memory:", "SIZE|4G")
    wrong(["up", "--media", "tape:4G"], "tape", "memory|files")
    wrong(["up", "--media", "memory:0"], "memory:0|size")
    wrong(["up", "--media", "memory:-1G"], "-1G")
    wrong(["up", "--media", "files:relative:1G"], "absolute")
    wrong(["up", "--media", "files:/x"], "files:DIRECTORY:SIZE|files:/local/ssd")
    wrong(["up", "--pool", "../x"], "../x", "letters")
    wrong(["up", "--pool", ""], "pool")
    wrong(["status", "--pool", "a/b"], "a/b", "letters")
    wrong(["run", "--in", "nothing", "--", "true"], "SRC:/DST")
    wrong(["run", "--out", "/r", "--", "true"], "/SRC:DST")
    wrong(["run", "--threads", "x", "--", "true"], "--threads")
    wrong(["up", "--media", "files:%s/none:16M" % t.work], "none", rc=1)
    wrong(["up", "--reopen", "--pool", "x", "--from", t.work + "/none"], "none", rc=1)
    t.fb("pools").says("no pools")
    t.ok(os.listdir(t.home) == [], "made: %s" % os.listdir(t.home))
    # Help is no error, and every command's has an example.
    t.fb("--help").prints("Usage", "120").quiet()
    t.fb("--version").prints(r"^forebay \d")
    for c in (["up"], ["down"], ["run"], ["exec"], ["stage"], ["stage", "in"], ["stage", "out"],
              ["ls"], ["find"], ["df"], ["status"], ["pools"]):
        t.fb(*c, "--help").prints("^Example", "^  forebay " + " ".join(c)).quiet()
    # A pool that isn't there: the same message and code of all.
    for c in (["exec", "--", "true"], ["ls"], ["find", "/x"], ["df"], ["status"], ["down"],
              ["stage", "in", t.work, "/x"], ["up", "--reopen"]):
        r = t.fb(c[0], "--pool", "none", *c[1:], rc=3)
        r.one_line().says("there is no pool 'none'", "forebay up --pool none", "forebay pools")
