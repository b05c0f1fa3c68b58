"""Campaigns: storage of a requested size for a requested time.

    rule bwa_map:
        resources:
            campaign="100TB,10000files,scratch,2d"

Snakemake passes the text on like any other resource. `Campaign.parse` reads it, `of_rules` collects
the requests of a workflow's rules, and `Campaign.request` hands one to the command
`forebay campaign`.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import re
from collections.abc import Iterable
from typing import Any

from ._command import call

__all__ = ["Campaign", "of_rules"]

_DECIMAL = {unit: 1000**i for i, unit in enumerate(["B", "KB", "MB", "GB", "TB", "PB"])}
_BINARY = {unit: 1024**i for i, unit in enumerate(["B", "KIB", "MIB", "GIB", "TIB", "PIB"])}
_BYTES = {**_DECIMAL, **_BINARY}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

# The kinds of parts, in the order in which a part is tried for them.
_PARTS = [
    ("size", re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?i?B)", re.IGNORECASE)),
    ("files", re.compile(r"(\d+)\s*files?", re.IGNORECASE)),
    ("lifetime", re.compile(r"(\d+)\s*([smhdw])")),
    ("storage", re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)")),
]
_NEEDED = ("size", "storage", "lifetime")
_EXAMPLE = "100TB,10000files,scratch,2d"


@dataclasses.dataclass(frozen=True)
class Campaign:
    """A request for storage.

    `size` is in bytes, `files` a number of files (None: no limit is requested), `storage` the name
    of a kind of storage (`scratch`), `lifetime` the time for which it is kept.
    """

    size: int
    storage: str
    lifetime: datetime.timedelta
    files: int | None = None

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise ValueError("campaign: a size of %d bytes; it must be above 0" % self.size)
        if self.files is not None and self.files <= 0:
            raise ValueError("campaign: %d files; it must be above 0" % self.files)
        if self.lifetime < datetime.timedelta(seconds=1) or self.lifetime.microseconds:
            raise ValueError("campaign: a lifetime of %s; whole seconds, at least one" % self.lifetime)

    @classmethod
    def parse(cls, text: str) -> Campaign:
        """Parses parts with commas between them, in any order: `100TB,10000files,scratch,2d`.

        - A size: `B`, `kB`, `MB`, `GB`, `TB`, `PB` are powers of 1000, `KiB` to `PiB` of 1024.
        - The number of files: `10000files`. It may be left out.
        - The storage: a name.
        - The lifetime: a whole number of `s`, `m` (minutes), `h`, `d`, `w`.

        Raises ValueError that names the part which can't be read, is given twice, or is missing;
        TypeError for anything but a text.
        """
        if not isinstance(text, str):
            raise TypeError("campaign: a text like %r is needed, not %s" % (_EXAMPLE, type(text).__name__))
        found: dict[str, Any] = {}
        for part in map(str.strip, text.split(",")):
            kind, value = _part(part, text)
            if kind in found:
                raise ValueError("campaign %r: %r is a second %s" % (text, part, kind))
            found[kind] = value
        missing = [kind for kind in _NEEDED if kind not in found]
        if missing:
            raise ValueError("campaign %r: no %s (as in %r)" % (text, " and no ".join(missing), _EXAMPLE))
        return cls(**found)

    def __str__(self) -> str:
        """Returns a text that `parse` reads, with sizes and times in the largest unit that is exact."""
        size = _largest(self.size, {unit: n for unit, n in _DECIMAL.items()})
        files = [] if self.files is None else ["%dfiles" % self.files]
        lifetime = _largest(int(self.lifetime.total_seconds()), _SECONDS)
        return ",".join([size, *files, self.storage, lifetime])

    def request(self, name: str, if_absent: bool = False) -> str:
        """Requests the campaign under a name (`forebay campaign create NAME TEXT`). Returns the
        path of its data.

        With `if_absent`, an existing campaign of this name is used as it is.

        Raises OSError (EIO) with the command's message if the storage doesn't exist, or a campaign
        of this name does. Blocks until the command ends, at most two minutes."""
        more = ["--if-absent"] if if_absent else []
        return call("campaign", "create", *more, name, str(self)).strip()


def _part(part: str, text: str) -> tuple[str, Any]:
    for kind, pattern in _PARTS:
        match = pattern.fullmatch(part)
        if not match:
            continue
        if kind == "size":
            # Exact: whole numbers of bytes are computed without floating point.
            whole, _, rest = match[1].partition(".")
            unit = _BYTES[match[2].upper()]
            return kind, int(whole) * unit + (int(rest) * unit // 10 ** len(rest) if rest else 0)
        if kind == "files":
            return kind, int(match[1])
        if kind == "lifetime":
            try:
                return kind, datetime.timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
            except OverflowError:
                raise ValueError("campaign %r: %r is too long" % (text, part)) from None
        return kind, match[1]
    raise ValueError(
        "campaign %r: %r is no size (100TB), no number of files (10000files), no storage (scratch) and no "
        "lifetime (2d)" % (text, part))


def _largest(value: int, units: dict[str, int]) -> str:
    unit = max((unit for unit, n in units.items() if value % n == 0), key=lambda unit: units[unit])
    return "%d%s" % (value // units[unit], unit)


def _constant(raw: Any) -> str | None:
    """Returns the value of a command line's expression, if it is a quoted text."""
    try:
        value = ast.literal_eval(raw)
    except (ValueError, SyntaxError, TypeError):
        return None
    return value if isinstance(value, str) else None


def of_rules(rules: Iterable[Any]) -> dict[Campaign, list[str]]:
    """Returns the campaigns that the rules of a Snakemake workflow request, each with the names of
    its rules.

    `rules` is `workflow.rules` in a Snakefile, with default resources. A resource that is a
    function is left out: its value is known only for a job.

    Raises ValueError that names the rule.
    """
    found: dict[Campaign, list[str]] = {}
    for rule in rules:
        resource = rule.resources.get("campaign")
        try:
            text = getattr(resource, "value", resource)
        except ValueError:
            # The resource is a function, which Snakemake evaluates for each job, or a default from
            # the command line.
            text = _constant(getattr(resource, "raw", None))
        if not isinstance(text, str):
            continue
        try:
            campaign = Campaign.parse(text)
        except ValueError as e:
            raise ValueError("rule %s: %s" % (rule.name, e)) from None
        found.setdefault(campaign, []).append(rule.name)
    return found
