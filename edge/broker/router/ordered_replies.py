"""Answers in the order of what was sent, where a consumer gives some of them [MQTT-4.6.0-2] [MQTT-4.6.0-3].

What is stored is answered by commits, which keep the order. An anycast message is answered when its consumer settles
it, sooner or later than what was sent before and behind it. From such a message on, and until it has been answered, an
origin that promises the order has a queue of turns here: whoever has an answer for it gives it to the turn, which is
an origin of its own, and the queue passes on what nothing older is missing of. All other origins never get here.

A consumer that keeps a message to itself does not hold up the rest for ever: after `limits.ANYCAST_ANSWER_S_MAX` the
message counts as refused, and what was waiting with no consumer is taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Final

from edge.broker.limits import ANYCAST_ANSWER_S_MAX
from edge.broker.model.interfaces import Origin, Refusal

_OPEN: Final = object()
"""No answer yet."""

Withdraw = Callable[[Origin], None]
"""Nobody waits for an answer to the messages of this origin any more."""


class Turn(Origin):
    """The answers to one run: an origin whose tokens are the places of its messages in the run."""

    __slots__ = ("_answers", "_given", "_origin", "_queues", "deadline_s", "name", "tokens", "withdraw")

    def __init__(
        self, queues: Turns, origin: Origin, tokens: Sequence[int], deadline_s: float, withdraw: Withdraw | None
    ) -> None:
        self.name = origin.name
        self.tokens = tokens
        self.deadline_s = deadline_s
        """When the consumer's time is over; without `withdraw` a commit answers, and has all the time it takes."""
        self.withdraw = withdraw
        self._queues = queues
        self._origin = origin
        self._answers: list[object] = [_OPEN] * len(tokens)
        self._given = 0
        """So many answers were passed on."""

    def accepted(self, tokens: Sequence[int]) -> None:
        self._note(tokens, None)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self._note(tokens, why)

    @property
    def unanswered(self) -> list[int]:
        """Places of the messages without an answer."""
        return [i for i, answer in enumerate(self._answers) if answer is _OPEN]

    def pass_on(self) -> bool:
        """Give the origin the next answers that are alike; False when the next one is missing, or none is left."""
        start, answers = self._given, self._answers
        if start == len(answers) or answers[start] is _OPEN:
            return False
        why = answers[start]
        stop = start + 1 if answers.count(why) < len(answers) else len(answers)  # nearly always all of them
        while stop < len(answers) and answers[stop] is why:
            stop += 1
        self._given = stop
        if isinstance(why, Refusal):
            self._origin.refused(self.tokens[start:stop], why)
        else:
            self._origin.accepted(self.tokens[start:stop])
        return True

    @property
    def over(self) -> bool:
        """Every answer was passed on."""
        return self._given == len(self._answers)

    def _note(self, tokens: Sequence[int], why: Refusal | None) -> None:
        answers = self._answers
        if len(tokens) == len(answers) == answers.count(_OPEN):
            self._answers = [why] * len(answers)
        else:
            for i in tokens:
                if answers[i] is _OPEN:
                    answers[i] = why
        self._queues.release(self._origin)


class Turns:
    """The queues of a router's origins; those that wait for no consumer have none."""

    def __init__(self, committing: Container[Origin], now_s: Callable[[], float]) -> None:
        """`committing`: origins that have answers to come of a commit, which are older than all of their turns;
        `now_s` is monotonic seconds."""
        self.queues: dict[Origin, deque[Turn]] = {}
        """By origin, oldest first (outside only to be looked at: empty most of the time)."""
        self._committing = committing
        self._now_s = now_s

    def take(self, origin: Origin, tokens: Sequence[int], withdraw: Withdraw | None) -> tuple[Origin, Sequence[int]]:
        """Whom to answer for `tokens` of `origin`, and under which tokens; `withdraw` where a consumer answers."""
        turn = Turn(self, origin, tokens, self._now_s() + ANYCAST_ANSWER_S_MAX, withdraw)
        self.queues.setdefault(origin, deque()).append(turn)
        return turn, range(len(tokens))

    def follow(self, origin: Origin, tokens: Sequence[int]) -> tuple[Origin, Sequence[int]]:
        """As `take`, for what no consumer answers, where the origin has a queue; else it is answered itself."""
        return self.take(origin, tokens, None) if origin in self.queues else (origin, tokens)

    def release(self, origin: Origin) -> None:
        """Pass on what nothing older is missing of; nothing happens while a commit owes older answers."""
        queue = self.queues.get(origin)
        if queue is None or origin in self._committing:
            return
        while queue:
            turn = queue[0]
            if turn.over:
                queue.popleft()
            elif not turn.pass_on():
                return
        if self.queues.get(origin) is queue:
            del self.queues[origin]

    def expire(self) -> int:
        """Refuse what consumers have not answered in time; returns how many messages that were."""
        now_s, count = self._now_s(), 0
        for queue in list(self.queues.values()):
            while queue and queue[0].deadline_s <= now_s:
                turn = queue[0]
                late = turn.unanswered
                if turn.withdraw is None or not late:
                    break  # a commit answers it, or older answers are still to come of one
                turn.withdraw(turn)
                count += len(late)
                turn.refused(late, Refusal.NO_ANSWER)
        return count
