"""Controls: what a program declares about its I/O (docs/explanation/semantics.md, "Controls")."""

from __future__ import annotations

import dataclasses

from . import _native


@dataclasses.dataclass(frozen=True)
class Controls:
    """Seven controls; None is the strict default.

    Made with keywords, or from a text: `Controls.parse("mutability=append,temporality=once")`.
    Functions that take controls accept a `Controls` or such a text.

    Raises ValueError that names the unknown control or value.
    """

    consistency: str | None = None
    parallelism: str | None = None
    mutability: str | None = None
    temporality: str | None = None
    persistence: str | None = None
    integrity: str | None = None
    failure: str | None = None
    on_violation: str | None = None

    def __post_init__(self) -> None:
        _native.check_controls(str(self))

    @classmethod
    def parse(cls, text: str) -> Controls:
        """Parses `name=value` parts with commas between them."""
        canonical = _native.check_controls(text)
        return cls(**dict(part.split("=", 1) for part in canonical.split(",") if part))

    def __str__(self) -> str:
        said = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return ",".join("%s=%s" % (name, value) for name, value in said if value is not None)


def text_of(controls: Controls | str | None) -> str | None:
    """Returns controls as the native module takes them: a text, or None."""
    if controls is None or isinstance(controls, str):
        return controls
    if isinstance(controls, Controls):
        return str(controls)
    raise TypeError("controls: a forebay.Controls or a str is needed, not %s" % type(controls).__name__)
