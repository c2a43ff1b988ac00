"""Detection of message loops over a fleet: messages that return to a gateway through other gateways, this hub or a
peer.

Checked when configurations change. A hub knows the resources it decides about, not those of the gateways themselves. A
loop through those is ended at run time by the list of hops. Gateways with equal resources are treated as one: if two of
them form a loop, so do all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bridge.desired import DesiredError
from bridge.resources import schema
from bridge.resources.errors import ResourceOrigin
from bridge.resources.resource import Resource
from edge.configuration.kinds import KINDS
from edge.configuration.loops import ForwardingPath, forwarding_paths, rings
from edge.configuration.tenant_spaces import spaces_of

Documents = list[dict[str, Any]]


class FleetLoop(DesiredError):
    """The wanted configuration closes a loop; the message names it."""


def require_no_ring(wanted: Mapping[str, Documents], others: Mapping[str, Documents]) -> None:
    """Check that new configurations close no loop. Loops that existed before are ignored. Raises `FleetLoop`.

    `wanted`: the new resources by gateway; `others`: those of the other gateways.
    """
    mine = _distinct(wanted)
    found = [way for name, each in {**others, **mine}.items() for way in _paths(name, each)]
    changed = {way.gateway for name, each in mine.items() for way in _paths(name, each)}
    for ring in rings(found):
        if any(way.gateway in changed for way in ring):
            words = ", then ".join(f"{way.words} of gateway {way.gateway}" for way in ring)
            raise FleetLoop(f"messages would loop over the fleet: {words}; nothing was sent")


def _paths(gateway: str, documents: Iterable[dict[str, Any]]) -> Iterator[ForwardingPath]:
    """Yield the paths of the forwarders of all address spaces of a gateway."""
    for space in spaces_of(_resources(documents)):
        yield from forwarding_paths(space.resources, f"{gateway}, space {space.name}" if space.name else gateway)


def _distinct(documents: Mapping[str, Documents]) -> dict[str, Documents]:
    """Return one gateway for each distinct set of resources, the first by name."""
    found: dict[str, Documents] = {}
    for name in sorted(documents):
        if documents[name] not in found.values():
            found[name] = documents[name]
    return found


def _resources(documents: Iterable[dict[str, Any]]) -> list[Resource]:
    """Build the resources that this version can read; gateways ignore others too."""
    built = (schema.build(KINDS, each, ResourceOrigin("")) for each in documents)
    return [each for each in built if isinstance(each, Resource)]
