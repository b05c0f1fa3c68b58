"""Commands for files in a pool: ls, cp, mv, rm, mkdir, find, du; and what the command says of itself."""
import os
import shutil

from harness import ROOT_OF_TESTS, case

# Files, a link to a directory, a link to nothing, a FIFO, a hole, two names of one file, odd names.
TREE = r'''set -e; cd /fb; mkdir -p a/b/c a/empty other
echo one > a/one; printf 'x%.0s' {1..5000} > a/b/two; ln a/one a/b/again
ln -s ../other a/link; ln -s nowhere a/dangling; mkfifo a/fifo; echo kept > other/kept
echo 'odd' > 'a/b/c/ -x
y'; truncate -s 3M a/hole; echo end >> a/hole; chmod 640 a/one; chmod 750 a/b
setfattr -n user.k -v v a/one 2>/dev/null || true
touch -d 2020-01-01 a/one; touch -d 2021-01-01 a/b/two; touch -d 2022-01-01 a/hole'''


def lines(result):
    return result.out.splitlines()


@case(20)
def ls_options(t):
    t.up("p")
    t.bash("p", TREE)
    ls = lambda *words, **more: t.fb("ls", "--pool", "p", *words, **more)  # noqa: E731 (short)
    names = ["b", "dangling", "empty", "fifo", "hole", "link", "one"]
    t.ok(lines(ls("/a")) == names, ls("/a").told())
    t.ok(lines(ls("-1", "a")) == names, "ls -1")
    t.ok(lines(ls("-r", "/a")) == names[::-1], "ls -r")
    by_time = [n for n in lines(ls("-t", "/a")) if n in ("hole", "one")]
    t.ok(by_time == ["hole", "one"], "ls -t: %s" % by_time)
    by_time = [n for n in lines(ls("-tr", "/a")) if n in ("hole", "one")]
    t.ok(by_time == ["one", "hole"], "ls -tr: %s" % by_time)
    t.ok(lines(ls("-S", "/a"))[0] == "hole", "ls -S")
    t.ok(lines(ls("-t", "/a/one", "/a/hole", "/a/b/two")) == ["/a/hole", "/a/b/two", "/a/one"],
         "files that are named are sorted, too")
    t.ok(lines(ls("-d", "/a", "/a/link")) == ["/a", "/a/link"], "ls -d")
    t.ok(lines(ls("-d")) == ["/"], "ls -d without paths")
    ls("-ld", "/a/link").prints("^l.* /a/link -> ../other$")
    ls("-lh", "/a/hole").prints(r" 3\.1M Jan ")
    ls("-lh", "/a").prints(r"^total \d+(\.\d)?K$")
    ls("-l", "/a/hole").prints(" 3145732 ")
    ls("-d", "-R", rc=2).says("cannot be used with|can't be used with")
    ls("--help").prints("^Example", "human-readable")
    t.fb("df", "-h", "--pool", "p").prints(r"^memory:64M +64M ")
    t.fb("df", "--pool", "p").prints(r"^memory:64M +64\.0 MiB ")


