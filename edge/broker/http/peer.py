"""What is known of the other end of one HTTP connection; the listener makes it, requests find it in their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starlette.requests import Request

KEY: Final = "peer"
"""In the state of an ASGI scope."""


class Peer:
    """One a connection."""

    __slots__ = ("_changed", "certificate", "identity", "parked", "user")

    def __init__(self, identity: str | None = None, changed: Callable[[], None] = lambda: None) -> None:
        """`identity`: the name in its verified client certificate; `changed` is called when one of the others has."""
        self.identity = identity
        self.certificate: Mapping[str, Any] | None = None
        """Its verified client certificate, as `ssl` gives it."""
        self.user = ""
        """Who a request over this connection has shown to be there; empty: nobody yet."""
        self.parked = False
        """It waits for us, and its number is bounded by who lets it wait."""
        self._changed = changed

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


def peer_of(request: Request) -> Peer:
    """The peer of a request's connection; an unknown one where the server says nothing of it."""
    found = request.scope.get("state", {}).get(KEY)
    return found if isinstance(found, Peer) else Peer()
