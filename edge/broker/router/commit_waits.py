"""Answers other than for messages that wait for a commit: to an attach, or to CONNECT.

As with `answers`, only the decided ticket releases them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from edge.broker.model.interfaces import Consumer, Origin, Refusal
from edge.broker.model.isolation import end_party
from edge.broker.router.answers import refusal
from edge.broker.store.ticket import Ticket


class _CommitWait(NamedTuple):
    ticket: Ticket
    party: Consumer | Origin
    notify: Callable[[Refusal | None], None]


class CommitWaits:
    """Consumers and origins that are notified of the outcome of a commit."""

    def __init__(self) -> None:
        self._waiting: list[_CommitWait] = []

    def add(self, ticket: Ticket, party: Consumer | Origin, notify: Callable[[Refusal | None], None]) -> None:
        """Call `notify` with None once the commit has succeeded, or with the refusal if it failed; at once if it is
        decided. If a later call raises, the connection of `party` ends."""
        if ticket.decided:
            _notify(ticket, notify)
        else:
            self._waiting.append(_CommitWait(ticket, party, notify))

    def release(self) -> None:
        """Notify the parties of decided tickets."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.ticket.decided:
                self._waiting.append(each)
                continue
            try:
                _notify(each.ticket, each.notify)
            except Exception as error:
                end_party(each.party, error)


def _notify(ticket: Ticket, notify: Callable[[Refusal | None], None]) -> None:
    notify(None if ticket.error is None else refusal(ticket.error))
