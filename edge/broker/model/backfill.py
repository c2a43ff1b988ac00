"""Order in which a forwarder sends its backlog, and the share of the link for live messages."""

from __future__ import annotations

from typing import Final, NamedTuple

PATTERN: Final = r"^(oldest|newest|interleave:(0\.\d*[1-9]\d*|1|1\.0+))$"


class Backfill(NamedTuple):
    """Order of the backlog; see `parse` for the text format."""

    newest: bool = False
    """Send the newest chunk of `limits.BACKLOG_CHUNK_POSITIONS` first. Messages within a chunk stay in order."""
    live_share: float = 1.0
    """Share of a saturated link that live messages get; 1: live messages always go first."""

    @classmethod
    def parse(cls, text: str) -> Backfill:
        """Parse ``oldest``, ``newest`` or ``interleave:<live share>``. Raises ValueError."""
        order, _, share = text.partition(":")
        return cls(newest=order == "newest", live_share=float(share) if share else 1.0)
