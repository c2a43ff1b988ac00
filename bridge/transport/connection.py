"""The one contract of every protocol machine: bytes in, events out, bytes to send, deadline.

A machine is sans-I/O: no socket, clock, thread or store. `now` is an argument (seconds of a monotonic clock), and
what must go out is asked for, never pushed. So one asyncio driver (`transport.driver`) serves MQTT, AMQP and the link,
and every machine can be tested byte by byte. Events are classes of the machine's own; the driver passes them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class ConnectionMachine(Protocol):
    """One end of one connection, as a state machine.

    The driver calls, in this order and never from two places at once: `receive_data` for what the socket gave
    (or `receive_eof`, or `handle_timeout` when `deadline` has passed), hands the events to their owner, then takes
    `data_to_send` and writes it, and closes the socket after writing once `closed` is true.
    No method raises for what a peer sent: a violation is answered as the standard says, and closes.
    """

    @property
    def closed(self) -> bool:
        """True when the socket must be closed once `data_to_send` has been written."""
        ...

    @property
    def deadline(self) -> float | None:
        """When `handle_timeout` wants to be called (same clock as `now`); None for never."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory the peer makes us keep beyond what every connection costs: packets, frames and messages not complete,
        and what it has set for later (aliases, links). Cheap: asked for after every read. Of the right size, not exact.
        """
        ...

    @property
    def has_output(self) -> bool:
        """False when nothing is to be written, the connection is not `closed` and no `deadline` came closer: most reads
        are answered by a later commit. True when unsure."""
        ...

    @property
    def more(self) -> bool:
        """`receive_data` has stopped before the end of what it was given: a call without bytes goes on. False once
        nothing more can come of it."""
        ...

    @property
    def spoken(self) -> str:
        """Protocol that the peer speaks in place of ours (`bridge.transport.spoken`); empty: it speaks ours, or none
        that is known."""
        ...

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        """Take bytes of the peer; return the events they complete, in order (often empty). Without bytes: a turn, for
        what came from elsewhere, and for `more`.

        One call does a few milliseconds of work at most, its events included, whatever the bytes say: what takes longer
        is left, and `more` is true.
        """
        ...

    def receive_eof(self, now: float) -> Sequence[Any]:
        """The peer closed or the socket broke; returns the last events. Idempotent."""
        ...

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        """The deadline passed: keep-alive, idle timeout or handshake limit. Where we are not `listening`, what the peer
        has sent since may not have been read: its silence does not count, and what we owe it is sent all the same."""
        ...

    def shed(self) -> Sequence[Any]:
        """Close, as the peer makes us hold more than there is room for: drop what is held, tell it by `data_to_send` in
        the protocol's words as far as it can be told, and return the last events."""
        ...

    def data_to_send(self) -> bytes:
        """Everything to write now, once; empty when there is nothing."""
        ...
