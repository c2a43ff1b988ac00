"""Link to a neighbour for the messages of one multicast address: a live subscriber that passes them on."""

from __future__ import annotations

from collections.abc import Collection

from bridge.engine import Dispositions, Link
from bridge.message import Stored
from edge.broker.delivery import TransientSubscription, WaitingPool
from edge.broker.delivery.batches import LiveOffer
from edge.broker.limits import NETWORK_LINK_RETRY_S
from edge.broker.model.interfaces import Consumer, Subscription
from edge.broker.network.statements import MULTICAST
from edge.broker.router.networking.hops import amqp_with_hops
from edge.broker.router.networking.neighbour_traffic import outcome_field
from edge.broker.router.networking.peering import Peering
from edge.broker.router.networking.unanswered_bytes import UnansweredBytes


class MulticastBranch(Consumer):
    """Consumer of everything that goes to one neighbour. Messages wait in bounded memory while it has no credit."""

    def __init__(self, peering: Peering, address: str, pool: WaitingPool) -> None:
        self.name = f"router {peering.peer_name}"
        self.peering = peering
        self.address = address
        self._subscription = TransientSubscription(address, pool)
        self._subscription.join(self)
        self._link: Link | None = None
        self._ended = False
        self._tag = 0
        self._used_s = peering.now_s()
        self._retry_at_s = 0.0
        self._unanswered = UnansweredBytes(peering, self.flow)
        self._sizes: dict[int, int] = {}
        """Sizes of unanswered messages, by tag."""
        peering.egress[self] = None

    def offer(self, offer: LiveOffer) -> None:
        """Send runs now, or keep them until there is credit (`LiveSink`)."""
        self._used_s = self.peering.now_s()
        before = self._subscription.dropped
        self._subscription.offer(offer)
        self.peering.network.counts.dropped += self._subscription.dropped - before

    # --- from the subscription ----------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        link = self._link
        if self._ended or self._unanswered.is_full:
            return 0
        if link is None:
            if self.peering.now_s() >= self._retry_at_s:
                self._used_s = self.peering.now_s()
                self._link = self.peering.attach(self, MULTICAST, "", self.address)
            return 0
        return link.credit if link.attached and not link.closed else 0

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        link, network = self._link, self.peering.network
        now_ns, messages = network.now_ns(), list[bytes]()
        for stored in batch:
            messages += amqp_with_hops(stored.run, network.name, now_ns)
        if link is None or not messages:
            return
        limit = link.max_message_size
        messages = [message for message in messages if not limit or len(message) <= limit]
        if self.peering.tracer.active:
            size = sum(map(len, messages))
            self.peering.trace(self.address, len(messages), from_neighbour=False, payload_bytes=size)
        first = self._tag
        self._tag += len(messages)
        self._sizes.update(enumerate(self._unanswered.send(link, first, messages), first))

    def abort(self) -> None:
        self.peering.disconnect("an unexpected error")

    # --- from the connection ------------------------------------------------------------------------------------

    def attached(self) -> None:
        """Do nothing: the credit follows."""

    def flow(self) -> None:
        """Send waiting messages."""
        self._subscription.pump()

    def accepted(self, tags: list[int]) -> None:
        """Forget answered messages."""
        self.peering.heard()
        self.peering.traffic.accepted += len(tags)
        take = self._sizes.pop
        self._unanswered.count(-sum(take(tag, 0) for tag in tags))

    def settled(self, event: Dispositions) -> None:
        """Forget answered messages: whatever the answer, each router gets one copy at most."""
        for tag, state, remotely_settled, _ in event.items:
            self.peering.count_outcome(outcome_field(state), 1)
            if not remotely_settled:
                self.peering.engine.settle_sent(event.link, tag)
            self._unanswered.count(-self._sizes.pop(tag, 0))

    def detached(self) -> None:
        """Process the end of the link by the neighbour: a message attaches it again later."""
        self._link = None
        self._retry_at_s = self.peering.now_s() + NETWORK_LINK_RETRY_S
        self._release()

    def fail(self) -> None:
        """End with the connection."""
        self._ended, self._link = True, None
        self.peering.forget(self)
        self._subscription.leave(self)
        self._release()

    def retire(self) -> None:
        """End: no router behind this neighbour has consumers any more."""
        link = self._link
        self.fail()
        if link is not None:
            self.peering.detach(link)

    @property
    def idle_since_s(self) -> float | None:
        """Time at which the link was used last; None without a link, or while messages are unanswered."""
        return None if self._link is None or self._sizes else self._used_s

    def detach_idle(self) -> None:
        """Detach the unused link."""
        link, self._link = self._link, None
        if link is not None:
            self.peering.detach(link)
            self._subscription.pump()  # waiting messages attach it again

    @property
    def used_s(self) -> float:
        """Time of the last message."""
        return self._used_s

    def is_unused(self, now_s: float, idle_s: float) -> bool:
        """Return True when no message has come for this time, and none is under way."""
        return not self._sizes and not self._subscription.waiting and now_s - self._used_s > idle_s

    def _release(self) -> None:
        self.peering.count_outcome("path_lost", len(self._sizes))
        freed = sum(self._sizes.values())
        self._sizes.clear()
        self._unanswered.count(-freed)
