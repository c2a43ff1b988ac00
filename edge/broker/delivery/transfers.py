"""Messages of a queue that an operator sends to another address, or drops: `DeadLetters` does it by rule.

A message is published again, and its position in its own log is acknowledged in the same commit. A power cut leaves it
in the queue or at its new address; it is never lost, and never at both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from bridge.message import Run, Stored
from edge.broker.delivery.consumer_group import part_of
from edge.broker.delivery.log import LogSubscription
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.store.contract import Cursors, StoreCommits
from edge.broker.store.records import Loss
from edge.broker.store.ticket import Ticket

DELETED: Final = "deleted"
"""Reason in the loss ledger for messages that an operator dropped."""

PublishRun = Callable[[Origin, Run, Sequence[int]], None]
"""Publishes a run through the router."""
WhenDecided = Callable[[Ticket, Callable[[Refusal | None], None]], None]
"""Calls back with the outcome of a ticket: None once it is on disk."""


class QueueTransfer(Origin):
    """One step: takes messages of a queue that no consumer has, and knows what became of each."""

    name = "transfers"

    def __init__(self, queue: LogSubscription, cursors: Cursors, commits: StoreCommits, user: str = "") -> None:
        """`user`: charged for the names that are created."""
        self.user = user
        self.taken = 0
        """Messages of this step; others are with a consumer, or gone."""
        self.done = 0
        self.refusals: Counter[Refusal] = Counter()
        """Messages that stay in the queue, by reason."""
        self._queue = queue
        self._cursors = cursors
        self._commits = commits
        self._waiting: set[int] = set()
        """Positions without an answer."""
        self._when_ended: Callable[[], None] | None = None

    def take(self, stored: Stored, wanted: Sequence[tuple[int, int]]) -> list[Stored]:
        """Take the wanted positions of a stored run that no consumer has. They are not delivered any more."""
        queue, first, found = self._queue, stored.position, list[Stored]()
        queue.unbuffer()
        for low, high in wanted:
            start, end = max(low, first), min(high, first + len(stored.run.bodies) - 1)
            for one, last in queue.waiting(start, end) if start <= end else ():
                queue.take(one, last)
                queue.dead_lettering.lend(one, last)
                self._waiting.update(range(one, last + 1))
                self.taken += last - one + 1
                found.append(part_of(stored, one - first, last - first + 1))
        return found

    def send(self, part: Stored, run_of: Callable[[Run, bytes], Run], publish: PublishRun) -> None:
        """Publish taken messages again. `run_of` makes the new run of a message; if it raises, the message stays."""
        for place, body in enumerate(part.run.bodies):
            position, gathered = part.position + place, self._commits.gathered
            try:
                run = run_of(part.run, body)
            except Exception:
                self.refused([position], Refusal.FORMAT_INVALID)
                continue
            publish(self, run, [position])
            if self._commits.gathered > gathered:  # in the open group: one commit for both
                self._cursors.discard(self._queue.cursor, position, position, [], if_kept=True)

    def drop(self, part: Stored, now_ns: int, when_decided: WhenDecided) -> None:
        """Drop taken messages, with an entry in the loss ledger."""
        run, first, count = part.run, part.position, len(part.run.bodies)
        last, end, size = first + count - 1, part.sequence + count - 1, sum(map(len, run.bodies))
        loss = Loss(self._queue.name, run.address, part.sequence, end, count, size, DELETED, now_ns)
        ticket = self._cursors.discard(self._queue.cursor, first, last, [loss])

        def decided(why: Refusal | None) -> None:
            self.accepted(range(first, last + 1))
            if why is not None:  # the store tries again with its next commit
                self.done -= count
                self.refusals[why] += count

        when_decided(ticket, decided)

    def call_when_ended(self, notify: Callable[[], None]) -> None:
        """Call `notify` once every message has its answer, perhaps at once. Then consumers get what stays."""
        self._when_ended = notify
        self._check_end()

    # --- answers ----------------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        for position in tokens:
            self._waiting.discard(position)
            self.done += 1
            self._queue.dead_lettering.given_up(position, position)
        self._check_end()

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for position in tokens:
            self._waiting.discard(position)
            self.refusals[why] += 1
            if self._queue.dead_lettering.keep(position, position):
                self._queue.requeue(position, position)
        self._check_end()

    def _check_end(self) -> None:
        notify = self._when_ended
        if notify is not None and not self._waiting:
            self._when_ended = None
            self._queue.pump()
            notify()
