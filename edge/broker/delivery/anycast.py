"""Anycast: each message goes to one consumer. Nothing is stored; the consumer's outcome is the answer to the sender."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from bridge.message import Run, Stored
from edge.broker.delivery.batches import EncodedBatch
from edge.broker.delivery.consumer_group import ConsumerGroup, part_of
from edge.broker.limits import (
    ANYCAST_HELD_BYTES_MAX,
    ANYCAST_HELD_MESSAGE_BYTES,
    ANYCAST_QUICK_S,
    ANYCAST_REQUEUED_MAX,
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
from edge.broker.model.isolation import call_origin, deliver_to, send_answer

_NO_ORIGIN: tuple[Origin | None, int] = (None, 0)
_GIVEN_BACK: Final = {
    DeliveryOutcome.TOO_LARGE: Refusal.TOO_LARGE,
    DeliveryOutcome.RELEASED: Refusal.RELEASED,
    DeliveryOutcome.UNANSWERED: Refusal.RELEASED,
    DeliveryOutcome.LOST: Refusal.RELEASED,
    DeliveryOutcome.MODIFIED_FAILED: Refusal.DELIVERY_FAILED,
    DeliveryOutcome.MODIFIED_UNDELIVERABLE: Refusal.UNDELIVERABLE,
}
"""Outcomes that leave a message to other consumers, with the answer to its sender when all have returned it."""


class OfferedBatch(NamedTuple):
    """Messages of many senders, with the position of the first."""

    position: int
    origin: ManyOrigins

    def stored(self, position: int) -> Stored:
        """Return the message at this position."""
        return Stored(position, 0, self.origin.run(position - self.position))


class AnycastPace:
    """Number of messages that a consumer gets at once: twice as many as it answered in `limits.ANYCAST_QUICK_S`.

    Messages that arrive together are split among all consumers, so that they finish sooner. But if a consumer answers
    at once, each further consumer only costs a write and a read.
    """

    __slots__ = ("_batch_max", "_count", "_last", "_started_s")

    def __init__(self) -> None:
        self._started_s = 0.0
        self._count = 0
        self._last = -1
        """Position of the last message that is being timed; -1: none."""
        self._batch_max = 1

    def share(self, even: int, now_s: float) -> int:
        """Return how many of the waiting messages the consumer gets, if an even share is `even`."""
        if self._last >= 0 and now_s - self._started_s > ANYCAST_QUICK_S:
            self._batch_max = 1
        return max(even, self._batch_max)

    def record_delivery(self, count: int, last: int, now_s: float) -> None:
        """Record that the consumer got `count` messages, up to this position."""
        if self._last < 0:
            self._started_s, self._count, self._last = now_s, count, last

    def record_answer(self, first: int, last: int, now_s: Callable[[], float]) -> None:
        """Record that the consumer answered these messages."""
        if not first <= self._last <= last:
            return
        if now_s() - self._started_s <= ANYCAST_QUICK_S:
            self._batch_max = max(self._batch_max, min(2 * self._count, ANYCAST_TOGETHER_MAX))
        else:
            self._batch_max = 1
        self._last = -1


class HeldMessages:
    """Memory of messages that wait for the first consumer of their address."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def admits(self, run: Run) -> bool:
        """Return True when there is room for these messages."""
        return self.bytes + run.size + ANYCAST_HELD_MESSAGE_BYTES * len(run.bodies) <= ANYCAST_HELD_BYTES_MAX


