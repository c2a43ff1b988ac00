"""Order of program versions, as a number that a database can compare. Pure.

Versions are those of PEP 440 and of Semantic Versioning, as far as both agree: three numbers, then a pre-release
(``1.5.0a2``, ``1.5.0-rc.1``) or a development version (``1.5.0.dev7``), which come before the release, or a
post-release. Further numbers, and what follows a ``+``, order nothing.
"""

from __future__ import annotations

import re
from typing import Final

UNRANKED: Final = -1
"""Rank of a text that is not a version: it is neither older nor newer than any."""
NUMBER_MAX: Final = 9_999
"""Largest of the three numbers; a larger one counts as this. With stage and its number they have 63 bits."""
STAGE_NUMBER_MAX: Final = 999_999
"""Largest number of a pre-release; a larger one counts as this."""
_STAGES: Final = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "pre": 3, "rc": 3, "": 4, "post": 5}
"""Stages of a version by their words, the earliest first; a release has none."""
_VERSION: Final = re.compile(
    r"v?(?P<numbers>\d{1,9}(?:\.\d{1,9}){0,5})"
    r"(?:[-._]?(?P<stage>dev|alpha|a|beta|b|rc|c|pre|post)[-._]?(?P<number>\d{0,9})(?:\.dev\d{1,9})?)?"
    r"(?:\+[A-Z0-9._-]*)?",
    re.ASCII | re.IGNORECASE,
)


def rank_version(version: str | None) -> int:
    """Return the rank of a version; `UNRANKED` for what is none."""
    found = _VERSION.fullmatch(version or "")
    if found is None:
        return UNRANKED
    rank = 0
    for number in [*map(int, found["numbers"].split(".")), 0, 0][:3]:
        rank = rank * (NUMBER_MAX + 1) + min(number, NUMBER_MAX)
    rank = rank * (max(_STAGES.values()) + 1) + _STAGES[(found["stage"] or "").lower()]
    return rank * (STAGE_NUMBER_MAX + 1) + min(int(found["number"] or 0), STAGE_NUMBER_MAX)
