"""Address spaces of a gateway: the resources of each one, and the rules between them.

The resources of one space are what a gateway with that space alone would have. So all other rules, and the derived
configuration, know one space only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from bridge.resources import schema
from bridge.resources.resource import Check, Errors, Resource, error_at, of_kind
from edge.broker.configuration import AuthenticationMode, Connector, ConnectorType
from edge.broker.limits import TENANT_SPACES_MAX
from edge.broker.spaces.host_names import host_key
from edge.configuration.resources import (
    AddressSpaceSpec,
    AddressSpec,
    AuthenticationService,
    GatewaySpec,
    MessagingUserSpec,
    TenantSpaceSpec,
)

_STANDARD: Final = AuthenticationService(name=AuthenticationMode.STANDARD)


class SpaceResources(NamedTuple):
    """Resources of one address space."""

    name: str
    """Name of the `TenantSpace`; empty for the gateway's own space."""
    hosts: tuple[str, ...]
    resources: list[Resource]
    """A tenant's are its `AddressSpace`, made from the `TenantSpace`, its addresses and its users."""


def spaces_of(resources: Sequence[Resource]) -> Iterator[SpaceResources]:
    """Yield the resources of each address space, the gateway's own first."""
    own = [each for each in resources if not isinstance(each.spec, TenantSpaceSpec) and not _space_name(each)]
    yield SpaceResources("", (), own)
    for resource, spec in of_kind(resources, TenantSpaceSpec):
        space = AddressSpaceSpec(
            authentication_service=_STANDARD,
            default_type=spec.default_type,
            quota_bytes=spec.quota_bytes,
            connectors=spec.connectors,
        )
        members = [_as_own(each) for each in resources if _space_name(each) == resource.name]
        made = [msgspec.structs.replace(resource, spec=space), *members]
        yield SpaceResources(resource.name, spec.hosts, made)


def for_each_space(check: Check) -> Check:
    """Return a check of all spaces by a check that knows one."""

    def check_each(resources: Sequence[Resource]) -> Errors:
        for space in spaces_of(resources):
            yield from check(space.resources)

    return check_each


def _space_name(resource: Resource) -> str:
    """Return the name of the `TenantSpace` that a resource belongs to; empty for none."""
    spec = resource.spec
    return spec.address_space or "" if isinstance(spec, AddressSpec | MessagingUserSpec) else ""


def _as_own(resource: Resource) -> Resource:
    """Return an address or user of a tenant in the form of a gateway with that space alone."""
    spec = resource.spec
    if isinstance(spec, AddressSpec | MessagingUserSpec):
        return msgspec.structs.replace(resource, spec=msgspec.structs.replace(spec, address_space=None))
    return resource


# --- rules ----------------------------------------------------------------------------------------------------------


def _members(resources: Sequence[Resource]) -> Errors:
    """Check that each space has a name of its own, and that the space of each address and user exists."""
    names = [resource.name for resource, _ in of_kind(resources, TenantSpaceSpec)]
    own = [resource.name for resource, _ in of_kind(resources, AddressSpaceSpec)]
    for resource, _ in of_kind(resources, TenantSpaceSpec):
        if resource.name in own:
            yield error_at(resource, ("metadata", "name"), "the AddressSpace has this name: choose another one")
    for resource in resources:
        name = _space_name(resource)
        if name and name not in names:
            message = f'there is no TenantSpace "{name}"{schema.suggestion(name, names)}'
            yield error_at(resource, ("spec", "addressSpace"), message)
    for resource, user in of_kind(resources, MessagingUserSpec):
        if user.address_space is not None and user.device is not None:
            yield error_at(resource, ("spec", "device"), "only the gateway's own space has the device API")