class AnycastGroup:
    """The consumers of one anycast address; an origin gets the answer of the consumer of its message."""

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
        """Answers are counted in `figures`. `credit_changed` is called, often, when consumers may take more than is
        waiting. `now_s` is monotonic seconds. `held` counts the messages of all addresses that wait for a first
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
        """Senders of messages that are outstanding or waiting: position -> (origin, its token)."""
        self._outstanding: dict[Consumer, dict[int, Stored | OfferedBatch]] = {}
        self._excluded: dict[int, dict[Consumer, Refusal]] = {}
        """Consumers that returned a message, with their reasons, by its position; they do not get it again."""
        self._requeued: dict[int, Stored] = {}
        """Messages of `_excluded` that wait for another consumer. They do not delay others."""
        self._given_back_bytes = 0
        self._without_credit: set[Consumer] = set()
        """Consumers without credit when these messages were offered last."""
        self._offer_again = False
        """True when a message was returned since, or consumers have joined or left."""
        self._explained: dict[int, Explanation] = {}
        """Explanations of consumers for messages that are not answered yet; nearly always empty."""
        self._held = held
        self._held_bytes = 0
        """Share of this group in `_held`."""
        self._pumping = False
        self._gathering = False
        self._remote: set[Consumer] = set()
        """Consumers that stand for other routers."""
        self.ingress: AnycastGroup | None = None
        """The same consumers without those of other routers, for messages that come from other routers."""
        self._ingress_first = False

    @property
    def in_use(self) -> bool:
        """True while there are consumers of this router, messages that wait for one, or links from other routers."""
        return bool(self.consumers or self._waiting) or self.ingress is not None

    @property
    def consumers(self) -> list[Consumer]:
        """Consumers of this router."""
        every = self.group.consumers
        return [each for each in every if each not in self._remote] if self._remote else every

    @property
    def received(self) -> int:
        """Messages offered to it."""
        return self._position

    def offer(self, origin: Origin, run: Run, tokens: Sequence[int], *, hold: bool = False) -> Refusal | None:
        """Give a run to a consumer. Return a refusal without a consumer, or when too much is waiting. With `hold` the
        run may wait for the first consumer."""
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
        """Deliver the first messages, as many as consumers have credit for, and none while others wait. Return their
        number; the caller offers the rest one by one."""
        if self._waiting or self._pumping:
            return 0
        self._pumping = True
        try:
            taken = self._share_out(origin)
            if self._waiting or self._requeued:  # a consumer raised, or returned a message at once
                self._deliver()
            else:
                self._credit_changed()
        finally:
            self._pumping = False
        return taken

    def _share_out(self, origin: ManyOrigins) -> int:
        count, first, taken = len(origin.encoded), self._position, 0
        self._position += count
        together = OfferedBatch(first, origin)
        even, now_s = self.group.share(count, count), self._now_s()
        while taken < count and not self._waiting:
            consumer, credit = self.group.next_but(None)
            if consumer is None:
                break
            pace = self._paces.get(consumer)
            if pace is None:
                pace = self._paces[consumer] = AnycastPace()
            start, taken = taken, min(taken + min(pace.share(even, now_s), credit), count)
            pace.record_delivery(taken - start, first + taken - 1, now_s)
            places = range(start, taken)
            self._origins.update(enumerate(zip(repeat(origin), places), first + start))
            held = self._outstanding.setdefault(consumer, {})
            held.update(dict.fromkeys(range(first + start, first + taken), together))
            if not deliver_to(consumer, self, EncodedBatch(first + start, origin, start, taken)):
                self.leave(consumer)
        return taken

    def pump(self) -> None:
        """Deliver waiting messages to consumers with credit."""
        ingress = self.ingress
        if ingress is None:
            if not self._gathering:
                self._pump()
            return
        self._ingress_first = first = not self._ingress_first  # neither uses up the credit of the other
        if first:
            ingress.pump()
        if not self._gathering:
            self._pump()
        if not first:
            ingress.pump()

    def gather(self) -> None:
        """Postpone deliveries until `deliver_gathered`, because more messages are about to come."""
        self._gathering = True

    def deliver_gathered(self) -> None:
        """Deliver the messages collected since `gather`."""
        self._gathering = False
        self._pump()

    def _pump(self) -> None:
        if self._pumping:
            return  # called from within a delivery: the loop below continues
        self._pumping = True
        try:
            self._deliver()
        finally:
            self._pumping = False

    def _deliver(self) -> None:
        self._offer_requeued()
        even = self.group.share(self._waiting_count, self._waiting_count)
        while self._waiting:
            turn = self.group.next()
            if turn is None:
                return
            consumer, credit = turn
            self._hand_over(consumer, self._take(min(even, credit)))
            self._offer_requeued()
        self._credit_changed()

    def _offer_requeued(self) -> None:
        """Offer returned messages to other consumers, oldest first. Answer those that all consumers returned."""
        while self._requeued and (self._offer_again or self._has_new_credit()):
            self._offer_again = False
            for position in sorted(self._requeued):
                if position not in self._requeued:
                    continue  # its last consumer raised and was removed, or its sender left
                consumer, credit = self.group.next_but(self._excluded[position])
                if consumer is not None:
                    self._hand_over(consumer, [self._take_requeued(position)])
                elif credit < 0 and not self._is_held(position):
                    self._take_requeued(position)
                    self._refuse_requeued(position)
            self._without_credit = set(self.group.without_credit())

    def _is_held(self, position: int) -> bool:
        """Return True when a message waits for another consumer to come."""
        origin, _ = self._origins.get(position, _NO_ORIGIN)
        return origin is not None and origin.waits_for_consumer()

    def _has_new_credit(self) -> bool:
        """Return True when a consumer that had no credit may have some now."""
        return not self._without_credit.issubset(self.group.without_credit())

    def _take_requeued(self, position: int) -> Stored:
        """Remove a message from the returned ones."""
        stored = self._requeued.pop(position)
        self._given_back_bytes -= stored.run.size
        return stored

    def _hand_over(self, consumer: Consumer, taken: Sequence[Stored]) -> None:
        held = self._outstanding.setdefault(consumer, {})
        for stored in taken:
            if len(stored.run.bodies) == 1:
                held[stored.position] = stored
            else:
                count = len(stored.run.bodies)
                held.update(dict.fromkeys(range(stored.position, stored.position + count), stored))
        if not deliver_to(consumer, self, taken):
            self.leave(consumer)

    def _take(self, count: int) -> list[Stored]:
        """Take the first `count` waiting messages."""
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
        """Pass the consumer's answer on to the origins. Returned messages go to the other consumers; once all consumers
        have returned a message, its origin gets the refusal."""
        held = self._outstanding.get(consumer, {})
        pace = self._paces.get(consumer)
        if pace is not None:
            pace.record_answer(first, last, self._now_s)
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
                self._requeue(_one_of(stored, position))
                continue
            if self._excluded:
                self._excluded.pop(position, None)
            origin, token = take_origin(position, _NO_ORIGIN)
            explanation = self._explained.pop(position, None) if self._explained else None
            if explanation is not None and origin is not None:
                explanations.setdefault((origin, explanation), []).append(token)
            if origin is not current and origin is not None:
                current, tokens = origin, answers.setdefault(origin, [])
            if origin is not None:
                tokens.append(token)
        for (sender, words), of in explanations.items() if outcome is not DeliveryOutcome.ACCEPTED else ():
            call_origin(sender, sender.explained, of, words)
        self._answer(answers, None if outcome is DeliveryOutcome.ACCEPTED else Refusal.REJECTED)
        if why is not None:
            self.pump()

    def explain(self, consumer: Consumer, position: int, explanation: Explanation) -> None:
        """Note, before `settle`, why the consumer does not take a message."""
        if position in self._outstanding.get(consumer, ()):
            self._explained[position] = explanation

    def join(self, consumer: Consumer) -> None:
        self.group.join(consumer)
        self._offer_again = True
        self._count_held()
        if self.ingress is not None:
            self.ingress.join(consumer)

    def join_remote(self, consumer: Consumer) -> None:
        """Add the consumer of messages for another router."""
        self._remote.add(consumer)
        self.group.join(consumer)
        self._offer_again = True
        self._count_held()

    def split_ingress(self, credit_changed: Callable[[], None]) -> AnycastGroup:
        """Return the group for messages of other routers, made on first use. They go to consumers of this router only,
        so they never return to the network. `credit_changed` is that of the constructor."""
        if self.ingress is None:
            self.ingress = AnycastGroup(self.pattern, self._figures, credit_changed, self._now_s, HeldMessages())
            for consumer in self.consumers:
                self.ingress.join(consumer)
        return self.ingress

    def end_ingress(self) -> None:
        """Forget the group for messages of other routers: no router sends any."""
        self.ingress = None

    def fail(self, consumer: Consumer, positions: Sequence[int], why: Refusal) -> None:
        """Refuse messages that a consumer holds. Another consumer must not get them, as it may have processed them."""
        held, failed = self._outstanding.get(consumer, {}), dict[Origin, list[int]]()
        for position in positions:
            if held.pop(position, None) is None:
                continue
            self._excluded.pop(position, None)
            self._explained.pop(position, None)
            origin, token = self._origins.pop(position, _NO_ORIGIN)
            if origin is not None:
                failed.setdefault(origin, []).append(token)
        self._answer(failed, why)

    def leave(self, consumer: Consumer, *, keep: bool = False) -> None:
        """Remove a consumer. Messages that it did not answer go to the others; without others their origins get a
        refusal."""
        self.group.leave(consumer)
        self._remote.discard(consumer)
        if self.ingress is not None:
            self.ingress.leave(consumer)
        self._paces.pop(consumer, None)
        self._offer_again = True
        for excluded in self._excluded.values():
            excluded.pop(consumer, None)
        for position, held in sorted(self._outstanding.pop(consumer, {}).items(), reverse=True):
            stored = _one_of(held, position)
            if position in self._excluded:
                self._requeue(stored)
            else:
                self._waiting.appendleft(stored)
                self._waiting_bytes += stored.run.size
                self._waiting_count += 1
        if self.group:
            self.pump()
        else:
            self._hold_or_refuse()

    def _hold_or_refuse(self) -> None:
        """Keep messages that may wait for the next consumer after the last one left, and refuse the rest."""
        waiting = sorted([*self._waiting, *self._requeued.values()], key=lambda stored: stored.position)
        kept: dict[int, tuple[Origin, int]] = {}
        for left in (self._excluded, self._explained, self._requeued):
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
        """Count the messages that wait for a first consumer."""
        size = 0 if self.group else self._waiting_bytes + ANYCAST_HELD_MESSAGE_BYTES * self._waiting_count
        self._held.bytes += size - self._held_bytes
        self._held_bytes = size

    def _answer(self, answers: dict[Origin, list[int]], why: Refusal | None) -> None:
        """Answer the origins: accepted, or refused for `why`."""
        for origin, tokens in answers.items():
            if why is None:
                self._figures.acknowledged += len(tokens)
            else:
                self._figures.refused += len(tokens)
            send_answer(origin, tokens, Acceptance.ACCEPTED if why is None else why)

    def withdraw(self, origin: Origin) -> None:
        """Drop messages of `origin` that no consumer has yet, because it no longer waits for answers."""
        theirs = {position for position, (sender, _) in self._origins.items() if sender is origin}
        for position in theirs:
            del self._origins[position]
            self._excluded.pop(position, None)
            self._explained.pop(position, None)
            if position in self._requeued:
                self._take_requeued(position)
        kept = deque(stored for stored in self._waiting if stored.position not in theirs)
        if len(kept) < len(self._waiting):
            self._waiting = kept
            self._waiting_bytes = sum(stored.run.size for stored in kept)
            self._waiting_count = sum(len(stored.run.bodies) for stored in kept)
            self._count_held()
            self._credit_changed()

    @property
    def credit(self) -> int:
        """Messages that consumers could take now in addition to the waiting ones."""
        return max(0, self.group.credit - self._waiting_count)

    def _requeue(self, stored: Stored) -> None:
        """Let a message wait for another consumer, or refuse it if too many wait."""
        position, size = stored.position, stored.run.size
        crowded = len(self._requeued) >= ANYCAST_REQUEUED_MAX
        if crowded or self._given_back_bytes + size > TRANSIENT_BUFFER_BYTES_MIN:
            self._refuse_requeued(position)
            return
        self._requeued[position] = stored
        self._given_back_bytes += size
        self._offer_again = True

    def _refuse_requeued(self, position: int) -> None:
        """Refuse a message to its origin, with the reasons of its consumers."""
        reasons, explanation = self._excluded.pop(position).values(), self._explained.pop(position, None)
        origin, token = self._origins.pop(position, _NO_ORIGIN)
        if origin is not None:
            self._figures.refused += 1
            if explanation is not None:
                call_origin(origin, origin.explained, [token], explanation)
            send_answer(origin, [token], _combine(reasons))


def _one_of(held: Stored | OfferedBatch, position: int) -> Stored:
    """Return one of the messages that a consumer holds."""
    if isinstance(held, OfferedBatch):
        return held.stored(position)
    i = position - held.position
    return part_of(held, i, i + 1)


def _combine(reasons: Collection[Refusal]) -> Refusal:
    """Return the answer to a message that consumers returned for these reasons. `UNDELIVERABLE` and `TOO_LARGE` hold
    for all consumers: if one only released the message, it may take it when it is sent again."""
    if Refusal.RELEASED in reasons or Refusal.DELIVERY_FAILED in reasons:
        failed = Refusal.DELIVERY_FAILED in reasons or Refusal.UNDELIVERABLE in reasons
        return Refusal.DELIVERY_FAILED if failed else Refusal.RELEASED
    return Refusal.UNDELIVERABLE if Refusal.UNDELIVERABLE in reasons else Refusal.TOO_LARGE
