"""The site's file of defaults and limits, and the user's: what they set, what they refuse, how mistakes are named."""
import os
import pwd

from harness import case

SITE = """
[defaults]
media = ["files:%s/{user}:64M"]
mount = "/site"
ttl = "2h"

[limits]
memory = "64M"
files = "100M"
nodes = 2
ttl = "3h"
directories = ["%s"]
origins = ["%s/project"]
networks = ["127.0.0.0/8"]
"""


@case(limit=60)
def site_with_defaults_and_limits(t):
    allowed, other = t.disk + "/allowed", t.disk + "/other"
    user = pwd.getpwuid(os.getuid()).pw_name
    for path in allowed + "/" + user, other, t.work + "/project/case", t.work + "/projects", t.work + "/config/forebay":
        os.makedirs(path)
    os.symlink(other, allowed + "/link")
    site, mine = t.work + "/forebay.toml", t.work + "/config/forebay/forebay.toml"

    def write(path, text):
        with open(path, "w") as f:
            f.write(text)
    write(site, SITE % (allowed, allowed, t.work))
    env = {**os.environ, "FOREBAY_CONFIG": site, "XDG_CONFIG_HOME": t.work + "/config"}

    def up(*words, rc=0):
        return t.fb("up", "--pool", "p", *words, env=env, rc=rc)

    def is_up(media, mount):
        status = t.fb("status", "--pool", "p", "--json", env=env).json()
        t.ok(status["mount"] == mount, status)
        t.ok([m["medium"].split(":")[0] for m in status["media"]] == media, status)
        t.fb("down", "--pool", "p")

    # Defaults; then the user's before the site's; then options before both.
    up()
    is_up(["files"], "/site")
    write(mine, '[defaults]\nmount = "/mine"\n')
    up()
    is_up(["files"], "/mine")
    up("--mount", "/option", "--media", "memory:64M")
    is_up(["memory"], "/option")

    # Limits, each with the file that has it.
    for words, says in (
            (["--media", "memory:65M"], "memory media of 65.0 MiB on each node; this site allows 64.0 MiB"),
            (["--media", "files:%s:60M" % allowed, "--media", "files:%s/b:60M" % allowed], "files media of 120.0 MiB"),
            (["--media", "files:%s:10M" % other], "no files media in %s" % other),
            (["--media", "files:%s/link/a:10M" % allowed], "no files media in"),
            (["--media", "memory:32M", "--nodes", "3"], "3 nodes; this site allows 2"),
            (["--ttl", "4h"], "3 h at most"), (["--ttl", "none"], "3 h at most"),
            (["--origin", t.work + "/projects"], "doesn't allow %s/projects" % t.work),
            (["--media", "memory:32M", "--hosts", "localhost", "--listen", "10.0.0.0/8"], "may not listen on 10")):
        up(*words, rc=2).says(says, site).one_line()
    t.fb("run", "--media", "memory:65M", "--", "true", env=env, rc=2).says("this site allows 64.0 MiB")
    up("--origin", t.work + "/project/case", "--media", "memory:32M")
    t.fb("down", "--pool", "p")
    doctor = t.fb("doctor", "--no-trial", "--json", env=env, rc=None).json()
    found = next(check for check in doctor["checks"] if check["check"] == "forebay.toml")
    t.ok(found["state"] == "ok" and site in found["found"] and mine in found["found"], found)

    # Mistakes: nothing is started, the line is named.
    for path, text, says in (
            (mine, "[limits]\nnodes = 3\n", ["limits.*belong into the site's file"]),
            (mine, "[defaults]\n\nttl = \"3 days\"\n", ["line 3: '3 days' is no time"]),
            (mine, "[defaults]\nmedium = 1\n", ["medium", "line 2"]),
            (site, "[limits]\nmemory = \"1G\"\n", ["limits.memory needs defaults.media"]),
            (site, "\x00\xff", [site])):
        write(mine, "")
        write(path, text)
        r = up(rc=None)
        t.ok(r.rc in (1, 2), r.told())
        r.says(path, *says)
        r = t.fb("doctor", "--no-trial", env=env, rc=1)
        t.ok("forebay.toml" in r.out and "correct it" in r.out, r.told())
    t.nothing_left("refusals")


@case(limit=60)
def settings_that_are_no_files(t):
    """A FIFO or a device in the place of a file of settings is an error, not a wait."""
    config = t.work + "/config/forebay"
    os.makedirs(config)
    env = {"XDG_CONFIG_HOME": t.work + "/config", "FOREBAY_CONFIG": "", "FOREBAY_CAMPAIGNS": "", "HOME": t.work}
    for name, words in (("forebay.toml", ["up", "--pool", "p", "--media", "memory:64M"]),
                        ("campaigns.toml", ["campaign", "list"])):
        at = config + "/" + name
        os.mkfifo(at)
        r = t.fb(*words, env=env, rc=None, timeout=10)
        t.ok(r.rc in (1, 2), r.told())
        r.says(at, "it is a FIFO, not a regular file")
        os.unlink(at)
        os.symlink("/dev/zero", at)
        r = t.fb(*words, env=env, rc=None, timeout=10)
        t.ok(r.rc in (1, 2), r.told())
        r.says(at, "it is a device, not a regular file")
        os.unlink(at)
    # A FIFO that a command names is read if somebody writes to it, and given up if nobody does.
    t.command(["bash", "-c", """ "$0" rules check <(echo '[[rule]]'; sleep 1; echo 'path = "/a"'; echo 'persistence = "process"') """,
               t.forebay]).says("1 rule, no error")
    os.mkfifo(t.work + "/rules")
    r = t.fb("rules", "check", t.work + "/rules", rc=2, timeout=15).one_line()
    r.says("it is a FIFO into which nothing was written for 10 s")
    t.fb("rules", "check", "/dev/zero", rc=2, timeout=5).says("it is a device, not a regular file")
    t.nothing_left("refusals")
