"""Generated pages: a page of the site holds ``<!-- generated: NAME -->`` where the text of that name goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from docs.generate import commands, http_api, limits, metrics, problems, reasons, resources, tables

PLACE: Final = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands": commands.page,
    "gateway-resources": resources.gateway_page,
    "hub-configuration": resources.hub_page,
    "limits": limits.page,
    "metrics": metrics.page,
    "problems": problems.page,
    "reason-codes": reasons.page,
    "tables": tables.page,
    "gateway-http": http_api.gateway_page,
    "hub-http": http_api.hub_page,
}
"""Text by name."""


def fill(text: str) -> str:
    """Return a page with its generated parts. Raises KeyError for a name that is none of `PAGES`."""
    return PLACE.sub(lambda place: PAGES[place[1]](), text)
