"""Attempts at one device: it is added if it is missing, then its credentials if it has none.

A step looks before it changes something, so it may be repeated after an error with an unknown outcome.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container
from typing import Any, Final, NamedTuple

from cloud.fleet.device_store import DeviceStore
from cloud.fleet.hono.documents import WantedDeviceCredentials, WantedEntity, described
from cloud.fleet.hono.report import RegistryOutcome
from edge.output.errors import CommandError

_DIGEST_BYTES: Final = 16
_CHANGES_MAX: Final = 3
"""Times that others may change the credentials of a device while they are set."""


class WantedDevice(NamedTuple):
    """Device to import, with its credentials."""

    name: str
    entity: WantedEntity
    credentials: WantedDeviceCredentials | None


class DeviceAttempt:
    """Steps for one device. Methods raise CommandError, and may then be called again."""

    def __init__(self, store: DeviceStore, wanted: WantedDevice, known: bytes | None, *, dry_run: bool) -> None:
        """`known`: digest of its document at the hub, None if it is not there."""
        self._store = store
        self._wanted = wanted
        self._known = known
        self._dry_run = dry_run
        self._sent = False
        self._sent_credentials = False
        self._tag = ""
        """Tag of the credentials of the device that was just added."""

    def put(self) -> RegistryOutcome:
        """Add the device if it is missing."""
        if self._sent:
            self._known = self._look()
        if self._known is not None:
            return self._compared(RegistryOutcome.ADDED if self._sent else RegistryOutcome.UNCHANGED)
        if self._dry_run:
            return RegistryOutcome.ADDED
        self._sent = True
        try:
            self._tag = self._store.add(self._wanted.name, self._wanted.entity.body)
        except CommandError as why:
            if why.error != "conflict":
                raise
            self._known = self._look()  # another user has added it
            if self._known is None:
                raise
            return self._compared(RegistryOutcome.UNCHANGED)
        return RegistryOutcome.ADDED

    def put_credentials(self, wanted: WantedDeviceCredentials) -> RegistryOutcome:
        """Give the device its credentials if it has none."""
        if self._dry_run and self._known is None:
            return RegistryOutcome.ADDED
        for _ in range(_CHANGES_MAX):
            tag, self._tag = self._tag, ""
            if not tag:
                found = self._store.credentials(self._wanted.name)
                shown, tag = described(found.credentials), found.tag
                if shown == wanted.stored:
                    return RegistryOutcome.ADDED if self._sent_credentials else RegistryOutcome.UNCHANGED
                if shown:
                    return RegistryOutcome.DIFFERS
            if self._dry_run:
                return RegistryOutcome.ADDED
            self._sent_credentials = True
            try:
                self._store.set_credentials(self._wanted.name, wanted.body, tag)
            except CommandError as why:
                if why.error != "changed-meanwhile":
                    raise
                self._sent_credentials = False
                continue
            return RegistryOutcome.ADDED
        raise CommandError("others change these credentials all the time", "try again", error="changed-meanwhile")

    def _look(self) -> bytes | None:
        """Return the digest of the device at the hub; None without one."""
        try:
            return _digest(self._store.get(self._wanted.name))
        except CommandError as why:
            if why.error != "not-found":
                raise
            return None

    def _compared(self, same: RegistryOutcome) -> RegistryOutcome:
        return same if self._known == _digest(self._wanted.entity.stored) else RegistryOutcome.DIFFERS


def digests_of(store: DeviceStore, names: Container[str]) -> dict[str, bytes]:
    """Return the digests of those devices of a tenant that are at the hub. Raises CommandError."""
    return {each["id"]: _digest(each) for each in store.find([], None) if each["id"] in names}


def _digest(document: dict[str, Any]) -> bytes:
    """Return a digest of a registration, without what the hub adds."""
    kept = {name: value for name, value in document.items() if name not in ("id", "status")}
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).digest()
