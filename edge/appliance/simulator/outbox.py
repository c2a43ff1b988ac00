"""The device's own store-and-forward: readings that no gateway has acknowledged yet.

At least once between device and gateway means: a reading is forgotten when its acknowledgement came and not before;
after a broken connection everything sent and not acknowledged is sent again. This module knows no protocol.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from bridge.hidden import hides


@hides("body")
@dataclass(frozen=True, slots=True)
class SimulatedReading:
    """One measurement: `seq` counts from 0 in each run of the device, `body` is what travels."""

    seq: int
    body: bytes


@dataclass(slots=True)
class _OutboxEntry:
    reading: SimulatedReading
    sends: int = 0
    in_flight: bool = False


class DeviceOutbox:
    """A bounded buffer of un-acknowledged readings, oldest first.

    A reading is *waiting* or *in flight*. When the buffer is full the oldest waiting reading is dropped and counted:
    one in flight may still be acknowledged.
    """

    def __init__(self, capacity: int) -> None:
        """`capacity`: readings kept at most, at least 1."""
        if capacity < 1:
            raise ValueError("an outbox holds at least one reading")
        self._capacity = capacity
        self._entries: dict[int, _OutboxEntry] = {}
        self._waiting: list[int] = []
        self.published = 0
        """Readings ever added."""
        self.acknowledged = 0
        self.dropped = 0
        """Readings given up because the buffer was full."""
        self.resent = 0
        """Sends beyond the first of a reading."""
        self.in_flight = 0

    def __len__(self) -> int:
        """Readings not acknowledged."""
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """Readings to be sent."""
        return len(self._entries) - self.in_flight

    def add(self, reading: SimulatedReading) -> SimulatedReading | None:
        """Keep a new reading; returns the one that was dropped for it, if any (the new one when all are in flight)."""
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
        """The oldest waiting reading, now in flight; None when nothing waits."""
        if not self._waiting:
            return None
        entry = self._entries[heapq.heappop(self._waiting)]
        entry.in_flight = True
        entry.sends += 1
        self.resent += entry.sends > 1
        self.in_flight += 1
        return entry.reading

    def acknowledge(self, seq: int) -> int | None:
        """The gateway has it: forget it and return how often it was sent; None when it was not in flight."""
        entry = self._entries.get(seq)
        if entry is None or not entry.in_flight:
            return None
        del self._entries[seq]
        self.in_flight -= 1
        self.acknowledged += 1
        return entry.sends

    def take_back(self, seq: int) -> None:
        """The gateway refused it or did not answer: it waits again. Nothing happens when it was not in flight."""
        entry = self._entries.get(seq)
        if entry is not None and entry.in_flight:
            entry.in_flight = False
            self.in_flight -= 1
            heapq.heappush(self._waiting, seq)

    def take_all_back(self) -> None:
        """The connection is gone: everything in flight waits again."""
        for seq, entry in self._entries.items():
            if entry.in_flight:
                self.take_back(seq)
