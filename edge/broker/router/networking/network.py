"""This router's part in a network of routers: connections to neighbours, paths, and who gets a direct message.

`edge.broker.network` decides what routers know of each other; this module connects it with the router: consumers of
direct addresses are announced, and consumers at other routers join the groups of these addresses here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from itertools import count

from bridge.connectors.limits import ROUTER_HELLO_S
from bridge.engine import Condition, Engine, Link
from bridge.message import Run
from bridge.sections import plain_data
from edge.broker.delivery import AnycastGroup
from edge.broker.delivery.anycast import HeldMessages
from edge.broker.delivery.batches import offer_of
from edge.broker.limits import NETWORK_ANNOUNCE_S, NETWORK_LINK_IDLE_S, NETWORK_LINK_TURN_S, NETWORK_LINKS_MAX
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import MessageCounts, Origin
from edge.broker.model.topics import is_filter
from edge.broker.network.protocol import LinkFault, NetworkProtocol
from edge.broker.network.statements import ANYCAST, MULTICAST, Hello, StatementError, decode_document, encode_document
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.live_subscriptions import LiveSink
from edge.broker.router.networking.announced_addresses import AnnouncedAddresses
from edge.broker.router.networking.announcements import LocalConsumers
from edge.broker.router.networking.capability import DESTINATION, KIND
from edge.broker.router.networking.hops import hops_of
from edge.broker.router.networking.ingress_link import AnycastIngress, IngressGroup, IngressLink, MulticastIngress
from edge.broker.router.networking.multicast_branch import MulticastBranch
from edge.broker.router.networking.neighbour_traffic import NeighbourTraffic, NetworkCounts
from edge.broker.router.networking.peering import Peering
from edge.broker.router.networking.remote_consumers import NetworkPath, RemoteConsumers, TransitAddress
from edge.broker.router.networking.router_parts import NetworkHost

log = logging.getLogger(__name__)


class RouterNetwork:
    """The network as one router sees it. `edge.broker.router.router.Router` makes it for the first neighbour."""

    def __init__(self, name: str, router: NetworkHost, watchers: CreditWatchers) -> None:
        """`name` of this router is unique in its network. `watchers` wait for credit of addresses."""
        self.name = name
        self.tracer = router.tracer
        self._of_connectors: dict[int, NeighbourTraffic] = {}
        """Counts that continue with the next connection of a connector, by identity."""
        self._of_ended = NeighbourTraffic()
        """Counts of ended connections that neighbours had dialed."""
        self.counts = NetworkCounts()
        self.transit = MessageCounts()
        """Counts of messages that pass through."""
        self.protocol = NetworkProtocol(name, router.now_ns() // 1_000_000)
        self.peerings: dict[int, Peering] = {}
        """Connections to neighbours by key, also to those that have not greeted yet."""
        self._router = router
        self._watchers = watchers
        self._keys = count(1)
        self._announced = AnnouncedAddresses(name)
        self._local = LocalConsumers(router.subscriptions, router.addresses)
        self._remote: dict[str, RemoteConsumers] = {}
        self._local_ingress: dict[str, IngressGroup] = {}
        self._transit: dict[tuple[str, str], TransitAddress] = {}
        self._branches: dict[tuple[str, str], MulticastBranch] = {}
        """Links for multicast messages, by neighbour and address."""
        self.leaving = False
        """True during an orderly stop: neighbours get no further credit."""
        self._short_of_branches = False
        """True when a multicast name has no branch because there are too many."""
        self._held = HeldMessages()
        router.tick_listeners.add(self.tick)
        router.address_listeners.add(self._readdressed)
        router.subscriptions.direct_listeners.add(self._consumers_changed)
        self._announced_s = -NETWORK_ANNOUNCE_S
        """Time at which the consumers here were compared with what is announced."""
        self.protocol.announce(*self._local.take_changes())

    # --- for connections ----------------------------------------------------------------------------------------

    def open(
        self,
        engine: Engine,
        wake: Callable[[], None],
        disconnect: Callable[[str], None],
        *,
        greeted: Callable[[], None] = lambda: None,
        cost: int | None = None,
        interval_s: float = ROUTER_HELLO_S,
        traffic: NeighbourTraffic | None = None,
    ) -> Peering:
        """Begin a connection to a neighbour; the arguments are those of `Peering`. `cost` and `interval_s` are set by
        the end that has dialed. `traffic`: counts of former connections, to continue."""
        key = next(self._keys)
        if traffic is not None:
            self._of_connectors[id(traffic)] = traffic
        peering = self.peerings[key] = Peering(
            self, key, engine, wake, disconnect, greeted, traffic or NeighbourTraffic()
        )
        peering.begin()
        self.protocol.connected(key, self.now_s(), cost, interval_s)
        self._flush()
        return peering

    def ended(self, peering: Peering) -> None:
        """Process the end of a connection. Idempotent."""
        if self.peerings.pop(peering.key, None) is None:
            return
        if peering.peer_name:
            log.warning("router network: the link to %s has ended", peering.peer_name)
        peering.stop()
        self.protocol.lost(peering.key)
        self._branches = {key: each for key, each in self._branches.items() if each.peering is not peering}
        self._flush()  # other paths first: what waits would be refused without a consumer
        peering.close()
        if id(peering.traffic) not in self._of_connectors:
            self._of_ended.add(peering.traffic)
        self._flush()

    @property
    def traffic(self) -> NeighbourTraffic:
        """Messages to and from all neighbours since the start."""
        found = {id(each.traffic): each.traffic for each in self.peerings.values()} | self._of_connectors
        total = NeighbourTraffic()
        for each in (self._of_ended, *found.values()):
            total.add(each)
        return total

    def leave(self) -> None:
        """Prepare an orderly stop: grant neighbours no credit, and let all routers find other paths. Messages on their
        way are still answered; see `has_left`."""
        self.leaving = True
        self.protocol.leave()
        self._flush()

    @property
    def has_left(self) -> bool:
        """True when all messages on their way through this router are answered, after `leave`: this end and the
        neighbours have detached all links with messages."""
        return not any(peering.egress or peering.ingress for peering in self.peerings.values())

    def now_s(self) -> float:
        """Return monotonic seconds."""
        return self._router.now_s()

    def now_ns(self) -> int:
        """Return UTC nanoseconds."""
        return self._router.now_ns()

    def stamp(self) -> tuple[int, int]:
        """Return the time of reception of a run that arrives now, and its flags for the clock."""
        return self._router.stamp()

    def document_received(self, peering: Peering, encoded: bytes) -> None:
        """Process a document of a neighbour."""
        try:
            document = decode_document(plain_data(encoded) or b"")
        except StatementError as error:
            self._fault(peering, f"the neighbour sent an invalid document: {error}")
            return
        self.protocol.received(peering.key, document, self.now_s())
        if isinstance(document, Hello) and peering.key in self.protocol.links and not peering.peer_name:
            log.info("router network: linked to %s", document.router)
            peering.greeted_by(document.router)
        self._flush()

    def make_ingress(self, peering: Peering, link: Link) -> IngressLink | Condition:
        """Return the owner of a link that a neighbour attaches, or the condition with which it is refused."""
        address, kind = link.target.address, link.properties.get(KIND)
        if not peering.peer_name or not address or is_filter(address):
            return Condition("amqp:not-allowed", "a link between routers needs a greeting before, and an address")
        if kind == MULTICAST:
            return MulticastIngress(peering, link, address, self)
        destination = link.properties.get(DESTINATION)
        if kind != ANYCAST or not isinstance(destination, str):
            return Condition("amqp:invalid-field", f"no link between routers has the properties {link.properties}")
        if destination != self.name:
            return AnycastIngress(peering, link, address, self._transit_to(str(destination), address).ingress)
        if self._router.addresses.type_of(address) is not AddressType.ANYCAST:
            return Condition("amqp:not-allowed", f"{address!r} is no anycast address at {self.name}")
        return AnycastIngress(peering, link, address, self._ingress_at(address))

    def multicast(self, origin: Origin, run: Run) -> None:
        """Deliver messages of a neighbour to consumers here, and pass them on to the neighbours behind."""
        hops, router = hops_of(run), self._router
        router.figures.received += len(run.bodies)
        offer = offer_of(run, origin)
        if router.addresses.type_of(run.address) is AddressType.MULTICAST:
            for sink in router.subscriptions.live.sinks(run.address):
                sink.offer(offer)
        for branch in self._branches_of(hops[0], run.address):
            if branch.peering.peer_name not in hops:
                branch.offer(offer)

    # --- for the router -----------------------------------------------------------------------------------------

    def group_made(self, group: AnycastGroup) -> None:
        """Let consumers at other routers join a new group."""
        remote = self._remote[group.pattern] = RemoteConsumers(group)
        self._follow_paths(remote, self._paths_to(ANYCAST, group.pattern))

    def group_forgotten(self, address: str) -> None:
        """Forget a group without consumers here, without messages and without links of neighbours."""
        remote = self._remote.pop(address, None)
        if remote is not None:
            remote.follow({}, self.now_s())

    def reaches(self, kind: str, address: str) -> bool:
        """Return True when another router with consumers of an address can be reached."""
        routers = self._announced.routers(kind, address)
        return bool(routers) and any(each in self.protocol.paths.tree(self.name) for each in routers)

    @property
    def waiting_links(self) -> dict[str, int]:
        """Number of addresses that wait for a link, by neighbour; empty while all have one."""
        return {each.peer_name: each.waiting_links for each in self.peerings.values() if each.waiting_links}

    @property
    def unannounced(self) -> int:
        """Number of addresses with consumers here that are not announced."""
        return self._local.unannounced

    def sinks(self, address: str) -> list[LiveSink]:
        """Return the neighbours to which multicast messages that are published here go."""
        return list(self._branches_of(self.name, address))

    def tick(self) -> None:
        """Greet neighbours, and find silent ones. Called in each housekeeping."""
        now_s = self.now_s()
        for peering in self.peerings.values():
            self.protocol.heard(peering.key, peering.heard_s)
        self.protocol.tick(now_s)
        self._announce()
        for peering in list(self.peerings.values()):
            peering.tick(now_s)
        self._forget_branches(now_s)
        for address, remote in list(self._remote.items()):
            if remote.retry_due(now_s):
                self._follow_paths(remote, self._paths_to(ANYCAST, address))
        for address, ingress in list(self._local_ingress.items()):
            if not ingress.links:
                del self._local_ingress[address]
                self._router.subscriptions.competing.anycast_group(address).end_ingress()
        for key, transit in list(self._transit.items()):
            if not transit.in_use:
                del self._transit[key]
                transit.remote.follow({}, now_s)
            elif transit.remote.retry_due(now_s):
                self._follow_transit(transit)
        self._flush()

    # --- inside: what has changed ---------------------------------------------------------------------------------

    def _readdressed(self) -> None:
        self._local.note_all()
        if self._announce():
            self._flush()

    def _consumers_changed(self, pattern: str) -> None:
        self._local.note(pattern)
        if self._announce():
            self._flush()

    def _announce(self) -> bool:
        """Announce changes, unless the last ones were announced just now: then `tick` does. Return True if it did."""
        now_s = self.now_s()
        if not self._local.changed or now_s < self._announced_s + NETWORK_ANNOUNCE_S:
            return False
        self._announced_s = now_s
        added, removed = self._local.take_changes()
        self.protocol.announce(added, removed)
        return bool(added or removed)

    def _flush(self) -> None:
        """Follow what has changed, send documents, and close links with a fault."""
        links, changed = self.protocol.follow()
        if changed:
            self._announced.update(changed, self.protocol.database)
        output, faults = self.protocol.take()
        encoded: dict[int, bytes] = {}
        for key, document in output:
            peering = self.peerings.get(key)
            if peering is not None:
                if id(document) not in encoded:
                    encoded[id(document)] = encode_document(document)
                peering.send(encoded[id(document)])
        if links or changed:
            self._follow(None if links else changed)
        for key, fault in faults:
            self._close_faulty(key, fault)

    def _close_faulty(self, key: int, fault: LinkFault) -> None:
        peering = self.peerings.get(key)
        if peering is not None:
            self._fault(peering, fault.value)

    def _fault(self, peering: Peering, reason: str) -> None:
        """Close a connection. It is over for the network at once, whether or not the peer answers."""
        peering.disconnect(reason)
        self.ended(peering)

    def _follow(self, changed: Collection[str] | None) -> None:
        """Follow changed announcements; None: paths have changed, so everything may have."""
        for address in self._affected(changed):
            remote = self._remote.get(address)
            if remote is not None:
                self._follow_paths(remote, self._paths_to(ANYCAST, address))
        if changed is None:
            for transit in list(self._transit.values()):
                self._follow_transit(transit)
            self._credit_changed("#")
        if changed is None or any(name.startswith(MULTICAST) for name in changed):
            self._drop_branches()
            self._router.forget_routes()
        for name in changed or ():
            self._credit_changed(name[1:])

    def _credit_changed(self, pattern: str) -> None:
        self._watchers.changed(pattern)
        self._watchers.consumers_left(pattern)

    def _follow_paths(self, remote: RemoteConsumers, paths: Mapping[str, NetworkPath]) -> None:
        """Give waiting messages and senders to new links: the first look at the credit of a link attaches it."""
        if remote.follow(paths, self.now_s()):
            remote.group.pump()

    def _follow_transit(self, transit: TransitAddress) -> None:
        self._follow_paths(transit.remote, self._path_to(transit.destination))
        transit.ingress.credit_changed()

    def _affected(self, changed: Collection[str] | None) -> list[str]:
        """Return the addresses with groups here that announcements concern."""
        if changed is None or any(is_filter(name) for name in changed if name.startswith(ANYCAST)):
            return list(self._remote)
        return [name[1:] for name in changed if name.startswith(ANYCAST) and name[1:] in self._remote]

    def _drop_branches(self) -> None:
        """End the links for multicast messages that no path uses any more."""
        for (neighbour, address), branch in list(self._branches.items()):
            used = any(neighbour in self._children(origin, address) for origin in self.protocol.paths.tree(self.name))
            if not used or self.protocol.link_to(neighbour) != branch.peering.key:
                del self._branches[neighbour, address]
                branch.retire()

    def _forget_branches(self, now_s: float) -> None:
        """Forget branches that are unused, with the routes that lead there: clients may publish to ever new names."""
        unused = [key for key, branch in self._branches.items() if branch.is_unused(now_s, NETWORK_LINK_IDLE_S)]
        if self._short_of_branches and not unused:
            used = sorted(self._branches, key=lambda key: self._branches[key].used_s)[: NETWORK_LINKS_MAX // 10]
            unused = [key for key in used if self._branches[key].is_unused(now_s, NETWORK_LINK_TURN_S)]
        self._short_of_branches = self._short_of_branches and not unused
        for key in unused:
            self._branches.pop(key).retire()
        if unused:
            self._router.forget_routes()

    # --- inside: paths --------------------------------------------------------------------------------------------

    def _path_to(self, destination: str) -> Mapping[str, NetworkPath]:
        """Return the path to a router, by its name; empty without one."""
        paths = self.protocol.paths
        hop, cost = paths.next_hop(self.name, destination), paths.cost(self.name, destination)
        key = self.protocol.link_to(hop) if hop is not None else None
        peering = self.peerings.get(key) if key is not None else None
        if peering is None or cost is None:
            return {}
        return {destination: NetworkPath(peering, cost)}

    def _paths_to(self, kind: str, address: str) -> Mapping[str, NetworkPath]:
        """Return the paths to all routers with consumers of an address."""
        found: dict[str, NetworkPath] = {}
        for destination in self._announced.routers(kind, address):
            found.update(self._path_to(destination))
        return found

    def _children(self, origin: str, address: str) -> set[str]:
        routers = self._announced.routers(MULTICAST, address)
        return self.protocol.paths.branches(origin, self.name, routers) if routers else set()

    def _branches_of(self, origin: str, address: str) -> list[MulticastBranch]:
        """Return the links over which a multicast message of `origin` goes on."""
        found: list[MulticastBranch] = []
        for neighbour in sorted(self._children(origin, address)):
            branch = self._branches.get((neighbour, address))
            if branch is None:
                key = self.protocol.link_to(neighbour)
                peering = self.peerings.get(key) if key is not None else None
                if peering is None:
                    continue
                if len(self._branches) >= NETWORK_LINKS_MAX * len(self.peerings):
                    self._short_of_branches = True  # `tick` forgets those that are unused for longest
                    continue
                branch = self._branches[neighbour, address] = MulticastBranch(peering, address, self._router.pool)
            found.append(branch)
        return found

    # --- inside: ingress -----------------------------------------------------------------------------------------

    def _ingress_at(self, address: str) -> IngressGroup:
        """Return the consumers of this router for an address."""
        group = self._router.subscriptions.competing.anycast_group(address)
        ingress = self._local_ingress.get(address)
        if ingress is None:
            ingress = self._local_ingress[address] = IngressGroup(self._router.figures, group.split_ingress)
        return ingress

    def _transit_to(self, destination: str, address: str) -> TransitAddress:
        transit = self._transit.get((destination, address))
        if transit is None:
            ingress = IngressGroup(
                self.transit, lambda changed: AnycastGroup(address, self.transit, changed, self.now_s, self._held)
            )
            transit = TransitAddress(destination, ingress)
            self._transit[destination, address] = transit
            self._follow_transit(transit)
        return transit
