"""Contract of all protocol machines: bytes in, events out, bytes to send, deadline.

A machine is sans-I/O: no socket, clock, thread or store. `now` is an argument (seconds of a monotonic clock), and the
driver fetches output; the machine never pushes it. So one asyncio driver (`transport.driver`) serves MQTT, AMQP and the
uplink, and every machine can be tested byte by byte. Each machine defines its own events; the driver passes them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class ConnectionMachine(Protocol):
    """One end of one connection, as a state machine.

    The driver calls `receive_data` with bytes of the socket (or `receive_eof`, or `handle_timeout` when `deadline` has
    passed), gives the events to their owner, then writes `data_to_send`, and closes the socket after writing once
    `closed` is true. It never calls from two threads. No method raises because of a peer's bytes: a violation is
    answered as the standard says, and closes the connection.
    """

    @property
    def closed(self) -> bool:
        """True when the socket must be closed once `data_to_send` has been written."""
        ...

    @property
    def deadline(self) -> float | None:
        """Time of the next `handle_timeout` (same clock as `now`); None for never."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory that the peer makes us hold in addition to that of every connection: incomplete packets, frames and
        messages, and state it has set up (aliases, links). Approximate; must be cheap, as it is read after every read.
        """
        ...

    @property
    def has_output(self) -> bool:
        """False when there is nothing to write, the connection is not `closed` and `deadline` did not get earlier: most
        reads are answered only after a later commit. True when unsure."""
        ...

    @property
    def more(self) -> bool:
        """True when `receive_data` has stopped before the end of its bytes: a call without bytes continues."""
        ...

    @property
    def spoken(self) -> str:
        """Protocol that the peer speaks instead of ours (`bridge.transport.peer_protocol`); empty: ours, or unknown."""
        ...

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        """Handle bytes of the peer; return the events they complete, in order (often none). Call it without bytes to
        continue with `more`, or after a change from elsewhere.

        One call does at most a few milliseconds of work, including its events, whatever the bytes are: the rest is
        left, and `more` is true.
        """
        ...

    def receive_eof(self, now: float) -> Sequence[Any]:
        """Handle the end of the socket; return the last events. Idempotent."""
        ...

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        """Handle the deadline: keep-alive, idle timeout or handshake limit. While not `listening`, bytes of the peer
        may be unread: its silence does not count, but our heartbeats are sent."""
        ...

    def shed(self) -> Sequence[Any]:
        """Close because the peer makes us hold too much memory: drop it, put the protocol's error into `data_to_send`
        if possible, and return the last events."""
        ...

    def data_to_send(self) -> bytes:
        """Return the bytes to write now, and clear them; empty when there are none."""
        ...
