"""What somebody who watched a run knows of it: expected against seen, and when things were broken on purpose.

The file is JSON: `{"title": ..., "verdict": "ok" | "failed", "facts": [{"name", "value", "expected", "ok"}],
"notes": [...], "events": [{"at": ISO 8601, "label": ..., "until": ISO 8601 or null}]}`. Everything may be left out.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec


class BadFacts(ValueError):
    """The file is not there or not as described; the message names file and place."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that was counted, with what it should have been."""

    name: str
    value: str | int | float | None = None
    expected: str | int | float | None = None
    ok: bool | None = None


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A moment, or a stretch when `until` is given, drawn into every plot over time. Times carry their zone."""

    at: datetime
    label: str
    until: datetime | None = None

    def __post_init__(self) -> None:
        for time in (self.at, self.until):
            if time is not None and time.tzinfo is None:
                raise ValueError(f"time without a zone: {time.isoformat()}")
        if self.until is not None and self.until < self.at:
            raise ValueError(f"{self.label!r} ends before it begins")


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    title: str | None = None
    verdict: Literal["ok", "failed"] | None = None
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


def load(path: Path) -> Facts:
    """Read a file of facts. Raises `BadFacts`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Facts)
    except OSError as error:
        raise BadFacts(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFacts(f"{path}: {error}") from None
