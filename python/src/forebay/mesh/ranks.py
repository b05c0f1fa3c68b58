"""Collective steps of the ranks of a job: each succeeds on all ranks or raises on all of them.

`Ranks(None)` is a single process without MPI. All ranks must call the same steps in the same order.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .model import MeshError

T = TypeVar("T")
# An exception in the form that ranks send: the name of its class, errno, text, path.
Told = tuple[str, int | None, str, Any]


class Ranks:
    """The ranks of a communicator of mpi4py, or a single process."""

    def __init__(self, comm: Any) -> None:
        if comm is not None and not all(hasattr(comm, name) for name in ("Get_rank", "allgather", "alltoall", "bcast")):
            raise TypeError("comm: a communicator of mpi4py or None is needed, not %s" % type(comm).__name__)
        self.comm = comm
        self.rank: int = comm.Get_rank() if comm is not None else 0
        self.size: int = comm.Get_size() if comm is not None else 1

    def all(self, call: Callable[[], T]) -> list[T]:
        """Runs a call on each rank. Returns the results of all; an exception on one rank is raised on all."""
        if self.comm is None:
            return [call()]
        mine: T | None = None
        error: Exception | None = None
        try:
            mine = call()
        except Exception as e:
            error = e
        found: list[tuple[Any, Told | None]] = self.comm.allgather((mine, None if error is None else _told(error)))
        for rank, (_, told) in enumerate(found):
            if told is not None:
                raise error if error is not None and rank == self.rank else _again(rank, *told)
        return [result for result, _ in found]

    def first(self, call: Callable[[], T]) -> T:
        """Runs a call on the first rank. Its result is returned, or its exception raised, on all."""
        if self.comm is None:
            return call()
        result: Any = self.all(lambda: call() if self.rank == 0 else None)[0]
        return cast(T, result)

    def exchange(self, parts: list[T]) -> list[T]:
        """Sends part `i` to rank `i`. Returns the parts that the ranks have sent to this one."""
        return parts if self.comm is None else self.comm.alltoall(parts)


def _told(error: Exception) -> Told:
    """Converts an exception to a form that can be sent."""
    if isinstance(error, OSError) and error.errno:
        return type(error).__name__, error.errno, error.strerror or "", error.filename
    return type(error).__name__, None, str(error), None


def _again(rank: int, name: str, errno: int | None, text: str, path: Any) -> Exception:
    text = "rank %d: %s" % (rank, text)
    if name == "MeshError":
        return MeshError(text)
    kind = getattr(builtins, name, RuntimeError)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    if issubclass(kind, OSError):
        return OSError(errno, text, *([path] if path else [])) if errno else OSError(text)
    try:
        return kind(text)
    except TypeError:
        return RuntimeError("%s: %s" % (name, text))
