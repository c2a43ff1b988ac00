"""Rings over a fleet: what a gateway forwards comes back to it by another one, over this hub or a peer of both.

Looked at when somebody wants gateways to be configured otherwise. A hub knows what it decides about its gateways, and
not what they have themselves; where a ring goes through that, the list of hops ends it when a message comes back.
Gateways with the same resources are one: if two of them make a ring, so do all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge.desired import DesiredError
from bridge.resources import schema
from bridge.resources.errors import ResourceOrigin
from bridge.resources.resource import Resource
from edge.configuration.kinds import KINDS
from edge.configuration.loops import rings, ways

Documents = list[dict[str, Any]]


class FleetLoop(DesiredError):
    """What is wanted closes a ring; the message names it."""


def require_no_ring(wanted: Mapping[str, Documents], others: Mapping[str, Documents]) -> None:
    """`wanted`: what gateways, by name, are to be configured with from now on; `others`: what is wanted of those that
    are as they were. A ring that was there before is let be. Raises `FleetLoop`."""
    mine = _distinct(wanted)
    found = [way for name, each in {**others, **mine}.items() for way in ways(_resources(each), name)]
    for ring in rings(found):
        if any(way.gateway in mine for way in ring):
            words = ", then ".join(f"{way.words} of gateway {way.gateway}" for way in ring)
            raise FleetLoop(f"messages would circle over the fleet: {words}; nothing was sent to anybody")


def _distinct(documents: Mapping[str, Documents]) -> dict[str, Documents]:
    """One gateway of those with the same resources, the first by name."""
    found: dict[str, Documents] = {}
    for name in sorted(documents):
        if documents[name] not in found.values():
            found[name] = documents[name]
    return found


def _resources(documents: Iterable[dict[str, Any]]) -> list[Resource]:
    """Those this program can read; what it cannot, no gateway takes from it."""
    built = (schema.build(KINDS, each, ResourceOrigin("")) for each in documents)
    return [each for each in built if isinstance(each, Resource)]
