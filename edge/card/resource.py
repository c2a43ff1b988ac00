"""The file on a card, `waypost.yaml`: one resource of kind `Card`, read by whoever writes it and by the gateway."""

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
from bridge.resources.fields import Bytes, Live, ResourcePart, read_by
from bridge.resources.resource import Errors, Resource, ResourceKind, ResourceKinds, error_at, of_kind
from edge.card import fields

KIND: Final = "Card"
FILE_BYTES_MAX: Final = 64 << 10
"""Of the file: a full one has 2 KiB; a card in a box must not fill a memory."""
KEYS_MAX: Final = 100
"""SSH keys, time servers, filters: whoever needs more has another way to say it."""

Filter = Annotated[str, msgspec.Meta(min_length=1, max_length=65535)]


class Cable(ResourcePart, frozen=True, kw_only=True):
    """The network on the cable, without DHCP."""

    address: Live[Annotated[str, read_by(fields.interface, str)]]
    """Its own, with the length of the prefix: 192.168.1.20/24."""
    gateway: Live[Annotated[str, read_by(fields.address, str)] | None] = None
    """The router."""
    dns: Live[tuple[Annotated[str, read_by(fields.address, str)], ...]] = ()
    """Servers that know names."""


@hides("password")
class Wifi(ResourcePart, frozen=True, kw_only=True):
    """A wireless network."""

    ssid: Live[Annotated[str, read_by(fields.network_name, str)]]
    """Its name."""
    password: Live[Annotated[str, read_by(fields.passphrase, str)] | None] = None
    """Without one it is an open network."""
    country: Live[Annotated[str, read_by(fields.country, str)]]
    """Code of the country where the gateway is (ISO 3166): it decides which channels are allowed."""


@hides("password", "pin")
class Lte(ResourcePart, frozen=True, kw_only=True):
    """A mobile network, over a modem on USB."""

    apn: Live[Annotated[str, read_by(fields.access_point, str)]]
    """Its access point."""
    user: Live[Annotated[str, read_by(fields.word, str)] | None] = None
    """Where the access point asks for one."""
    password: Live[Annotated[str, read_by(fields.word, str)] | None] = None
    """Of that user."""
    pin: Live[Annotated[str, read_by(fields.pin, str)] | None] = None
    """Of the SIM card, in quotes: zeros before a number are lost."""


@hides("token")
class CardHub(ResourcePart, frozen=True, kw_only=True):
    """Where messages go."""

    url: Live[Annotated[str, read_by(fields.hub_url, str)]]
    """amqps://HOST:PORT, or over WebSocket wss://HOST:PORT."""
    failover: Live[tuple[Annotated[str, read_by(fields.hub_url, str)], ...]] = ()
    """Further URLs of the same hub, tried in order where the one before does not answer."""
    proxy: Live[Proxy | None] = None
    """HTTP proxy through which the hub is reached, also to enrol."""
    token: Live[Annotated[str, read_by(fields.token, str)]]
    """Good once, for this gateway: `waypost fleet token create`, at the hub."""
    forward: Live[Annotated[tuple[Filter, ...], msgspec.Meta(min_length=1)]] = ("#",)
    """Filters of what goes to the hub."""


class Data(ResourcePart, frozen=True, kw_only=True):
    """The partition that keeps messages."""

    keep_free: Live[Bytes | None] = None
    """So much of it messages leave free; a card lasts longer where some of it is never written to."""


class CardSpec(ResourcePart, frozen=True, kw_only=True):
    """What a gateway is told before its first start; all of it may be left out."""

    hostname: Live[Annotated[str, read_by(fields.host_name, str)] | None] = None
    """Of the machine; without it the gateway's name."""
    cable: Live[Cable | None] = None
    """Without it DHCP."""
    wifi: Live[Wifi | None] = None
    """Without it none."""
    lte: Live[Lte | None] = None
    """Without it none."""
    ssh_keys: Live[tuple[Annotated[str, read_by(fields.ssh_key, str)], ...]] = ()
    """Public keys of who may log in as root; without any there is no SSH."""
    hub: Live[CardHub | None] = None
    """Without it messages stay on the gateway."""
    time_servers: Live[tuple[Annotated[str, read_by(fields.server, str)], ...]] = ()
    """In place of Debian's."""
    data: Live[Data] = Data()
    """The partition that keeps messages."""


