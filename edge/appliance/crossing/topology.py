"""Topology of a router network, as one router knows it: JSON at ``/api/v1/topology``, read by `waypost topology`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from edge.appliance.console.status import NetworkStatus
from edge.broker.network.statements import ANYCAST, MULTICAST
from edge.broker.router.networking.network import RouterNetwork

ADDRESSES_SHOWN_MAX: Final = 100
"""Addresses of a router in one document; the counts are complete."""


class TopologyRouter(msgspec.Struct, frozen=True):
    """One router of the network."""

    name: str
    cost: int | None
    """Cost of the path to it; None: it cannot be reached now."""
    parent: str
    """Router before it on the path; its own name at the start, empty without a path."""
    anycast: int
    """Anycast addresses and filters with consumers there."""
    multicast: int
    """The same for multicast addresses."""
    addresses: list[str]
    """Some of these, in order: at most 100."""


class TopologyLink(msgspec.Struct, frozen=True):
    """Link between two routers that both state it."""

    ends: tuple[str, str]
    cost: int


class TopologyNeighbour(msgspec.Struct, frozen=True):
    """Connection of this router to a neighbour."""

    name: str
    cost: int
    sent: int
    """Messages to it since the connection opened, or the connector was configured."""
    received: int
    """Messages from it."""
    unanswered_bytes: int
    """Bytes of messages that it has not answered."""
    links: int
    """Links with messages to it: one for each address and router that they go to."""
    waiting_links: int
    """Addresses that wait for a link, because there are too many."""


class TopologyStatus(msgspec.Struct, frozen=True):
    """The network as one router knows it."""

    router: str
    """Name of this router; empty: it has had no neighbour."""
    routers: list[TopologyRouter]
    links: list[TopologyLink]
    neighbours: list[TopologyNeighbour]
    passed_through: int
    """Messages that were on their way from one neighbour to another since the start."""
    looped: int
    """Messages that were released because they had passed this router before, or too many routers."""
    unannounced: int
    """Addresses with consumers here that are beyond the limit of the router or of a user, so no other router knows of
    them."""
    outcomes: dict[str, int]
    """Answers of neighbours since the start: accepted, rejected, released, modified, and path_lost for messages without
    an answer."""
    dropped: int
    """Multicast messages dropped since the start because a neighbour was too slow."""
    name_taken: bool
    """True: another router of the network has this name."""


def topology_of(network: RouterNetwork | None) -> TopologyStatus:
    """Return the state of the network."""
    if network is None:
        return TopologyStatus("", [], [], [], 0, 0, 0, {}, 0, name_taken=False)
    protocol = network.protocol
    links = protocol.links
    neighbours = [
        TopologyNeighbour(
            each.peer_name,
            links[key].cost,
            each.traffic.sent,
            each.traffic.received,
            each.unanswered_bytes,
            each.attached_links,
            each.waiting_links,
        )
        for key, each in network.peerings.items()
        if key in links
    ]
    return TopologyStatus(
        network.name,
        sorted(_routers(network), key=lambda router: (router.cost is None, router.cost, router.name)),
        sorted(_links(network), key=lambda link: link.ends),
        sorted(neighbours, key=lambda neighbour: (neighbour.name, neighbour.cost)),
        network.transit.received,
        network.counts.looped,
        network.unannounced,
        network.traffic.outcomes,
        network.counts.dropped,
        name_taken=protocol.clashing,
    )


def network_status(network: RouterNetwork) -> NetworkStatus:
    """Return the figures of the network, for the status of the gateway."""
    counts, traffic, protocol = network.counts, network.traffic, network.protocol
    peerings = [network.peerings[key] for key in protocol.links if key in network.peerings]
    own = protocol.database.get(network.name)
    return {
        "router": network.name,
        "routers": {name: step.cost for name, step in protocol.paths.tree(network.name).items() if step.hops},
        "neighbours": len({each.peer_name for each in peerings}),
        "links": sum(each.attached_links for each in peerings),
        "waiting_links": sum(each.waiting_links for each in peerings),
        "sent": traffic.sent,
        "received": traffic.received,
        "outcomes": traffic.outcomes,
        "passed": network.transit.received,
        "looped": counts.looped,
        "dropped": counts.dropped,
        "announced": len(own.announced) if own is not None else 0,
        "unannounced": network.unannounced,
    }


def _routers(network: RouterNetwork) -> Iterator[TopologyRouter]:
    tree = network.protocol.paths.tree(network.name)
    for record in network.protocol.database:
        step = tree.get(record.router)
        anycast, multicast = (sum(name.startswith(kind) for name in record.announced) for kind in (ANYCAST, MULTICAST))
        shown = sorted(name[1:] for name in record.announced)[:ADDRESSES_SHOWN_MAX]
        cost, parent = (None, "") if step is None else (step.cost, step.parent)
        yield TopologyRouter(record.router, cost, parent, anycast, multicast, shown)


def _links(network: RouterNetwork) -> Iterator[TopologyLink]:
    stated = {record.router: record.neighbours for record in network.protocol.database}
    for router, neighbours in stated.items():
        for other, cost in neighbours.items():
            if router < other and router in stated.get(other, ()):
                yield TopologyLink((router, other), cost)
