"""Find forwarding loops: forwarders are paths between addresses, and paths may form rings.

A path leads from addresses of a gateway to those of a peer, or back. A peer is identified by its endpoints, so two
connectors to one endpoint lead to the same addresses. The configuration does not show loops through other brokers; they
are broken when a message returns to a gateway that it has already passed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bridge.forwarders.mapping import as_pattern
from bridge.resources import values
from bridge.resources.errors import Path
from bridge.resources.resource import Resource, of_kind
from bridge.topic_filter import filter_fault
from edge.broker.configuration import Connector, Direction, ForwarderPart
from edge.broker.model.topics import overlaps
from edge.configuration.resources import AddressSpaceSpec, AddressSpec, GatewaySpec

Peers = frozenset[tuple[str, int]]
"""Endpoints of one connector."""
HUB: Final = "hub"
"""Connector to the hub; its addresses are the same for every gateway of a tenant."""


class ForwardingPath(NamedTuple):
    """Path of one forwarder, between a pattern of local addresses and one of the peer's."""

    gateway: str
    """Gateway of the forwarder."""
    resource: Resource
    path: Path
    name: str
    direction: Direction
    here: str
    there: str
    peers: Peers

    def feeds(self, other: ForwardingPath) -> bool:
        """Return True when the other forwarder may receive messages of this one."""
        if self.direction is other.direction:
            return False
        if self.direction is Direction.IN:
            return self.gateway == other.gateway and overlaps(self.here, other.here)
        return not self.peers.isdisjoint(other.peers) and overlaps(self.there, other.there)

    @property
    def words(self) -> str:
        """Description for people."""
        arrow = "to" if self.direction is Direction.OUT else "from"
        return f'"{self.name}" ({self.here} {arrow} {self.there})'


def connectors_of(resources: Sequence[Resource]) -> dict[str, Connector]:
    """Return the connectors by name."""
    spaces = of_kind(resources, AddressSpaceSpec)
    return {connector.name: connector for _, space in spaces for connector in space.connectors}


def remote_of(forwarder: ForwarderPart, address: str) -> tuple[str, str]:
    """Return (connector, remote address) of a forwarder of `address`; the default remote address is the same."""
    connector, _, remote = forwarder.remote_address.partition("/")
    return connector, remote or address


def forwarding_paths(resources: Sequence[Resource], gateway: str = "") -> list[ForwardingPath]:
    """Return the paths of one gateway's forwarders."""
    found, connectors, hubs = list[ForwardingPath](), connectors_of(resources), _hubs(resources)
    for resource, spec in of_kind(resources, AddressSpec):
        for i, forwarder in enumerate(spec.forwarders):
            name, remote = remote_of(forwarder, spec.address)
            there = as_pattern(remote)
            if filter_fault(spec.address) or filter_fault(there):
                continue  # reported by another check
            peers = _peers(name, connectors, gateway, hubs)
            path = ("spec", "forwarders", i)
            found.append(
                ForwardingPath(gateway, resource, path, forwarder.name, forwarder.direction, spec.address, there, peers)
            )
    return found


def _hubs(resources: Sequence[Resource]) -> Peers:
    """Return the endpoints of the hub, which other connectors may use too."""
    found: set[tuple[str, int]] = set()
    urls = [url for _, spec in of_kind(resources, GatewaySpec) if spec.hub is not None for url in spec.hub.urls]
    for url in urls:
        with contextlib.suppress(ValueError):  # reported by another check
            endpoint = values.HubUrl.parse(url).endpoint
            found.add((endpoint.host, endpoint.port))
    return frozenset(found)


def _peers(name: str, connectors: Mapping[str, Connector], gateway: str, hubs: Peers) -> Peers:
    if name in connectors:
        return frozenset((endpoint.host, endpoint.port) for endpoint in connectors[name].endpoints)
    if name == HUB:
        return hubs | {(HUB, 0)}
    return frozenset({(f"{gateway}/{name}", 0)})


def rings(found: Sequence[ForwardingPath]) -> Iterator[list[ForwardingPath]]:
    """Yield each ring once: the shortest ring through its first path."""
    following = _following(found)
    for i in range(len(found)):
        ring = _ring(i, following)
        if ring is not None and min(ring) == i:
            yield [found[j] for j in ring]


def _following(found: Sequence[ForwardingPath]) -> list[list[int]]:
    """Return, for each path, the indices of the paths it feeds. Only paths of opposite directions are compared."""
    by_direction = {side: [j for j, path in enumerate(found) if path.direction is side] for side in Direction}
    others = {Direction.IN: by_direction[Direction.OUT], Direction.OUT: by_direction[Direction.IN]}
    return [[j for j in others[path.direction] if path.feeds(found[j])] for path in found]


def _ring(start: int, following: Sequence[Sequence[int]]) -> list[int] | None:
    """Return the shortest ring through `start`; None without one."""
    before: dict[int, int] = {}
    level = [start]
    while level:
        reached: list[int] = []
        for i in level:
            for j in following[i]:
                if j == start:
                    ring = [i]
                    while ring[-1] != start:
                        ring.append(before[ring[-1]])
                    return ring[::-1]
                if j not in before:
                    before[j] = i
                    reached.append(j)
        level = reached
    return None
