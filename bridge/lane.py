"""Lanes of a forwarder: live messages and backlog, each with its own order."""

from __future__ import annotations

import enum


class BatchLane(enum.IntEnum):
    """Flow of a forwarder that a batch belongs to."""

    LIVE = 0
    BACKLOG = 1
