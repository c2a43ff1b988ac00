"""Connector to a peer other than a hub: its forwarders in both directions, and their common connection.

To the router each outgoing forwarder is a consumer with its own cursors in the logs, and each incoming one an origin.
The connection attempts know the protocol.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from bridge.backoff import Backoff, BackoffPolicy
from bridge.dialer import Attempt, Dialer, PeerEndpoint
from bridge.flow import Outcomes
from bridge.forwarders.mapping import Mapping
from bridge.forwarders.outbox import ForwarderOutbox, ForwardRule, Outlet, SendOptions
from edge.broker.configuration import Connector, ConnectorType, Direction, Forwarder
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.model.interfaces import DeliveryOutcome
from edge.broker.router.forwarder_filter import wanted_by
from edge.broker.router.forwarding import Forwarding
from edge.broker.router.inbound import IncomingForwarder
from edge.broker.router.inbound_losses import InboundLosses
from edge.broker.router.networking.neighbour_traffic import NeighbourTraffic
from edge.broker.router.recent_names import NamesByForwarder
from edge.broker.router.router import Router
from edge.broker.security.peer_tls import peer_stamps
from edge.broker.store.contract import Cursors, EpochLineage

log = logging.getLogger(__name__)

BACKOFF = BackoffPolicy(first_s=0.5, limit_s=15.0, stable_s=30.0)
"""The same as for a hub."""

ACKNOWLEDGES_REJECTED: Final = frozenset((ConnectorType.MQTT, ConnectorType.KAFKA))
"""Peers without refusals: they forget a rejected message, so it is entered in the loss ledger before the answer."""

AttemptAt = Callable[[Dialer, PeerEndpoint], Attempt]
"""Makes the attempts of one connector, each at an endpoint."""

MakeAttempts = Callable[["PeerConnector"], AttemptAt]
"""Makes an `AttemptAt` for a type of connectors; called once for each connector."""


class ConnectorCounters(msgspec.Struct, frozen=True):
    """Messages of a connector since it was made, for status pages."""

    messages_sent: int = 0
    messages_accepted: int = 0
    messages_rejected: int = 0


class _Outgoing:
    """One outgoing forwarder: its subscriptions, and its messages on their way to the peer."""

    def __init__(self, forwarder: Forwarder, outlet: Outlet, forwarding: Forwarding) -> None:
        self.forwarder = forwarder
        self.outlet = outlet
        self.forwarding = forwarding


class PeerConnector:
    """One connector to a peer other than a hub, for the time that its configuration stays."""

    def __init__(
        self,
        connector: Connector,
        make: MakeAttempts,
        names: NamesByForwarder,
        losses: InboundLosses,
        *,
        gateway: str,
        router: Router,
        lineage: EpochLineage,
        cursors: Cursors,
    ) -> None:
        """`start` of its dialer starts to dial."""
        self.connector = connector
        self.outbox = ForwarderOutbox(
            gateway,
            Outcomes(DeliveryOutcome.ACCEPTED, DeliveryOutcome.REJECTED, DeliveryOutcome.EXPIRED),
            epoch_of=lineage.epochs.of,
            now_ns=router.now_ns,
        )
        self.inboxes: list[IncomingForwarder] = []
        self.router, self.now_ns = router, router.now_ns
        self._cursors = cursors
        self._names = names
        self._losses = losses
        self.gateway = gateway
        self._outgoing: dict[str, _Outgoing] = {}
        self.traffic = NeighbourTraffic()
        """Messages of a connector to a router of the network."""
        self.forwarders: dict[str, Forwarder] = {}
        """Bound forwarders by name."""
        self.endpoints = dialed(connector, connector.type.value)
        self.dialer = Dialer(
            self.endpoints,
            make(self),
            backoff=Backoff(BACKOFF, random.Random().random),  # noqa: S311 - jitter, no secret
            stamps=partial(peer_stamps, connector.tls),
        )
        router.tick_listeners.add(self._tick)

    # --- configuration ----------------------------------------------------------------------------------------

    def forward(self, forwarders: Sequence[Forwarder]) -> None:
        """Bind these forwarders and no others. A changed one continues from its cursors with its new settings."""
        self.forwarders = wanted = {forwarder.name: forwarder for forwarder in forwarders}
        for name, outgoing in list(self._outgoing.items()):
            if wanted.get(name) != outgoing.forwarder:
                self._unbind(name)
        incoming = [forwarder for forwarder in forwarders if forwarder.direction is Direction.IN]
        ended = [inbound for inbound in self.inboxes if wanted.get(inbound.forwarder.name) != inbound.forwarder]
        for inbound in ended:
            self._end(inbound)
        known = {inbound.forwarder.name for inbound in self.inboxes}
        started = [self._begin(forwarder) for forwarder in incoming if forwarder.name not in known]
        for forwarder in forwarders:
            if forwarder.direction is Direction.OUT and forwarder.name not in self._outgoing:
                self._outgoing[forwarder.name] = self._bind(forwarder)
        for outgoing in self._outgoing.values():
            self._follow(outgoing)
        if ended or started:
            self.dialer.renew("the incoming forwarders have changed")

    def release(self) -> None:
        """Unbind all forwarders. Unanswered incoming messages are released when the dialer closes."""
        self.forward(())
        self.router.tick_listeners.remove(self._tick)

    def explain(self) -> None:
        """Do nothing: only a hub keeps our ledger."""

    def restate(self) -> None:
        """Do nothing: messages at the peer keep their former names."""

    def poll(self, now_ns: int, *, clock_good: bool) -> None:
        """Check for a changed certificate. Called every few seconds."""
        self.dialer.check_files()

    def tell_status(self, document: dict[str, Any]) -> None:
        """Do nothing: only a hub takes our status."""

    # --- figures ----------------------------------------------------------------------------------------------

    @property
    def figures(self) -> ConnectorCounters:
        """Counters of the present forwarders; of a connector to a router those of its link."""
        if self.connector.type is ConnectorType.ROUTER:
            return ConnectorCounters(self.traffic.sent, self.traffic.accepted, self.traffic.rejected)
        each = [outgoing.outlet.figures for outgoing in self._outgoing.values()]
        accepted, rejected = sum(one.accepted for one in each), sum(one.rejected for one in each)
        sent = accepted + rejected + sum(one.resent for one in each) + self.outbox.in_flight
        return ConnectorCounters(sent, accepted, rejected)

    @property
    def refused_here(self) -> dict[str, int]:
        """Number of incoming messages that were rejected, by forwarder."""
        return {inbound.forwarder.name: inbound.figures.rejected for inbound in self.inboxes}

    @property
    def faults(self) -> dict[str, str]:
        """Reasons why forwarders take nothing from their addresses, by name."""
        each = ((name, outgoing.forwarding.fault) for name, outgoing in self._outgoing.items())
        return {name: fault for name, fault in each if fault is not None}

    @property
    def backlog(self) -> int:
        """Messages for the peer that it has not accepted (an upper bound while behind)."""
        return sum(part.backlog + part.outstanding for part in self.parts)

    @property
    def parts(self) -> list[LogSubscription]:
        """Subscriptions of the forwarders in the logs of the store."""
        every = (part for outgoing in self._outgoing.values() for part in outgoing.forwarding.parts)
        return list(dict.fromkeys(every))

    # --- inside -----------------------------------------------------------------------------------------------

    def _bind(self, forwarder: Forwarder) -> _Outgoing:
        rule = ForwardRule(
            forwarder.name,
            Mapping(forwarder.filter, forwarder.remote_address, self.gateway),
            SendOptions(forwarder.qos, forwarder.ttl_s, forwarder.message_priority),
            forwarder.priority,
            wanted_by(forwarder.only),
        )
        outlet = self.outbox.add(rule)
        name = f"{FORWARDER_PREFIX}{self.connector.name}/{forwarder.name}"
        return _Outgoing(forwarder, outlet, Forwarding(self.router, outlet.flow, name, forwarder.filter))

    def _follow(self, outgoing: _Outgoing) -> None:
        flow, forwarding = outgoing.outlet.flow, outgoing.forwarding
        before = forwarding.subscriptions
        forwarding.follow()
        for subscription in before:
            if subscription not in forwarding.subscriptions:
                flow.remove(subscription)
        for subscription in forwarding.subscriptions:
            flow.add(subscription)
        for part in forwarding.parts:
            self._cursors.move_with_each_commit(part.cursor)

    def _unbind(self, name: str) -> None:
        outgoing = self._outgoing.pop(name)
        parts = outgoing.forwarding.parts
        for subscription in (*outgoing.forwarding.subscriptions, *parts):
            outgoing.outlet.flow.remove(subscription)
        outgoing.forwarding.end()
        self.outbox.remove(outgoing.outlet)
        left = sum(part.backlog for part in parts)
        log.warning("forwarder %s was removed or changed; up to %d messages stay in the store for it", name, left)

    def _begin(self, forwarder: Forwarder) -> IncomingForwarder:
        names = self._names.of(f"{self.connector.name}/{forwarder.name}")
        losses = self._losses if self.connector.type in ACKNOWLEDGES_REJECTED else None
        inbound = IncomingForwarder(self.router, forwarder, names, self.gateway, wanted_by(forwarder.only), losses)
        self.inboxes.append(inbound)
        return inbound

    def _end(self, inbound: IncomingForwarder) -> None:
        self.inboxes.remove(inbound)
        inbound.end(partial(self.router.forget_origin, inbound))

    def _tick(self) -> None:
        for inbound in self.inboxes:
            inbound.try_again()
        for name in self.faults:
            self._follow(self._outgoing[name])


def dialed(connector: Connector, scheme: str = "amqp") -> list[PeerEndpoint]:
    """Return the endpoints of a connector's peer for a dialer. `scheme` is the protocol there."""
    return [
        PeerEndpoint(each.host, each.port, connector.tls is not None, scheme, host.websocket)
        for each, host in zip(connector.endpoints, connector.hosts, strict=True)
    ]