def _hosts(resources: Sequence[Resource]) -> Errors:
    """Check that a host names one space, and that no user of the gateway's own space has such a name."""
    taken: dict[str, str] = {}
    spaces = list(of_kind(resources, TenantSpaceSpec))
    for resource, _ in spaces[TENANT_SPACES_MAX:]:
        yield error_at(resource, (), f"a gateway has at most {TENANT_SPACES_MAX} of them")
    for resource, spec in spaces:
        for i, host in enumerate(spec.hosts):
            other = taken.setdefault(host_key(host), resource.name)
            if other != resource.name:
                yield error_at(resource, ("spec", "hosts", i), f'"{host}" is already a host of TenantSpace {other}')
    for resource, user in of_kind(resources, MessagingUserSpec):
        name, _, host = user.username.rpartition("@")
        if name and user.address_space is None and host_key(host) in taken:
            words = f'"{user.username}" would be a user of TenantSpace {taken[host_key(host)]}: set addressSpace'
            yield error_at(resource, ("spec", "username"), words)
    for resource, own in of_kind(resources, AddressSpaceSpec):
        api = own.device_api
        if api is not None and host_key(api.tenant) in taken:
            words = f'"{api.tenant}" is a host of TenantSpace {taken[host_key(api.tenant)]}: devices could not log in'
            yield error_at(resource, ("spec", "deviceApi", "tenant"), words)


def _isolation(resources: Sequence[Resource]) -> Errors:
    """Check that the gateway's own space leaves room for others, and that its clients have to authenticate: a client
    without credentials would be in any space that it names."""
    tenants = [resource for resource, _ in of_kind(resources, TenantSpaceSpec)]
    own = list(of_kind(resources, AddressSpaceSpec))
    for resource, spec in own if tenants else ():
        service = spec.authentication_service
        if service is not None and service.name is not AuthenticationMode.STANDARD:
            message = f"with a TenantSpace ({tenants[0].name}) all clients authenticate by name and password: standard"
            yield error_at(resource, ("spec", "authenticationService", "name"), message)
        if spec.quota_bytes is None:
            message = f"quota.bytes is required: this space could take the room of TenantSpace {tenants[0].name}"
            yield error_at(resource, ("spec",), message)
    if tenants and not own:
        message = "the gateway's own space needs a quota too: add an AddressSpace with quota.bytes"
        yield error_at(tenants[0], (), message)


def _identities(resources: Sequence[Resource]) -> Errors:
    """Check that no two spaces have one name at their peers, and that a hub's tenant follows from the space. A peer
    would end the connection of one for that of the other, or take the messages of one for repeats of the other, and
    those from one to the other for looped ones."""
    gateway = next((_gateway_name(resource.name, spec) for resource, spec in of_kind(resources, GatewaySpec)), "")
    own = {gateway, *(each.container for _, spec in of_kind(resources, AddressSpaceSpec) for each in spec.connectors)}
    taken = dict.fromkeys(own, "the gateway's own space")
    certificates: dict[str, str] = {}
    for resource, spec in of_kind(resources, TenantSpaceSpec):
        where, usual = f"TenantSpace {resource.name}", container_of(gateway, resource.name)
        for i, connector in enumerate(spec.connectors):
            for field, message in _identity_faults(connector, usual, where, taken, certificates):
                yield error_at(resource, ("spec", "connectors", i, *field), message)


def _gateway_name(name: str, spec: GatewaySpec) -> str:
    return (spec.hub.gateway if spec.hub is not None else None) or name


def container_of(gateway: str, space: str) -> str:
    """Return the name of a tenant's space at its peers, where its connector has none."""
    return f"{gateway or 'waypost'}-{space}"


def _identity_faults(
    connector: Connector, usual: str, where: str, taken: dict[str, str], certificates: dict[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with the identity of a connector; note it as taken. `usual`: its name if it has none."""
    name, to_hub = connector.container or usual, connector.type is ConnectorType.WAYPOST
    if to_hub and not connector.container:
        yield ("container",), "a space needs its own name at a hub; the token of its enrolment decides on its tenant"
    elif taken.setdefault(name, where) != where:
        yield ("container",), f'"{name}" is already the name of {taken[name]} at its peers'
    shown = connector.tls.certificate if to_hub and connector.tls is not None else None
    if shown is not None and certificates.setdefault(shown, where) != where:
        yield ("tls", "clientCert"), f"it is already the certificate of {certificates[shown]}"


def _networks(resources: Sequence[Resource]) -> Errors:
    """Check that no space is a router: all routers of a network have names of their own, and a gateway has one."""
    for resource, spec in of_kind(resources, TenantSpaceSpec):
        for i, connector in enumerate(spec.connectors):
            if connector.type is ConnectorType.ROUTER:
                message = "only the gateway's own space is a router: move this connector to the AddressSpace"
                yield error_at(resource, ("spec", "connectors", i, "type"), message)


TENANT_SPACE_CHECKS: Final[tuple[Check, ...]] = (_members, _hosts, _isolation, _identities, _networks)
