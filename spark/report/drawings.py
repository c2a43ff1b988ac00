"""Sparklines: small area charts in a cell, as SVG. `assets/drawings.js` draws the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from markupsafe import Markup

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_TOP: Final = len(_DIGITS) - 1


def levels(values: Sequence[float]) -> str:
    """Return one digit in base 36 per value, by its share of the largest; a value above zero has at least 1."""
    largest = max(values, default=0)
    if largest <= 0:
        return _DIGITS[0] * len(values)
    return "".join(_DIGITS[max(1, round(value / largest * _TOP)) if value > 0 else 0] for value in values)


def spark(digits: str | None) -> Markup:
    """Draw `levels`."""
    if not digits:
        return Markup("")
    steps = "".join(f"V{37 - int(digit, 36)}h{len(list(same))}" for digit, same in groupby(digits))
    box = f'viewBox="0 0 {len(digits)} 37" preserveAspectRatio="none"'
    return Markup(f'<svg {box} class="spark" aria-hidden="true"><path d="M0 37{steps}V37z"></path></svg>')  # noqa: S704 - digits
