"""Generated pages: a page of the site holds ``<!-- generated: NAME -->`` where the text of that name goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs.generate import commands, errors, http_api, limits, metrics, problems, reasons, resources, tables

PLACE: Final = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands": commands.page,
    "errors": errors.page,
    "gateway-resources": resources.gateway_page,
    "hub-configuration": resources.hub_page,
    "simulation": resources.simulation_page,
    "limits": limits.page,
    "metrics": metrics.page,
    "problems": problems.page,
    "reason-codes": reasons.page,
    "tables": tables.page,
    "gateway-http": http_api.gateway_page,
    "hub-http": http_api.hub_page,
}
"""Text by name."""


OTHERS: Final = "<!-- other pages -->"
"""In an index: the place of pages of its folder that no list of it names."""


def list_others(text: str, folder: Path) -> str:
    """Return an index with a list of the pages that it does not name, so that none is out of reach."""
    if OTHERS not in text:
        return text
    named = set(re.findall(r"^([\w-]+)$", text, re.MULTILINE))
    others = sorted(path.stem for path in folder.glob("*.md") if path.stem not in {*named, "index"})
    listed = "\n".join(["```{toctree}", ":maxdepth: 1", "", *others, "```"])
    return text.replace(OTHERS, f"## More\n\n{listed}" if others else "")


def fill(text: str) -> str:
    """Return a page with its generated parts. Raises KeyError for a name that is none of `PAGES`."""
    return PLACE.sub(lambda place: PAGES[place[1]](), text)
