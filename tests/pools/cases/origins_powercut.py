"""Losses of power of a pool with an origin, on file systems of loop devices that are shut down."""
import os
import shutil
import subprocess

from harness import Skipped, case
from powercut_origin import Rounds


@case(90)
def origin_of_a_pool_that_loses_its_power(t):
    """The short form of tests/pools/powercut_origin.py."""
    if os.getuid() != 0 or not shutil.which("mkfs.ext4") or not os.path.exists("/dev/loop-control"):
        raise Skipped("only root can have file systems on loop devices, with mkfs.ext4")
    if subprocess.run(["losetup", "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise Skipped("there is no loop device")
    seed = os.environ.get("FOREBAY_SEED")
    rounds = Rounds(t.disk, t.forebay, seconds=(0.3, 1.0), seed=int(seed) if seed else None)
    print("seed %d" % rounds.seed)
    try:
        for number in range(2):
            t.ok(rounds.round(number), "round %d" % number)
    finally:
        rounds.close()
