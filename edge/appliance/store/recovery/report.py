"""Report of a repair."""

from __future__ import annotations

import msgspec


class RepairReport(msgspec.Struct):
    """Changes that a repair has made or would make."""

    segments: int = 0
    messages: int = 0
    bytes: int = 0
    """Bytes of bodies kept."""
    lost_messages: int = 0
    """Missing positions that a consumer group had not acknowledged."""
    gaps: list[tuple[int, int, int]] = []
    """Missing positions as (log, first, last)."""
    epoch: str = ""
    new_epoch: bool = False
    notes: list[str] = []
    """Further damage, and how it was handled."""
    damaged_copy: str = ""
    """Path of the damaged file; empty before the repair."""

    def note(self, text: str, *, unknown: bool = False) -> None:
        """Add a note. `unknown`: the last sequences are no longer known."""
        self.notes.append(text)
        self.new_epoch = self.new_epoch or unknown
