"""The settings page of the docs, from the product's rules: `python -m docs.generate.settings_page`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from docs.generate import source
from images.card.settings_page.rendering import PAGE, render_page

FILE: Final = source.ROOT / "docs" / PAGE


def write(path: Path = FILE) -> None:
    """Write the page."""
    path.write_text(render_page(), encoding="utf-8")


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{FILE}\n")
