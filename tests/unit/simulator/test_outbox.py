"""The outbox against a model: only overflow drops a reading, and an acknowledged reading is not sent again."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from simulator.outbox import DeviceOutbox, SimulatedReading

CAPACITY = 8


class OutboxMachine(RuleBasedStateMachine):
    """The model: two ordered lists."""

    flown = Bundle("flown")

    def __init__(self) -> None:
        super().__init__()
        self.outbox = DeviceOutbox(CAPACITY)
        self.waiting: list[int] = []
        self.flying: dict[int, int] = {}
        self.sends: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.dropped: set[int] = set()
        self.next = 0

    @rule()
    def add(self) -> None:
        dropped = self.outbox.add(SimulatedReading(self.next, b"x"))
        self.waiting.append(self.next)
        self.next += 1
        if len(self.waiting) + len(self.flying) > CAPACITY:
            oldest = self.waiting.pop(0)
            assert dropped is not None
            assert dropped.seq == oldest
            self.dropped.add(oldest)
        else:
            assert dropped is None

    @rule(target=flown)
    def send(self) -> int:
        reading = self.outbox.send()
        if not self.waiting:
            assert reading is None
            return -1
        assert reading is not None
        seq = self.waiting.pop(0)
        assert reading.seq == seq, "the oldest goes first"
        self.flying[seq] = 1
        self.sends[seq] = self.sends.get(seq, 0) + 1
        return seq

    @rule(seq=flown)
    def acknowledge(self, seq: int) -> None:
        sends = self.outbox.acknowledge(seq)
        if seq in self.flying:
            assert sends == self.sends[seq]
            del self.flying[seq]
            self.acknowledged.add(seq)
        else:
            assert sends is None

    @rule(seq=flown)
    def take_back(self, seq: int) -> None:
        self.outbox.take_back(seq)
        if self.flying.pop(seq, None) is not None:
            self.waiting = sorted([*self.waiting, seq])

    @rule()
    def disconnect(self) -> None:
        self.outbox.take_all_back()
        self.waiting = sorted([*self.waiting, *self.flying])
        self.flying = {}

    @invariant()
    def nothing_is_lost_uncounted(self) -> None:
        assert len(self.outbox) == len(self.waiting) + len(self.flying)
        assert self.outbox.waiting == len(self.waiting)
        assert self.outbox.acknowledged == len(self.acknowledged)
        assert self.outbox.dropped == len(self.dropped)
        assert self.outbox.published == len(self.outbox) + len(self.acknowledged) + len(self.dropped)
        assert self.outbox.resent == sum(times - 1 for times in self.sends.values())


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=60, stateful_step_count=40)


def test_new_reading_is_dropped_when_all_are_in_flight() -> None:
    outbox = DeviceOutbox(1)
    assert outbox.add(SimulatedReading(0, b"")) is None
    assert outbox.send() == SimulatedReading(0, b"")
    assert outbox.add(SimulatedReading(1, b"")) == SimulatedReading(1, b"")
    assert outbox.acknowledge(0) == 1
    assert len(outbox) == 0


def test_sequence_is_used_once() -> None:
    outbox = DeviceOutbox(2)
    outbox.add(SimulatedReading(0, b""))
    with pytest.raises(ValueError, match="already"):
        outbox.add(SimulatedReading(0, b""))


def test_outbox_needs_room() -> None:
    with pytest.raises(ValueError, match="at least one"):
        DeviceOutbox(0)
