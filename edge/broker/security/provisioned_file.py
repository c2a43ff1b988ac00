"""File with the devices that this gateway has let in by their certificates, until the hub has taken or refused them.

A SQLite database next to the users. One process writes it; commands read it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

import msgspec

from edge.broker.security.credentials import CredentialsError, CredentialsUnavailable, connect_private

FILE: Final = "provisioned-devices.db"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS devices (
    tenant TEXT NOT NULL, auth_id TEXT NOT NULL, entry BLOB NOT NULL, PRIMARY KEY (tenant, auth_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rates (tenant TEXT NOT NULL, authority TEXT NOT NULL, entry BLOB NOT NULL,
    PRIMARY KEY (tenant, authority)) WITHOUT ROWID;
"""


class ProvisionedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Device that was let in without a registration."""

    tenant: str
    device: str
    auth_id: str
    """Identifier in its certificate."""
    authority: str
    """Id of the authority among those of its tenant."""
    certificate: bytes
    """DER."""
    at_s: float
    """UTC seconds since 1970."""
    told: bool = False
    """The hub has taken it; its page has not come yet."""
    refused: str = ""
    """Reason of the hub, or empty. A refused device is not let in."""


class ProvisioningRate(msgspec.Struct, frozen=True):
    """Devices of one authority that were let in within an hour."""

    begun_s: float
    """UTC seconds since 1970."""
    count: int


class ProvisionedFile:
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
            opened._connection.execute("PRAGMA synchronous = EXTRA")
            opened._connection.executescript(_SCHEMA)
        except sqlite3.Error as why:
            opened.close()
            raise CredentialsError(
                f"{path}: {why}; stop the gateway and remove the file: devices that the hub does not know yet "
                "are let in again when they connect"
            ) from why
        return opened

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def devices(self) -> list[ProvisionedDevice]:
        """Return all devices, by tenant and identifier."""
        try:
            rows = self._connection.execute("SELECT entry FROM devices ORDER BY tenant, auth_id").fetchall()
            return [msgspec.json.decode(entry, type=ProvisionedDevice) for (entry,) in rows]
        except (sqlite3.Error, msgspec.MsgspecError, UnicodeError) as why:
            raise CredentialsUnavailable(f"cannot read {self.path}: {why}") from why

    def rates(self) -> dict[tuple[str, str], ProvisioningRate]:
        """Return the rates by tenant and authority."""
        try:
            rows = self._connection.execute("SELECT tenant, authority, entry FROM rates").fetchall()
            return {(row[0], row[1]): msgspec.json.decode(row[2], type=ProvisioningRate) for row in rows}
        except (sqlite3.Error, msgspec.MsgspecError, UnicodeError) as why:
            raise CredentialsUnavailable(f"cannot read {self.path}: {why}") from why

    def put(self, device: ProvisionedDevice, rate: ProvisioningRate | None = None) -> None:
        """Add or replace a device, on disk on return; with the rate of its authority for a new one."""
        rows: list[tuple[str, str, str, msgspec.Struct]] = [
            ("INSERT OR REPLACE INTO devices VALUES (?, ?, ?)", device.tenant, device.auth_id, device)
        ]
        if rate is not None:
            rows.append(("INSERT OR REPLACE INTO rates VALUES (?, ?, ?)", device.tenant, device.authority, rate))
        self._write([(query, (*key, msgspec.json.encode(entry))) for query, *key, entry in rows])

    def remove(self, devices: Iterable[ProvisionedDevice]) -> None:
        """Remove devices."""
        query = "DELETE FROM devices WHERE tenant = ? AND auth_id = ?"
        self._write([(query, (each.tenant, each.auth_id)) for each in devices])

    def _write(self, statements: Iterable[tuple[str, tuple[object, ...]]]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                for query, values in statements:
                    self._connection.execute(query, values)
        except sqlite3.Error as why:
            raise CredentialsUnavailable(f"cannot write {self.path}: {why}") from why
