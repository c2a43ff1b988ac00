"""Build the `BrokerConfiguration` of a broker from resources or from a preset.

Clients on other machines need credentials, unless the resources have `authenticationService: {name:
none}`. `notices` and `exposure` return warnings for the operator who applies a configuration.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from bridge.resources import values
from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.resource import Resource, of_kind
from bridge.topic_filter import filter_fault
from edge.broker.configuration import (
    AddressConfiguration,
    AuthenticationMode,
    BrokerConfiguration,
    ConfiguredUser,
    Connector,
    DeviceApiConfiguration,
    DeviceApiPart,
    DeviceIdentity,
    EndpointHost,
    Forwarder,
    ForwarderPart,
    Listener,
    Protocol,
    TlsFiles,
)
from edge.broker.model.address_policy import AddressPolicy, DurabilityMode
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.authorization import EVERYTHING, AccessRule
from edge.broker.store.limits import StoreLimits
from edge.configuration.forwarders import HUB_CONNECTOR, forwarder_notices
from edge.configuration.loops import remote_of
from edge.configuration.resources import (
    SHORT_FORMS,
    AddressSpaceSpec,
    AddressSpec,
    DevicePart,
    DeviceSpec,
    GatewaySpec,
    HubPart,
    ListenerSpec,
    MessagingUserSpec,
)
from edge.configuration.tenant_spaces import spaces_of

LOOPBACK: Final = "127.0.0.1"


def build_configuration(resources: Sequence[Resource]) -> BrokerConfiguration:
    """Return the broker's configuration for these valid resources. Without resources it has no listeners."""
    own, *tenants = spaces_of(resources)
    configuration = _of_space(own.resources)
    if not tenants:
        return configuration
    if not _authentication_is_configured(own.resources):
        configuration = msgspec.structs.replace(configuration, authentication=AuthenticationMode.STANDARD)
    further = (
        msgspec.structs.replace(_of_space(each.resources), space=each.name, hosts=each.hosts) for each in tenants
    )
    return msgspec.structs.replace(configuration, spaces=tuple(further))


def _of_space(resources: Sequence[Resource]) -> BrokerConfiguration:
    """Return the configuration of one address space."""
    configuration = BrokerConfiguration()
    for resource, space in of_kind(resources, AddressSpaceSpec):
        service = space.authentication_service
        configuration = msgspec.structs.replace(
            configuration,
            space=resource.name,
            default_type=space.default_type,
            quota_bytes=space.quota_bytes,
            connectors=space.connectors,
            authentication=service.name if service is not None else AuthenticationMode.NONE,
            issuer=service.oidc if service is not None else None,
            device_api=_device_api(space.device_api, resources),
        )
    for resource, gateway in of_kind(resources, GatewaySpec):
        configuration = _with_gateway(configuration, resource.name, gateway)
    configuration = require_credentials(configuration, resources)
    addresses = list(of_kind(resources, AddressSpec))
    users = tuple(_user(spec) for _, spec in of_kind(resources, MessagingUserSpec))
    return msgspec.structs.replace(
        configuration,
        users=users,
        addresses=tuple(_address(spec) for _, spec in addresses),
        forwarders=tuple(
            _forwarder(resource.name, spec, part) for resource, spec in addresses for part in spec.forwarders
        ),
    )


def development_preset() -> BrokerConfiguration:
    """Return the preset of ``waypost run --dev``: loopback, free ports, no credentials, a prefix per address type."""
    types = (AddressType.QUEUE, AddressType.TOPIC, AddressType.ANYCAST, AddressType.MULTICAST)
    anywhere = ListenEndpoint(LOOPBACK, 0)
    return BrokerConfiguration(
        addresses=tuple(AddressConfiguration(AddressRule(f"{type_.value}/#", type_)) for type_ in types),
        listeners=tuple(Listener(protocol, anywhere) for protocol in Protocol),
    )


