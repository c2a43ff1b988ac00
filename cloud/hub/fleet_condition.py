"""Conditions of a gateway, by what may be lost first. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

BEHIND_S: Final = 300.0
"""Age of the oldest waiting message of a connected gateway from which it is behind."""


class FleetCondition(StrEnum):
    """Condition of a gateway, the most dangerous first."""

    REFUSING = "refusing"
    OFFLINE = "offline"
    BEHIND = "behind"
    NEVER = "never"
    """Enrolled, and never connected."""
    WELL = "well"
