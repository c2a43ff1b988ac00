"""Offers of a hub's campaigns: artefacts that the gateway holds for devices in addition to its configuration.

They come with the devices of the hub's registry and are stored with them, so they last for weeks without the hub. The
`Artefacts` resource stays in force: it names the trusted keys, and an artefact that both name keeps its boards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from bridge.device_pages import OfferedUpdate
from edge.configuration.resources import ARTEFACTS_MAX, ArtefactPart, ArtefactsSpec

Key = tuple[str, str]
"""Name and version."""


class OfferedSpec(NamedTuple):
    """Configuration with the offers of the hub."""

    spec: ArtefactsSpec
    """The configured artefacts, then offered ones without their devices."""
    offers: Mapping[Key, Mapping[str, OfferedUpdate]]
    """Offers by artefact and device."""
    left: int
    """Artefacts beyond `ARTEFACTS_MAX`, which are not held."""


def with_offers(configured: ArtefactsSpec, offers: Iterable[tuple[str, OfferedUpdate]]) -> OfferedSpec:
    """Return a configuration with offers to devices, by device. The configured artefacts come first, then those that
    devices are still to take, and of these the ones of the newest campaign."""
    found: dict[Key, dict[str, OfferedUpdate]] = {}
    for device, offer in offers:
        found.setdefault((offer.artefact, offer.version), {})[device] = offer
    own = {each.key for each in configured.artefacts}
    added = sorted((_order(key, each.values()) for key, each in found.items() if key not in own))
    room = max(0, ARTEFACTS_MAX - len(own))
    parts = [ArtefactPart(name=name, version=version) for _, _, name, version in added[:room]]
    spec = msgspec.structs.replace(configured, artefacts=(*configured.artefacts, *parts))
    return OfferedSpec(spec, found, len(added) - len(parts))


def _order(key: Key, offers: Iterable[OfferedUpdate]) -> tuple[bool, int, str, str]:
    """Return the place of an offered artefact among others."""
    pending, begun_at = False, 0
    for each in offers:
        pending, begun_at = pending or not each.done, max(begun_at, each.begun_at)
    return not pending, -begun_at, *key
