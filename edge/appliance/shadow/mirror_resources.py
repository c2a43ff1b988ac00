"""Resources of a mirror: a connector to the old broker, incoming forwarders, and a user for the comparison.

All of them carry the name `shadow`, so `waypost get` shows the mirror, and its end removes exactly these parts.
"""

from __future__ import annotations

import base64
import copy
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from bridge.connectors.settings import ClientIdentity
from bridge.hidden import hides
from bridge.resources.resource import Resource, of_kind
from edge.broker.configuration import AuthenticationMode, Connector, Direction
from edge.broker.model.addresses import AddressType
from edge.broker.model.topics import overlaps
from edge.configuration.first_gateway import SPACE, document_of
from edge.configuration.resource_names import ResourceNames
from edge.configuration.resources import AddressSpaceSpec, AddressSpec, GatewaySpec, MessagingUserSpec

MIRROR: Final = "shadow"
"""Name of the connector, its forwarders and the user."""
COMPARISON: Final = "-compare"
"""End of the client identifiers of a comparison."""
MADE_BY: Final = "waypost.io/made-by"
"""Annotation of an Address that was made for the mirror."""
_SHARED: Final = (AddressType.TOPIC, AddressType.MULTICAST)
"""Types of which every subscriber gets a copy: a comparison takes nothing away."""


@hides("password")
class MirrorSource(NamedTuple):
    """The broker to mirror."""

    host: str
    port: int
    tls: dict[str, str] | None = None
    """Fields of a connector's `tls`; None: plain TCP."""
    username: str | None = None
    password: str | None = None
    client_id: str = ""
    """Our client identifier there; empty: that of a connector."""


class MirrorInForce(NamedTuple):
    """Mirror of the applied resources."""

    connector: Connector
    filters: tuple[str, ...]
    """Mirrored filters, the same on both sides."""
    gateway: str

    @property
    def client_id(self) -> str:
        """Client identifier of the connector at the old broker."""
        return self.connector.container or f"{self.gateway or 'waypost'}-{MIRROR}"


class MirrorFault(NamedTuple):
    """Reason why a mirror cannot be made."""

    code: str
    what: str
    hint: str


def mirror_in(resources: Sequence[Resource]) -> MirrorInForce | None:
    """Return the mirror of these resources; None without one."""
    connectors = [each for _, space in of_kind(resources, AddressSpaceSpec) for each in space.connectors]
    connector = next((each for each in connectors if each.name == MIRROR), None)
    if connector is None:
        return None
    filters = tuple(spec.address for _, spec in of_kind(resources, AddressSpec) if _mirrors(spec))
    return MirrorInForce(connector, filters, _gateway_of(resources))


def comparison_identity(resources: Sequence[Resource]) -> ClientIdentity:
    """Return the identity of a comparison at the gateway; without a user where clients need none."""
    users = [spec for each, spec in of_kind(resources, MessagingUserSpec) if each.name.endswith(f".{MIRROR}")]
    encoded = users[0].authentication.password if users else None
    password = base64.b64decode(encoded).decode() if encoded else None
    client_id = f"{_gateway_of(resources) or 'waypost'}-{MIRROR}{COMPARISON}"
    return ClientIdentity(client_id, users[0].username if users else None, password)


def mirror_fault(resources: Sequence[Resource], source: MirrorSource, filters: Sequence[str]) -> MirrorFault | None:
    """Return why these filters cannot be mirrored from this broker; None if they can."""
    if mirror_in(resources) is not None:
        return MirrorFault("shadow-exists", "a mirror is in place already", "see it: waypost shadow report")
    for place, one in enumerate(filters):
        for other in filters[place + 1 :]:
            if overlaps(one, other):
                what = f"the filters {one} and {other} overlap: their messages would come twice"
                return MirrorFault("invalid-value", what, "name filters without common topics")
    if any(one.startswith("$") for one in filters):
        what = "topics that begin with $ belong to the broker itself"
        return MirrorFault("invalid-value", what, "name other filters")
    return _competing(resources, filters) or _sending_back(resources, source)


def with_mirror(resources: Sequence[Resource], source: MirrorSource, filters: Sequence[str]) -> list[dict[str, Any]]:
    """Return the documents of all resources with those of a mirror."""
    documents = [copy.deepcopy(each.document) for each in resources]
    space = _space(documents)
    space["spec"].setdefault("connectors", []).append(_connector(source))
    default = next((spec.default_type for _, spec in of_kind(resources, AddressSpaceSpec)), AddressType.TOPIC)
    names = ResourceNames(f"{space['metadata'].get('name', SPACE)}.", [each.name for each in resources])
    own = {
        spec.address: document
        for (_, spec), document in zip(
            of_kind(resources, AddressSpec),
            (each for each in documents if each["kind"] == "Address"),
            strict=True,
        )
        if spec.address_space is None
    }
    for one in filters:
        document = own.get(one)
        if document is None:
            document = document_of("Address", names.make(one, MIRROR), {"address": one, "type": default.value})
            document["metadata"]["annotations"] = {MADE_BY: MIRROR}
            documents.append(document)
        forwarder = {"name": MIRROR, "direction": Direction.IN.value, "remoteAddress": f"{MIRROR}/{one}"}
        document["spec"].setdefault("forwarders", []).append(forwarder)
    return documents


def with_user(resources: Sequence[Resource]) -> list[dict[str, Any]]:
    """Return the documents of all resources with that of the comparison's user, where clients need one."""
    documents = [copy.deepcopy(each.document) for each in resources]
    if _needs_user(resources):
        documents.append(_user(_space(documents)["metadata"].get("name", SPACE)))
    return documents


