"""Anycast: consumers that take turns, nothing stored, the settlement passed end to end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from bridge.message import Run, Stored
from edge.broker.delivery.batches import EncodedBatch
from edge.broker.delivery.consumer_group import ConsumerGroup, part_of
from edge.broker.limits import (
    ANYCAST_GIVEN_BACK_MAX,
    ANYCAST_HELD_BYTES_MAX,
    ANYCAST_HELD_MESSAGE_BYTES,
    ANYCAST_QUICK_S,
    ANYCAST_TOGETHER_MAX,
    TRANSIENT_BUFFER_BYTES_MIN,
)
from edge.broker.model.interfaces import (
    Acceptance,
    Consumer,
    DeliveryOutcome,
    Explanation,
    ManyOrigins,
    MessageCounts,
    Origin,
    Refusal,
)
from edge.broker.model.isolation import answered, delivered, origin_called

_NOBODY: tuple[Origin | None, int] = (None, 0)
_GIVEN_BACK: Final = {
    DeliveryOutcome.TOO_LARGE: Refusal.TOO_LARGE,
    DeliveryOutcome.RELEASED: Refusal.RELEASED,
    DeliveryOutcome.UNANSWERED: Refusal.RELEASED,
    DeliveryOutcome.LOST: Refusal.RELEASED,
    DeliveryOutcome.MODIFIED_FAILED: Refusal.DELIVERY_FAILED,
    DeliveryOutcome.MODIFIED_UNDELIVERABLE: Refusal.UNDELIVERABLE,
}
"""Outcomes that leave the message to other consumers, and the answer to its sender where there are none."""


class Together(NamedTuple):
    """Messages of many senders, and the position of the first of them."""

    position: int
    origin: ManyOrigins

    def stored(self, position: int) -> Stored:
        """The one at this position."""
        return Stored(position, 0, self.origin.run(position - self.position))


class AnycastPace:
    """How many messages a consumer gets at once: twice as many as it has shown to answer in `limits.ANYCAST_QUICK_S`.

    Few that come together are shared out among all consumers, which are done sooner so; but where answers take no time,
    each consumer that gets some costs a write and a read more.
    """

    __slots__ = ("_begun_s", "_count", "_last", "_together")

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._count = 0
        self._last = -1
        """Position of the last message that is timed; -1: none is."""
        self._together = 1

    def share(self, even: int, now_s: float) -> int:
        """How many it gets of what comes now, where an even part is so many."""
        if self._last >= 0 and now_s - self._begun_s > ANYCAST_QUICK_S:
            self._together = 1
        return max(even, self._together)

    def gave(self, count: int, last: int, now_s: float) -> None:
        """It got so many, up to this position."""
        if self._last < 0:
            self._begun_s, self._count, self._last = now_s, count, last

    def answered(self, first: int, last: int, now_s: Callable[[], float]) -> None:
        """It has answered these."""
        if not first <= self._last <= last:
            return
        if now_s() - self._begun_s <= ANYCAST_QUICK_S:
            self._together = max(self._together, min(2 * self._count, ANYCAST_TOGETHER_MAX))
        else:
            self._together = 1
        self._last = -1


class HeldMessages:
    """Memory of the messages that wait for the first consumer of their address."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def admits(self, run: Run) -> bool:
        """Return True when there is room for these messages."""
        return self.bytes + run.size + ANYCAST_HELD_MESSAGE_BYTES * len(run.bodies) <= ANYCAST_HELD_BYTES_MAX


