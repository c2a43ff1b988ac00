"""Answers in the order of what was sent, where a consumer gives some of them [MQTT-4.6.0-2] [MQTT-4.6.0-3].

What is stored is answered by commits, which keep the order. An anycast message is answered when its consumer settles
it, sooner or later than what was sent before and behind it. From such a message on, and until it has been answered,
every run of an origin that promises the order has an `OrderedReply` here: whoever has an answer for the run gives it to
the reply, which is an origin of its own, and the replies of one origin pass their answers on oldest first. All other
origins never get here.

A consumer that keeps a message to itself does not hold up the rest for ever: after `limits.ANYCAST_ANSWER_S_MAX` the
message counts as refused, and what was waiting with no consumer is taken back. So does a message that waits for its
first consumer (`Origin.waits_for_consumer`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Sequence

from edge.broker.limits import ANYCAST_ANSWER_S_MAX, ANYCAST_HELD_MAX
from edge.broker.model.interfaces import Acceptance, Origin, Refusal
from edge.broker.model.isolation import answered

Withdraw = Callable[[Origin], None]
"""Nobody waits for an answer to the messages of this origin any more."""


class OrderedReply(Origin):
    """The answers to one run: an origin whose tokens are the indexes of its messages in the run."""

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
        """When the consumer's time is over; without `withdraw` a commit answers, and has all the time it takes."""
        self.withdraw = withdraw
        self._replies = replies
        self._origin = origin
        self._answers: list[Refusal | Acceptance | None] = [None] * len(tokens)
        """None: not answered yet."""
        self._passed_on = 0
        """So many answers the origin has."""

    def accepted(self, tokens: Sequence[int]) -> None:
        self._note(tokens, Acceptance.ACCEPTED)

    def accepted_unrouted(self, tokens: Sequence[int]) -> None:
        self._note(tokens, Acceptance.UNROUTED)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.not_stored(tokens)
        self._note(tokens, why)

    def not_stored(self, tokens: Sequence[int]) -> None:
        self._origin.not_stored([self.tokens[i] for i in tokens])

    def waits_for_consumer(self) -> bool:
        return self._origin.waits_for_consumer()

    @property
    def unanswered(self) -> list[int]:
        """Indexes of the messages without an answer."""
        return [i for i, answer in enumerate(self._answers) if answer is None]

    def take_alike(self) -> tuple[Sequence[int], Refusal | Acceptance] | None:
        """Take the next answers for the origin that are alike: its tokens, and their answer. None when the next answer
        is missing, or none is left."""
        start, answers = self._passed_on, self._answers
        answer = answers[start] if start < len(answers) else None
        if answer is None:
            return None
        stop = start + 1 if answers.count(answer) < len(answers) else len(answers)  # nearly always all of them
        while stop < len(answers) and answers[stop] is answer:
            stop += 1
        self._passed_on = stop
        return self.tokens[start:stop], answer

    @property
    def complete(self) -> bool:
        """Every answer was passed on."""
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
    """The replies of a router's origins that wait for a consumer, and of what such an origin sent since."""

    def __init__(self, awaiting_commit: Container[Origin], now_s: Callable[[], float]) -> None:
        """`awaiting_commit`: origins that have answers to come of a commit, which are older than all of their replies;
        `now_s` is monotonic seconds."""
        self.waiting: dict[Origin, deque[OrderedReply]] = {}
        """By origin, oldest first (outside only to be looked at: empty most of the time)."""
        self._awaiting_commit = awaiting_commit
        self._now_s = now_s
        self._earliest_s = math.inf
        """No deadline is before this."""

    def add(self, origin: Origin, tokens: Sequence[int], withdraw: Withdraw | None) -> tuple[Origin, Sequence[int]]:
        """Whom to answer for `tokens` of `origin`, and under which tokens; `withdraw` where a consumer answers."""
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

    def behind(self, origin: Origin, tokens: Sequence[int]) -> tuple[Origin, Sequence[int]]:
        """As `add`, for what no consumer answers, where older replies wait; else the origin is answered itself."""
        return self.add(origin, tokens, None) if origin in self.waiting else (origin, tokens)

    def release(self, origin: Origin) -> None:
        """Pass on what nothing older is missing of; nothing happens while a commit owes older answers. Nothing more is
        passed on to an origin that raises."""
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
            if not answered(origin, *alike):
                break
        if self.waiting.get(origin) is replies:
            del self.waiting[origin]

    def expire(self) -> int:
        """Refuse what consumers have not answered in time; returns how many messages that were. Who waits is looked
        through when the first of them may be late, and not before."""
        now_s, count = self._now_s(), 0
        if now_s < self._earliest_s:
            return 0
        for replies in list(self.waiting.values()):
            while replies and replies[0].deadline_s <= now_s:
                oldest = replies[0]
                late = oldest.unanswered
                if oldest.withdraw is None or not late:
                    break  # a commit answers it, or older answers are still to come of one
                oldest.withdraw(oldest)
                count += len(late)
                oldest.refused(late, Refusal.NO_ANSWER)
        oldest_of_each = (replies[0].deadline_s for replies in self.waiting.values() if replies)
        self._earliest_s = min(oldest_of_each, default=math.inf)
        return count