def without_mirror(resources: Sequence[Resource]) -> list[dict[str, Any]]:
    """Return the documents of all resources without those of the mirror."""
    documents = [copy.deepcopy(each.document) for each in resources]
    kept: list[dict[str, Any]] = []
    for document in documents:
        metadata, spec = document["metadata"], document["spec"]
        if metadata.get("annotations", {}).get(MADE_BY) == MIRROR:
            continue
        if document["kind"] == "AddressSpace":
            _remove(spec, "connectors", lambda each: each.get("name") == MIRROR)
        if document["kind"] == "Address":
            _remove(spec, "forwarders", lambda each: each.get("remoteAddress", "").startswith(f"{MIRROR}/"))
        kept.append(document)
    return kept


def outgoing_with(resources: Iterable[Resource], filters: Sequence[str]) -> list[str]:
    """Return the connectors that send mirrored messages on, where the old broker may do so too."""
    found = (
        forwarder.remote_address.partition("/")[0]
        for _, spec in of_kind(resources, AddressSpec)
        for forwarder in spec.forwarders
        if forwarder.direction is Direction.OUT and any(overlaps(spec.address, each) for each in filters)
    )
    return list(dict.fromkeys(found))


# --- inside -----------------------------------------------------------------------------------------------------------


def _gateway_of(resources: Sequence[Resource]) -> str:
    return next((each.name for each, _ in of_kind(resources, GatewaySpec)), "")


def _mirrors(spec: AddressSpec) -> bool:
    return any(each.remote_address.startswith(f"{MIRROR}/") for each in spec.forwarders)


def _competing(resources: Sequence[Resource], filters: Sequence[str]) -> MirrorFault | None:
    """Return a fault if messages of the filters go to one consumer only: a comparison would take them from it."""
    for resource, spec in of_kind(resources, AddressSpec):
        if spec.address_space is None and spec.type not in _SHARED and spec.type is not AddressType.SUBSCRIPTION:
            for one in filters:
                if overlaps(spec.address, one):
                    what = f"{one} includes {spec.address} ({spec.type.value}, Address {resource.name}), whose messages"
                    what += " go to one consumer each: a comparison would take them away"
                    return MirrorFault("shadow-takes-messages", what, "name filters without it: --address FILTER")
    space = next((spec for _, spec in of_kind(resources, AddressSpaceSpec)), None)
    if space is not None and space.default_type not in _SHARED:
        what = f"addresses of this space are of type {space.default_type.value} by default"
        return MirrorFault("shadow-takes-messages", what, "add an Address of type topic, and mirror that one")
    return None


def _sending_back(resources: Sequence[Resource], source: MirrorSource) -> MirrorFault | None:
    """Return a fault if a connector leads to the broker: messages could go in circles."""
    for _, space in of_kind(resources, AddressSpaceSpec):
        for connector in space.connectors:
            if (source.host, source.port) in {(each.host, each.port) for each in connector.endpoints}:
                what = f"connector {connector.name} leads to {source.host}:{source.port}, the broker to mirror"
                hint = "remove it, or its forwarders: with a mirror its messages come twice, or go in circles"
                return MirrorFault("shadow-loop", what, hint)
    for _, gateway in of_kind(resources, GatewaySpec):
        listener = gateway.listeners.mqtt if gateway.listeners is not None else None
        if listener is not None and listener.port == source.port and _same_machine(source.host):
            what = f"{source.host}:{source.port} is this gateway's own listener"
            return MirrorFault("shadow-loop", what, "let the old broker listen on another port: the how-to shows it")
    return None


def _same_machine(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1")


def _space(documents: list[dict[str, Any]]) -> dict[str, Any]:
    found = next((each for each in documents if each["kind"] == "AddressSpace"), None)
    if found is None:
        found = document_of("AddressSpace", SPACE, {})
        documents.append(found)
    return found


def _connector(source: MirrorSource) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": MIRROR,
        "type": "mqtt",
        "endpointHosts": [{"host": source.host, "port": source.port}],
    }
    if source.client_id:
        made["container"] = source.client_id
    if source.tls is not None:
        made["tls"] = dict(source.tls)
    if source.username is not None:
        made["credentials"] = {"username": source.username, "password": source.password or ""}
        if source.tls is None:
            made["credentials"]["plainWithoutTls"] = True
    return made


def _needs_user(resources: Sequence[Resource]) -> bool:
    space = next((spec for _, spec in of_kind(resources, AddressSpaceSpec)), None)
    service = None if space is None else space.authentication_service
    return service is None or service.name is not AuthenticationMode.NONE


def _user(space: str) -> dict[str, Any]:
    password = base64.b64encode(secrets.token_urlsafe(32).encode()).decode()
    spec = {
        "username": f"waypost-{MIRROR}",
        "authentication": {"type": "password", "password": password},
        "authorization": [{"addresses": ["#", "$SYS/#"], "operations": ["recv", "send"]}],
    }
    made = document_of("MessagingUser", f"{space}.{MIRROR}", spec)
    made["metadata"]["annotations"] = {MADE_BY: MIRROR}
    return made


def _remove(spec: dict[str, Any], field: str, wanted: Any) -> None:
    """Remove the parts of a list that `wanted` chooses, and the list if nothing is left."""
    if field in spec:
        spec[field] = [each for each in spec[field] if not wanted(each)]
        if not spec[field]:
            del spec[field]
