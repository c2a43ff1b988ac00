"""Subjects of certificates in the stored entries of a hub's devices: the device of each, by tenant."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.device_pages import DeviceSubject

_SUBJECTS: Final = b'"subjects":'
"""Member of the entries of devices with subjects; others are not decoded to look."""


class _CertifiedEntry(msgspec.Struct, frozen=True):
    """Members of a `DeviceEntry` that count for certificates."""

    subjects: tuple[DeviceSubject, ...] = ()


class DeviceSubjects:
    """Devices by the identifiers in their certificates."""

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, str]] = {}

    def replace(self, tenant: str, device: str, before: bytes, entry: bytes) -> None:
        """Replace the entry of a device by another one; an empty entry has no subjects."""
        if _SUBJECTS not in before and _SUBJECTS not in entry:
            return
        known = self._devices.setdefault(tenant, {})
        for each in subjects_in(before):
            if known.get(each.auth_id) == device:  # another device may have it already
                del known[each.auth_id]
        known.update(dict.fromkeys((each.auth_id for each in subjects_in(entry)), device))

    def find(self, tenant: str, auth_id: str) -> str | None:
        """Return the device with an identifier; None if it is unknown."""
        return self._devices.get(tenant, {}).get(auth_id)


def subjects_in(entry: bytes) -> tuple[DeviceSubject, ...]:
    """Return the subjects in a stored entry; none for one that is damaged."""
    if _SUBJECTS not in entry:
        return ()
    try:
        return msgspec.json.decode(entry, type=_CertifiedEntry).subjects
    except (msgspec.DecodeError, UnicodeError):
        return ()
