"""Link to a neighbour for the messages of one anycast address to one router: a consumer of the address.

Its credit is that of the consumers at the other end of the path. Their outcome is the outcome of the message here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Final

from bridge.engine import Condition, DeliveryState, Dispositions, Link
from bridge.message import Stored
from edge.broker.delivery import AnycastGroup
from edge.broker.delivery.batches import EncodedBatch
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Explanation, Refusal, Subscription
from edge.broker.network.statements import ANYCAST
from edge.broker.router.networking.hops import add_hops, amqp_with_hops, is_path_lost
from edge.broker.router.networking.neighbour_traffic import outcome_field
from edge.broker.router.networking.peering import Peering
from edge.broker.router.networking.unanswered_bytes import UnansweredBytes

_OUTCOMES: Final = {
    DeliveryState.ACCEPTED: DeliveryOutcome.ACCEPTED,
    DeliveryState.REJECTED: DeliveryOutcome.REJECTED,
    DeliveryState.MODIFIED_FAILED: DeliveryOutcome.MODIFIED_FAILED,
    DeliveryState.MODIFIED_UNDELIVERABLE: DeliveryOutcome.MODIFIED_UNDELIVERABLE,
}
"""Outcome by delivery state; every other state means `RELEASED`."""
_tag_of = itemgetter(0)


class EgressLink(Consumer):
    """Consumer of one group, for all consumers at another router."""

    def __init__(
        self,
        peering: Peering,
        destination: str,
        cost: int,
        group: AnycastGroup,
        *,
        nearer: Callable[[EgressLink, Collection[Consumer]], bool],
        ended: Callable[[EgressLink], None],
    ) -> None:
        """`nearer` returns True while consumers with a cheaper path have credit, other than the given ones. `ended` is
        called when the neighbour has ended the link."""
        self.name = f"router {destination}"
        self.peering = peering
        self.destination = destination
        self.cost = cost
        """Cost of the path."""
        self._group = group
        self._nearer = nearer
        self._ended = ended
        self._link: Link | None = None
        self._retired = False
        self._tag = 0
        self._used_s = 0.0
        self._outstanding: dict[int, tuple[int, int]] = {}
        """Position and size of unanswered messages, by tag."""
        self._unanswered = UnansweredBytes(peering, self.flow)
        peering.egress[self] = None

    # --- from the group -----------------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        return self.credit_without(())

    def credit_without(self, others: Collection[Consumer]) -> int:
        own = self.own_credit
        return 0 if own <= 0 or self._nearer(self, others) else own

    @property
    def own_credit(self) -> int:
        """Credit that the neighbour has granted. The first look at it attaches the link."""
        link = self._link
        if self._retired or self._unanswered.is_full:
            return 0
        if link is None:
            self._used_s = self.peering.now_s()
            self._link = self.peering.attach(self, ANYCAST, self.destination, self._group.pattern)
            return 0
        return link.credit if link.attached and not link.closed else 0

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        own = self.peering.network.name
        positions: list[int] = []
        messages: list[bytes] = []
        if isinstance(batch, EncodedBatch):
            positions += range(batch.position, batch.position + len(batch))
            messages += add_hops(batch.messages, (own,), at_most_once=False)
        else:
            now_ns = self.peering.network.now_ns()
            for stored in batch:
                run = stored.run
                positions += range(stored.position, stored.position + len(run.bodies))
                messages += amqp_with_hops(run, own, now_ns)
        self._send(positions, messages)

    def abort(self) -> None:
        self.peering.disconnect("an unexpected error")

    # --- from the connection ------------------------------------------------------------------------------------

    def attached(self) -> None:
        """Do nothing: the credit follows."""

    def flow(self) -> None:
        """Deliver waiting messages, and give senders credit."""
        self._group.pump()

    def accepted(self, tags: list[int]) -> None:
        """Process messages that were accepted and settled."""
        self.peering.heard()
        self.peering.traffic.accepted += len(tags)
        if self.peering.tracer.active:
            self._trace("accepted", len(tags))
        tags.sort()
        self._settle((tag, DeliveryOutcome.ACCEPTED) for tag in tags)

    def settled(self, event: Dispositions) -> None:
        """Process other outcomes."""
        self.peering.heard()
        answers: list[tuple[int, DeliveryOutcome]] = []
        lost: list[int] = []
        for tag, state, remotely_settled, detail in sorted(event.items, key=_tag_of):
            if not remotely_settled:
                self.peering.engine.settle_sent(event.link, tag)
            found = self._outstanding.get(tag)
            if found is not None and isinstance(detail, bytes) and is_path_lost(detail):
                lost.append(tag)
                continue
            if found is not None and isinstance(detail, bytes):
                self._group.explain(self, found[0], Explanation(annotations=detail))
            elif found is not None and isinstance(detail, Condition):
                self._group.explain(self, found[0], Explanation(detail.name, detail.description))
            self._count(outcome_field(state), 1)
            answers.append((tag, _OUTCOMES.get(state, DeliveryOutcome.RELEASED)))
        if lost:
            self._fail(lost)
        self._settle(answers)

    def detached(self) -> None:
        """Process the end of the link by the neighbour: it is attached again later."""
        self.fail()
        self._ended(self)

    # --- from its owner -----------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """Number of unanswered messages."""
        return len(self._outstanding)

    def fail(self) -> None:
        """Give up after the link or the connection has ended: unanswered messages may have been processed."""
        self._retired, self._link = True, None
        self.peering.forget(self)
        self._fail(list(self._outstanding))
        self._group.leave(self)

    def retire(self) -> None:
        """Take nothing more, and end when all messages are answered: another path is better, or none is left."""
        self._retired = True
        if not self._outstanding:
            self._finish()

    @property
    def idle_since_s(self) -> float | None:
        """Time at which the link was used last; None without a link, or while messages are unanswered."""
        return None if self._link is None or self._outstanding else self._used_s

    def detach_idle(self) -> None:
        """Detach the unused link."""
        link, self._link = self._link, None
        if link is not None:
            self.peering.detach(link)
            self._group.pump()  # senders that wait for credit attach it again

    # --- inside -------------------------------------------------------------------------------------------------

    def _fail(self, tags: Sequence[int]) -> None:
        """Answer messages that a consumer may have processed, though its answer cannot arrive."""
        failed = [self._outstanding.pop(tag) for tag in tags]
        self._count("path_lost", len(failed))
        self._unanswered.count(-sum(size for _, size in failed))
        self._group.fail(self, [position for position, _ in failed], Refusal.PATH_LOST)

    def _count(self, outcome: str, messages: int) -> None:
        self.peering.count_outcome(outcome, messages)
        self._trace(outcome.replace("_", " "), messages)

    def _trace(self, outcome: str, messages: int) -> None:
        self.peering.trace(self._group.pattern, messages, from_neighbour=False, outcome=outcome)

    def _send(self, positions: Sequence[int], messages: list[bytes]) -> None:
        link = self._link
        if link is None:
            raise RuntimeError("a message without credit")
        limit = link.max_message_size
        if limit and max(map(len, messages)) > limit:
            large = [i for i, message in enumerate(messages) if len(message) > limit]
            for i in large:
                self._group.settle(self, positions[i], positions[i], DeliveryOutcome.TOO_LARGE)
            kept = [i for i in range(len(messages)) if i not in set(large)]
            positions, messages = [positions[i] for i in kept], [messages[i] for i in kept]
        first = self._tag
        self._tag += len(messages)
        self._used_s = self.peering.now_s()
        if self.peering.tracer.active:
            size, to = sum(map(len, messages)), self.destination
            self.peering.trace(self._group.pattern, len(messages), from_neighbour=False, route=to, payload_bytes=size)
        sizes = self._unanswered.send(link, first, messages)
        self._outstanding.update(enumerate(zip(positions, sizes, strict=True), first))

    def _settle(self, answers: Iterable[tuple[int, DeliveryOutcome]]) -> None:
        """Settle at the group in ranges of positions."""
        take, size = self._outstanding.pop, 0
        first = last = -1
        current = DeliveryOutcome.ACCEPTED
        for tag, outcome in answers:
            position, more = take(tag, (-1, 0))
            size += more
            if position < 0:
                continue
            if first >= 0 and position == last + 1 and outcome is current:
                last = position
                continue
            if first >= 0:
                self._group.settle(self, first, last, current)
            first = last = position
            current = outcome
        if first >= 0:
            self._group.settle(self, first, last, current)
        self._unanswered.count(-size)
        if self._retired and not self._outstanding:
            self._finish()

    def _finish(self) -> None:
        link, self._link = self._link, None
        self.peering.forget(self)
        self._group.leave(self)
        if link is not None:
            self.peering.detach(link)
