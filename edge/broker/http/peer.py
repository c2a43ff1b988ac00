"""What is known of the other end of one HTTP connection; the listener makes it, requests find it in their state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starlette.requests import Request

KEY: Final = "peer"
"""In the state of an ASGI scope."""
_FIRST_LOOK_S: Final = 0.002
_LOOK_S_MAX: Final = 0.1
"""Pauses between two looks at what the client's TCP has acknowledged: from a local round trip on, doubled each time."""


class HttpPeer:
    """One a connection."""

    __slots__ = ("_changed", "_received", "certificate", "identity", "parked", "unacknowledged", "user")

    def __init__(self, identity: str | None = None, changed: Callable[[], None] = lambda: None) -> None:
        """`identity`: the name in its verified client certificate; `changed` is called when one of the others has."""
        self.identity = identity
        self.certificate: Mapping[str, Any] | None = None
        """Its verified client certificate, as `ssl` gives it."""
        self.user = ""
        """Who a request over this connection has shown to be there; empty: nobody yet."""
        self.parked = False
        """It waits for us, and its number is bounded by who lets it wait."""
        self.unacknowledged: Callable[[], int] = lambda: 0
        """Bytes written that the client's TCP has not acknowledged; asked of the kernel."""
        self._changed = changed
        self._received: bool | None = None

    def begin(self, certificate: Mapping[str, Any] | None, unacknowledged: Callable[[], int]) -> None:
        """The connection is there; arguments as the attributes."""
        self.certificate, self.unacknowledged = certificate, unacknowledged

    def end(self, *, received: bool) -> None:
        """The connection is over; `received`: the client's TCP acknowledged all, as far as that is known."""
        self._received = received
        self.unacknowledged = lambda: 1  # lets go of the transport

    async def received_all(self, within_s: float) -> bool:
        """Wait until the client's TCP has acknowledged all that was written. False: it has not, and will not."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_LOOK_S
        until_s = loop.time() + within_s
        while self._received is None:
            if not self.unacknowledged():
                return True
            if loop.time() >= until_s:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_S_MAX)
        return self._received

    def show(self, user: str) -> None:
        """A request has shown who sends over this connection."""
        if user != self.user:
            self.user = user
            self._changed()

    @contextmanager
    def parking(self) -> Iterator[None]:
        """Around what makes the client wait for long."""
        self.parked = True
        self._changed()
        try:
            yield
        finally:
            self.parked = False
            self._changed()


def peer_of(request: Request) -> HttpPeer:
    """The peer of a request's connection; an unknown one where the server says nothing of it."""
    found = request.scope.get("state", {}).get(KEY)
    return found if isinstance(found, HttpPeer) else HttpPeer()
