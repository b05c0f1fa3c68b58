"""forebay-check with an outside process on the origin: changes by others are noticed in time, and no version is lost."""
import os
import re

from harness import Failed, Skipped, case

SECONDS = int(os.environ.get("FOREBAY_CHECK_SECONDS", "10"))
LAG = 400


def start(t, top, *options, seconds):
    seed = ["--seed", os.environ["FOREBAY_SEED"]] if "FOREBAY_SEED" in os.environ else []
    return t.start([os.path.join(os.path.dirname(t.forebay), "forebay-check"), "--top", top, "--origin", top, "--lag", str(LAG),
                    "--seconds", str(seconds), *seed, *options, "--", t.forebay, "exec", "--pool", "p", "--"])


@case(120 + SECONDS)
def origin_that_others_use_at_the_same_time(t):
    if not os.access(os.path.join(os.path.dirname(t.forebay), "forebay-check"), os.X_OK):
        raise Skipped("forebay-check isn't built")
    top = os.path.join(t.disk, "origin")
    for name in ("good", "late", "lost"):
        os.makedirs(os.path.join(top, name))
    t.fb("up", "--pool", "p", "--media", "memory:128M", "--origin", top, "--origin-lag", str(LAG / 1000))
    # A loaded machine may add some seconds. The checker finds looks that are rarer than stated, and copies that get lost.
    runs = [(start(t, os.path.join(top, name), "--workers", str(workers), *options, seconds=seconds), rc, wanted)
            for name, workers, seconds, rc, wanted, options in (
                ("good", 10, SECONDS, 0, "changes noticed in", ("--slack", "4000")),
                ("late", 3, 60, 1, "not noticed within", ("--look", "300", "--slack", "300")),
                ("lost", 4, 60, 1, "change a dirty file: not noticed|a version is lost", ("--slack", "3000", "--loses-copies")))]
    for run, rc, wanted in runs:
        r = t.finish(run, rc=None, timeout=100)
        if r.rc != rc or not re.search(wanted, r.out):
            raise Failed("exit code %s, not %s, with %s\n%s%s" % (r.rc, rc, wanted, r.out[-6000:], r.err[-1500:]))
        if rc == 0:
            print(r.out.rstrip())
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p", "--force")
