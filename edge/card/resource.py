"""File on a card, `waypost.yaml`: one resource of kind `Card`, for the tools that write it and for the gateway."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from bridge.hidden import hides
from bridge.proxy import Proxy, proxy_fault
from bridge.resources import parse as language
from bridge.resources.document import Document, documents
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.fields import Bytes, Host, Live, ResourcePart, read_by
from bridge.resources.resource import Errors, Resource, ResourceKind, ResourceKinds, error_at, of_kind
from edge.card import fields

KIND: Final = "Card"
FILE_BYTES_MAX: Final = 64 << 10
"""Largest size of the file; a full one has 2 KiB."""
KEYS_MAX: Final = 100
"""Largest number of SSH keys and of time servers."""

Filter = Annotated[str, msgspec.Meta(min_length=1, max_length=65535)]


class Cable(ResourcePart, frozen=True, kw_only=True):
    """Wired network without DHCP."""

    address: Live[Annotated[str, read_by(fields.interface, str)]]
    """Address of the gateway with the prefix length: 192.168.1.20/24."""
    gateway: Live[Annotated[str, read_by(fields.address, str)] | None] = None
    """Address of the router."""
    dns: Live[tuple[Annotated[str, read_by(fields.address, str)], ...]] = ()
    """Addresses of name servers."""


@hides("password", "key")
class WifiLogin(ResourcePart, frozen=True, kw_only=True):
    """Login of the gateway at a wireless network with users (WPA-Enterprise, IEEE 802.1X)."""

    user: Live[Annotated[str, read_by(fields.wifi_user, str)]]
    """Name of the gateway's user, for example gateway7@plant.example."""
    password: Live[Annotated[str, read_by(fields.login_password, str)] | None] = None
    """Password of the user (PEAP with MSCHAPv2)."""
    certificate: Live[Annotated[str, read_by(fields.certificate, str)] | None] = None
    """Certificate of the user (PEM), instead of a password (EAP-TLS); its chain may follow."""
    key: Live[Annotated[str, read_by(fields.private_key, str)] | None] = None
    """Private key of that certificate (PEM), without a passphrase."""
    authority: Live[Annotated[str, read_by(fields.certificate, str)]]
    """Certificate of the authority that signed the login server's (PEM)."""
    server: Live[Host | None] = None
    """Name of the login server in its certificate, or its domain; by default any that the authority signed."""


@hides("password")
class Wifi(ResourcePart, frozen=True, kw_only=True):
    """Wireless network."""

    ssid: Live[Annotated[str, read_by(fields.network_name, str)]]
    """Name of the network."""
    password: Live[Annotated[str, read_by(fields.passphrase, str)] | None] = None
    """Password of the network, or the key of 64 hexadecimal digits that WPA2 derives from it; none for an open one."""
    country: Live[Annotated[str, read_by(fields.country, str)]]
    """Country of the gateway (ISO 3166), which determines the allowed channels."""
    login: Live[WifiLogin | None] = None
    """Login at a network with users (WPA-Enterprise); with a password too, the access point decides."""


@hides("password", "pin")
class Lte(ResourcePart, frozen=True, kw_only=True):
    """Mobile network, over a USB modem."""

    apn: Live[Annotated[str, read_by(fields.access_point, str)]]
    """Access point name."""
    user: Live[Annotated[str, read_by(fields.word, str)] | None] = None
    """User name, if the access point needs one."""
    password: Live[Annotated[str, read_by(fields.word, str)] | None] = None
    """Password of the user."""
    pin: Live[Annotated[str, read_by(fields.pin, str)] | None] = None
    """PIN of the SIM card, in quotes to keep leading zeros."""


@hides("token")
class CardHub(ResourcePart, frozen=True, kw_only=True):
    """Hub to which messages are forwarded."""

    url: Live[Annotated[str, read_by(fields.hub_url, str)]]
    """amqps://HOST:PORT, or over WebSocket wss://HOST:PORT."""
    failover: Live[tuple[Annotated[str, read_by(fields.hub_url, str)], ...]] = ()
    """Further URLs of the same hub, tried in order when the one before does not answer."""
    proxy: Live[Proxy | None] = None
    """HTTP proxy for the connection to the hub, also used to enrol."""
    token: Live[Annotated[str, read_by(fields.token, str)]]
    """Token for one enrolment of this gateway: `waypost token create`, at the hub."""
    forward: Live[Annotated[tuple[Filter, ...], msgspec.Meta(min_length=1)]] = ("#",)
    """Filters of the topics that are forwarded."""


class Data(ResourcePart, frozen=True, kw_only=True):
    """The place of messages, configuration and identity."""

    disk: Live[Annotated[str, read_by(fields.disk_kind, str)] | None] = None
    """Kind of an empty disk next to the card that keeps the data; without it they are on the card."""
    keep_free: Live[Bytes | None] = None
    """Bytes that messages leave free: a card lasts longer when a part of it is never written."""


class CardSpec(ResourcePart, frozen=True, kw_only=True):
    """Settings of a gateway for its first start; all are optional."""

    hostname: Live[Annotated[str, read_by(fields.host_name, str)] | None] = None
    """Name of the machine; by default the gateway's name."""
    cable: Live[Cable | None] = None
    """Wired network; by default DHCP."""
    wifi: Live[Wifi | None] = None
    """Wireless network, if any."""
    lte: Live[Lte | None] = None
    """Mobile network, if any."""
    ssh_keys: Live[tuple[Annotated[str, read_by(fields.ssh_key, str)], ...]] = ()
    """Public keys for logins as root; without any, SSH is off."""
    hub: Live[CardHub | None] = None
    """Hub; without one messages stay on the gateway."""
    time_servers: Live[tuple[Annotated[str, read_by(fields.server, str)], ...]] = ()
    """Time servers, instead of Debian's."""
    data: Live[Data] = Data()
    """The place of messages, configuration and identity."""


