"""Interfaces of the connection's driver for links and session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge.broker.model.tracing import ConnectionTrace


class Flusher(Protocol):
    """Driver of a connection, as links use it to write or to end the connection."""

    @property
    def trace(self) -> ConnectionTrace | None:
        """Packet trace of the connection; None: not traced."""
        ...

    @property
    def congested(self) -> bool:
        """True while the peer does not read fast enough."""
        ...

    def flush_soon(self) -> None:
        """Write at the end of this turn."""
        ...

    def abort(self) -> None:
        """End the connection at once."""
        ...


class Scheduler(Flusher, Protocol):
    """Driver of a connection, with scheduling and properties of the transport."""

    @property
    def peername(self) -> str:
        """``host:port`` of the peer, or ``-`` after the end of the connection."""
        ...

    @property
    def cipher(self) -> tuple[str, str] | None:
        """Cipher and version of TLS; None without TLS."""
        ...

    def identified(self, user: str) -> bool:
        """Count the connection for this user. Return False if its connection limit is reached."""
        ...

    def run(self, step: Callable[[], None]) -> None:
        """Call a function that no read of the peer caused. An exception of it ends the connection."""
        ...
