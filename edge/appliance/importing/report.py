"""Report of an import: what became of each setting."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Final, NamedTuple


class ImportOutcome(enum.Enum):
    """Result for one setting, those that need a person first."""

    LEFT_OUT = "left out"
    """It has no counterpart here, and clients may notice that."""
    CHANGED = "changed"
    """Its counterpart does something else in part."""
    IMPORTED = "imported"
    NOT_NEEDED = "not needed"
    """A gateway does this by itself, or it concerns the process of the other broker."""


ORDER: Final = tuple(ImportOutcome)


class ImportNote(NamedTuple):
    """Result for one setting."""

    place: str
    """``file:line``."""
    setting: str
    outcome: ImportOutcome
    words: str = ""
    """Its counterpart, or the reason; ends without a full stop."""

    @property
    def row(self) -> dict[str, Any]:
        """Row of a table."""
        return {"outcome": self.outcome.value, "place": self.place, "setting": self.setting, "words": self.words}


class ImportedConfiguration(NamedTuple):
    """Resources as documents, with the result for each setting."""

    documents: list[dict[str, Any]]
    notes: list[ImportNote]

    def count(self, outcome: ImportOutcome) -> int:
        """Return the number of settings with this result."""
        return sum(each.outcome is outcome for each in self.notes)


def in_order(notes: Iterable[ImportNote]) -> list[ImportNote]:
    """Return notes, those that need a person first."""
    return sorted(notes, key=lambda each: ORDER.index(each.outcome))
