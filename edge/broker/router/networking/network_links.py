"""Links of a connector of type `router`: the shell of a connection to a neighbour that this router has dialed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bridge.amqp_connection import AmqpConnection
from bridge.connectors.settings import RouterSettings
from bridge.engine import Accepted, Condition, Detached, Dispositions, Link, LinkFlow, Transfers
from bridge.uplink import UplinkShell
from edge.broker.router.networking.neighbour_traffic import NeighbourTraffic
from edge.broker.router.networking.network import RouterNetwork
from edge.broker.router.networking.peering import Peering


class NetworkLinks:
    """`bridge.amqp_connection.ConnectionLinks` of one connection."""

    deadline: float | None = None
    """The network greets and finds silent neighbours in each housekeeping of the broker."""

    def __init__(self, network: RouterNetwork, settings: RouterSettings, traffic: NeighbourTraffic) -> None:
        """`traffic` counts the messages of the connector."""
        self._network = network
        self._settings = settings
        self._traffic = traffic
        self._peering: Peering | None = None

    def driven_by(self, driver: UplinkShell) -> None:
        """Do nothing: the links wake the connection themselves."""

    def count_bytes(self, size: int) -> None:
        """Do nothing: these bytes are not counted."""

    def opened(self, connection: AmqpConnection, now: float) -> None:
        self._peering = self._network.open(
            connection.engine,
            connection.wake,
            connection.disconnect,
            greeted=partial(connection.up, batching=False),
            cost=self._settings.cost,
            interval_s=self._settings.hello_interval_s,
            traffic=self._traffic,
        )

    def attached(self, link: Link) -> bool:
        if self._peering is None:
            return False
        self._peering.attached(link)
        return True

    def detached(self, event: Detached, now: float) -> None:
        if self._peering is not None:
            self._peering.detached(event.link, event.condition)

    def settled(self, event: Dispositions, now: float) -> None:
        if event.link.is_sender and event.link.context is not None:
            event.link.context.settled(event)

    def progressed(self, event: LinkFlow | Accepted) -> None:
        owner = event.link.context
        if owner is None or not event.link.is_sender:
            return
        if isinstance(event, Accepted):
            owner.accepted(event.tags)
        else:
            owner.flow()

    def received(self, event: Transfers, now: float) -> bool:
        if event.link.context is None:
            return event.link.closed  # messages on the way when we detached
        event.link.context.received(event)
        return True

    def handle_timeout(self, now: float) -> None:
        """Do nothing; see `deadline`."""

    def flush(self) -> None:
        """Do nothing: messages are given to the engine at once."""

    def leave(self, left: Callable[[], None]) -> None:
        self.end()
        left()

    def end(self) -> None:
        peering, self._peering = self._peering, None
        if peering is not None:
            self._network.ended(peering)

    def wait_s(self, condition: Condition | None) -> float:
        return 0.0
