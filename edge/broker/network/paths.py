"""Cheapest paths between routers, and the tree over which the messages of one router reach all others.

Every router computes the same trees from the same statements, because equal costs are decided by fewer hops, then by
name. So multicast messages need no agreement on who passes them on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple


class PathStep(NamedTuple):
    """Last step of the path to a router."""

    cost: int
    """Cost of the whole path."""
    hops: int
    parent: str
    """Router before it; the origin is its own."""


class PathTable:
    """Paths of one state of the network."""

    def __init__(self, links: Mapping[str, Mapping[str, int]]) -> None:
        """`links`: neighbours that each router states, with the cost of the link. A link counts if both ends state
        it."""
        self._links = {
            router: {other: cost for other, cost in stated.items() if router in links.get(other, ())}
            for router, stated in links.items()
        }
        self._trees: dict[str, dict[str, PathStep]] = {}

    def tree(self, origin: str) -> Mapping[str, PathStep]:
        """Return the last step of the path from `origin` to each router that it reaches, itself included."""
        found = self._trees.get(origin)
        if found is None:
            found = self._trees[origin] = self._grow(origin)
        return found

    def _grow(self, origin: str) -> dict[str, PathStep]:
        done: dict[str, PathStep] = {}
        heap = [(0, 0, origin, origin)]  # ordered by cost, hops, parent: the rule for equal paths
        while heap:
            cost, hops, parent, router = heappop(heap)
            if router in done:
                continue
            done[router] = PathStep(cost, hops, parent)
            for other, more in self._links.get(router, {}).items():
                if other not in done:
                    heappush(heap, (cost + more, hops + 1, router, other))
        return done

    def cost(self, origin: str, destination: str) -> int | None:
        """Return the cost of the path; None without one."""
        step = self.tree(origin).get(destination)
        return None if step is None else step.cost

    def next_hop(self, origin: str, destination: str) -> str | None:
        """Return the first router on the path from `origin`; None without a path, or for `origin` itself."""
        return self._child(self.tree(origin), origin, destination)

    def branches(self, origin: str, at: str, destinations: Iterable[str]) -> set[str]:
        """Return the routers to which `at` passes a message of `origin` on, so that each destination gets one copy."""
        tree = self.tree(origin)
        found = (self._child(tree, at, destination) for destination in destinations)
        return {child for child in found if child is not None}

    @staticmethod
    def _child(tree: Mapping[str, PathStep], at: str, destination: str) -> str | None:
        """Return the child of `at` on the path to a destination; None when the path does not lead over `at`."""
        step = tree.get(destination)
        while step is not None and step.parent != destination:
            if step.parent == at:
                return destination
            destination, step = step.parent, tree.get(step.parent)
        return None
