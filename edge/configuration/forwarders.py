"""Rules for forwarders: their targets, their options by the type of the connector, and no loops between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bridge.forwarders.mapping import MappingError, fits, is_template
from bridge.resources import schema
from bridge.resources.errors import Path
from bridge.resources.resource import Check, Errors, Resource, error_at, of_kind
from bridge.topic_filter import filter_fault
from edge.broker.configuration import ConnectorType, Direction, ForwarderPart
from edge.broker.message.json_condition import JsonConditionError
from edge.broker.message.selector import SelectorError
from edge.broker.model.topics import is_filter
from edge.broker.router.forwarder_filter import wanted_by
from edge.configuration.loops import HUB, connectors_of, forwarding_paths, remote_of, rings
from edge.configuration.resources import AddressSpaceSpec, AddressSpec, GatewaySpec

HUB_CONNECTOR: Final = HUB
"""Name of the connector that `spec.hub` of `Gateway` creates."""


def connector_names(resources: Sequence[Resource]) -> list[str]:
    """Return the names of connectors that a forwarder may use."""
    names = [connector.name for _, space in of_kind(resources, AddressSpaceSpec) for connector in space.connectors]
    hubs = [HUB_CONNECTOR for _, gateway in of_kind(resources, GatewaySpec) if gateway.hub is not None]
    return names + hubs


def forwards_to_hub(resources: Sequence[Resource]) -> bool:
    """Return True when at least one forwarder sends to the hub."""
    return any(
        remote_of(forwarder, spec.address)[0] == HUB_CONNECTOR and forwarder.direction is Direction.OUT
        for _, spec in of_kind(resources, AddressSpec)
        for forwarder in spec.forwarders
    )


def forwarder_notices(resources: Sequence[Resource]) -> Iterator[tuple[Resource, str]]:
    """Yield settings of forwarders that have no effect."""
    connectors = connectors_of(resources)
    for resource, spec in of_kind(resources, AddressSpec):
        for forwarder in spec.forwarders:
            connector = connectors.get(remote_of(forwarder, spec.address)[0])
            if forwarder.direction is Direction.IN and (connector is None or connector.type is ConnectorType.WAYPOST):
                yield (
                    resource,
                    f'forwarder "{forwarder.name}" has no effect: a connector of type waypost receives no messages; '
                    "to receive from a hub's addresses, add a connector of type: amqp to the same hub, with the "
                    "credentials of an application",
                )


def _forwarders(resources: Sequence[Resource]) -> Errors:
    known, connectors = connector_names(resources), connectors_of(resources)
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
        message = "an incoming forwarder needs an address or a pattern; only an outgoing one may have fields"
        yield error_at(resource, path, message)
        return
    if direction is Direction.IN and not is_filter(address):
        return  # all messages go to one local address
    try:
        fits(remote, address)
    except MappingError as why:
        yield error_at(resource, path, str(why))


def _from_one_topic(resource: Resource, path: Path, address: str, remote: str, forwarder: ForwarderPart) -> Errors:
    """Check the address of an incoming MQTT forwarder, because an MQTT message has no address but its topic."""
    if forwarder.direction is Direction.IN and is_filter(address) and not is_filter(remote):
        message = (
            f'messages of "{remote}" have no address that "{address}" matches: use an address without wildcards here, '
            "or a filter at the peer"
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
        yield error_at(resource, (*path, "properties"), f"is not a selector: {why}")
    except JsonConditionError as why:
        yield error_at(resource, (*path, "body"), f"is not a condition on a JSON body: {why}")


def _to_a_hub(resource: Resource, path: Path, address: str, remote: str, forwarder: ForwarderPart) -> Errors:
    """Check that a forwarder to a hub has no options: a hub needs every message of an address, unchanged and in order,
    and reports a missing one as a loss."""
    options = {
        "only": forwarder.only is not None,
        "qos": forwarder.qos is not None,
        "messageTtl": forwarder.ttl_s is not None,
        "messagePriority": forwarder.message_priority is not None,
    }
    for field, given in options.items():
        if given:
            message = "a connector of type waypost sends every message unchanged; give the connector another type"
            yield error_at(resource, (*path, field), message)
    if (is_filter(remote) and remote != address) or is_template(remote):
        message = "a hub keeps the addresses of this gateway: use only the connector's name"
        yield error_at(resource, (*path, "remoteAddress"), message)


# --- loops ------------------------------------------------------------------------------------------------------------


def _loops(resources: Sequence[Resource]) -> Errors:
    """Find loops through the forwarders of this gateway. Its hub checks loops over several gateways."""
    for first, *others in rings(forwarding_paths(resources)):
        names = ", then ".join(f'"{other.name}" ({other.direction.value})' for other in others)
        message = f"forwarding loop: its messages come back through {names}"
        yield error_at(first.resource, first.path, message)


FORWARDER_CHECKS: Final[Sequence[Check]] = (_forwarders, _loops)
