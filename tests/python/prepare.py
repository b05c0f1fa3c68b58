#!/usr/bin/env python3
"""Downloads what run.py needs: its virtual environments, without the wheel. For use while the wheel is being built.

And the S3 server of tests/pools (cases/buckets.py), and mkdocs for the site (packaging/site), each in an environment of
its own."""
import os
import sys

sys.dont_write_bytecode = True

import run  # noqa: E402 (without writing bytecode)

# The server alone: not what moto simulates besides S3.
S3 = ["moto[s3]>=5.1", "flask", "flask-cors"]

if __name__ == "__main__":
    run.environment(sys.executable, S3, "-s3")
    run.environment(sys.executable, ["-r", os.path.join(run.ROOT, "packaging", "site", "requirements.txt")], "-site")
    run.environment(sys.executable, run.NEEDS + run.LIBRARIES + run.CHECKERS)
    other = run.newer()
    if other is not None:
        run.environment(other, run.NEEDS)
