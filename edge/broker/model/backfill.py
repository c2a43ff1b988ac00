"""In which order a forwarder sends what was there when its link came up."""

from __future__ import annotations

import enum


class Backfill(enum.Enum):
    """In which order a backlog is delivered."""

    OLDEST = "oldest"
    NEWEST = "newest"
    """From the newest to the oldest, `limits.BACKLOG_CHUNK_POSITIONS` at a time, each of them in order."""
