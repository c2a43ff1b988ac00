"""Pictures of every page of the consoles for the docs: `make pictures`.

The folder also has a record of each page's modules, as they were when its picture was made. A page that changed, or
that has no picture, fails `tests/unit/docs/test_pictures.py`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from playwright.sync_api import Browser, sync_playwright

from tests.console.apps import APPS, GATEWAY, HUB, ConsoleApp, ConsolePage, shared_sources
from tests.console.conftest import CHROMIUM
from tests.console.demo_world import DemoWorld, demo_world
from tests.console.visit import PHONE, Visit, sign_in_link, visiting
from tests.support.checkout import ROOT

FOLDER: Final = ROOT / "docs" / "pictures" / "consoles"
RECORD: Final = "made-from.json"
SHARED: Final = "shared"
"""Key of the record for the files that all pages share."""
BYTES_MAX: Final = 2_000_000
"""Size of all pictures."""
WINDOW: Final = {"width": 1_200, "height": 760}
HEIGHT_MIN: Final = 540
"""Least height: the list of pages ends there."""
MARGIN: Final = 20
QUALITY: Final = 72
SETTLED_MS: Final = 1_500
"""Time for charts to be drawn and figures to arrive."""
_COMMENT: Final = re.compile(r"^\s*//.*$", re.MULTILINE)


class ConsolePicture(NamedTuple):
    """Picture of a page."""

    app: ConsoleApp
    page: ConsolePage
    address: str
    window: dict[str, int]
    suffix: str = ""

    @property
    def name(self) -> str:
        """Return the name of its file, without the ending."""
        return f"{self.app.name}-{self.page.name}{self.suffix}"


SERIES: Final = urlencode(
    {
        "tenant": "default",
        "gateway": "north-hall",
        "device": "pump7",
        "address": "plant/pump7/temp",
        "metric": "temperature",
    }
)
"""Series of `gold_world`."""
VIEWS: Final = {
    (GATEWAY.name, "devices"): "devices?show=connected",
    (HUB.name, "fleet"): "fleet?show=all",
    (HUB.name, "analytics"): f"analytics?show=values&{SERIES}",
}
"""Address that the picture of a page shows, if it is not the page's own."""
MORE: Final = {
    (GATEWAY.name, "devices"): (("-refused", "devices?show=refused", WINDOW),),
    (GATEWAY.name, "overview"): (("-phone", "overview", PHONE),),
    (HUB.name, "fleet"): (
        ("-gateway", "fleet/default%2Fnorth-hall", WINDOW),
        ("-problems", "fleet/problems", WINDOW),
    ),
    (HUB.name, "analytics"): (("-outages", "analytics?show=outages", WINDOW),),
}
"""Further pictures of a page: suffix, address, window."""


def pictures() -> Iterator[ConsolePicture]:
    """Yield the pictures of all pages."""
    for app in APPS:
        for page in app.pages:
            key = (app.name, page.name)
            yield ConsolePicture(app, page, VIEWS.get(key, page.name), WINDOW)
            for suffix, address, window in MORE.get(key, ()):
                yield ConsolePicture(app, page, address, window, suffix)


def digest(paths: Iterable[Path]) -> str:
    """Return a digest of modules, without lines that are comments."""
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.name}\0{_COMMENT.sub('', path.read_text())}\0".encode())
    return found.hexdigest()[:16]


def sources_of(picture: ConsolePicture) -> str:
    """Return the digest of a picture's modules."""
    return digest(picture.app.sources(picture.page))


def record() -> dict[str, str]:
    """Return the digests of the sources as they are now."""
    return {**{each.name: sources_of(each) for each in pictures()}, SHARED: digest(shared_sources())}


def make(browser: Browser, world: DemoWorld, folder: Path) -> None:
    """Make all pictures, and their record."""
    for app in APPS:
        for window in (WINDOW, PHONE):
            chosen = [each for each in pictures() if each.app is app and each.window == window]
            if chosen:
                _make(browser, world, folder, chosen)
    (folder / RECORD).write_text(json.dumps(record(), indent=2) + "\n")


def _make(browser: Browser, world: DemoWorld, folder: Path, chosen: list[ConsolePicture]) -> None:
    app = chosen[0].app
    base = world.operator.base if app is HUB else f"http://127.0.0.1:{world.gateway.port('http')}/"
    options: dict[str, Any] = {"viewport": chosen[0].window, "color_scheme": "light", "locale": "en-GB"}
    with visiting(browser, base, **options) as visit:
        server = world.hub if app is HUB else world.gateway
        visit.page.goto(base + sign_in_link(server))
        visit.page.locator(".frame main .panel").first.wait_for()
        tools = visit.page.context.new_cdp_session(visit.page)
        for picture in chosen:
            visit.open(f"#/{picture.address}")
            visit.page.wait_for_timeout(SETTLED_MS)
            clip = {"x": 0, "y": 0, "width": picture.window["width"], "height": height_of(visit, picture), "scale": 1}
            shot = tools.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY, "clip": clip})
            (folder / f"{picture.name}.webp").write_bytes(base64.b64decode(shot["data"]))


def height_of(visit: Visit, picture: ConsolePicture) -> int:
    """Return the height of a picture: that of its content, within the window."""
    end: float = visit.page.evaluate("document.querySelector('main').lastElementChild.getBoundingClientRect().bottom")
    return min(picture.window["height"], max(HEIGHT_MIN, int(end) + MARGIN))


def main() -> None:
    """Make the pictures of the docs."""
    assert CHROMIUM is not None, "chromium is not installed (Debian package chromium)"
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.webp"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder, demo_world(Path(folder)) as world, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        make(browser, world, FOLDER)
        browser.close()
    size = sum(path.stat().st_size for path in FOLDER.glob("*.webp"))
    print(f"{len(list(FOLDER.glob('*.webp')))} pictures, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
