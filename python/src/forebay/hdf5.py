"""HDF5 files of a pool: the virtual file driver `forebay`, for h5py, netCDF4, tables.

    with forebay.hdf5.open("/case/mesh.h5", "w", pool="default", controls="mutability=immutable") as f:
        f["x"] = values

`open` returns an `h5py.File`. `enable` makes every HDF5 library that is loaded afterwards use the
driver for all its files. Files outside of the pool behave as without the driver.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from . import _command
from .controls import Controls, text_of

if TYPE_CHECKING:
    from .pool import Pool

PLUGINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hdf5_plugin")

_MODES = ("r", "r+", "w", "w-", "x", "a")


def plugin_directory() -> str:
    """Returns the directory of `libforebay_vfd.so`, for `$HDF5_PLUGIN_PATH`."""
    if os.path.exists(os.path.join(PLUGINS, "libforebay_vfd.so")):
        return PLUGINS
    # In a checkout, the library is beside the command.
    beside = os.path.dirname(os.path.realpath(_command.program()))
    if os.path.exists(os.path.join(beside, "libforebay_vfd.so")):
        return beside
    raise FileNotFoundError("libforebay_vfd.so is neither in %s nor in %s" % (PLUGINS, beside))


def _netcdf4_filters() -> list[str]:
    """Returns the directory that importing netCDF4 would put into `$HDF5_PLUGIN_PATH` if that weren't set."""
    found = importlib.util.find_spec("netCDF4")
    places = found.submodule_search_locations if found else None
    directories = [os.path.join(place, "plugins") for place in places or []]
    return [d for d in directories if os.path.exists(os.path.join(d, "lib__nczhdf5filters.so"))]


def configuration(pool: Pool | str | None = None, controls: Controls | str | None = None) -> str:
    """Returns the driver's configuration string: `pool=NAME;controls=...`."""
    parts = []
    if pool:
        parts.append("pool=%s" % getattr(pool, "name", pool))
    if controls:
        parts.append("controls=%s" % text_of(controls))
    return ";".join(parts)


def enable(pool: Pool | str | None = None, controls: Controls | str | None = None) -> None:
    """Sets the environment so that HDF5 libraries which are loaded afterwards use the driver.

    `HDF5_PLUGIN_PATH` keeps its directories. If it isn't set, it also gets the directory of
    netCDF4's filters.
    """
    path = os.environ.get("HDF5_PLUGIN_PATH")
    known = _netcdf4_filters() if path is None else [part for part in path.split(":") if part]
    if plugin_directory() not in known:
        os.environ["HDF5_PLUGIN_PATH"] = ":".join([plugin_directory(), *known])
    os.environ["HDF5_DRIVER"] = "forebay"
    os.environ["HDF5_DRIVER_CONFIG"] = configuration(pool, controls)


def open(
    path: str | os.PathLike[str], mode: str = "r", *, pool: Pool | str | None = None,
    controls: Controls | str | None = None, libver: str | tuple[str, str] | None = None,
) -> Any:
    """Opens an `h5py.File` in a pool.

    `path` is a path inside the pool, a URL `forebay://POOL/path`, or a path below the pool's
    prefix. `controls` are declared for a new file. `libver` is that of `h5py.File`.

    Raises OSError with HDF5's message, ValueError for invalid modes and controls.
    """
    import h5py

    if mode not in _MODES:
        raise ValueError("mode %r: one of %s" % (mode, ", ".join(_MODES)))
    name = os.fspath(path)
    if not name.startswith("forebay://"):
        name = "forebay://%s/%s" % (getattr(pool, "name", pool) or "", name.lstrip("/"))
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    low, high = _versions(h5py, libver)
    access.set_libver_bounds(low, high)
    _set_driver(h5py, access, configuration(pool, controls))
    file = _open(h5py.h5f, os.fsencode(name), mode, access)
    return h5py.File(file)


def _open(h5f: Any, name: bytes, mode: str, access: Any) -> Any:
    if mode == "r":
        return h5f.open(name, h5f.ACC_RDONLY, fapl=access)
    if mode == "r+":
        return h5f.open(name, h5f.ACC_RDWR, fapl=access)
    if mode == "w":
        return h5f.create(name, h5f.ACC_TRUNC, fapl=access)
    if mode == "a":
        try:
            return h5f.open(name, h5f.ACC_RDWR, fapl=access)
        except FileNotFoundError:
            return h5f.create(name, h5f.ACC_EXCL, fapl=access)
    return h5f.create(name, h5f.ACC_EXCL, fapl=access)


def _versions(h5py: Any, libver: str | tuple[str, str] | None) -> tuple[Any, Any]:
    known = {"earliest": h5py.h5f.LIBVER_EARLIEST, "latest": h5py.h5f.LIBVER_LATEST}
    low, high = libver if isinstance(libver, tuple) else (libver or "earliest", "latest")
    for word in (low, high):
        if word not in known:
            raise ValueError("libver %r: 'earliest' or 'latest', or two of them" % (word,))
    return known[low], known[high]


def _set_driver(h5py: Any, access: Any, config: str) -> None:
    """Calls H5Pset_driver_by_name, which h5py lacks, in the HDF5 library to which h5py is linked."""
    directory = os.fsencode(plugin_directory())
    paths = [h5py.h5pl.get(i) for i in range(h5py.h5pl.size())]
    if directory not in paths:
        h5py.h5pl.prepend(directory)
    library = ctypes.CDLL(h5py.h5p.__file__)
    set_driver = library.H5Pset_driver_by_name
    set_driver.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p]
    set_driver.restype = ctypes.c_int
    if set_driver(access.id, b"forebay", config.encode()) < 0:
        raise OSError("HDF5 can't load the driver 'forebay' of %s" % os.fsdecode(directory))
