"""Header field in which a hub names the query parameters that it has applied.

A hub of an earlier version ignores a filter that it does not know, and answers with all rows. Its answer does not name
the filter, so a client refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

APPLIED_QUERY: Final = "Waypost-Applied-Query"
"""Names of query parameters, separated by commas; missing in answers of hubs of earlier versions."""


def ignored(field: str | None, wanted: Iterable[str]) -> list[str]:
    """Return those of the wanted parameters that an answer does not name in its header field; None: it has none."""
    applied = {name.strip() for name in (field or "").split(",")}
    return [name for name in wanted if name not in applied]
