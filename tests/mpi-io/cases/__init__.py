"""The cases; importing them registers them."""
from . import bt, features, hdf5, openfoam, suites  # noqa: F401
