"""Store-and-forward of a device: the readings that the gateway has not acknowledged yet.

Delivery is at least once: a reading is removed only by its acknowledgement, and after a broken connection all
unacknowledged readings are sent again. This module is independent of the protocol.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from bridge.hidden import hides


@hides("body")
@dataclass(frozen=True, slots=True)
class SimulatedReading:
    """Reading: `seq` counts from 0 in each run of the device, `body` is the content of the message."""

    seq: int
    body: bytes


@dataclass(slots=True)
class _OutboxEntry:
    reading: SimulatedReading
    sends: int = 0
    in_flight: bool = False


class DeviceOutbox:
    """Bounded buffer of unacknowledged readings, oldest first.

    A reading is *waiting* or *in flight*. When the buffer is full the oldest waiting reading is dropped and counted, as
    one in flight may still be acknowledged.
    """

    def __init__(self, capacity: int) -> None:
        """`capacity`: most readings in the buffer, at least 1."""
        if capacity < 1:
            raise ValueError("an outbox holds at least one reading")
        self._capacity = capacity
        self._entries: dict[int, _OutboxEntry] = {}
        self._waiting: list[int] = []
        self.published = 0
        """Readings added so far."""
        self.acknowledged = 0
        self.dropped = 0
        """Readings dropped because the buffer was full."""
        self.resent = 0
        """Sends beyond the first of a reading."""
        self.in_flight = 0

    def __len__(self) -> int:
        """Return the number of unacknowledged readings."""
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """Number of readings to be sent."""
        return len(self._entries) - self.in_flight

    def add(self, reading: SimulatedReading) -> SimulatedReading | None:
        """Add a reading; return the one that was dropped for it, if any (the new one when all are in flight)."""
        if reading.seq in self._entries:
            raise ValueError(f"reading {reading.seq} is in the outbox already")
        self.published += 1
        self._entries[reading.seq] = _OutboxEntry(reading)
        heapq.heappush(self._waiting, reading.seq)
        if len(self._entries) <= self._capacity:
            return None
        self.dropped += 1
        return self._entries.pop(heapq.heappop(self._waiting)).reading

    def send(self) -> SimulatedReading | None:
        """Mark the oldest waiting reading as in flight and return it; None when none waits."""
        if not self._waiting:
            return None
        entry = self._entries[heapq.heappop(self._waiting)]
        entry.in_flight = True
        entry.sends += 1
        self.resent += entry.sends > 1
        self.in_flight += 1
        return entry.reading

    def acknowledge(self, seq: int) -> int | None:
        """Remove an acknowledged reading and return how often it was sent; None when it was not in flight."""
        entry = self._entries.get(seq)
        if entry is None or not entry.in_flight:
            return None
        del self._entries[seq]
        self.in_flight -= 1
        self.acknowledged += 1
        return entry.sends

    def take_back(self, seq: int) -> None:
        """Return a reading that the gateway refused or did not answer to the waiting ones, if it is in flight."""
        entry = self._entries.get(seq)
        if entry is not None and entry.in_flight:
            entry.in_flight = False
            self.in_flight -= 1
            heapq.heappush(self._waiting, seq)

    def take_all_back(self) -> None:
        """Return all readings in flight to the waiting ones, after a broken connection."""
        for seq, entry in self._entries.items():
            if entry.in_flight:
                self.take_back(seq)
