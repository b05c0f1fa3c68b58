"""Numbers of points in the file: which rank writes which point, and its row, to which cells refer.

A rank's own points get consecutive rows. If the program's `point_ids` are these rows already (as
after `read`), nothing is sent. Otherwise each id has a rendezvous rank, `id mod size`. That rank
collects which ranks have the point, chooses the lowest as its owner, and answers with the point's
row.
"""

from __future__ import annotations

from typing import Any

import numpy

from .model import NODE, Array, Mesh, MeshError
from .ranks import Ranks


class Numbers:
    """The rows of a rank's points in the file. `counts` has the number of points that each rank
    owns, `table` the rows of all points of this rank.

    Without `chosen` the owned points are the first ones: then only ghosts need the table.
    """

    def __init__(self, counts: list[int], rank: int, table: Array | None = None, chosen: Array | None = None) -> None:
        self.counts, self.owned, self._first = counts, counts[rank], sum(counts[:rank])
        self._table, self._chosen = table, chosen

    def own(self, rows: Array) -> Array:
        """Returns those of `rows` that are points which this rank writes."""
        return rows[: self.owned] if self._chosen is None else numpy.ascontiguousarray(rows[self._chosen])

    def of_file(self, nodes: Array, top: int, room: Array) -> Array:
        """Converts indices of this rank's points, of which `top` is the highest, to numbers in the
        file.

        The result is in `room`, or is `nodes` itself.
        """
        if self._chosen is not None:
            assert self._table is not None
            return numpy.take(self._table, nodes, out=room, mode="clip")
        ghosts = top >= self.owned
        if self._first == 0 and not ghosts and nodes.dtype == NODE and nodes.flags.c_contiguous:
            return nodes
        numpy.add(nodes, self._first, out=room, casting="unsafe")
        if ghosts:
            assert self._table is not None
            where = nodes >= self.owned
            room[where] = self._table[nodes[where]]
        return room


def numbered(ranks: Ranks, part: Mesh, summaries: list[dict[str, Any]]) -> Numbers:
    """Returns the numbers of a part's points. All ranks call it, with the summaries of all parts."""
    ids, rank = part.point_ids, ranks.rank
    counts = [one["points"] for one in summaries]
    if not any(one["has_ids"] and one["points"] for one in summaries) or (
            ranks.size == 1 and summaries[0]["owned"] in (None, counts[0])):
        return Numbers(counts, rank)
    for other, one in enumerate(summaries):
        if one["points"] and not one["has_ids"]:
            raise MeshError("point_ids: rank %d has none, and other ranks have some; all ranks with points need them" % other)
    if ids is None:
        ids = numpy.empty(0, NODE)
    if all(one["owned"] is not None or not one["points"] for one in summaries):
        owned = [one["owned"] or 0 for one in summaries]
        first, mine, total = sum(owned[:rank]), owned[rank], sum(owned)
        straight = bool((ids[:mine] == numpy.arange(first, first + mine)).all()) and (
            len(ids) == mine or (0 <= ids[mine:].min() and ids[mine:].max() < total))
        if all(ranks.all(lambda: straight)):
            return Numbers(owned, rank, ids)
    return _by_rendezvous(ranks, ids, part.owned)


def _by_rendezvous(ranks: Ranks, ids: Array, owned: int | None) -> Numbers:
    candidates = ids if owned is None else ids[:owned]
    to = candidates % ranks.size
    places = [numpy.flatnonzero(to == rank) for rank in range(ranks.size)]
    ranks.all(lambda: _no_duplicates(ids))
    came = ranks.exchange([(candidates[at], owned is not None) for at in places])
    meeting = _Rendezvous(came)
    ranks.all(meeting.choose)
    chosen = numpy.zeros(len(candidates), dtype=bool)
    for at, won in zip(places, ranks.exchange(meeting.won), strict=True):
        chosen[at] = won
    mine = int(chosen.sum())
    counts = ranks.all(lambda: mine)
    first = sum(counts[: ranks.rank])
    rows = numpy.full(len(ids), -1, dtype=NODE)
    rows[: len(candidates)][chosen] = numpy.arange(first, first + mine)
    meeting.learn(ranks.exchange([rows[at] for at in places]))
    # Asks for the rows of ghosts.
    ghosts = numpy.flatnonzero(rows < 0)
    to = ids[ghosts] % ranks.size
    asked = [ghosts[to == rank] for rank in range(ranks.size)]
    answers = ranks.exchange([meeting.rows(one) for one in ranks.exchange([ids[at] for at in asked])])
    for at, answer in zip(asked, answers, strict=True):
        rows[at] = answer
    ranks.all(lambda: _all_owned(ids, rows))
    which = numpy.zeros(len(ids), dtype=bool)
    which[: len(candidates)] = chosen
    return Numbers(counts, ranks.rank, rows, numpy.flatnonzero(which))


def _no_duplicates(ids: Array) -> None:
    once, counts = numpy.unique(ids, return_counts=True)
    if len(once) != len(ids):
        raise MeshError("point_ids: point %d is there %d times on one rank" % (once[counts > 1][0], counts.max()))


def _all_owned(ids: Array, rows: Array) -> None:
    if len(rows) and rows.min() < 0:
        raise MeshError("point_ids: no rank owns point %d, which %d of this rank's points need"
                        % (ids[rows < 0][0], int((rows < 0).sum())))


class _Rendezvous:
    """The ids whose rendezvous rank this is: which ranks have them, and their rows in the file."""

    def __init__(self, came: list[tuple[Array, bool]]) -> None:
        self._ids = numpy.concatenate([ids for ids, _ in came])
        self._from = numpy.repeat(numpy.arange(len(came)), [len(ids) for ids, _ in came])
        self._explicit = numpy.repeat([explicit for _, explicit in came], [len(ids) for ids, _ in came])
        self._cuts = numpy.cumsum([len(ids) for ids, _ in came])[:-1]

    def choose(self) -> None:
        # A stable sort: for each id, the lowest rank comes first.
        order = numpy.argsort(self._ids, kind="stable")
        same = numpy.zeros(len(order), dtype=bool)
        same[1:] = self._ids[order][1:] == self._ids[order][:-1]
        both = same.copy()
        both[1:] &= self._explicit[order][1:] & self._explicit[order][:-1]
        if both.any():
            at = int(numpy.flatnonzero(both)[0])
            raise MeshError("point_ids: ranks %d and %d both own point %d"
                            % (self._from[order[at - 1]], self._from[order[at]], self._ids[order[at]]))
        won = numpy.ones(len(order), dtype=bool)
        won[order[same]] = False
        self._order = order[~same]
        self.won: list[Array] = numpy.split(won, self._cuts)

    def learn(self, came: list[Array]) -> None:
        self._sorted = self._ids[self._order]
        self._rows = numpy.concatenate(came)[self._order]

    def rows(self, ids: Array) -> Array:
        """Returns the rows of points in the file; -1 for a point that no rank owns."""
        if not len(self._sorted):
            return numpy.full(len(ids), -1, dtype=NODE)
        at = numpy.minimum(numpy.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        return numpy.where(self._sorted[at] == ids, self._rows[at], -1)
