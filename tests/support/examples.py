"""Number of examples of property tests that also run in a slow interpreter."""

from __future__ import annotations

import os
from typing import Final

SHARE: Final = int(os.environ.get("WAYPOST_EXAMPLES_SHARE", "1"))
"""Divisor of the number of examples: under sanitizers each takes ten times as long (`tests.sanitizers`)."""
EXAMPLES_MIN: Final = 10


def examples(count: int) -> int:
    """Return how many of `count` examples to run."""
    return max(EXAMPLES_MIN, count // SHARE)
