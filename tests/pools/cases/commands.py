"""Commands for files in a pool: ls, find; and what the command says of itself."""
import json
import os
import shutil

from harness import ROOT_OF_TESTS, Skipped, case

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
    # The same with and without -h: one number has one unit.
    plain = t.fb("df", "--pool", "p").prints(r"^memory:64M +64\.0 MiB ")
    t.ok(t.fb("df", "-h", "--pool", "p").out == plain.out, "df -h")


@case(20)
def found(t):
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
    # Very deep: longer than a path may be.
    t.python("p", r'''
import os
os.chdir("/fb"); os.mkdir("deep"); os.chdir("deep")
for i in range(60):
    os.mkdir("d" * 100); os.chdir("d" * 100)
open("end", "w").close()
''')
    t.ok(len(lines(fb("find", "/deep"))) == 62, "find in a deep tree")
    t.exec("p", "rm", "-r", "/fb/deep").quiet()


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
    shown.prints("^Commands for files in a pool:", "^Commands to check and repair:", "^  find  ")
    t.fb("man", t.work + "/man1").quiet()
    pages = os.listdir(t.work + "/man1")
    t.ok("forebay.1" in pages and "forebay-ls.1" in pages and "forebay-stage-in.1" in pages, str(pages))
    text = open(t.work + "/man1/forebay-find.1").read()
    t.ok(".TH" in text and "maxdepth" in text and "Example" in text, text)
    if shutil.which("man"):
        t.command(["man", "-l", t.work + "/man1/forebay-find.1"], env={"MANPAGER": "cat"}).prints("maxdepth")
    for shell, check in (("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "-n"])):
        script = t.work + "/" + shell
        with open(script, "w") as f:
            f.write(t.fb("completions", shell).quiet().out)
        t.ok(os.path.getsize(script) > 10000, "%s: too short" % shell)
        if shutil.which(shell):
            t.command([*check, script]).quiet()
    # bash completes what was begun.
    t.command(["bash", "-c", '''source "$1"; COMP_WORDS=(forebay find --max); COMP_CWORD=2
        _forebay forebay --max find; echo "${COMPREPLY[*]}"
        COMP_WORDS=(forebay fs); COMP_CWORD=1; _forebay forebay fs forebay; echo "${COMPREPLY[*]}"
        ''', "bash", t.work + "/bash"]).prints("^--maxdepth$", "^fsck$").quiet()
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
    t.bash("p", "mkdir /fb/d")
    t.ok("\x1b" not in t.fb("ls", "--pool", "p").out, "colours that nobody sees")
    t.ok("\x1b[1;34md\x1b[0m\n" in t.fb("ls", "--color", "always", "--pool", "p").out, "no colours")
    t.ok("\x1b" in t.fb("--color=always", "--help").out, "help has no colours")
    t.ok("\x1b" not in t.fb("--help").out, "help has colours")
    t.ok("\x1b" not in t.fb("--color", "never", "ls", "--pool", "p").out, "colours")
    # A program's own options are its own.
    t.exec("p", "echo", "-q", "-v", "--color").prints("^-q -v --color$").quiet()
    t.fb("down", "-q", "--pool", "p").quiet()


@case(30)
def messages_for_people(t):
    """What a new user reads: no 0 ms, no directory made unsaid, tips for other programs' commands, a fair count."""
    t.up("p")
    status = t.fb("status", "--pool", "p").prints("^up for +(less than 1 s|[0-9]+ s)$")
    t.ok(" ms" not in status.out, status.out)
    t.fb("set", "--distribution", "striped", "/new", "--pool", "p").says(
        "has one node", "/new was not there: it is made, as a directory")
    t.fb("set", "--distribution", "striped", "/new", "--pool", "p").says("has one node")
    t.ok(t.fb("ls", "--pool", "p").out == "new\n", "the directory")
    for word, tip in (("put", "forebay stage in SRC DST"), ("get", "forebay stage out SRC DST"),
                      ("stat", "forebay ls -ld PATH"), ("tail", "forebay exec -- tail /fb/..."),
                      ("touch", "forebay exec -- touch /fb/..."),
                      *((word, "forebay exec -- %s ...' does it, with all options of %s" % (word, word))
                        for word in ("cat", "cp", "mv", "rm", "mkdir", "du"))):
        t.fb(word, "x", rc=2).says("unrecognized subcommand '%s'" % word, "tip: .*" + tip.replace(".", "[.]"))
    for words, tip in ((["status", "mine"], "'--pool mine'"), (["exec", "-p", "x"], "'--pool NAME'"),
                       (["stage", "in", "x"], "both are needed: SRC, what is copied, and DST, where to")):
        t.fb(*words, rc=2).says("tip: .*" + tip)
    t.ok("os error" not in t.fb("mount", "/no/such", "--pool", "p", rc=1).says("No such file or directory;").err, "numbers")
    t.fb("exec", "--pool", "p", "--", "ls /fb", rc=127).says("without quotes around them")
    t.fb("exec", "--pool", "p", "--", "cd", "/fb", rc=127).says("belongs to shells: forebay exec -- sh -c 'cd ...'")
    # isatty() of a file asks the file system, and "no" is an answer.
    t.bash("p", "python3 -c 'import os; f = open(\"/fb/f\", \"w\"); [os.isatty(f.fileno()) for _ in range(500)]'")
    counted = t.fb("stats", "--pool", "p", "--json").json()["operations"]
    errors = {kind: c["errors"] for kind, c in counted.items() if c["errors"]}
    t.ok(sum(errors.values()) < 100 and sum(c["count"] for c in counted.values()) >= 500, errors)
    t.fb("run", "--media", "memory:16M", "--force", "--", "sh", "-c", "echo x > /fb/x; sleep 0.2").says(
        "all processes together spent .* in them: .* of the run's [0-9.]+ (s|ms)")
    help_of_run = t.fb("help", "run").out
    t.ok(help_of_run.index("Example:") < help_of_run.index("Staging:") < help_of_run.index("Media:"), help_of_run)
    t.ok(len(help_of_run.splitlines()) < 110 and help_of_run.count("--quiet") == 1, help_of_run)


@case(60)
def messages_of_paths_units_and_users(t):
    origin = t.work + "/origin"
    os.mkdir(origin)
    source = t.file(t.work + "/source", 10)
    t.fb("up", "--pool", "p", "--media", "memory:64M", "--origin", origin + "=/o", "--origin-lag", "500ms", "--origin-timeout", "1m")
    t.fb("up", "--pool", "x", "--origin", origin, "--origin-lag", "soon", rc=2).says("'soon' is no time: write 500ms, 2s")
    t.fb("up", "--pool", "x", "--origin", origin, "--origin-timeout", "1s", rc=2).says("--origin-timeout: 2s to 1d")
    t.fb("-q", "origin", "hold", "--pool", "p").quiet()
    t.fb("origin", "hold", "--pool", "p").says("until: forebay origin resume")
    t.fb("origin", "resume", "--pool", "p")
    t.bash("p", "mkdir /fb/sx; touch /fb/o/one")
    t.fb("origin", "sync", "--pool", "p")
    t.fb("origin", "status", "--pool", "p").prints("written back so far +1 file +0 B$")
    r = t.fb("stage", "in", source, "/sx/../../y", "--pool", "p", rc=120)
    r.says("the path leads out of the pool")
    t.ok("cross-device" not in r.err, r.err)
    t.fb("down", "--pool", "p")
    if os.getuid() != 0 or not shutil.which("setpriv"):
        return
    # A directory of pools that belongs to somebody else.
    other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    t.up("p")
    os.chmod(t.home, 0o700)
    r = t.command([*other, t.forebay, "status", "--pool", "p"], rc=None).one_line()
    r.says("can't look at /.*: Permission denied; FOREBAY_HOME names it: unset it, or set it to a directory of your own")
    r = t.exec("p", *other, "ls", "/fb", rc=None)
    t.ok(r.rc != 0 and "FOREBAY_HOME" not in r.err, r.told())
    r.says("runs as user 65534, and only the user who started the pool may open it")
    t.fb("down", "--pool", "p")
    t.nothing_left("messages")


@case(90)
def benchmarks_of_others(t):
    """tests/suites: one table beside tmpfs; what isn't there is skipped, and said; nothing is left behind."""
    runner = os.path.join(ROOT_OF_TESTS, "suites", "run.py")
    before = set(os.listdir("/dev/shm"))
    made = t.command(["python3", runner, "--only", "dbench", "--only", "io500", "--place", "preload", "--json",
                      t.work + "/figures"], env={"FOREBAY": t.forebay, "IO500": "/not/there"}, timeout=80)
    if not shutil.which("dbench"):
        raise Skipped("there is no dbench")
    made.prints("^program +figure +tmpfs +preload +ratio$", "^dbench +file server, 2 clients, MB/s +[0-9.]+ +[0-9.]+ +[0-9.]+$",
                "^skipped +io500: IO500=/not/there is no program$")
    with open(t.work + "/figures") as f:
        figures = json.load(f)
    t.ok(not figures["failed"] and set(figures["figures"][0]["values"]) == {"tmpfs", "preload"}, figures)
    left = [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("forebay-suites-")]
    t.ok(not left, left)
