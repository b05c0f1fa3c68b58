"""The cost of an unused pool."""
import os
import time

from harness import case


def stat_fields(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()


def anonymous_and_code(pid):
    """Memory of a process that is its own: what it maps of the pool is the pool's."""
    with open("/proc/%d/status" % pid) as f:
        fields = dict(line.split(":", 1) for line in f)
    return sum(int(fields[k].split()[0]) << 10 for k in ("RssAnon", "RssFile"))


def tree_blocks(top):
    return sum(os.lstat(os.path.join(d, n)).st_blocks * 512
               for d, _, names in os.walk(top) for n in names)


@case(60)
def idle(t):
    """An unused pool costs no CPU, and little memory beyond its data and reserve."""
    t.up("p", "--reserve", "64M", media=["memory:2G"])
    t.bash("p", "mkdir /fb/d; for i in $(seq 2000); do echo $i > /fb/d/$i; done; "
           "head -c 100000000 /dev/urandom > /fb/big; rm /fb/d/1*")
    keeper = t.keeper("p")

    def ticks():
        f = stat_fields(keeper)
        return int(f[11]) + int(f[12])
    time.sleep(3)
    before = ticks()
    time.sleep(12)
    t.ok(ticks() == before, "the keeper of an idle pool used %d ticks in 12 s" % (ticks() - before))
    m = t.fb("df", "--pool", "p", "--json").json()["media"][0]
    t.ok(m["reserve"] == 64 << 20 and m["reserved"] - m["used"] <= (64 << 20) + (8 << 20),
         "the reserve isn't what was asked for: %s" % m)
    t.fb("status", "--pool", "p").prints(r"kept ready \(at most 64\.0 MiB\)")
    beyond = tree_blocks(t.pool_dir("p")) - m["reserved"] + anonymous_and_code(keeper)
    t.ok(beyond < 30e6, "%.1f MB beyond data and reserve, %.1f of it the keeper" % (
        beyond / 1e6, anonymous_and_code(keeper) / 1e6))
    t.fb("up", "--pool", "none", "--reserve", "0", "--media", "memory:256M")
    m = t.fb("df", "--pool", "none", "--json").json()["media"][0]
    t.ok(m["reserve"] == 0 and m["reserved"] <= 8 << 20, "without a reserve: %s" % m)
    t.fb("up", "--pool", "x", "--reserve", "much", rc=2)
