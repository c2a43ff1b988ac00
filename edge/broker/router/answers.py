"""Answers to origins. An answer that waits for a commit is released by the outcome of that commit.

A waiting answer carries the `Ticket` of the open group that its message joined, and only the decided ticket releases
it. It does not matter which call sealed the group, or in which order `flush` and the end of a commit are called.
Tickets are decided in the order of their groups, so one queue of answers keeps the order of the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from edge.broker.model.interfaces import Acceptance, MessageCounts, Origin, Refusal
from edge.broker.model.isolation import send_answer
from edge.broker.router.batch import CollectedBatch
from edge.broker.router.ordered_replies import OrderedReplies, Withdraw
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.ticket import BothTickets, Ticket

_ACCEPTED: Final = Acceptance.ACCEPTED

_Commits = Ticket | BothTickets

_Waiting = tuple[_Commits, Origin, Sequence[int], Refusal | Acceptance | None, CollectedBatch | None]
"""Commit that an answer waits for, its origin, its tokens, and the answer (None: the outcome of the commit). The last
entry is the origin if that is a batch: asking for the class of a `Protocol` takes 1 us."""


class Answers:
    """Answers to every origin, in the order of its messages."""

    def __init__(self, figures: MessageCounts, now_s: Callable[[], float]) -> None:
        """`figures` count the answers; `now_s` is monotonic seconds."""
        self._figures = figures
        self._waiting: deque[_Waiting] = deque()
        self._releasing = False
        self.awaiting_commit: dict[Origin, int] = {}
        """Number of waiting answers by origin (other modules only read it)."""
        self.ordered: Final = OrderedReplies(self.awaiting_commit, now_s)
        self._replies: Final = self.ordered.waiting

    # --- outcomes of messages ---------------------------------------------------------------------------------

    def accept_with(self, ticket: _Commits, origin: Origin, tokens: Sequence[int]) -> None:
        """Accept when the commit of this ticket succeeds, refuse when it fails."""
        if tokens:
            if self._replies:
                origin, tokens = self.ordered.queue_behind(origin, tokens)
            self._waiting.append((ticket, origin, tokens, None, None))
            awaiting = self.awaiting_commit
            awaiting[origin] = awaiting.get(origin, 0) + 1

    def accept_all(self, ticket: Ticket | None, batch: CollectedBatch) -> None:
        """Answer a batch: messages that a log keeps as in `accept_with`, by this ticket (None: there are none), and the
        rest as in `accept`. None of its origins has waiting replies (`ordered`)."""
        now, later = batch.part(self.awaiting_commit)
        if later:
            behind = self._waiting[-1][0] if ticket is None else ticket
            self._waiting.append((behind, batch, range(later), None if ticket is not None else _ACCEPTED, batch))
            self.awaiting_commit[batch] = 1
            batch.count_waits(self.awaiting_commit)
        if now:
            self._figures.acknowledged += now
            batch.accept_now()

    def accept(self, origin: Origin, tokens: Sequence[int], how: Acceptance = _ACCEPTED) -> None:
        """Accept now, or after earlier answers to the origin [MQTT-4.6.0-2]."""
        if not tokens:
            return
        if self._replies:
            origin, tokens = self.ordered.queue_behind(origin, tokens)
        if origin in self.awaiting_commit:
            self._wait(self._waiting[-1][0], origin, tokens, how)
            return
        self._figures.acknowledged += len(tokens)
        if how is _ACCEPTED:
            origin.accepted(tokens)
        else:
            origin.accepted_unrouted(tokens)

    def refuse(self, origin: Origin, tokens: Sequence[int], why: Refusal) -> None:
        """Refuse now, or after earlier answers to the origin."""
        if not tokens:
            return
        if self._replies:
            origin, tokens = self.ordered.queue_behind(origin, tokens)
        if origin in self.awaiting_commit:
            origin.store_failed(tokens)
            self._wait(self._waiting[-1][0], origin, tokens, why)
            return
        self._figures.refused += len(tokens)
        origin.refused(tokens, why)

    def await_consumer(self, origin: Origin, tokens: Sequence[int], withdraw: Withdraw) -> tuple[Origin, Sequence[int]]:
        """Return the origin and tokens that a consumer answers, so that `origin` gets all its answers in order.
        `withdraw` is called when they come too late."""
        return self.ordered.add(origin, tokens, withdraw)

    # --- release ---------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Give the answers of decided commits, oldest first."""
        waiting, awaiting = self._waiting, self.awaiting_commit
        if self._releasing:
            return  # called from within an answer: the loop below continues
        self._releasing = True
        ended: set[Origin] = set()
        try:
            while waiting and waiting[0][0].decided:
                ticket, origin, tokens, answer, batch = waiting.popleft()
                left = awaiting.pop(origin) - 1
                if batch is not None:
                    batch.count_answered(awaiting)
                if left:
                    tokens, more = self._with_following(ticket, origin, tokens, answer)
                    if left > more:
                        awaiting[origin] = left = left - more
                    else:
                        left = 0
                given = _outcome(ticket.error) if answer is None else answer
                if isinstance(given, Refusal):
                    self._figures.refused += len(tokens)
                else:
                    self._figures.acknowledged += len(tokens)
                if origin not in ended and not send_answer(origin, tokens, given):
                    ended.add(origin)
                if not left and self._replies:
                    self._release_replies(origin, batch)
        finally:
            self._releasing = False

    def _release_replies(self, origin: Origin, batch: CollectedBatch | None) -> None:
        if batch is None:
            self.ordered.release(origin)
            return
        for member, _, _ in batch.members():
            self.ordered.release(member)

    def expire(self) -> None:
        """Refuse messages that consumers have not answered in time."""
        if self._replies:
            self._figures.refused += self.ordered.expire()

    def _with_following(
        self, ticket: _Commits, origin: Origin, tokens: Sequence[int], answer: Refusal | Acceptance | None
    ) -> tuple[Sequence[int], int]:
        """Return `tokens` with those of the next equal answers, and the number of these answers."""
        waiting, together = self._waiting, list(tokens)
        count = 0
        while waiting:
            following, whom, its_tokens, its_answer, _ = waiting[0]
            if whom is not origin or following is not ticket or its_answer is not answer:
                break
            together += its_tokens
            waiting.popleft()
            count += 1
        return (together, count) if count else (tokens, 0)

    def _wait(
        self, ticket: _Commits, origin: Origin, tokens: Sequence[int], answer: Refusal | Acceptance | None
    ) -> None:
        self._waiting.append((ticket, origin, tokens, answer, None))
        self.awaiting_commit[origin] = self.awaiting_commit.get(origin, 0) + 1


def refusal(error: StoreError) -> Refusal:
    """Return the refusal for a failed commit."""
    return Refusal.FULL if isinstance(error, StoreFull) else Refusal.STORE_FAILED


def _outcome(error: StoreError | None) -> Refusal | Acceptance:
    return _ACCEPTED if error is None else refusal(error)
