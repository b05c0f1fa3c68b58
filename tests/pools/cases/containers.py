"""Pools and containers: processes in other PID namespaces, and what is bound into them."""
import os
import shutil
import subprocess

from harness import Skipped, case, wait_until

APART = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
REFUSED = "^forebay: .*another PID namespace.*--pid=host.*forebay mount"


def need_namespaces():
    """A namespace needs root, and some machines allow none."""
    if not shutil.which("unshare") or subprocess.run(APART + ["true"], stderr=subprocess.DEVNULL).returncode:
        raise Skipped("PID namespaces need root and unshare(1)")


@case(60)
def another_pid_namespace(t):
    need_namespaces()
    t.up("p")
    t.bash("p", "echo whole > /fb/f")
    # From there all others look dead, and their locks free: every way to attach is refused.
    r = t.command(APART + [t.forebay, "exec", "--pool", "p", "--", "cat", "/fb/f"], rc=None)
    t.ok(r.rc != 0 and not r.out, "it was let in: %r" % r.out)
    r.says("another PID namespace", "--pid=host", "forebay mount")
    t.exec("p", *APART, "cat", "/fb/f", rc=1).says(REFUSED)
    # Something that was there before it goes on.
    t.exec("p", "bash", "-c", "exec 5< /fb/f; " + " ".join(APART) + " cat /proc/version > /dev/null; cat <&5").prints("^whole$")
    # A mount shows the same to all.
    at = os.path.join(t.disk, "mnt")
    os.mkdir(at)
    if os.access("/dev/fuse", os.R_OK | os.W_OK):
        t.fb("mount", "--pool", "p", at)
        t.command(APART + ["bash", "-c", 'cd "$1"; cat f; echo there > g', "bash", at]).prints("^whole$")
        t.exec("p", "cat", "/fb/g").prints("^there$")
    t.fb("down", "--pool", "p")


# The parts of a container: its own root, namespaces, a bound directory; here with a program that no
# library reaches.
CONTAINER = r'''
set -e; cd "$1"
gcc -O1 -static -o root/program program.c
mount --bind mnt root/data
chroot root /program /data; umount root/data
'''
PROGRAM = r'''
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv) {
  char text[20] = "";
  struct stat s;
  FILE *f;
  if (chdir(argv[1]) || access("/bin/sh", F_OK) == 0) return 1;
  if (!(f = fopen("seen", "r")) || !fgets(text, 20, f) || fclose(f)) return 2;
  if (mkdir("d", 0755) || !(f = fopen("d/f", "w"))) return 3;
  for (int i = 0; i < 100000; i++) fprintf(f, "%d\n", i);
  if (fclose(f) || rename("d/f", "d/g") || link("d/g", "h") || stat("h", &s)) return 4;
  printf("pid %d read %s, wrote %ld with %ld links\n", getpid(), text, (long)s.st_size, (long)s.st_nlink);
  return 0;
}
'''


@case(60)
def static_program_in_a_container(t):
    need_namespaces()
    if not shutil.which("gcc") or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Skipped("it needs gcc and /dev/fuse")
    for d in ("mnt", "root", "root/data"):
        os.mkdir(os.path.join(t.disk, d))
    with open(os.path.join(t.disk, "program.c"), "w") as f:
        f.write(PROGRAM)
    t.up("p")
    t.bash("p", "printf outside > /fb/seen")
    t.fb("mount", "--pool", "p", os.path.join(t.disk, "mnt"))
    t.command(APART + ["bash", "-c", CONTAINER, "bash", t.disk], timeout=40).prints(
        r"^pid \d+ read outside, wrote 588890 with 2 links$")
    t.bash("p", "cmp <(seq 0 99999) /fb/d/g && cmp /fb/d/g /fb/h").quiet()
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")


@case(60)
def pool_of_a_container_that_is_gone(t):
    need_namespaces()
    t.command(APART + ["bash", "-c", '"$1" up --pool p --media memory:64M && "$1" exec --pool p -- bash -c "echo kept > /fb/f"',
                       "bash", t.forebay])
    # Its keeper has ended with it.
    wait_until(lambda: t.state("p") == "stale", 10, "the pool is still taken for one that runs")
    t.exec("p", "cat", "/fb/f", rc=None).says("another PID namespace")
    t.fb("up", "--reopen", "--pool", "p")
    t.exec("p", "cat", "/fb/f").prints("^kept$")
    t.fb("fsck", "--pool", "p")
    t.fb("down", "--pool", "p")
