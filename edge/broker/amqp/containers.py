"""Registry of the containers that are connected: which of them want one connection only, who has which link, and what
management shows of their connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import NamedTuple, Protocol


class LinkName(NamedTuple):
    """Identity of a link between a container and this broker (section 2.6.1); `user` keeps those of others apart."""

    user: str
    container_id: str
    name: str
    is_sender: bool


Steal = Callable[[], None]
"""Detaches the link that has been attached again elsewhere."""


class LinkFigures(NamedTuple):
    """One link, as management shows it."""

    name: str
    is_sender: bool
    """The broker sends on it."""
    address: str | None
    """None: the anonymous relay, where each message names its own."""
    is_service: bool
    credit: int
    unsettled: int
    delivered: int
    """Messages since it was attached."""


class ConnectionFigures(NamedTuple):
    """One connection, as management shows it."""

    container_id: str
    host: str
    """With the port."""
    user: str
    """Empty for a client without a user."""
    mechanism: str
    """SASL mechanism; empty without SASL."""
    cipher: tuple[str, str] | None
    """Cipher and version of TLS; None without TLS."""


class ObservedConnection(Protocol):
    """A connection that management can ask about."""

    def figures(self) -> ConnectionFigures:
        """Return what is known of the connection."""
        ...

    def link_figures(self) -> Iterator[LinkFigures]:
        """Yield its links, in the order in which they were attached."""
        ...


class ContainerRegistry:
    """Containers of all connections of one broker or address space."""

    __slots__ = ("_connections", "_links", "_numbers", "sole")

    def __init__(self) -> None:
        self.sole: set[tuple[str, str]] = set()
        """Users (empty: anybody) and container ids that are over one connection only."""
        self._links: dict[LinkName, Steal] = {}
        self._connections: dict[int, ObservedConnection] = {}
        self._numbers = count(1)

    @property
    def connections(self) -> Mapping[int, ObservedConnection]:
        """Connections that are open, by number, the oldest first."""
        return self._connections

    def add_connection(self, connection: ObservedConnection) -> int:
        """Record an open connection; returns its number, which no other gets."""
        number = next(self._numbers)
        self._connections[number] = connection
        return number

    def end_connection(self, number: int) -> None:
        """Forget a connection that was recorded."""
        self._connections.pop(number, None)

    def take_link(self, name: LinkName, steal: Steal) -> None:
        """Record the link that has this name from now on, and detach the one that had it."""
        before = self._links.pop(name, None)
        if before is not None:
            before()
        self._links[name] = steal

    def release_link(self, name: LinkName, steal: Steal) -> None:
        """Forget the link, unless another one has its name by now."""
        if self._links.get(name) is steal:
            del self._links[name]
