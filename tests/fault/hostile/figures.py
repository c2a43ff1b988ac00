"""What an attack did to others and to memory."""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """Of one attack. The neighbour is a client that has nothing to do with it (`tests.fault.hostile.neighbour`)."""

    attack: str
    idle_s: float
    """p99 of the neighbour's round trips before it."""
    attacked_s: float
    """The same meanwhile."""
    before_mib: float
    most_mib: float
    given_back_s: float
    """After the attacker's end."""
