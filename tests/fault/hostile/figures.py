"""What an attack did to others and to memory."""

from __future__ import annotations

from typing import NamedTuple

from tests.fault.hostile.neighbours import Felt


class Figures(NamedTuple):
    """Of one attack."""

    attack: str
    felt: Felt
    """By clients that have nothing to do with it."""
    before_mib: float
    most_mib: float
    given_back_s: float
    """After the attacker's end."""
