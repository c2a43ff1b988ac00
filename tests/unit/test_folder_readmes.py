"""READMEs of folders name only existing paths, classes, methods and constants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    path / "README.md"
    for path in (
        *(ROOT / "edge/broker" / name for name in ("router", "model", "listeners", "retention", "tracing")),
        ROOT / "bridge/transport",
        ROOT / "bridge/engine",
        ROOT / "bridge/resources",
        ROOT / "edge/appliance",
        ROOT / "edge/configuration",
    )
]
PAGE_LINES_MAX = 70
PATH = re.compile(r"^[\w./-]+(\.py|\.c|\.md|\.json|/)$")


def _is_path(name: str) -> bool:
    return bool(PATH.match(name)) or name.startswith(("edge/", "bridge/", "cloud/", "tests/"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_name_on_a_page_exists(page: Path) -> None:
    named = re.findall(r"`([^`\s]+)`", page.read_text())
    assert named
    places = (page.parent, ROOT / "edge/broker", ROOT)
    gone = [name for name in named if _is_path(name) and not any((place / name).exists() for place in places)]
    assert not gone
    packages = (ROOT / "edge", ROOT / "bridge")
    sources = [path for package in packages for kind in ("*.py", "*.c") for path in package.rglob(kind)]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    unknown = [name for name in named if not _is_path(name) and not set(re.findall(r"\w+", name)) <= words]
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_module_is_on_the_short_page_of_its_folder(page: Path) -> None:
    text = page.read_text()
    modules = {path.name for path in page.parent.glob("*.py")} - {"__init__.py", "limits.py"}
    assert sorted(name for name in modules if name not in text) == []
    assert len(text.splitlines()) <= PAGE_LINES_MAX
    folders = re.findall(r"tests/[\w/.]+", text)
    assert [name for name in folders if not (ROOT / name.rstrip(".")).exists()] == []
