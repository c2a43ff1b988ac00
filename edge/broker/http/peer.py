"""The client of one HTTP connection. The listener creates it; requests find it in their state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Receive

KEY: Final = "peer"
"""Key in the state of an ASGI scope."""
_FIRST_PAUSE_S: Final = 0.002
_PAUSE_S_MAX: Final = 0.1
"""Pauses between two checks of the client's TCP acknowledgements, doubled each time."""


class HttpPeer:
    """Identity and state of the client of one connection."""

    __slots__ = ("_changed", "_received", "certificate", "identity", "parked", "unacknowledged", "user")

    def __init__(self, identity: str | None = None, changed: Callable[[], None] = lambda: None) -> None:
        """`identity`: name in its verified client certificate. `changed` is called after a change of the others."""
        self.identity = identity
        self.certificate: Mapping[str, Any] | None = None
        """Its verified client certificate, as returned by `ssl`."""
        self.user = ""
        """User that a request over this connection has authenticated; empty before."""
        self.parked = False
        """True during a long poll, which has a limit of its own."""
        self.unacknowledged: Callable[[], int] = lambda: 0
        """Returns the bytes that the client's TCP has not acknowledged, from the kernel."""
        self._changed = changed
        self._received: bool | None = None

    def begin(self, certificate: Mapping[str, Any] | None, unacknowledged: Callable[[], int]) -> None:
        """Set the properties of a new connection; see the attributes."""
        self.certificate, self.unacknowledged = certificate, unacknowledged

    def end(self, *, received: bool) -> None:
        """Process the end of the connection; `received`: the client's TCP has acknowledged everything."""
        self._received = received
        self.unacknowledged = lambda: 1  # drops the reference to the transport

    async def received_all(self, within_s: float) -> bool:
        """Wait until the client's TCP has acknowledged everything. Return False if it will not."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_PAUSE_S
        until_s = loop.time() + within_s
        while self._received is None:
            if not self.unacknowledged():
                return True
            if loop.time() >= until_s:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return self._received

    def set_user(self, user: str) -> None:
        """Set the authenticated user of the connection."""
        if user != self.user:
            self.user = user
            self._changed()

    @contextmanager
    def parking(self) -> Iterator[None]:
        """Mark the client as waiting during a long poll."""
        self.parked = True
        self._changed()
        try:
            yield
        finally:
            self.parked = False
            self._changed()


async def wait_closed(receive: Receive) -> None:
    """Return when the client has closed its connection. `receive`: of a request without a body."""
    while (await receive())["type"] != "http.disconnect":
        pass


def peer_of(request: Request) -> HttpPeer:
    """Return the peer of a request's connection; an unknown peer if the server has not set it."""
    found = request.scope.get("state", {}).get(KEY)
    return found if isinstance(found, HttpPeer) else HttpPeer()
