"""What was taken by one ticket and goes to the peer message by message: answers in any order, settled from the front.

A ticket covers messages of a run, and a peer answers each for itself. The contract settles a ticket from its first
message on, so what was answered out of turn waits here for what is before it.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple, Protocol

from bridge.forwarders.outcome import ForwardOutcome


class Settle(Protocol):
    """`bridge.forwarders.outbox.ForwarderOutbox.settle`."""

    def __call__(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None: ...


class MessageAnswer(NamedTuple):
    """What the peer said of one message."""

    outcome: ForwardOutcome
    why: str = ""


ACCEPTED = MessageAnswer(ForwardOutcome.ACCEPTED)


class Flight:
    """The messages of one ticket that have no answer, or wait for an earlier one to have its own."""

    __slots__ = ("_answers", "_first", "ticket")

    def __init__(self, ticket: int, messages: int) -> None:
        self.ticket = ticket
        self._answers: list[MessageAnswer | None] = [None] * messages
        self._first = 0
        """Index of the first message that is not settled."""

    @property
    def over(self) -> bool:
        """Every message is settled."""
        return self._first == len(self._answers)

    def answered(self, index: int, answer: MessageAnswer) -> bool:
        """The peer's word on one message; True when `settle` has something to do. The first word counts."""
        if self._answers[index] is None:
            self._answers[index] = answer
        return index == self._first

    def settle(self, settle: Settle) -> None:
        """Settle what has its answer, from the front on."""
        end = self._first
        while end < len(self._answers) and self._answers[end] is not None:
            end += 1
        ready, self._first = self._answers[self._first : end], end
        for answer, group in groupby(ready):
            if answer is not None:
                settle(self.ticket, answer.outcome, answer.why, count=len(list(group)))


class Flights:
    """The flights answered since they were last settled: a peer's answers come many in one read."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._ready: dict[int, Flight] = {}

    def answered(self, flight: Flight, index: int, answer: MessageAnswer) -> None:
        """The peer's word on one message of a flight; `flush` settles."""
        if flight.answered(index, answer):
            self._ready[flight.ticket] = flight

    def flush(self) -> None:
        """Settle what can be, a call a stretch of messages with the same answer."""
        ready, self._ready = self._ready, {}
        for flight in ready.values():
            flight.settle(self._settle)