class Card(msgspec.Struct, frozen=True):
    """A file that was read: the gateway's name, and what it is told."""

    name: str
    spec: CardSpec
    text: bytes
    """As it was written."""

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
            words = f'"{resource.name}" is no host name (1 to 63 of a-z, 0-9 and -): give hostname too'
            yield error_at(resource, ("metadata", "name"), words)
    cable = spec.cable
    if cable is not None and cable.gateway is not None:
        own, router = ipaddress.ip_interface(cable.address), ipaddress.ip_address(cable.gateway)
        near = router in own.network or (own.version == router.version == 6 and router.is_link_local)
        if not near or router == own.ip:  # routers of IPv6 say of themselves a link-local address (RFC 4861)
            words = f"{router} is no other machine of the network {own.network}"
            yield error_at(resource, ("spec", "cable", "gateway"), words)
    if spec.hub is not None and spec.hub.proxy is not None:
        yield from _check_proxy(resource, spec.hub.proxy)
    if spec.lte is not None and (spec.lte.user is None) != (spec.lte.password is None):
        yield error_at(resource, ("spec", "lte"), "user and password go together")
    for name, values in (("sshKeys", spec.ssh_keys), ("timeServers", spec.time_servers)):
        if len(values) > KEYS_MAX:
            yield error_at(resource, ("spec", name), f"{KEYS_MAX} at most")


def _check_proxy(resource: Resource, proxy: Proxy) -> Iterator[ConfigurationError]:
    path = ("spec", "hub", "proxy")
    if fault := proxy_fault(proxy):
        yield error_at(resource, path, fault)
    if proxy.password is not None:
        try:
            fields.secret(proxy.password)
        except ValueError as error:
            yield error_at(resource, (*path, "password"), str(error))


def _of_use(resources: Sequence[Resource]) -> Errors:
    """What can be read, and would do nothing."""
    for resource, spec in of_kind(resources, CardSpec):
        for path, judge, value in _judged(spec):
            try:
                judge(value)
            except ValueError as error:
                yield error_at(resource, ("spec", *path), str(error))


def _judged(spec: CardSpec) -> Iterator[tuple[tuple[str | int, ...], Callable[[str], str], str]]:
    """Way to a value below `spec`, what judges it, and the value."""
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
KINDS: Final = ResourceKinds((_CARD,), (_checks, _of_use))
"""Of a file that somebody has written."""
IN_FORCE: Final = ResourceKinds((_CARD,), (_checks,))
"""Of settings that were taken up, perhaps by an older program: one that judges more strictly does not take the network
from a gateway that has it."""


def read(text: bytes, source: str, kinds: ResourceKinds = KINDS) -> Card | None:
    """The card a text describes; None where it says nothing (all of it is comments). Raises `ConfigurationRejected`."""
    if len(text) > FILE_BYTES_MAX:
        raise ConfigurationRejected([ConfigurationError(source, 0, "", f"larger than {FILE_BYTES_MAX} bytes")])
    plain = text.removeprefix(b"\xef\xbb\xbf")  # some editors begin a file with a byte order mark
    resources = language.parse(kinds, plain, source)
    errors = kinds.validate(resources)
    if errors:
        raise ConfigurationRejected(errors)
    if not resources:
        return None
    return of(resources[0], text)


def plain_of(text: bytes, source: str) -> Plain:
    """Return the document of a card's file that was read before, with its values as they were read: what looks like a
    date is text."""
    for found in documents(text.removeprefix(b"\xef\xbb\xbf"), source):
        if isinstance(found, Document):
            return dict(found.value)
    return {}


def of(resource: Resource, text: bytes) -> Card:
    """The card of a resource that was read from such a text."""
    if not isinstance(resource.spec, CardSpec):
        raise TypeError(resource.kind)
    return Card(resource.name, resource.spec, text)


Plain = dict[str, Any]
"""A document as YAML has it."""
