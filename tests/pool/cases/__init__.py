"""The cases; importing them registers them."""
from . import (  # noqa: F401
    consistency, kills, limits, locks, mpi, namespaces, slurm, spread, stages, staging)
