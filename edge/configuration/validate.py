"""Rules between resources, so that a configuration is never applied if the gateway could not run with it.

Single values are checked when they are read. All functions here yield errors and raise nothing.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from bridge.hub_bundles import NAME_WORDS, is_bundle_name, name_in
from bridge.proxy import Proxy, proxy_fault
from bridge.resources import schema, values
from bridge.resources.declaration import fields_of
from bridge.resources.errors import Path
from bridge.resources.resource import Check, Errors, Resource, error_at, of_kind
from bridge.sasl.scram import ScramError, prepare
from bridge.topic_filter import filter_fault
from edge.broker.configuration import (
    AuthenticationMode,
    Connector,
    TlsFiles,
)
from edge.broker.hono.limits import ACTS_FOR_MAX
from edge.broker.hono.tenant import ALL, IDENTIFIER
from edge.broker.limits import MEMORY_MESSAGES_MIN, Limits
from edge.broker.model.address_policy import AddressPolicy, DurabilityMode
from edge.broker.model.addresses import AddressType
from edge.broker.model.topics import is_filter
from edge.broker.security.limits import PASSWORD_BYTES_MAX, RULES_PER_USER_MAX, USERNAME_CHARACTERS_MAX
from edge.broker.security.password_hashes import parse_hash
from edge.broker.security.site import host_name
from edge.configuration.client_ocsp import ocsp_faults
from edge.configuration.connectors import connector_directions, connector_faults
from edge.configuration.forwarders import FORWARDER_CHECKS, HUB_CONNECTOR
from edge.configuration.issuer import LOOPBACK, issuer_faults
from edge.configuration.resources import (
    SHORT_FORMS,
    AddressSpaceSpec,
    AddressSpec,
    ArtefactsSpec,
    DeviceSpec,
    GatewaySpec,
    HubPart,
    ListenerSpec,
    MessagingUserSpec,
    SystemSpec,
)
from edge.configuration.tenant_spaces import TENANT_SPACE_CHECKS, for_each_space

DIRECT: Final = (AddressType.ANYCAST, AddressType.MULTICAST)
"""Address types that store nothing."""

FRAME_BYTES_MIN: Final = 512
"""MIN-MAX-FRAME-SIZE (AMQP 1.0 section 2.8.19)."""

ORIGIN: Final = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?")
"""Scheme, host and port of a web page (RFC 6454 section 6.2)."""
IDENTIFIER_WORDS: Final = "letters, digits and . _ : = -"
"""Characters of Hono's identifiers, for errors."""

_CAMEL: Final = {field.attribute: field.path[-1] for field in fields_of(ListenerSpec)}
"""Names of listeners in YAML, by field."""


def _insecure(resources: Sequence[Resource]) -> Errors:
    """Refuse insecure settings: a password that would be sent unencrypted, or authentication without an issuer or
    authority."""
    for resource, spec in of_kind(resources, AddressSpaceSpec):
        service = spec.authentication_service
        asks = any(
            gateway.listeners.tls is not None and gateway.listeners.tls.client_ca is not None
            for _, gateway in of_kind(resources, GatewaySpec)
        )
        if service is not None and service.name is AuthenticationMode.EXTERNAL and not asks and service.oidc is None:
            message = "external authentication requires oidc here, or listeners.tls.clientCa of the Gateway"
            yield error_at(resource, ("spec", "authenticationService", "name"), message)
        if service is not None and service.oidc is not None:
            path: Path = ("spec", "authenticationService", "oidc")
            if service.name is not AuthenticationMode.EXTERNAL:
                yield error_at(resource, path, "oidc requires external authentication: set name: external")
            yield from issuer_faults(resource, path, service.oidc)
        for i, connector in enumerate(spec.connectors):
            local = all(host.host in LOOPBACK for host in connector.hosts)
            known = connector.credentials
            if known is not None and connector.tls is None and not local and not known.plain_without_tls:
                message = "the password would be sent unencrypted; add tls to the connector (tls: {} is enough)"
                yield error_at(resource, ("spec", "connectors", i, "credentials"), message)


