"""What must hold of forwarders: where they lead, what they may say there, and that no two feed one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bridge.forwarders.mapping import MappingError, as_pattern, fits, is_template
from bridge.resources import schema
from bridge.resources.errors import Path
from bridge.resources.resource import Check, Errors, Resource, error_at, of_kind
from edge.broker.configuration import Connector, ConnectorType, Direction, ForwarderPart
from edge.broker.message.json_condition import JsonConditionError
from edge.broker.message.selector import SelectorError
from edge.broker.model.topics import filter_fault, is_filter, overlaps
from edge.broker.router.forwarder_filter import wanted_by
from edge.configuration.resources import AddressSpaceSpec, AddressSpec, GatewaySpec

HUB_CONNECTOR: Final = "hub"
"""Name of the connector that `Gateway` `spec.hub` makes."""


def connector_names(resources: Sequence[Resource]) -> list[str]:
    """Names a forwarder may use."""
    names = [connector.name for _, space in of_kind(resources, AddressSpaceSpec) for connector in space.connectors]
    hubs = [HUB_CONNECTOR for _, gateway in of_kind(resources, GatewaySpec) if gateway.hub is not None]
    return names + hubs


def remote_of(forwarder: ForwarderPart, address: str) -> tuple[str, str]:
    """(connector, remote address) of a forwarder of `address`; without a remote address names stay as they are."""
    connector, _, remote = forwarder.remote_address.partition("/")
    return connector, remote or address


def forwarder_notices(resources: Sequence[Resource]) -> Iterator[tuple[Resource, str]]:
    """What forwarders ask for that is kept, and not done."""
    connectors = _connectors(resources)
    for resource, spec in of_kind(resources, AddressSpec):
        for forwarder in spec.forwarders:
            connector = connectors.get(remote_of(forwarder, spec.address)[0])
            if forwarder.direction is Direction.IN and (connector is None or connector.type is ConnectorType.WAYPOST):
                yield (
                    resource,
                    f'forwarder "{forwarder.name}" does nothing: over a connector of type waypost nothing comes in; a '
                    "second one to the same hub of type: amqp, with the credentials of an application, takes from its "
                    "addresses",
                )


def _connectors(resources: Sequence[Resource]) -> dict[str, Connector]:
    spaces = of_kind(resources, AddressSpaceSpec)
    return {connector.name: connector for _, space in spaces for connector in space.connectors}


def _forwarders(resources: Sequence[Resource]) -> Errors:
    known, connectors = connector_names(resources), _connectors(resources)
    for resource, spec in of_kind(resources, AddressSpec):
        names: set[str] = set()
        for i, forwarder in enumerate(spec.forwarders):
            path = ("spec", "forwarders", i)
            if forwarder.name in names:
                yield error_at(resource, (*path, "name"), f'a forwarder called "{forwarder.name}" already exists')
            names.add(forwarder.name)
            connector, remote = remote_of(forwarder, spec.address)
            if connector not in known:
                message = f'there is no connector "{connector}"{schema.suggestion(connector, known)}'
                yield error_at(resource, (*path, "remoteAddress"), message)
            yield from _remote(resource, (*path, "remoteAddress"), spec.address, remote, forwarder.direction)
            yield from _only(resource, (*path, "only"), forwarder)
            if connector in connectors and connectors[connector].type is ConnectorType.MQTT:
                yield from _from_one_topic(resource, (*path, "remoteAddress"), spec.address, remote, forwarder)
            if connector not in connectors or connectors[connector].type is ConnectorType.WAYPOST:
                yield from _to_a_hub(resource, path, spec.address, remote, forwarder)


def _remote(resource: Resource, path: Path, address: str, remote: str, direction: Direction) -> Errors:
    fault = "" if is_template(remote) else filter_fault(remote)
    if fault:
        yield error_at(resource, path, fault)
        return
    if direction is Direction.IN and is_template(remote):
        yield error_at(resource, path, "what comes in comes from one address or pattern; fields are for what goes out")
        return
    if direction is Direction.IN and not is_filter(address):
        return  # whatever matches there comes to one address here
    try:
        fits(remote, address)
    except MappingError as why:
        yield error_at(resource, path, str(why))


def _from_one_topic(resource: Resource, path: Path, address: str, remote: str, forwarder: ForwarderPart) -> Errors:
    """An MQTT message says the topic it was sent to, and no other address, as those of AMQP do."""
    if forwarder.direction is Direction.IN and is_filter(address) and not is_filter(remote):
        message = (
            f'what is sent to "{remote}" has no name that "{address}" matches: use one name here, or a filter there'
        )
        yield error_at(resource, path, message)


def _only(resource: Resource, path: Path, forwarder: ForwarderPart) -> Errors:
    if forwarder.only is None:
        return
    if forwarder.only.address is not None and filter_fault(forwarder.only.address):
        yield error_at(resource, (*path, "address"), filter_fault(forwarder.only.address))
    try:
        wanted_by(forwarder.only)
    except SelectorError as why:
        yield error_at(resource, (*path, "properties"), f"is no selector: {why}")
    except JsonConditionError as why:
        yield error_at(resource, (*path, "body"), f"is no condition on a JSON body: {why}")


def _to_a_hub(resource: Resource, path: Path, address: str, remote: str, forwarder: ForwarderPart) -> Errors:
    """A hub is told of every message of an address, in order and under its own name: what is missing is a loss."""
    said = {
        "only": forwarder.only is not None,
        "qos": forwarder.qos is not None,
        "messageTtl": forwarder.ttl_s is not None,
        "messagePriority": forwarder.message_priority is not None,
    }
    for field, given in said.items():
        if given:
            message = "over a connector of type waypost every message goes, as it is; give the connector another type"
            yield error_at(resource, (*path, field), message)
    if (is_filter(remote) and remote != address) or is_template(remote):
        message = "a hub has messages under the addresses they have here: name the connector alone"
        yield error_at(resource, (*path, "remoteAddress"), message)


# --- loops ------------------------------------------------------------------------------------------------------------


class _Way(NamedTuple):
    """One forwarder as an edge of the graph: from where to where, patterns of names at one peer each."""

    resource: Resource
    path: Path
    name: str
    direction: Direction
    here: str
    there: str
    peers: frozenset[tuple[str, int]]
    """Endpoints of its connector: two connectors to the same one lead to the same addresses."""

    def feeds(self, other: _Way) -> bool:
        """What this one brings, the other one takes away again."""
        if self.direction is other.direction:
            return False
        if self.direction is Direction.IN:
            return overlaps(self.here, other.here)
        return not self.peers.isdisjoint(other.peers) and overlaps(self.there, other.there)


def _loops(resources: Sequence[Resource]) -> Errors:
    """Messages that go round through the forwarders of this gateway alone. Rings over several gateways are stopped when
    a message comes back to where it has been."""
    ways = _ways(resources)
    following = [[j for j, other in enumerate(ways) if way.feeds(other)] for way in ways]
    for i, way in enumerate(ways):
        ring = _ring(i, following)
        if ring is not None and min(ring) == i:  # said once, at the first of them
            names = ", then ".join(f'"{ways[j].name}" ({ways[j].direction.value})' for j in ring[1:])
            message = f"messages would circle: what it carries comes back by {names}"
            yield error_at(way.resource, way.path, message)


def _ways(resources: Sequence[Resource]) -> list[_Way]:
    ways, connectors = list[_Way](), _connectors(resources)
    for resource, spec in of_kind(resources, AddressSpec):
        for i, forwarder in enumerate(spec.forwarders):
            name, remote = remote_of(forwarder, spec.address)
            there = as_pattern(remote)
            if filter_fault(spec.address) or filter_fault(there):
                continue  # said by another check
            peers = frozenset({(name, 0)})
            if name in connectors:
                peers = frozenset((endpoint.host, endpoint.port) for endpoint in connectors[name].endpoints)
            path = ("spec", "forwarders", i)
            ways.append(_Way(resource, path, forwarder.name, forwarder.direction, spec.address, there, peers))
    return ways


def _ring(start: int, following: Sequence[Sequence[int]]) -> list[int] | None:
    """The shortest way from `start` back to it; None when there is none."""
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


FORWARDER_CHECKS: Final[Sequence[Check]] = (_forwarders, _loops)
