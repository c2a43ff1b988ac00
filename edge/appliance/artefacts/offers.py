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
    offered: Mapping[Key, frozenset[str]]
    """Devices by the artefact that the hub offers them."""
    withheld: Mapping[Key, frozenset[str]]
    """Devices that may report about an artefact, and not fetch it now."""
    left: int
    """Artefacts beyond `ARTEFACTS_MAX`, which are not held."""


def with_offers(configured: ArtefactsSpec, offers: Iterable[tuple[str, OfferedUpdate]]) -> OfferedSpec:
    """Return a configuration with offers to devices, by device. The configured artefacts come first."""
    offered: dict[Key, set[str]] = {}
    withheld: dict[Key, set[str]] = {}
    for device, offer in offers:
        key = offer.artefact, offer.version
        (withheld if offer.withheld else offered).setdefault(key, set()).add(device)
    parts = {each.key: each for each in configured.artefacts}
    for key in sorted(offered.keys() | withheld.keys()):
        devices = tuple(sorted(offered.get(key, set()) | withheld.get(key, set())))
        known = parts.get(key)
        if known is None:
            parts[key] = ArtefactPart(name=key[0], version=key[1], devices=devices)
        elif known.devices:
            parts[key] = msgspec.structs.replace(known, devices=(*known.devices, *devices))
    own = {each.key: each for each in configured.artefacts}
    held_back = {
        key: {each for each in devices if key not in own or not own[key].names(each)}
        for key, devices in withheld.items()
    }
    kept = list(parts.values())[:ARTEFACTS_MAX]
    return OfferedSpec(
        msgspec.structs.replace(configured, artefacts=tuple(kept)),
        {key: frozenset(devices) for key, devices in offered.items()},
        {key: frozenset(devices) for key, devices in held_back.items() if devices},
        len(parts) - len(kept),
    )
