"""Settle the messages of a ticket that a peer answers one by one and in any order.

A ticket covers the messages of a run. The outbox settles a ticket from its first message on, so an answer out of order
waits here for the earlier ones.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple, Protocol

from bridge.forwarders.outcome import ForwardOutcome


class Settle(Protocol):
    """Type of `bridge.forwarders.outbox.ForwarderOutbox.settle`."""

    def __call__(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None: ...


class MessageAnswer(NamedTuple):
    """The peer's answer to one message."""

    outcome: ForwardOutcome
    why: str = ""


ACCEPTED = MessageAnswer(ForwardOutcome.ACCEPTED)


class Flight:
    """Messages of one ticket that are not settled: unanswered, or answered before an earlier one."""

    __slots__ = ("_answers", "_first", "ticket")

    def __init__(self, ticket: int, messages: int) -> None:
        self.ticket = ticket
        self._answers: list[MessageAnswer | None] = [None] * messages
        self._first = 0
        """Index of the first message that is not settled."""

    @property
    def over(self) -> bool:
        """True when every message is settled."""
        return self._first == len(self._answers)

    def answered(self, index: int, answer: MessageAnswer) -> bool:
        """Record the peer's first answer to one message; ignore further ones. Return True when `settle` is due."""
        if self._answers[index] is None:
            self._answers[index] = answer
        return index == self._first

    def settle(self, settle: Settle) -> None:
        """Settle the answered messages, from the front on."""
        end = self._first
        while end < len(self._answers) and self._answers[end] is not None:
            end += 1
        ready, self._first = self._answers[self._first : end], end
        for answer, group in groupby(ready):
            if answer is not None:
                settle(self.ticket, answer.outcome, answer.why, count=len(list(group)))


class Flights:
    """Collects answered flights, as one read has many of a peer's answers, and settles them together."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._ready: dict[int, Flight] = {}

    def answered(self, flight: Flight, index: int, answer: MessageAnswer) -> None:
        """Record the peer's answer to one message of a flight; `flush` settles it."""
        if flight.answered(index, answer):
            self._ready[flight.ticket] = flight

    def flush(self) -> None:
        """Settle all that is possible, with one call for consecutive messages with the same answer."""
        ready, self._ready = self._ready, {}
        for flight in ready.values():
            flight.settle(self._settle)
