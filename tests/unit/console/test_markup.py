"""Texts of the consoles' pages as htm reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.conftest import ROOT

FOLDERS: Final = ("bridge/console", "edge/appliance/console", "cloud/console")
LOST_SPACE: Final = re.compile(r"[\w,.:;]\n\s*<(?:code|a|b|em|strong)\b|</(?:code|a|b|em|strong)>\n\s*\w")
"""Text and an inline element with a line end between them: htm drops it, and the words touch."""


def _modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (each for each in (ROOT / folder).rglob("*.js") if "vendor" not in each.parts)


def test_no_space_is_lost_at_the_end_of_a_line() -> None:
    found = {
        str(module.relative_to(ROOT)): [match.group() for match in LOST_SPACE.finditer(module.read_text())]
        for module in _modules()
    }
    assert {name: places for name, places in found.items() if places} == {}, 'write ${" "} at the end of the line'
