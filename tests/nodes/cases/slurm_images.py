"""examples/slurm/container.sh: a job of which everything comes from an image, by a user without rights."""
import os
import shutil
import subprocess

from harness import Skipped, case, wait_until
from .slurm import Slurm
from .slurm_jobs import EXAMPLES, Jobs
from .slurm_users import USERS, User, need_users

# What the image has, beside Forebay: this host's programs, with their libraries.
PROGRAMS = ["bash", "cat", "cp", "ls", "mkdir", "sha256sum", "sh", "wc"]


def make_image(t, image):
    """An unpacked image, as `packaging/container` would make one of a small base."""
    binaries = {name: os.path.realpath(shutil.which(name)) for name in PROGRAMS}
    own = os.path.dirname(t.forebay)
    for name in ("forebay", "libforebay_preload.so", "libforebay_audit.so"):
        binaries["../opt/forebay/bin/" + name] = os.path.join(own, name)
    for d in ("bin", "usr", "tmp", "opt/forebay/bin"):
        os.makedirs(os.path.join(image, d))
    os.symlink("../bin", image + "/usr/bin")
    for name, path in binaries.items():
        shutil.copy(path, os.path.join(image, "bin", name))
        done = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, text=True)
        for library in (word for word in done.stdout.split() if word.startswith("/")):
            target = image + library
            if not os.path.exists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(os.path.realpath(library), target)


@case(120)
def slurm_images(t):
    need_users()
    with Slurm(t) as cluster:
        jobs, user = Jobs(t, cluster), User(t, cluster, USERS[0])
        if user.does("unshare", "--map-root-user", "--mount", "true").returncode:
            raise Skipped("users may make no namespaces here")
        image = user.dir + "/image"
        make_image(t, image)
        for name in ("container.sh", "in_image.sh", "task.sh"):
            shutil.copy(os.path.join(EXAMPLES, name), user.dir)
        shutil.copytree(jobs.dir + "/input", user.dir + "/input")
        # The test's small pools, over what the image has.
        own = image + "/opt/forebay/bin"
        os.rename(own + "/forebay", own + "/forebay.real")
        with open(jobs.dir + "/bin/forebay") as f:
            small = f.read()
        with open(own + "/forebay", "w") as f:
            f.write(small.replace("forebay=%s\n" % t.forebay, 'forebay=${0%/*}/forebay.real\n'))
        os.chmod(own + "/forebay", 0o755)
        t.command(["chown", "-R", "%d:%d" % (user.uid, user.gid), user.dir])
        # Nothing of Forebay is installed.
        user.env["PATH"] = cluster.env["PATH"]
        user.env["IMAGE"] = image
        number = user.does("sbatch", "--parsable", "--output=job.out", "container.sh").stdout.strip()
        jobs.wait(number)
        said = user.output()
        t.ok(said.count("task ") == 6 and "3 nodes" in said, said)
        t.ok(jobs.sums(user.dir + "/output") == jobs.expected(), said)
        wait_until(lambda: not user.pools(), 10, user.output)
        t.ok(not user.has("forebay-" + number), said)
        shutil.rmtree(user.home)
    t.nothing_left("the job")
