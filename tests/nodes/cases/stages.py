"""Work in stages, each stage a program on the next node, compared with the same on a plain directory."""
import os
import sys

from harness import Failed, case
from .nodes import on, tidy, up

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MANIFEST = os.path.join(ROOT, "tests", "programs", "manifest.py")

STAGES = [
    # A program that is written, built, linked, run and cleaned up.
    "mkdir -p src/lib build && cd src && printf '#include \"lib/sum.h\"\\n#include <stdio.h>\\n"
    "int main(void) { printf(\"%%d\\\\n\", sum(20, 22)); return 0; }\\n' > main.c",
    "cd src && echo 'int sum(int, int);' > lib/sum.h && echo 'int sum(int a, int b) { return a + b; }' > lib/sum.c",
    "cd src && printf 'all: ../build/prog\\n../build/%%.o: %%.c\\n\\tgcc -c -o $@ $<\\n../build/sum.o: lib/sum.c lib/sum.h\\n"
    "\\tgcc -c -o $@ $<\\n../build/prog: ../build/main.o ../build/sum.o\\n\\tgcc -o $@ $^\\n' > Makefile",
    "make -s -C src ../build/main.o",
    "make -s -C src",
    "./build/prog > answer && cat answer",
    "make -s -C src && cmp answer <(build/prog) && rm -r build",
    # A repository in which each node commits, and another packs.
    "git init -q repo && cd repo && git config user.name x && git config user.email x@x && echo 1 > a && git add a "
    "&& git commit -q -m one --date '2024-01-01T00:00:00Z'",
    "cd repo && git checkout -q -b side && for i in $(seq 40); do echo $i > f$i; done && git add . && git commit -q -m two "
    "--date '2024-01-01T00:00:01Z' && git log --format=%s",
    "cd repo && git checkout -q - && git merge -q side && git gc -q && git fsck --no-progress && git status --short",
    "git clone -q repo clone && cd clone && git log --format=%s | wc -l && ls | wc -l",
    "cd clone && git pull -q && git fsck --no-progress && cd .. && rm -rf clone repo",
    # Archives, sorting, links.
    "mkdir data && for i in $(seq 60); do seq $i $((i * 37)) > data/n$i; done; ln data/n1 data/same; ln -s n2 data/link",
    "tar cf all.tar data && gzip -k all.tar && sha256sum < all.tar > /dev/null",
    "mkdir out && tar xzf all.tar.gz -C out && diff -r data out/data && stat -c %h out/data/same",
    "sort -n -m data/n* | uniq -c | sort -rn | head -3; find out -type f | wc -l; find out -links 2 | sort",
    "rsync -a out/ copy/ && rsync -an --itemize-changes out/ copy/ && mv copy/data moved && rmdir copy",
    "cd moved && rename() { mv \"$1\" \"$2\"; }; for f in n?; do rename $f x$f; done; ls | head -12; rm -r ../out ../all.tar*",
    "sqlite3 base.db 'create table t(a, b); with recursive s(i) as (select 1 union all select i+1 from s where i < 500) "
    "insert into t select i, i * i from s;'",
    "sqlite3 base.db 'update t set b = b + 1 where a % 2; select count(*), sum(b) from t; pragma integrity_check'",
    "sqlite3 base.db 'delete from t where a % 3; vacuum; select count(*), sum(b) from t; pragma integrity_check'; rm base.db",
]


@case(120)
def stages(t):
    up(t)
    plain = os.path.join(t.work, "plain")
    os.mkdir(plain)
    t.command(on(t, 0, "mkdir", "/fb/plain"))
    for n, stage in enumerate(STAGES):
        script = "set -e; umask 022; cd \"$0\"; " + stage
        env = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
               "GIT_COMMITTER_DATE": "2024-01-01T00:00:%02dZ" % n}
        wanted = t.command(["bash", "-c", script, plain], env=env, timeout=40)
        got = t.command(on(t, n, "bash", "-c", script, "/fb/plain"), env=env, timeout=60)
        if (wanted.out, wanted.err) != (got.out, got.err):
            raise Failed("stage %d on node %d: %s\n%s%s" % (n, n, stage, wanted.told(), got.told()))
    look = [sys.executable, MANIFEST]
    wanted = t.command([*look, plain], env={"WORK": plain})
    for n in range(2):
        got = t.command(on(t, n, *look, "/fb/plain"), env={"WORK": "/fb/plain"})
        t.ok(wanted.out == got.out, "what is left differs:\n%s%s" % (wanted.told(), got.told()))
    tidy(t)