def with_hub(configuration: BrokerConfiguration, url: str, gateway: str, filters: Sequence[str]) -> BrokerConfiguration:
    """Apply the short form ``--hub URL --gateway NAME --forward FILTER…``: a connector, and a forwarder per filter.

    An existing connector called `hub` is replaced. Raises `ValueError` for an invalid URL or filter.
    """
    values.HubUrl.parse(url)
    for pattern in filters:
        fault = filter_fault(pattern)
        if fault:
            raise ValueError(fault)
    others = tuple(connector for connector in configuration.connectors if connector.name != HUB_CONNECTOR)
    forwarders = tuple(
        Forwarder(name=f"forward:{pattern}", filter=pattern, connector=HUB_CONNECTOR, remote_address=pattern)
        for pattern in dict.fromkeys(filters)
    )
    return msgspec.structs.replace(
        configuration,
        gateway=gateway,
        connectors=(*others, _hub(HubPart(url=url), gateway)),
        forwarders=(*configuration.forwarders, *forwarders),
    )


def notices(resources: Sequence[Resource]) -> list[str]:
    """Return warnings for settings that this version stores but does not enforce, or that weaken the promise that an
    acknowledged message is on disk.

    A rule that is silently not enforced is worse than none, above all for access rights.
    """
    return [notice for space in spaces_of(resources) for notice in _notices(space.resources)]


def _notices(resources: Sequence[Resource]) -> list[str]:
    """Return the warnings for one address space."""
    hono = any(spec.device_api is not None for _, spec in of_kind(resources, AddressSpaceSpec))
    found = [
        f"{resource.kind} {resource.name}: {what}" for resource in resources for what in _not_in_force(resource, hono)
    ]
    found += [f"{resource.kind} {resource.name}: {what}" for resource, what in forwarder_notices(resources)]
    if build_configuration(resources).authentication is AuthenticationMode.NONE:
        for resource, _ in of_kind(resources, MessagingUserSpec):
            found.append(
                f"{resource.kind} {resource.name}: clients are not authenticated: authenticationService is none"
            )
    return found


def exposure(resources: Sequence[Resource]) -> list[str]:
    """Return warnings about the clients and networks that may connect, for the whole applied configuration."""
    return list(_exposure(build_configuration(resources), resources))


def _not_in_force(resource: Resource, hono: bool) -> Iterator[str]:
    """Yield the settings of a resource that are not enforced. `hono`: the space has the device API."""
    spec = resource.spec
    if isinstance(spec, DeviceSpec) and not hono:
        yield "devices are stored; their identity is not checked yet"
    if isinstance(spec, MessagingUserSpec) and spec.device is not None and not hono:
        yield "device: stored without effect, because the space has no deviceApi"
    if isinstance(spec, AddressSpec) and spec.durability.mode is DurabilityMode.MEMORY:
        size = f"{StoreLimits().memory_bytes_max >> 20} MiB"
        yield (
            "durability memory: messages are acknowledged at once and kept in memory only, the newest "
            f"{size} of each log; a stop of the gateway, a crash or a power cut loses them, "
            "and the loss ledger lists them"
        )


def _with_gateway(configuration: BrokerConfiguration, name: str, spec: GatewaySpec) -> BrokerConfiguration:
    gateway = spec.hub.gateway if spec.hub is not None and spec.hub.gateway else name
    hubs = (_hub(spec.hub, gateway),) if spec.hub is not None else ()
    terabytes = spec.endurance_terabytes
    return msgspec.structs.replace(
        configuration,
        gateway=gateway,
        listeners=tuple(_listeners(spec.listeners)),
        host_names=spec.listeners.host_names,
        tls=spec.listeners.tls,
        limits=spec.limits,
        legacy_dollar_topics=spec.legacy_dollar_topics,
        endurance_bytes=terabytes * 1e12 if terabytes is not None else None,
        connectors=(*configuration.connectors, *hubs),
    )


def _listeners(part: ListenerSpec) -> Iterator[Listener]:
    endpoints = msgspec.structs.asdict(part)
    for field, (protocol, websocket, tls) in SHORT_FORMS.items():
        if endpoints[field] is not None:
            yield Listener(protocol, endpoints[field], websocket, tls)


def _user(spec: MessagingUserSpec) -> ConfiguredUser:
    encoded = spec.authentication.password
    rules = tuple(
        AccessRule(part.addresses or (EVERYTHING,), frozenset(part.operations)) for part in spec.authorization
    )
    password = base64.b64decode(encoded).decode() if encoded is not None else None
    return ConfiguredUser(spec.username, password, rules, spec.authentication.password_hash)


