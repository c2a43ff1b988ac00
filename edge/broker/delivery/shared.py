"""Live consumers that share messages: a message that one of them returns, or leaves behind, goes to another.

Nothing of it is on disk. Unsettled messages count as waiting, so memory is bounded as for every live subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from itertools import repeat

from bridge.message import Run, Stored, is_from
from edge.broker.delivery.batches import LiveOffer
from edge.broker.delivery.consumer_group import RETURNED, part_of
from edge.broker.delivery.transient import TransientSubscription, WaitingPool
from edge.broker.limits import UNSELECTED_MAX
from edge.broker.model.interfaces import Consumer, DeliveryOutcome
from edge.broker.model.isolation import deliver_to


class SharedSubscription(TransientSubscription):
    """Shared subscription that is not durable; also a temporary queue, which keeps messages without consumers.

    A message that is undeliverable to a consumer, or rejected, is not delivered again. A message that is too large for
    one goes to another; if it is too large for all, it is dropped. A released message goes to another consumer first.
    """

    shares = True
    __slots__ = ("_barred", "_checked_to", "_failed", "_held", "_pumping", "attempts", "lasting")

    def __init__(
        self,
        pattern: str,
        pool: WaitingPool,
        *,
        not_from: str | None = None,
        share_name: str | None = None,
        selector: str | None = None,
        user: str | None = None,
        lasting: bool = False,
    ) -> None:
        """`lasting`: it exists without consumers too, until `end`. For the others see `TransientSubscription`."""
        super().__init__(pattern, pool, not_from=not_from, share_name=share_name, selector=selector, user=user)
        self.attempts = 0
        self.lasting = lasting
        self._held: dict[Consumer, dict[int, Stored]] = {}
        """Unsettled messages of each consumer: position of a message, and its run."""
        self._failed: dict[int, int] = {}
        """Failed deliveries by position."""
        self._checked_to: dict[Consumer, int] = {}
        """Position up to which a consumer with a selector has checked the waiting messages."""
        self._barred: dict[int, dict[Consumer, bool]] = {}
        """Consumers that do not get a message now, by its position. True: it is too large for the consumer; False: the
        consumer returned it, and another one comes first."""
        self._pumping = False

    def offer(self, offer: LiveOffer) -> None:
        pairs = [pair for pair in zip(offer.runs, offer.origins, strict=True) if not is_from(pair[0], self._not_from)]
        self._keep([run for run, _ in pairs], [origin for _, origin in pairs])

    def _has_room(self, runs: int, size: int) -> bool:
        if self._checked_to and len(self._waiting or ()) + runs > UNSELECTED_MAX:
            return False
        return super()._has_room(runs, size)

    def end(self) -> None:
        """End the subscription, and remove all consumers."""
        self.lasting = False
        for consumer in list(self.group.consumers):
            self.leave(consumer)

    def pump(self) -> None:
        if self._pumping:
            return  # called from within a delivery: the loop below continues
        self._pumping = True
        try:
            if self._checked_to or self._barred:
                self._pump_selected()
            else:
                super().pump()
        finally:
            self._pumping = False

    def join(self, consumer: Consumer) -> None:
        super().join(consumer)
        self._held.setdefault(consumer, {})
        if consumer.selection is not None:
            self._checked_to[consumer] = -1

    def leave(self, consumer: Consumer, *, keep: bool = False) -> None:
        self._checked_to.pop(consumer, None)
        held = self._held.pop(consumer, {})
        for barred in self._barred.values():
            barred.pop(consumer, None)
        if self._barred:
            self._check_again(min(self._barred))
        if not self.lasting and self.group.consumers == [consumer]:
            self._failed.clear()
            self._barred.clear()
            super().leave(consumer)
            return
        self.group.leave(consumer)
        self._restore(held)
        self.pump()

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        held = self._held.get(consumer)
        if held is None:
            return
        returned: dict[int, Stored] = {}
        size = 0
        for position in range(first, last + 1):
            stored = held.pop(position, None)
            if stored is None:
                continue
            if outcome in RETURNED or outcome is DeliveryOutcome.TOO_LARGE:
                returned[position] = stored
                if outcome is DeliveryOutcome.MODIFIED_FAILED:
                    self._failed[position] = self._failed.get(position, 0) + 1
                if outcome is DeliveryOutcome.TOO_LARGE or len(self.group.consumers) > 1:
                    self._barred.setdefault(position, {})[consumer] = outcome is DeliveryOutcome.TOO_LARGE
            else:
                size += len(stored.run.bodies[position - stored.position]) + len(stored.run.properties)
                self._forget(position)
        self._changed(-size)
        if returned:
            self._restore(returned)
        self.pump()

    # --- inside -----------------------------------------------------------------------------------------------

    def _hand_over(self, consumer: Consumer, batch: Collection[Stored], size: int) -> None:
        """Deliver a single run, which counts as waiting until it is settled."""
        (stored,) = batch
        position = stored.position
        self._held[consumer].update(zip(range(position, position + len(stored.run.bodies)), repeat(stored)))
        self.attempts = self._failed.get(position, 0)
        if not deliver_to(consumer, self, batch):
            self.leave(consumer)
        self.attempts = 0

    def _dropped_expired(self, waiting: deque[Stored]) -> bool:
        stored = waiting[0]
        if not super()._dropped_expired(waiting):
            return False
        for position in range(stored.position, stored.position + len(stored.run.bodies)):
            self._forget(position)
        return True

    def _forget(self, position: int) -> None:
        """Forget failures and exclusions of a message."""
        self._failed.pop(position, None)
        if self._barred:
            self._barred.pop(position, None)

    def _restore(self, held: dict[int, Stored]) -> None:
        """Return messages one by one, as each may have its own failures, in order before newer ones."""
        if not held:
            return
        parts = [part_of(stored, at - stored.position, at - stored.position + 1) for at, stored in held.items()]
        parts.sort(key=_position)
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        older = []
        while waiting and waiting[0].position < parts[-1].position:
            older.append(waiting.popleft())
        waiting.extendleft(sorted([*older, *parts], key=_position, reverse=True))
        self._check_again(parts[0].position)

    def _check_again(self, first: int) -> None:
        """Have consumers with a selector check the messages from this position on."""
        for consumer, position in self._checked_to.items():
            self._checked_to[consumer] = min(position, first - 1)

    def _pump_selected(self) -> None:
        """Give each message to the next consumer that has credit and wants it; unwanted messages wait."""
        waiting = self._waiting
        looked = [self._checked_to.get(consumer, -1) for consumer in self.group.consumers if consumer.credit > 0]
        fresh: deque[Stored] = deque()
        while waiting and looked and waiting[-1].position + len(waiting[-1].run.bodies) - 1 > min(looked):
            fresh.appendleft(waiting.pop())
        while fresh and waiting is not None:
            if not self._dropped_expired(fresh):
                waiting.extend(one for one in _one_by_one(fresh.popleft()) if not self._deliver_one(one))

    def _deliver_one(self, stored: Stored) -> bool:
        """Deliver or drop a message. Return True when it has left the queue."""
        barred = self._barred.get(stored.position)
        if barred and not self._allow_again(barred, stored.run):
            self._forget(stored.position)
            self._changed(-stored.run.size)
            self._drop(stored.run)
            return True
        for i, consumer in enumerate(self.group.consumers):
            if consumer.credit > 0 and self._wanted(consumer, stored):
                self.group.rotate(i + 1)
                self._hand_over(consumer, (stored,), stored.run.size)
                return True
        return False

    def _allow_again(self, barred: dict[Consumer, bool], run: Run) -> bool:
        """Let consumers get a message again that no other one takes. Return False when it is too large for all."""
        consumers = self.group.consumers
        others = (each.selection for each in consumers if each not in barred)
        if not any(selection is None or selection.wanted(run)[0] for selection in others):
            for consumer in [each for each, too_large in barred.items() if not too_large]:
                del barred[consumer]
        return not consumers or not all(consumer in barred for consumer in consumers)

    def _wanted(self, consumer: Consumer, stored: Stored) -> bool:
        if self._barred and consumer in self._barred.get(stored.position, ()):
            return False
        looked, selection = self._checked_to.get(consumer), consumer.selection
        if looked is None or selection is None:
            return True
        if stored.position <= looked:
            return False
        self._checked_to[consumer] = stored.position
        return selection.wanted(stored.run)[0]


def _position(stored: Stored) -> int:
    return stored.position


def _one_by_one(stored: Stored) -> Iterable[Stored]:
    return (part_of(stored, i, i + 1) for i in range(len(stored.run.bodies)))
