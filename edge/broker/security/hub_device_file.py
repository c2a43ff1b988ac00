"""File with the devices that a hub has given to this gateway: a SQLite database next to the users.

A page of changes and the cursor behind it are one transaction, so a kill costs a page. The file is never emptied
because the hub is away. One process writes it; commands read it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import msgspec

from bridge.device_pages import DeviceEntry, DevicePage, TrustAnchor, digest_of
from edge.broker.security.credentials import CredentialsError, CredentialsUnavailable, connect_private

T = TypeVar("T")

FILE: Final = "hub-devices.db"
FORMAT: Final = 1
"""Version of the file's layout; a newer program writes a higher number."""

_SCHEMA: Final = """
CREATE TABLE devices (tenant TEXT NOT NULL, device TEXT NOT NULL, entry BLOB NOT NULL, PRIMARY KEY (tenant, device))
    WITHOUT ROWID;
CREATE TABLE logins (tenant TEXT NOT NULL, auth_id TEXT NOT NULL, device TEXT NOT NULL, PRIMARY KEY (tenant, auth_id))
    WITHOUT ROWID;
CREATE TABLE tenants (tenant TEXT PRIMARY KEY, enabled INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_CURSOR: Final = "cursor"
_OWNER: Final = "owner"
_HONO: Final = "hono tenant"
_READ: Final = "read"
"""Name in `meta` of the digest of the cursor that a program of this form has stored. An older one leaves it, and knows
neither subjects of certificates nor authorities."""
_ANCHORS: Final = "anchors "
"""Begin of the names in `meta` of the authorities of a tenant."""
_DEPARTED: Final = "departed "
"""Begin of the names in `meta` of devices that were removed, and may have commands to return."""
_PREFIX: Final = (len(_DEPARTED) + 1, len(_DEPARTED), _DEPARTED)


class PageOutOfStep(Exception):
    """A page does not continue the cursor of the file."""

    def __init__(self, cursor: str) -> None:
        super().__init__("the page does not continue the cursor of this gateway")
        self.cursor: Final = cursor


class StoredDevice(NamedTuple):
    """Device as the file has it."""

    tenant: str
    device: str
    entry: bytes
    """JSON of a `DeviceEntry`."""


class StoredLogin(NamedTuple):
    """User name of a device, without its tenant."""

    tenant: str
    auth_id: str
    device: str


class AppliedPage(NamedTuple):
    """Changes of the file by a page."""

    entries: list[StoredDevice]
    removed: list[str]
    """Ids of devices that the file had."""
    freed: list[StoredLogin]
    """User names that devices had before."""


class HubDeviceFile:
    """The file. Calls block for some milliseconds; use it from one thread at a time. Methods raise
    `CredentialsError`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, data: Path) -> Self:
        """Open or create the file in a data directory. Raises CredentialsError."""
        path = data / FILE
        opened = cls(connect_private(path), path)
        try:
            opened._prepare()
        except sqlite3.Error as why:
            opened.close()
            raise CredentialsError(
                f"{path}: {why}; stop the gateway and remove the file: the hub sends its devices again"
            ) from why
        except CredentialsError:
            opened.close()
            raise
        return opened

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cursor(self) -> str:
        """Return the cursor of the last page; empty without one."""
        return self._meta(_CURSOR)

    def owner(self) -> str:
        """Return the tenant of the gateway, as the last page names it; empty without one."""
        return self._meta(_OWNER)

    def devices(self) -> Iterator[StoredDevice]:
        """Yield all devices, by tenant and id."""
        yield from (StoredDevice(*row) for row in self._rows("SELECT tenant, device, entry FROM devices"))

    def logins(self) -> Iterator[StoredLogin]:
        """Yield all user names."""
        yield from (StoredLogin(*row) for row in self._rows("SELECT tenant, auth_id, device FROM logins"))

    def hono_tenant(self) -> str:
        """Return the tenant of the Hono API of this gateway; empty without one."""
        return self._meta(_HONO)

    def set_hono_tenant(self, tenant: str) -> None:
        """Note the tenant of the Hono API, for commands."""
        if tenant != self.hono_tenant():
            self._write(lambda: self._set_meta(_HONO, tenant))

    def left(self) -> set[str]:
        """Return the tenants with devices that did not fit."""
        return {name for (name,) in self._rows("SELECT substr(name, 6) FROM meta WHERE name LIKE 'left %'")}

    def is_outdated(self) -> bool:
        """Return whether a program that takes less from a page has stored the last one."""
        cursor = self.cursor()
        return bool(cursor) and self._meta(_READ) != digest_of(cursor)

    def anchors(self) -> dict[str, tuple[TrustAnchor, ...]]:
        """Return the authorities of the tenants that have some."""
        query = "SELECT substr(name, ?), value FROM meta WHERE substr(name, 1, ?) = ?"
        rows = self._rows(query, len(_ANCHORS) + 1, len(_ANCHORS), _ANCHORS)
        return {tenant: _decode_anchors(value) for tenant, value in rows}

    def departed(self) -> set[tuple[str, str]]:
        """Return tenant and id of the devices that were removed, until `forget_departed`."""
        names = self._rows("SELECT substr(name, ?) FROM meta WHERE substr(name, 1, ?) = ?", *_PREFIX)
        return {(tenant, device) for (name,) in names for tenant, _, device in [str(name).partition("/")]}

    def forget_departed(self, devices: Iterable[tuple[str, str]]) -> None:
        """Forget removed devices, by tenant and id."""
        names = [(f"{_DEPARTED}{tenant}/{device}",) for tenant, device in devices]
        self._write(lambda: self._connection.executemany("DELETE FROM meta WHERE name = ?", names))

    def tenants(self) -> dict[str, bool]:
        """Return the tenants of devices, and whether each is enabled."""
        return {tenant: bool(enabled) for tenant, enabled in self._rows("SELECT tenant, enabled FROM tenants")}

    def apply(self, page: DevicePage, *, left: bool = False) -> AppliedPage:
        """Apply a page in one transaction, on disk on return. `left`: it had devices that do not fit. Raises
        PageOutOfStep, CredentialsError."""
        return self._write(lambda: self._apply(page, left=left))

    # --- inside -------------------------------------------------------------------------------------------------

    def _write(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction. Raises CredentialsError, and what `work` raises."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                return work()
        except sqlite3.Error as why:
            raise CredentialsUnavailable(f"cannot write {self.path}: {why}") from why

    def _apply(self, page: DevicePage, *, left: bool) -> AppliedPage:
        cursor = self._meta(_CURSOR)
        if digest_of(cursor) != page.base:
            raise PageOutOfStep(cursor)
        freed: list[StoredLogin] = []
        removed = self._remove(page, freed)
        entries = [self._put(page.devices_of, entry, freed) for entry in page.entries]
        self._connection.execute("INSERT OR REPLACE INTO tenants VALUES (?, ?)", (page.devices_of, page.enabled))
        self._set_meta(_CURSOR, page.cursor)
        self._set_meta(_READ, digest_of(page.cursor))
        if page.anchors is not None:
            self._set_anchors(page.devices_of, page.anchors)
        self._set_meta(_OWNER, page.tenant)
        if left:
            self._set_meta(f"left {page.devices_of}", "1")
        elif page.range is not None and not page.range.after:
            self._connection.execute("DELETE FROM meta WHERE name = ?", (f"left {page.devices_of}",))
        return AppliedPage(entries, removed, freed)

    def _set_anchors(self, tenant: str, anchors: Sequence[TrustAnchor]) -> None:
        if anchors:
            self._set_meta(f"{_ANCHORS}{tenant}", msgspec.json.encode(anchors).decode())
        else:
            self._connection.execute("DELETE FROM meta WHERE name = ?", (f"{_ANCHORS}{tenant}",))

    def _set_meta(self, name: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def _remove(self, page: DevicePage, freed: list[StoredLogin]) -> list[str]:
        """Remove what a page removes; return the devices that were there."""
        tenant, names = page.devices_of, list(page.removed)
        if page.range is not None:
            query, values = "SELECT device FROM devices WHERE tenant = ? AND device > ?", [tenant, page.range.after]
            if page.range.until is not None:
                query, values = f"{query} AND device <= ?", [*values, page.range.until]
            kept = {entry.device for entry in page.entries}
            names += [name for (name,) in self._connection.execute(query, values).fetchall() if name not in kept]
        return [name for name in names if self._remove_device(tenant, name, freed)]

    def _remove_device(self, tenant: str, device: str, freed: list[StoredLogin]) -> bool:
        for login in self._logins_of(tenant, device):
            self._remove_login(StoredLogin(tenant, login, device), freed)
        query = "DELETE FROM devices WHERE tenant = ? AND device = ?"
        known = bool(self._connection.execute(query, (tenant, device)).rowcount)
        if known:
            self._set_meta(f"{_DEPARTED}{tenant}/{device}", "")
        return known

    def _put(self, tenant: str, entry: DeviceEntry, freed: list[StoredLogin]) -> StoredDevice:
        execute, wanted = self._connection.execute, {login.auth_id for login in entry.logins}
        for login in self._logins_of(tenant, entry.device):
            if login not in wanted:
                self._remove_login(StoredLogin(tenant, login, entry.device), freed)
        encoded = msgspec.json.encode(entry)
        execute("INSERT OR REPLACE INTO devices VALUES (?, ?, ?)", (tenant, entry.device, encoded))
        execute("DELETE FROM meta WHERE name = ?", (f"{_DEPARTED}{tenant}/{entry.device}",))
        for login in wanted:  # one that another device had is this one's now
            execute("INSERT OR REPLACE INTO logins VALUES (?, ?, ?)", (tenant, login, entry.device))
        return StoredDevice(tenant, entry.device, encoded)

    def _logins_of(self, tenant: str, device: str) -> list[str]:
        query = "SELECT entry FROM devices WHERE tenant = ? AND device = ?"
        row = self._connection.execute(query, (tenant, device)).fetchone()
        return [login.auth_id for login in decode_entry(row[0]).logins] if row is not None else []

    def _remove_login(self, login: StoredLogin, freed: list[StoredLogin]) -> None:
        """Remove a user name, unless another device has it already."""
        same = "DELETE FROM logins WHERE tenant = ? AND auth_id = ? AND device = ?"
        if self._connection.execute(same, login).rowcount:
            freed.append(login)

    def _meta(self, name: str) -> str:
        rows = list(self._rows("SELECT value FROM meta WHERE name = ?", name))
        return str(rows[0][0]) if rows else ""

    def _rows(self, query: str, *values: str | int) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(query, values)
        except sqlite3.Error as why:
            raise CredentialsUnavailable(f"cannot read {self.path}: {why}") from why

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA synchronous = EXTRA")
        (found,) = execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise CredentialsError(
                f"{self.path}: a newer version of Waypost wrote it (format {found}, not {FORMAT}): upgrade"
            )
        if found == FORMAT:
            return
        execute("BEGIN IMMEDIATE")
        with self._connection:
            if execute("PRAGMA user_version").fetchone()[0] == FORMAT:
                return  # another process created it first
            for statement in _SCHEMA.split(";"):
                execute(statement)
            execute(f"PRAGMA user_version = {FORMAT}")


def decode_entry(encoded: bytes) -> DeviceEntry:
    """Return a stored device. Raises CredentialsUnavailable if the file is damaged."""
    try:
        return msgspec.json.decode(encoded, type=DeviceEntry)
    except (msgspec.MsgspecError, UnicodeError) as why:
        raise CredentialsUnavailable(f"a device in {FILE} cannot be read: {why}") from None


def _decode_anchors(encoded: str) -> tuple[TrustAnchor, ...]:
    try:
        return msgspec.json.decode(encoded, type=tuple[TrustAnchor, ...])
    except (msgspec.MsgspecError, UnicodeError) as why:
        raise CredentialsUnavailable(f"the authorities of a tenant in {FILE} cannot be read: {why}") from None


def identity_of(tenant: str, device: str, owner: str, hono_tenant: str) -> str:
    """Return the identity of a device at a gateway of the tenant `owner`; `hono_tenant`: empty without the Hono API."""
    return device if tenant == owner and tenant != hono_tenant else f"{device}@{tenant}"