def _gateway(resources: Sequence[Resource]) -> Errors:
    for resource, spec in of_kind(resources, GatewaySpec):
        yield from _limits(resource, spec.limits)
        taken: dict[str, str] = {}
        endpoints = msgspec.structs.asdict(spec.listeners)
        for field in SHORT_FORMS:
            endpoint, name = endpoints[field], _CAMEL[field]
            if endpoint is not None and endpoint.port and taken.setdefault(str(endpoint), name) != name:
                message = f"{endpoint} is already used by {taken[str(endpoint)]}"
                yield error_at(resource, ("spec", "listeners", name), message)
        for i, host in enumerate(spec.listeners.host_names):
            if host_name(host) != host.lower():
                message = f'"{host}" is not a host name: write it without scheme and port'
                yield error_at(resource, ("spec", "listeners", "hostNames", i), message)
        files = spec.listeners.tls
        if files is not None and files.client_required and files.client_ca is None:
            message = "requires clientCa; without it no certificate can be verified"
            yield error_at(resource, ("spec", "listeners", "tls", "clientRequired"), message)
        if files is not None and files.client_crl is not None and files.client_ca is None:
            message = "requires clientCa, whose authorities sign the lists"
            yield error_at(resource, ("spec", "listeners", "tls", "clientCrl"), message)
        if files is not None and files.client_ocsp is not None:
            yield from ocsp_faults(resource, files.client_ocsp, has_authority=files.client_ca is not None)
        if spec.hub is not None:
            yield from _hub_urls(resource, spec.hub)
            yield from _proxy(resource, ("spec", "hub", "proxy"), spec.hub.proxy)
            yield from _tls(resource, ("spec", "hub", "tls"), spec.hub.tls)


def _hub_urls(resource: Resource, hub: HubPart) -> Errors:
    secure: bool | None = None
    for i, url in enumerate(hub.urls):
        path: Path = ("spec", "hub", "failover", i - 1) if i else ("spec", "hub", "url")
        try:
            found = values.HubUrl.parse(url)
        except ValueError as why:
            yield error_at(resource, path, str(why))
            continue
        if secure not in (None, found.secure):
            yield error_at(resource, path, "the URLs of a hub must all use TLS, or none")
        secure = found.secure
        if hub.tls is not None and not found.secure:
            words = f'{url} does not use TLS; use "amqps://" or "wss://"'
            yield error_at(resource, ("spec", "hub", "tls") if not i else path, words)


def _proxy(resource: Resource, path: Path, proxy: Proxy | None) -> Errors:
    if proxy is not None and (fault := proxy_fault(proxy)):
        yield error_at(resource, path, fault)


def _limits(resource: Resource, limits: Limits) -> Errors:
    packet, memory = limits.packet_bytes_max, limits.memory_bytes_max
    if packet * MEMORY_MESSAGES_MIN > memory:
        path = ("spec", "limits", "memoryBytesMax" if memory != Limits().memory_bytes_max else "packetBytesMax")
        yield error_at(
            resource,
            path,
            f"memoryBytesMax ({memory}) must be at least {MEMORY_MESSAGES_MIN} times packetBytesMax ({packet})",
        )


def _connectors(resources: Sequence[Resource]) -> Errors:
    for resource, spec in of_kind(resources, AddressSpaceSpec):
        seen = {HUB_CONNECTOR} if any(gateway.hub for _, gateway in of_kind(resources, GatewaySpec)) else set()
        for i, connector in enumerate(spec.connectors):
            path = ("spec", "connectors", i)
            if connector.name in seen:
                yield error_at(resource, (*path, "name"), f'a connector called "{connector.name}" already exists')
            seen.add(connector.name)
            yield from _connector(resource, path, connector)


def _connector(resource: Resource, path: Path, connector: Connector) -> Errors:
    if "/" in connector.name:
        yield error_at(resource, (*path, "name"), "must not contain /")
    if connector.frame_bytes_max is not None and connector.frame_bytes_max < FRAME_BYTES_MIN:
        yield error_at(
            resource, (*path, "maxFrameSize"), f"must be at least {FRAME_BYTES_MIN} bytes, the minimum of AMQP"
        )
    yield from _tls(resource, (*path, "tls"), connector.tls)
    yield from _proxy(resource, (*path, "proxy"), connector.proxy)
    yield from connector_faults(resource, path, connector)


