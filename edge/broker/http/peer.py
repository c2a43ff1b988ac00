"""What is known of the other end of one HTTP connection; the listener makes it, requests find it in their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

KEY: Final = "peer"
"""In the state of an ASGI scope."""


@dataclass(slots=True)
class Peer:
    """One a connection."""

    identity: str | None = None
    """The name in its verified client certificate."""
    authenticated: bool = False
    """A request over this connection has shown who sent it."""


def peer_of(request: Request) -> Peer:
    """The peer of a request's connection; an unknown one where the server says nothing of it."""
    found = request.scope.get("state", {}).get(KEY)
    return found if isinstance(found, Peer) else Peer()
