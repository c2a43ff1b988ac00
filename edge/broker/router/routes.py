"""Routes: the handling of runs of one address, one class for each address type. `RouteTable` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bridge.message import RETAIN, Run
from edge.broker.delivery import AnycastGroup
from edge.broker.delivery.batches import offer_of
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.tracing import Destination
from edge.broker.retention.quotas import QuotaAccount
from edge.broker.router.batch import LogSink, RouteTargets
from edge.broker.router.flows import UNCOUNTED, AddressFlow
from edge.broker.router.live_subscriptions import LiveSink
from edge.broker.router.publish_sink import PublishSink


class Route(Protocol):
    """Route of the runs of one address."""

    __slots__ = ()
    flow: AddressFlow = UNCOUNTED
    """Counts its messages. The caller of `publish` adds to `received`."""

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Take a run of a sender."""
        ...

    def targets(self, qos: int) -> RouteTargets | None:
        """Return the targets of all runs of this QoS that are not retained, from any sender and with any properties;
        None if each run has to be checked."""
        return None

    def posting_targets(self, origin: Origin) -> RouteTargets | Refusal | None:
        """Return the targets of messages of a transaction, which are stored as QoS 1, or the refusal of all messages of
        this origin; None if they cannot be part of a transaction."""
        return None

    def destination(self, qos: int) -> Destination:
        """Return the destination of messages of this QoS, for a packet trace."""
        ...


def admitted(account: QuotaAccount, log: int, run: Run) -> bool:
    """Return True when the account has room for a run, if necessary after dropping older messages."""
    return account.admits(log, sum(map(len, run.bodies)), len(run.bodies))


def offer_live(flow: AddressFlow, live: Sequence[LiveSink], origin: Origin, run: Run) -> None:
    """Offer a run to live subscriptions, and count the copies."""
    if live:
        flow.delivered += len(run.bodies) * len(live)
        offer = offer_of(run, origin)
        for subscription in live:
            subscription.offer(offer)


class QueueRoute(Route):
    """Every message is stored; consumers compete for it after the commit."""

    __slots__ = ("account", "flow", "log")

    def __init__(self, flow: AddressFlow, log: int, account: QuotaAccount) -> None:
        self.flow = flow
        self.log = log
        self.account = account

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        if self.account.limited and not admitted(self.account, self.log, run):
            sink.answers.refuse(origin, tokens, Refusal.FULL)
            return
        sink.keep(self.log, origin, run, tokens)

    def targets(self, qos: int) -> RouteTargets | None:
        return RouteTargets((), LogSink(self.log, self.account), self.flow)

    def posting_targets(self, origin: Origin) -> RouteTargets | Refusal | None:
        return self.targets(1)

    def destination(self, qos: int) -> Destination:
        return Destination(AddressType.QUEUE.value, log=self.log)


class TopicRoute(Route):
    """Every subscriber gets a copy. The body is stored once, and only if a durable subscription wants it."""

    __slots__ = ("_keeps_qos0", "account", "flow", "live", "log")

    def __init__(
        self,
        flow: AddressFlow,
        live: Sequence[LiveSink],
        log: int | None = None,
        account: QuotaAccount | None = None,
        *,
        keeps_qos0: bool = False,
    ) -> None:
        """`log` and `account` are None without a durable subscription. `keeps_qos0`: one of them wants QoS 0 messages
        too (a forwarder does)."""
        self.flow = flow
        self.live = live
        self.log = log
        self.account = account
        self._keeps_qos0 = keeps_qos0

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        log, account = self.log, self.account
        if log is None and not self.live and not run.flags & RETAIN:
            sink.drop_unrouted(origin, run, tokens)
            return
        if log is not None and run.qos == 0 and not self._keeps_qos0:
            log = None
        if log is not None and account is not None and account.limited and not admitted(account, log, run):
            if tokens:
                sink.answers.refuse(origin, tokens, Refusal.FULL)  # it is sent again: no subscriber must get it twice
                return
            log = None
        retains = bool(run.flags & RETAIN)
        if retains and not sink.may_retain(run, origin.user):
            if tokens:
                sink.answers.refuse(origin, tokens, Refusal.NAMES)
                return
            retains = False
        offer_live(self.flow, self.live, origin, run)
        if retains:
            sink.retain(log, origin, run, tokens)
        elif log is not None:
            sink.keep(log, origin, run, tokens)
        else:
            sink.answers.accept(origin, tokens)

    def targets(self, qos: int) -> RouteTargets | None:
        live = tuple(self.live)
        if self.log is None and not live:
            return None  # each message is counted under its address
        if self.log is None or self.account is None or not (qos or self._keeps_qos0):
            return RouteTargets(live, None, self.flow)
        return RouteTargets(live, LogSink(self.log, self.account), self.flow)

    def posting_targets(self, origin: Origin) -> RouteTargets | Refusal | None:
        return self.targets(1) or RouteTargets((), None, self.flow)

    def destination(self, qos: int) -> Destination:
        kept = self.log if qos or self._keeps_qos0 else None
        return Destination(AddressType.TOPIC.value, len(self.live), kept)