@case(20)
def removed_and_made(t):
    t.up("p")
    t.bash("p", TREE)
    fb = lambda *words, **more: t.fb(*words, "--pool", "p", **more)  # noqa: E731 (short)
    fb("mkdir", "/m", "/n").quiet()
    fb("mkdir", "/m", "/o", rc=1).one_line().says("/m: can't be made: file exists")
    fb("mkdir", "/x/y", rc=1).says("/x/y: can't be made: no such file")
    fb("mkdir", "-p", "/x/y/z/", "/a/link/below", "/m").quiet()
    fb("mkdir", "-p", "/a/one/d", rc=1).says("not a directory")
    fb("mkdir", "-p", "/a/one", rc=1).says("file exists")
    t.fb("mkdir", "--pool", "p", "--", "-d").quiet()
    t.bash("p", "set -e; cd /fb; test -d o -a -d x/y/z -a -d other/below -a -d ./-d; umask 077")
    # What can't be removed is named; the rest goes.
    fb("rm", "/a/one", "/none", "/a", rc=1).says(
        "/none: can't be removed: no such file", "/a: is a directory; .*forebay rm -r")
    fb("rm", "-f", "/none", "/a/hole/x").quiet()
    fb("rm", "-f").quiet()
    fb("rm", rc=2)
    for path in ("/", "/fb", "//", "/a/.", "/a/b/..", "/fb/"):
        fb("rm", "-rf", path, rc=1).one_line()
    # A link is removed, not followed, also with a slash.
    fb("rm", "-r", "/a/link/", rc=1).says("not a directory")
    fb("rm", "/a/hole/", rc=1).says("not a directory")
    t.bash("p", "test -s /fb/other/kept -a -L /fb/a/link")
    t.fb("rm", "-r", "--pool", "p", "--", "-d", "/x").quiet()
    fb("rm", "-r", "/a", "/m").quiet()
    t.bash("p", "set -e; test -s /fb/other/kept; test ! -e /fb/a; ls /fb").prints("^n$", "^other$")
    # Very deep: longer than a path may be.
    t.python("p", r'''
import os
os.chdir("/fb"); os.mkdir("deep"); os.chdir("deep")
for i in range(60):
    os.mkdir("d" * 100); os.chdir("d" * 100)
open("end", "w").close()
''')
    t.ok(len(lines(fb("find", "/deep"))) == 62, "find in a deep tree")
    fb("du", "-s", "/deep").prints(r"^24\d\t/deep$")
    fb("rm", "-r", "/deep").quiet()
    # Without permission: one line for each, and none for what they are in.
    if os.getuid() != 0:
        t.bash("p", "set -e; cd /fb; mkdir -p s/t; touch s/t/x s/y; chmod 555 s/t")
        fb("rm", "-r", "/s", rc=1).one_line().says("/s/t/x: can't be removed: permission")
        t.bash("p", "test -e /fb/s/t/x -a ! -e /fb/s/y; chmod 755 /fb/s/t")
    t.ok(t.fb("rm", "/x", "--pool", "none", rc=3).says("there is no pool"), "")


