"""Offers in the stored entries of a hub's devices: decoded once for all devices that have the same ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from bridge.device_pages import OfferedUpdate

_OFFERS_MAX: Final = 1_024
"""Different lists of offers that are kept decoded: those of a campaign have a few, by the progress of its devices."""


class _OfferingEntry(msgspec.Struct, frozen=True):
    """Members of a `DeviceEntry` that count for offers."""

    offers: msgspec.Raw
    enabled: bool = True


def offers_in(entry: bytes) -> tuple[OfferedUpdate, ...]:
    """Return the offers in a stored entry; none for a device that is disabled, and for an entry that is damaged."""
    try:
        found = msgspec.json.decode(entry, type=_OfferingEntry)
        return _decoded(bytes(found.offers)) if found.enabled else ()
    except (msgspec.DecodeError, UnicodeError):
        return ()


@lru_cache(maxsize=_OFFERS_MAX)
def _decoded(offers: bytes) -> tuple[OfferedUpdate, ...]:
    return msgspec.json.decode(offers, type=tuple[OfferedUpdate, ...])
