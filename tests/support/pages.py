"""Pages of the documentation, with their blocks of code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.support.checkout import ROOT

README: Final = ROOT / "README.md"
PAGES: Final = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of code: its language and its text."""
OTHER_KINDS: Final = re.compile(r"^ *kind: (Hub|Simulation)$", re.MULTILINE)
"""Kinds of other programs than the gateway."""
ENROLLED: Final = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: hall}
spec: {hub: {url: "amqps://hub.example:5671"}}
"""
"""Resource of a gateway that enrolled at a hub; examples refer to it."""


def name(path: Path) -> str:
    """Return the path of a page in the checkout."""
    return path.relative_to(ROOT).as_posix()