@case(20)
def moved_and_copied(t):
    t.up("p")
    t.bash("p", TREE)
    fb = lambda *words, **more: t.fb(*words, "--pool", "p", **more)  # noqa: E731 (short)
    before = t.walk("/fb/a/b", "p")
    # A tree, as cp -r copies it.
    fb("cp", "-r", "/a", "/copy").quiet()
    script = '''set -e; umask 022; cd /fb; cp -r a wanted; python3 - <<'E'
import os, stat
def look(top):
    found = {}
    for d, dirs, files in os.walk(top):
        for n in dirs + files:
            p = os.path.join(d, n); s = os.lstat(p)
            what = os.readlink(p) if stat.S_ISLNK(s.st_mode) else b""
            if stat.S_ISREG(s.st_mode):
                what = open(p, "rb").read()
            found[os.path.relpath(p, top)] = (s.st_mode, what)
    return found
a, b = look("copy"), look("wanted")
assert a == b, (set(a.items()) ^ set(b.items()))
assert os.stat("copy/hole").st_blocks * 512 < 1 << 20, "the hole was filled"
E
rm -r wanted'''
    t.bash("p", script).quiet()
    # Again: into the copy, which exists now.
    fb("cp", "-r", "/a/b", "/copy").quiet()
    fb("cp", "-r", "/a/b/", "/into-none/x", rc=1).says("no such file")
    # As with cp -r, two names of a file become two files.
    wanted = {name: [*what[:3], min(what[3], 1), what[4]] for name, what in before.items()}
    t.same(wanted, t.walk("/fb/copy/b", "p"), "the copy")
    fb("cp", "-r", "/a/.", "/other").quiet()
    t.bash("p", "set -e; test -s /fb/other/b/two -a -s /fb/other/kept; rm -r /fb/other/[!k]*")
    # Files: to a name, into a directory, onto another, through a link.
    fb("cp", "/a/one", "/1").quiet()
    fb("cp", "/a/one", "/a/b/two", "/other").quiet()
    fb("cp", "/a/hole", "/1").quiet()
    fb("cp", "-p", "/a/one", "/kept").quiet()
    t.bash("p", '''set -e; cd /fb; cmp 1 a/hole; cmp other/two a/b/two; cmp other/one a/one
        test "$(stat -c '%a %Y' kept)" = "$(stat -c '%a %Y' a/one)"
        test "$(stat -c %Y 1)" != "$(stat -c %Y a/hole)"''').quiet()
    for words, what in [
            (["/a", "/x"], "is a directory; .*forebay cp -r"),
            (["/a/one", "/a/one"], "onto itself"),
            (["/a/one", "/a/b/again"], "onto itself"),
            (["-r", "/a", "/a"], "into itself"),
            (["-r", "/a/b", "/a/b/c/new"], "into itself"),
            (["-r", "/a", "/1"], "a file is in the way"),
            (["/a/dangling", "/x"], "no such file"),
            (["/none", "/x"], "no such file"),
            (["/a/one", "/1", "/none"], "several sources need one"),
            (["/a/one", "/a/hole", "/1"], "several sources need one"),
            (["/a/one", "/copy/one", "/other"], "an earlier source has become")]:
        t.check("cp " + " ".join(words), lambda: fb("cp", *words, rc=1).one_line().says(what))
    fb("cp", "/a", rc=2).says("DST")
    fb("cp", "/a/fifo", "/x", rc=1).one_line().says("neither a file nor")
    # rename(2): names, directories, over files, into directories.
    t.bash("p", "rm -r /fb/a/a /fb/a/b/c/new")
    before = t.walk("/fb/a/b", "p")
    fb("mv", "/1", "/2").quiet()
    fb("mv", "/2", "/kept", "/copy").quiet()
    fb("mv", "/copy/2", "/copy/kept").quiet()
    fb("mv", "-n", "/copy/kept", "/copy/one").quiet()
    fb("mv", "/a/b", "/moved/").quiet()
    t.same(before, t.walk("/fb/moved", "p"), "the directory that was moved")
    t.bash("p", "set -e; cd /fb; test ! -e 1 -a ! -e 2 -a ! -e a/b; cmp copy/kept a/hole; ls copy/one")
    fb("mv", "/a/link", "/a/dangling", "/other").quiet()
    t.bash("p", "set -e; cd /fb; test -L other/link -a -L other/dangling -a -s other/kept")
    fb("mv", "/a/one", "/moved/").quiet()
    for words, what in [
            (["/a", "/a"], "below it|same file"),
            (["/a", "/a/x"], "below it"),
            (["/moved/one", "/fb/moved/one"], "same file"),
            (["/a", "/moved/two"], "not a directory"),
            (["/moved/one", "/none/"], "not a directory"),
            (["/none", "/x"], "no such file"),
            (["/", "/x"], "by this name"),
            (["/moved/.", "/x"], "by this name"),
            (["/moved/one", "/moved/two", "/none"], "several sources need one")]:
        t.check("mv " + " ".join(words), lambda: fb("mv", *words, rc=1).one_line().says(what))
    # Two names of one file: the first one goes.
    t.bash("p", "set -e; cd /fb; echo h > h1; ln h1 h2")
    fb("mv", "/h1", "/h2").quiet()
    t.bash("p", "set -e; cd /fb; test ! -e h1; grep -q h h2")
    # Into a directory whose files lie on all nodes, and back.
    t.up("n", "--nodes", "2")
    t.bash("n", TREE)
    t.fb("set", "--pool", "n", "--distribution", "striped", "/striped")
    t.fb("cp", "-r", "--pool", "n", "/a", "/striped").quiet()
    t.fb("mv", "--pool", "n", "/striped/a", "/back").quiet()
    t.bash("n", "set -e; cd /fb; diff -r --no-dereference a/b back/b; cmp a/hole back/hole; ls striped"
           ).quiet()


