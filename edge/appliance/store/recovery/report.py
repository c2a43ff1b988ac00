"""What a repair did, or would do, in figures and in words."""

from __future__ import annotations

import msgspec


class RepairReport(msgspec.Struct):
    """What a repair does, or would do."""

    segments: int = 0
    messages: int = 0
    bytes: int = 0
    """Kept."""
    lost_messages: int = 0
    """Positions that are missing and that some consumer group had not acknowledged."""
    gaps: list[tuple[int, int, int]] = []
    """(log, first, last) of the positions that are missing."""
    epoch: str = ""
    new_epoch: bool = False
    notes: list[str] = []
    """What else could not be kept, and what was done about it."""
    damaged_copy: str = ""
    """Where the damaged file is kept; empty as long as nothing was done."""

    def note(self, text: str, *, unknown: bool = False) -> None:
        """`unknown`: the sequences given last are not known any more."""
        self.notes.append(text)
        self.new_epoch = self.new_epoch or unknown
