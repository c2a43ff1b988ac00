"""Devices that a hub has given to this gateway, for the authenticator: found by user name or by identity.

All entries are held in memory as they are stored, some 0.8 KiB each, and decoded when their device connects: a lookup
never waits for the card. The identity of a device, which its rights and messages name, is its id. That of a device of
another tenant than the gateway's own, or of the tenant of the Hono API, is ``id@tenant``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bridge.device_pages import (
    ARGON2ID,
    HASH_FUNCTIONS,
    DeviceAccount,
    DeviceEntry,
    DevicePage,
    DeviceSecretHash,
    OfferedUpdate,
    TrustAnchor,
)
from bridge.hidden import hides
from bridge.sasl.scram import ITERATIONS, ScramKeys
from edge.broker.model.authorization import AccessRule
from edge.broker.security.credentials import CredentialSecret, CredentialsError, CredentialUser
from edge.broker.security.device_subjects import DeviceSubjects
from edge.broker.security.hub_device_file import (
    FILE,
    AppliedPage,
    HubDeviceFile,
    StoredDevice,
    decode_entry,
    identity_of,
)
from edge.broker.security.limits import HUB_DEVICES_BYTES_MAX, HUB_DEVICES_MAX
from edge.broker.security.password_hashes import salted_hash
from edge.broker.security.provisioned_devices import ProvisionedDevices

_OFFERS: Final = b'"offers":'
"""Member of the entries of devices with offers; others are not decoded to look."""
BY_HUB: Final = "hub"
"""Origin of users that are devices of a hub."""


class DeviceNames(NamedTuple):
    """Devices that have changed."""

    identities: set[str]
    users: set[str]
    """Names that they log in with."""


@hides("page")
class FittedPage(NamedTuple):
    """Page without the devices that the gateway has no room for."""

    page: DevicePage
    left: int
    """Devices that are left out."""


class DeviceIndex:
    """Content of the file in memory."""

    def __init__(self, file: HubDeviceFile | None = None) -> None:
        """Without a file it is empty. Raises CredentialsError."""
        self.cursor = self.owner = ""
        self.enabled: dict[str, bool] = {}
        self.entries: dict[str, dict[str, bytes]] = {}
        self.logins: dict[str, dict[str, str]] = {}
        self.left: set[str] = set()
        """Tenants with devices that did not fit."""
        self.offers: dict[str, dict[str, tuple[OfferedUpdate, ...]]] = {}
        """Offers by tenant and device, of devices that have some and are enabled."""
        self.offers_revision = 0
        """Number that rises when offers change."""
        self.subjects = DeviceSubjects()
        self.anchors: dict[str, tuple[TrustAnchor, ...]] = {}
        """Authorities by tenant."""
        self.outdated = file is not None and file.is_outdated()
        """A program that takes less from a page has stored the last one."""
        self.departed: set[tuple[str, str]] = set()
        """Tenant and id of devices that the hub took away, until they have no commands to return."""
        if file is not None:
            self.cursor, self.owner, self.enabled, self.left = file.cursor(), file.owner(), file.tenants(), file.left()
            self.departed, self.anchors = file.departed(), file.anchors()
            for stored in file.devices():
                self.entries.setdefault(stored.tenant, {})[stored.device] = stored.entry
                self._note_offers(stored.tenant, stored.device, stored.entry)
                self.subjects.replace(stored.tenant, stored.device, b"", stored.entry)
            for login in file.logins():
                self.logins.setdefault(login.tenant, {})[login.auth_id] = login.device
        # an older program does not know the departed ones, and may have got some of them back
        self.departed -= {(tenant, device) for tenant, devices in self.entries.items() for device in devices}
        self.count = sum(map(len, self.entries.values()))
        self.bytes = sum(len(entry) for entries in self.entries.values() for entry in entries.values())

    def remove(self, tenant: str, device: str) -> None:
        """Remove a device, if it is there, without its user names."""
        self._drop(tenant, device, b"")
        self.departed.add((tenant, device))
        self._note_offers(tenant, device, b"")

    def put(self, stored: StoredDevice) -> None:
        """Add or replace a device, without its user names."""
        self._drop(stored.tenant, stored.device, stored.entry)
        self.entries[stored.tenant][stored.device] = stored.entry
        self.departed.discard((stored.tenant, stored.device))
        self.count += 1
        self.bytes += len(stored.entry)
        self._note_offers(stored.tenant, stored.device, stored.entry)

    def _drop(self, tenant: str, device: str, entry: bytes) -> None:
        """Remove the entry of a device, if it is there; `entry` follows."""
        before = self.entries[tenant].pop(device, None)
        self.subjects.replace(tenant, device, before or b"", entry)
        if before is not None:
            self.count -= 1
            self.bytes -= len(before)

    def _note_offers(self, tenant: str, device: str, entry: bytes) -> None:
        """Note the offers in the entry of a device; an empty entry has none."""
        offers: tuple[OfferedUpdate, ...] = ()
        if _OFFERS in entry:
            from edge.broker.security.device_offers import offers_in  # noqa: PLC0415 - memory without campaigns

            offers = offers_in(entry)
        if self.offers.get(tenant, {}).get(device, ()) == offers:
            return
        self.offers_revision += 1
        if offers:
            self.offers.setdefault(tenant, {})[device] = offers
        else:
            del self.offers[tenant][device]


class HubDevices:
    """Devices in memory, and their file. `store` and `read` are for a thread; everything else for the loop's one."""

    def __init__(
        self,
        data: Path,
        rules: Iterable[AccessRule],
        hono_tenant: str | None = None,
        provisioned: ProvisionedDevices | None = None,
    ) -> None:
        """`rules` of every device; `hono_tenant`: tenant of the Hono API. `provisioned`: devices that the hub does not
        know yet; None: there are none. Raises CredentialsError."""
        self._provisioned = provisioned if provisioned is not None else ProvisionedDevices()
        self._rules = tuple(rules)
        self._hono_tenant = hono_tenant or ""
        self._data = data
        self._file = HubDeviceFile.open(data) if (data / FILE).exists() else None
        """None before the first page."""
        try:
            self._index = DeviceIndex(self._file)
            if self._file is not None:
                self._file.set_hono_tenant(self._hono_tenant)
        except CredentialsError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()

    @property
    def count(self) -> int:
        """Number of devices."""
        return self._index.count

    @property
    def cursor(self) -> str:
        """Cursor behind the last page."""
        return self._index.cursor

    @property
    def shortage(self) -> str | None:
        """Reason why some devices are left out; None if none is."""
        if not self._index.left:
            return None
        most = f"{HUB_DEVICES_MAX} devices or {HUB_DEVICES_BYTES_MAX >> 20} MiB"
        return f"some devices of the hub are left out: a gateway holds {most}; give it fewer"

    @property
    def wants_all(self) -> bool:
        """True if devices were left out, and there is room again, or an older program has stored the last page."""
        return self._index.outdated or (bool(self._index.left) and self._index.count < HUB_DEVICES_MAX)

    # --- lookups ------------------------------------------------------------------------------------------------

    def login(self, username: str) -> CredentialUser | None:
        """Return the user of ``auth-id@tenant``, or of ``auth-id`` in the gateway's own tenant, with the passwords of
        this name; None if it is unknown or disabled."""
        tenant, auth_id = self._split(username)
        device = self._index.logins.get(tenant, {}).get(auth_id)
        entry = self._find(tenant, device) if device is not None else None
        if entry is None:
            return None
        found = next((each for each in entry.logins if each.auth_id == auth_id), None)
        return None if found is None else self._user(tenant, entry.device, [found])

    def user(self, identity: str) -> CredentialUser | None:
        """Return the user with an identity, with all its passwords; None if it is unknown or disabled."""
        tenant, device = self._split(identity)
        entry = self._find(tenant, device)
        if entry is None or self.identity_of(tenant, device) != identity:
            return None
        return self._user(tenant, device, entry.logins)

    @property
    def anchors(self) -> dict[str, tuple[TrustAnchor, ...]]:
        """Authorities of the tenants that are enabled."""
        return {tenant: found for tenant, found in self._index.anchors.items() if self._index.enabled.get(tenant)}

    def certified(self, tenant: str, auth_id: str, at_s: float) -> str | None:
        """Return the identity of the device with an identifier in its certificate, at a time in UTC seconds; None if it
        is unknown or disabled."""
        device = self._index.subjects.find(tenant, auth_id)
        if device is None:
            new = self._provisioned.find(tenant, auth_id)
            if new is None or new.refused or self.has_names(tenant, new.device, auth_id):
                return None
            return None if self._find(tenant, new.device) is None else self.identity_of(tenant, new.device)
        entry = self._find(tenant, device)
        if entry is None or not any(each.auth_id == auth_id and each.is_valid(at_s) for each in entry.subjects):
            return None
        return self.identity_of(tenant, entry.device)

    def has_names(self, tenant: str, device: str, auth_id: str) -> bool:
        """Return whether the hub has given this gateway a device with this id or this identifier in its certificate."""
        return device in self._index.entries.get(tenant, {}) or self._index.subjects.find(tenant, auth_id) is not None

    def identity_of(self, tenant: str, device: str) -> str:
        """Return the identity of a device."""
        return identity_of(tenant, device, self._index.owner, self._hono_tenant)

    @property
    def offers_revision(self) -> int:
        """Number that changes with the offers, and not with anything else of the devices."""
        return self._index.offers_revision

    @property
    def offered_devices(self) -> int:
        """Number of devices with offers."""
        return sum(len(devices) for _, devices in self._offering())

    def offers(self) -> Iterator[tuple[str, OfferedUpdate]]:
        """Return the present offers of devices that are let in, each with the name of its device in messages. They may
        be read in another thread.

        With Hono's device API only devices of its tenant can fetch: another tenant may have a device of the same name.
        """
        present = [(tenant, devices.copy()) for tenant, devices in self._offering()]
        return _named_offers(present, self._index.owner, self._hono_tenant)

    @property
    def departed(self) -> dict[str, tuple[str, str]]:
        """Devices that the hub took away, by their names in commands, until `forget_departed`."""
        return {self._command_name(*each): each for each in self._index.departed}

    def has_left(self, name: str) -> bool:
        """Return whether the hub took a device away lately, by its name in commands."""
        if self._hono_tenant and "@" not in name:
            return (self._hono_tenant, name) in self._index.departed
        return self._split(name) in self._index.departed

    def _command_name(self, tenant: str, device: str) -> str:
        return device if tenant == self._hono_tenant else self.identity_of(tenant, device)

    # --- changes ------------------------------------------------------------------------------------------------

    def forget_departed(self, devices: Collection[tuple[str, str]]) -> None:
        """Forget devices that have no commands to return; for a thread. Raises CredentialsError."""
        if self._file is not None:
            self._file.forget_departed(devices)

    def note_forgotten(self, devices: Collection[tuple[str, str]]) -> None:
        """Use what `forget_departed` has written."""
        self._index.departed.difference_update(devices)

    def fit(self, page: DevicePage) -> FittedPage:
        """Leave out new devices that do not fit. Removals and changes of known devices always count."""
        index, entries = self._index, self._index.entries.get(page.devices_of, {})
        sizes = {entry.device: len(msgspec.json.encode(entry)) for entry in page.entries}
        added = sum(name not in entries for name in sizes)
        if index.count + added <= HUB_DEVICES_MAX and index.bytes + sum(sizes.values()) <= HUB_DEVICES_BYTES_MAX:
            return FittedPage(page, 0)
        gone = {name for name in page.removed if name in entries}
        if page.range is not None:
            gone |= {name for name in entries if page.range.covers(name) and name not in sizes}
        replaced = {name for name in sizes if name in entries}
        count = index.count - len(gone)
        size = index.bytes - sum(len(entries[name]) for name in gone | replaced) + sum(map(sizes.__getitem__, replaced))
        kept = []
        for entry in page.entries:
            if entry.device not in replaced:
                if count + 1 > HUB_DEVICES_MAX or size + sizes[entry.device] > HUB_DEVICES_BYTES_MAX:
                    continue
                count, size = count + 1, size + sizes[entry.device]
            kept.append(entry)
        return FittedPage(msgspec.structs.replace(page, entries=tuple(kept)), len(page.entries) - len(kept))

    def store(self, fitted: FittedPage) -> AppliedPage:
        """Write a page to the file; for a thread. Raises PageOutOfStep, CredentialsError."""
        if self._file is None:
            self._file = HubDeviceFile.open(self._data)
            self._file.set_hono_tenant(self._hono_tenant)
        return self._file.apply(fitted.page, left=bool(fitted.left))

    def take(self, fitted: FittedPage, applied: AppliedPage) -> DeviceNames:
        """Use a page that is in the file; return the devices that it may have changed. Decodes none."""
        index, page = self._index, fitted.page
        tenant = page.devices_of
        entries, logins = index.entries.setdefault(tenant, {}), index.logins.setdefault(tenant, {})
        changed = {*applied.removed, *(stored.device for stored in applied.entries)}
        if index.owner != page.tenant or index.enabled.get(tenant) != page.enabled:
            changed |= entries.keys()
            index.offers_revision += bool(index.offers)
        identities = {self.identity_of(tenant, device) for device in changed}
        index.owner, index.cursor, index.enabled[tenant] = page.tenant, page.cursor, page.enabled
        index.outdated = False
        if page.anchors is not None:
            index.anchors[tenant] = page.anchors
        if fitted.left:
            index.left.add(tenant)
        elif page.range is not None and not page.range.after:
            index.left.discard(tenant)
        for device in applied.removed:
            index.remove(tenant, device)
        users = {login.auth_id for login in applied.freed}
        for login in applied.freed:
            if logins.get(login.auth_id) == login.device:
                del logins[login.auth_id]
        for stored, entry in zip(applied.entries, page.entries, strict=True):
            index.put(stored)
            logins.update(dict.fromkeys((account.auth_id for account in entry.logins), stored.device))
            users.update(account.auth_id for account in entry.logins)
        identities |= {self.identity_of(tenant, device) for device in changed}
        return DeviceNames(identities, users | {f"{user}@{tenant}" for user in users})

    def read(self) -> DeviceIndex:
        """Read the file again, which is ahead of the memory; for a thread. Raises CredentialsError."""
        return DeviceIndex(self._file)

    def replace(self, index: DeviceIndex) -> DeviceNames:
        """Use what `read` has returned; return all devices."""
        identities = set[str]()
        index.offers_revision += self._index.offers_revision + 1
        for each in (self._index, index):
            self._index = each
            identities |= {self.identity_of(tenant, name) for tenant, names in each.entries.items() for name in names}
        return DeviceNames(identities, set())

    # --- inside -------------------------------------------------------------------------------------------------

    def _offering(self) -> Iterator[tuple[str, dict[str, tuple[OfferedUpdate, ...]]]]:
        """Yield the tenants that count, with the offers of their devices."""
        for tenant, devices in self._index.offers.items():
            if self._index.enabled.get(tenant, False) and self._hono_tenant in ("", tenant):
                yield tenant, devices

    def _split(self, name: str) -> tuple[str, str]:
        """Return the tenant and the name in it: neither the names nor the tenants have an ``@``."""
        before, at, tenant = name.rpartition("@")
        return (tenant, before) if at else (self._index.owner, name)

    def _find(self, tenant: str, device: str) -> DeviceEntry | None:
        encoded = self._index.entries.get(tenant, {}).get(device)
        if not self._index.enabled.get(tenant, False):
            return None
        if encoded is None:
            new = self._provisioned.named(tenant, device)
            counts = new is not None and not new.refused and self._index.subjects.find(tenant, new.auth_id) is None
            return DeviceEntry(device=device) if counts else None
        try:
            entry = decode_entry(encoded)
        except CredentialsError:
            return None
        return entry if entry.enabled else None

    def _user(self, tenant: str, device: str, logins: Iterable[DeviceAccount]) -> CredentialUser:
        found = tuple(logins)
        salted = next((login for login in found if login.salt), None)
        return CredentialUser(
            name=self.identity_of(tenant, device),
            salt=salted.salt if salted is not None else b"",
            iterations=salted.iterations if salted is not None else ITERATIONS,
            secrets=tuple(_secret(one) for each in found for one in each.secrets if one.function in HASH_FUNCTIONS),
            rules=self._rules,
            origin=BY_HUB,
        )


def _named_offers(
    present: Iterable[tuple[str, dict[str, tuple[OfferedUpdate, ...]]]], owner: str, hono_tenant: str
) -> Iterator[tuple[str, OfferedUpdate]]:
    """Yield offers with the names of their devices in messages."""
    for tenant, devices in present:
        for device, offers in devices.items():
            name = device if tenant == hono_tenant else identity_of(tenant, device, owner, hono_tenant)
            for offer in offers:
                yield name, offer


def _secret(given: DeviceSecretHash) -> CredentialSecret:
    plain = given.function == ARGON2ID
    return CredentialSecret(
        given.id,
        given.hashed if plain else salted_hash(given.function, given.salt, given.hashed),
        ScramKeys(given.stored_key, given.server_key) if plain else ScramKeys(b"", b""),
        given.not_before or 0.0,
        given.not_after,
    )
