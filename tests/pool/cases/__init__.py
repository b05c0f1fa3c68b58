"""The cases; importing them registers them."""
from . import consistency, kills, locks, mpi, namespaces, spread, stages  # noqa: F401
