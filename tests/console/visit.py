"""A person's browser at a console, which notes everything that a page must not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

WITHIN_MS: Final = 20_000
DESKTOP: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
NARROW: Final = {"width": 320, "height": 640}
TAGS: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
RULES: Final = {"runOnly": {"type": "tag", "values": list(TAGS)}, "resultTypes": ["violations"]}


@dataclass
class Visit:
    """Page of a console in a browser."""

    page: Page
    base: str
    wrong: list[str] = field(default_factory=list)
    """Console messages, errors of scripts, and requests to elsewhere."""
    wire_bytes: int = 0
    """Bytes received, with header fields, as compressed."""

    def open(self, address: str = "") -> None:
        """Open a page by the part of its address after #, and wait until it shows figures."""
        if self.page.url.startswith(self.base):
            self.page.evaluate("target => { location.hash = target; }", address or "#/")
        else:
            self.page.goto(self.base + address)
        self.page.locator(".frame main .panel").first.wait_for(timeout=WITHIN_MS)

    def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.page.get_by_text(text).first.wait_for(timeout=WITHIN_MS)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return width

    def violations(self) -> list[str]:
        """Return the violations that axe finds (WCAG 2.2 AA and best practices)."""
        found = Axe().run(self.page, options=RULES).response["violations"]
        return [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"]]


@contextmanager
def visiting(browser: Browser, base: str, **options: Any) -> Iterator[Visit]:
    """Open a window. `options`: those of a Playwright context, like `color_scheme`. At the end nothing went wrong."""
    options.setdefault("viewport", DESKTOP)
    context: BrowserContext = browser.new_context(ignore_https_errors=True, **options)
    page = context.new_page()
    page.set_default_timeout(WITHIN_MS)
    visit = Visit(page, base)
    host = urlsplit(base).netloc

    def note_message(message: ConsoleMessage) -> None:
        visit.wrong.append(f"console: {message.type}: {message.text}")

    def note_request(request: Request) -> None:
        if urlsplit(request.url).netloc != host and not request.url.startswith(("data:", "blob:")):
            visit.wrong.append(f"request to {request.url}")

    page.on("console", note_message)
    page.on("pageerror", lambda error: visit.wrong.append(f"script: {error}"))
    page.on("request", note_request)
    client = context.new_cdp_session(page)
    client.send("Network.enable")

    def count(event: dict[str, Any]) -> None:
        visit.wire_bytes += int(event["encodedDataLength"])

    client.on("Network.loadingFinished", count)
    try:
        yield visit
        assert visit.wrong == []
    finally:
        context.close()
