"""The objects that this process has open, so that `forebay.run` and `Pool.stop` can close those of a pool."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

# Pools, sessions, files and mapped memory that were opened and not closed.
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def note(opened: T) -> T:
    """Records an open object, which has a method `close`."""
    _open.add(opened)
    return opened


def close(these: Iterable[Any]) -> None:
    """Closes all objects, then raises the first error."""
    error = None
    for one in list(these):
        end = getattr(one, "_end", None) or one.close
        try:
            end()
        except (OSError, BufferError) as e:
            error = error or e
    if error is not None:
        raise error


def close_pool(name: str) -> None:
    """Closes all that this process has open in a pool. Memory of existing views (arrays) stays
    mapped until they are freed; the pool can be removed before that."""
    inside = []
    for one in list(_open):
        with contextlib.suppress(OSError):
            if one._pool_name() == name:
                inside.append(one)
    with contextlib.suppress(BufferError):
        close(inside)
