"""Answers in the order of the messages, where a consumer gives some of them [MQTT-4.6.0-2] [MQTT-4.6.0-3].

Stored messages are answered by commits, which keep the order. An anycast message is answered when its consumer settles
it, sooner or later than the messages around it. From such a message on, and until it is answered, every run of an
origin that promises the order has an `OrderedReply`. The reply is an origin: it gets the answers for its run, and the
replies of one origin pass their answers on, oldest first. Other origins do not use this module.

A consumer that keeps a message does not delay the rest forever: after `limits.ANYCAST_ANSWER_S_MAX` the message counts
as refused, and messages that no consumer has yet are withdrawn. This includes messages that wait for their first
consumer (`Origin.waits_for_consumer`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Sequence

from edge.broker.limits import ANYCAST_ANSWER_S_MAX, ANYCAST_HELD_MAX
from edge.broker.model.interfaces import Acceptance, Origin, Refusal
from edge.broker.model.isolation import send_answer

Withdraw = Callable[[Origin], None]
"""Drops messages of this origin, because it waits no longer for their answers."""


class OrderedReply(Origin):
    """Answers to one run: an origin with the indexes of its messages in the run as tokens."""

    __slots__ = ("_answers", "_origin", "_passed_on", "_replies", "deadline_s", "name", "tokens", "withdraw")

    def __init__(
        self,
        replies: OrderedReplies,
        origin: Origin,
        tokens: Sequence[int],
        deadline_s: float,
        withdraw: Withdraw | None,
    ) -> None:
        self.name = origin.name
        self.tokens = tokens
        self.deadline_s = deadline_s
        """Time limit of the consumer. Without `withdraw` a commit answers, and has no limit."""
        self.withdraw = withdraw
        self._replies = replies
        self._origin = origin
        self._answers: list[Refusal | Acceptance | None] = [None] * len(tokens)
        """None for messages that are not answered yet."""
        self._passed_on = 0
        """Number of answers that the origin has."""

    def accepted(self, tokens: Sequence[int]) -> None:
        self._note(tokens, Acceptance.ACCEPTED)

    def accepted_unrouted(self, tokens: Sequence[int]) -> None:
        self._note(tokens, Acceptance.UNROUTED)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.store_failed(tokens)
        self._note(tokens, why)

    def store_failed(self, tokens: Sequence[int]) -> None:
        self._origin.store_failed([self.tokens[i] for i in tokens])

    def waits_for_consumer(self) -> bool:
        return self._origin.waits_for_consumer()

    @property
    def unanswered(self) -> list[int]:
        """Indexes of messages without an answer."""
        return [i for i, answer in enumerate(self._answers) if answer is None]

    def take_alike(self) -> tuple[Sequence[int], Refusal | Acceptance] | None:
        """Take the next equal answers for the origin: its tokens, and their answer. Return None when the next answer is
        missing, or none is left."""
        start, answers = self._passed_on, self._answers
        answer = answers[start] if start < len(answers) else None
        if answer is None:
            return None
        stop = start + 1 if answers.count(answer) < len(answers) else len(answers)  # usually all of them
        while stop < len(answers) and answers[stop] is answer:
            stop += 1
        self._passed_on = stop
        return self.tokens[start:stop], answer

    @property
    def complete(self) -> bool:
        """True when every answer was passed on."""
        return self._passed_on == len(self._answers)

    def _note(self, tokens: Sequence[int], answer: Refusal | Acceptance) -> None:
        answers = self._answers
        if len(tokens) == len(answers) == answers.count(None):
            self._answers = [answer] * len(answers)
        else:
            for i in tokens:
                if answers[i] is None:
                    answers[i] = answer
        self._replies.release(self._origin)


class OrderedReplies:
    """Replies of origins with a message at a consumer, and with later messages."""

    def __init__(self, awaiting_commit: Container[Origin], now_s: Callable[[], float]) -> None:
        """`awaiting_commit` has origins with pending answers of commits, which are older than all of their replies.
        `now_s` is monotonic seconds."""
        self.waiting: dict[Origin, deque[OrderedReply]] = {}
        """Replies by origin, oldest first. Other modules only read it; it is empty most of the time."""
        self._awaiting_commit = awaiting_commit
        self._now_s = now_s
        self._earliest_s = math.inf
        """Lower bound of all deadlines."""

    def add(self, origin: Origin, tokens: Sequence[int], withdraw: Withdraw | None) -> tuple[Origin, Sequence[int]]:
        """Return the origin and tokens to answer for `tokens` of `origin`; `withdraw` if a consumer answers."""
        deadline_s = self._now_s() + ANYCAST_ANSWER_S_MAX
        self._earliest_s = min(self._earliest_s, deadline_s)
        reply = OrderedReply(self, origin, tokens, deadline_s, withdraw)
        self.waiting.setdefault(origin, deque()).append(reply)
        return reply, range(len(tokens))

    def may_hold(self, origin: Origin, count: int) -> bool:
        """Return True when `count` more messages of an origin may wait for the first consumer of their address."""
        replies = self.waiting.get(origin, ())
        if len(replies) >= ANYCAST_HELD_MAX:
            return False
        return count + sum(len(each.unanswered) for each in replies if each.withdraw is not None) <= ANYCAST_HELD_MAX

    def queue_behind(self, origin: Origin, tokens: Sequence[int]) -> tuple[Origin, Sequence[int]]:
        """Return the origin and tokens to answer for messages without a consumer: a reply if older ones wait, otherwise
        the origin itself."""
        return self.add(origin, tokens, None) if origin in self.waiting else (origin, tokens)

    def release(self, origin: Origin) -> None:
        """Pass on answers in order. Nothing happens while older answers of a commit are pending, and an origin that
        raises gets nothing more."""
        replies = self.waiting.get(origin)
        if replies is None or origin in self._awaiting_commit:
            return
        while replies:
            oldest = replies[0]
            if oldest.complete:
                replies.popleft()
                continue
            alike = oldest.take_alike()
            if alike is None:
                return
            if not send_answer(origin, *alike):
                break
        if self.waiting.get(origin) is replies:
            del self.waiting[origin]

    def expire(self) -> int:
        """Refuse messages that consumers have not answered in time, and return their number. Origins are only checked
        when the first of them may be late."""
        now_s, count = self._now_s(), 0
        if now_s < self._earliest_s:
            return 0
        for replies in list(self.waiting.values()):
            while replies and replies[0].deadline_s <= now_s:
                oldest = replies[0]
                late = oldest.unanswered
                if oldest.withdraw is None or not late:
                    break  # a commit answers it, or older answers of a commit are pending
                oldest.withdraw(oldest)
                count += len(late)
                oldest.refused(late, Refusal.NO_ANSWER)
        oldest_of_each = (replies[0].deadline_s for replies in self.waiting.values() if replies)
        self._earliest_s = min(oldest_of_each, default=math.inf)
        return count
