"""Registry of connected containers: exclusive container ids, link names, and connections as management shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import NamedTuple, Protocol


class LinkName(NamedTuple):
    """Identity of a link between a container and this broker (section 2.6.1), for each user."""

    user: str
    container_id: str
    name: str
    is_sender: bool


Steal = Callable[[], None]
"""Detaches a link that was attached again elsewhere."""


class LinkFigures(NamedTuple):
    """Figures of one link for management."""

    name: str
    is_sender: bool
    """True if the broker sends on the link."""
    address: str | None
    """None: the anonymous relay."""
    is_service: bool
    credit: int
    unsettled: int
    delivered: int
    """Messages since the attach."""


class ConnectionFigures(NamedTuple):
    """Properties of one connection for management."""

    container_id: str
    host: str
    """Host and port."""
    user: str
    """Empty for a client without a user."""
    mechanism: str
    """SASL mechanism; empty without SASL."""
    cipher: tuple[str, str] | None
    """Cipher and version of TLS; None without TLS."""
    opened_at: float
    """UTC seconds of the peer's open."""


class MessageTotals(NamedTuple):
    """Messages of one connection since its open, over all links."""

    received: int
    sent: int
    unsettled: int
    """Sent messages that the peer has not settled."""
    receivers: int
    """Links on which the peer receives."""


class ObservedConnection(Protocol):
    """A connection that operators and management can show and close."""

    def totals(self) -> MessageTotals:
        """Return the counts of messages."""
        ...

    def close_by_operator(self) -> None:
        """Close the connection (section 2.8.16, ``amqp:connection:forced``)."""
        ...

    def figures(self) -> ConnectionFigures:
        """Return the properties of the connection."""
        ...

    def link_figures(self) -> Iterator[LinkFigures]:
        """Yield its links, in the order in which they were attached."""
        ...


class ContainerRegistry:
    """Containers of all connections of one broker or address space."""

    __slots__ = ("_connections", "_links", "_numbers", "sole")

    def __init__(self) -> None:
        self.sole: set[tuple[str, str]] = set()
        """Users (empty without authentication) and container ids with an exclusive connection."""
        self._links: dict[LinkName, Steal] = {}
        self._connections: dict[int, ObservedConnection] = {}
        self._numbers = count(1)

    @property
    def connections(self) -> Mapping[int, ObservedConnection]:
        """Open connections by number, the oldest first."""
        return self._connections

    def add_connection(self, connection: ObservedConnection) -> int:
        """Record an open connection. Return its unique number."""
        number = next(self._numbers)
        self._connections[number] = connection
        return number

    def end_connection(self, number: int) -> None:
        """Forget a connection that was recorded."""
        self._connections.pop(number, None)

    def take_link(self, name: LinkName, steal: Steal) -> None:
        """Record the link with this name, and detach an older one."""
        before = self._links.pop(name, None)
        if before is not None:
            before()
        self._links[name] = steal

    def release_link(self, name: LinkName, steal: Steal) -> None:
        """Forget the link, unless another one has its name now."""
        if self._links.get(name) is steal:
            del self._links[name]