@case(20)
def found_and_measured(t):
    t.up("p")
    t.bash("p", TREE)
    fb = lambda *words, **more: t.fb(*words, "--pool", "p", **more)  # noqa: E731 (short)

    def same(ours, theirs):
        end = "\0" if "-print0" in ours else "\n"
        a = sorted(fb("find", *ours).out.split(end))
        b = sorted(t.bash("p", "cd /fb; find " + theirs).out.split(end))
        t.ok(a == b, "find %s: %s, not %s" % (ours, a, b))
    same(["/fb/a"], "/fb/a")
    same(["/fb/a", "-type", "f"], "/fb/a -type f")
    same(["/fb/a", "--type", "d"], "/fb/a -type d")
    same(["/fb/a", "-type", "l,p"], "/fb/a -type l,p")
    same(["/fb/a", "-name", "*o*", "-print0"], "/fb/a -name '*o*' -print0")
    same(["/fb/a", "/fb/other", "-maxdepth", "1"], "/fb/a /fb/other -maxdepth 1")
    same(["/fb/a/link"], "/fb/a/link")
    same(["/fb/a/one", "-name", "[a-o]ne"], "/fb/a/one -name '[a-o]ne'")
    t.ok(lines(fb("find", "-maxdepth", "1")) == ["/", "/a", "/other"], "find without a path")
    found = fb("find", "/a", "-name", "one", "--json").json()
    t.ok(found == [{"path": "/a/one", "type": "file"}], str(found))
    fb("find", "/none", "/other", rc=1).prints("^/other/kept$").says("/none: .*no such file")
    fb("find", "-name", "a/b", rc=2).says("no /")
    fb("find", "-name", "[", rc=2).says("without ]")
    fb("find", "-type", "x", rc=2).says("possible values")

    # Which of two names of a file counts depends on the order.
    t.bash("p", "rm /fb/a/b/again")

    def du(ours, theirs):
        a, b = lines(fb("du", *ours)), lines(t.bash("p", "cd /fb; du " + theirs))
        t.ok(sorted(a) == sorted(b), "du %s: %s, not %s" % (ours, a, b))
    du(["/fb/a"], "/fb/a")
    du(["-s", "/fb/a", "/fb/other"], "-s /fb/a /fb/other")
    du(["-h", "/fb/a"], "-h /fb/a")
    du(["-a", "/fb/a/b"], "-a /fb/a/b")
    du(["-d", "1", "/fb/a"], "-d 1 /fb/a")
    du(["/fb/a/one", "/fb/a/link"], "/fb/a/one /fb/a/link")
    fb("du", "-sb", "/a/hole").prints("^3145732\t/a/hole$")
    one = fb("du", "-s", "--json", "/a/hole").json()[0]
    t.ok(one["path"] == "/a/hole" and one["size"] == 3145732 and one["used"] < 1 << 20, str(one))
    fb("du", "/none", rc=1).says("/none: .*no such file")


