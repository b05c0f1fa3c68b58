"""The cases; importing them registers them."""
from . import (  # noqa: F401 (importing registers them)
    consistency, copies, kills, limits, locks, mappings, mpi, namespaces, requests, slurm, spread, stages, staging)
