"""The cases; importing them registers them."""
from . import consistency, kills, locks, mpi, namespaces, spread  # noqa: F401