def _tls(resource: Resource, path: Path, tls: TlsFiles | None) -> Errors:
    if tls is not None and (tls.certificate is None) != (tls.key is None):
        yield error_at(resource, path, "set both clientCert and clientKey, or neither")


def _addresses(resources: Sequence[Resource]) -> Errors:
    first: dict[str, Resource] = {}
    for resource, spec in of_kind(resources, AddressSpec):
        path = ("spec", "address")
        other = first.setdefault(spec.address, resource)
        if other is not resource:
            where = f"{other.origin.source}:{other.origin.line(path)}"
            yield error_at(resource, path, f'"{spec.address}" is already the address of {other.name} ({where})')
        fault = filter_fault(spec.address)
        if fault:
            yield error_at(resource, path, fault)
        if spec.address.startswith("$"):
            yield error_at(resource, path, f'"{spec.address}": names that begin with $ belong to the broker')
        yield from _subscription(resource, spec)
        yield from _policy(resource, spec)


def _subscription(resource: Resource, spec: AddressSpec) -> Errors:
    if spec.type is AddressType.SUBSCRIPTION:
        if not spec.topic:
            yield error_at(resource, ("spec",), '"topic" is missing: a subscription belongs to a topic')
        elif filter_fault(spec.topic):
            yield error_at(resource, ("spec", "topic"), filter_fault(spec.topic))
        if is_filter(spec.address):
            yield error_at(resource, ("spec", "address"), "a subscription has a name, not a pattern")
    elif spec.topic:
        yield error_at(resource, ("spec", "topic"), f"a {spec.type.value} has no topic; only a subscription has")
    if spec.consumers_max is not None and spec.type not in (AddressType.QUEUE, AddressType.SUBSCRIPTION):
        yield error_at(
            resource,
            ("spec", "maxConsumers"),
            f"a {spec.type.value} has no limit of consumers; only a queue or a subscription has",
        )


def _policy(resource: Resource, spec: AddressSpec) -> Errors:
    if spec.type in DIRECT:
        given = msgspec.structs.asdict(spec)
        storing = [field for field in fields_of(AddressPolicy) if field.attribute != "consumers_max"]
        named = [field.path[0] for field in storing if given[field.attribute] != field.default]
        for key in dict.fromkeys([*named, *(["forwarders"] if spec.forwarders else [])]):
            yield error_at(resource, ("spec", key), f"{spec.type.value} stores nothing, so it has no {key}")
    on_disk = spec.type in (AddressType.QUEUE, AddressType.TOPIC) and spec.durability.mode is not DurabilityMode.MEMORY
    if spec.receipts is not None and spec.type not in DIRECT and not on_disk:
        why = "receipts are for messages on disk: at a queue or topic, with durability fsync or batch"
        yield error_at(resource, ("spec", "receipts"), why)
    if _above(spec.ttl_min_s, spec.ttl_max_s):
        yield error_at(resource, ("spec", "messageTtl"), "minimum is above maximum")
    if _above(spec.redelivery.delay_s, spec.redelivery.delay_max_s):
        yield error_at(resource, ("spec", "messageRedelivery"), "redeliveryDelay is above maximumDeliveryDelay")
    if _above(spec.reserve_bytes, spec.quota_bytes):
        yield error_at(resource, ("spec", "quota"), "reserve is above bytes")


def _reserves(resources: Sequence[Resource]) -> Errors:
    """Check that the reserves of the addresses fit into the quota of their space."""
    reserved = sum(spec.reserve_bytes for _, spec in of_kind(resources, AddressSpec))
    for resource, spec in of_kind(resources, AddressSpaceSpec):
        if spec.quota_bytes is not None and reserved > spec.quota_bytes:
            message = f"its addresses reserve {reserved} bytes, more than the {spec.quota_bytes} of the space"
            yield error_at(resource, ("spec", "quota", "bytes"), message)


def _above(lower: float | None, upper: float | None) -> bool:
    return lower is not None and upper is not None and lower > upper


