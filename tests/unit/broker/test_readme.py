"""The README of the broker names only existing paths, classes, methods and constants."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
BROKER = ROOT / "edge/broker"
NAMED = re.findall(r"`([^`\s]+)`", (BROKER / "README.md").read_text())


def test_every_path_exists() -> None:
    paths = [name for name in NAMED if "/" in name or name.endswith(".py")]
    assert len(paths) > 40
    gone = [name for name in paths if not ((BROKER / name).exists() or (ROOT / name).exists())]
    assert not gone


def test_every_name_is_in_the_code() -> None:
    sources = [path for folder in ("edge/broker", "bridge") for path in (ROOT / folder).rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    called = [re.sub(r"\(.*", "", name) for name in NAMED if "/" not in name and not name.endswith(".py")]
    unknown = [name for name in called if not set(re.findall(r"\w+", name)) <= words]
    assert not unknown


def test_every_folder_is_mentioned() -> None:
    folders = {f"{path.parent.name}/" for path in BROKER.glob("*/__init__.py")}
    assert folders <= set(NAMED)