@case(20)
def staged_in_part(t):
    for path in ("src/a.h5", "src/b.tmp", "src/in/deck/x.txt", "src/in/deck/y.tmp", "src/in/mesh.h5",
                 "src/logs/1/log", "src/empty/none/", "two.txt", "sub/two.txt"):
        os.makedirs(os.path.dirname(os.path.join(t.work, path)), exist_ok=True)
        if not path.endswith("/"):
            t.file(os.path.join(t.work, path), 1000)
    t.up("p")

    def stage(*words, **more):
        return t.fb("stage", *words, "--pool", "p", **more)

    def there(path="/fb"):
        found = t.walk(path, "p")
        return sorted(name for name, what in found.items() if what[0] == "f")
    # Nothing is written: no file, no directory, not even the destination.
    r = stage("in", "--dry-run", "src", "/d/e").quiet()
    r.prints(r"^ +1000 B  src/a\.h5 -> /fb/d/e/a\.h5$",
             r"^ +5\.9 KiB  in 6 files would be copied; 0 unchanged, 0 excluded$")
    t.ok(t.fb("ls", "-a", "--pool", "p", "/").out.split() == [".", ".."], "it was written")
    r = stage("in", "--dry-run", "--json", "src", "/d/e", "--exclude", "*.tmp").json()
    t.ok([p["to"] for p in r["planned"]] == ["/fb/d/e/" + n for n in (
        "a.h5", "in/deck/x.txt", "in/mesh.h5", "logs/1/log")] and r["excluded"] == 2
        and r["moved_files"] == 0, str(r))
    # What is excluded isn't looked into.
    os.chmod(t.work + "/src/logs", 0)
    stage("in", "src", "/d", "--exclude", "*.tmp", "--exclude", "logs", "--exclude", "in/deck/**"
          ).says("2 files with", "4 excluded")
    os.chmod(t.work + "/src/logs", 0o755)
    t.ok(there("/fb/d") == ["/a.h5", "/in/mesh.h5"], str(there("/fb/d")))
    t.bash("p", "test -d /fb/d/empty/none -a -d /fb/d/in/deck -a ! -e /fb/d/logs")
    # Only what is included, and no directory without any of it.
    stage("in", "src", "/only", "--include", "*.h5", "--include", "logs", "--exclude", "a.*").says(
        "2 files with")
    t.ok(there("/fb/only") == ["/in/mesh.h5", "/logs/1/log"], str(there("/fb/only")))
    t.bash("p", "test ! -e /fb/only/empty -a ! -e /fb/only/in/deck")
    r = stage("in", "--dry-run", "src", "/only", "--include", "*.h5").prints(
        "^ +1000 B  src/a.h5", "in 1 file would be copied; 1 unchanged, 4 excluded")
    stage("in", "src", "/bad", "--include", "[x", rc=2).says(r"'\[x' is no pattern")
    # Several sources: each by its name.
    stage("in", "src/in", "two.txt", "/many", "--exclude", "deck").says("2 files with")
    t.ok(there("/fb/many") == ["/in/mesh.h5", "/two.txt"], str(there("/fb/many")))
    stage("in", "two.txt", "sub/two.txt", "/x", rc=2).says("another source has the same name")
    stage("in", "src/.", "two.txt", "/x", rc=2).says("has no name")
    stage("in", "src/in", "none", "/more", rc=120).says(
        "none: there is no such file", "stage in src/in none /more --pool p")
    t.ok(there("/fb/more/in") == ["/deck/x.txt", "/deck/y.tmp", "/mesh.h5"], "the others go on")
    stage("out", "/many/in", "/many/two.txt", "back").says("2 files with")
    t.ok(os.path.getsize(t.work + "/back/two.txt") == 1000
         and os.listdir(t.work + "/back/in") == ["mesh.h5"], "stage out")
    stage("out", "--dry-run", "/d", "new", "--include", "a*").prints(
        "^ +1000 B  /fb/d/a.h5 -> .*new/a.h5$")
    t.ok(not os.path.exists(t.work + "/new"), "new was made")
    stage("out", "--dry-run", "/none", "new", rc=120).says("no such file")


