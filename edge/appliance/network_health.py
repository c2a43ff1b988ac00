"""Problems of the router network at one gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edge.broker.limits import NETWORK_LINKS_MAX
from edge.health.problems import FoundProblem, Severity
from edge.output.amounts import counted, verb

if TYPE_CHECKING:
    from edge.broker.router.networking.network import RouterNetwork


def network_problems(network: RouterNetwork | None) -> Iterator[FoundProblem]:
    """Yield the limits that a router network has reached here."""
    if network is None:
        return
    if network.protocol.clashing:
        what = f"another gateway of the network is called {network.name} too: messages may go to the wrong one"
        yield FoundProblem("router network", what, "give each gateway a metadata.name of its own")
    for name, waiting in network.waiting_links.items():
        what = (
            f"all {NETWORK_LINKS_MAX:,} links to {name} are in use: {counted(waiting, 'address', 'addresses')} "
            f"{verb(waiting, 'waits', 'wait')} for a turn, so messages to other gateways are delayed"
        )
        step = "let clients use fewer anycast and multicast addresses, or spread them over several neighbours"
        yield FoundProblem(f"router network {name}", what, step, Severity.WARNING)
    if network.unannounced:
        what = (
            f"{counted(network.unannounced, 'address', 'addresses')} with consumers here "
            f"{verb(network.unannounced, 'is', 'are')} beyond the limit of the gateway or of a user: "
            "no other gateway sends to them"
        )
        step = "let consumers use filters in place of many addresses"
        yield FoundProblem("router network announcements", what, step, Severity.WARNING)
