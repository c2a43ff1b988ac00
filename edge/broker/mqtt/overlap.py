"""Overlapping subscriptions of one client: one copy for all of them (MQTT 5 section 3.3.4).

Messages reach a client in two ways. Live copies of a message arrive together, so a route with several live
subscriptions of a client offers the message to one `Overlap` instead. Stored copies arrive later, through one cursor
for each subscription. The first copy is sent for all subscriptions, and its position is remembered; the other copies
are settled without being sent. No message is lost, as the sent copy stays unacknowledged in its cursor until the client
has it. After a restart or beyond `limits.OVERLAP_RANGES_MAX` each subscription sends its own copy with its identifier,
which the standard allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from bridge.message import Run, Stored, is_from
from edge.broker.delivery import TransientSubscription, WaitingPool
from edge.broker.delivery.batches import LiveOffer, offer_of
from edge.broker.delivery.consumer_group import part_of
from edge.broker.delivery.pattern import Joinable
from edge.broker.model.interfaces import Consumer
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches, overlaps
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.limits import HEADS_CACHED_MAX, OVERLAP_CHECKED_MAX, OVERLAP_RANGES_MAX
from edge.broker.router.live_subscriptions import LiveSink


class MergedOptions(NamedTuple):
    """Combined options of several subscriptions."""

    qos: int
    identifiers: tuple[int, ...]
    retain_as_published: bool


class OverlapMember(Consumer, Protocol):
    """One subscription of a client (`edge.broker.mqtt.session.Subscriber`)."""

    __slots__ = ()

    competes: bool
    durable: Joinable | None
    identifiers: tuple[int, ...]
    request: SubscriptionRequest

    @property
    def client_overlaps(self) -> Overlaps:
        """Overlapping subscriptions of its client."""
        ...

    def mark_overlap(self, *, overlaps: bool = True) -> None:
        """Set whether another subscription of the client matches some of the same topics."""
        ...

    def merged(self, combined: MergedOptions, live: Joinable) -> OverlapMember:
        """Create a subscriber with combined options that joins this live subscription."""
        ...

    def pump(self) -> None:
        """Deliver waiting messages."""
        ...


class Overlap:
    """Live subscriptions of one client that match one address."""

    __slots__ = ("_client_id", "_others", "_own", "_stored")

    def __init__(self, overlaps: Overlaps, members: Sequence[OverlapMember], pool: WaitingPool) -> None:
        """`members`: subscriptions of one client, oldest first."""
        self._client_id = overlaps.client_id
        local = [member for member in members if not member.request.no_local]
        self._others = overlaps.merged_subscription(members, pool)
        self._own = overlaps.merged_subscription(local, pool) if local else None
        self._stored = (any(m.durable is not None for m in local), any(m.durable is not None for m in members))

    def offer(self, offer: LiveOffer) -> None:
        """Deliver each run once. Above QoS 0 a durable subscription among the members delivers it for all."""
        for run, origin in zip(offer.runs, offer.origins, strict=True):
            own = is_from(run, self._client_id)
            if run.qos and self._stored[0 if own else 1]:
                continue
            merged_subscription = self._own if own else self._others
            if merged_subscription is not None:
                merged_subscription.offer(offer_of(run, origin))


class Overlaps:
    """The overlapping subscriptions of one client."""

    __slots__ = ("_combined", "_many", "_merged", "_sent", "_subscribers", "client_id")

    def __init__(self, client_id: str, subscribers: Mapping[str, OverlapMember]) -> None:
        """`subscribers`: those of the client by filter; the session updates them."""
        self.client_id = client_id
        self._subscribers = subscribers
        self._many = False
        """There are too many subscriptions to compare, so all count as overlapping."""
        self._merged: dict[tuple[str, ...], tuple[OverlapMember, TransientSubscription]] = {}
        self._combined: dict[tuple[str, bool], MergedOptions] = {}
        self._sent: dict[int, Ranges] = {}
        """Positions that were sent for one of several overlapping subscriptions, by log."""

    def changed(self, pattern: str) -> None:
        """Update the overlaps after a subscription was created, replaced or removed."""
        self._combined.clear()
        for filters in [filters for filters in self._merged if pattern in filters]:
            subscriber, subscription = self._merged.pop(filters)
            subscription.leave(subscriber)
        made = self._subscribers.get(pattern)
        if self._many and len(self._subscribers) > OVERLAP_CHECKED_MAX:
            if made is not None:
                made.mark_overlap(overlaps=not made.competes)
            return
        subscribers = [each for each in self._subscribers.values() if not each.competes]
        self._many = len(subscribers) > OVERLAP_CHECKED_MAX
        if self._many:
            for each in subscribers:
                each.mark_overlap()  # where it does not overlap this only costs time
            return
        changed = next((each for each in subscribers if each.request.filter == pattern), None)
        if changed is None:
            return
        for other in subscribers:
            if other is not changed and overlaps(other.request.filter, pattern):
                other.mark_overlap()
                changed.mark_overlap()

    def merged_subscribers(self) -> list[OverlapMember]:
        """Return the subscribers that deliver for several live subscriptions."""
        return [subscriber for subscriber, _ in self._merged.values()]

    def clear_merged(self) -> None:
        """Leave the merged live subscriptions when the client disconnects."""
        for subscriber, subscription in self._merged.values():
            subscription.leave(subscriber)
        self._merged.clear()

    def merged_subscription(self, members: Sequence[OverlapMember], pool: WaitingPool) -> TransientSubscription:
        """Return the subscription that delivers for these members; there is one for each combination of filters."""
        filters = tuple(member.request.filter for member in members)
        found = self._merged.get(filters)
        if found is None:
            combined = _combine(members)
            subscription = TransientSubscription(members[0].request.filter, pool)
            subscriber = members[0].merged(combined, subscription)
            found = self._merged[filters] = (subscriber, subscription)
        return found[1]

    def combined(self, run: Run) -> MergedOptions:
        """Return the combined options of the client's subscriptions that match a run."""
        own = is_from(run, self.client_id)
        key = (run.address, own)
        found = self._combined.get(key)
        if found is None:
            members = [
                each
                for each in self._subscribers.values()
                if not each.competes
                and not (own and each.request.no_local)
                and matches(each.request.filter, run.address)
            ]
            if len(self._combined) >= HEADS_CACHED_MAX:
                self._combined.clear()
            found = self._combined[key] = _combine(members)
        return found

    def split_sent(self, log: int, stored: Stored) -> Iterator[tuple[Stored, bool]]:
        """Yield the parts of a stored run, with True if another subscription has sent them. Mark all as sent."""
        sent = self._sent.setdefault(log, Ranges())
        first, last = stored.position, stored.position + len(stored.run.bodies) - 1
        at = first
        for low, high in sent.within(first, last):
            if at < low:
                yield part_of(stored, at - first, low - first), False
            yield part_of(stored, low - first, high + 1 - first), True
            at = high + 1
        if at <= last:
            yield part_of(stored, at - first, last + 1 - first), False
        sent.add(first, last)
        if len(sent) > OVERLAP_RANGES_MAX:
            sent.remove(0, next(iter(sent))[1])

    def mark_unsent(self, log: int, first: int, last: int) -> None:
        """Undo `split_sent` for positions that were not sent after all."""
        if log in self._sent:
            self._sent[log].remove(first, last)


