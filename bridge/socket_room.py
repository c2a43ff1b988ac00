"""How much may wait in a socket: as much as leaves it in a moment, found by how long what was handed over has taken.

What waits there a live batch waits behind. How fast a link is nobody knows beforehand, so the room doubles while what
was handed over leaves soon, and shrinks by as much as it takes too long (LEDBAT, RFC 6817, has the idea).
"""

from __future__ import annotations

from bridge.limits import BACKLOG_QUEUE_S, BACKLOG_UNSENT_BYTES_MAX, BACKLOG_UNSENT_BYTES_MIN
from bridge.transport.tcp_path import TcpPath


class SocketRoom:
    """Of one connection; times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.bytes = BACKLOG_UNSENT_BYTES_MIN
        """What may wait."""
        self._handed = 0
        self._waiting = 0
        """Bytes of what was handed over that are still there, as far as is known."""
        self._marked: tuple[int, float] | None = None
        """(bytes handed over by then, when); None: nothing is timed."""

    def handed(self, size: int, now: float) -> None:
        """So many bytes more are to be sent."""
        self._handed += size
        self._waiting += size
        if self._marked is None:
            self._marked = (self._handed, now)

    def look(self, path: TcpPath, now: float) -> None:
        """The kernel says what has not left."""
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
        """Nothing more is to be handed over before something has left."""
        return self._waiting >= self.bytes