def _deadletters(resources: Sequence[Resource]) -> Errors:
    types = {spec.address: spec.type for _, spec in of_kind(resources, AddressSpec)}
    for resource, spec in of_kind(resources, AddressSpec):
        for field, name in (("deadletter", spec.deadletter), ("expiry", spec.expiry)):
            if name is None:
                continue
            path = ("spec", field)
            if name == spec.address:
                yield error_at(resource, path, f"an address cannot be its own {field} address")
            elif name not in types:
                message = f'there is no address "{name}"{schema.suggestion(name, _deadletter_names(types))}'
                yield error_at(resource, path, message)
            elif types[name] is not AddressType.DEADLETTER:
                yield error_at(resource, path, f'"{name}" is a {types[name].value}; it must be of type deadletter')


def _deadletter_names(types: dict[str, AddressType]) -> list[str]:
    return [name for name, type_ in types.items() if type_ is AddressType.DEADLETTER]


def _users(resources: Sequence[Resource]) -> Errors:
    seen: set[str] = set()
    for resource, spec in of_kind(resources, MessagingUserSpec):
        if len(spec.username) > USERNAME_CHARACTERS_MAX or not spec.username.isprintable():
            message = f"must be 1 to {USERNAME_CHARACTERS_MAX} printable characters"
            yield error_at(resource, ("spec", "username"), message)
        if spec.username in seen:
            yield error_at(resource, ("spec", "username"), f'a user called "{spec.username}" already exists')
        seen.add(spec.username)
        yield from _password(resource, spec)
        if len(spec.authorization) > RULES_PER_USER_MAX:
            yield error_at(resource, ("spec", "authorization"), f"more than {RULES_PER_USER_MAX} rules")
        for i, part in enumerate(spec.authorization):
            if len(part.addresses) > RULES_PER_USER_MAX:
                message = f"more than {RULES_PER_USER_MAX} addresses"
                yield error_at(resource, ("spec", "authorization", i, "addresses"), message)
            for j, pattern in enumerate(part.addresses):
                # EnMasse's trailing asterisk is not an MQTT wildcard, and would silently allow nothing
                fault = filter_fault(pattern) or ("wildcards are + and #" if pattern.endswith("*") else "")
                if fault:
                    yield error_at(resource, ("spec", "authorization", i, "addresses", j), fault)


def _password(resource: Resource, spec: MessagingUserSpec) -> Errors:
    if spec.authentication.password_hash is not None:
        path = ("spec", "authentication", "passwordHash")
        if spec.authentication.password is not None:
            yield error_at(resource, path, "give a password or a hash, not both")
        try:
            parse_hash(spec.authentication.password_hash)
        except ValueError as why:
            yield error_at(resource, path, str(why))
    if spec.authentication.password is None:
        return
    path = ("spec", "authentication", "password")
    try:
        password = base64.b64decode(spec.authentication.password, validate=True).decode("utf-8")
        prepare(password)
    except (UnicodeDecodeError, ScramError) as why:
        yield error_at(resource, path, str(why) if isinstance(why, ScramError) else "must be Base64 of UTF-8")
    except (binascii.Error, ValueError):
        yield error_at(resource, path, "must be Base64, as in EnMasse")
    else:
        if not 0 < len(password.encode()) <= PASSWORD_BYTES_MAX:
            yield error_at(resource, path, f"must be 1 to {PASSWORD_BYTES_MAX} bytes")


def _devices(resources: Sequence[Resource]) -> Errors:
    names = [resource.name for resource, _ in of_kind(resources, DeviceSpec)]
    for resource, spec in of_kind(resources, DeviceSpec):
        for i, via in enumerate(spec.via):
            if via == resource.name or via not in names:
                message = f'there is no other device "{via}"{schema.suggestion(via, names)}'
                yield error_at(resource, ("spec", "via", i), message)