@case(20)
def says_what_it_is(t):
    t.fb("version").prints(r"^forebay \d", r"^format pool +\d+", "^features").quiet()
    about = t.fb("version", "--json").json()
    t.ok(about["formats"]["pool"] > 0 and "buckets" in about["features"], str(about))
    # A pool of this build has that format.
    t.up("p")
    t.ok('"version":%d' % about["formats"]["pool"] in open(
        t.pool_dir("p") + "/pool.json").read().replace(" ", ""), "the version in pool.json")
    r = t.fb("doctor", "--hosts", "here", "--rsh", t.work + "/rsh", rc=0)
    r.prints("^ok +kernel", "^ok +library", r"^missing +host +here: ", "^ok +trial", "^ +do: make '",
             "^a pool can work here")
    with open(t.work + "/rsh", "w") as f:
        f.write('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    os.chmod(t.work + "/rsh", 0o755)
    checks = t.fb("doctor", "--json", "--no-trial", "--hosts", "a,b", "--rsh", t.work + "/rsh").json()
    hosts = [c for c in checks["checks"] if c["check"] == "host"]
    t.ok(checks["works"] and [c["state"] for c in hosts] == ["ok", "ok"], str(checks))
    t.ok(not [c for c in checks["checks"] if c["check"] == "trial"], "a trial")
    # Where no pool can work, it says so.
    r = t.fb("doctor", "--json", rc=1, env={"FOREBAY_PRELOAD": t.work + "/none"}).json()
    bad = [c for c in r["checks"] if c["needed"]]
    t.ok(not r["works"] and [c["check"] for c in bad] == ["library"] and bad[0]["do"], str(r))
    t.ok(t.state("doctor") == "absent" and len(t.fb("pools", "--json").json()) == 1, "left a pool")


@case(20)
def completed_and_explained(t):
    shown = t.fb("--help").quiet()
    shown.prints("^Commands for files in a pool:", "^Commands to check and repair:", "^  rm  ")
    t.fb("man", t.work + "/man1").quiet()
    pages = os.listdir(t.work + "/man1")
    t.ok("forebay.1" in pages and "forebay-ls.1" in pages and "forebay-stage-in.1" in pages, str(pages))
    text = open(t.work + "/man1/forebay-rm.1").read()
    t.ok(".TH" in text and "recursive" in text and "Example" in text, text)
    if shutil.which("man"):
        t.command(["man", "-l", t.work + "/man1/forebay-rm.1"], env={"MANPAGER": "cat"}).prints("recursive")
    for shell, check in (("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "-n"])):
        script = t.work + "/" + shell
        with open(script, "w") as f:
            f.write(t.fb("completions", shell).quiet().out)
        t.ok(os.path.getsize(script) > 10000, "%s: too short" % shell)
        if shutil.which(shell):
            t.command([*check, script]).quiet()
    # bash completes what was begun.
    t.command(["bash", "-c", '''source "$1"; COMP_WORDS=(forebay du --max); COMP_CWORD=2
        _forebay forebay --max du; echo "${COMPREPLY[*]}"
        COMP_WORDS=(forebay fs); COMP_CWORD=1; _forebay forebay fs forebay; echo "${COMPREPLY[*]}"
        ''', "bash", t.work + "/bash"]).prints("^--max-depth$", "^fsck$").quiet()
    # All of it is installed.
    prefix = t.work + "/prefix"
    build = os.path.dirname(t.forebay)
    if os.path.exists(build + "/libforebay_iov.so"):
        t.command(["packaging/install", prefix, build], cwd=os.path.dirname(ROOT_OF_TESTS))
        for path in ("man/man1/forebay-ls.1", "bash-completion/completions/forebay",
                     "zsh/site-functions/_forebay", "fish/vendor_completions.d/forebay.fish"):
            t.ok(os.path.getsize(prefix + "/share/" + path) > 500, path)


@case(20)
def says_more_or_less(t):
    t.file(t.work + "/x", 10)
    t.up("p")
    t.fb("stage", "in", "x", "/x", "--pool", "p").says("staged in x /x: ")
    t.ok(t.fb("stage", "-q", "in", "x", "/y", "--pool", "p").err == "", "stage -q says something")
    t.ok(t.fb("--quiet", "stage", "in", "none", "/y", "--pool", "p", rc=120).err != "", "no error")
    t.fb("mkdir", "-v", "-p", "/d/e", "--pool", "p").says("made /d/e")
    t.fb("cp", "-v", "-r", "/d", "/x", "/d2", "--pool", "p", rc=1)
    t.fb("cp", "-v", "/x", "/d/e", "--pool", "p").says("copied /x")
    t.fb("mv", "--verbose", "/x", "/z", "--pool", "p").says("moved /x")
    t.fb("rm", "-rv", "/d", "--pool", "p").says("removed /d/e/x\n.*removed /d/e\n.*removed /d\n")
    t.fb("rm", "-qv", "/z", "--pool", "p", rc=2).says("cannot be used with")
    t.bash("p", "mkdir /fb/d")
    t.ok("\x1b" not in t.fb("ls", "--pool", "p").out, "colours that nobody sees")
    t.ok("\x1b[1;34md\x1b[0m\n" in t.fb("ls", "--color", "always", "--pool", "p").out, "no colours")
    t.ok("\x1b" in t.fb("--color=always", "--help").out, "help has no colours")
    t.ok("\x1b" not in t.fb("--help").out, "help has colours")
    t.ok("\x1b" not in t.fb("--color", "never", "ls", "--pool", "p").out, "colours")
    # A program's own options are its own.
    t.exec("p", "echo", "-q", "-v", "--color").prints("^-q -v --color$").quiet()
    t.fb("down", "-q", "--pool", "p").quiet()
