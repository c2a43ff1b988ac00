"""Effect of an attack on other clients and on memory."""

from __future__ import annotations

from typing import NamedTuple

from tests.fault.hostile.neighbours import Felt


class Figures(NamedTuple):
    """Figures of one attack."""

    attack: str
    felt: Felt
    """Round trips of unrelated clients."""
    before_mib: float
    most_mib: float
    returned_s: float
    """Time after the attacker's end until the memory was returned."""
