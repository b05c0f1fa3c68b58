"""The cases; importing them registers them."""
from . import (  # noqa: F401 (importing registers them)
    consistency, copies, full, kills, limits, locks, mappings, mpi, namespaces, slurm, spread, stages, staging)
