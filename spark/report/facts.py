"""Facts about a run that its observer recorded: expected and seen counts, and the times of injected faults.

The file is JSON: `{"title": ..., "verdict": "ok" | "failed", "facts": [{"name", "value", "expected", "ok"}],
"notes": [...], "events": [{"at": ISO 8601, "label": ..., "until": ISO 8601 or null}]}`. All keys are optional.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec


class BadFacts(ValueError):
    """The file is missing or has another form than described; the message names file and place."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A count with its expected value."""

    name: str
    value: str | int | float | None = None
    expected: str | int | float | None = None
    ok: bool | None = None


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A moment, or a period if `until` is given, marked in each chart over time. Times carry their zone."""

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
    """Content of the file."""

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
