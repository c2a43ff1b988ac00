"""In which order a forwarder sends what was there when its link came up, and what of the link is for what comes."""

from __future__ import annotations

from typing import Final, NamedTuple

PATTERN: Final = r"^(oldest|newest|interleave:(0\.\d*[1-9]\d*|1|1\.0+))$"


class Backfill(NamedTuple):
    """`parse` has how it is written."""

    newest: bool = False
    """From the newest to the oldest, `limits.BACKLOG_CHUNK_POSITIONS` at a time, each of them in order."""
    live_share: float = 1.0
    """Of the link, where both lanes have more than it carries; 1: what comes always goes first."""

    @classmethod
    def parse(cls, text: str) -> Backfill:
        """``oldest``, ``newest`` or ``interleave:<live share>``. Raises ValueError."""
        order, _, share = text.partition(":")
        return cls(newest=order == "newest", live_share=float(share) if share else 1.0)
