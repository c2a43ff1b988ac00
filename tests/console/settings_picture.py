"""Picture of the settings page for the docs: `make pictures`.

It is of `docs/settings.html`, as a laptop shows it. Its name has a digest of the page, so that a test finds an old one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from bridge.enrolment import EnrolmentToken
from docs.generate.settings_page import FILE as PUBLISHED
from tests.console.conftest import CHROMIUM
from tests.console.visit import visiting
from tests.support.checkout import ROOT

FOLDER: Final = ROOT / "docs" / "pictures"
PICTURE: Final = FOLDER / "settings-page.png"
RECORD: Final = FOLDER / "settings-page.made-from"
WINDOW: Final = {"width": 760, "height": 1_420}
VALUES: Final = {
    "name": "hall", "hub.url": "amqps://hub.example:5671", "hub.token": EnrolmentToken.make(bytes(range(32))).text,
    "hub.forward": "plant/#", "wifi.ssid": "plant", "wifi.password": "an example", "wifi.country": "uk",
}  # fmt: skip
"""One value is wrong, so that the page shows what it says then."""


def source_of(page: Path = PUBLISHED) -> str:
    """Return the digest of the page that the picture is of."""
    return hashlib.sha256(page.read_bytes()).hexdigest()[:16]


def make(browser: Browser, target: Path) -> None:
    """Take the picture."""
    address = PUBLISHED.as_uri()
    with visiting(browser, address, viewport=WINDOW, color_scheme="light", locale="en-GB") as visit:
        visit.page.goto(address)
        for name, value in VALUES.items():
            field = visit.page.locator(f"[id='{name}']")
            field.evaluate("each => { const part = each.closest('details'); if (part) part.open = true; }")
            field.fill(value)
            field.blur()
        visit.page.evaluate("scrollTo(0, 0)")
        visit.page.screenshot(path=target)


def main() -> None:
    """Make the picture, and record what it is of."""
    assert CHROMIUM is not None, "chromium is not installed (Debian package chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        make(browser, PICTURE)
        browser.close()
    RECORD.write_text(f"{source_of()}\n")


if __name__ == "__main__":
    main()
