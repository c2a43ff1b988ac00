"""What the links of a session ask of the driver of their connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge.broker.model.tracing import ConnectionTrace


class Flusher(Protocol):
    """Of a link that has something to write, or cannot go on."""

    @property
    def trace(self) -> ConnectionTrace | None:
        """The packet trace of the connection, which reports what happens to messages; None: it is not traced."""
        ...

    @property
    def congested(self) -> bool:
        """The peer does not read what we wrote."""
        ...

    def flush_soon(self) -> None:
        """Something is to be written at the end of this turn."""
        ...

    def abort(self) -> None:
        """End the connection at once."""
        ...


class Scheduler(Flusher, Protocol):
    """The same, of a link with work for more than one turn."""

    @property
    def peername(self) -> str:
        """``host:port`` of the peer, or ``-`` when it is gone."""
        ...

    @property
    def cipher(self) -> tuple[str, str] | None:
        """Cipher and version of TLS; None without TLS."""
        ...

    def identified(self, user: str) -> bool:
        """The peer has said who it is; False when there is no room for another connection of this user."""
        ...

    def soon(self, callback: Callable[[], None]) -> None:
        """Call this in the next turn of the loop."""
        ...
