"""Messages to topics without a subscriber: a counter, and the latest addresses for operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from edge.broker.limits import UNROUTED_ADDRESSES_MAX, UNROUTED_S
from edge.broker.model.interfaces import MessageCounts


class UnroutedAddress(NamedTuple):
    """Topic without a subscriber for its latest messages."""

    address: str
    messages: int
    """Count since the address was noted."""
    last_s: float
    """Time of the last of them, monotonic seconds."""


class UnroutedMessages:
    """Counts messages without a subscriber, and notes their latest `UNROUTED_ADDRESSES_MAX` addresses."""

    def __init__(self, figures: MessageCounts, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic seconds."""
        self._figures = figures
        self._now_s = now_s
        self._noted: dict[str, UnroutedAddress] = {}
        """Noted topics by address, the latest last."""

    def note(self, address: str, messages: int) -> None:
        """Count messages to an address without a subscriber."""
        self._figures.unrouted += messages
        before = self._noted.pop(address, None)
        if before is None and len(self._noted) >= UNROUTED_ADDRESSES_MAX:
            del self._noted[next(iter(self._noted))]
        count = messages if before is None else before.messages + messages
        self._noted[address] = UnroutedAddress(address, count, self._now_s())

    def __iter__(self) -> Iterator[UnroutedAddress]:
        """Yield the addresses with such messages in the last `UNROUTED_S` seconds, the latest first."""
        since_s = self._now_s() - UNROUTED_S
        return (one for one in reversed(list(self._noted.values())) if one.last_s >= since_s)
