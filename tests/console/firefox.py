"""Debian's Firefox, driven by WebDriver BiDi (W3C), which it speaks itself: no geckodriver, no other browser.

Playwright speaks it too, with commands that the extended support release does not have.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

from tests.console.visit import REPORTS

WITHIN_S: Final = 30.0
MESSAGE_BYTES_MAX: Final = 1 << 24
_LISTENS: Final = re.compile(r"WebDriver BiDi listening on (ws://[\d.:]+)")


class FirefoxPage:
    """Tab of a Firefox, with everything that went wrong in it."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.wrong: list[str] = []
        """Messages of the browser's console, and errors of scripts."""
        self._call("session.new", capabilities={})
        self._call("session.subscribe", events=["log.entryAdded"])
        self._call("script.addPreloadScript", functionDeclaration=f"() => {{ {REPORTS} }}")
        self._context = self._call("browsingContext.create", type="tab")["context"]

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(WITHIN_S))
            if message.get("method") == "log.entryAdded":
                entry = message["params"]
                self.wrong.append(f"{entry['level']}: {entry['text']}")
            elif message.get("id") == number:
                assert message["type"] == "success", f"{method}: {message}"
                return message["result"]

    def goto(self, url: str) -> None:
        """Load a document."""
        self._call("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page: a text, a number or a truth."""
        target = {"context": self._context}
        found = self._call("script.evaluate", expression=expression, target=target, awaitPromise=True)
        assert found["type"] == "success", found
        return found["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        self._wait(lambda: self.value(f"Boolean({expression})"), expression)

    def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.wait_for(f"document.body?.innerText.includes({json.dumps(text)})")

    def click(self, role: str, name: str) -> None:
        """Click the first element of a role and an accessible name, as a mouse does."""
        self._click({"type": "accessibility", "value": {"role": role, "name": name}})

    def _click(self, locator: dict[str, Any]) -> None:
        origin = {"type": "element", "element": self._find(locator)}
        point = {"type": "pointerMove", "x": 0, "y": 0, "origin": origin}
        press, release = ({"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp"))
        mouse = {"type": "pointer", "id": "mouse", "actions": [point, press, release]}
        self._call("input.performActions", context=self._context, actions=[mouse])

    def type(self, field: str, text: str) -> None:
        """Click a field, and type a text into it. `field`: CSS selector, as a password has no role."""
        self._click({"type": "css", "value": field})
        keys = [{"type": kind, "value": letter} for letter in text for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keys", "actions": keys}
        self._call("input.performActions", context=self._context, actions=[keyboard])

    def _find(self, locator: dict[str, Any]) -> dict[str, str]:
        found: list[dict[str, str]] = []

        def look() -> bool:
            nodes = self._call("browsingContext.locateNodes", context=self._context, locator=locator)["nodes"]
            found[:] = [{"sharedId": node["sharedId"]} for node in nodes]
            return bool(found)

        self._wait(look, str(locator["value"]))
        return found[0]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}; {self.value('document.body?.innerText')}"
            time.sleep(0.05)


@contextlib.contextmanager
def firefox_page(program: str, profile: Path) -> Iterator[FirefoxPage]:
    """Open a tab of a new Firefox without a screen. At the end nothing went wrong in it."""
    command = [program, "--headless", "--no-remote", "--remote-debugging-port", "0", "--profile", str(profile)]
    profile.mkdir()
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            found = next(filter(None, map(_LISTENS.search, process.stderr)))
            with connect(f"{found[1]}/session", max_size=MESSAGE_BYTES_MAX, compression=None) as connection:
                page = FirefoxPage(connection)
                yield page
                assert page.wrong == [], page.wrong
        finally:
            process.kill()
