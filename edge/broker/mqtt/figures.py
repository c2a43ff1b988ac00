"""Figures of the broker as topics below ``$SYS/broker``, computed for subscribers and never stored.

Names and meanings are those of other brokers, so existing dashboards work. They are sent at QoS 0. Only the broker
publishes there (`edge.broker.router.routes.RefusingRoute`), except that bridges of other brokers publish the state of
their own connection (`edge.broker.router.connection_states`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from bridge.message import RETAIN, Run
from bridge.version import VERSION
from edge.broker.model.topics import matches
from edge.broker.mqtt.expiry import Lifetime
from edge.broker.mqtt.load import LoadAverages
from edge.broker.router.router import Router
from edge.broker.store.records import StoreTotals

PREFIX: Final = "$SYS/"

PERIOD_S: Final = 10.0
"""Seconds between two publications of the figures, as in other brokers."""


class ClientFigures(NamedTuple):
    """Figures of the sessions."""

    connected: int
    total: int
    """Connected or not."""
    subscriptions: int
    lifetime: Lifetime


class NetworkFigures(NamedTuple):
    """Counters of connections since the start."""

    connections: int = 0
    """MQTT and AMQP connections that have authenticated, or need not."""
    received_bytes: int = 0
    sent_bytes: int = 0


class BrokerFigures:
    """Values of ``$SYS/broker/#``."""

    def __init__(
        self,
        router: Router,
        clients: Callable[[], ClientFigures],
        store: Callable[[], StoreTotals],
        network: Callable[[], NetworkFigures],
    ) -> None:
        self._router = router
        self._network = network
        self._loads = LoadAverages()
        self._clients = clients
        self._store = store
        self._values: dict[str, object] = {}
        self._values_at: float | None = None
        self._started_at: float | None = None
        self._now = 0.0
        self._due = 0.0

    def matching(self, pattern: str) -> list[Run]:
        """Return the figures that match a filter, as retained messages."""
        states = [
            Run(name, "", RETAIN, b"", [state])
            for name, state in self._router.connection_states.items()
            if matches(pattern, name)
        ]
        return states + self._counted(pattern)

    def _counted(self, pattern: str) -> list[Run]:
        return [
            Run(name, "", RETAIN, b"", [str(value).encode()])
            for name, value in self._now_values().items()
            if matches(pattern, name)
        ]

    def tick(self, now: float) -> None:
        """Publish the figures once a period; `now` is monotonic seconds."""
        self._now = now
        if self._started_at is None:
            self._started_at = now
        if now < self._due:
            return
        self._due = now + PERIOD_S
        network, figures = self._network(), self._router.figures
        counts = {
            "messages/received": figures.received,
            "messages/sent": figures.sent,
            "publish/received": figures.received,
            "publish/sent": figures.sent,
            "publish/dropped": self._router.pool.dropped,
            "bytes/received": network.received_bytes,
            "bytes/sent": network.sent_bytes,
            "connections": network.connections,
        }
        self._loads.update(counts, now)
        if self._router.subscriptions.live.any_below(PREFIX):
            for run in self._counted(PREFIX + "#"):
                self._router.publish_live(run)

    def _now_values(self) -> dict[str, object]:
        """Return the figures of this tick, computed once also for a client with a thousand filters."""
        if self._values_at != self._now:
            self._values, self._values_at = self._count(), self._now
        return self._values

    def _count(self) -> dict[str, object]:
        connected, total, subscriptions, lifetime = self._clients()
        router, store = self._router, self._store()
        figures, network = router.figures, self._network()
        loads = {f"$SYS/broker/load/{name}": value for name, value in self._loads}
        return {
            **loads,
            "$SYS/broker/version": f"waypost {VERSION}",
            "$SYS/broker/uptime": f"{int(self._now - (self._started_at or self._now))} seconds",
            "$SYS/broker/clients/connected": connected,
            "$SYS/broker/clients/disconnected": total - connected,
            "$SYS/broker/clients/total": total,
            "$SYS/broker/messages/received": figures.received,
            "$SYS/broker/messages/sent": figures.sent,
            "$SYS/broker/publish/messages/received": figures.received,
            "$SYS/broker/publish/messages/sent": figures.sent,
            "$SYS/broker/bytes/received": network.received_bytes,
            "$SYS/broker/bytes/sent": network.sent_bytes,
            "$SYS/broker/messages/stored": figures.stored,
            "$SYS/broker/messages/unrouted": figures.unrouted,
            "$SYS/broker/messages/acknowledged": figures.acknowledged,
            "$SYS/broker/messages/refused": figures.refused,
            "$SYS/broker/messages/expired": lifetime.expired,
            "$SYS/broker/publish/messages/dropped": router.pool.dropped,
            "$SYS/broker/retained messages/count": len(router.retained),
            "$SYS/broker/retained messages/expired": router.retained.expired,
            "$SYS/broker/store/messages/count": store.messages,
            "$SYS/broker/store/messages/bytes": store.bytes,
            "$SYS/broker/subscriptions/count": subscriptions,
            "$SYS/broker/subscriptions/durable": len(router.durable_subscriptions),
        }
