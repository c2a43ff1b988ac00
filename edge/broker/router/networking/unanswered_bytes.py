"""Bytes of messages that a neighbour has not answered, on one link between routers."""

from __future__ import annotations

from collections.abc import Callable

from bridge.engine import Link
from edge.broker.limits import NETWORK_MESSAGE_BYTES
from edge.broker.router.networking.peering import Peering


class UnansweredBytes:
    """Sends the messages of one link, and counts them until they are answered."""

    def __init__(self, peering: Peering, resume: Callable[[], None]) -> None:
        """`resume` is called when there is room again."""
        self._peering = peering
        self._resume = resume
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Return True while the link may send nothing more."""
        return self._peering.is_full(self._bytes)

    def send(self, link: Link, first_tag: int, messages: list[bytes]) -> list[int]:
        """Send messages with consecutive tags. Return the bytes that each one takes until it is answered."""
        sizes = [NETWORK_MESSAGE_BYTES + len(message) for message in messages]
        self._peering.engine.send_all(link, first_tag, messages)
        self.count(sum(sizes))
        self._peering.traffic.sent += len(messages)
        self._peering.wake()
        return sizes

    def count(self, change: int) -> None:
        """Add bytes; negative: they were answered."""
        was_full = self.is_full
        self._bytes += change
        self._peering.count(change)
        if was_full and not self.is_full:
            self._resume()
