"""What pages promise to newcomers: the tutorial, and the demo of a gain."""
import os
import sys

import tutorial
from harness import ROOT_OF_TESTS, Skipped, case


@case(limit=60)
def the_tutorial(t):
    """The commands of docs/tutorial.md print what stands there."""
    t.ok(len(tutorial.blocks()) >= 8, "only %d blocks were found" % len(tutorial.blocks()))
    path = "%s:%s" % (os.path.dirname(t.forebay), os.environ["PATH"])
    done = t.command(["sh", "-s"], rc=None, env={"PATH": path}, feed=tutorial.script().encode(), timeout=50)
    why = tutorial.missing(done.out)
    t.ok(why is None and done.rc == 0, "%s\nexit code %d" % (why, done.rc))
    # The comparison notices what isn't there.
    t.ok(tutorial.missing(done.out.replace("101 results", "100 results")) is not None, "nothing is compared")


@case(limit=90)
def the_demo_of_a_gain(t):
    """`make demo-gain` in its small form: all ways leave the same bytes."""
    if not os.path.exists("/dev/fuse"):
        raise Skipped("no /dev/fuse")
    program = os.path.join(os.path.dirname(ROOT_OF_TESTS), "examples", "gain", "run.py")
    t.command([sys.executable, program, "--small"], timeout=80).prints("^OK: 39 files", "^pool, two nodes ")
