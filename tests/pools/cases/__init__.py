"""The cases, by what they are about. Each module notes its own in harness.CASES."""
from . import (several, killed, killed_at_random, staging, damaged,  # noqa: F401 (importing registers them)
               full, usage, programs, idle, nodes, mounts, view, containers, watches,
               controls, weaker, births)