def _combine(members: Sequence[OverlapMember]) -> MergedOptions:
    return MergedOptions(
        max((member.request.qos for member in members), default=0),
        tuple(dict.fromkeys(each for member in members for each in member.identifiers)),
        any(member.request.retain_as_published for member in members),
    )


def merge_live(live: Sequence[TransientSubscription], pool: WaitingPool) -> Sequence[LiveSink]:
    """Merge the overlapping live subscriptions of each client at one address."""
    by_client: dict[Overlaps, list[OverlapMember]] = {}
    for subscription in live:
        subscriber = _overlapping(subscription)
        if subscriber is not None:
            by_client.setdefault(subscriber.client_overlaps, []).append(subscriber)
    merged = {client: Overlap(client, found, pool) for client, found in by_client.items() if len(found) > 1}
    if not merged:
        return live
    merged_subscribers: list[LiveSink] = []
    placed: set[Overlaps] = set()
    for subscription in live:
        subscriber = _overlapping(subscription)
        if subscriber is None or subscriber.client_overlaps not in merged:
            merged_subscribers.append(subscription)
        elif subscriber.client_overlaps not in placed:
            placed.add(subscriber.client_overlaps)
            merged_subscribers.append(merged[subscriber.client_overlaps])
    return merged_subscribers


def _overlapping(subscription: TransientSubscription) -> OverlapMember | None:
    """Return its consumer if that is an MQTT subscriber that overlaps with another of its client."""
    if subscription.share_name is not None or not subscription.group:
        return None
    consumer = subscription.group.consumers[0]
    return cast(OverlapMember, consumer) if consumer.overlaps else None
