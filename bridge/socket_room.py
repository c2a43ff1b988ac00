"""Limit of unsent bytes in a socket: as many as leave it within `BACKLOG_QUEUE_S`, adapted to the link.

A live batch waits behind the bytes in the socket. The speed of a link is not known beforehand, so the limit doubles
while bytes leave quickly, and shrinks in proportion when they take too long (as LEDBAT, RFC 6817).
"""

from __future__ import annotations

from bridge.limits import BACKLOG_QUEUE_S, BACKLOG_UNSENT_BYTES_MAX, BACKLOG_UNSENT_BYTES_MIN
from bridge.transport.tcp_path import TcpPath


class SocketRoom:
    """Limit for one connection; times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.bytes = BACKLOG_UNSENT_BYTES_MIN
        """Most bytes that may be unsent."""
        self._handed = 0
        self._waiting = 0
        """Unsent bytes, as of the last update."""
        self._marked: tuple[int, float] | None = None
        """(bytes handed over by then, time) of the measurement in progress; None: no measurement."""

    def record_sent(self, size: int, now: float) -> None:
        """Count bytes that were given to the socket."""
        self._handed += size
        self._waiting += size
        if self._marked is None:
            self._marked = (self._handed, now)

    def update(self, path: TcpPath, now: float) -> None:
        """Update the limit from the kernel's count of unsent bytes."""
        self._waiting = path.unsent_bytes
        if self._marked is None or self._handed - path.unsent_bytes < self._marked[0]:
            return
        took, moment = now - self._marked[1], path.round_trip_s + BACKLOG_QUEUE_S
        self._marked = None
        if took <= moment / 2:
            self.bytes = min(self.bytes * 2, BACKLOG_UNSENT_BYTES_MAX)
        elif took > moment:
            self.bytes = max(int(self.bytes * moment / took), BACKLOG_UNSENT_BYTES_MIN)

    @property
    def is_full(self) -> bool:
        """True when nothing more may be given to the socket before some bytes have left."""
        return self._waiting >= self.bytes
