"""Connections, links and addresses with the names of Qpid Dispatch, for qdstat and qdmanage.

Attributes without a value here are null, as qdstat requires them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from edge.broker.amqp.containers import ConnectionFigures, ContainerRegistry, LinkFigures, ObservedConnection
from edge.broker.amqp.entries import MakeEntry, address_entries
from edge.broker.model.addresses import AddressType
from edge.broker.router.router import Router

_PREFIX: Final = "org.apache.qpid.dispatch."
_CONNECTION: Final = (
    "name", "identity", "type", "container", "host", "user", "role", "dir", "isAuthenticated", "isEncrypted", "sasl",
    "sslProto", "sslCipher",
)  # fmt: skip
_LINK: Final = (
    "name", "identity", "type", "linkName", "linkType", "linkDir", "connectionId", "peer", "owningAddr", "capacity",
    "credit", "unsettledCount", "deliveryCount", "undeliveredCount", "presettledCount", "acceptedCount",
    "rejectedCount", "releasedCount", "modifiedCount", "adminStatus", "operStatus",
)  # fmt: skip
_ADDRESS: Final = (
    "name", "identity", "type", "key", "distribution", "subscriberCount", "messages", "unsettled", "inProcess",
    "remoteCount", "containerCount", "deliveriesIngress", "deliveriesEgress", "deliveriesTransit",
    "deliveriesToContainer", "deliveriesFromContainer",
)  # fmt: skip
_ROUTER: Final = ("name", "identity", "type", "id", "mode", "connectionCount")
_COPIED: Final = (AddressType.TOPIC.value, AddressType.MULTICAST.value)
"""Types of addresses where each consumer gets a copy."""


class ManagedBroker(NamedTuple):
    """Parts of a broker that management shows."""

    router: Router
    containers: ContainerRegistry
    container_id: str
    """Container id of the broker."""


class EntityType(NamedTuple):
    """Attributes and entries of one entity type."""

    attributes: tuple[str, ...]
    entries: Callable[[ManagedBroker], Iterator[MakeEntry]]
    """Yields the entries in a stable order while none is added or removed."""


def _entry(attributes: tuple[str, ...], kind: str, **known: Any) -> dict[str, Any]:
    return {**dict.fromkeys(attributes), "type": _PREFIX + kind, **known}


def _connections(managed: ManagedBroker) -> Iterator[MakeEntry]:
    for number, connection in managed.containers.connections.items():
        yield partial(_of_connection, number, connection)


def _of_connection(number: int, connection: ObservedConnection) -> dict[str, Any]:
    figures: ConnectionFigures = connection.figures()
    cipher, version = figures.cipher or (None, None)
    return _entry(
        _CONNECTION,
        "connection",
        name=f"connection/{figures.host}",
        identity=str(number),
        container=figures.container_id,
        host=figures.host,
        user=figures.user or None,
        role="normal",
        dir="in",
        isAuthenticated=bool(figures.user),
        isEncrypted=cipher is not None,
        sasl=figures.mechanism or None,
        sslProto=version,
        sslCipher=cipher,
    )


def _links(managed: ManagedBroker) -> Iterator[MakeEntry]:
    for number, connection in managed.containers.connections.items():
        for link in connection.link_figures():
            yield partial(_of_link, number, link)


def _of_link(number: int, link: LinkFigures) -> dict[str, Any]:
    direction = "out" if link.is_sender else "in"
    owner = None if link.address is None else ("L" if link.is_service else "M0") + link.address
    return _entry(
        _LINK,
        "router.link",
        name=link.name,
        identity=f"{number}/{direction}/{link.name}",
        linkName=link.name,
        linkType="endpoint",
        linkDir=direction,
        connectionId=str(number),
        owningAddr=owner,
        capacity=link.credit + link.unsettled,
        credit=link.credit,
        unsettledCount=link.unsettled,
        deliveryCount=link.delivered,
        adminStatus="enabled",
        operStatus="up",
    )


def _addresses(managed: ManagedBroker) -> Iterator[MakeEntry]:
    """Yield the addresses of `io.waypost.address`, and further addresses of links."""
    router = managed.router
    for entry in address_entries(router):
        yield partial(_of_address, entry)
    receivers: Counter[str] = Counter()
    for connection in managed.containers.connections.values():
        for link in connection.link_figures():
            if link.address is not None and not link.is_service:
                receivers[link.address] += link.is_sender
    for address, consumers in receivers.items():
        if address not in router.queues and address not in router.addresses.table.patterns:
            kind = router.addresses.type_of(address).value
            yield partial(_address, address, kind, consumers)


def _of_address(entry: MakeEntry) -> dict[str, Any]:
    known = entry()
    figures = {name: known[name] for name in ("messages", "unsettled")}
    return _address(known["name"], known["addressType"], known["consumers"], **figures)


def _address(name: str, kind: str, consumers: int, **known: int) -> dict[str, Any]:
    return _entry(
        _ADDRESS,
        "router.address",
        name=f"M0{name}",
        identity=f"M0{name}",
        key=f"M0{name}",
        distribution="multicast" if kind in _COPIED else "balanced",
        subscriberCount=consumers,
        inProcess=0,
        remoteCount=0,
        containerCount=0,
        deliveriesTransit=0,
        **known,
    )


def _router(managed: ManagedBroker) -> Iterator[MakeEntry]:
    yield partial(
        _entry,
        _ROUTER,
        "router",
        name=managed.container_id,
        identity=managed.container_id,
        id=managed.container_id,
        mode="standalone",
        connectionCount=len(managed.containers.connections),
    )


TYPES: Final[Mapping[str, EntityType]] = {
    f"{_PREFIX}connection": EntityType(_CONNECTION, _connections),
    f"{_PREFIX}router.link": EntityType(_LINK, _links),
    f"{_PREFIX}router.address": EntityType(_ADDRESS, _addresses),
    f"{_PREFIX}router": EntityType(_ROUTER, _router),
}
