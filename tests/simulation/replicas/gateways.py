"""Gateways that send numbered messages to one hub at a time, and everything unanswered again to the next one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.hub.groups import Content, GatewaySession, Key, LandingOutcome, LedgerDocument, QueueEntry
from cloud.lake.landing import LedgerRange
from cloud.lake.rows import ReceivedBatch

TENANT: Final = "default"
ADDRESS: Final = "plant"
PER_BATCH_MAX: Final = 4
UNANSWERED_MAX: Final = 24
"""Credit of a gateway, in messages."""


class SimulatedGateway:
    """One gateway: each of its numbers is a message, or a range of the ledger where it had to drop one."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.key: Key = (TENANT, name)
        self.session: GatewaySession | None = None
        self.hub: int | None = None
        """Hub that it is connected to."""
        self.answered: set[int] = set()
        self.made = 0
        """Number of messages so far."""
        self._dropped: set[int] = set()
        self._sent = 0
        self._random = random

    @property
    def stored(self) -> set[int]:
        """Numbers of messages that must be in the lake once they are answered."""
        return set(range(self.made)) - self._dropped

    @property
    def dropped(self) -> set[int]:
        """Numbers that must be in the ledger once they are answered."""
        return self._dropped

    @property
    def unanswered(self) -> int:
        return self.made - len(self.answered)

    def make(self) -> None:
        """Make some messages; drop few of them. Without credit it makes none."""
        if self.unanswered > UNANSWERED_MAX:
            return
        for number in range(self.made, self.made + self._random.randint(1, PER_BATCH_MAX)):
            if self._random.random() < 0.1:
                self._dropped.add(number)
            self.made += 1

    def connect(self, hub: int, remote: str) -> None:
        """Open a connection to a hub: everything unanswered is sent again."""
        self.session = GatewaySession(TENANT, self.name, remote)
        self.hub = hub
        self._sent = min(set(range(self.made)) - self.answered, default=self.made)

    def disconnect(self) -> None:
        """Lose the connection."""
        self.session = self.hub = None

    def send(self) -> list[QueueEntry]:
        """Return what is sent now over the present connection."""
        session = self.session
        if session is None:
            return []
        entries = []
        while self._sent < self.made:
            last = min(self.made, self._sent + self._random.randint(1, PER_BATCH_MAX)) - 1
            entries += self._entries(session, self._sent, last)
            self._sent = last + 1
        return entries

    def _entries(self, session: GatewaySession, first: int, last: int) -> list[QueueEntry]:
        """Return a batch for each run of messages between dropped ones, and the ledger for those."""
        entries: list[QueueEntry] = []
        number = first
        while number <= last:
            end = number
            drops = number in self._dropped
            while end < last and ((end + 1) in self._dropped) is drops:
                end += 1
            content = self._ledger(number, end) if drops else self._batch(number, end)
            entries.append(QueueEntry(session, content, self._answer(session, number, end), 0.0))
            number = end + 1
        return entries

    def _batch(self, first: int, last: int) -> Content:
        bodies = [str(number).encode() for number in range(first, last + 1)]
        run = Run(ADDRESS, "device", 0, b"", bodies, 1_000)
        stored = [Stored(-1, first, run)]
        return ReceivedBatch(TENANT, self.name, decode(encode(stored, space="s", epoch=self.name)))

    def _ledger(self, first: int, last: int) -> Content:
        names = (TENANT, self.name, self.name, ADDRESS)
        return LedgerDocument([LedgerRange(*names, number, number, 1, "quota", 1) for number in range(first, last + 1)])

    def _answer(self, session: GatewaySession, first: int, last: int) -> Callable[[LandingOutcome, str], None]:
        def answer(outcome: LandingOutcome, _words: str) -> None:
            if outcome is LandingOutcome.LANDED and session is self.session:
                self.answered |= set(range(first, last + 1))

        return answer
