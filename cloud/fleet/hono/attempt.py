"""Attempts at one device: it is added if it may be missing, then its credentials if it never had some.

A step looks before it changes something, so it may be repeated after an error with an unknown outcome. What an operator
has removed or revoked at the hub stays so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container
from typing import Any, Final, NamedTuple

from cloud.fleet.device_store import DeviceStore
from cloud.fleet.hono.device_credentials import WantedDeviceCredentials, described
from cloud.fleet.hono.documents import WantedEntity
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

    def __init__(
        self, store: DeviceStore, wanted: WantedDevice, known: bytes | None, *, addable: bool, dry_run: bool
    ) -> None:
        """`known`: digest of its document at the hub, None if it is not there. `addable`: it may then be added."""
        self._store = store
        self._wanted = wanted
        self._known = known
        self._addable = addable
        self._dry_run = dry_run
        self._sent = False
        self._sent_credentials = False
        self._tag = ""
        """Tag of the credentials of the device that was just added."""

    def put(self) -> RegistryOutcome:
        """Add the device if it is missing and may be added."""
        if self._sent:
            self._known = self._look()
        if self._known is not None:
            return self._compared(RegistryOutcome.ADDED if self._sent else RegistryOutcome.UNCHANGED)
        if not self._addable:
            return RegistryOutcome.WITHHELD
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
        """Give the device its credentials if it never had some."""
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
                if not self._is_as_added(tag):
                    return RegistryOutcome.WITHHELD
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
            return _digest(self._store.get(self._wanted.name).document)
        except CommandError as why:
            if why.error != "not-found":
                raise
            return None

    def _is_as_added(self, tag: str) -> bool:
        """Return whether the device has the registration of the file, and neither it nor its credentials changed since
        it was added. `tag`: of its credentials. Raises CommandError."""
        found = self._store.get(self._wanted.name)
        return bool(tag) and found.tag == tag and _digest(found.document) == _digest(self._wanted.entity.stored)

    def _compared(self, same: RegistryOutcome) -> RegistryOutcome:
        return same if self._known == _digest(self._wanted.entity.stored) else RegistryOutcome.DIFFERS


def digests_of(store: DeviceStore, names: Container[str]) -> dict[str, bytes]:
    """Return the digests of those devices of a tenant that are at the hub. Raises CommandError."""
    return {each["id"]: _digest(each) for each in store.find([], None) if each["id"] in names}


def _digest(document: dict[str, Any]) -> bytes:
    """Return a digest of a registration, without what the hub adds."""
    kept = {name: value for name, value in document.items() if name not in ("id", "status")}
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).digest()
