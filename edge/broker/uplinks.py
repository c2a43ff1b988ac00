"""Uplinks: the connectors of a space, each dialling its peer, and the forwarders bound to them.

To the router an uplink is a consumer of durable subscriptions, so everything a subscription can do (cursor, backlog in
the store, redelivery after a break) is what a forwarder does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from bridge.backoff import Backoff, BackoffPolicy
from bridge.dialer import DialedConnection, Dialer, Endpoint
from bridge.engine import Engine
from bridge.gateway_link import GatewayLink, bind_wake
from bridge.plain import Hop
from bridge.reports import Reports
from bridge.uplink import Outcomes, Uplink
from edge.broker.configuration import BrokerConfiguration, Connector, Direction, Forwarder
from edge.broker.contract import Outcome
from edge.broker.durable import DurableSubscription
from edge.broker.router import Joinable, Router, SubscribeOptions
from edge.broker.subscriptions import LogSubscription

OUTCOMES: Final = Outcomes(Outcome.ACCEPTED, Outcome.REJECTED)

BACKOFF: Final = BackoffPolicy(first_s=0.5, limit_s=30.0, stable_s=30.0)
"""A gateway whose hub is away asks twice a minute at most: 10 000 of them are 300 attempts a second, jittered."""

IDLE_TIMEOUT_S: Final = 30.0
"""A dead uplink (no RST, as behind a cellular NAT) is noticed after this, and alive ones cost a frame every 15 s."""


class ConnectorUplink:
    """One connector with its forwarders: dials for ever, sends what its forwarders' filters match."""

    def __init__(self, connector: Connector, *, space: str, hop: Hop, router: Router) -> None:
        """`hop` names this gateway and its store's epoch towards the peer. `start` begins to dial."""
        self.connector = connector
        self.reports = Reports()
        self.uplink = Uplink(f"uplink {connector.name}", hop, space=space, outcomes=OUTCOMES, bases=router.bases)
        self._router = router
        self._subscriptions: dict[str, Joinable] = {}
        self.dialer = Dialer(
            [Endpoint(endpoint.host, endpoint.port) for endpoint in connector.endpoints],
            lambda endpoint: self._connection(hop.gateway),
            backoff=Backoff(BACKOFF, random.Random().random),  # noqa: S311 - jitter, no secret
            bind=self._bind,
        )

    def forward(self, forwarder: Forwarder) -> None:
        """Bind a forwarder: what its filter matches is kept from now on, and sent when the peer takes it."""
        name = f"forwarder/{self.connector.name}/{forwarder.name}"
        options = SubscribeOptions(durable_name=name, all_qos=True)
        subscription = self._router.subscribe(self.uplink, forwarder.filter, options)
        self._subscriptions[forwarder.name] = subscription
        self.uplink.add(subscription)

    def start(self) -> None:
        """Begin to dial; needs a running loop."""
        self.dialer.start()

    async def stop(self) -> None:
        """Say good-bye to the peer and stop dialling."""
        await self.dialer.close()

    @property
    def backlog(self) -> int:
        """Messages kept for the peer that it has not accepted (an upper bound while behind)."""
        return sum(part.backlog + part.outstanding for part in self.parts)

    @property
    def parts(self) -> list[LogSubscription]:
        """The forwarders' places in the logs of the store."""
        found: list[LogSubscription] = []
        for subscription in self._subscriptions.values():
            if isinstance(subscription, DurableSubscription):
                found += subscription.parts
            elif isinstance(subscription, LogSubscription):
                found.append(subscription)
        return found

    def _connection(self, container: str) -> DialedConnection:
        engine = Engine(container_id=container, server=False, idle_timeout_s=IDLE_TIMEOUT_S)
        return GatewayLink(engine, self.uplink, self.reports)

    def _bind(self, wake: Callable[[], None]) -> None:
        bind_wake(self.uplink, self.reports, wake)


def uplinks(configuration: BrokerConfiguration, router: Router, epoch: str) -> list[ConnectorUplink]:
    """The uplinks a configuration asks for, forwarders bound, not dialling yet."""
    made = []
    for connector in configuration.connectors:
        hop = Hop(connector.container or configuration.gateway, epoch)
        uplink = ConnectorUplink(connector, space=configuration.space, hop=hop, router=router)
        for forwarder in sorted(configuration.forwarders, key=lambda forwarder: -forwarder.priority):
            if forwarder.connector == connector.name and forwarder.direction is Direction.OUT:
                uplink.forward(forwarder)
        made.append(uplink)
    return made
