"""Settle tickets for peers that answer each message separately and in any order.

A ticket covers the messages of a run. The outbox settles the messages of a ticket in order, so an answer waits here
for the answers to earlier messages.
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


class TicketAnswers:
    """Answers to the messages of one ticket, until they are settled."""

    __slots__ = ("_answers", "_first", "ticket")

    def __init__(self, ticket: int, messages: int) -> None:
        self.ticket = ticket
        self._answers: list[MessageAnswer | None] = [None] * messages
        self._first = 0
        """Index of the first message that is not settled."""

    @property
    def complete(self) -> bool:
        """True when every message is settled."""
        return self._first == len(self._answers)

    def record(self, index: int, answer: MessageAnswer) -> bool:
        """Record the answer to one message; ignore a second one. Return True when there is something to `settle`."""
        if self._answers[index] is None:
            self._answers[index] = answer
        return index == self._first

    def settle(self, settle: Settle) -> None:
        """Settle messages in order, up to the first one without an answer."""
        end = self._first
        while end < len(self._answers) and self._answers[end] is not None:
            end += 1
        ready, self._first = self._answers[self._first : end], end
        for answer, group in groupby(ready):
            if answer is not None:
                settle(self.ticket, answer.outcome, answer.why, count=len(list(group)))


class AnswerCollector:
    """Collects the answers of one read and settles them together."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._ready: dict[int, TicketAnswers] = {}

    def record(self, answers: TicketAnswers, index: int, answer: MessageAnswer) -> None:
        """Record the answer to one message of a ticket; `flush` settles it."""
        if answers.record(index, answer):
            self._ready[answers.ticket] = answers

    def flush(self) -> None:
        """Settle recorded answers, with one call for consecutive messages with the same answer."""
        ready, self._ready = self._ready, {}
        for answers in ready.values():
            answers.settle(self._settle)
