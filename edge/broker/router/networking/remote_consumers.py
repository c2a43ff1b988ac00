"""Consumers at other routers of one anycast address: for messages published here, and for those that pass through."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from edge.broker.delivery import AnycastGroup
from edge.broker.limits import NETWORK_LINK_RETRY_S
from edge.broker.model.interfaces import Consumer
from edge.broker.router.networking.incoming_lane import ArrivalGroup
from edge.broker.router.networking.outgoing_lane import OutgoingLane
from edge.broker.router.networking.peering import Peering


class NetworkPath(NamedTuple):
    """Present path to a router."""

    peering: Peering
    """Connection to the first router on it."""
    cost: int


class RemoteConsumers:
    """Links of one group to the routers with consumers. Consumers with a cheaper path come first, those of this router
    before all others; the next ones get messages while they have no credit."""

    def __init__(self, group: AnycastGroup) -> None:
        self.group = group
        self.lanes: list[OutgoingLane] = []
        self._refused_until: dict[str, float] = {}
        """Time at which a link that a neighbour has ended is attached again, by destination."""

    def follow(self, paths: Mapping[str, NetworkPath], now_s: float) -> bool:
        """Have one link for each of these destinations. Return True if there are new ones."""
        former: list[OutgoingLane] = []
        for lane in list(self.lanes):
            path = paths.get(lane.destination)
            if path is None or path.peering is not lane.peering:
                self.lanes.remove(lane)
                former.append(lane)
            else:
                lane.cost = path.cost
        present = {lane.destination for lane in self.lanes}
        made = False
        for destination, path in paths.items():
            if destination in present or self._refused_until.get(destination, 0.0) > now_s:
                continue
            self._refused_until.pop(destination, None)
            lane = OutgoingLane(
                path.peering, destination, path.cost, self.group, nearer=self._is_nearer_ready, ended=self._ended
            )
            self.lanes.append(lane)
            self.group.join_remote(lane)
            made = True
        for lane in former:
            lane.retire()  # last: a group without consumers refuses what waits
        return made

    def retry_due(self, now_s: float) -> bool:
        """Return True when a link should be attached again."""
        return any(at <= now_s for at in self._refused_until.values())

    def _is_nearer_ready(self, lane: OutgoingLane, but: Collection[Consumer]) -> bool:
        """Return True while consumers with a cheaper path than this link have credit. Those of `but` do not count."""
        if any(consumer.credit > 0 for consumer in self.group.consumers if consumer not in but):
            return True
        return any(other.cost < lane.cost and other not in but and other.own_credit > 0 for other in self.lanes)

    def _ended(self, lane: OutgoingLane) -> None:
        if lane in self.lanes:
            self.lanes.remove(lane)
        self._refused_until[lane.destination] = lane.peering.now_s() + NETWORK_LINK_RETRY_S


class TransitAddress:
    """Messages of one anycast address that pass this router on their way to another one."""

    def __init__(self, destination: str, arrivals: ArrivalGroup) -> None:
        self.destination = destination
        self.arrivals = arrivals
        self.remote = RemoteConsumers(arrivals.group)

    @property
    def in_use(self) -> bool:
        """True while a neighbour has a link for it, or messages are unanswered."""
        return bool(self.arrivals.links) or any(lane.unsettled for lane in self.remote.lanes)
