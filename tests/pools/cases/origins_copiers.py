"""Origins of pools of several nodes: each node copies the bytes of the files that it has."""
import os
import time

from cases.origins import digest, status, up
from cases.origins_slow import slow_origin
from harness import Failed, case, wait_until
from slowfs import MiB


def on(t, node, script, *arguments):
    return t.command([t.forebay, "exec", "--pool", "p", "--node", str(node), "--", "bash", "-c", script, "-", *arguments],
                     timeout=60)


@case(90)
def origin_bytes_are_copied_by_the_nodes_that_have_them(t):
    top = os.path.join(t.disk, "origin")
    os.mkdir(top)
    names = ["file%d" % n for n in range(12)]
    for n, name in enumerate(names):
        t.file(os.path.join(top, name), 3 * MiB + n, n)
    wanted = {name: digest(os.path.join(top, name)) for name in names}
    up(t, top, "--nodes", "3", "--origin-lag", "1000", media=("memory:128M",))
    t.fb("origin", "prefetch", "--pool", "p", top).says("brought in 12 file")
    came = status(t)
    t.ok(came["fetched_bytes"] >= 36 * MiB and came["other_nodes_bytes"] >= 3 * MiB, came)
    for name, sum_ in wanted.items():
        on(t, 1, "sha256sum $1/" + name, top).prints(sum_)
    # Back: new files and changed ones, of all nodes.
    for node in range(3):
        on(t, node, "cd $1; for n in 0 1 2 3; do head -c 2000000 /dev/urandom > new$2-$n; done; echo more >> file$2", top,
           str(node))
    sums = on(t, 0, "cd $1; sha256sum *", top).out
    t.fb("origin", "sync", "--pool", "p").says("all changes are at the origin")
    t.ok(t.command(["bash", "-c", "cd %s; sha256sum *" % top]).out == sums, "the origin has another content")
    went = status(t)
    t.ok(went["other_nodes_bytes"] >= came["other_nodes_bytes"] + 4 * MiB, went)
    t.ok(not [n for n in os.listdir(top) if n.startswith(".forebay")], os.listdir(top))
    # With a limit on bytes per second, the first node copies all.
    t.fb("down", "--pool", "p", timeout=60)
    up(t, top, "--nodes", "3", "--origin-bandwidth", "1G", media=("memory:128M",))
    t.fb("origin", "prefetch", "--pool", "p", top)
    t.ok(status(t)["other_nodes_bytes"] == 0 and status(t)["fetched_files"] == 24, status(t))
    t.fb("down", "--pool", "p", timeout=60)


@case(120)
def copier_of_an_old_service_writes_to_no_file_of_the_next(t):
    """The first node dies while others copy for it; the next service doesn't find them writing."""
    with slow_origin(t) as slow:
        for n in range(6):
            t.file(os.path.join(slow.source, "file%d" % n), 12 * MiB, n)
        up(t, slow.at, "--nodes", "3", "--origin-lag", "1000", media=("memory:128M",))
        on(t, 0, "ls $1", slow.at)
        slow.set(rate=8 * MiB)
        readers = [t.start([t.forebay, "exec", "--pool", "p", "--node", str(1 + n % 2), "--", "cat",
                            "%s/file%d" % (slow.at, n)], stdout=-3) for n in range(6)]
        wait_until(lambda: slow.stats()["bytes_read"] > 8 * MiB, 20, "the copying")
        t.fb("node", "kill", "0", "--pool", "p")
        # Copiers of living nodes go on until somebody stops them; not those whose file the dead node has.
        before = slow.stats()["bytes_read"]
        try:
            wait_until(lambda: slow.stats()["bytes_read"] > before, 3, "a copier that goes on")
        except Failed:
            print("no copier went on")
        for reader in readers:
            reader.kill()
            reader.wait(20)
        t.fb("node", "restart", "0", "--pool", "p")
        # Programs replace the contents while old copies could still run.
        for n in range(6):
            on(t, n % 3, "yes new%d | head -c 12000000 > $1/file%d" % (n, n), slow.at)
        slow.heal()
        time.sleep(1)
        for n in range(6):
            on(t, (n + 1) % 3, "yes new%d | head -c 12000000 | cmp - $1/file%d" % (n, n), slow.at)
        t.fb("origin", "sync", "--pool", "p").says("all changes are at the origin")
        for n in range(6):
            t.command(["bash", "-c", "yes new%d | head -c 12000000 | cmp - %s/file%d" % (n, slow.source, n)])
        time.sleep(1.5)
        t.fb("fsck", "--pool", "p")
        t.fb("down", "--pool", "p", timeout=60)