class Card(msgspec.Struct, frozen=True):
    """Content of a card's file: the gateway's name and its settings."""

    name: str
    spec: CardSpec
    text: bytes
    """The file as it was written."""

    def __repr__(self) -> str:
        return f"Card({self.name})"

    @property
    def hostname(self) -> str:
        return self.spec.hostname or self.name


def _checks(resources: Sequence[Resource]) -> Errors:
    for resource, spec in of_kind(resources, CardSpec):
        yield from _check(resource, spec)


def _check(resource: Resource, spec: CardSpec) -> Iterator[ConfigurationError]:
    if spec.hostname is None:
        try:
            fields.host_name(resource.name)
        except ValueError:
            words = f'"{resource.name}" is not a host name (1 to 63 of a-z, 0-9 and -): set hostname too'
            yield error_at(resource, ("metadata", "name"), words)
    cable = spec.cable
    if cable is not None and cable.gateway is not None:
        own, router = ipaddress.ip_interface(cable.address), ipaddress.ip_address(cable.gateway)
        near = router in own.network or (own.version == router.version == 6 and router.is_link_local)
        if not near or router == own.ip:  # IPv6 routers announce a link-local address (RFC 4861)
            words = f'"{cable.gateway}" is not another machine of the network of {cable.address}'
            yield error_at(resource, ("spec", "cable", "gateway"), words)
    if spec.hub is not None and spec.hub.proxy is not None:
        yield from _check_proxy(resource, spec.hub.proxy)
    if spec.wifi is not None and spec.wifi.login is not None:
        yield from _check_login(resource, spec.wifi.login)
    if spec.lte is not None and (spec.lte.user is None) != (spec.lte.password is None):
        yield error_at(resource, ("spec", "lte"), "user and password go together")
    for name, values in (("sshKeys", spec.ssh_keys), ("timeServers", spec.time_servers)):
        if len(values) > KEYS_MAX:
            yield error_at(resource, ("spec", name), f"{KEYS_MAX} at most")


def _check_login(resource: Resource, login: WifiLogin) -> Iterator[ConfigurationError]:
    path = ("spec", "wifi", "login")
    if (login.certificate is None) != (login.key is None):
        yield error_at(resource, path, "certificate and key go together")
    elif login.password is None and login.certificate is None:
        yield error_at(resource, path, "a password is missing, or a certificate with its key")


def _check_proxy(resource: Resource, proxy: Proxy) -> Iterator[ConfigurationError]:
    path = ("spec", "hub", "proxy")
    if fault := proxy_fault(proxy):
        yield error_at(resource, path, fault)
    if proxy.password is not None:
        try:
            fields.secret(proxy.password)
        except ValueError as error:
            yield error_at(resource, (*path, "password"), str(error))


def _check_effects(resources: Sequence[Resource]) -> Errors:
    """Yield errors of valid values that would have no effect."""
    for resource, spec in of_kind(resources, CardSpec):
        for path, check, value in _values_to_check(spec):
            try:
                check(value)
            except ValueError as error:
                yield error_at(resource, ("spec", *path), str(error))


def _values_to_check(spec: CardSpec) -> Iterator[tuple[tuple[str | int, ...], Callable[[str], str], str]]:
    """Yield values with their path below `spec` and their check: (path, check, value)."""
    for number, server in enumerate(spec.time_servers):
        yield ("timeServers", number), fields.time_server, server
    if spec.cable is not None:
        yield ("cable", "address"), fields.machine, spec.cable.address
    if spec.wifi is not None:
        yield ("wifi", "country"), fields.country_with_rules, spec.wifi.country
    if spec.hub is not None:
        yield ("hub", "url"), fields.reachable_hub, spec.hub.url
        for number, url in enumerate(spec.hub.failover):
            yield ("hub", "failover", number), fields.reachable_hub, url
        for number, topic in enumerate(spec.hub.forward):
            yield ("hub", "forward", number), fields.topic_filter, topic


_CARD: Final = ResourceKind(KIND, CardSpec, ("card",), single=True)
KINDS: Final = ResourceKinds((_CARD,), (_checks, _check_effects))
"""Kinds and checks for a new file."""
IN_FORCE: Final = ResourceKinds((_CARD,), (_checks,))
"""Kinds and checks for applied settings. They may be from an older program: a new, stricter check must not cut off a
gateway from its network."""


def read(text: bytes, source: str, kinds: ResourceKinds = KINDS) -> Card | None:
    """Return the card of a text; None when it has only comments. Raises `ConfigurationRejected`."""
    if len(text) > FILE_BYTES_MAX:
        raise ConfigurationRejected([ConfigurationError(source, 0, "", f"larger than {FILE_BYTES_MAX} bytes")])
    plain = text.removeprefix(b"\xef\xbb\xbf")  # some editors write a byte order mark
    resources = language.parse(kinds, plain, source)
    errors = kinds.validate(resources)
    if errors:
        raise ConfigurationRejected(errors)
    if not resources:
        return None
    return card_of(resources[0], text)


def plain_of(text: bytes, source: str) -> Plain:
    """Return the document of a valid card's file, with dates as text, as they were read."""
    for found in documents(text.removeprefix(b"\xef\xbb\xbf"), source):
        if isinstance(found, Document):
            return dict(found.value)
    return {}


def card_of(resource: Resource, text: bytes) -> Card:
    """Return the card of a resource that was read from this text."""
    if not isinstance(resource.spec, CardSpec):
        raise TypeError(resource.kind)
    return Card(resource.name, resource.spec, text)


Plain = dict[str, Any]
"""Document as parsed from YAML."""
