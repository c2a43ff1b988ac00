"""Who waits for a commit with something else than messages: the answer to an attach, or to CONNECT.

As with `answers`, nothing but the decided ticket releases it.
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
    tell: Callable[[Refusal | None], None]


class CommitWaits:
    """Consumers and origins that are told how the commit of a ticket ended."""

    def __init__(self) -> None:
        self._waiting: list[_CommitWait] = []

    def add(self, ticket: Ticket, party: Consumer | Origin, tell: Callable[[Refusal | None], None]) -> None:
        """Call `tell` with None once the commit has succeeded, or with why it failed; at once where that is known.
        What it raises later ends the connection of `party`."""
        if ticket.decided:
            _tell(ticket, tell)
        else:
            self._waiting.append(_CommitWait(ticket, party, tell))

    def release(self) -> None:
        """A commit is over: tickets may be decided."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.ticket.decided:
                self._waiting.append(each)
                continue
            try:
                _tell(each.ticket, each.tell)
            except Exception as error:
                end_party(each.party, error)


def _tell(ticket: Ticket, tell: Callable[[Refusal | None], None]) -> None:
    tell(None if ticket.error is None else refusal(ticket.error))
