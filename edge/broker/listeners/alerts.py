"""Tell a peer why it gets no TLS: event loops drop the socket of a failed handshake with its alert still in memory.

OpenSSL writes the alert (RFC 8446 section 6.2) where it writes all it has to send; here it is put into the socket
before the loop closes that. What does not fit at once is not sent: a peer that reads nothing needs no reason.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any, Final

SHAKES_HANDS: Final[ContextVar[socket.socket | None]] = ContextVar("SHAKES_HANDS", default=None)
"""The socket whose handshake the running task has begun, and the loop's callbacks for it."""


class AlertingObject(ssl.SSLObject):
    """One side of one connection."""

    unsent: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            connection = SHAKES_HANDS.get()
            if connection is not None and connection.fileno() >= 0:
                with contextlib.suppress(OSError):
                    connection.send(self.unsent.read())
            raise


class AlertingContext(ssl.SSLContext):
    """A server's context."""

    sslobject_class = AlertingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> Any:
        made = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        if isinstance(made, AlertingObject):
            made.unsent = outgoing
        return made
