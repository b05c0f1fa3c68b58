"""Several pools at once."""
import os

from harness import case

WRITE_AND_CHECK = r'''
import os, sys
mount, word, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
d = mount + "/d" + sys.argv[4]
os.makedirs(d)
for r in range(rounds):
    if os.path.exists(mount + "/enough"):
        break
    for n in range(60):
        size = (n * 997 + r * 31) % 40000
        with open("%s/%d" % (d, n), "wb") as f:
            f.write((word * (size // len(word) + 1)).encode()[:size])
    for n in range(60):
        data = open("%s/%d" % (d, n), "rb").read().decode()
        assert set(data) <= set(word), (n, data[:40])
        assert len(data) == (n * 997 + r * 31) % 40000
    assert sorted(map(int, os.listdir(d))) == list(range(60))
'''


def both_at_work(t, mounts):
    # Two in each pool, with the same names in both.
    programs = [t.start_python(p, WRITE_AND_CHECK, mounts[p], word, "4", n)
                for p, word, n in (("a", "aaa", "1"), ("b", "bbb", "1"),
                                   ("a", "xyz", "2"), ("b", "uvw", "2"))]
    for p in programs:
        t.finish(p)


@case(20)
def two_pools(t):
    t.up("a", mount="/fba").prints(r"pool 'a' is up: memory:64M .*programs see it under /fba")
    t.up("b", mount="/fbb")
    both_at_work(t, {"a": "/fba", "b": "/fbb"})
    t.bash("a", "echo from a > /fba/name; test ! -e /fbb && test ! -e /fb").quiet()
    t.bash("b", "echo from b > /fbb/name; test ! -e /fba").quiet()
    t.bash("a", "cat /fba/name").prints(r"^from a$")
    t.bash("b", "cat /fbb/name").prints(r"^from b$")
    t.fb("pools").prints(r"^a +running +memory:64M +/fba$", r"^b +running +memory:64M +/fbb$")
    listed = t.fb("pools", "--json").json()
    t.ok([(p["name"], p["state"]) for p in listed] == [("a", "running"), ("b", "running")],
         "pools --json: %s" % listed)
    # Which pool: --pool, else FOREBAY_POOL, else default.
    chosen = {"FOREBAY_POOL": "b"}
    t.fb("exec", "--", "cat", "/fbb/name", env=chosen).prints("^from b$")
    t.fb("exec", "--pool", "a", "--", "cat", "/fba/name", env=chosen).prints("^from a$")
    t.fb("ls", "/fba/name", "--pool", "a").prints("^/fba/name$")
    r = t.fb("ls", "/name", rc=3).one_line()
    r.says("there is no pool 'default'", "forebay up --pool default", "forebay pools")
    # Inside a pool that one is meant; another can be named.
    t.exec("a", t.forebay, "ls", "/name", "/fba/name").prints("^/name$", "^/fba/name$")
    t.check("exec inside exec", lambda: t.exec(
        "a", t.forebay, "exec", "--pool", "b", "--", "cat", "/fbb/name").prints("^from b$"))
    t.up("a", rc=1).one_line().says("'a' exists already", "forebay down --pool a")
    t.fb("down", "--pool", "a").quiet()
    t.fb("pools").prints(r"^b +running")
    t.bash("b", "cat /fbb/name; ls /fbb/d1 | wc -l").prints("^from b$", "^60$")
    t.fb("status", "--pool", "a", rc=3).one_line().says("there is no pool 'a'")
    t.fb("down", "--pool", "a", rc=3).one_line().says("there is no pool 'a'")
    t.fb("down", "--pool", "a", "--force").says("nothing to remove")
    t.fb("down", env=chosen).quiet()
    t.fb("pools").says("no pools", "forebay up")
    t.nothing_left("down")


@case(20)
def two_pools_same_mount(t):
    t.up("a")
    t.up("b", media=["files:%s:256M" % t.disk])
    both_at_work(t, {"a": "/fb", "b": "/fb"})
    for p in "ab":
        t.bash(p, "echo from $1 > /fb/name; mkdir /fb/only-$1", p).quiet()
    for p in "ab":
        t.bash(p, "cat /fb/name; ls -d /fb/only-*").prints("^from %s$" % p, "^/fb/only-%s$" % p)
    t.check("exec inside exec", lambda: t.exec(
        "a", t.forebay, "exec", "--pool", "b", "--", "cat", "/fb/name").prints("^from b$"))
    # A removed pool doesn't come back with its name.
    t.fb("down", "--pool", "a")
    t.up("a")
    t.ok(t.fb("ls", "-a", "--pool", "a").out.strip() in ("", ".\n.."), "a new pool is not empty")
    t.bash("b", "cat /fb/name").prints("^from b$")
    for p in "ab":
        t.fb("down", "--pool", p).quiet()
    t.nothing_left("down")
    t.ok(os.listdir(t.disk) == [], "left in the medium: %s" % os.listdir(t.disk))