def _device_api(part: DeviceApiPart | None, resources: Sequence[Resource]) -> DeviceApiConfiguration | None:
    """Return the device API with its gateways: from `actsFor` of users, and from `via` of devices."""
    if part is None:
        return None
    suffix = f"@{part.tenant}"
    devices = list(of_kind(resources, DeviceSpec))
    via: dict[str, list[str]] = {}
    for resource, spec in devices:
        for gateway in spec.via:
            via.setdefault(gateway, []).append(resource.name)
    identities = []
    for _, user in of_kind(resources, MessagingUserSpec):
        if user.username.endswith(suffix):
            part_of_user = user.device or DevicePart()
            device = part_of_user.id or user.username.removesuffix(suffix)
            identities.append(DeviceIdentity(user.username, device, (*part_of_user.acts_for, *via.pop(device, ()))))
    # gateways with a user created by hand: their auth-id is their name
    identities += [DeviceIdentity(f"{name}{suffix}", name, tuple(acts_for)) for name, acts_for in via.items()]
    return DeviceApiConfiguration(
        **msgspec.structs.asdict(part),
        identities=tuple(identities),
        devices=frozenset(resource.name for resource, _ in devices),
        disabled=frozenset(resource.name for resource, spec in devices if not spec.enabled),
    )


def _hub(part: HubPart, gateway: str) -> Connector:
    urls = [values.HubUrl.parse(url) for url in part.urls]
    tls = part.tls if part.tls is not None or not urls[0].secure else TlsFiles()
    hosts = tuple(EndpointHost(host=each.host, port=each.port, websocket=path) for _, each, path in urls)
    return Connector(name=HUB_CONNECTOR, hosts=hosts, container=gateway, tls=tls, proxy=part.proxy, pace=part.pace)


def _address(spec: AddressSpec) -> AddressConfiguration:
    fields = msgspec.structs.asdict(spec)
    policy = AddressPolicy(**{name: fields[name] for name in AddressPolicy.__struct_fields__})
    if policy.consumers_max is None and spec.type is AddressType.SUBSCRIPTION:
        policy = msgspec.structs.replace(policy, consumers_max=1)
    return AddressConfiguration(AddressRule(spec.address, spec.type), policy, spec.topic)


def _forwarder(resource: str, spec: AddressSpec, part: ForwarderPart) -> Forwarder:
    connector, remote = remote_of(part, spec.address)
    named = msgspec.structs.replace(part, name=f"{resource}/{part.name}", remote_address=remote)
    return Forwarder(**msgspec.structs.asdict(named), filter=spec.address, connector=connector)


# --- who may connect ------------------------------------------------------------------------------------------------


def _authentication_is_configured(resources: Sequence[Resource]) -> bool:
    """Return True when the resources configure the authentication of clients, even as none."""
    return any(spec.authentication_service is not None for _, spec in of_kind(resources, AddressSpaceSpec))


def require_credentials(configuration: BrokerConfiguration, resources: Sequence[Resource]) -> BrokerConfiguration:
    """Return the configuration with authentication, if other machines can connect and the resources do not set it.

    Clients on loopback need no credentials by default.
    """
    if _authentication_is_configured(resources) or not _exposed(configuration):
        return configuration
    return msgspec.structs.replace(configuration, authentication=AuthenticationMode.STANDARD)


def _exposure(configuration: BrokerConfiguration, resources: Sequence[Resource]) -> Iterator[str]:
    """Yield notices about the clients that may connect. `configuration`: that of all `resources`."""
    exposed = _exposed(configuration)
    if not exposed:
        return
    listeners = _named(exposed)
    if configuration.authentication is AuthenticationMode.NONE:
        yield f"{listeners}: any client may connect, because authenticationService is none"
        return
    if not _authentication_is_configured(resources):
        yield (
            f"{listeners}: clients need credentials (waypost user add); to allow any client, set "
            "authenticationService: {name: none} in the AddressSpace"
        )
    clear = [listener for listener in exposed if not listener.tls]
    if clear:
        yield f"passwords cross the network unencrypted on {_named(clear)}: use mqtts, amqps, https"


def _exposed(configuration: BrokerConfiguration) -> list[Listener]:
    """Return the listeners that other machines can reach."""
    return [listener for listener in configuration.listeners if not listener.endpoint.loopback]


def _named(listeners: Sequence[Listener]) -> str:
    return ", ".join(f"{listener.name} {listener.endpoint}" for listener in listeners)
