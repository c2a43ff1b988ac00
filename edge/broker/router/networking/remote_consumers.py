"""Consumers at other routers of one anycast address: for messages published here, and for those that pass through."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from edge.broker.delivery import AnycastGroup
from edge.broker.limits import NETWORK_LINK_RETRY_S
from edge.broker.model.interfaces import Consumer
from edge.broker.router.networking.egress_link import EgressLink
from edge.broker.router.networking.ingress_link import IngressGroup
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
        self.egress: list[EgressLink] = []
        self._refused_until: dict[str, float] = {}
        """Time at which a link that a neighbour has ended is attached again, by destination."""

    def follow(self, paths: Mapping[str, NetworkPath], now_s: float) -> bool:
        """Have one link for each of these destinations. Return True if there are new ones."""
        former: list[EgressLink] = []
        for egress in list(self.egress):
            path = paths.get(egress.destination)
            if path is None or path.peering is not egress.peering:
                self.egress.remove(egress)
                former.append(egress)
            else:
                egress.cost = path.cost
        present = {egress.destination for egress in self.egress}
        made = False
        for destination, path in paths.items():
            if destination in present or self._refused_until.get(destination, 0.0) > now_s:
                continue
            self._refused_until.pop(destination, None)
            egress = EgressLink(
                path.peering, destination, path.cost, self.group, nearer=self._is_nearer_ready, ended=self._ended
            )
            self.egress.append(egress)
            self.group.join_remote(egress)
            made = True
        for egress in former:
            egress.retire()  # last: a group without consumers refuses what waits
        return made

    def retry_due(self, now_s: float) -> bool:
        """Return True when a link should be attached again."""
        return any(at <= now_s for at in self._refused_until.values())

    def _is_nearer_ready(self, egress: EgressLink, but: Collection[Consumer]) -> bool:
        """Return True while consumers with a cheaper path than this link have credit. Those of `but` do not count."""
        if any(consumer.credit > 0 for consumer in self.group.consumers if consumer not in but):
            return True
        return any(other.cost < egress.cost and other not in but and other.own_credit > 0 for other in self.egress)

    def _ended(self, egress: EgressLink) -> None:
        if egress in self.egress:
            self.egress.remove(egress)
        self._refused_until[egress.destination] = egress.peering.now_s() + NETWORK_LINK_RETRY_S


class TransitAddress:
    """Messages of one anycast address that pass this router on their way to another one."""

    def __init__(self, destination: str, ingress: IngressGroup) -> None:
        self.destination = destination
        self.ingress = ingress
        self.remote = RemoteConsumers(ingress.group)

    @property
    def in_use(self) -> bool:
        """True while a neighbour has a link for it, or messages are unanswered."""
        return bool(self.ingress.links) or any(egress.unsettled for egress in self.remote.egress)