class AnycastGroup:
    """The consumers of one anycast address; an origin hears what the consumer of its message answered."""

    attempts = 0
    idle_now = True

    def __init__(
        self,
        address: str,
        figures: MessageCounts,
        credit_changed: Callable[[], None],
        now_s: Callable[[], float],
        held: HeldMessages,
    ) -> None:
        """What is answered counts in `figures`; `credit_changed` is called when consumers may take more beyond what is
        waiting: often. `now_s` is monotonic seconds. `held` has the messages of all addresses that wait for a first
        consumer."""
        self.pattern = address
        self.group = ConsumerGroup()
        self._credit_changed = credit_changed
        self._figures = figures
        self._now_s = now_s
        self._paces: dict[Consumer, AnycastPace] = {}
        self._waiting: deque[Stored] = deque()
        self._waiting_bytes = 0
        self._waiting_count = 0
        self._position = 0
        self._origins: dict[int, tuple[Origin, int]] = {}
        """Who sent what is outstanding or waiting: position -> (origin, its token)."""
        self._outstanding: dict[Consumer, dict[int, Stored | Together]] = {}
        self._excluded: dict[int, dict[Consumer, Refusal]] = {}
        """Consumers that gave a message back, and why, by its position: they do not get it again."""
        self._given_back: dict[int, Stored] = {}
        """Messages of `_excluded` that wait for another consumer. They hold nothing up."""
        self._given_back_bytes = 0
        self._without_credit: set[Consumer] = set()
        """Consumers that had no credit when these were offered last."""
        self._offer_anew = False
        """One more was given back since, or consumers have come or gone."""
        self._explained: dict[int, Explanation] = {}
        """What consumers said of messages that are not answered yet: empty nearly always."""
        self._held = held
        self._held_bytes = 0
        """The part of `_held` that is ours."""
        self._pumping = False
        self._gathering = False

    @property
    def in_use(self) -> bool:
        """There are consumers, or messages that wait for one."""
        return bool(self.group or self._waiting)

    def offer(self, origin: Origin, run: Run, tokens: Sequence[int], *, hold: bool = False) -> Refusal | None:
        """Hand a run to a consumer. Returns a refusal without a consumer, or when too much is waiting already. `hold`:
        the run may wait for the first consumer."""
        if not self.group and not (hold and self._held.admits(run)):
            return Refusal.NO_CONSUMER
        size = run.size
        if self._gathering and self._waiting_bytes + size > TRANSIENT_BUFFER_BYTES_MIN:
            self._pump()
        if self._waiting_bytes + size > TRANSIENT_BUFFER_BYTES_MIN:
            return Refusal.FULL
        first, count = self._position, len(run.bodies)
        self._position += count
        if len(tokens) == 1:
            self._origins[first] = origin, tokens[0]
        elif tokens:
            self._origins.update(enumerate(zip(repeat(origin), tokens), first))
        self._waiting.append(Stored(first, 0, run))
        self._waiting_bytes += size
        self._waiting_count += count
        if self.group:
            self.pump()
        else:
            self._count_held()
        return None

    def offer_batch(self, origin: ManyOrigins) -> int:
        """Deliver as many of these, from the first on, as consumers have credit for: none while others wait. Return how
        many; the rest is to be offered by itself."""
        if self._waiting or self._pumping:
            return 0
        self._pumping = True
        try:
            taken = self._share_out(origin)
            if self._waiting or self._given_back:  # a consumer raised, or gave something back at once
                self._deliver()
            else:
                self._credit_changed()
        finally:
            self._pumping = False
        return taken

    def _share_out(self, origin: ManyOrigins) -> int:
        count, first, taken = len(origin.encoded), self._position, 0
        self._position += count
        together = Together(first, origin)
        even, now_s = self.group.share(count, count), self._now_s()
        while taken < count and not self._waiting:
            consumer, credit = self.group.next_but(None)
            if consumer is None:
                break
            pace = self._paces.get(consumer)
            if pace is None:
                pace = self._paces[consumer] = AnycastPace()
            start, taken = taken, min(taken + min(pace.share(even, now_s), credit), count)
            pace.gave(taken - start, first + taken - 1, now_s)
            places = range(start, taken)
            self._origins.update(enumerate(zip(repeat(origin), places), first + start))
            held = self._outstanding.setdefault(consumer, {})
            held.update(dict.fromkeys(range(first + start, first + taken), together))
            if not delivered(consumer, self, EncodedBatch(first + start, origin, start, taken)):
                self.leave(consumer)
        return taken

    def pump(self) -> None:
        """Deliver what is waiting to whoever has credit."""
        if not self._gathering:
            self._pump()

    def gather(self) -> None:
        """More is about to come: what is waiting, or comes, is delivered by `deliver_gathered`."""
        self._gathering = True

    def deliver_gathered(self) -> None:
        """Deliver what has come since `gather`."""
        self._gathering = False
        self._pump()

    def _pump(self) -> None:
        if self._pumping:
            return  # from within a delivery: the loop below goes on
        self._pumping = True
        try:
            self._deliver()
        finally:
            self._pumping = False

    def _deliver(self) -> None:
        self._offer_given_back()
        even = self.group.share(self._waiting_count, self._waiting_count)
        while self._waiting:
            turn = self.group.next()
            if turn is None:
                return
            consumer, credit = turn
            self._hand(consumer, self._take(min(even, credit)))
            self._offer_given_back()
        self._credit_changed()

    def _offer_given_back(self) -> None:
        """Offer what consumers gave back to the others, oldest first. What all have given back is answered."""
        while self._given_back and (self._offer_anew or self._credit_has_come()):
            self._offer_anew = False
            for position in sorted(self._given_back):
                if position not in self._given_back:
                    continue  # one that was given something raised, and it was the last one, or its sender left
                consumer, credit = self.group.next_but(self._excluded[position])
                if consumer is not None:
                    self._hand(consumer, [self._take_given_back(position)])
                elif credit < 0 and not self._is_held(position):
                    self._take_given_back(position)
                    self._refuse_given_back(position)
            self._without_credit = set(self.group.without_credit())

    def _is_held(self, position: int) -> bool:
        """Return True when a message waits for another consumer to come."""
        origin, _ = self._origins.get(position, _NOBODY)
        return origin is not None and origin.waits_for_consumer()

    def _credit_has_come(self) -> bool:
        """True when a consumer that had no credit may have some now."""
        return not self._without_credit.issubset(self.group.without_credit())

    def _take_given_back(self, position: int) -> Stored:
        """Take a message out of those that were given back."""
        stored = self._given_back.pop(position)
        self._given_back_bytes -= stored.run.size
        return stored

    def _hand(self, consumer: Consumer, taken: Sequence[Stored]) -> None:
        held = self._outstanding.setdefault(consumer, {})
        for stored in taken:
            if len(stored.run.bodies) == 1:
                held[stored.position] = stored
            else:
                count = len(stored.run.bodies)
                held.update(dict.fromkeys(range(stored.position, stored.position + count), stored))
        if not delivered(consumer, self, taken):
            self.leave(consumer)

    def _take(self, count: int) -> list[Stored]:
        """Take the first `count` messages of those that wait."""
        taken: list[Stored] = []
        waiting = self._waiting
        while count and waiting:
            stored = waiting.popleft()
            total = len(stored.run.bodies)
            if total > count:
                waiting.appendleft(part_of(stored, count, total))
                stored, total = part_of(stored, 0, count), count
            taken.append(stored)
            count -= total
            self._waiting_count -= total
            self._waiting_bytes -= stored.run.size
        return taken

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Pass the consumer's answer on to the origins. What it gives back goes to the other consumers; once all have
        given a message back, its origin gets the refusal."""
        held = self._outstanding.get(consumer, {})
        pace = self._paces.get(consumer)
        if pace is not None:
            pace.answered(first, last, self._now_s)
        answers: dict[Origin, list[int]] = {}
        explanations: dict[tuple[Origin, Explanation], list[int]] = {}
        why = _GIVEN_BACK.get(outcome)
        take, take_origin = held.pop, self._origins.pop
        current: Origin | None = None
        tokens: list[int] = []
        for position in range(first, last + 1):
            stored = take(position, None)
            if stored is None:
                continue
            if why is not None:
                self._excluded.setdefault(position, {})[consumer] = why
                self._give_back(_one_of(stored, position))
                continue
            if self._excluded:
                self._excluded.pop(position, None)
            origin, token = take_origin(position, _NOBODY)
            said = self._explained.pop(position, None) if self._explained else None
            if said is not None and origin is not None:
                explanations.setdefault((origin, said), []).append(token)
            if origin is not current and origin is not None:
                current, tokens = origin, answers.setdefault(origin, [])
            if origin is not None:
                tokens.append(token)
        for (sender, words), of in explanations.items() if outcome is not DeliveryOutcome.ACCEPTED else ():
            origin_called(sender, sender.explained, of, words)
        self._answer(answers, None if outcome is DeliveryOutcome.ACCEPTED else Refusal.REJECTED)
        if why is not None:
            self.pump()

    def explain(self, consumer: Consumer, position: int, said: Explanation) -> None:
        """Said before `settle`: why the consumer does not take a message."""
        if position in self._outstanding.get(consumer, ()):
            self._explained[position] = said

    def join(self, consumer: Consumer) -> None:
        self.group.join(consumer)
        self._offer_anew = True
        self._count_held()

    def leave(self, consumer: Consumer, *, keep: bool = False) -> None:
        """What the consumer had not answered goes to the others; without others its origins hear so."""
        self.group.leave(consumer)
        self._paces.pop(consumer, None)
        self._offer_anew = True
        for excluded in self._excluded.values():
            excluded.pop(consumer, None)
        for position, held in sorted(self._outstanding.pop(consumer, {}).items(), reverse=True):
            stored = _one_of(held, position)
            if position in self._excluded:
                self._give_back(stored)
            else:
                self._waiting.appendleft(stored)
                self._waiting_bytes += stored.run.size
                self._waiting_count += 1
        if self.group:
            self.pump()
        else:
            self._hold_or_refuse()

    def _hold_or_refuse(self) -> None:
        """The last consumer has left: keep what waits for the next one, and answer the rest."""
        waiting = sorted([*self._waiting, *self._given_back.values()], key=lambda stored: stored.position)
        kept: dict[int, tuple[Origin, int]] = {}
        for left in (self._excluded, self._explained, self._given_back):
            left.clear()
        self._waiting.clear()
        self._waiting_bytes = self._waiting_count = self._given_back_bytes = 0
        for stored in waiting:
            if self._is_held(stored.position) and self._held.admits(stored.run):
                count = len(stored.run.bodies)
                for position in range(stored.position, stored.position + count):
                    kept[position] = self._origins.pop(position)
                self._waiting.append(stored)
                self._waiting_bytes += stored.run.size
                self._waiting_count += count
                self._count_held()
        refused: dict[Origin, list[int]] = {}
        for origin, token in self._origins.values():
            refused.setdefault(origin, []).append(token)
        self._origins = kept
        self._count_held()
        self._answer(refused, Refusal.NO_CONSUMER)

    def _count_held(self) -> None:
        """Count what waits for a first consumer."""
        size = 0 if self.group else self._waiting_bytes + ANYCAST_HELD_MESSAGE_BYTES * self._waiting_count
        self._held.bytes += size - self._held_bytes
        self._held_bytes = size

    def _answer(self, answers: dict[Origin, list[int]], why: Refusal | None) -> None:
        """Tell the origins: accepted, or refused for `why`."""
        for origin, tokens in answers.items():
            if why is None:
                self._figures.acknowledged += len(tokens)
            else:
                self._figures.refused += len(tokens)
            answered(origin, tokens, Acceptance.ACCEPTED if why is None else why)

    def withdraw(self, origin: Origin) -> None:
        """Nobody waits for answers to what `origin` sent: what no consumer has yet is dropped."""
        theirs = {position for position, (sender, _) in self._origins.items() if sender is origin}
        for position in theirs:
            del self._origins[position]
            self._excluded.pop(position, None)
            self._explained.pop(position, None)
            if position in self._given_back:
                self._take_given_back(position)
        kept = deque(stored for stored in self._waiting if stored.position not in theirs)
        if len(kept) < len(self._waiting):
            self._waiting = kept
            self._waiting_bytes = sum(stored.run.size for stored in kept)
            self._waiting_count = sum(len(stored.run.bodies) for stored in kept)
            self._count_held()
            self._credit_changed()

    @property
    def credit(self) -> int:
        """Messages consumers could take now beyond what is waiting already."""
        return max(0, self.group.credit - self._waiting_count)

    def _give_back(self, stored: Stored) -> None:
        """Let a message wait for another consumer, or answer it where too many do."""
        position, size = stored.position, stored.run.size
        crowded = len(self._given_back) >= ANYCAST_GIVEN_BACK_MAX
        if crowded or self._given_back_bytes + size > TRANSIENT_BUFFER_BYTES_MIN:
            self._refuse_given_back(position)
            return
        self._given_back[position] = stored
        self._given_back_bytes += size
        self._offer_anew = True

    def _refuse_given_back(self, position: int) -> None:
        """Refuse a message towards its origin, with the reasons of its consumers."""
        reasons, said = self._excluded.pop(position).values(), self._explained.pop(position, None)
        origin, token = self._origins.pop(position, _NOBODY)
        if origin is not None:
            self._figures.refused += 1
            if said is not None:
                origin_called(origin, origin.explained, [token], said)
            answered(origin, [token], _together(reasons))


def _one_of(held: Stored | Together, position: int) -> Stored:
    """One message of what a consumer holds."""
    if isinstance(held, Together):
        return held.stored(position)
    i = position - held.position
    return part_of(held, i, i + 1)


def _together(reasons: Collection[Refusal]) -> Refusal:
    """The answer to a message that consumers gave back for these reasons: `UNDELIVERABLE` and `TOO_LARGE` speak of all
    consumers, so one that only released it may still take it when it is sent again."""
    if Refusal.RELEASED in reasons or Refusal.DELIVERY_FAILED in reasons:
        failed = Refusal.DELIVERY_FAILED in reasons or Refusal.UNDELIVERABLE in reasons
        return Refusal.DELIVERY_FAILED if failed else Refusal.RELEASED
    return Refusal.UNDELIVERABLE if Refusal.UNDELIVERABLE in reasons else Refusal.TOO_LARGE
