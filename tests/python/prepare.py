#!/usr/bin/env python3
"""Downloads what run.py needs: its virtual environments, without the wheel. For use while the wheel is being built."""
import sys

sys.dont_write_bytecode = True

import run  # noqa: E402 (without writing bytecode)

if __name__ == "__main__":
    run.environment(sys.executable, run.NEEDS + run.LIBRARIES + run.CHECKERS)
    other = run.newer()
    if other is not None:
        run.environment(other, run.NEEDS)
