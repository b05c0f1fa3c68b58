"""The cases; importing them registers them."""
from . import arrays, bt, features, hdf5, hdf5_driver, mesh, openfoam, suites  # noqa: F401 (importing registers them)
