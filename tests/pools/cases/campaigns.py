"""Campaigns: their life from the first pool to the end, on tiers that are directories."""
import glob
import json
import os
import pwd
import random
import resource
import shutil
import signal
import subprocess
import time

from harness import Skipped, case, wait_until

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "examples")

TIERS = """
registry = "{top}/registry"
archive = "tape"
warn = ["1h", "2s"]
mail = ["sh", "-c", "cat >> {top}/mail"]

[tier.scratch]
path = "{top}/scratch/{{user}}"
longest = "10d"
at_end = "archive"
grace = "2s"

[tier.home]
path = "{top}/home"
at_end = "delete"
grace = "2s"

[tier.tape]
path = "{top}/tape"
"""


class Site:
    """Tiers and a registry of a test."""

    def __init__(self, t):
        self.t, self.top = t, os.path.join(t.disk, "site")
        os.mkdir(self.top)
        with open(self.top + "/tiers.toml", "w") as f:
            f.write(TIERS.format(top=self.top))
        self.env = {"FOREBAY_CAMPAIGNS": self.top + "/tiers.toml"}

    def fb(self, *words, **more):
        return self.t.fb("campaign", *words, env=self.env, **more)

    def path(self, name):
        return self.fb("path", name).out.strip()

    def show(self, name):
        return self.fb("show", name, "--json").json()

    def once(self, **more):
        return self.t.fb("campaignd", "--once", env=self.env, **more)

    def daemon(self, *words):
        return self.t.start([self.t.forebay, "campaignd", "--every", "1s", *words], env=self.env,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def mail(self):
        try:
            with open(self.top + "/mail") as f:
                return f.read()
        except FileNotFoundError:
            return ""


def tree(path):
    """{name: content} of the files below a path."""
    found = {}
    for at, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(at, name), "rb") as f:
                found[os.path.relpath(os.path.join(at, name), path)] = f.read()
    return found


@case(limit=90)
def campaign_with_pools(t):
    """Pools come and go, also of several nodes; the data stay, and move between tiers."""
    site = Site(t)
    site.fb("create", "case", "1G,1000files,scratch,1d").says("lasts 1d")
    path = site.path("case")
    t.ok(os.stat(path).st_mode & 0o777 == 0o700, "others may use the campaign")
    site.fb("create", "case", "scratch", rc=1).says("there is a campaign 'case'")
    site.fb("up", "case", "--media", "memory:64M")
    t.bash("case", "mkdir {0}/d; seq 5000 > {0}/d/f; ln -s d/f {0}/l".format(path))
    # Data that a pool uses aren't moved.
    site.fb("migrate", "case", "home", rc=1).says("the pool of 'case' uses the data: forebay campaign down case")
    site.fb("up", "case", rc=1).says("campaign down case")
    site.fb("down", "case")
    wanted = tree(path)
    t.ok(set(wanted) == {"d/f", "l"}, "the data aren't at their place: %s" % sorted(wanted))
    t.ok(site.show("case")["usage"]["files"] == 3, "usage isn't counted")
    # On another number of nodes, with another medium.
    os.mkdir(t.disk + "/medium")
    site.fb("up", "case", "--nodes", "3", "--media", "files:%s/medium:64M" % t.disk)
    t.bash("case", "cd {0}; sha256sum d/f; echo more > more".format(path))
    site.fb("down", "case")
    wanted["more"] = b"more\n"
    t.ok(tree(path) == wanted, "the data differ after the second pool")
    site.fb("migrate", "case", "home").says("'case' is at %s/home/case" % site.top)
    t.ok(not os.path.exists(path) and tree(site.path("case")) == wanted, "migration")
    site.fb("archive", "case")
    site.fb("up", "case", rc=1).says("campaign restore case")
    site.fb("path", "case", rc=1)
    site.fb("restore", "case", rc=2).says("several tiers")
    site.fb("restore", "case", "--tier", "scratch", "--for", "11d", rc=2).says("10d at most")
    site.fb("restore", "case", "--tier", "scratch")
    t.ok(site.path("case") == path and tree(path) == wanted, "restored data differ")
    site.fb("extend", "case", "1s", rc=2).says("10d at most")
    site.fb("list").prints(r"^case +active +scratch ")
    site.fb("delete", "case")
    t.ok(not os.path.exists(path), "deleted data are in the way")
    site.fb("restore", "case", "--for", "1d")
    t.ok(tree(path) == wanted, "data of the grace period differ")
    site.fb("delete", "case", "--now")
    t.ok(os.listdir(os.path.dirname(path)) == [], "something is left")
    site.fb("show", "case", rc=1).says("there is no campaign 'case'")


