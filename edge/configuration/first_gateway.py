"""Resources of a first gateway: the options and answers of `waypost init`, as YAML for further editing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from bridge.proxy import Proxy
from bridge.resources.parse import to_yaml
from bridge.resources.resource import OWN_VERSION
from edge.broker.configuration import AuthenticationMode
from edge.broker.model.addresses import AddressType
from edge.configuration.forwarders import HUB_CONNECTOR
from edge.configuration.resource_names import ResourceNames

SPACE: Final = "default"


class FirstGateway(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a first gateway; a listener that is None is not created."""

    name: str
    mqtt: str | None
    amqp: str | None
    http: str | None
    https: str | None = None
    hub: Sequence[str] = ()
    """URLs of the hub, in the order of attempts."""
    proxy: Proxy | None = None
    """Proxy on the way to the hub."""
    forward: Sequence[str] = ()
    """Filters of the addresses that are forwarded to the hub."""
    hub_tls: Mapping[str, str] | None = None
    """``spec.hub.tls``: the gateway's identity at the hub; None: no certificate."""


def yaml_of(wanted: FirstGateway) -> str:
    """Return the resources as YAML."""
    return "---\n".join(to_yaml(document) for document in _documents(wanted))


def hub_of(urls: Sequence[str], tls: Mapping[str, str] | None, proxy: Proxy | None = None) -> dict[str, Any]:
    """Return ``spec.hub`` of a gateway."""
    url, *failover = urls
    hub: dict[str, Any] = {"url": url, "failover": failover}
    if proxy is not None:
        hub["proxy"] = msgspec.to_builtins(proxy)
    if tls is not None:
        hub["tls"] = dict(tls)
    return {name: value for name, value in hub.items() if value != []}


def _documents(wanted: FirstGateway) -> Iterator[dict[str, Any]]:
    places = {"mqtt": wanted.mqtt, "amqp": wanted.amqp, "http": wanted.http, "https": wanted.https}
    gateway: dict[str, Any] = {"listeners": {name: place for name, place in places.items() if place is not None}}
    if wanted.hub:
        gateway["hub"] = hub_of(wanted.hub, wanted.hub_tls, wanted.proxy)
    yield document_of("Gateway", wanted.name, gateway)
    yield document_of("AddressSpace", SPACE, {"authenticationService": {"name": AuthenticationMode.STANDARD.value}})
    yield from addresses(wanted.forward)


def addresses(filters: Sequence[str], taken: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield an Address for each filter, which forwards to the hub. `taken`: names of other Addresses."""
    names = ResourceNames(f"{SPACE}.", taken)
    for pattern in dict.fromkeys(filters):
        forwarder = {"name": "to-hub", "remoteAddress": HUB_CONNECTOR}
        spec = {"address": pattern, "type": AddressType.TOPIC.value, "forwarders": [forwarder]}
        yield document_of("Address", names.make(pattern, "all"), spec)


def document_of(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a resource as a document."""
    return {"apiVersion": OWN_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
