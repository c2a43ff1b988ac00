"""The broker's figures as topics below ``$SYS/broker``: made when somebody reads them, never stored.

Names and meanings are those other brokers have, so that existing dashboards find them. Only QoS 0, and only the broker
publishes there (`edge.broker.routes.ReservedRoute`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bridge.message import RETAIN, Run
from bridge.version import VERSION
from edge.broker.router import Router
from edge.broker.topics import matches

PREFIX: Final = "$SYS/"

PERIOD_S: Final = 10.0
"""How often subscribers get new figures, as with other brokers."""


class BrokerFigures:
    """What ``$SYS/broker/#`` says."""

    def __init__(self, router: Router, clients: Callable[[], tuple[int, int]]) -> None:
        """`clients` counts sessions with a connection, and all sessions."""
        self._router = router
        self._clients = clients
        self._started_at: float | None = None
        self._now = 0.0
        self._due = 0.0

    def matching(self, pattern: str) -> list[Run]:
        """Every figure a filter matches, as a retained message."""
        return [
            Run(name, "", RETAIN, b"", [str(value).encode()])
            for name, value in self._values().items()
            if matches(pattern, name)
        ]

    def tick(self, now: float) -> None:
        """Tell subscribers once a period; `now` is monotonic, in seconds."""
        self._now = now
        if self._started_at is None:
            self._started_at = now
        if now < self._due:
            return
        self._due = now + PERIOD_S
        if self._router.heard(PREFIX):
            for run in self.matching(PREFIX + "#"):
                self._router.tell(run)

    def _values(self) -> dict[str, object]:
        connected, total = self._clients()
        router = self._router
        figures = router.figures
        return {
            "$SYS/broker/version": f"waypost {VERSION}",
            "$SYS/broker/uptime": f"{int(self._now - (self._started_at or self._now))} seconds",
            "$SYS/broker/clients/connected": connected,
            "$SYS/broker/clients/disconnected": total - connected,
            "$SYS/broker/clients/total": total,
            "$SYS/broker/messages/received": figures.received,
            "$SYS/broker/messages/acknowledged": figures.acknowledged,
            "$SYS/broker/messages/refused": figures.refused,
            "$SYS/broker/retained messages/count": len(router.retained),
            "$SYS/broker/subscriptions/durable": len(router.durable_subscriptions),
        }
