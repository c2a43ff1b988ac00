"""Devices that a hub has given to this gateway, for the authenticator: found by user name or by identity.

All entries are held in memory as they are stored, some 0.8 KiB each, and decoded when their device connects: a lookup
never waits for the card. The identity of a device, which its rights and messages name, is its id. That of a device of
another tenant than the gateway's own, or of the tenant of the Hono API, is ``id@tenant``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bridge.device_pages import ARGON2ID, HASH_FUNCTIONS, DeviceAccount, DeviceEntry, DevicePage, DeviceSecretHash
from bridge.sasl.scram import ITERATIONS, SALT_BYTES, ScramKeys
from edge.broker.model.authorization import AccessRule
from edge.broker.security.credentials import CredentialSecret, CredentialsError, CredentialUser
from edge.broker.security.hub_device_file import FILE, AppliedPage, HubDeviceFile, decode_entry
from edge.broker.security.limits import HUB_DEVICES_BYTES_MAX, HUB_DEVICES_MAX
from edge.broker.security.password_hashes import salted_hash

BY_HUB: Final = "hub"
"""Origin of users that are devices of a hub."""


class HubDevicesFull(Exception):
    """The gateway cannot hold the devices of a page."""


class DeviceNames(NamedTuple):
    """Devices that have changed."""

    identities: set[str]
    users: set[str]
    """Names that they log in with."""


class _Held(NamedTuple):
    devices: int
    bytes: int


class HubDevices:
    """Devices in memory, and their file. `apply` may run in a thread; everything else on the loop's thread."""

    def __init__(self, data: Path, rules: Iterable[AccessRule], hono_tenant: str | None = None) -> None:
        """`rules` of every device; `hono_tenant`: tenant of the Hono API. Raises CredentialsError."""
        self._rules = tuple(rules)
        self._hono_tenant = hono_tenant
        self._data = data
        self._file = HubDeviceFile.open(data) if (data / FILE).exists() else None
        """None before the first page."""
        self._entries: dict[str, dict[str, bytes]] = {}
        self._logins: dict[str, dict[str, str]] = {}
        self.cursor = ""
        """Cursor behind the last page."""
        self._owner = ""
        self._enabled: dict[str, bool] = {}
        if self._file is not None:
            try:
                self._load(self._file)
            except CredentialsError:
                self._file.close()
                raise
        self._held = _Held(
            sum(map(len, self._entries.values())),
            sum(len(entry) for entries in self._entries.values() for entry in entries.values()),
        )

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()

    @property
    def count(self) -> int:
        """Number of devices."""
        return self._held.devices

    # --- lookups ------------------------------------------------------------------------------------------------

    def login(self, username: str) -> CredentialUser | None:
        """Return the user of ``auth-id@tenant``, or of ``auth-id`` in the gateway's own tenant, with the passwords of
        this name; None if there is none, or it is disabled."""
        tenant, auth_id = self._split(username)
        device = self._logins.get(tenant, {}).get(auth_id)
        entry = self._find(tenant, device) if device is not None else None
        if entry is None:
            return None
        found = next((each for each in entry.logins if each.auth_id == auth_id), None)
        return None if found is None else self._user(tenant, entry.device, [found])

    def user(self, identity: str) -> CredentialUser | None:
        """Return the user with an identity, with all its passwords; None if there is none, or it is disabled."""
        tenant, device = self._split(identity)
        entry = self._find(tenant, device)
        if entry is None or self.identity_of(tenant, device) != identity:
            return None
        return self._user(tenant, device, entry.logins)

    def identity_of(self, tenant: str, device: str) -> str:
        """Return the identity of a device."""
        return device if tenant == self._owner and tenant != self._hono_tenant else f"{device}@{tenant}"

    # --- changes ------------------------------------------------------------------------------------------------

    def check_room(self, page: DevicePage) -> None:
        """Raise `HubDevicesFull` if a page has more than fits."""
        held = self._room_after(page)
        if held.devices > HUB_DEVICES_MAX:
            raise HubDevicesFull(f"a gateway has {HUB_DEVICES_MAX} devices of a hub at most: give it fewer")
        if held.bytes > HUB_DEVICES_BYTES_MAX:
            raise HubDevicesFull(f"the devices have more than {HUB_DEVICES_BYTES_MAX >> 20} MiB: give it fewer")

    def store(self, page: DevicePage) -> AppliedPage:
        """Write a page to the file; for a thread. Raises PageOutOfStep, CredentialsError."""
        if self._file is None:
            self._file = HubDeviceFile.open(self._data)
        return self._file.apply(page)

    def take(self, page: DevicePage, applied: AppliedPage) -> DeviceNames:
        """Use a page that is in the file; return whom it may have changed."""
        tenant = page.devices_of
        entries, logins = self._entries.setdefault(tenant, {}), self._logins.setdefault(tenant, {})
        changed = {*applied.removed, *(stored.device for stored in applied.entries)}
        if self._owner != page.tenant or self._enabled.get(tenant) != page.enabled:
            changed |= entries.keys()
        names = self._names(tenant, changed)
        self._owner, self.cursor, self._enabled[tenant] = page.tenant, page.cursor, page.enabled
        for device in applied.removed:
            self._forget(entries, logins, device)
        for stored, entry in zip(applied.entries, page.entries, strict=True):
            self._forget(entries, logins, stored.device)
            entries[stored.device] = stored.entry
            self._held = _Held(self._held.devices + 1, self._held.bytes + len(stored.entry))
            for login in entry.logins:
                logins[login.auth_id] = stored.device
        after = self._names(tenant, changed)
        return DeviceNames(names.identities | after.identities, names.users | after.users)

    # --- inside -------------------------------------------------------------------------------------------------

    def _load(self, file: HubDeviceFile) -> None:
        self.cursor, self._owner, self._enabled = file.cursor(), file.owner(), file.tenants()
        for stored in file.devices():
            self._entries.setdefault(stored.tenant, {})[stored.device] = stored.entry
        for login in file.logins():
            self._logins.setdefault(login.tenant, {})[login.auth_id] = login.device

    def _forget(self, entries: dict[str, bytes], logins: dict[str, str], device: str) -> None:
        """Remove a device, and those of its user names that no other device has by now."""
        before = entries.pop(device, None)
        if before is None:
            return
        self._held = _Held(self._held.devices - 1, self._held.bytes - len(before))
        for login in decode_entry(before).logins:
            if logins.get(login.auth_id) == device:
                del logins[login.auth_id]

    def _names(self, tenant: str, devices: Iterable[str]) -> DeviceNames:
        entries, found = self._entries.get(tenant, {}), DeviceNames(set(), set())
        for device in devices:
            found.identities.add(self.identity_of(tenant, device))
            encoded = entries.get(device)
            for login in decode_entry(encoded).logins if encoded is not None else ():
                found.users.update((login.auth_id, f"{login.auth_id}@{tenant}"))
        return found

    def _room_after(self, page: DevicePage) -> _Held:
        """Return the most that there can be after a page."""
        entries = self._entries.get(page.devices_of, {})
        gone = [entries[name] for name in page.removed if name in entries]
        replaced = [entries[entry.device] for entry in page.entries if entry.device in entries]
        added = sum(len(msgspec.json.encode(entry)) for entry in page.entries)
        return _Held(
            self._held.devices - len(gone) - len(replaced) + len(page.entries),
            self._held.bytes - sum(map(len, (*gone, *replaced))) + added,
        )

    def _split(self, name: str) -> tuple[str, str]:
        """Return the tenant and the name in it: neither the names nor the tenants have an ``@``."""
        before, at, tenant = name.rpartition("@")
        return (tenant, before) if at else (self._owner, name)

    def _find(self, tenant: str, device: str) -> DeviceEntry | None:
        encoded = self._entries.get(tenant, {}).get(device)
        if encoded is None or not self._enabled.get(tenant, False):
            return None
        try:
            entry = decode_entry(encoded)
        except CredentialsError:
            return None
        return entry if entry.enabled else None

    def _user(self, tenant: str, device: str, logins: Iterable[DeviceAccount]) -> CredentialUser:
        found = tuple(logins)
        salted = next((login for login in found if login.salt), None)
        name = self.identity_of(tenant, device)
        return CredentialUser(
            name=name,
            salt=salted.salt if salted is not None else hashlib.sha256(name.encode()).digest()[:SALT_BYTES],
            iterations=salted.iterations if salted is not None else ITERATIONS,
            secrets=tuple(_secret(one) for each in found for one in each.secrets if one.function in HASH_FUNCTIONS),
            rules=self._rules,
            origin=BY_HUB,
        )


def _secret(given: DeviceSecretHash) -> CredentialSecret:
    plain = given.function == ARGON2ID
    return CredentialSecret(
        given.id,
        given.hashed if plain else salted_hash(given.function, given.salt, given.hashed),
        ScramKeys(given.stored_key, given.server_key) if plain else ScramKeys(b"", b""),
        given.not_before or 0.0,
        given.not_after,
    )
