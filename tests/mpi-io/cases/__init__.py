"""The cases; importing them registers them."""
from . import bt, features, hdf5, suites  # noqa: F401
