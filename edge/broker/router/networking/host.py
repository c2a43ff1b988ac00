"""Interfaces between the router and its network of routers, so that neither module imports the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edge.broker.delivery import AnycastGroup
from edge.broker.router.live_subscriptions import LiveSink


class DirectNetwork(Protocol):
    """The network, as the addresses of the router see it."""

    def group_made(self, group: AnycastGroup) -> None:
        """Let consumers at other routers join a new group."""
        ...

    def group_forgotten(self, address: str) -> None:
        """Forget a group without consumers here, without messages and without links of neighbours."""
        ...

    def reaches(self, kind: str, address: str) -> bool:
        """Return True when another router with consumers of an address can be reached."""
        ...

    def sinks(self, address: str) -> Sequence[LiveSink]:
        """Return the neighbours to which multicast messages that are published here go."""
        ...