def _device_api(resources: Sequence[Resource]) -> Errors:
    """Check Hono's identifiers, and that users belong to the tenant."""
    tenants = [spec.device_api.tenant for _, spec in of_kind(resources, AddressSpaceSpec) if spec.device_api]
    for resource, spec in of_kind(resources, AddressSpaceSpec):
        if spec.device_api is not None and not spec.device_api.command_ttl_s > 0:
            yield error_at(resource, ("spec", "deviceApi", "commandTtl"), "must be above 0")
        for i, origin in enumerate(spec.device_api.cors_origins if spec.device_api is not None else ()):
            if origin != "*" and not ORIGIN.fullmatch(origin):
                message = f'"{origin}" is not an origin; expected https://host, with :port where it has one, or "*"'
                yield error_at(resource, ("spec", "deviceApi", "corsAllowedOrigins", i), message)
    for resource, user in of_kind(resources, MessagingUserSpec):
        device = user.device
        if device is None:
            continue
        if tenants and not user.username.endswith(f"@{tenants[0]}"):
            message = f'the user of a device must be named auth-id@{tenants[0]}, unlike "{user.username}"'
            yield error_at(resource, ("spec", "username"), message)
        if device.id and not IDENTIFIER.fullmatch(device.id):
            yield error_at(
                resource,
                ("spec", "device", "id"),
                f'"{device.id}" is not a device identifier; allowed: {IDENTIFIER_WORDS}',
            )
        if len(device.acts_for) > ACTS_FOR_MAX:
            message = f'more than {ACTS_FOR_MAX} devices; "*" means all'
            yield error_at(resource, ("spec", "device", "actsFor"), message)
        for i, name in enumerate(device.acts_for):
            if name != ALL and not IDENTIFIER.fullmatch(name):
                yield error_at(
                    resource,
                    ("spec", "device", "actsFor", i),
                    f'"{name}" is not a device identifier; allowed: {IDENTIFIER_WORDS}',
                )


def _system(resources: Sequence[Resource]) -> Errors:
    for resource, spec in of_kind(resources, SystemSpec):
        name = name_in(spec.url)
        if name is not None:
            if not is_bundle_name(name):
                yield error_at(resource, ("spec", "url"), f'"{spec.url}": {NAME_WORDS}')
            continue
        try:
            parts = urlsplit(spec.url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits:
            message = f'"{spec.url}" is not the URL of a bundle; expected https://host/path, or hub:NAME'
            yield error_at(resource, ("spec", "url"), message)
        elif parts.username is not None:
            message = (
                "remove the user name and the password, which would appear in logs; use a path that is hard to guess"
            )
            yield error_at(resource, ("spec", "url"), message)


def _artefacts(resources: Sequence[Resource]) -> Errors:
    for resource, spec in of_kind(resources, ArtefactsSpec):
        from bridge.artefacts.keys import InvalidKey, MakerPublicKey  # noqa: PLC0415 - cryptography takes 10 MiB

        for i, pem in enumerate(spec.trusted_keys):
            try:
                MakerPublicKey.parse(pem)
            except InvalidKey as why:
                yield error_at(resource, ("spec", "trustedKeys", i), str(why))
        address_of = spec.report_address
        address = address_of.replace("%u", "device")
        if "%u" not in address_of or address.startswith("$") or "+" in address or "#" in address:
            message = f'"{spec.report_address}": expected an address with %u for the device, and without wildcards'
            yield error_at(resource, ("spec", "reportAddress"), message)
        seen: set[tuple[str, str]] = set()
        for i, wanted in enumerate(spec.artefacts):
            if wanted.key in seen:
                yield error_at(resource, ("spec", "artefacts", i), f"{wanted.name} {wanted.version} is listed twice")
            seen.add(wanted.key)
            for j, device in enumerate(wanted.devices):
                if "*" in device[:-1]:
                    message = f'"{device}": a "*" may only be the last character'
                    yield error_at(resource, ("spec", "artefacts", i, "devices", j), message)


_SPACE_CHECKS: Final[tuple[Check, ...]] = (
    _gateway,
    _connectors,
    _addresses,
    _deadletters,
    _reserves,
    connector_directions,
    *FORWARDER_CHECKS,
    _users,
    _devices,
    _device_api,
    _insecure,
    _system,
    _artefacts,
)
CHECKS: Final[tuple[Check, ...]] = (*map(for_each_space, _SPACE_CHECKS), *TENANT_SPACE_CHECKS)
