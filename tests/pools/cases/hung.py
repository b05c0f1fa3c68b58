"""Daemons that are stopped: calls fail once by the request timeout and then at once, the right node is named."""
import re

from harness import case, wait_until

REQUEST_TIMEOUT = 2
# Of a call that has met the stopped node for the first time: the request timeout, and its rounding.
FIRST = REQUEST_TIMEOUT + 1.5
# Of later ones.
LATER = 0.7

# Carries out calls, given as Python expressions; says for each the errno's name and how long it took.
CALLS = r'''
import errno, os, sys, time
for call in sys.argv[1:]:
    began, told = time.monotonic(), "ok"
    try:
        eval(call)
    except OSError as e:
        told = errno.errorcode[e.errno]
    print(told, round(time.monotonic() - began, 2), call, sep="\t", flush=True)
'''


def up(t, nodes):
    t.up("p", "--nodes", str(nodes), "--request-timeout", str(REQUEST_TIMEOUT))


def node(t, verb, number):
    t.fb("node", verb, str(number), "--pool", "p").quiet()


def on(t, number, *calls, timeout=60):
    return t.command([t.forebay, "exec", "--pool", "p", "--node", str(number), "--", "python3", "-c", CALLS, *calls],
                     timeout=timeout)


def results(r):
    """(result, seconds, call) of each call."""
    lines = [line.split("\t") for line in r.out.splitlines()]
    return [(told, float(took), call) for told, took, call in lines]


def failed_in_time(t, r, longest):
    for told, took, call in results(r):
        t.ok(took <= longest, "%s took %.1f s (%s)" % (call, took, told))


def away(t, number):
    """Files whose names lie on a node, and which it made."""
    names = ["/fb/d/f%d" % n for n in range(24)]
    node(t, "kill", number)
    r = on(t, 0, *("os.stat(%r)" % name for name in names))
    node(t, "restart", number)
    found = [re.search("'(.*)'", call).group(1) for told, _, call in results(r) if told == "EHOSTDOWN"]
    wait_until(lambda: all(told == "ok" for told, _, _ in results(on(t, 0, *("os.stat(%r)" % n for n in found)))), 15,
               "the node to be back")
    return found


@case(90)
def calls_to_a_stopped_node_fail_at_once_after_the_first(t):
    up(t, 3)
    on(t, 0, "os.mkdir('/fb/d')")
    on(t, 2, *("open('/fb/d/f%d', 'w').write('x')" % n for n in range(24))).prints("ok")
    names = away(t, 2)
    t.ok(len(names) >= 6, "names on node 2: %s" % names)
    node(t, "pause", 2)
    # Each kind of call is bounded by one request timeout, whatever it asks of the node.
    calls = ["os.listdir('/fb/d')", "os.rename(%r, '/fb/d/new')" % names[0], "os.unlink(%r)" % names[1],
             "open(%r).read()" % names[2], "os.stat(%r)" % names[3], "os.mkdir('/fb/e')", "os.rmdir('/fb/e')"]
    r = on(t, 0, *calls)
    failed_in_time(t, r, FIRST)
    # Each of the two daemons that are asked finds out once.
    t.ok(sum(took > LATER for _, took, _ in results(r)) <= 2, "more calls waited: %s" % r.out)
    r.says("^forebay: node 2 ")
    t.ok(not re.search("node [01] ", r.err), "another node is named: %s" % r.err)
    # Other processes don't wait either.
    r = on(t, 0, *calls, *calls)
    failed_in_time(t, r, LATER)
    r.says("^forebay: node 2 ").one_line()
    node(t, "resume", 2)
    wait_until(lambda: results(on(t, 0, "os.stat(%r)" % names[3]))[0][0] == "ok", 10, "the node to be used again")
    told = results(on(t, 0, *("open(%r).read()" % name for name in names[4:])))
    t.ok(all(result == "ok" for result, _, _ in told), str(told))


@case(60)
def a_stopped_daemon_is_named_by_its_own_programs(t):
    up(t, 2)
    on(t, 1, "os.mkdir('/fb/d')", *("open('/fb/d/f%d', 'w').write('x')" % n for n in range(24)))
    reads = ["open('/fb/d/f%d').read()" % n for n in range(24)]
    node(t, "pause", 0)
    r = on(t, 0, *reads)
    told = results(r)
    t.ok(all(result == "EHOSTDOWN" for result, _, _ in told), r.out)
    t.ok(told[0][1] <= FIRST and all(took <= 0.3 for _, took, _ in told[1:]), r.out)
    r.says("^forebay: the daemon of this node .* is stopped.*node resume 0")
    t.ok("node 1" not in r.err, "a healthy node is named: %s" % r.err)
    # Others don't wait either.
    failed_in_time(t, on(t, 0, reads[0]), 0.3)
    node(t, "resume", 0)
    wait_until(lambda: results(on(t, 0, reads[0]))[0][0] == "ok", 5, "the daemon to go on")
    t.ok(all(result == "ok" for result, _, _ in results(on(t, 0, *reads))), "not all can be read")


@case(90)
def a_stopped_node_is_named_through_another_one(t):
    """Node 0 changes directories for all; that it can't reach a third node isn't its own failure."""
    up(t, 3)
    on(t, 1, *("os.mkdir('/fb/d%d')" % n for n in range(12)))
    node(t, "pause", 2)
    calls = ["os.rename('/fb/d%d', '/fb/e%d')" % (n, n) for n in range(12)]
    r = on(t, 1, *calls)
    t.ok(any(told == "EHOSTDOWN" for told, _, _ in results(r)), r.out)
    # Two daemons find out for themselves at most.
    t.ok(sum(took for _, took, _ in results(r)) < 2 * FIRST + 12 * LATER, r.out)
    failed_in_time(t, r, FIRST)
    r.says("^forebay: node 2 ")
    t.ok(not re.search("node 0 ", r.err), "a healthy node is named: %s" % r.err)
    node(t, "resume", 2)
    wait_until(lambda: results(on(t, 1, "os.listdir('/fb')"))[0][0] == "ok", 15, "the node to be used again")
