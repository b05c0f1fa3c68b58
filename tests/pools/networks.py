#!/usr/bin/env python3
"""Runs cases with their origins on a network file system, by hand: needs root, /dev/fuse, and packages of Debian.

    python3 tests/pools/networks.py nfs  [NAME...]     nfs-ganesha nfs-ganesha-vfs rpcbind libnfs-dev libfuse3-dev
    python3 tests/pools/networks.py sshfs [NAME...]    sshfs openssh-server openssh-client

NFS is served by nfs-ganesha, in user space, and mounted by nfsmount.c, since a kernel may have neither server nor
client. The servers run in a network namespace, where nobody else reaches them. NAME: cases of tests/pools, without
them those of origins that these file systems can keep; `programs`: tests/programs with --origin;
`conformance`: tests/conformance.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

CASES = ["origin-changed-by-others", "origin-larger-than-the-pool", "origin-with-modes-by-path", "origin-of-a-run",
         "origin-of-a-flow-solver", "origin-of-a-pool-whose-processes-are-killed",
         "origin-makes-room-for-writers", "origin-never-shows-half-a-file-under-its-last-name", "origin-written-through",
         "origin-gets-a-change-right-after-a-file-came-in"]

GANESHA = """NFS_CORE_PARAM { Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; }
NFSV4 { Graceless = true; }
EXPORT { Export_Id = 1; Path = %s; Pseudo = /x; Protocols = 3; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
    FSAL { Name = VFS; } }
"""
SSHD = """Port 2222
ListenAddress 127.0.0.1
HostKey %(base)s/host
PidFile %(base)s/pid
AuthorizedKeysFile %(base)s/user.pub
PasswordAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
"""


def nfs(base, source, at):
    """The lines of a shell that serves `source` and shows it at `at`."""
    with open(base + "/ganesha.conf", "w") as f:
        f.write(GANESHA % source)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3", "libnfs"], check=True, stdout=subprocess.PIPE, text=True)
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-o", base + "/nfsmount",
                    HERE + "/nfsmount.c", *flags.stdout.split()], check=True)
    os.makedirs("/var/run/ganesha", exist_ok=True)
    os.makedirs("/var/lib/nfs/ganesha", exist_ok=True)
    return """rpcbind -f & sleep 0.5
ganesha.nfsd -F -L {0}/log -f {0}/ganesha.conf -p {0}/pid &
for i in $(seq 40); do
    {0}/nfsmount "nfs://127.0.0.1{1}?version=3" {2} && exit
    sleep 0.25
done""".format(base, source, at)


def sshfs(base, source, at):
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "%s/%s" % (base, name)], check=True)
    with open(base + "/sshd.conf", "w") as f:
        f.write(SSHD % {"base": base})
    os.makedirs("/run/sshd", exist_ok=True)
    return """/usr/sbin/sshd -D -f {0}/sshd.conf & sleep 0.5
exec sshfs -f -p 2222 -o IdentityFile={0}/user,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,dir_cache=no \
    127.0.0.1:{1} {2}""".format(base, source, at)


def main():
    kinds = {"nfs": nfs, "sshfs": sshfs}
    if len(sys.argv) < 2 or sys.argv[1] not in kinds:
        sys.stderr.write(__doc__)
        return 2
    base = tempfile.mkdtemp(prefix="forebay-network-", dir="/var/tmp")
    source, at = base + "/source", base + "/at"
    os.mkdir(source)
    os.mkdir(at)
    script = "ip link set lo up\n" + kinds[sys.argv[1]](base, source, at)
    server = subprocess.Popen(["unshare", "-n", "bash", "-c", script], start_new_session=True, stdin=subprocess.DEVNULL,
                              stdout=open(base + "/out", "w"), stderr=subprocess.STDOUT)
    try:
        for _ in range(200):
            if os.path.ismount(at):
                break
            if server.poll() is not None:
                break
            time.sleep(0.1)
        if not os.path.ismount(at):
            sys.stderr.write("%s can't be mounted:\n%s\n" % (sys.argv[1], open(base + "/out").read()[-2000:]))
            return 1
        names = sys.argv[2:] or CASES
        if names[0] in ("programs", "conformance"):
            run = "%s/tests/%s/run.py" % (ROOT, names[0])
            return subprocess.run([sys.executable, run, "--origin", "--origin-in", at, *names[1:]]).returncode
        only = [word for name in names for word in ("--only", name)]
        return subprocess.run([sys.executable, HERE + "/run.py", "-j", "1", "--slow", "3", "--disk", at, *only]).returncode
    finally:
        subprocess.run(["umount", "-l", at], stderr=subprocess.DEVNULL)
        try:
            # The servers end after the shell that has started them, and write a last word.
            for number in [signal.SIGTERM] * 50 + [signal.SIGKILL] * 50:
                os.killpg(server.pid, number)
                server.poll()
                time.sleep(0.1)
        except ProcessLookupError:
            pass
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