@case(limit=60)
def campaigns_without_a_file(t):
    """Nobody has named tiers: they are the user's own directories, and the commands say where to change that."""
    if os.path.exists("/etc/forebay/campaigns.toml"):
        raise Skipped("this host has a file of tiers")
    home, scratch = t.disk + "/home", t.disk + "/scratch"
    for path in (home, scratch):
        os.mkdir(path)
    env = {"HOME": home, "SCRATCH": scratch, "WORK": t.disk + "/not-there", "FOREBAY_CAMPAIGNS": "",
           "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""}
    fb = lambda *words, **more: t.fb("campaign", *words, env=env, **more)
    made = fb("create", "case7", "100TB,10000files,scratch,2d")
    t.ok(made.out.strip() == scratch + "/forebay-campaigns/case7" and os.path.isdir(made.out.strip()), made.out)
    made.says("name others in %s/.config/forebay/campaigns.toml" % home)
    at_home = fb("create", "notes", "--tier", "home").out.strip()
    t.ok(at_home == home + "/.local/share/forebay/campaign-data/notes", at_home)
    fb("create", "x", "1GB,work,1d", rc=2).says("no tier 'work' in your own directories", "there are: home, scratch")
    # Without a tier, that for temporary data. It ends as others do.
    place = fb("create", "short", "1s", "-q").out.strip()
    t.ok(os.path.isdir(place), place)
    wait_until(lambda: fb("show", "short", "--json").json()["ends"] <= time.time(), 5, "the end")
    t.fb("campaignd", "--once", env=env)
    t.ok(not os.path.exists(place) and fb("show", "short", "--json").json()["state"] == "expired", place)
    # A file of the user's counts from then on.
    os.makedirs(home + "/.config/forebay")
    with open(home + "/.config/forebay/campaigns.toml", "w") as f:
        f.write("[tier.mine]\npath = '%s/mine'\n" % t.disk)
    made = fb("create", "other")
    t.ok(made.out.strip() == t.disk + "/mine/other" and "name others" not in made.err, made.err)


@case(limit=60)
def campaign_on_a_tier_that_is_a_pool(t):
    """Data in a running pool: counted, moved out and back, hidden for the grace period."""
    site = Site(t)
    with open(site.top + "/tiers.toml", "a") as f:
        f.write('[tier.fast]\npool = "fast"\nlargest = "1M"\nat_end = "delete"\n')
    site.fb("create", "case", "fast,1d", rc=1).says("the tier's pool 'fast' can't be used here").one_line()
    site.fb("list").says("no campaigns")
    t.up("fast")
    site.fb("create", "case", "2M,fast,1d", rc=2).says("1.0 MiB at most")
    path = site.fb("create", "case", "fast,1d").out.strip()
    t.ok(path == site.path("case") and path.startswith("/fb/campaigns/"), path)
    t.bash("fast", "cd {0}; mkdir d; seq 5000 > d/f; ln -s d/f l; stat -c %a .".format(path)).prints("^700$")
    t.ok(site.fb("show", "case", "--count", "--json").json()["usage"]["files"] == 3, "the count")
    site.fb("up", "case", "--media", "memory:64M", rc=2).says("in a pool already").one_line()
    site.fb("share", "case", "nobody", rc=1).says("its own user only")
    site.fb("migrate", "case", "scratch")
    wanted = tree(site.path("case"))
    t.ok(set(wanted) == {"d/f", "l"} and site.path("case").startswith(site.top), sorted(wanted))
    t.bash("fast", "ls -A %s | wc -l" % os.path.dirname(path)).prints("^0$")
    site.fb("migrate", "case", "fast")
    t.ok(site.path("case") == path, site.path("case"))
    t.bash("fast", "cd %s; seq 5000 | cmp - d/f; readlink l" % path).prints("^d/f$")
    site.fb("delete", "case")
    t.bash("fast", "! ls %s" % path)
    site.fb("restore", "case", "--for", "1d")
    t.bash("fast", "cat %s/l | wc -l" % path).prints("^5000$")
    t.fb("down", "--pool", "fast", "--force")
    site.fb("show", "case").prints("pool:fast/campaigns")
    site.fb("migrate", "case", "scratch", rc=1).says("the tier's pool 'fast' can't be used here")


@case(limit=60)
def campaigns_that_end(t):
    """Warnings, ends, grace periods; two daemons at once, one of which is killed again and again."""
    site = Site(t)
    draw = random.Random(os.environ.get("FOREBAY_SEED") or 1)
    wanted = {}
    for n in range(6):
        tier = ("scratch", "home")[n % 2]
        name = "c%d" % n
        site.fb("create", name, "%s,%ds" % (tier, 3 + n // 2))
        path = site.path(name)
        for k in range(40):
            with open("%s/f%d" % (path, k), "wb") as f:
                f.write(os.urandom(draw.randrange(200000)))
        wanted[name] = tree(path)
    steady = site.daemon("--metrics", site.top + "/metrics")
    restarted = site.daemon()
    try:
        until = time.monotonic() + 9
        while time.monotonic() < until:
            time.sleep(draw.uniform(0.05, 0.4))
            restarted.kill()
            restarted.wait()
            restarted = site.daemon()
        wait_until(lambda: all(site.show("c%d" % n)["state"] == "archived" for n in (0, 2, 4)), 10, "the archive")
        for n in (0, 2, 4):
            found = tree("%s/tape/c%d" % (site.top, n))
            t.ok(found == wanted["c%d" % n], "the archive of c%d differs" % n)
        # Data that nobody wanted back are gone after the grace period, and so is the campaign.
        names = lambda: {c["name"] for c in site.fb("list", "--json").json()}
        wait_until(lambda: names() == {"c0", "c2", "c4"}, 10, "the end of the grace period")
    finally:
        for daemon in (steady, restarted):
            daemon.kill()
            daemon.wait()
    for tier in ("scratch/" + os.listdir(site.top + "/scratch")[0], "home"):
        t.ok(os.listdir(os.path.join(site.top, tier)) == [], "left on %s" % tier)
    t.ok(sorted(os.listdir(site.top + "/tape")) == ["c0", "c2", "c4"], "left in the archive")
    mail = site.mail()
    t.ok("The campaign 'c3' has ended. Its data are out of the way" in mail, mail)
    t.ok("The campaign 'c4' has ended. Its data are archived." in mail, mail)
    with open(site.top + "/metrics") as f:
        t.ok("forebay_campaign_failures 0" in f.read(), "a pass failed")


@case(limit=60)
def campaigns_in_trouble(t):
    """Quotas, full archives, wrong words: what is told, and that nothing is lost."""
    site = Site(t)
    for word, says in [("1T,2T", "says twice"), ("nowhere", "there is no tier 'nowhere'"), ("20d,scratch", "10d at most"),
                       ("5 tons!", "is no part of a campaign"), ("", "several tiers")]:
        site.fb("create", "c", *([word] if word else []), rc=2).says(says)
    for name in ("../c", ".c", "-c", "a/b", "x" * 101, "c c"):
        site.fb("create", "--tier", "home", "--", name, rc=1).says("is no name for a campaign")
    t.ok(os.listdir(site.top + "/registry") == [], "a refused campaign left something")
    site.fb("create", "c", "10K,2files,home,1d", "--at-end", "archive")
    path = site.path("c")
    t.file(path + "/a", 20000, 1)
    site.once().says("more than its quota: 19.5 KiB of 10.0 KiB")
    t.ok("exceeds its quota" in site.mail() or "has 19.5 KiB of 10.0 KiB" in site.mail(), site.mail())
    site.once().quiet()
    site.fb("list").prints("^c +over quota ")
    # The archive can't be reached: the data stay, the move is tried again.
    with open(site.top + "/tape", "w"):
        pass
    site.fb("archive", "c", rc=1)
    t.ok(os.path.exists(path + "/a"), "the data went")
    os.unlink(site.top + "/tape")
    if site.show("c")["moving"]:
        site.once()
    else:
        site.fb("archive", "c")
    t.ok(list(tree(site.top + "/tape/c")) == ["a"] and not os.path.exists(path), "it wasn't archived")
    # Somebody else's directory is left alone.
    os.makedirs(path)
    site.fb("restore", "c", "--tier", "home", rc=1).says("there is something at")
    os.rmdir(path)
    site.fb("restore", "c", "--tier", "home")
    # A record that is damaged is told, and the others are looked after.
    site.fb("create", "d", "home,1d")
    with open(site.top + "/registry/c.json", "w") as f:
        f.write("{")
    site.fb("list", rc=1).prints("^d +active").says("c.json is no record of a campaign")
    site.once(rc=1)
    t.fb("campaign", "list", env={"FOREBAY_CAMPAIGNS": site.top + "/none.toml"}, rc=2).says("which names the tiers")


@case(limit=30)
def campaign_that_is_shared(t):
    """Members may use the data, and others may not."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        raise Skipped("only root can act as other users")
    if not shutil.which("setfacl"):
        raise Skipped("there is no setfacl")
    site = Site(t)
    for at in (t.disk, site.top):
        os.chmod(at, 0o755)
    try:
        subprocess.run(["setfacl", "-m", "u:nobody:r", site.top + "/tiers.toml"], check=True, stderr=subprocess.PIPE)
    except subprocess.CalledProcessError as e:
        raise Skipped("no access control lists here: %s" % e.stderr.decode().strip())
    site.fb("create", "c", "home,1d")
    path = site.path("c")
    with open(path + "/a", "w") as f:
        f.write("a\n")

    def as_nobody(script):
        words = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "sh", "-c", script]
        return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=10).returncode == 0
    if not as_nobody("ls " + site.top):
        raise Skipped("others can't get to %s" % site.top)
    t.ok(not as_nobody("cat %s/a" % path), "others may read")
    site.fb("share", "c", "nobody:ro")
    t.ok(as_nobody("cat %s/a" % path) and not as_nobody("touch %s/b" % path), "a reader may write, or can't read")
    site.fb("share", "c", "nobody")
    t.ok(as_nobody("echo b > %s/b && cat %s/a" % (path, path)), "a member can't write")
    site.fb("show", "c").prints("^shared with +nobody$")
    site.fb("share", "c")
    t.ok(not as_nobody("cat %s/a" % path), "shared with nobody, and others may read")
    site.fb("share", "c", "-R", rc=2)


OF_ALL = """
registry = "{top}/{{user}}/registry"
archive = "tape"
mail = ["sh", "-c", "cat >> {top}/{{user}}/mail"]

[tier.scratch]
path = "{top}/{{user}}/scratch"
at_end = "archive"
grace = "2s"

[tier.tape]
path = "{top}/{{user}}/tape"
"""


@case(limit=60)
def campaigns_of_all_users(t):
    """A daemon of root works for each user with that user's rights, whatever the user's records say."""
    names = ("games", "nobody")
    if os.getuid() != 0 or not shutil.which("setpriv"):
        raise Skipped("only root can act as other users")
    # A copy that other users can get to, wherever this checkout lies.
    program = shutil.copy(t.forebay, os.path.join(t.disk, "forebay"))
    top = os.path.join(t.disk, "site")
    os.mkdir(top)
    for at in (t.disk, top):
        os.chmod(at, 0o755)
    with open(top + "/tiers.toml", "w") as f:
        f.write(OF_ALL.format(top=top))
    env = {"FOREBAY_CAMPAIGNS": top + "/tiers.toml"}
    for name in names:
        os.mkdir("%s/%s" % (top, name))
        os.chown("%s/%s" % (top, name), pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid)
        os.chmod("%s/%s" % (top, name), 0o700)

    def run(name, *words, **more):
        user = pwd.getpwnam(name)
        return t.command(["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups",
                          *words], env={**env, "HOME": "%s/%s" % (top, name)}, **more)

    def campaign(name, *words):
        return run(name, program, "campaign", *words)

    def daemon(*words, **more):
        return t.command([program, "campaignd", "--all-users", *words], env=env, **more)
    run("nobody", program, "campaignd", "--all-users", rc=2).says("only root can work for other users")
    for name in names:
        campaign(name, "create", "case", "scratch,1s")
        run(name, "sh", "-c", "echo $1 > %s/%s/scratch/case/a" % (top, name), "sh", name)
        campaign(name, "create", "lasts", "1G,scratch,1d")
    time.sleep(1.1)
    said = daemon("--once", "--json", "--metrics", top + "/metrics")
    told = {(c["owner"], c["name"]): c["state"] for c in said.json()}
    t.ok(told == {(name, of): state for name in names for of, state in (("case", "archived"), ("lasts", "active"))}, told)
    for name in names:
        at = "%s/%s/tape/case/a" % (top, name)
        with open(at) as f:
            t.ok(f.read() == name + "\n", at)
        t.ok(os.stat(at).st_uid == pwd.getpwnam(name).pw_uid, "the owner of " + at)
        with open("%s/%s/mail" % (top, name)) as f:
            t.ok("The campaign 'case' has ended." in f.read(), "the mail of " + name)
    with open(top + "/metrics") as f:
        text = f.read()
    for name in names:
        of = '{campaign="lasts",owner="%s",tier="scratch"}' % name
        t.ok("forebay_campaign_quota_bytes%s %d\n" % (of, 1 << 30) in text, text)
    # One user's record names the other's data, and lines of metrics.
    campaign("nobody", "create", "own", "scratch,1d")
    run("nobody", "sh", "-c", "echo mine > %s/nobody/scratch/own/a" % top)
    campaign("games", "create", "bad", "scratch,1s")
    with open(top + "/games/registry/bad.json") as f:
        record = json.load(f)
    place = "%s/nobody/scratch/own" % top
    record.update(place=place, owner="root", ends=record["created"])
    with open(top + "/games/registry/bad.json", "w") as f:
        json.dump(record, f)
    with open(top + "/games/registry/lasts.json") as f:
        record = json.load(f)
    record.update(tier='x"} 1\nmade_up 1\n')
    with open(top + "/games/registry/lasts.json", "w") as f:
        json.dump(record, f)
    os.makedirs(top + "/no-user/registry")
    campaign("nobody", "create", "next", "scratch,1s")
    time.sleep(1.1)
    said = daemon("--once", "--json", "--metrics", top + "/metrics", rc=1)
    said.says("games: campaign 'bad': .*Permission denied", "no-user: there is no user 'no-user'",
              "something failed for games, no-user; see above")
    told = {(c["owner"], c["name"]): c["state"] for c in said.json()}
    t.ok(told["nobody", "next"] == "archived" and told["games", "bad"] == "active", told)
    with open(place + "/a") as f:
        t.ok(f.read() == "mine\n", "the other's data")
    with open(top + "/metrics") as f:
        t.ok(not any(line.startswith("made_up") for line in f) and "root" not in text, "lines were added to the metrics")
    # Records that aren't regular files, or have no end: the others' are counted all the same, at once.
    at = top + "/games/registry/"
    os.mkfifo(at + "fifo.json")
    os.symlink("/dev/zero", at + "zero.json")
    with open(at + "long.json", "w") as f:
        f.truncate(1 << 30)
    began = time.monotonic()
    said = daemon("--once", "--json", rc=1, timeout=20, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)))
    said.says("games: .*fifo.json: it is a FIFO, not a regular file", "games: .*zero.json: it is a symbolic link",
              "games: .*long.json: it is longer than")
    t.ok(time.monotonic() - began < 15, "a pass over such records takes %g s" % (time.monotonic() - began))
    t.ok(("games", "bad") in {(c["owner"], c["name"]) for c in said.json()}, said.out)
    for name in ("fifo", "zero", "long"):
        os.unlink(at + name + ".json")
    # A pass that doesn't end.
    hangs = top + "/hangs"
    os.mkdir(hangs)
    with open(hangs + "/setpriv", "w") as f:
        f.write("#!/bin/sh\nexec sleep 60\n")
    os.chmod(hangs + "/setpriv", 0o755)
    began = time.monotonic()
    t.command([program, "campaignd", "--all-users", "--once", "--pass-limit", "1s"], rc=1,
              env={**env, "PATH": hangs + ":" + os.environ["PATH"]}).says("nobody: its pass took longer than 1 s")
    t.ok(time.monotonic() - began < 10, "the limit of a pass isn't kept")
    # A place for records that another user has made, or can write to.
    for wrong in ("chown games", "chmod 777"):
        t.command([*wrong.split(), top + "/nobody/registry"])
        daemon("--once", rc=1).says("nobody: .*others can change the campaigns")
        t.command(["chown", "nobody", top + "/nobody/registry"])
        t.command(["chmod", "700", top + "/nobody/registry"])
    # As a service: killed at any time, and started again.
    campaign("nobody", "create", "late", "scratch,2s")
    command = [program, "campaignd", "--all-users", "--every", "1s"]
    for _ in range(4):
        service = t.start(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.random())
        service.kill()
        service.wait()
    service = t.start(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: campaign("nobody", "show", "late", "--json").json()["state"] == "archived", 30, "the end")
    finally:
        service.kill()
        service.wait()
    one = {"FOREBAY_CAMPAIGNS": top + "/one.toml"}
    with open(top + "/one.toml", "w") as f:
        f.write('registry = "%s/one"\n[tier.scratch]\npath = "%s/one"\n' % (top, top))
    t.command([program, "campaignd", "--all-users", "--once"], env=one, rc=1).says("is of one user", "{user}")


@case(limit=90)
def snakemake_in_a_campaign(t):
    """The example: 30 jobs, a run that is killed in the middle and goes on with another pool."""
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(EXAMPLES, "..", "target"))
    found = glob.glob(os.path.join(target, "python", "*", "bin", "snakemake"))
    if not found:
        raise Skipped("there is no Snakemake: tests/python/prepare.py")
    site = Site(t)
    os.symlink(t.forebay, t.work + "/forebay")
    example = os.path.join(EXAMPLES, "snakemake")
    env = {**site.env, "PATH": ":".join([t.work, os.path.dirname(found[0]), os.environ["PATH"]]), "SPEC": "scratch,1d",
           "MEDIA": "memory:128M", "CORES": "2", "HOME": t.disk}
    words = [example + "/run.sh", "study", example + "/Snakefile"]
    first = t.start(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    path = ""

    def is_at_work():
        nonlocal path
        path = path or t.fb("campaign", "path", "study", env=site.env, rc=None).out.strip()
        return path and t.fb("ls", "--pool", "study", path + "/counts", rc=None).out
    try:
        wait_until(is_at_work, 30, "the first counts")
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    wait_until(lambda: t.fb("campaign", "down", "study", "--force", env=site.env, rc=None).rc == 0, 15, "the pool's end")
    t.ok(not os.path.exists(path + "/summary.csv"), "the workflow had ended already")
    # It was killed: its lock is there.
    t.command(words + ["--unlock"], env=env, timeout=30)
    t.command(words + ["--rerun-incomplete"], env=env, timeout=60).says("steps [(]100%[)] done")
    with open(path + "/summary.csv") as f:
        lines = f.read().split()
    t.ok(lines == ["s%02d,4000" % n for n in range(14)], lines)
