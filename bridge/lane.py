"""The two flows of a forwarder, each in an order of its own."""

from __future__ import annotations

import enum


class BatchLane(enum.IntEnum):
    """Which of a forwarder's two flows a batch belongs to."""

    LIVE = 0
    BACKLOG = 1
