"""The docs site builds without a warning, has no dead link, and requests nothing from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.conftest import ROOT

pytest.importorskip("sphinx", reason="sphinx is not installed")

LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
"""Attributes of elements that a browser fetches by itself."""
NOT_FETCHED = {"canonical", "next", "prev", "search", "index"}
"""Relations of `link` that name a page without fetching it."""
SECONDS_MAX = 110


class Page(HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("id"):
            self.places.add(str(named["id"]))
        if tag == "a" and named.get("href"):
            self.links.append(str(named["href"]))
        where = named.get(LOADED.get(tag, ""))
        if where and not (tag == "link" and named.get("rel") in NOT_FETCHED):
            self.loads.append(where)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning of the build is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "docs.generate", "--build", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def parsed(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_no_link_is_dead(site: Path, parsed: dict[Path, Page]) -> None:
    dead = []
    for path, page in parsed.items():
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and not has_place(parsed, target, unquote(parts.fragment))):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead


def has_place(parsed: dict[Path, Page], target: Path, place: str) -> bool:
    return target not in parsed or place in parsed[target].places


def test_pages_load_files_of_the_site_only(site: Path, parsed: dict[Path, Page]) -> None:
    loaded = [load for page in parsed.values() for load in page.loads if urlsplit(load).netloc]
    assert not loaded
    assert not [found for path in site.rglob("*.css") for found in outside(path.read_text())]


def outside(style: str) -> Iterator[str]:
    """Yield the addresses that a style sheet fetches from other hosts."""
    yield from re.findall(r"(?:url\(|@import\s+)['\"]?((?:https?:)?//[^'\")\s]+)", style)


def test_every_page_is_linked_from_the_first(site: Path, parsed: dict[Path, Page]) -> None:
    reached, waiting = set(), [site / "index.html"]
    while waiting:
        path = waiting.pop()
        if path in reached or path not in parsed:
            continue
        reached.add(path)
        waiting += [(path.parent / urlsplit(link).path).resolve() for link in parsed[path].links if urlsplit(link).path]
    assert {path.relative_to(site).as_posix() for path in set(parsed) - reached} <= {"search.html"}