class AnycastRoute(Route):
    """Each message goes to one consumer, and its answer back to the origin."""

    __slots__ = ("flow", "group")

    def __init__(self, flow: AddressFlow, group: AnycastGroup) -> None:
        self.flow = flow
        self.group = group

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        hold = bool(tokens) and not self.group.group and origin.waits_for_consumer()
        if hold and not sink.answers.ordered.may_hold(origin, len(tokens)):
            origin.refused(tokens, Refusal.NO_CONSUMER)  # its connection ends: the order does not matter
            return
        if tokens and origin.in_order:
            origin, tokens = sink.answers.await_consumer(origin, tokens, self.group.withdraw)
        why = self.group.offer(origin, run, tokens, hold=hold)
        if why is not None:
            sink.answers.refuse(origin, tokens, why)

    def destination(self, qos: int) -> Destination:
        return Destination(AddressType.ANYCAST.value, len(self.group.consumers))


class MulticastRoute(Route):
    """Each message goes to all connected consumers; nothing is stored. Without consumers it is refused."""

    __slots__ = ("flow", "live")

    def __init__(self, flow: AddressFlow, live: Sequence[LiveSink]) -> None:
        self.flow = flow
        self.live = live

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        offer_live(self.flow, self.live, origin, run)
        if self.live:
            sink.answers.accept(origin, tokens)
        else:
            sink.answers.refuse(origin, tokens, Refusal.NO_CONSUMER_CONNECTED)

    def destination(self, qos: int) -> Destination:
        return Destination(AddressType.MULTICAST.value, len(self.live))


class TemporaryRoute(Route):
    """Address of a dynamic node: for its owner only; nothing is stored or retained."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Sequence[LiveSink]) -> None:
        self._owner = owner

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        if not self._owner:
            sink.drop_unrouted(origin, run, tokens)
            return
        offer_live(self.flow, self._owner, origin, run)
        sink.answers.accept(origin, tokens)

    def posting_targets(self, origin: Origin) -> RouteTargets | Refusal | None:
        return RouteTargets(tuple(self._owner), None, self.flow)

    def destination(self, qos: int) -> Destination:
        return Destination(AddressType.TOPIC.value, len(self._owner))


class OwnRoute(Route):
    """Route for one origin; the messages of all others are refused, regardless of their rights."""

    __slots__ = ("_owner", "_route", "flow")

    def __init__(self, route: Route, owner: Origin) -> None:
        self.flow = route.flow
        self._route = route
        self._owner = owner

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        if origin is self._owner:
            self._route.publish(sink, origin, run, tokens)
        else:
            sink.answers.refuse(origin, tokens, Refusal.NOT_AUTHORIZED)

    def posting_targets(self, origin: Origin) -> RouteTargets | Refusal | None:
        return self._route.posting_targets(origin) if origin is self._owner else Refusal.NOT_AUTHORIZED

    def destination(self, qos: int) -> Destination:
        return self._route.destination(qos)


class RefusingRoute(Route):
    """Names that no client may publish to: the broker's own, and those of subscriptions."""

    __slots__ = ("_why",)

    def __init__(self, why: Refusal) -> None:
        self._why = why

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        sink.answers.refuse(origin, tokens, self._why)

    def posting_targets(self, origin: Origin) -> RouteTargets | Refusal | None:
        return self._why

    def destination(self, qos: int) -> Destination:
        return Destination("refused")
