"""Result of a benchmark: one figure, compared with a peer's or a goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Goal(NamedTuple):
    """Goal of a benchmark, and the distance from it."""

    words: str
    """Text for the table: ``>= 1 x``."""
    share: float
    """Result relative to the goal: 1 meets it exactly, 2 is twice as good."""
    met: bool


def at_least(bound: float, value: float, unit: str = "") -> Goal:
    return Goal(f">= {bound:,g}{unit}", value / bound, value >= bound)


def at_most(bound: float, value: float, unit: str = "") -> Goal:
    return Goal(f"<= {bound:,g}{unit}", bound / value if value else float("inf"), value <= bound)


class Result(NamedTuple):
    """One line of the table."""

    name: str
    about: str
    unit: str
    value: float
    """Our figure: the median of the rounds."""
    goal: Goal | None = None
    """None: reported without a comparison."""
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    """Median of the rounds' ratios of ours to the peer's."""
    resident_mib: float | None = None
    peer_resident_mib: float | None = None
    details: Mapping[str, float | list[float]] = {}
    """Figures behind the line, for the JSON only."""

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.goal.met


def figure(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
