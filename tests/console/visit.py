"""A person's browser at a console, which notes everything that a page must not do."""

from __future__ import annotations

import importlib.resources
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request

from tests.support.command import PROGRAM
from tests.support.processes import Waypost

WITHIN_MS: Final = 20_000
DESKTOP: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
NARROW: Final = {"width": 320, "height": 640}
TAGS: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
RULES: Final = {"runOnly": {"type": "tag", "values": list(TAGS)}, "resultTypes": ["violations"]}
GO: Final = """target => new Promise(done => {
  if (location.hash === target) return done();
  addEventListener("hashchange", () => setTimeout(done), { once: true });
  location.hash = target;
})"""
"""Goes to a page of the console, and waits until the frame has left the one before."""
REPORTS: Final = """document.addEventListener("securitypolicyviolation",
  event => console.error(`content policy: ${event.violatedDirective} ${event.blockedURI}`));"""
"""Reports what the content policy refuses, as an error of the console."""


@cache
def axe_source() -> str:
    """Return the script of axe-core."""
    return (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@dataclass
class Visit:
    """Page of a console in a browser."""

    page: Page
    base: str
    wrong: list[str] = field(default_factory=list)
    """Console messages, errors of scripts, and requests to elsewhere."""
    wire_bytes: int = 0
    """Bytes received, with header fields, as compressed."""
    pending: set[Request] = field(default_factory=set)
    """Requests without an answer, but for the stream of live figures."""

    def open(self, address: str = "") -> None:
        """Open a page by the part of its address after #, and wait until it shows figures."""
        if self.page.url.startswith(self.base):
            self.page.evaluate(GO, address or "#/")
        else:
            self.page.goto(self.base + address)
        self.page.locator(".frame main .panel").first.wait_for(timeout=WITHIN_MS)
        self.settle()

    def settle(self) -> None:
        """Wait until every request is answered."""
        deadline = time.monotonic() + WITHIN_MS / 1_000
        self.page.wait_for_timeout(1)
        while self.pending:
            assert time.monotonic() < deadline, f"no answer to {[each.url for each in self.pending]}"
            self.page.wait_for_timeout(10)

    def hide(self) -> None:
        """Tell the page that it is hidden, as a browser without a screen hides no tab; wait for pending answers."""
        self.page.evaluate("""() => {
            Object.defineProperty(document, "hidden", { get: () => true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""")
        self.settle()

    def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.page.get_by_text(text).first.wait_for(timeout=WITHIN_MS)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return width

    def violations(self) -> list[str]:
        """Return the violations that axe finds (WCAG 2.2 AA and best practices)."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(axe_source())
        # `finished` of an animation that is cancelled, as its element goes, rejects
        self.page.evaluate("Promise.all(document.getAnimations().map(each => each.finished.catch(() => null)))")
        found = self.page.evaluate("async rules => (await axe.run(document, rules)).violations", RULES)
        return [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"]]


def sign_in_link(server: Waypost) -> str:
    """Return the part after the address of a console that signs in once: what `waypost open` shows as a QR code."""
    command = [*PROGRAM, "open", "--data", str(server.data), "--print"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"https?://\S+(#link=\S+)", printed)
    assert found is not None, printed
    return found[1]


@contextmanager
def visiting(browser: Browser, base: str, **options: Any) -> Iterator[Visit]:
    """Open a window. `options`: those of a Playwright context, like `color_scheme`. At the end nothing went wrong."""
    options.setdefault("viewport", DESKTOP)
    context: BrowserContext = browser.new_context(ignore_https_errors=True, **options)
    page = context.new_page()
    page.add_init_script(REPORTS)
    page.set_default_timeout(WITHIN_MS)
    visit = Visit(page, base)
    host = urlsplit(base).netloc

    def note_message(message: ConsoleMessage) -> None:
        visit.wrong.append(f"console: {message.type}: {message.text}")

    def note_request(request: Request) -> None:
        if urlsplit(request.url).netloc != host and not request.url.startswith(("data:", "blob:")):
            visit.wrong.append(f"request to {request.url}")
        if not urlsplit(request.url).path.endswith("/events"):
            visit.pending.add(request)

    def note_end(request: Request) -> None:
        visit.pending.discard(request)

    page.on("console", note_message)
    page.on("pageerror", lambda error: visit.wrong.append(f"script: {error}"))
    page.on("request", note_request)
    page.on("requestfinished", note_end)
    page.on("requestfailed", note_end)
    if browser.browser_type.name == "chromium":
        count_bytes(visit, context)
    try:
        yield visit
        assert visit.wrong == [], visit.wrong
    finally:
        context.close()


def count_bytes(visit: Visit, context: BrowserContext) -> None:
    """Count the bytes that a page receives, by the protocol of Chromium's developer tools."""
    client = context.new_cdp_session(visit.page)
    client.send("Network.enable")

    counted: Counter[str] = Counter()

    def count_part(event: dict[str, Any]) -> None:
        counted[event["requestId"]] += int(event["encodedDataLength"])
        visit.wire_bytes += int(event["encodedDataLength"])

    def count_whole(event: dict[str, Any]) -> None:
        visit.wire_bytes += int(event["encodedDataLength"]) - counted.pop(event["requestId"], 0)

    client.on("Network.dataReceived", count_part)  # the stream of live figures never ends
    client.on("Network.loadingFinished", count_whole)


class Clicks:
    """A mouse that counts."""

    def __init__(self, visit: Visit) -> None:
        self._page = visit.page
        self.count = 0

    def button(self, name: str, *, exact: bool = False) -> None:
        """Click the first button of this name."""
        self.on(self._page.get_by_role("button", name=name, exact=exact).first)

    def link(self, name: str, *, exact: bool = False) -> None:
        """Click the first link of this name that is shown."""
        self.on(self._page.get_by_role("link", name=name, exact=exact).first)

    def on(self, place: Locator) -> None:
        """Click a place."""
        place.click()
        self.count += 1
